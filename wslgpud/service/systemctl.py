"""The state of the service, from systemd and its files."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import wslgpud
from wslgpud.host import Host, NoData, SourceError
from wslgpud.service.changes import Changes, ServiceError, output, succeeds
from wslgpud.service.places import PACKAGED_PROGRAM, Places
from wslgpud.shipped_files import ROOT
from wslgpud.sources.wsl import generation
from wslgpud.words import say

_RUNS = Path("/run/systemd/system")
#: in a clone nothing is on the PATH
_FOREGROUND = "./deploy/run" if (ROOT / "deploy/run").exists() else "'wslgpud run'"
#: lines of the log of a daemon that does not start
_LAST_LINES = 5


def runs() -> bool:
    return _RUNS.is_dir()


def require(places: Places) -> None:
    """Raises ServiceError: systemd does not run here, or does not answer; the message names the remedy."""
    if not runs():
        if generation(Host()):
            raise ServiceError(
                "systemd does not run in this WSL distribution: put systemd=true below [boot] in /etc/wsl.conf,"
                " then type 'wsl --shutdown' in Windows; without it {command} starts the daemon in the foreground",
                command=_FOREGROUND,
            )
        raise ServiceError("systemd does not run here; {command} starts the daemon without it", command=_FOREGROUND)
    if places.user and not succeeds(*places.systemctl("show-environment")):
        message = say(
            "your systemd does not answer ('systemctl --user' fails): log in directly, not by sudo, and install"
            " {packages}",
            packages="libpam-systemd, dbus-user-session",
        )
        raise ServiceError(message)


def is_active(places: Places) -> bool:
    return succeeds(*places.systemctl("--quiet", "is-active", "wslgpud"))


def is_enabled(places: Places) -> bool:
    """Return whether the daemon starts with the machine. Of several units, systemctl tells only whether any does."""
    return succeeds(*places.systemctl("--quiet", "is-enabled", "wslgpud.service"))


def forget_failures(places: Places, changes: Changes) -> None:
    """Reset the start limit: a version that failed in a loop has used up the starts that systemd allows."""
    with suppress(NoData, SourceError):  # no failures
        changes.run(*places.systemctl("reset-failed", "wslgpud*"))


def last_words(places: Places) -> str:
    """Return the last lines of the daemon's log."""
    who = ("--user",) if places.user else ()
    try:
        return output("journalctl", *who, "--unit=wslgpud", f"--lines={_LAST_LINES}", "--output=cat", "--no-pager")
    except (NoData, SourceError) as error:
        return str(error)


def lingers() -> bool:
    """Return whether this user's services keep running after logout."""
    try:
        return output("loginctl", "show-user", str(os.getuid()), "--property=Linger", "--value").strip() == "yes"
    except (NoData, SourceError):
        return False


@dataclass(frozen=True)
class ServiceState:
    """``version`` is empty where none is installed; ``state`` is systemd's (active, failed, inactive, ...)."""

    kind: str
    version: str
    command_version: str
    state: str
    enabled: bool
    url: str
    configuration: str
    data: str
    extras: tuple[str, ...]
    allowed: tuple[str, ...]

    @property
    def runs(self) -> bool:
        return self.state == "active"


def state_of(places: Places) -> ServiceState:
    """Return the state of the service."""
    installed = places.packaged or (places.program / "bin/wslgpud").exists()
    from wslgpud import client  # late: before an installation from a clone there are no packages

    daemon = client.answering([places.data], lambda _: None)
    return ServiceState(
        kind="package" if places.packaged else places.kind,
        version=_version(places) if installed else "",
        command_version=wslgpud.__version__,
        state=_asked(*places.systemctl("show", "--property=ActiveState", "--value", "wslgpud")),
        enabled=is_enabled(places),
        url=daemon[0].url if daemon else "",
        configuration=str(places.configuration),
        data=str(places.data),
        extras=tuple(places.added_extras),
        allowed=tuple(places.allowed),
    )


def _version(places: Places) -> str:
    program = PACKAGED_PROGRAM if places.packaged else places.program / "bin/wslgpud"
    return _asked(program, "--version").rpartition(" ")[2]


def _asked(*command: str | Path) -> str:
    with suppress(NoData, SourceError):
        return output(*command).strip()
    return ""
