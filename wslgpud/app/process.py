"""The process of ``wslgpud run``: the daemon and its log, without the command line's libraries."""

from __future__ import annotations

import gc
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import NoReturn

from wslgpud import config, words
from wslgpud.alerts.journald import is_where_we_log
from wslgpud.config import ConfigError, secret_files
from wslgpud.host import Host, RecordedHost, unprotected
from wslgpud.security.redaction import masked
from wslgpud.security.terminal import beneath
from wslgpud.words import MessageError, cause, say, t
from wslgpud.words.units import printable

#: Passes the order across exec; removed from the environment before anything is started.
ORDER = "WSLGPUD_ORDER"

#: a driver that hangs must not keep the doctor running forever
_EXAMINE_SECONDS = 60.0

# syslog(3) priorities, which the journal reads from a line's beginning (sd-daemon(3))
_PRIORITY = {logging.DEBUG: 7, logging.INFO: 6, logging.WARNING: 4, logging.ERROR: 3, logging.CRITICAL: 2}

log = logging.getLogger(__name__)


class NoRecording(MessageError):  # the user's mistake
    """A folder holds no recorded machine."""


def become(config_file: Path | None, state: Path | None, host_root: Path | None) -> NoReturn:
    """Replace this process by the daemon's, with the same command line and process id.

    Typer and its dependencies take 13 MiB, too much to keep for months.
    """
    order = json.dumps([None if path is None else str(path) for path in (config_file, state, host_root)])
    # Each thread would get a glibc arena of its own, although only one thread at a time runs Python.
    environment = {"MALLOC_ARENA_MAX": "1", **os.environ, ORDER: order}
    os.execve(sys.executable, sys.orig_argv, environment)  # noqa: S606 - our own command line


def main(order: str) -> int:
    """Run the daemon until SIGTERM, Ctrl-C or SIGHUP; return the exit status."""
    # Imported late: the command that becomes the daemon needs none of it.
    from wslgpud.app.daemon import Daemon, StartError

    file, state, root = (None if path is None else Path(path) for path in json.loads(order))
    words.use(words.chosen("", os.environ))
    try:
        loaded = config.load(file, os.environ)
        found = loaded.config
        words.use(words.chosen(found.alerts.language, os.environ))
        log_from(found.log.level)
        for path in secret_files.exposed(found, loaded.file):
            log.warning("every user can read %s, which holds secrets: %s", path, secret_files.remedy(path))
        folder = (state or config.state_folder(os.environ)).resolve()
        daemon = Daemon(found, host_at(root), folder, os.environ)

        def end(_signal: int, _frame: FrameType | None) -> None:
            daemon.stop()

        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, end)
        with daemon:
            told = (
                t("metrics  {url}", url=f"{daemon.url}/metrics"),
                t("page     {url}", url=f"{daemon.url}/"),
                t("data     {path}", path=str(daemon.database)),
            )
            sys.stdout.write("\n".join(told) + "\n")
            if beneath(sys.stdout).isatty() and root is None:
                sys.stdout.write(t("next     {command}   (in another terminal)", command=f"{called()} monitor") + "\n")
                threading.Thread(target=_examine, args=(file, folder), daemon=True).start()
            sys.stdout.flush()
            gc.freeze()  # modules and long-lived objects: no later collection needs to scan them
            daemon.run()
    except (ConfigError, NoRecording, StartError) as error:
        told_error = words.current().text(words.cause(error))
        sys.stderr.write(f"{journal_prefix(logging.ERROR)}wslgpud: {told_error}\n")
        return 2
    return 0


def called() -> str:
    """Return the command that starts this program: its name if that is in PATH, else its path."""
    program = Path(sys.argv[0])
    if program.name == "__main__.py":
        return f"{sys.executable} -m {program.parent.name}"
    found = shutil.which(program.name)
    if found and os.path.realpath(found) == os.path.realpath(program):
        return program.name
    with suppress(ValueError):
        return str(program.relative_to(Path.cwd()))
    return str(program)


def _examine(file: Path | None, state: Path) -> None:
    """Have the doctor print its findings from a child process, so that its libraries are not kept in memory."""
    command = [sys.executable, "-I", sys.argv[0], "doctor", "--brief", "--no-torch", "--state", str(state)]
    if file is not None:
        command += ["--config", str(file)]
    with suppress(OSError, subprocess.TimeoutExpired):  # optional
        subprocess.run(unprotected(command), stdin=subprocess.DEVNULL, timeout=_EXAMINE_SECONDS, check=False)


def host_at(folder: Path | None) -> Host:
    """Return this machine, or the one recorded in ``folder``. Raises NoRecording: the folder holds none."""
    if folder is None:
        return Host()
    try:
        return RecordedHost(folder)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        why = cause(error)
        said = say("{folder} is not a machine recorded by 'wslgpud capture': {error}", folder=str(folder), error=why)
        raise NoRecording(said) from error


class _JournalFormatter(logging.Formatter):
    """One line with its priority; each line of a traceback carries it too, or it would be logged as a notice."""

    def format(self, record: logging.LogRecord) -> str:
        prefix = f"<{_PRIORITY.get(record.levelno, 6)}>"
        return "\n".join(prefix + line for line in super().format(record).splitlines())


def _one_line(record: logging.LogRecord) -> bool:
    """Keep an event on one line, without secrets: a line feed in a foreign name could forge an event."""
    record.msg, record.args = masked(printable(record.getMessage())), ()
    return True


def log_from(level: str) -> None:
    """Print log lines of ``level`` and above to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(_one_line)
    plain = logging.Formatter("%(asctime)s %(levelname)-7s %(message)s", "%H:%M:%S")
    handler.setFormatter(_JournalFormatter("%(message)s") if is_where_we_log(os.environ) else plain)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # APScheduler logs each run of each job at info; our jobs report for themselves.
    logging.getLogger("apscheduler").setLevel(logging.WARNING)


def journal_prefix(level: int) -> str:
    """Return the journal's priority prefix of a line; empty on a terminal."""
    return f"<{_PRIORITY[level]}>" if is_where_we_log(os.environ) else ""
