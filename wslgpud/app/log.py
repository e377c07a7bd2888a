"""The daemon's log: lines on standard error, with their priority where that is the journal."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping

from wslgpud.security.redaction import masked
from wslgpud.words.units import printable

# syslog(3) priorities, which the journal reads from a line's beginning (sd-daemon(3))
_PRIORITY = {logging.DEBUG: 7, logging.INFO: 6, logging.WARNING: 4, logging.ERROR: 3, logging.CRITICAL: 2}


class _JournalFormatter(logging.Formatter):
    """One line with its priority; each line of a traceback carries it too, or it would be logged as a notice."""

    def format(self, record: logging.LogRecord) -> str:
        prefix = f"<{_PRIORITY.get(record.levelno, 6)}>"
        return "\n".join(prefix + line for line in super().format(record).splitlines())


def _one_line(record: logging.LogRecord) -> bool:
    """Keep an event on one line, without secrets: a line feed in a foreign name could forge an event."""
    record.msg, record.args = masked(printable(record.getMessage())), ()
    return True


def is_in_journal(environ: Mapping[str, str]) -> bool:
    """Return whether standard error goes to the journal.

    https://www.freedesktop.org/software/systemd/man/latest/systemd.exec.html#%24JOURNAL_STREAM
    """
    try:
        stream = os.fstat(2)
    except OSError:
        return False
    return environ.get("JOURNAL_STREAM") == f"{stream.st_dev}:{stream.st_ino}"


def log_from(level: str) -> None:
    """Print log lines of ``level`` and above to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(_one_line)
    plain = logging.Formatter("%(asctime)s %(levelname)-7s %(message)s", "%H:%M:%S")
    handler.setFormatter(_JournalFormatter("%(message)s") if is_in_journal(os.environ) else plain)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())


def journal_prefix(level: int) -> str:
    """Return the journal's priority prefix of a line; empty on a terminal."""
    return f"<{_PRIORITY[level]}>" if is_in_journal(os.environ) else ""
