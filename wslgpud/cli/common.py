"""Shared by the commands: options that mean the same everywhere, their completion, and errors."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import click

from wslgpud import config as configuration
from wslgpud.cli.commands import TERMINAL, Declared, language
from wslgpud.client import DaemonClient, Unanswered
from wslgpud.words import Fact, Message, MessageError, MessageLike, cause, current, use


class Fault(MessageError):
    """An error that the user can fix: one line on standard error and exit status 2."""

    def __init__(self, template: MessageLike, /, **facts: Fact) -> None:
        super().__init__(Message(template, facts) if isinstance(template, str) else template)


@contextmanager
def refused(template: str, /, **facts: Fact) -> Iterator[None]:
    """Report a failed system operation in one line, with the reason ``why``."""
    try:
        yield
    except OSError as error:
        raise Fault(template, why=cause(error), **facts) from error


@contextmanager
def writing(file: Path) -> Iterator[None]:
    """Report the file that could not be written, and why."""
    with refused("cannot write {path}: {why}", path=str(file)):
        try:
            yield
        except FileExistsError as error:
            raise Fault("{file} exists already; it is left as it is", file=str(file)) from error


def warn(template: MessageLike, /, **facts: Fact) -> None:
    """Print a warning on standard error, in the reader's language."""
    complain(current().text(Message(template, facts) if isinstance(template, str) else template))


def complain(text: str) -> None:
    """Print a text on standard error unchanged."""
    click.echo(f"wslgpud: {text}", err=True)


def print_json(document: Any, *, ensure_ascii: bool = True) -> None:
    """Print the document of ``--json``."""
    print(json.dumps(document, indent=2, ensure_ascii=ensure_ascii))


def picture(plot: Path | None) -> Path | None:
    """Return the file to plot into; None for the terminal, or without a plot."""
    return None if plot is None or str(plot) == TERMINAL else plot


def loaded(file: Path | None) -> configuration.Loaded:
    """Load the configuration for a command."""
    return configuration.load(file, os.environ)


def own_config() -> Path:
    """Return the file in which this user's configuration belongs: root's is the service's."""
    return configuration.SYSTEM_FILE if os.geteuid() == 0 else configuration.user_file(os.environ)


def state_folder(state: Path | None) -> Path:
    """Return the folder that ``--state`` names, or the usual one."""
    # Its owner may put links into it, but not replace it by one.
    return (state or configuration.state_folder(os.environ)).resolve()


def daemon_folders(state: Path | None) -> list[Path]:
    """Return the folders in which a daemon may run: the one named, else the user's own and the service's."""
    # root's own is the service's
    return [state] if state else [*dict.fromkeys((state_folder(None), configuration.SYSTEM_STATE))]


def data_folder(state: Path | None) -> Path:
    """Return the folder that a command reads: the one named, that of a running daemon, else one with a history."""
    if state is not None:
        return state_folder(state)
    own, service = state_folder(None), configuration.SYSTEM_STATE
    # The user's own folder may hold the history of a trial before the installation.
    for folder in daemon_folders(None):
        if (daemon := DaemonClient.of(folder)) is not None and daemon.pid() is not None:
            return folder
    return service if not (own / "wslgpud.db").exists() and service.is_dir() else own


def order(state: Path | None, path: str, /, **document: Any) -> None:
    """Have the daemon of a command's data do something. Raises Fault: none runs; Unanswered: it does not."""
    folder = data_folder(state)
    daemon = DaemonClient.of(folder)
    if daemon is None:
        start = "systemctl start wslgpud" if folder == configuration.SYSTEM_STATE else "wslgpud run"
        raise Fault(
            "no daemon runs in {folder}, which would have to do this; start it: {command}",
            folder=str(folder),
            command=start,
        )
    daemon.post(f"/api/v1/{path}", document)


def database_of(config: Path | None, state: Path | None) -> str:
    """Return the path or URL of the database that a command reads."""
    return loaded(config).config.store.path or own_database(config, state)


def own_database(config: Path | None, state: Path | None) -> str:
    """Return the file of this machine's history; a server gets a copy of its content."""
    from wslgpud.store import sqlite_path  # imported late: most commands do not need SQLAlchemy

    path = loaded(config).config.store.path
    return path if path and sqlite_path(path) is not None else str(data_folder(state) / "wslgpud.db")


def _use_language_of(_context: click.Context, _param: click.Parameter, file: Path | None) -> Path | None:
    """Take the language from the configuration named by ``--config``, for all further output."""
    if file is not None:
        use(language(file))
    return file


def option(names: str, metavar: str, meaning: str, **more: Any) -> Declared:
    """Declare an option that takes a value."""
    return partial(click.Option, names.split(), metavar=metavar, help=meaning, **more)


def flag(names: str, meaning: str) -> Declared:
    """Declare an option that takes none."""
    return partial(click.Option, names.split(), help=meaning)


def argument(metavar: str, meaning: str, completes: Callable[..., list[str]] | None = None) -> Declared:
    """Declare an argument, and its shell completion; files by default."""
    return partial(click.Argument, [], metavar=metavar, help=meaning, shell_complete=completes)


_CONFIG = option(
    "--config -c", "FILE", "configuration instead of the usual one", is_eager=True, callback=_use_language_of
)
_HOST_ROOT = option("--host-root", "FOLDER", "a machine that 'wslgpud capture' recorded instead of this one")
_STATE = option("--state", "FOLDER", "folder of the daemon's data instead of the usual one")
_WHENS = "start: 90s, 2h or 7d ago, 14:00, yesterday, 2026-11-20, '2026-11-20 14:00'"
_EACH = "one value for each 10s, 5min, 1h, ... instead of every sample"
_PLOT = option("--plot", "[FILE]", "draw into FILE (.png, .svg); without a name on this terminal")

Config = Annotated[Path | None, _CONFIG]
Json = Annotated[bool, flag("--json", "print one JSON document")]
State = Annotated[Path | None, _STATE]
HostRoot = Annotated[Path | None, _HOST_ROOT]
#: of one value or several
PYTHON = option("--python", "FILE", "use the torch of this Python instead of the one that trains here")
HostName = Annotated[str, option("--host", "NAME", "only this machine, in a database of many")]
Since = Annotated[str, option("--since", "WHEN", _WHENS)]
Until = Annotated[str, option("--until", "WHEN", "end, written likewise")]
Step = Annotated[str, option("--step", "TIME", _EACH)]
Timeout = Annotated[str, option("--timeout", "TIME", "stop the command after this time: 90s, 30min, 1h30m")]
Interval = Annotated[str, option("--interval", "TIME", "time between two updates, at least 0.2s")]
Plot = Annotated[Path | None, _PLOT]
Gpu = Annotated[int, option("--gpu", "N", "number of the GPU", min=0)]
DryRun = Annotated[bool, flag("--dry-run", "show what would be done, without changing anything")]
Force = Annotated[bool, flag("--force", "replace a file of that name")]


def iso(wall: float | None) -> str | None:
    """Return a moment for ``--json``: in local time, with its zone; None where it is unknown."""
    return None if wall is None else datetime.fromtimestamp(wall).astimezone().isoformat(timespec="seconds")


#: completes one value: context, parameter and prefix -> all matching values
Completer = Callable[[click.Context, click.Parameter, str], list[str]]


def completer(names: Callable[[], Any]) -> Completer:
    """Return a completer for names, which are determined on demand."""
    return lambda _context, _param, incomplete: [name for name in map(str, names()) if name.startswith(incomplete)]


def _rules() -> list[str]:
    from wslgpud.alerts.rules import OTHERS, RULES

    return sorted([*OTHERS, *(rule.name for rule in RULES)])


def _metrics() -> list[str]:
    from wslgpud.app.catalogue import catalogue

    return [spec.name for spec in catalogue() if spec.stored]


def _listed(path: str, rows: str) -> list[int]:
    """Return the numbers that a daemon lists, newest first; none where none answers."""
    for daemon in filter(None, map(DaemonClient.of, daemon_folders(None))):
        with suppress(Unanswered, KeyError, TypeError):
            return [row["id"] for row in daemon.ask(path)[rows]]
    return []


complete_rule, complete_metric = completer(_rules), completer(_metrics)
complete_incident = completer(lambda: _listed("/api/v1/incidents", "incidents"))
complete_stress_run = completer(lambda: _listed("/api/v1/stress", "runs"))
