"""What ``wslgpud run`` becomes: the daemon's process, without what read the command line."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import NoReturn

from wslgpud import config, logs, secrecy, words
from wslgpud.config_key import ConfigError
from wslgpud.host import Host, RecordedHost
from wslgpud.words import cause, say, t

#: How the order reaches the process after the change; taken from the environment before anything is started.
ORDER = "WSLGPUD_ORDER"

log = logging.getLogger(__name__)


class NoRecording(Exception):  # noqa: N818 - a mistake of who named the folder
    """A folder holds no recorded machine."""


def become(config_file: Path | None, state: Path | None, host_root: Path | None) -> NoReturn:
    """Replace this process by the daemon's, with the same command line and process id.

    Typer and what it checks options with take 13 MiB, which a program that runs for months need not keep.
    """
    order = json.dumps([None if path is None else str(path) for path in (config_file, state, host_root)])
    os.execve(sys.executable, sys.orig_argv, {**os.environ, ORDER: order})  # noqa: S606 - our own command line


def main(order: str) -> int:
    """Run the daemon until SIGTERM, Ctrl-C or SIGHUP; return the exit status."""
    # Late: the command that becomes the daemon needs none of it.
    from wslgpud.app import Daemon, StartError  # noqa: PLC0415

    file, state, root = (None if path is None else Path(path) for path in json.loads(order))
    words.use(words.chosen("", os.environ))
    try:
        loaded = config.load(file, os.environ)
        found = loaded.config
        words.use(words.chosen(found.alerts.language, os.environ))
        logs.set_up(found.log.level)
        for path in secrecy.exposed(found, loaded.file):
            log.warning("every user can read %s, which holds secrets: %s", path, secrecy.remedy(path))
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
            print("\n".join(told), flush=True)  # noqa: T201 - for who started it
            daemon.run()
    except (ConfigError, NoRecording, StartError) as error:
        told_error = words.current().text(words.cause(error))
        print(f"{logs.journal_prefix(logging.ERROR)}wslgpud: {told_error}", file=sys.stderr)  # noqa: T201
        return 2
    return 0


def host_at(folder: Path | None) -> Host:
    """Return this machine, or the one recorded in ``folder``.

    Raises:
        NoRecording: the folder holds none.
    """
    if folder is None:
        return Host()
    try:
        return RecordedHost(folder)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise NoRecording(
            say(
                "{folder} is not a machine recorded by 'wslgpud capture': {error}",
                folder=str(folder),
                error=cause(error),
            )
        ) from error
