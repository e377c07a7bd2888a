"""What the commands share: options, and faults that end in one line and exit status 2."""

from __future__ import annotations

import http.client
import logging
import os
import sys
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wslgpud import config as configuration
from wslgpud import daemon, documents, logs
from wslgpud.host import Host

if TYPE_CHECKING:
    from wslgpud.store import Reader


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
    except configuration.ConfigError as error:
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


def ask_daemon(folder: Path) -> dict[str, Any] | None:
    """Ask the daemon that keeps its data in ``folder``; None when none runs there."""
    try:
        note = documents.parsed(documents.read(folder / "daemon.json"))
        url = str(note["url"])
    except (OSError, ValueError, KeyError):
        return None
    try:
        if "socket" in note:  # it asks for a password or speaks TLS
            from wslgpud.serve.local import ask  # noqa: PLC0415 - only then

            known = ask(folder / str(note["socket"]))
            known.pop("metrics", None)  # for those who want what /metrics says
            return {"seen_by": "daemon", "url": url, **known}
        # The address is the one our own daemon wrote; a proxy of the user's knows nothing of it.
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with direct.open(url + "/api/v1/status", timeout=3) as answer:
            document = documents.parsed(answer.read())
    except PermissionError:
        print(f"wslgpud: the daemon at {url} is another user's; ask it with sudo", file=sys.stderr)
        return None
    except (OSError, ValueError, http.client.HTTPException) as error:
        # It was killed or hangs, or another program has its port: not the same as that none was ever started.
        print(f"wslgpud: the daemon at {url} does not answer: {error}", file=sys.stderr)
        return None
    return {"seen_by": "daemon", "url": url, **document}
