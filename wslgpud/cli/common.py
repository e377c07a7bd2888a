"""What the commands share: options, and faults that end in one line and exit status 2."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wslgpud import config as configuration
from wslgpud import daemon, logs
from wslgpud.cli.commands import TERMINAL, language
from wslgpud.config_key import ConfigError
from wslgpud.host import Host
from wslgpud.words import Fact, Message, Said, cause, current, use

if TYPE_CHECKING:
    from wslgpud.store import Reader


class Fault(typer.Exit):
    """Something the user can mend: one line on standard error and exit status 2."""

    def __init__(self, template: Said, /, **facts: Fact) -> None:
        """Print the line in the reader's language; raising this ends the command."""
        said = Message(template, facts) if isinstance(template, str) else template
        text = current().text(said)
        typer.echo(f"{logs.journal_prefix(logging.ERROR)}wslgpud: {text}", err=True)
        super().__init__(2)
        self.args = (text,)  # for who catches it


def warn(template: Said, /, **facts: Fact) -> None:
    """Print on standard error what somebody should know, in the reader's language."""
    said = Message(template, facts) if isinstance(template, str) else template
    typer.echo(f"wslgpud: {current().text(said)}", err=True)


def _heard(file: Path | None) -> Path | None:
    """Take the language from the configuration that ``--config`` names, for what is said from then on."""
    if file is not None:
        use(language(file))
    return file


# Options that several commands have; each means the same everywhere.
ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        metavar="FILE",
        help="configuration instead of the usual one",
        is_eager=True,
        callback=_heard,
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="print one JSON document")]
StateOption = Annotated[
    Path | None,
    typer.Option("--state", metavar="FOLDER", help="folder of the daemon's data instead of the usual one"),
]
HostOption = Annotated[
    Path | None,
    typer.Option(
        "--host-root", metavar="FOLDER", help="a machine that 'wslgpud capture' recorded instead of this one"
    ),
]
HostName = Annotated[
    str, typer.Option("--host", metavar="NAME", help="only this machine, in a database of many")
]
SinceOption = Annotated[
    str,
    typer.Option(
        "--since",
        metavar="WHEN",
        help="from then on: 90s, 2h or 7d ago, 14:00, yesterday, 2026-11-20, '2026-11-20 14:00'",
    ),
]
UntilOption = Annotated[str, typer.Option("--until", metavar="WHEN", help="up to then, written likewise")]
StepOption = Annotated[
    str,
    typer.Option(
        "--step", metavar="TIME", help="one value for each 10s, 5min, 1h, ... instead of every sample"
    ),
]
TimeoutOption = Annotated[
    str, typer.Option("--timeout", metavar="TIME", help="end the command after so long: 90s, 30min, 1h30m")
]
IntervalOption = Annotated[
    str, typer.Option("--interval", metavar="TIME", help="time between two updates, at least 0.2s")
]
PlotOption = Annotated[
    Path | None,
    typer.Option(
        "--plot", metavar="[FILE]", help="draw into FILE (.png, .svg); without a name on this terminal"
    ),
]
GpuOption = Annotated[int, typer.Option("--gpu", metavar="N", min=0, help="number of the GPU")]
ForceOption = Annotated[bool, typer.Option("--force", help="replace a file of that name")]


def picture(plot: Path | None) -> Path | None:
    """Return the file to draw into; None where the terminal is meant, or nothing."""
    return None if plot is None or str(plot) == TERMINAL else plot


def loaded(file: Path | None) -> configuration.Loaded:
    """Load the configuration for a command.

    Raises:
        Fault: it cannot be used.
    """
    try:
        return configuration.load(file, os.environ)
    except ConfigError as error:
        raise Fault(cause(error)) from error


def host_at(folder: Path | None) -> Host:
    """Return this machine, or the one recorded in ``folder``.

    Raises:
        Fault: the folder holds no recording.
    """
    try:
        return daemon.host_at(folder)
    except daemon.NoRecording as error:
        raise Fault(cause(error)) from error


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
        raise Fault(cause(error)) from error
