"""``wslgpud`` and ``python -m wslgpud``."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Run the command line, or the daemon that its ``run`` has become."""
    # Late, so that importing this module, as tools do, costs nothing; and the daemon needs no command line.
    from wslgpud import daemon, output  # noqa: PLC0415

    output.install()
    if order := os.environ.pop(daemon.ORDER, ""):
        sys.exit(daemon.main(order))
    from wslgpud.cli import app  # noqa: PLC0415

    sys.exit(app())


if __name__ == "__main__":
    main()
