"""Every key that WSL knows in .wslconfig, declared once; and keys that people believe in.

Names, types and defaults: src/windows/common/WslCoreConfig.{h,cpp} of https://github.com/microsoft/WSL (3e27a6a,
2026-08-08). ``since`` is the first tag whose source has the key where there is one to look into (2.5.8 was the
first that is open), else what Microsoft's release notes or documentation say.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

from wslgpud.words import template

#: what each kind of value is called
KINDS = {
    "bool": template("true or false"),
    "integer": template("whole number"),
    "size": template("size"),
    "text": template("text"),
    "path": template("path"),
    "ports": template("ports"),
    "address": template("IPv4 address"),
    "mac": template("MAC address"),
}
Kind = Literal["bool", "integer", "size", "text", "path", "choice", "ports", "address", "mac"]

DOCS = "https://learn.microsoft.com/windows/wsl/wsl-config#main-wsl-settings"
EXPERIMENTAL = "https://learn.microsoft.com/windows/wsl/wsl-config#experimental-settings"
SOURCE = "https://github.com/microsoft/WSL/blob/master/src/windows/common/WslCoreConfig.h"

#: As WSL lists them when it refuses another one; VirtioProxy is Consomme's old name.
NETWORKING_MODES = ("Bridged", "Consomme", "Mirrored", "Nat", "None", "VirtioProxy")
RECLAIM_MODES = ("Disabled", "DropCache", "Gradual")


@dataclass(frozen=True, slots=True)
class WslconfigKey:
    """One setting; ``old_section`` is where it stood before, which WSL still reads.

    ``default``, ``meaning`` and ``since`` are templates where they are words.
    """

    section: str
    name: str
    kind: Kind
    default: str
    meaning: str
    since: str = template("2.5.8 or earlier")
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


#: what the keys of one time have in common
_first = partial(WslconfigKey, "wsl2", since="Windows 10.0.18945", link=DOCS)
_documented = partial(WslconfigKey, "wsl2", link=DOCS)
_wsl2 = partial(WslconfigKey, "wsl2")
_wsl_2_0 = partial(WslconfigKey, "wsl2", since="2.0.0", link=DOCS, old_section="experimental")
_experimental = partial(WslconfigKey, "experimental", since="2.0.0", link=EXPERIMENTAL)

KEYS = (
    _first(
        "memory", "size", template("half of Windows' RAM"), "Most RAM the virtual machine may take; it grows on demand."
    ),
    _first("processors", "integer", template("all"), "Logical processors of the virtual machine."),
    _first(
        "swap",
        "size",
        template("a quarter of memory, rounded up to 1GB"),
        "Size of the swap file on Windows' disk; 0 for none.",
    ),
    _first("swapFile", "path", "%TEMP%\\...\\swap.vhdx", "Path of the swap file."),
    _documented(
        "vmIdleTimeout",
        "integer",
        "60000",
        "Milliseconds without a running distro until the virtual machine is stopped; it frees no memory.",
        since="Windows 10.0.20190",
    ),
    WslconfigKey(
        "general",
        "instanceIdleTimeout",
        "integer",
        "15000",
        "Milliseconds without an open terminal until a distro is stopped; -1 for never: services keep running.",
    ),
    WslconfigKey("general", "distributionInstallPath", "path", "%LocalAppData%\\wsl", "Folder for new distros."),
    _documented(
        "kernelCommandLine", "text", "", "Parameters added to the kernel's command line.", since="Windows 10.0.18995"
    ),
    _first("kernel", "path", template("WSL's own"), "A Linux kernel of your own."),
    _documented("kernelModules", "path", template("WSL's own"), "The modules of that kernel, as a VHD."),
    _wsl2("systemDistro", "path", template("WSL's own"), "A system distro (WSLg) of your own."),
    _documented(
        "guiApplications", "bool", "true", "Graphical Linux programs (WSLg); holds some VRAM.", since="Windows 11"
    ),
    _wsl2("gpuSupport", "bool", "true", "The GPU in the virtual machine (/dev/dxg)."),
    _documented(
        "nestedVirtualization",
        "bool",
        template("true (Windows 11)"),
        "Virtual machines inside WSL.",
        since="Windows 10.0.20175",
    ),
    _first("localhostForwarding", "bool", "true", "Linux ports are reachable at Windows' localhost (NAT)."),
    _wsl_2_0(
        "networkingMode",
        "choice",
        "Nat",
        "How the virtual machine is connected to the network.",
        choices=NETWORKING_MODES,
    ),
    _wsl_2_0("dnsTunneling", "bool", "true", "DNS through Windows instead of over the network."),
    _wsl_2_0("firewall", "bool", "true", "Windows' firewall rules apply to WSL."),
    _wsl_2_0("autoProxy", "bool", "true", "Windows' HTTP proxy applies to WSL."),
    _documented("dnsProxy", "bool", "true", "DNS through Windows' NAT."),
    _documented(
        "safeMode", "bool", "false", "No GPU, swap, network or systemd, to repair a broken distro.", since="0.66.2"
    ),
    _documented("debugConsole", "bool", "false", "A window that shows the kernel's messages."),
    _wsl2("debugConsoleLogFile", "path", "", "File that the kernel's messages are written to."),
    _wsl2("earlyBootLogging", "bool", "false", "Include the messages of early boot."),
    _documented("maxCrashDumpCount", "integer", "10", "Crash dumps to keep; negative for none."),
    _wsl2("crashDumpFolder", "path", "%TEMP%\\wsl-crashes", "Folder for crash dumps."),
    _documented("defaultVhdSize", "size", "1TB", "Largest size of a new distro's disk."),
    _wsl2(
        "isolateDistroCgroup",
        "bool",
        "true",
        "All of the user's programs in one cgroup, limited to 32 MiB less than the memory.",
        since=template("later than 2.9.4"),
    ),
    _wsl2("ipv6", "bool", "false", "IPv6."),
    _wsl2("dhcp", "bool", "true", "DHCP in bridged mode."),
    _wsl2("dhcpTimeout", "integer", "5000", "Milliseconds to wait for DHCP."),
    _wsl2("vmSwitch", "text", "", "Hyper-V switch for bridged mode."),
    _wsl2("macAddress", "mac", "", "MAC address in bridged mode."),
    _wsl2("virtio", "bool", "true", "Virtio devices."),
    _wsl2("virtio9p", "bool", "false", "Windows drives over virtio; forced off by now."),
    _wsl2("virtiofs", "bool", "false", "Windows drives over virtiofs instead of 9p."),
    _wsl2("kernelDebugPort", "integer", "0", "Port for a kernel debugger."),
    _wsl2("kernelBootTimeout", "integer", "30000", "Milliseconds the kernel may take to start."),
    _wsl2("distributionStartTimeout", "integer", "60000", "Milliseconds a distro may take to start."),
    _wsl2("mountDeviceTimeout", "integer", "5000", "Milliseconds a disk may take to appear."),
    _wsl2(
        "hardwarePerformanceCounters", "bool", "true", "The processor's performance counters in the virtual machine."
    ),
    _wsl2("hostFileSystemAccess", "bool", "true", "Access to Windows drives and programs from Linux."),
    _wsl2("telemetry", "bool", "true", "Telemetry."),
    _wsl2("loadKernelModules", "text", "", "Kernel modules to load, separated by commas."),
    _wsl2("loadDefaultKernelModules", "bool", "true", "Load tun, ip_tables and br_netfilter."),
    _experimental(
        "autoMemoryReclaim",
        "choice",
        "DropCache",
        "How an idle virtual machine gives its page cache back to Windows.",
        choices=RECLAIM_MODES,
    ),
    _experimental(
        "sparseVhd",
        "bool",
        "false",
        "New disks shrink by themselves; ignored by current releases because it has damaged data.",
    ),
    _experimental("bestEffortDnsParsing", "bool", "false", "Tolerate odd DNS records."),
    _experimental("dnsTunnelingIpAddress", "address", "10.255.255.254", "Name server that Linux uses."),
    _experimental("initialAutoProxyTimeout", "integer", "1000", "Milliseconds to wait for the proxy."),
    _experimental("ignoredPorts", "ports", "", "Ports that Linux may use even though Windows does (mirrored)."),
    _experimental("hostAddressLoopback", "bool", "false", "Reach Windows at its own addresses (mirrored)."),
    WslconfigKey("experimental", "setVersionDebug", "bool", "false", "For WSL's developers."),
    WslconfigKey(
        "experimental", "swiotlb", "size", template("by need"), "Bounce buffers of virtio devices.", since="2.8.9"
    ),
    WslconfigKey(
        "experimental",
        "virtioFsAggregateShares",
        "bool",
        "true",
        "One virtiofs for all drives.",
        since=template("later than 2.9.4"),
    ),
)

#: Lower-case path -> key. WSL compares without regard to case.
BY_PATH = {path.lower(): key for key in KEYS for path in key.paths}
#: Lower-case name -> the keys of that name, for what stands in the wrong section.
BY_NAME = {key.name.lower(): key for key in KEYS}

#: What guides recommend and WSL does not know: name -> what to do about it.
FOLKLORE = {
    "pagereporting": template(
        "delete the line: it existed in one build of 2019 (19013) only; free pages always go back to Windows now"
    ),
    "idlethreshold": template("delete the line: it existed in one build of 2019 (19013) only"),
    "guessvhdsize": template("delete the line: no WSL has ever known it"),
}
