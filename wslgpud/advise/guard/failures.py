"""Recognises from the last lines of a program's output why it failed, and gives advice. Pure.

The lines are foreign text, trusted only for this advice.
"""

from __future__ import annotations

import re

from wslgpud.words import Message, template

#: bytes of output that are examined: a traceback of PyTorch with its message
TAIL_BYTES = 16 << 10
#: a terminal's colours and cursor movements
_ESCAPES = re.compile(rb"\x1b\[[0-9;?]*[ -/]*[@-~]")
_OUT_OF_MEMORY = re.compile(
    r"CUDA out of memory\. Tried to allocate (?P<asked>[\d.]{1,9} [KMG]iB)\."
    r"(?:.{0,300}?of which (?P<free>[\d.]{1,9} [KMG]iB) is free)?",
    re.DOTALL,
)
_SCALES = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}

#: under WSL2 allocations may fail although VRAM is free
_REFUSED = template(
    "CUDA reports out of memory with VRAM free: Windows refused it. Less pinned memory helps (pin_memory=False, no CPU "
    "offload), as do fewer CUDA programs and a larger page file in Windows; else wsl --shutdown there"
)
_NOT_PINNED = template("the driver could not pin that much RAM: pin_memory=False, or less offload to the CPU")
# https://github.com/microsoft/WSL/issues/8447, https://github.com/abetlen/llama-cpp-python/issues/229,
# https://github.com/saharmor/dalle-playground/issues/88, https://github.com/NVIDIA/nvidia-docker/issues/1725
_PINNING = re.compile(
    r"pin_memory[\s\S]{0,2000}CUDA error: out of memory|failed to allocate [\d.]{1,9} \w{1,3} of pinned memory"
    r"|could not allocate pinned host memory|cudaHost(?:Alloc|Register)\b"
)
_DRIVER = template("the GPU driver does not respond properly, as after an update in Windows: wsl --shutdown there")
#: advice on native Linux instead
_NATIVE = {_DRIVER: template("the GPU driver does not respond properly, as after its upgrade: restart the machine")}
#: patterns in the output, and their advice; the first match counts
_KNOWN = (
    # https://github.com/microsoft/WSL/issues/41176
    (
        ("CUDA driver error: device not ready",),
        template(
            "the card's memory was used up, even if some looks free: stay below about 80 % of it, and do not retry, "
            "which has crashed Windows"
        ),
    ),
    # https://github.com/pytorch/pytorch/issues/8976
    (
        (r"DataLoader worker \(pid(?:\(s\))? [\d, ]+\) is killed by signal: Killed",),
        template("RAM ran out and the kernel killed a data loader's worker: use fewer workers (num_workers)"),
    ),
    # https://github.com/pytorch/pytorch/issues/108861
    (
        ("Unexpected bus error encountered in worker", r"DataLoader worker .{0,80}killed by signal: Bus error"),
        template("shared memory (/dev/shm) is full: use fewer workers, or give the container more (--shm-size)"),
    ),
    # https://github.com/google/or-tools/issues/4229, https://github.com/microsoft/WSL/issues/5295
    (
        ("fatal error: Killed signal terminated program", "virtual memory exhausted", "cc1plus: out of memory"),
        template("a compiler ran out of RAM: fewer jobs at once (--jobs), or --pause"),
    ),
    # https://github.com/microsoft/WSL/issues/9938, 11755, 8174
    (
        (
            "GPU access blocked by the operating system",
            "Driver/library version mismatch",
            "CUDA driver version is insufficient",
            "Failed to initialize NVML: (?:Unknown Error|N/A)",
        ),
        _DRIVER,
    ),
    # https://github.com/microsoft/WSL/issues/9490, 12810, 13966: the code is the same in every language
    (
        ("Catastrophic failure", r"Wsl/Service/\S{0,40}E_UNEXPECTED"),
        template("WSL's service in Windows failed: save your work, then wsl --shutdown there, and wsl --update"),
    ),
    # https://github.com/microsoft/WSL/issues/10194
    (
        ("No space left on device",),
        template("a disk is full: 'df -h' shows which; under WSL2 the Windows drive of the virtual disk counts, too"),
    ),
    # https://github.com/pytorch/pytorch/issues/21819
    (
        ("CUDA error: an illegal memory access was encountered", "device-side assert triggered"),
        template("a CUDA kernel of the program failed, not for lack of memory: CUDA_LAUNCH_BLOCKING=1 shows where"),
    ),
    # https://github.com/pytorch/pytorch/issues/16417
    (
        ("CUDA out of memory", "CUDA error: out of memory"),
        template("VRAM ran out: a smaller batch or a shorter context"),
    ),
    # https://github.com/microsoft/WSL/issues/5809, https://github.com/MIC-DKFZ/nnUNet/issues/2213
    (
        (r"^[\w.]{0,80}\b_?(?:Array)?MemoryError\b", "std::bad_alloc", "Cannot allocate memory"),
        template("the program could not allocate more RAM"),
    ),
)
_PATTERNS = tuple((re.compile("|".join(patterns), re.MULTILINE), said) for patterns, said in _KNOWN)


def recognised(output: bytes, *, wsl: bool) -> Message | None:
    """Return the advice for the end of a failed program's output; None where nothing is recognised."""
    text = _ESCAPES.sub(b"", output[-TAIL_BYTES:]).decode("utf-8", "replace")
    found = max((m for m in _OUT_OF_MEMORY.finditer(text)), key=lambda match: match.start(), default=None)
    free = found is not None and found["free"] and _bytes(found["free"]) > _bytes(found["asked"])
    if (wsl and free) or _PINNING.search(text):
        return Message(_REFUSED if wsl else _NOT_PINNED)
    said = next((said for pattern, said in _PATTERNS if pattern.search(text)), None)
    return None if said is None else Message(said if wsl else _NATIVE.get(said, said))


def _bytes(amount: str) -> float:
    number, unit = amount.split()
    return float(number) * _SCALES[unit]
