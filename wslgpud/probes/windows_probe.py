r"""The Windows side: one resident Windows PowerShell 5.1 that answers each line with a line of JSON.

Started once and queried through pipes, because starting PowerShell takes at least half a second. It exits at the end of
its standard input, so nothing is left running in Windows when the daemon dies.

It uses only interfaces that are the same in every language of Windows: WMI classes, the registry and .NET, no counter
names. Each part is queried separately, so a missing WMI class costs only its own values:

- ``memory``, ``system``: ``Win32_PerfFormattedData_PerfOS_Memory`` and ``Win32_OperatingSystem``
  https://learn.microsoft.com/windows/win32/cimwin32prov/win32-operatingsystem (TotalVisibleMemorySize in KiB)
- ``gpu``: ``Win32_PerfFormattedData_GPUPerformanceCounters_GPUAdapterMemory``, in bytes, one row for each
  adapter, named ``luid_0x00000000_0x0000C8A5_phys_0``
- ``programs``: ``Win32_PerfFormattedData_GPUPerformanceCounters_GPUProcessMemory``, the largest uses of a card's own
  memory, named ``pid_7364_luid_0x00000000_0x0000C8A5_phys_0``, with the process's name where it still runs
- ``adapters``: names of the cards by LUID, from ``HKLM\SOFTWARE\Microsoft\DirectX`` (as fastfetch does,
  https://github.com/lptstr/winfetch/pull/155); keys whose ``LastSeen`` is older belong to earlier boots
- ``vm``: the processes of virtual machines: WSL's is ``vmmemWSL`` on Windows 11, ``vmmem`` on 10; a session of WSL's
  containers is ``vmmemwslc-cli-USER``

Written from this documentation and not tested on every Windows. Failures are listed under ``missing``.
"""

from __future__ import annotations

from pathlib import Path

SCRIPT = Path(__file__).with_name("windows_probe.ps1").read_text(encoding="utf-8")
