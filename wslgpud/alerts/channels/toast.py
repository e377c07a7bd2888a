"""Windows toasts, from inside WSL.

By Windows PowerShell 5.1 and WinRT, which every Windows 10 and 11 has. The script is constant and the text comes on
standard input as base64, so that no process name is ever part of a command line, a script or parsed XML.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from wslgpud.alerts.channels import Channel, DeliveryError, programs
from wslgpud.alerts.messages import body
from wslgpud.host import Host
from wslgpud.probes import interop
from wslgpud.security.run_as import Command
from wslgpud.sources.wsl import generation
from wslgpud.words import Message as Words
from wslgpud.words.units import one_line

#: starting PowerShell takes half a second, several with a cold disk; broken interop never answers
TIMEOUT_SECONDS = 20.0
_TITLE_CHARACTERS = 120
_BODY_CHARACTERS = 600

#: CreateTextNode does not parse its text. The notifier is PowerShell's own, which needs no registration.
SCRIPT = Path(__file__).with_name("toast.ps1").read_text(encoding="utf-8")


class ToastChannel(Channel):
    """Shows the warning as a Windows toast; a later one of the same incident replaces it."""

    name = "windows_toast"
    human = True

    def __init__(self, host: Host, environ: Mapping[str, str], timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        self._host, self._environ, self._timeout = host, environ, timeout_seconds

    def available(self) -> bool:
        return generation(self._host) == 2 and self._host.exists(interop.powershell(self._host))

    def send(self, message: Mapping[str, Any]) -> None:
        """Show it; fails where Windows cannot be reached, or PowerShell failed or did not end."""
        if self._host.live and not interop.works(self._host):
            raise DeliveryError(Words(interop.OFF))
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
        programs.run(command, text, self._timeout, guarded=False)
