"""Whether there is an NVIDIA GPU to ask for, found out without starting anything."""

from __future__ import annotations

import os

from wslgpud.host import Host, NoData, RecordedHost, SourceError

LIBRARY_FOLDERS = (
    "/usr/lib/wsl/lib",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/lib64",
    "/usr/local/nvidia/lib64",
    "/run/opengl-driver/lib",
)
NATIVE_DEVICES = ("/dev/nvidiactl", "/dev/nvidia0", "/proc/driver/nvidia")
_PCI = "/sys/bus/pci/devices"


def visible(host: Host, library: str) -> bool:
    """Tell whether it makes sense to load NVML: ``library`` is its path, empty for the usual places."""
    if isinstance(host, RecordedHost):
        return host.recording("nvml.json") is not None
    if not host.live:
        return False  # another machine's files: our own GPU is not its
    if library:
        return host.exists(library)
    folders = (*LIBRARY_FOLDERS, *filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(":")))
    # Not /dev/dxg: WSL has it with any maker's GPU, and its NVML is always in WSL's own folder.
    return any(host.exists(f"{folder}/libnvidia-ml.so.1") for folder in folders) or any(
        host.exists(device) for device in NATIVE_DEVICES
    )


def on_the_bus(host: Host) -> bool:
    """Tell whether the PCI bus shows a device of NVIDIA's; yes when it cannot be asked."""
    try:
        devices = host.names(_PCI)
    except (NoData, SourceError):
        return True
    return any(host.read_optional(f"{_PCI}/{device}/vendor").strip() == "0x10de" for device in devices)
