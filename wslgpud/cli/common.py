"""What the commands share: options, and faults that end in one line and exit status 2."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import typer

from wslgpud import config as configuration
from wslgpud.cli.commands import TERMINAL
from wslgpud.words import Fact, Message, MessageError, MessageLike, current, failure


class Fault(MessageError):
    """Something the user can mend: one line on standard error and exit status 2."""

    def __init__(self, template: MessageLike, /, **facts: Fact) -> None:
        super().__init__(Message(template, facts) if isinstance(template, str) else template)


@contextmanager
def refused(template: str, /, **facts: Fact) -> Iterator[None]:
    """Say in one line what the system did not let us do, and ``why``."""
    try:
        yield
    except OSError as error:
        raise Fault(template, why=failure(error), **facts) from error


@contextmanager
def writing(file: Path) -> Iterator[None]:
    """Say which file could not be written, and why."""
    with refused("cannot write {path}: {why}", path=str(file)):
        try:
            yield
        except FileExistsError as error:
            raise Fault("{file} exists already; it is left as it is", file=str(file)) from error


def warn(template: MessageLike, /, **facts: Fact) -> None:
    """Print on standard error what somebody should know, in the reader's language."""
    complain(current().text(Message(template, facts) if isinstance(template, str) else template))


def complain(text: str) -> None:
    """Print it on standard error as it is."""
    typer.echo(f"wslgpud: {text}", err=True)


def picture(plot: Path | None) -> Path | None:
    """Return the file to draw into; None where the terminal is meant, or nothing."""
    return None if plot is None or str(plot) == TERMINAL else plot


def loaded(file: Path | None) -> configuration.Loaded:
    """Load the configuration for a command."""
    return configuration.load(file, os.environ)


def state_folder(state: Path | None) -> Path:
    """Return the folder that ``--state`` names, or the usual one."""
    # Its owner may put links into it, but not in its place.
    return (state or configuration.state_folder(os.environ)).resolve()


def daemon_folders(state: Path | None) -> list[Path]:
    """Return where a daemon leaves its note: the folder named, else one's own and the service's."""
    return [state] if state else [state_folder(None), configuration.SYSTEM_STATE]


def data_folder(state: Path | None) -> Path:
    """Return the folder that a command is to read: the one named, one's own daemon's, or the service's."""
    own = state_folder(state)
    service = configuration.SYSTEM_STATE
    return service if state is None and not (own / "wslgpud.db").exists() and service.is_dir() else own


def database_of(config: Path | None, state: Path | None) -> str:
    """Return the path or URL of the database that a command is to read."""
    return loaded(config).config.store.path or str(data_folder(state) / "wslgpud.db")
