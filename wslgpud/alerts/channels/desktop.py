"""Notifications of a Linux desktop, by notify-send."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from wslgpud.alerts.channels import DeliveryError, programs
from wslgpud.alerts.message import body
from wslgpud.foreign.accounts import account_of, environment
from wslgpud.foreign.rule import Account

TIMEOUT_SECONDS = 10.0
RUNTIME_FOLDERS = Path("/run/user")
_URGENCY = {"ok": "low", "info": "low", "warning": "normal"}


class DesktopChannel:
    """Shows the warning to everybody who has a session: a system service has no desktop of its own."""

    name = "desktop"
    human = True

    def __init__(self, environ: Mapping[str, str], runtime_folders: Path = RUNTIME_FOLDERS) -> None:
        """Keep the session that we run in, if any, and where those of others are found."""
        self._environ = environ
        self._folders = runtime_folders

    def available(self) -> bool:
        """Tell whether notifications can be shown; a session may come later, and messages wait for it."""
        return shutil.which("notify-send") is not None

    def send(self, message: Mapping[str, Any]) -> None:
        """Show it.

        Raises:
            DeliveryError: there is no session now, or none took it.
        """
        sessions = self._sessions()
        if not sessions:
            raise DeliveryError("nobody has a desktop session now")
        urgency = _URGENCY.get(str(message.get("level")), "critical")
        # The body may hold markup, the summary may not; -- ends the options: texts begin with anything.
        text = body(message).replace("&", "&amp;").replace("<", "&lt;")
        words = [f"--urgency={urgency}", "--app-name=wslgpud", "--", str(message.get("headline", "")), text]
        failures = []
        for address, account in sessions:
            # In full: root's group and variables, which may hold secrets of the configuration, would be for
            # that user to read and use.
            variables = environment(account, self._environ)
            try:
                programs.run(
                    ["notify-send", *words],
                    "",
                    TIMEOUT_SECONDS,
                    environment={**variables, "DBUS_SESSION_BUS_ADDRESS": address},
                    account=account,
                )
            except DeliveryError as error:
                failures.append(error)
        if len(failures) == len(sessions):
            raise failures[0]

    def _sessions(self) -> list[tuple[str, Account | None]]:
        """Return (bus, whom to be) of each session we may speak to: a session's bus refuses even root."""
        if own := self._environ.get("DBUS_SESSION_BUS_ADDRESS"):
            return [(own, None)]
        us = os.geteuid()
        found: list[tuple[str, Account | None]] = []
        for bus in sorted(self._folders.glob("*/bus")):
            number = bus.parent.name
            if number.isdigit() and us in (0, int(number)):
                account = account_of(int(number)) if us == 0 and int(number) else None
                found.append((f"unix:path={bus}", account))
        return found
