"""What each NVML error means to a user and what to do about it, on plain Linux and under WSL2.

Sources: nvml.h (nvmlReturn_t); reports of what helped under WSL in microsoft/WSL#9035, #9938, #11589, #41062.
"""

from __future__ import annotations

_SEE = "see whether nvidia-smi works; if it does not, restart the machine"
_WSL = "run 'wsl --shutdown' in Windows; if it stays, restart Windows"

#: Error -> meaning, remedy on plain Linux, remedy under WSL2.
REMEDIES = {
    "DRIVER_NOT_LOADED": (
        "the NVIDIA driver is not loaded",
        "see whether nvidia-smi works; after an upgrade of driver or kernel restart the machine",
        (
            "run 'wsl --shutdown' in Windows after updating NVIDIA's driver there; a libnvidia-compute "
            "package of the distribution must not stand before /usr/lib/wsl/lib"
        ),
    ),
    "LIB_RM_VERSION_MISMATCH": (
        "the NVIDIA driver was upgraded: its library does not fit the part that is loaded",
        "restart the machine, or unload and load the nvidia kernel modules",
        "run 'wsl --shutdown' in Windows",
    ),
    "OPERATING_SYSTEM": (
        "GPU access blocked by the operating system",
        "allow this process the /dev/nvidia* devices (a container or a cgroup forbids them)",
        _WSL,
    ),
    "GPU_IS_LOST": (
        "the GPU is lost: it does not answer its driver any more",
        "restart the machine, look for Xid 79 in the kernel log; if it recurs check its power and seat",
        _WSL,
    ),
    "RESET_REQUIRED": (
        "the GPU must be reset",
        "end the programs that use it and run 'nvidia-smi --gpu-reset', or restart the machine",
        "restart Windows",
    ),
    "NO_PERMISSION": (
        "NVML refuses this user",
        "give the daemon's user access to /dev/nvidia*",
        "give the daemon's user access to /dev/dxg",
    ),
    "LIBRARY_NOT_FOUND": (
        "NVIDIA's libnvidia-ml.so.1 cannot be loaded",
        "install the driver's user part (libnvidia-compute, nvidia-utils) or set sampling.nvml_library",
        "install NVIDIA's driver in Windows, then run 'wsl --shutdown' there",
    ),
    "UNKNOWN": (
        "NVML answers nothing but unknown errors",
        _SEE,
        "run 'wsl --shutdown' in Windows; the GPU may have been reset there",
    ),
}


def explain_silence(what: str, *, wsl: bool) -> str:
    """Return what to do about a driver that hung or crashed, behind what happened."""
    return f"{what}; {_WSL if wsl else _SEE}"


def explain(error: str, call: str, text: str, *, wsl: bool) -> str:
    """Return what an NVML error means, what to do about it, and which call returned it."""
    meaning, native, under_wsl = REMEDIES.get(error, (f"NVML returned {error}", _SEE, _WSL))
    return f"{meaning}; {under_wsl if wsl else native} ({call}: {text or error})"
