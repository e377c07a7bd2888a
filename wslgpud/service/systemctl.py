"""Queries to systemd."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from wslgpud.host import Host, NoData, SourceError
from wslgpud.service.changes import Changes, ServiceError, output, succeeds
from wslgpud.service.places import Places
from wslgpud.shipped_files import ROOT
from wslgpud.sources.wsl import generation
from wslgpud.words import say

_RUNS = Path("/run/systemd/system")
#: in a clone nothing is on the PATH
_FOREGROUND = "./deploy/run" if (ROOT / "deploy/run").exists() else "'wslgpud run'"
#: lines of the log of a daemon that does not start
_LAST_LINES = 5


def command(places: Places, *arguments: str) -> tuple[str, ...]:
    return ("systemctl", *(("--user",) if places.user else ()), *arguments)


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
    if places.user and not succeeds(*command(places, "show-environment")):
        message = say(
            "your systemd does not answer ('systemctl --user' fails): log in directly, not by sudo, and install"
            " {packages}",
            packages="libpam-systemd, dbus-user-session",
        )
        raise ServiceError(message)


def is_active(places: Places) -> bool:
    return succeeds(*command(places, "--quiet", "is-active", "wslgpud"))


def is_enabled(places: Places) -> bool:
    """Return whether the daemon starts with the machine. Of several units, systemctl tells only whether any does."""
    return succeeds(*command(places, "--quiet", "is-enabled", "wslgpud.service"))


def forget_failures(places: Places, changes: Changes) -> None:
    """Reset the start limit: a version that failed in a loop has used up the starts that systemd allows."""
    with suppress(NoData, SourceError):  # no failures
        changes.run(*command(places, "reset-failed", "wslgpud*"))


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
