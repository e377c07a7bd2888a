"""Toasts of Windows, from inside WSL.

Windows PowerShell 5.1 and WinRT, which every Windows 10 and 11 has; no module, no other program. The script
is constant and the text comes on standard input as base64, so that no name of a process is ever part of a
command line, a script or XML that is parsed.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from wslgpud.alerts.channels import DeliveryError, programs
from wslgpud.alerts.message import body
from wslgpud.alerts.texts import clean
from wslgpud.host import Host, NoData, SourceError
from wslgpud.sources.wsl import generation

#: a start of PowerShell takes half a second, with a cold disk several; a dead interop never answers
TIMEOUT_SECONDS = 20.0
_POWERSHELL = "Windows/System32/WindowsPowerShell/v1.0/powershell.exe"
_BINFMT = "/proc/sys/fs/binfmt_misc"
_TITLE_CHARACTERS = 120
_BODY_CHARACTERS = 600

#: CreateTextNode takes text as text. The notifier is PowerShell's own, which needs no registration.
SCRIPT = r"""
$ErrorActionPreference = 'Stop'
$json = [Text.Encoding]::UTF8.GetString([Convert]::FromBase64String([Console]::In.ReadLine()))
$alert = $json | ConvertFrom-Json
[void][Windows.UI.Notifications.ToastNotificationManager,Windows.UI.Notifications,ContentType=WindowsRuntime]
[void][Windows.Data.Xml.Dom.XmlDocument,Windows.Data.Xml.Dom.XmlDocument,ContentType=WindowsRuntime]
$xml = New-Object Windows.Data.Xml.Dom.XmlDocument
$xml.LoadXml('<toast><visual><binding template="ToastGeneric"><text/><text/></binding></visual></toast>')
$nodes = $xml.GetElementsByTagName('text')
[void]$nodes.Item(0).AppendChild($xml.CreateTextNode($alert.title))
[void]$nodes.Item(1).AppendChild($xml.CreateTextNode($alert.body))
if ($alert.urgent) { $xml.DocumentElement.SetAttribute('scenario', 'urgent') }
$toast = New-Object Windows.UI.Notifications.ToastNotification $xml
$toast.Tag = $alert.tag
$toast.Group = 'wslgpud'
$app = '{1AC14E77-02E7-4E5D-B744-2EB1AE5198B7}\WindowsPowerShell\v1.0\powershell.exe'
[Windows.UI.Notifications.ToastNotificationManager]::CreateToastNotifier($app).Show($toast)
"""


def automount_root(host: Host) -> str:
    """Return where WSL mounts the drives of Windows: ``/mnt/`` unless wsl.conf says something else."""
    try:
        text = host.read("/etc/wsl.conf")
    except (NoData, SourceError):
        return "/mnt/"
    section = ""
    for line in text.splitlines():
        words = line.split("#", 1)[0].strip()
        if words.startswith("["):
            section = words.strip("[] ").lower()
        match = re.fullmatch(r'root\s*=\s*"?([^"]+)"?', words, re.IGNORECASE)
        if section == "automount" and match is not None:
            return match[1].strip().rstrip("/") + "/"
    return "/mnt/"


class ToastChannel:
    """Shows the warning in the corner of Windows' screen; a later one of the same incident replaces it."""

    name = "windows_toast"
    human = True

    def __init__(
        self, host: Host, environ: Mapping[str, str], timeout_seconds: float = TIMEOUT_SECONDS
    ) -> None:
        """Look where PowerShell is; nothing is started."""
        self._host = host
        self._environ = environ
        self._timeout = timeout_seconds
        self._windows = automount_root(host) + "c"

    @property
    def powershell(self) -> str:
        """Path of Windows PowerShell 5.1; not pwsh 7, which has no WinRT."""
        return self._host.path(f"{self._windows}/{_POWERSHELL}")

    def available(self) -> bool:
        """Tell whether this is WSL 2 and a program of Windows can be started."""
        return generation(self._host) == 2 and self._host.exists(f"{self._windows}/{_POWERSHELL}")

    def send(self, message: Mapping[str, Any]) -> None:
        """Show it.

        Raises:
            DeliveryError: Windows cannot be reached, or PowerShell failed or did not end.
        """
        if self._host.live and not self._interop():
            raise DeliveryError(
                "WSL's interop is off or was unregistered: see [interop] in /etc/wsl.conf and 'protectBinfmt'"
            )
        level = str(message.get("level"))
        alert = {
            "title": clean(str(message.get("headline", "")), _TITLE_CHARACTERS),
            "body": clean(body(message), _BODY_CHARACTERS),
            "tag": str(message.get("incident", "test"))[:16],
            "urgent": level in ("critical", "emergency"),
        }
        text = base64.b64encode(json.dumps(alert).encode()).decode() + "\n"
        script = base64.b64encode(SCRIPT.encode("utf-16-le")).decode()
        command = [self.powershell, "-NoProfile", "-NonInteractive", "-EncodedCommand", script]
        # A Linux folder as working directory makes the start of a Windows program take ten seconds:
        # https://github.com/microsoft/WSL/issues/8472
        programs.run(
            command, text, self._timeout, cwd=self._host.path(self._windows), environment=self._variables()
        )

    def _variables(self) -> dict[str, str]:
        """Return our variables without the socket of a session that has ended: WSL then finds its own."""
        kept = dict(self._environ)
        if not Path(kept.get("WSL_INTEROP", "/")).exists():
            del kept["WSL_INTEROP"]
        return kept

    def _interop(self) -> bool:
        try:
            return any(name.startswith("WSLInterop") for name in self._host.names(_BINFMT))
        except (NoData, SourceError):
            return False
