"""``wslgpud`` and ``python -m wslgpud``."""

from __future__ import annotations

import io
import os
import sys


def main() -> None:
    """Run the command line, or the daemon that its ``run`` has become."""
    # Late, so that importing this module, as tools do, costs nothing; and the daemon needs no command line.
    from wslgpud import daemon  # noqa: PLC0415

    if order := os.environ.pop(daemon.ORDER, ""):
        sys.exit(daemon.main(order))
    from wslgpud.cli import app  # noqa: PLC0415

    if isinstance(sys.stdout, io.TextIOWrapper):
        # A terminal without UTF-8 shows ? in place of bars and of names that it lacks; it gets no traceback.
        sys.stdout.reconfigure(errors="replace")
    sys.exit(app())


if __name__ == "__main__":
    main()
