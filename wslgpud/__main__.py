"""``wslgpud`` and ``python -m wslgpud``."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Run the command line, or the daemon that its ``run`` has become."""
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
