"""Notifications of a Linux desktop, by notify-send."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from wslgpud.alerts.channels import Channel, DeliveryError, programs
from wslgpud.alerts.messages import body
from wslgpud.security.run_as import Command, account_of
from wslgpud.words import say

TIMEOUT_SECONDS = 10.0
RUNTIME_FOLDERS = Path("/run/user")
#: sessions notified in parallel
_MAX_AT_ONCE = 16
#: Variables that a user's session gets: /proc shows them to the user, and ours may hold secrets.
_PASSED = ("PATH", "LANG", "LC_ALL", "DISPLAY", "WAYLAND_DISPLAY", "XDG_RUNTIME_DIR")
_URGENCY = {"ok": "low", "info": "low", "warning": "normal"}


class DesktopChannel(Channel):
    """Shows the warning in every user's session: a system service has no desktop of its own."""

    name = "desktop"
    human = True

    def __init__(
        self,
        environ: Mapping[str, str],
        runtime_folders: Path = RUNTIME_FOLDERS,
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> None:
        """Keep the session that we run in, if any, and the folder of other sessions."""
        self._environ, self._folders, self._timeout = environ, runtime_folders, timeout_seconds

    def available(self) -> bool:
        """Return whether notifications can be shown; a session may start later, and messages wait for it."""
        return shutil.which("notify-send") is not None

    def send(self, message: Mapping[str, Any]) -> None:
        """Show it; fails where there is no session, or none accepted it."""
        urgency = _URGENCY.get(str(message.get("level")), "critical")
        # The body may hold markup, the summary may not; -- ends the options, as texts may begin with a dash.
        text = body(message).replace("&", "&amp;").replace("<", "&lt;")
        words = [f"--urgency={urgency}", "--app-name=wslgpud", "--", str(message.get("headline", "")), text]
        # In parallel: the bus is a program of that user, which need not answer.
        with ThreadPoolExecutor(_MAX_AT_ONCE) as pool:
            failures = [*pool.map(self._failure, self._commands(["notify-send", *words]))]
        if None not in failures:
            raise next(filter(None, failures), DeliveryError(say("there is no desktop session now")))

    def _failure(self, command: Command) -> DeliveryError | None:
        try:
            programs.run(command, "", self._timeout)
        except DeliveryError as error:
            return error
        return None

    def _commands(self, words: Sequence[str]) -> Iterator[Command]:
        """Yield the command for each accessible session, as its user: a session's bus rejects even root."""
        own = {name: self._environ[name] for name in _PASSED if name in self._environ}
        if bus := self._environ.get("DBUS_SESSION_BUS_ADDRESS"):
            yield Command(words, {**own, "DBUS_SESSION_BUS_ADDRESS": bus})
            return
        us = os.geteuid()
        for socket in sorted(self._folders.glob("*/bus")):
            number = socket.parent.name
            if number.isdecimal() and us in (0, int(number)):
                account = account_of(int(number)) if us == 0 and int(number) else None
                yield Command(words, {**own, "DBUS_SESSION_BUS_ADDRESS": f"unix:path={socket}"}, account)
