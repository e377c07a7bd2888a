"""Every key that WSL knows in .wslconfig, declared once; and keys that people believe in.

Names, types and defaults: src/windows/common/WslCoreConfig.{h,cpp} of https://github.com/microsoft/WSL (3e27a6a,
2026-08-08). ``since`` is the first tag whose source has the key where there is one to look into (2.5.8 was the
first that is open), else what Microsoft's release notes or documentation say.
"""

from __future__ import annotations

from dataclasses import dataclass
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
class Key:
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


KEYS = (
    Key("wsl2", "memory", "size", template("half of Windows' RAM"),
        template("Most RAM the virtual machine may take; it grows on demand."), "Windows 10.0.18945", DOCS),
    Key("wsl2", "processors", "integer", template("all"), template("Logical processors of the virtual machine."),
        "Windows 10.0.18945", DOCS),
    Key("wsl2", "swap", "size", template("a quarter of memory, rounded up to 1GB"), template("Size of the swap file on Windows' disk; 0 for none."),
        "Windows 10.0.18945", DOCS),
    Key("wsl2", "swapFile", "path", r"%TEMP%\...\swap.vhdx", template("Path of the swap file."), "Windows 10.0.18945",
        DOCS),
    Key("wsl2", "vmIdleTimeout", "integer", "60000",
        template("Milliseconds without a running distro until the virtual machine is stopped; it frees no memory."),
        "Windows 10.0.20190", DOCS),
    Key("general", "instanceIdleTimeout", "integer", "15000",
        template("Milliseconds without an open terminal until a distro is stopped; -1 for never: services keep running.")),
    Key("general", "distributionInstallPath", "path", r"%LocalAppData%\wsl", template("Folder for new distros.")),
    Key("wsl2", "kernelCommandLine", "text", "", template("Parameters added to the kernel's command line."),
        "Windows 10.0.18995", DOCS),
    Key("wsl2", "kernel", "path", template("WSL's own"), template("A Linux kernel of your own."), "Windows 10.0.18945", DOCS),
    Key("wsl2", "kernelModules", "path", template("WSL's own"), template("The modules of that kernel, as a VHD."), link=DOCS),
    Key("wsl2", "systemDistro", "path", template("WSL's own"), template("A system distro (WSLg) of your own.")),
    Key("wsl2", "guiApplications", "bool", "true", template("Graphical Linux programs (WSLg); holds some VRAM."),
        "Windows 11", DOCS),
    Key("wsl2", "gpuSupport", "bool", "true", template("The GPU in the virtual machine (/dev/dxg).")),
    Key("wsl2", "nestedVirtualization", "bool", template("true (Windows 11)"), template("Virtual machines inside WSL."),
        "Windows 10.0.20175", DOCS),
    Key("wsl2", "localhostForwarding", "bool", "true", template("Linux ports are reachable at Windows' localhost (NAT)."),
        "Windows 10.0.18945", DOCS),
    Key("wsl2", "networkingMode", "choice", "Nat", template("How the virtual machine is connected to the network."), "2.0.0", DOCS,
        NETWORKING_MODES, "experimental"),
    Key("wsl2", "dnsTunneling", "bool", "true", template("DNS through Windows instead of over the network."), "2.0.0", DOCS,
        old_section="experimental"),
    Key("wsl2", "firewall", "bool", "true", template("Windows' firewall rules apply to WSL."), "2.0.0", DOCS,
        old_section="experimental"),
    Key("wsl2", "autoProxy", "bool", "true", template("Windows' HTTP proxy applies to WSL."), "2.0.0", DOCS,
        old_section="experimental"),
    Key("wsl2", "dnsProxy", "bool", "true", template("DNS through Windows' NAT."), link=DOCS),
    Key("wsl2", "safeMode", "bool", "false", template("No GPU, swap, network or systemd, to repair a broken distro."),
        "0.66.2", DOCS),
    Key("wsl2", "debugConsole", "bool", "false", template("A window that shows the kernel's messages."), link=DOCS),
    Key("wsl2", "debugConsoleLogFile", "path", "", template("File that the kernel's messages are written to.")),
    Key("wsl2", "earlyBootLogging", "bool", "false", template("Include the messages of early boot.")),
    Key("wsl2", "maxCrashDumpCount", "integer", "10", template("Crash dumps to keep; negative for none."), link=DOCS),
    Key("wsl2", "crashDumpFolder", "path", r"%TEMP%\wsl-crashes", template("Folder for crash dumps.")),
    Key("wsl2", "defaultVhdSize", "size", "1TB", template("Largest size of a new distro's disk."), link=DOCS),
    Key("wsl2", "isolateDistroCgroup", "bool", "true",
        template("All of the user's programs in one cgroup, limited to 32 MiB less than the memory."), template("later than 2.9.4")),
    Key("wsl2", "ipv6", "bool", "false", template("IPv6.")),
    Key("wsl2", "dhcp", "bool", "true", template("DHCP in bridged mode.")),
    Key("wsl2", "dhcpTimeout", "integer", "5000", template("Milliseconds to wait for DHCP.")),
    Key("wsl2", "vmSwitch", "text", "", template("Hyper-V switch for bridged mode.")),
    Key("wsl2", "macAddress", "mac", "", template("MAC address in bridged mode.")),
    Key("wsl2", "virtio", "bool", "true", template("Virtio devices.")),
    Key("wsl2", "virtio9p", "bool", "false", template("Windows drives over virtio; forced off by now.")),
    Key("wsl2", "virtiofs", "bool", "false", template("Windows drives over virtiofs instead of 9p.")),
    Key("wsl2", "kernelDebugPort", "integer", "0", template("Port for a kernel debugger.")),
    Key("wsl2", "kernelBootTimeout", "integer", "30000", template("Milliseconds the kernel may take to start.")),
    Key("wsl2", "distributionStartTimeout", "integer", "60000", template("Milliseconds a distro may take to start.")),
    Key("wsl2", "mountDeviceTimeout", "integer", "5000", template("Milliseconds a disk may take to appear.")),
    Key("wsl2", "hardwarePerformanceCounters", "bool", "true", template("The processor's performance counters in the virtual machine.")),
    Key("wsl2", "hostFileSystemAccess", "bool", "true", template("Access to Windows drives and programs from Linux.")),
    Key("wsl2", "telemetry", "bool", "true", template("Telemetry.")),
    Key("wsl2", "loadKernelModules", "text", "", template("Kernel modules to load, separated by commas.")),
    Key("wsl2", "loadDefaultKernelModules", "bool", "true", template("Load tun, ip_tables and br_netfilter.")),
    Key("experimental", "autoMemoryReclaim", "choice", "DropCache",
        template("How an idle virtual machine gives its page cache back to Windows."), "2.0.0", EXPERIMENTAL, RECLAIM_MODES),
    Key("experimental", "sparseVhd", "bool", "false",
        template("New disks shrink by themselves; ignored by current releases because it has damaged data."), "2.0.0",
        EXPERIMENTAL),
    Key("experimental", "bestEffortDnsParsing", "bool", "false", template("Tolerate odd DNS records."), "2.0.0", EXPERIMENTAL),
    Key("experimental", "dnsTunnelingIpAddress", "address", "10.255.255.254", template("Name server that Linux uses."),
        "2.0.0", EXPERIMENTAL),
    Key("experimental", "initialAutoProxyTimeout", "integer", "1000", template("Milliseconds to wait for the proxy."),
        "2.0.0", EXPERIMENTAL),
    Key("experimental", "ignoredPorts", "ports", "", template("Ports that Linux may use even though Windows does (mirrored)."),
        "2.0.0", EXPERIMENTAL),
    Key("experimental", "hostAddressLoopback", "bool", "false", template("Reach Windows at its own addresses (mirrored)."),
        "2.0.0", EXPERIMENTAL),
    Key("experimental", "setVersionDebug", "bool", "false", template("For WSL's developers.")),
    Key("experimental", "swiotlb", "size", template("by need"), template("Bounce buffers of virtio devices."), "2.8.9"),
    Key("experimental", "virtioFsAggregateShares", "bool", "true", template("One virtiofs for all drives."),
        template("later than 2.9.4")),
)  # fmt: skip

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
