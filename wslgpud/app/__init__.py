"""The daemon; ``wslgpud run`` becomes it: the same process, without the command line's libraries.

This module imports next to nothing, so that the service, which is started without options, is the daemon at once.
"""

from __future__ import annotations

import os
import sys
from typing import NoReturn

#: How the order reaches the process after the change; taken from the environment before anything is started.
ORDER = "WSLGPUD_ORDER"
#: the order of ``wslgpud run`` without options, see ``wslgpud.app.process.order``
PLAIN = "{}"


def become(order: str) -> NoReturn:
    """Replace this process by the daemon's, with the same command line and process id.

    The command line and its library take memory that a program which runs for months need not keep.
    """
    # glibc gives each thread an arena of its own, although only one thread at a time runs Python.
    environment = {"MALLOC_ARENA_MAX": "1", **os.environ, ORDER: order}
    os.execve(sys.executable, sys.orig_argv, environment)  # noqa: S606 - our own command line
