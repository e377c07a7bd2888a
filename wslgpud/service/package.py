"""The steps of the Debian package besides unpacking: ``python3 -I -m wslgpud.service.package configure``.

Its maintainer scripts call this; starting and stopping the units is debhelper's (``deploy/debian``).
"""

from __future__ import annotations

import compileall
import sys

from wslgpud.service import install
from wslgpud.service.changes import Changes, ServiceError
from wslgpud.service.install import remove_windows_task
from wslgpud.service.places import PACKAGE, PACKAGED_PROGRAM, SYSTEM


def configure() -> None:
    """Create accounts, permissions, the sandbox that this machine needs, and bytecode."""
    compile_packages()
    changes = Changes(dry=False)
    install.prepare(PACKAGED_PROGRAM, SYSTEM, changes)
    for path, text in install.drop_ins((), SYSTEM).items():
        changes.put(text, path)


def compile_packages() -> None:
    """Compile the package for the system's Python: only root can, else each start would do it again."""
    for folder in sys.path:
        if folder.startswith(f"{PACKAGE}/"):
            compileall.compile_dir(folder, quiet=1)


def main(step: str) -> None:
    if step == "configure":
        configure()
    elif step == "compile":
        compile_packages()
    elif step == "remove":
        remove_windows_task(Changes(dry=False))


if __name__ == "__main__":
    try:
        main(sys.argv[1])
    except ServiceError as error:
        sys.exit(f"wslgpud: {error}")
