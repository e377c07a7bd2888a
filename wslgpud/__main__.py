"""``wslgpud`` and ``python -m wslgpud``."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def main() -> None:
    """Run the command line, or the daemon that its ``run`` has become."""
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
