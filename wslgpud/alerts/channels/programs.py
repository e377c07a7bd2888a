"""Channels that run a program: the user's own, and notifications of the desktop, in Linux and as toasts in Windows.

Without a shell, with limits on time and kept output. Toasts by Windows PowerShell 5.1 and WinRT, which every Windows 10
and 11 has: the script is constant and the text comes on standard input as base64, so that no process name is ever part
of a command line, a script or parsed XML.
"""

from __future__ import annotations

import base64
import errno
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from wslgpud.alerts.channels import Channel, DeliveryError, body
from wslgpud.host import Host, unprotected
from wslgpud.probes import interop
from wslgpud.security import run_as
from wslgpud.security.redaction import parts, without
from wslgpud.security.run_as import Command, account_of, program, replaceable
from wslgpud.sources.wsl import generation
from wslgpud.words import Message, cause, say
from wslgpud.words.units import one_line

_SESSION_SECONDS = 10.0
RUNTIME_FOLDERS = Path("/run/user")
#: sessions notified in parallel
_MAX_AT_ONCE = 16
#: Variables that a user's session gets: /proc shows them to the user, and ours may hold secrets.
_PASSED = ("PATH", "LANG", "LC_ALL", "DISPLAY", "WAYLAND_DISPLAY", "XDG_RUNTIME_DIR")
_URGENCY = {"ok": "low", "info": "low", "warning": "normal"}
#: starting PowerShell takes half a second, several with a cold disk; broken interop never answers
_TOAST_SECONDS = 20.0
_TITLE_CHARACTERS = 120
_BODY_CHARACTERS = 600

#: CreateTextNode does not parse its text. The notifier is PowerShell's own, which needs no registration.
SCRIPT = Path(__file__).with_name("toast.ps1").read_text(encoding="utf-8")


def run(command: Command, text: str, timeout_seconds: float, *, guarded: bool = True) -> None:
    """Run a program with a text as its input, and check that it succeeded.

    On timeout it and its process group are killed; children that outlive it are not waited for, whatever they hold
    open. ``guarded`` runs it only if no one but us and root can replace it.

    Raises:
        DeliveryError: it cannot be started, others could replace it, it fails, or exceeds its time limit.
    """
    name, *arguments = command.arguments
    found = _found(name, command.environment.get("PATH"), guarded=guarded)
    child = replace(command, arguments=unprotected([found, *arguments]))
    try:
        status, _, told = run_as.run(child, timeout_seconds, text=text, spare_children=True)
    except TimeoutError:
        late = say(
            "{program} did not end within {limit_seconds} and was stopped", program=name, limit_seconds=timeout_seconds
        )
        raise DeliveryError(late) from None
    except OSError as error:
        raise DeliveryError(say("cannot start {program}: {why}", program=found, why=cause(error))) from error
    if status:
        # Its output may quote its arguments, including a token.
        told = without(told.strip()[-200:], (part for word in arguments for part in parts(word)))
        if not told:
            raise DeliveryError(say("{probe} ended with status {status}", probe=name, status=status))
        raise DeliveryError(say("{program} failed ({status}): {told}", program=name, status=status, told=told))


def _found(name: str, path: str | None, *, guarded: bool) -> str:
    place = program(name, path) or shutil.which(name, path=path)
    if place is None:
        # Not permanent: its drive may be gone for a while, as Windows' is after sleep.
        number = errno.EACCES if Path(name).is_file() else errno.ENOENT
        why = cause(OSError(number, os.strerror(number)))
        raise DeliveryError(say("cannot start {program}: {why}", program=name, why=why))
    if guarded and (problem := replaceable(Path(place))):
        raise DeliveryError(
            say("{program} is not started, as others could replace it: {problem}", program=name, problem=problem)
        )
    return place


class CommandChannel(Channel):
    """Runs the user's program with the warning as JSON on its standard input."""

    name = "command"
    human = False

    def __init__(self, command: Sequence[str], timeout_seconds: float) -> None:
        self._command, self._timeout = command, timeout_seconds

    def send(self, message: Mapping[str, Any]) -> None:
        """Run the program, without a shell; raises like ``run``."""
        run(Command(self._command, os.environ, folder=None), json.dumps(message), self._timeout)


class DesktopChannel(Channel):
    """Shows the warning in every user's session: a system service has no desktop of its own."""

    name = "desktop"
    human = True

    def __init__(
        self,
        environ: Mapping[str, str],
        runtime_folders: Path = RUNTIME_FOLDERS,
        timeout_seconds: float = _SESSION_SECONDS,
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
            run(command, "", self._timeout)
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


class ToastChannel(Channel):
    """Shows the warning as a Windows toast; a later one of the same incident replaces it."""

    name = "windows_toast"
    human = True

    def __init__(self, host: Host, environ: Mapping[str, str], timeout_seconds: float = _TOAST_SECONDS) -> None:
        self._host, self._environ, self._timeout = host, environ, timeout_seconds

    def available(self) -> bool:
        return generation(self._host) == 2 and self._host.exists(interop.powershell(self._host))

    def send(self, message: Mapping[str, Any]) -> None:
        """Show it; fails where Windows cannot be reached, or PowerShell failed or did not end."""
        if self._host.live and not interop.works(self._host):
            raise DeliveryError(Message(interop.OFF))
        level = str(message.get("level"))
        alert = {
            "title": one_line(str(message.get("headline", "")), _TITLE_CHARACTERS),
            "body": one_line(body(message), _BODY_CHARACTERS),
            "tag": str(message.get("incident", "test"))[:16],
            "urgent": level in ("critical", "emergency"),
        }
        text = base64.b64encode(json.dumps(alert).encode()).decode() + "\n"
        drive = self._host.path(interop.drive(self._host))
        powershell = interop.powershell_command(self._host, SCRIPT)
        command = Command(powershell, interop.environment(self._environ), folder=drive)
        # Linux does not see permissions on Windows' disk; Windows protects its own folder.
        run(command, text, self._timeout, guarded=False)
