"""What the commands share: options, and faults that end in one line and exit status 2."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from wslgpud import config as configuration
from wslgpud import daemon, logs
from wslgpud.config_key import ConfigError
from wslgpud.host import Host

if TYPE_CHECKING:
    from wslgpud.store import Reader


class Commands(TyperGroup):
    """A group whose help says all of each command's first sentence, folded; Typer's own cuts it."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands that are to be seen."""
        del ctx
        shown = [(name, one) for name, one in self.commands.items() if not one.hidden]
        with formatter.section("Commands"):
            formatter.write_dl([(name, one.get_short_help_str(limit=200)) for name, one in shown])


class Fault(typer.Exit):
    """Something the user can mend: one line on standard error and exit status 2."""

    def __init__(self, text: str) -> None:
        """Print the line; raising this ends the command."""
        typer.echo(f"{logs.journal_prefix(logging.ERROR)}wslgpud: {text}", err=True)
        super().__init__(2)
        self.args = (text,)  # for who catches it


ConfigOption = Annotated[
    Path | None, typer.Option("--config", "-c", help="configuration file instead of the usual ones")
]
JsonOption = Annotated[bool, typer.Option("--json", help="print facts as JSON")]
StateOption = Annotated[
    Path | None, typer.Option("--state", help="folder of the daemon's database instead of the usual one")
]
HostOption = Annotated[
    Path | None,
    typer.Option("--host-root", help="look at a machine that 'wslgpud capture' recorded instead of this one"),
]


def loaded(file: Path | None) -> configuration.Loaded:
    """Load the configuration for a command.

    Raises:
        Fault: it cannot be used.
    """
    try:
        return configuration.load(file, os.environ)
    except ConfigError as error:
        raise Fault(str(error)) from error


def host_at(folder: Path | None) -> Host:
    """Return this machine, or the one recorded in ``folder``.

    Raises:
        Fault: the folder holds no recording.
    """
    try:
        return daemon.host_at(folder)
    except daemon.NoRecording as error:
        raise Fault(str(error)) from error


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


def open_reader(config: Path | None, state: Path | None) -> Reader:
    """Open the daemon's history.

    Raises:
        Fault: there is none, or it cannot be read.
    """
    from wslgpud.store import Reader, StoreError  # noqa: PLC0415 - the database only when asked for

    try:
        return Reader(database_of(config, state))
    except StoreError as error:
        raise Fault(str(error)) from error


def warn(text: str) -> None:
    """Print on standard error what somebody should know."""
    typer.echo(f"wslgpud: {text}", err=True)
