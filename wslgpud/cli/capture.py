"""``wslgpud capture``: a masked copy of what this machine shows."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from wslgpud.cli.common import ConfigOption, Fault, loaded
from wslgpud.words import failure, t


def capture(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="new folder to write")],
    config: ConfigOption = None,
) -> None:
    """Copy the files that wslgpud reads here, with names, serials and addresses masked, for a bug report.

    Examples:
        wslgpud capture my-machine  # then look through the files
    """
    from wslgpud.capture import capture as write_capture  # noqa: PLC0415 - reads all sources; only here
    from wslgpud.host import Host  # noqa: PLC0415

    if folder.exists():
        raise Fault("{folder} exists already; name a new folder", folder=str(folder))
    try:
        files = write_capture(Host(), folder, loaded(config).config)
    except OSError as error:
        raise Fault("cannot write {file}: {reason}", file=str(folder), reason=failure(error)) from error
    told = t(
        "wrote {count} files in {folder}: look through them before you pass them on",
        count=len(files),
        folder=str(folder),
    )
    print(told)
