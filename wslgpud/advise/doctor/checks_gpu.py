"""The GPU: its driver, the library, torch, and who holds its memory."""

from __future__ import annotations

import re

from wslgpud.advise.doctor.findings import Outcome, check, could_not_tell, good, not_applicable, note, problem
from wslgpud.advise.doctor.look import Look
from wslgpud.advise.doctor.torches import TorchFacts, runs_on, version
from wslgpud.sources.gpu_presence import LIBRARY_FOLDERS
from wslgpud.units import size

GIB = 1 << 30
WSL_LIBRARIES = "/usr/lib/wsl/"
#: The desktop of one screen takes about so much; more is worth looking at.
DESKTOP_BYTES = GIB
#: From this capability on cards have TF32: NVIDIA's Ampere.
TF32_CAPABILITY = (8, 0)
#: Capability -> CUDA that first compiles for it (CUDA's release notes); torch wheels that carry it.
FIRST_CUDA = {(12, 0): (12, 8), (10, 0): (12, 8), (9, 0): (11, 8), (8, 9): (11, 8)}
_TOOLKIT = "/usr/local/cuda/version.json"
#: Slim images leave that file out; their compiler still needs its header (CUDA 13.0 is written 13000 there).
_NVCC, _HEADER = "/usr/local/cuda/bin/nvcc", "/usr/local/cuda/include/cuda.h"
_HEADER_VERSION = re.compile(r"^#define CUDA_VERSION (\d+)", re.MULTILINE)
_WHEELS = "pip install --force-reinstall torch --index-url https://download.pytorch.org/whl/cu128"


@check("gpu.visible", "GPU", "Without it there is nothing to train on.")
def visible(look: Look) -> Outcome:
    """The driver shows a card."""
    gpus = look.gpus
    if gpus.samples:
        driver = gpus.identities[0].get("driver_version", "") if gpus.identities else ""
        names = ", ".join(
            f"{g.name} ({size(g.total_bytes)})" if g.total_bytes else g.name for g in gpus.samples
        )
        return good(f"{names}, driver {driver}" if driver else names)
    if look.wsl == 2 and not look.host.exists("/dev/dxg"):
        remedy = "remove gpuSupport=false from .wslconfig, or install NVIDIA's driver in Windows"
        return problem("WSL offers no GPU (/dev/dxg is missing)", f"{remedy}; then wsl --shutdown")
    meaning, _, remedy = gpus.error.partition("; ")
    if look.wsl == 2 or remedy:
        return problem(meaning, remedy or "install NVIDIA's driver in Windows, then wsl --shutdown there")
    return not_applicable(gpus.error)


@check(
    "gpu.library",
    "NVIDIA's library",
    "A driver package of the distribution in front of WSL's hides the card.",
)
def library(look: Look) -> Outcome:
    """The library in use is the right one."""
    used = look.gpus.library
    others = [
        f"{folder}/libnvidia-ml.so.1"
        for folder in LIBRARY_FOLDERS
        if not folder.startswith(WSL_LIBRARIES) and look.host.exists(f"{folder}/libnvidia-ml.so.1")
    ]
    if "/stubs/" in used:
        return problem(f"{used} is a stub for compiling", "take CUDA's stubs folder out of LD_LIBRARY_PATH")
    if look.wsl == 2 and others:
        text = f"{others[0]} stands beside WSL's own"
        remedy = "sudo apt-get remove 'libnvidia-compute-*' 'nvidia-utils-*'"
        if not used or used.startswith(WSL_LIBRARIES):
            return note(f"{text}; other programs may load it and find no card", remedy)
        return problem(text, remedy)
    if used:
        return good(used)
    return (
        could_not_tell("a recording does not tell") if look.gpus.samples else not_applicable("none is in use")
    )


@check(
    "gpu.cuda",
    "CUDA of the driver",
    "A torch built for a newer CUDA than the driver's does not start; of a newer minor version, in part.",
    "torch",
)
def cuda(look: Look) -> Outcome:
    """The driver's CUDA is enough for every torch here."""
    driver = _driver_cuda(look)
    if not driver:
        return could_not_tell("the driver does not tell its CUDA version")
    update = "update NVIDIA's driver" + (" in Windows, then wsl --shutdown there" if look.wsl else "")
    for capability in _capabilities(look):
        first = FIRST_CUDA.get(capability)
        if first and version(driver)[:2] < first:
            card = f"sm_{capability[0]}{capability[1]}"
            return problem(f"the driver knows CUDA {driver}; {card} needs {first[0]}.{first[1]}", update)
    newer = [t for t in look.torch or () if t.cuda and version(t.cuda)[:2] > version(driver)[:2]]
    late = [t for t in newer if version(t.cuda)[:1] > version(driver)[:1] or _needs_compiling(look, t)]
    which = ", ".join(f"torch {t.version} (CUDA {t.cuda}) of {t.python}" for t in late or newer)
    if late:
        return problem(f"the driver knows CUDA {driver}, too old for {which}", update)
    if newer:
        return note(f"the driver knows CUDA {driver}: {which} runs, but not what compiles PTX", update)
    return good(f"the driver knows CUDA {driver}; " + _torches(look))


def _needs_compiling(look: Look, facts: TorchFacts) -> bool:
    """Tell whether a build has only intermediate code for a card, which an older driver cannot compile.

    Within one major version newer builds run on older drivers, save for PTX:
    https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html
    """
    compiled = [name for name in facts.architectures if name.startswith("sm_")]
    return any(
        runs_on(facts.architectures, capability) and not runs_on(compiled, capability)
        for capability in _capabilities(look)
    )


@check(
    "torch.architecture",
    "torch's code for the card",
    "A build without code for the card sees it, and fails at the first kernel.",
    "torch",
)
def architecture(look: Look) -> Outcome:
    """Each torch has code for each card."""
    missing = [
        f"torch {facts.version} of {facts.python} has no sm_{capability[0]}{capability[1]}"
        for facts in look.torch or ()
        for capability in _capabilities(look)
        if facts.cuda and facts.architectures and not runs_on(facts.architectures, capability)
    ]
    if missing:
        return problem(
            f"{'; '.join(missing)} (a card of the RTX 50 series needs CUDA 12.8 and torch 2.7)", _WHEELS
        )
    without = [t for t in look.torch or () if not t.failure and not t.cuda]
    if without:
        return note(f"torch {without[0].version} of {without[0].python} is built without CUDA", _WHEELS)
    return good(
        ", ".join(f"sm_{major}{minor}" for major, minor in _capabilities(look)) + " is in torch's list"
    )


@check(
    "torch.kernel", "A kernel runs", "torch.cuda.is_available() is true also where no kernel runs.", "torch"
)
def kernel(look: Look) -> Outcome:
    """A tiny kernel has really run."""
    failures = [
        f"{t.python}: {t.failure or t.kernel}"
        for t in look.torch or ()
        if t.failure or (t.cuda and not t.ran)
    ]
    if failures:
        others = "; ".join(failures)
        remedy = _WHEELS if "no kernel image" in others else "wsl --shutdown        (in Windows)"
        return problem(others, remedy if look.wsl else "see whether nvidia-smi works; restart the machine")
    return good(_torches(look))


@check(
    "torch.speed",
    "Fast arithmetic",
    "TF32 makes float32 matrix products several times faster, at 10 bits of mantissa; torch leaves it off.",
    "torch",
)
def speed(look: Look) -> Outcome:
    """TF32 and cuDNN are there to be used."""
    ran = [t for t in look.torch or () if t.ran]
    if not ran:
        return not_applicable("no torch runs on the card")
    if any(not t.cudnn for t in ran):
        return note("torch finds no cuDNN", _WHEELS)
    if all(t.tf32 for t in ran) or all(c < TF32_CAPABILITY for c in _capabilities(look)):
        return good(f"cuDNN {ran[0].cudnn}")
    return note(
        "TF32 is off, as torch starts; switch it on in your program if float32 is what it computes in",
        "torch.set_float32_matmul_precision('high'); torch.backends.cudnn.benchmark = True",
    )


@check(
    "cuda.toolkit",
    "CUDA toolkit",
    "Extensions are compiled by it: it must fit torch's CUDA and know the card.",
)
def toolkit(look: Look) -> Outcome:
    """The installed toolkit fits."""
    installed = _installed_cuda(look)
    if installed is None:
        return not_applicable("none in /usr/local/cuda; only compiling needs it")
    if not version(installed):
        return could_not_tell(f"{_TOOLKIT} names no version")
    for capability in _capabilities(look):
        first = FIRST_CUDA.get(capability)
        if first and version(installed) < first:
            return problem(
                f"CUDA {installed} cannot compile for sm_{capability[0]}{capability[1]}",
                f"install CUDA {first[0]}.{first[1]} or newer: https://developer.nvidia.com/cuda-downloads",
            )
    other = [t for t in look.torch or () if t.cuda and version(t.cuda)[:1] != version(installed)[:1]]
    if other:
        return note(
            f"CUDA {installed}, but torch {other[0].version} is built with {other[0].cuda}:"
            " extensions will not compile",
            f"install CUDA {other[0].cuda} beside it and set CUDA_HOME",
        )
    return good(f"CUDA {installed}")


@check(
    "gpu.desktop", "VRAM held by the desktop", "What the desktop and WSLg hold is missing in training.", "gpu"
)
def desktop(look: Look) -> Outcome:
    """Little VRAM is held by others."""
    held = []
    for gpu in look.gpus.samples:
        if gpu.used_bytes is None:
            continue
        if any(p.pid and p.name.lstrip("/") != "Xwayland" for p in gpu.processes):
            return not_applicable(f"programs of ours use GPU {gpu.index} now")
        if gpu.used_bytes >= DESKTOP_BYTES:
            held.append(f"GPU {gpu.index}: {size(gpu.used_bytes)} held while no program here uses it")
    if not held:
        return good("less than 1 GB")
    if not look.wsl:
        return note("; ".join(held), "nvidia-smi        (who is it?)")
    wslg = any(p.name.endswith("Xwayland") for gpu in look.gpus.samples for p in gpu.processes)
    first = (
        "guiApplications=false below [wsl2] in .wslconfig if you need no Linux windows, and " if wslg else ""
    )
    return note("; ".join(held), f"{first}close browsers and games in Windows before training")


def _installed_cuda(look: Look) -> str | None:
    """Return the toolkit's version, an empty text where it does not tell it; None without a toolkit."""
    text = look.read(_TOOLKIT)
    if text is not None:
        found = text.partition('"cuda"')[2].partition('"version"')[2].split('"')
        return found[1] if len(found) > 1 else ""
    if not look.host.exists(_NVCC):
        return None
    number = _HEADER_VERSION.search(look.read(_HEADER) or "")
    return f"{int(number[1]) // 1000}.{int(number[1]) % 1000 // 10}" if number else ""


def _driver_cuda(look: Look) -> str:
    return next((i["cuda_version"] for i in look.gpus.identities if i.get("cuda_version")), "")


def _capabilities(look: Look) -> list[tuple[int, int]]:
    """Return each kind of card once: from NVML, else from torch."""
    texts = [i.get("compute_capability", "") for i in look.gpus.identities]
    found = [(v[0], v[1]) for v in map(version, texts) if len(v) == 2]
    found = found or [capability for t in look.torch or () for _, capability in t.devices]
    return list(dict.fromkeys(found))


def _torches(look: Look) -> str:
    return ", ".join(
        f"torch {t.version}" + (f" (CUDA {t.cuda})" if t.cuda else " (no CUDA)")
        for t in look.torch or ()
        if not t.failure
    )
