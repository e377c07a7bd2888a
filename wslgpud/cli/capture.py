"""``wslgpud capture``: a masked copy of what this machine shows."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from wslgpud.cli.common import ConfigOption, Fault, loaded


def capture(
    folder: Annotated[Path, typer.Argument(help="new folder to write")],
    config: ConfigOption = None,
) -> None:
    """Copy what wslgpud reads of this machine, with names, serials and addresses masked, for a bug report."""
    from wslgpud.capture import capture as write_capture  # noqa: PLC0415 - reads all sources; only here
    from wslgpud.host import Host  # noqa: PLC0415

    if folder.exists():
        raise Fault(f"{folder} exists already; name a new folder")
    try:
        files = write_capture(Host(), folder, loaded(config).config)
    except OSError as error:
        raise Fault(f"cannot write {folder}: {error.strerror}") from error
    print(f"wrote {len(files)} files in {folder}: look through them before you pass them on")
