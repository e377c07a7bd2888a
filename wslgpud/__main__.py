"""``wslgpud`` and ``python -m wslgpud``."""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path

#: Imports allocate tens of thousands of objects and hardly any garbage: collecting takes an eighth of the start-up
#: time.
_OBJECTS_BETWEEN_COLLECTIONS = 50_000


def main() -> None:
    """Run the command line, or the daemon that ``wslgpud run`` has turned into."""
    gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS)
    package = Path(__file__).parent
    if os.geteuid() == 0 and package.stat().st_uid != 0:
        # Under sudo in a pipx or uv environment: its owner could not remove bytecode compiled by root.
        sys.dont_write_bytecode = True
        from wslgpud.security.safe_files import Folder

        Folder.made(package / "__pycache__").close()  # hands its present contents to that user
    # Imported late: tools import this module, and the daemon needs no command line.
    from wslgpud.app import process
    from wslgpud.security import terminal

    terminal.install()
    if order := os.environ.pop(process.ORDER, ""):
        sys.exit(process.main(order))
    from wslgpud.cli import app

    sys.exit(app())


if __name__ == "__main__":
    main()
