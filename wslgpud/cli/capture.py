"""``wslgpud capture``: a masked copy of what this machine shows."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from wslgpud.cli import common
from wslgpud.cli.common import Fault, argument, loaded, writing
from wslgpud.host import Host
from wslgpud.sampling import capture as captures
from wslgpud.words import t


def capture(folder: Annotated[Path, argument("FOLDER", "new folder to write")], config: common.Config = None) -> None:
    """Copy the files that wslgpud reads here, with names, serials and addresses masked, for a bug report.

    Examples:
        wslgpud capture my-machine  # then look through the files
    """
    if folder.exists():
        raise Fault("{folder} exists already; name a new folder", folder=str(folder))
    with writing(folder):
        count = len(captures.capture(Host(), folder, loaded(config).config))
    told = t(
        "wrote {count} files in {folder}: look through them before you pass them on", count=count, folder=str(folder)
    )
    print(told)
