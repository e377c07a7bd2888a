"""Runs commands one after another, each on its own terminal; a program, started by ``test_terminal``.

Reads a JSON list of [arguments, keys] from standard input; prints a list of [status, all that the terminal got].
``keys`` are pressed as soon as the last of them, a text to wait for, was shown. One process that forks spares each
command the start of Python.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import pty
import struct
import sys
import termios
import traceback

from wslgpud import __main__, cli  # noqa: F401 - loaded once, before the forks


def run(arguments: list[str], wait_for: str, keys: str) -> tuple[int, bytes]:
    """Return the exit status of a command, and all that it wrote to its terminal."""
    pid, terminal = pty.fork()
    if pid == 0:
        command(arguments)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 160, 0, 0))
    seen, pressed = b"", not keys
    while True:
        try:
            data = os.read(terminal, 1 << 16)
        except OSError:  # its other side is closed
            break
        if not data:
            break
        seen += data
        if not pressed and wait_for.encode() in seen:
            os.write(terminal, keys.encode())
            pressed = True
    os.close(terminal)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), seen


def command(arguments: list[str]) -> None:
    """Become the command."""
    sys.argv = ["wslgpud", *arguments]
    # This process reads its orders from a pipe; the command has a terminal.
    sys.stdin = sys.__stdin__ = os.fdopen(0, closefd=False)
    sys.stdout = sys.__stdout__ = os.fdopen(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = sys.__stderr__ = os.fdopen(2, "w", encoding="utf-8", closefd=False)
    status = 0
    try:
        __main__.main()
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(bool(end.code))
    except BaseException:  # noqa: BLE001 - as Python itself ends
        traceback.print_exc()
        status = 1
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(status)


if __name__ == "__main__":
    results = [run(*order) for order in json.load(sys.stdin)]
    json.dump([[status, base64.b64encode(seen).decode()] for status, seen in results], sys.stdout)
