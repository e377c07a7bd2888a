"""``wslgpud`` and ``python -m wslgpud``."""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path

#: Imports make objects by the ten thousand and hardly any garbage: to look for it takes an eighth of a start.
_OBJECTS_BETWEEN_COLLECTIONS = 50_000


def main() -> None:
    """Run the command line, or the daemon that its ``run`` has become."""
    gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS)
    package = Path(__file__).parent
    if os.geteuid() == 0 and package.stat().st_uid != 0:
        # By sudo from pipx's or uv's environment, whose user could not remove what root compiles into it.
        sys.dont_write_bytecode = True
        from wslgpud.security.safe_files import Folder

        Folder.made(package / "__pycache__").close()  # what is there by now becomes theirs
    # Late, so that importing this module, as tools do, costs nothing; and the daemon needs no command line.
    from wslgpud.app import process
    from wslgpud.security import terminal

    terminal.install()
    if order := os.environ.pop(process.ORDER, ""):
        sys.exit(process.main(order))
    from wslgpud.cli import app

    sys.exit(app())


if __name__ == "__main__":
    main()
