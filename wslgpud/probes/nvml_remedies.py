"""What each NVML error means to a user and what to do about it, on plain Linux and under WSL2.

Sources: nvml.h (nvmlReturn_t); reports of what helped under WSL in microsoft/WSL#9035, #9938, #11589, #41062.
"""

from __future__ import annotations

from wslgpud.words import Message, MessageLike, say, template

_SEE = template("check whether nvidia-smi works; if it does not, restart the machine")
_WSL = template("run 'wsl --shutdown' in Windows; if that does not help, restart Windows")

#: Error -> meaning, remedy on plain Linux, remedy under WSL2.
REMEDIES = {
    "DRIVER_NOT_LOADED": (
        template("the NVIDIA driver is not loaded"),
        template("check whether nvidia-smi works; after an upgrade of driver or kernel, restart the machine"),
        template(
            "run 'wsl --shutdown' in Windows after updating the NVIDIA driver there; no libnvidia-compute "
            "package of the distribution may come before /usr/lib/wsl/lib"
        ),
    ),
    "LIB_RM_VERSION_MISMATCH": (
        template("the NVIDIA driver was upgraded: its library does not match the loaded kernel module"),
        template("restart the machine, or unload and reload the nvidia kernel modules"),
        template("run 'wsl --shutdown' in Windows"),
    ),
    "OPERATING_SYSTEM": (
        template("the operating system blocks access to the GPU"),
        template("allow this process the /dev/nvidia* devices (a container or a cgroup forbids them)"),
        _WSL,
    ),
    "GPU_IS_LOST": (
        template("the GPU is lost: it no longer answers its driver"),
        template(
            "restart the machine and look for Xid 79 in the kernel log; if it recurs, check the card's power "
            "supply and seat"
        ),
        _WSL,
    ),
    "RESET_REQUIRED": (
        template("the GPU must be reset"),
        template("end the programs that use it and run 'nvidia-smi --gpu-reset', or restart the machine"),
        template("restart Windows"),
    ),
    "NO_PERMISSION": (
        template("NVML refuses this user"),
        template("give the daemon's user access to /dev/nvidia*"),
        template("give the daemon's user access to /dev/dxg"),
    ),
    "LIBRARY_NOT_FOUND": (
        template("NVIDIA's libnvidia-ml.so.1 cannot be loaded"),
        template("install the driver's user-space part (libnvidia-compute, nvidia-utils) or set sampling.nvml_library"),
        template("install the NVIDIA driver in Windows, then run 'wsl --shutdown' there"),
    ),
    "UNKNOWN": (
        template("NVML answers with nothing but unknown errors"),
        _SEE,
        template("run 'wsl --shutdown' in Windows; the GPU may have been reset there"),
    ),
}


def explain_silence(meaning: MessageLike, *, wsl: bool) -> Message:
    """Return what to do about a driver that hung or crashed, behind what happened."""
    return say("{meaning}; {remedy}", meaning=meaning, remedy=Message(_WSL if wsl else _SEE))


def explain(error: str, call: str, text: str, *, wsl: bool) -> Message:
    """Return what an NVML error means, what to do about it, and which call returned it."""
    known = REMEDIES.get(error)
    meaning = Message(known[0]) if known else say("NVML returned {error}", error=error)
    native, under_wsl = known[1:] if known else (_SEE, _WSL)
    answer = say("{call}: {answer}", call=call, answer=text or error)
    remedy = say("{remedy} ({answer})", remedy=Message(under_wsl if wsl else native), answer=answer)
    return say("{meaning}; {remedy}", meaning=meaning, remedy=remedy)
