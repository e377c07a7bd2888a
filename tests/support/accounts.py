"""Other accounts than the one that the tests run as, and a Python that they can start.

Root's tests are not run as root all the way: what a user may have made is started as somebody else.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from wslgpud.security.run_as import UntrustedProgram, account_for

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
#: no entry of /etc/passwd says who they are, and none has to
ALICE, BOB = 12345, 12346


def shared_python() -> Path:
    """Return a Python of our version that every account can start; skip the test if there is none."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for python in (Path(sys.executable), Path("/usr/bin") / version, Path("/usr/local/bin") / version):
        try:
            account_for(python)
        except (OSError, UntrustedProgram):
            continue
        return python
    pytest.skip(f"no {version} that other accounts can start: this one lies in {Path(sys.executable).resolve()}")


def give(folder: Path, uid: int) -> None:
    """Have everything below a folder, and itself, belong to somebody."""
    for path in (folder, *folder.rglob("*")):
        os.lchown(path, uid, uid)
