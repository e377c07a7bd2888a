"""The process of ``wslgpud run``: the daemon, its log and its end, without the command line's libraries."""

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
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import FrameType

from wslgpud import __version__, config, words
from wslgpud.config import ConfigError, config_files
from wslgpud.host import Host, RecordedHost, unprotected
from wslgpud.security.redaction import beneath, masked
from wslgpud.words import MessageError, cause, say, t
from wslgpud.words.units import printable

#: a driver that hangs must not keep the doctor running forever
_EXAMINE_SECONDS = 60.0
# syslog(3) priorities, which the journal reads from a line's beginning (sd-daemon(3))
_PRIORITY = {logging.DEBUG: 7, logging.INFO: 6, logging.WARNING: 4, logging.ERROR: 3, logging.CRITICAL: 2}

log = logging.getLogger(__name__)

#: in a clone: a program that leaks until it is killed
_RECORDED = Path(__file__).parents[2] / "tests/traces/ram-leak_linear-1.jsonl.gz"


class NoRecording(MessageError):  # the user's mistake
    """A folder holds no recorded machine."""


def order(**paths: Path | None) -> str:
    """Return the options of ``wslgpud run`` as ``main`` reads them."""
    return json.dumps({name: str(path) for name, path in paths.items() if path is not None})


def main(order: str) -> int:
    """Run the daemon until SIGTERM, Ctrl-C or SIGHUP; return the exit status."""
    gc.disable()  # until everything is built: all of it stays
    # Imported late: commands that only need a host do without.
    from wslgpud.app.daemon import Daemon, StartError

    paths = {name: Path(path) for name, path in json.loads(order).items()}
    file, state, root = (paths.get(name) for name in ("config", "state", "host_root"))
    words.use(words.chosen("", os.environ))
    try:
        loaded = config.load(file, os.environ)
        settings = loaded.config
        words.use(words.chosen(settings.alerts.language, os.environ))
        log_from(settings.log.level)
        for path in config_files.exposed(settings, loaded.file):
            log.warning("every user can read %s, which holds secrets: %s", path, config_files.remedy(path))
        folder = (state or config.state_folder(os.environ)).resolve()
        daemon = Daemon(settings, host_at(root), folder, os.environ)

        def end(_signal: int, _frame: FrameType | None) -> None:
            daemon.stop()

        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, end)
        with daemon:
            lines = (
                t("wslgpud {version} watches GPU, RAM and swap, and warns before memory runs out", version=__version__),
                t("page     {url}", url=f"{daemon.url}/"),
                t("metrics  {url}", url=f"{daemon.url}/metrics"),
                t("data     {path}", path=str(daemon.database)),
            )
            sys.stdout.write("\n".join(lines) + "\n")
            if beneath(sys.stdout).isatty() and root is None:
                sys.stdout.write(t("next     {command}   (in another terminal)", command=f"{called()} monitor") + "\n")
                if _RECORDED.exists():
                    shown = Path(os.path.relpath(_RECORDED))
                    command = f"{called()} replay {shown if '..' not in shown.parts else _RECORDED}"
                    sample = t("try      {command}   (memory runs out, as it was recorded)", command=command)
                    sys.stdout.write(f"{sample}\n")
                threading.Thread(target=_examine, args=(file, folder), daemon=True).start()
            sys.stdout.flush()
            gc.freeze()  # modules and long-lived objects: no later collection needs to scan them
            # For cycles left by SQLAlchemy's statements; at the threshold of the start, 5 MiB of them would wait.
            gc.set_threshold(2000, 5, 5)
            gc.enable()
            daemon.run()
    except (ConfigError, NoRecording, StartError) as error:
        error_text = words.current().text(words.cause(error))
        sys.stderr.write(f"{journal_prefix(logging.ERROR)}wslgpud: {error_text}\n")
        return 2
    return 0


def called() -> str:
    """Return the command that starts this program: its name if that is in PATH, else its path."""
    program = Path(sys.argv[0])
    if program.name == "__main__.py":
        return f"{sys.executable} -m {program.parent.name}"
    on_path = shutil.which(program.name)
    if on_path and os.path.realpath(on_path) == os.path.realpath(program):
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
        message = say("{folder} is not a machine recorded by 'wslgpud capture': {error}", folder=str(folder), error=why)
        raise NoRecording(message) from error


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
