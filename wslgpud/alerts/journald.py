"""systemd's journal, with fields for queries: ``journalctl WSLGPUD_RULE=oom_kill``."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Mapping
from pathlib import Path

SOCKET = Path("/run/systemd/journal/socket")
#: ``journalctl MESSAGE_ID=...`` finds every change of level
MESSAGE_ID = "6f2c1d7e0b5b4c0c9b3a5a7d1e4f8c21"
_PRIORITY = {"ok": "5", "info": "5", "warning": "4", "critical": "3", "emergency": "2"}


def write(headline: str, level: str, fields: Mapping[str, str], path: Path = SOCKET) -> bool:
    """Write a line without blocking; False where no journal accepts it now.

    Format: https://systemd.io/JOURNAL_NATIVE_PROTOCOL/, with explicit lengths, so that a newline cannot begin a field.
    """
    entry = {
        "MESSAGE": headline,
        "MESSAGE_ID": MESSAGE_ID,
        "PRIORITY": _PRIORITY.get(level, "4"),
        "SYSLOG_IDENTIFIER": "wslgpud",
        **{f"WSLGPUD_{name.upper()}": value for name, value in fields.items()},
    }
    parts = ((name.encode(), value.encode("utf-8", "replace")) for name, value in entry.items())
    data = b"".join(name + b"\n" + struct.pack("<Q", len(value)) + value + b"\n" for name, value in parts)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
            out.setblocking(False)
            out.sendto(data, str(path))
    except OSError:
        return False
    return True


def is_where_we_log(environ: Mapping[str, str]) -> bool:
    """Return whether standard error goes to the journal; in a terminal the line is shown there as well.

    https://www.freedesktop.org/software/systemd/man/latest/systemd.exec.html#%24JOURNAL_STREAM
    """
    try:
        stream = os.fstat(2)
    except OSError:
        return False
    return environ.get("JOURNAL_STREAM") == f"{stream.st_dev}:{stream.st_ino}"
