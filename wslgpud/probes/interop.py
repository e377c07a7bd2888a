"""Runs Windows programs from inside WSL: where they are, whether interop works, and how to start them.

Facts: https://github.com/microsoft/WSL, src/linux/init (binfmt entry, ``/run/WSL/1_interop``); each workaround has a
link to its issue.
"""

from __future__ import annotations

import base64
import os
import stat
from collections.abc import Mapping
from pathlib import Path

from wslgpud.host import Host, NoData, SourceError, output
from wslgpud.words import Message, MessageLike, say, template

WSL_CONF_PATH = "/etc/wsl.conf"
BINFMT = "/proc/sys/fs/binfmt_misc"
#: the socket of init, which lives as long as the distribution
SOCKET = "/run/WSL/1_interop"
_PASSED = frozenset({"PATH", "HOME", "LANG"})
_POWERSHELL = "Windows/System32/WindowsPowerShell/v1.0/powershell.exe"

#: A start takes half a second, ten seconds on a busy Windows, and more while its disk spins up.
START_SECONDS = 45.0


def _script(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


#: Output and errors bypass the console as UTF-8 bytes: its code page differs between countries and cannot always be set
#: (a Windows program started by a service may have no console).
_FRAME = _script("frame.ps1")
#: PowerShell's version and process, as JSON
ABOUT = _script("about.ps1")
#: Makes, removes, queries or tries the scheduled task that keeps this distribution running. Windows stops one 15 s
#: after its last terminal closes, whatever services run in it; a hidden wsl.exe, started at each log-on, keeps it:
#: https://github.com/microsoft/WSL/issues/10138. One line on standard input: create, remove, status or try, and the
#: distribution.
KEEP_ALIVE = _script("keep_alive.ps1")
#: One resident Windows PowerShell 5.1 that answers each line with a line of JSON, because starting PowerShell takes at
#: least half a second. It exits at the end of its input, so nothing is left running in Windows when the daemon dies.
#:
#: It uses only interfaces that are the same in every language of Windows: WMI classes, the registry and .NET, no
#: counter names. Each part is queried separately, so a missing WMI class costs only its own values, and is named in
#: ``missing``:
#:
#: - ``memory``, ``system``: ``Win32_PerfFormattedData_PerfOS_Memory`` and ``Win32_OperatingSystem``
#:   https://learn.microsoft.com/windows/win32/cimwin32prov/win32-operatingsystem (TotalVisibleMemorySize in KiB)
#: - ``gpu``: ``Win32_PerfFormattedData_GPUPerformanceCounters_GPUAdapterMemory``, in bytes, one row for each adapter,
#:   named ``luid_0x00000000_0x0000C8A5_phys_0``
#: - ``programs``: ``Win32_PerfFormattedData_GPUPerformanceCounters_GPUProcessMemory``, the largest uses of a card's own
#:   memory, named ``pid_7364_luid_0x00000000_0x0000C8A5_phys_0``, with the process's name where it still runs
#: - ``adapters``: names of the cards by LUID, from ``HKLM\SOFTWARE\Microsoft\DirectX`` (as fastfetch does,
#:   https://github.com/lptstr/winfetch/pull/155); keys whose ``LastSeen`` is older belong to earlier boots
#: - ``vm``: the processes of virtual machines: WSL's is ``vmmemWSL`` on Windows 11, ``vmmem`` on 10; a session of WSL's
#:   containers is ``vmmemwslc-cli-USER``
#:
#: Written from this documentation and not tested on every Windows.
RESIDENT_PROBE = _script("windows_probe.ps1")
_WSLPATH_SECONDS = 5.0
#: message where ``works`` is False
OFF = template("WSL's interop is off or was unregistered: see [interop] in /etc/wsl.conf and 'protectBinfmt'")


def works(host: Host) -> bool:
    """Return whether the kernel knows how to start a Windows program.

    The entry is missing with ``[interop] enabled=false``, and where systemd-binfmt or another distribution's shutdown
    wiped it (https://github.com/microsoft/WSL/issues/8843); it may be called ``WSLInterop-late``
    (https://github.com/microsoft/WSL/issues/13449).
    """
    try:
        return any(name.startswith("WSLInterop") for name in host.names(BINFMT))
    except (NoData, SourceError):
        return False


def automount_root(host: Host) -> str:
    """Return where WSL mounts Windows drives: ``/mnt/`` unless wsl.conf sets another folder."""
    text = host.read_optional(WSL_CONF_PATH)
    if "root" not in text.lower():  # the usual case: the daemon need not import the tables of keys
        return "/mnt/"
    from wslgpud.probes.wsl_config import WSL_CONF, parse

    root = parse(text, file=WSL_CONF).get("automount.root")
    return f"{root}".rstrip("/") + "/" if root else "/mnt/"


def drive(host: Host) -> str:
    """Return the folder, as on the machine, in which to start Windows programs.

    A Linux folder as working directory makes the start of a Windows program take ten seconds:
    https://github.com/microsoft/WSL/issues/8472
    """
    return automount_root(host) + "c"


def powershell(host: Host) -> str:
    """Return the path, as on the machine, of Windows PowerShell 5.1, which every Windows 10 and 11 has.

    Not pwsh 7, which lacks WinRT and is seldom installed.
    """
    return f"{drive(host)}/{_POWERSHELL}"


def absence(host: Host) -> MessageLike:
    """Return why Windows cannot be queried; an empty message where it may work."""
    # A recording of another machine: programs in it must not be run.
    if host.recorded:
        return say("nothing of Windows was recorded")
    if not works(host):
        on_wsl = host.exists("/dev/dxg") or host.exists("/run/WSL")
        return Message(OFF) if on_wsl else say("this is not WSL2")
    path = powershell(host)
    return "" if host.exists(path) else say("there is no {path}", path=path)


def framed(script: str) -> str:
    """Return a script that exits with status 1 and a one-line reason when a command in it fails."""
    return _FRAME.replace("{script}", script.strip())


def run(host: Host, script: str, text: str = "", timeout_seconds: float | None = None) -> str:
    """Run a constant script in a PowerShell of its own and return its output.

    Raises:
        NoData: Windows cannot be queried.
        SourceError: the script failed, or took longer than ``timeout_seconds`` (by default ``START_SECONDS``).
    """
    if why := absence(host):
        raise NoData(why)
    command, folder = powershell_command(host, script), host.path(drive(host))
    printed = output(command, timeout_seconds or START_SECONDS, environment(os.environ), folder=folder, text=text)
    return printed.removeprefix("\ufeff")


def keep_alive(host: Host, action: str) -> str:
    """Create, remove, query (``status``) or try the scheduled task, and return PowerShell's output.

    Raises:
        NoData: Windows cannot be queried, or the name of this distribution is unknown.
        SourceError: it failed.
    """
    # sudo takes the name from the environment.
    name = os.environ.get("WSL_DISTRO_NAME") if host.live else None
    name = name or host.run(["wslpath", "-w", "/"], _WSLPATH_SECONDS).strip().strip("\\").rpartition("\\")[2]
    return run(host, KEEP_ALIVE, f"{action} {name}\n").strip()


def powershell_command(host: Host, script: str) -> list[str]:
    """Return the command that runs a constant script, which can read standard input itself.

    ``-InputFormat None`` keeps PowerShell's host from reading it; ``-OutputFormat Text`` gives errors as text instead
    of XML. Windows limits a command line to 32,767 characters; a script of 8,000 needs 22,000.
    """
    encoded = base64.b64encode(framed(script).encode("utf-16-le")).decode()
    options = "-NoLogo -NoProfile -NonInteractive -InputFormat None -OutputFormat Text -EncodedCommand"
    return [host.path(powershell(host)), *options.split(), encoded]


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the part of our environment needed to start a Windows program.

    ``WSLENV`` would pass more to Windows. A socket is named only if it exists and is owned by root or us: that of a
    closed session is useless, and the folder of sockets may be writable by everybody. Without one, WSL finds its own.
    """
    inherited = {n: v for n, v in environ.items() if n in _PASSED or n.startswith("WSL_")}
    inherited.pop("WSL_INTEROP", None)
    for place in (environ.get("WSL_INTEROP", ""), SOCKET):
        if _trusted_socket(place):
            return {**inherited, "WSL_INTEROP": place}
    return inherited


def _trusted_socket(place: str) -> bool:
    try:
        status = Path(place).lstat()
    except (OSError, ValueError):
        return False
    return stat.S_ISSOCK(status.st_mode) and status.st_uid in (0, os.geteuid())
