"""Every key that WSL knows in .wslconfig, declared once; and keys that people believe in.

Names, types and defaults: src/windows/common/WslCoreConfig.{h,cpp} of https://github.com/microsoft/WSL (3e27a6a,
2026-08-08). ``since`` is the first tag whose source has the key where there is one to look into (2.5.8 was the
first that is open), else what Microsoft's release notes or documentation say.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["bool", "integer", "size", "text", "path", "choice", "ports", "address", "mac"]

DOCS = "https://learn.microsoft.com/windows/wsl/wsl-config#main-wsl-settings"
EXPERIMENTAL = "https://learn.microsoft.com/windows/wsl/wsl-config#experimental-settings"
SOURCE = "https://github.com/microsoft/WSL/blob/master/src/windows/common/WslCoreConfig.h"

#: As WSL lists them when it refuses another one; VirtioProxy is Consomme's old name.
NETWORKING_MODES = ("Bridged", "Consomme", "Mirrored", "Nat", "None", "VirtioProxy")
RECLAIM_MODES = ("Disabled", "DropCache", "Gradual")


@dataclass(frozen=True, slots=True)
class Key:
    """One setting; ``old_section`` is where it stood before, which WSL still reads."""

    section: str
    name: str
    kind: Kind
    default: str
    meaning: str
    since: str = "2.5.8 or earlier"
    link: str = SOURCE
    choices: tuple[str, ...] = ()
    old_section: str = ""

    @property
    def path(self) -> str:
        """Name as WSL writes it: ``wsl2.memory``."""
        return f"{self.section}.{self.name}"

    @property
    def paths(self) -> tuple[str, ...]:
        """Every name that WSL reads it under."""
        return (self.path, f"{self.old_section}.{self.name}") if self.old_section else (self.path,)


KEYS = (
    Key("wsl2", "memory", "size", "half of Windows' RAM",
        "Most RAM the virtual machine may take; it grows to it on demand.", "Windows build 18945", DOCS),
    Key("wsl2", "processors", "integer", "all", "Logical processors of the virtual machine.",
        "Windows build 18945", DOCS),
    Key("wsl2", "swap", "size", "a quarter of memory, rounded up to 1GB", "Swap file on Windows' disk; 0: none.",
        "Windows build 18945", DOCS),
    Key("wsl2", "swapFile", "path", r"%TEMP%\...\swap.vhdx", "Where the swap file lies.", "Windows build 18945",
        DOCS),
    Key("wsl2", "vmIdleTimeout", "integer", "60000",
        "Milliseconds without a running distro after which the virtual machine is stopped; no release of memory.",
        "Windows build 20190", DOCS),
    Key("general", "instanceIdleTimeout", "integer", "15000",
        "Milliseconds without an open terminal after which a distro is stopped; -1: never, so services stay."),
    Key("general", "distributionInstallPath", "path", r"%LocalAppData%\wsl", "Where new distros are put."),
    Key("wsl2", "kernelCommandLine", "text", "", "Words added to the kernel's command line.",
        "Windows build 18995", DOCS),
    Key("wsl2", "kernel", "path", "WSL's own", "Another Linux kernel.", "Windows build 18945", DOCS),
    Key("wsl2", "kernelModules", "path", "WSL's own", "Its modules, as a VHD.", link=DOCS),
    Key("wsl2", "systemDistro", "path", "WSL's own", "Another system distro (WSLg)."),
    Key("wsl2", "guiApplications", "bool", "true", "Windows for Linux programs (WSLg); it holds some VRAM.",
        "Windows 11", DOCS),
    Key("wsl2", "gpuSupport", "bool", "true", "The GPU in the virtual machine (/dev/dxg)."),
    Key("wsl2", "nestedVirtualization", "bool", "true (Windows 11)", "Virtual machines inside.",
        "Windows build 20175", DOCS),
    Key("wsl2", "localhostForwarding", "bool", "true", "Windows' localhost reaches Linux' ports (NAT).",
        "Windows build 18945", DOCS),
    Key("wsl2", "networkingMode", "choice", "Nat", "How the virtual machine is connected.", "2.0.0", DOCS,
        NETWORKING_MODES, "experimental"),
    Key("wsl2", "dnsTunneling", "bool", "true", "DNS through Windows instead of the network.", "2.0.0", DOCS,
        old_section="experimental"),
    Key("wsl2", "firewall", "bool", "true", "Windows' firewall rules hold for WSL.", "2.0.0", DOCS,
        old_section="experimental"),
    Key("wsl2", "autoProxy", "bool", "true", "Windows' HTTP proxy holds for WSL.", "2.0.0", DOCS,
        old_section="experimental"),
    Key("wsl2", "dnsProxy", "bool", "true", "DNS by Windows' NAT.", link=DOCS),
    Key("wsl2", "safeMode", "bool", "false", "No GPU, swap, network or systemd, to mend a broken distro.",
        "0.66.2", DOCS),
    Key("wsl2", "debugConsole", "bool", "false", "A window with the kernel's messages.", link=DOCS),
    Key("wsl2", "debugConsoleLogFile", "path", "", "The kernel's messages to a file."),
    Key("wsl2", "earlyBootLogging", "bool", "false", "The very first of them too."),
    Key("wsl2", "maxCrashDumpCount", "integer", "10", "Crash dumps kept; negative: none are taken.", link=DOCS),
    Key("wsl2", "crashDumpFolder", "path", r"%TEMP%\wsl-crashes", "Where they lie."),
    Key("wsl2", "defaultVhdSize", "size", "1TB", "Largest size of new distros' disks.", link=DOCS),
    Key("wsl2", "isolateDistroCgroup", "bool", "true",
        "All of the user's programs in one cgroup, 32 MB below the memory.", "later than 2.9.4"),
    Key("wsl2", "ipv6", "bool", "false", "IPv6."),
    Key("wsl2", "dhcp", "bool", "true", "DHCP in bridged mode."),
    Key("wsl2", "dhcpTimeout", "integer", "5000", "Milliseconds for it."),
    Key("wsl2", "vmSwitch", "text", "", "Hyper-V switch for bridged mode."),
    Key("wsl2", "macAddress", "mac", "", "Address in bridged mode."),
    Key("wsl2", "virtio", "bool", "true", "Virtio devices."),
    Key("wsl2", "virtio9p", "bool", "false", "Windows' drives by virtio; forced off by now."),
    Key("wsl2", "virtiofs", "bool", "false", "Windows' drives by virtiofs instead of 9p."),
    Key("wsl2", "kernelDebugPort", "integer", "0", "Port for a kernel debugger."),
    Key("wsl2", "kernelBootTimeout", "integer", "30000", "Milliseconds the kernel may take to start."),
    Key("wsl2", "distributionStartTimeout", "integer", "60000", "Milliseconds a distro may take to start."),
    Key("wsl2", "mountDeviceTimeout", "integer", "5000", "Milliseconds a disk may take to appear."),
    Key("wsl2", "hardwarePerformanceCounters", "bool", "true", "The processor's counters in the virtual machine."),
    Key("wsl2", "hostFileSystemAccess", "bool", "true", "Windows' drives and programs from Linux."),
    Key("wsl2", "telemetry", "bool", "true", "Telemetry."),
    Key("wsl2", "loadKernelModules", "text", "", "Kernel modules to load, joined by commas."),
    Key("wsl2", "loadDefaultKernelModules", "bool", "true", "Load tun, ip_tables and br_netfilter."),
    Key("experimental", "autoMemoryReclaim", "choice", "DropCache",
        "How an idle virtual machine gives its page cache back to Windows.", "2.0.0", EXPERIMENTAL, RECLAIM_MODES),
    Key("experimental", "sparseVhd", "bool", "false",
        "New disks shrink by themselves; ignored by current releases, for it has damaged data.", "2.0.0",
        EXPERIMENTAL),
    Key("experimental", "bestEffortDnsParsing", "bool", "false", "Forgive odd DNS records.", "2.0.0", EXPERIMENTAL),
    Key("experimental", "dnsTunnelingIpAddress", "address", "10.255.255.254", "Name server that Linux is told.",
        "2.0.0", EXPERIMENTAL),
    Key("experimental", "initialAutoProxyTimeout", "integer", "1000", "Milliseconds to wait for the proxy.",
        "2.0.0", EXPERIMENTAL),
    Key("experimental", "ignoredPorts", "ports", "", "Ports that Linux may use though Windows does (mirrored).",
        "2.0.0", EXPERIMENTAL),
    Key("experimental", "hostAddressLoopback", "bool", "false", "Reach Windows by its own addresses (mirrored).",
        "2.0.0", EXPERIMENTAL),
    Key("experimental", "setVersionDebug", "bool", "false", "For WSL's developers."),
    Key("experimental", "swiotlb", "size", "by need", "Bounce buffers of virtio devices.", "2.8.9"),
    Key("experimental", "virtioFsAggregateShares", "bool", "true", "One virtiofs for all drives.",
        "later than 2.9.4"),
)  # fmt: skip

#: Lower-case path -> key. WSL compares without regard to case.
BY_PATH = {path.lower(): key for key in KEYS for path in key.paths}
#: Lower-case name -> the keys of that name, for what stands in the wrong section.
BY_NAME = {key.name.lower(): key for key in KEYS}

#: What guides recommend and WSL does not know: name -> what to do about it.
FOLKLORE = {
    "pagereporting": "it was real in one build of 2019 (19013) only; free pages always go back to Windows now: "
    "delete the line",
    "idlethreshold": "it was real in one build of 2019 (19013) only: delete the line",
    "guessvhdsize": "no WSL has ever known it: delete the line",
}
