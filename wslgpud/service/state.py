"""State of the service: its version, since when it runs, and whether this command has a newer one."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import wslgpud
from wslgpud import client
from wslgpud.host import NoData, SourceError
from wslgpud.service import systemctl
from wslgpud.service.changes import output
from wslgpud.service.install import allowed, remembered_extras
from wslgpud.service.places import PACKAGED_PROGRAM, Places


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
    daemon = client.answering([places.data], lambda _: None)
    return ServiceState(
        kind="package" if places.packaged else places.kind,
        version=_version(places) if installed else "",
        command_version=wslgpud.__version__,
        state=_asked(*systemctl.command(places, "show", "--property=ActiveState", "--value", "wslgpud")),
        enabled=systemctl.is_enabled(places),
        url=daemon[0].url if daemon else "",
        configuration=str(places.configuration),
        data=str(places.data),
        extras=tuple(remembered_extras(places)),
        allowed=tuple(allowed(places)),
    )


def _version(places: Places) -> str:
    program = PACKAGED_PROGRAM if places.packaged else places.program / "bin/wslgpud"
    return _asked(program, "--version").rpartition(" ")[2]


def _asked(*command: Any) -> str:
    with suppress(NoData, SourceError):
        return output(*command).strip()
    return ""
