"""``wslgpud`` and ``python -m wslgpud``."""

from __future__ import annotations

import gc
import os
import sys

#: Imports allocate tens of thousands of objects and hardly any garbage: collecting takes an eighth of the start-up
#: time.
_OBJECTS_BETWEEN_COLLECTIONS = 50_000


def main() -> None:
    """Run the command line, or the daemon that ``wslgpud run`` has turned into."""
    gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS)
    package = os.path.dirname(__file__)  # noqa: PTH120 - pathlib takes longer than all else until the daemon's start
    if os.geteuid() == 0 and (owner := os.stat(package)).st_uid != 0:  # noqa: PTH116
        # Under sudo in a pipx or uv environment: its owner could not remove bytecode compiled by root. Bytecode
        # compiled so far is handed over with its folder, unless that is a link by now.
        sys.dont_write_bytecode = True
        try:
            cache = os.open(f"{package}/__pycache__", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:  # there is none
            pass
        else:
            os.fchown(cache, owner.st_uid, owner.st_gid)
            os.close(cache)
    # Imported late: tools import this module, and the daemon needs no command line.
    from wslgpud.app import ORDER, PLAIN, become

    order = os.environ.pop(ORDER, "")
    if not order and sys.argv[1:] == ["run"]:
        become(PLAIN)  # as the service is started: there is nothing to parse, which takes 0.1 s
    from wslgpud.security import redaction

    redaction.install_boundary()
    if order:
        from wslgpud.app import process

        sys.exit(process.main(order))
    from wslgpud.cli import app

    gc.freeze()  # modules stay to the end: the search for garbage at the exit need not look at them
    sys.exit(app())


if __name__ == "__main__":
    main()
