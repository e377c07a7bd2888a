"""Log lines: one line an event, with the figure, for a terminal or the journal."""

from __future__ import annotations

import logging
import os
import sys

from wslgpud.security.redaction import masked
from wslgpud.words.units import printable

# syslog(3) priorities, which the journal reads from a line's beginning (sd-daemon(3))
_PRIORITY = {logging.DEBUG: 7, logging.INFO: 6, logging.WARNING: 4, logging.ERROR: 3, logging.CRITICAL: 2}


class _JournalFormatter(logging.Formatter):
    """One line with its priority; a traceback's lines carry it too, else they would read as notices."""

    def format(self, record: logging.LogRecord) -> str:
        prefix = f"<{_PRIORITY.get(record.levelno, 6)}>"
        return "\n".join(prefix + line for line in super().format(record).splitlines())


def _one_line(record: logging.LogRecord) -> bool:
    """Keep an event on one line, and secrets out: a line feed in a foreign name would forge an event."""
    record.msg, record.args = masked(printable(record.getMessage())), ()
    return True


def set_up(level: str) -> None:
    """Print log lines of ``level`` and above to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(_one_line)
    plain = logging.Formatter("%(asctime)s %(levelname)-7s %(message)s", "%H:%M:%S")
    handler.setFormatter(_JournalFormatter("%(message)s") if _to_journal() else plain)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # Says each run of each job at info; our own jobs say what they did.
    logging.getLogger("apscheduler").setLevel(logging.WARNING)


def journal_prefix(level: int) -> str:
    """Return what marks a line of this importance in the journal; nothing where a person reads."""
    return f"<{_PRIORITY[level]}>" if _to_journal() else ""


def _to_journal() -> bool:
    """Tell whether standard error is the stream that systemd made (``device:inode``, systemd.exec(5))."""
    try:
        status = os.fstat(2)
    except OSError:
        return False
    return os.environ.get("JOURNAL_STREAM") == f"{status.st_dev}:{status.st_ino}"
