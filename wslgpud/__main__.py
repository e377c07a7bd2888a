"""``wslgpud`` and ``python -m wslgpud``."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line."""
    # Late, so that importing this module, as tools do, costs nothing.
    from wslgpud.cli import app  # noqa: PLC0415

    sys.exit(app())


if __name__ == "__main__":
    main()
