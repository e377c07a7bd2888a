"""What ``wslgpud run`` becomes: the daemon's process, without the command line's libraries."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import NoReturn

from wslgpud import config, words
from wslgpud.app import logs
from wslgpud.config import ConfigError, secret_files
from wslgpud.host import Host, RecordedHost
from wslgpud.words import MessageError, cause, say, t

#: How the order reaches the process after the change; taken from the environment before anything is started.
ORDER = "WSLGPUD_ORDER"

log = logging.getLogger(__name__)


class NoRecording(MessageError):  # a mistake of who named the folder
    """A folder holds no recorded machine."""


def become(config_file: Path | None, state: Path | None, host_root: Path | None) -> NoReturn:
    """Replace this process by the daemon's, with the same command line and process id.

    Typer and its dependencies take 13 MiB, which a program that runs for months need not keep.
    """
    order = json.dumps([None if path is None else str(path) for path in (config_file, state, host_root)])
    os.execve(sys.executable, sys.orig_argv, {**os.environ, ORDER: order})  # noqa: S606 - our own command line


def main(order: str) -> int:
    """Run the daemon until SIGTERM, Ctrl-C or SIGHUP; return the exit status."""
    # Late: the command that becomes the daemon needs none of it.
    from wslgpud.app.daemon import Daemon, StartError

    file, state, root = (None if path is None else Path(path) for path in json.loads(order))
    words.use(words.chosen("", os.environ))
    try:
        loaded = config.load(file, os.environ)
        found = loaded.config
        words.use(words.chosen(found.alerts.language, os.environ))
        logs.set_up(found.log.level)
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
            sys.stdout.flush()
            daemon.run()
    except (ConfigError, NoRecording, StartError) as error:
        told_error = words.current().text(words.cause(error))
        sys.stderr.write(f"{logs.journal_prefix(logging.ERROR)}wslgpud: {told_error}\n")
        return 2
    return 0


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
