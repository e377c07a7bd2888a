"""The GPU: its driver, the library, torch, and who holds its memory."""

from __future__ import annotations

import re

from wslgpud.advise.doctor.findings import (
    Outcome,
    check,
    could_not_tell,
    good,
    in_windows,
    not_applicable,
    note,
    problem,
    shows_who,
)
from wslgpud.advise.doctor.look import Look
from wslgpud.advise.doctor.torches import TorchFacts, runs_on, version
from wslgpud.sources.gpu_presence import LIBRARY_FOLDERS
from wslgpud.words import Message, Said, all_of, say, template

GIB = 1 << 30
WSL_LIBRARIES = "/usr/lib/wsl/"
#: The desktop of one screen takes about so much; more is worth looking at.
DESKTOP_BYTES = GIB
#: From this capability on cards have TF32: NVIDIA's Ampere.
TF32_CAPABILITY = (8, 0)
#: Capability -> CUDA that first compiles for it (CUDA's release notes); torch wheels that carry it.
FIRST_CUDA = {(12, 0): (12, 8), (10, 0): (12, 8), (9, 0): (11, 8), (8, 9): (11, 8)}
_RTX_50 = (12, 0)
_TOOLKIT = "/usr/local/cuda/version.json"
#: Slim images leave that file out; their compiler still needs its header (CUDA 13.0 is written 13000 there).
_NVCC, _HEADER = "/usr/local/cuda/bin/nvcc", "/usr/local/cuda/include/cuda.h"
_HEADER_VERSION = re.compile(r"^#define CUDA_VERSION (\d+)", re.MULTILINE)
_WHEELS = "pip install --force-reinstall torch --index-url https://download.pytorch.org/whl/cu128"


@check("gpu.visible", template("GPU"), template("Without one there is nothing to train on."))
def visible(look: Look) -> Outcome:
    """The driver shows a card."""
    gpus = look.gpus
    if gpus.samples:
        driver = gpus.identities[0].get("driver_version", "") if gpus.identities else ""
        cards = tuple(
            say("{name} ({total_bytes})", name=g.name, total_bytes=g.total_bytes) if g.total_bytes else g.name
            for g in gpus.samples
        )
        if driver:
            return good(say("{cards}, driver {version}", cards=cards, version=driver))
        return good(all_of(cards))
    if look.wsl == 2 and not look.host.exists("/dev/dxg"):
        return problem(
            say("WSL offers no GPU (/dev/dxg is missing)"),
            say(
                "remove gpuSupport=false from .wslconfig or install the NVIDIA driver in Windows, "
                "then run 'wsl --shutdown' there"
            ),
        )
    told = {} if isinstance(gpus.error, str) else gpus.error.facts
    meaning, remedy = told.get("meaning"), told.get("remedy")
    if isinstance(meaning, (str, Message)) and isinstance(remedy, Message):
        return problem(meaning, remedy)
    if look.wsl == 2:
        return problem(
            gpus.error, say("install the NVIDIA driver in Windows, then run 'wsl --shutdown' there")
        )
    return not_applicable(gpus.error)


@check(
    "gpu.library",
    template("NVIDIA library"),
    template("A driver package of the distribution that comes before WSL's own library hides the card."),
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
        return problem(
            say("{path} is a stub to compile against", path=used),
            say("remove CUDA's stubs folder from LD_LIBRARY_PATH"),
        )
    if look.wsl == 2 and others:
        remedy = "sudo apt-get remove 'libnvidia-compute-*' 'nvidia-utils-*'"
        if used and not used.startswith(WSL_LIBRARIES):
            return problem(say("{path} is loaded instead of WSL's own", path=used), remedy)
        return note(
            say("besides WSL's own there is {path}: programs that load it find no card", path=others[0]),
            remedy,
        )
    if used:
        return good(used)
    if look.gpus.samples:
        return could_not_tell(say("a recording does not say"))
    return not_applicable(say("none is in use"))


@check(
    "gpu.cuda",
    template("CUDA of the driver"),
    template(
        "A torch built for a newer major version of CUDA than the driver's does not start; one built for a "
        "newer minor version works in part."
    ),
    "torch",
)
def cuda(look: Look) -> Outcome:
    """The driver's CUDA is enough for every torch here."""
    driver = _driver_cuda(look)
    if not driver:
        return could_not_tell(say("the driver does not report its CUDA version"))
    update = (
        say("update the NVIDIA driver in Windows, then run 'wsl --shutdown' there")
        if look.wsl
        else say("update the NVIDIA driver")
    )
    for capability in _capabilities(look):
        first = FIRST_CUDA.get(capability)
        if first and version(driver)[:2] < first:
            return problem(
                say(
                    "the driver supports CUDA {driver}; {card} needs {needed}",
                    driver=driver,
                    card=_sm(capability),
                    needed=_dotted(first),
                ),
                update,
            )
    newer = [t for t in look.torch or () if t.cuda and version(t.cuda)[:2] > version(driver)[:2]]
    late = [t for t in newer if version(t.cuda)[:1] > version(driver)[:1] or _needs_compiling(look, t)]
    which = tuple(
        say("torch {version} (CUDA {cuda}) in {python}", version=t.version, cuda=t.cuda, python=t.python)
        for t in late or newer
    )
    if late:
        return problem(
            say("the driver supports CUDA {driver}, too old for {torches}", driver=driver, torches=which),
            update,
        )
    if newer:
        return note(
            say(
                "the driver supports CUDA {driver}: {torches} runs, except for code that must compile PTX",
                driver=driver,
                torches=which,
            ),
            update,
        )
    return good(say("the driver supports CUDA {driver}; {torches}", driver=driver, torches=_torches(look)))


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
    template("torch's code for the card"),
    template("A build without code for the card sees the card, and fails at the first kernel."),
    "torch",
)
def architecture(look: Look) -> Outcome:
    """Each torch has code for each card."""
    missing = [
        (facts, capability)
        for facts in look.torch or ()
        for capability in _capabilities(look)
        if facts.cuda and facts.architectures and not runs_on(facts.architectures, capability)
    ]
    if missing:
        told: Said = all_of(
            say(
                "torch {version} in {python} has no {card}",
                version=facts.version,
                python=facts.python,
                card=_sm(capability),
            )
            for facts, capability in missing
        )
        if any(capability == _RTX_50 for _, capability in missing):
            told = say("{builds} (RTX 50 cards need CUDA 12.8 and torch 2.7)", builds=told)
        return problem(told, _WHEELS)
    for facts in look.torch or ():
        if not facts.failure and not facts.cuda:
            return note(
                say(
                    "torch {version} in {python} is built without CUDA",
                    version=facts.version,
                    python=facts.python,
                ),
                _WHEELS,
            )
    return good(say("torch has code for {cards}", cards=tuple(map(_sm, _capabilities(look)))))


@check(
    "torch.kernel",
    template("A kernel runs"),
    template("torch.cuda.is_available() is true even where no kernel can run."),
    "torch",
)
def kernel(look: Look) -> Outcome:
    """A tiny kernel has really run."""
    failed = [t for t in look.torch or () if t.failure or (t.cuda and not t.ran)]
    if not failed:
        return good(_torches(look))
    told = all_of(say("{python}: {why}", python=t.python, why=_why(t)) for t in failed)
    if any("no kernel image" in t.kernel for t in failed):
        return problem(told, _WHEELS)
    if look.wsl:
        return problem(told, in_windows("wsl --shutdown"))
    return problem(told, say("check whether nvidia-smi works; if it does not, restart the machine"))


def _why(facts: TorchFacts) -> Said:
    """Say why a torch did not compute."""
    if facts.failure or facts.kernel:
        return facts.failure or facts.kernel
    return say("it computes wrong results") if facts.devices else say("torch sees no CUDA device")


@check(
    "torch.speed",
    template("Fast arithmetic"),
    template(
        "TF32 makes float32 matrix products several times faster, with a mantissa of 10 bits; torch leaves "
        "it off."
    ),
    "torch",
)
def speed(look: Look) -> Outcome:
    """TF32 and cuDNN are there to be used."""
    ran = [t for t in look.torch or () if t.ran]
    if not ran:
        return not_applicable(say("no torch runs on the card"))
    if any(not t.cudnn for t in ran):
        return note(say("torch finds no cuDNN"), _WHEELS)
    if all(t.tf32 for t in ran) or all(c < TF32_CAPABILITY for c in _capabilities(look)):
        return good(f"cuDNN {ran[0].cudnn}")
    return note(
        say("TF32 is off, torch's default; turn it on in your program if that computes in float32"),
        "torch.set_float32_matmul_precision('high'); torch.backends.cudnn.benchmark = True",
    )


@check(
    "cuda.toolkit",
    template("CUDA toolkit"),
    template("It compiles extensions: it must match torch's CUDA and know the card."),
)
def toolkit(look: Look) -> Outcome:
    """The installed toolkit fits."""
    installed = _installed_cuda(look)
    if installed is None:
        return not_applicable(say("none in /usr/local/cuda; only compiling needs it"))
    if not version(installed):
        return could_not_tell(say("{path} names no version", path=_TOOLKIT))
    for capability in _capabilities(look):
        first = FIRST_CUDA.get(capability)
        if first and version(installed) < first:
            return problem(
                say("CUDA {installed} cannot compile for {card}", installed=installed, card=_sm(capability)),
                say(
                    "install CUDA {needed} or newer: {url}",
                    needed=_dotted(first),
                    url="https://developer.nvidia.com/cuda-downloads",
                ),
            )
    for facts in look.torch or ():
        if facts.cuda and version(facts.cuda)[:1] != version(installed)[:1]:
            return note(
                say(
                    "CUDA {installed}, but torch {version} is built with {cuda}: extensions will not compile",
                    installed=installed,
                    version=facts.version,
                    cuda=facts.cuda,
                ),
                say("install CUDA {cuda} beside it and set CUDA_HOME", cuda=facts.cuda),
            )
    return good(f"CUDA {installed}")


@check(
    "gpu.desktop",
    template("VRAM held by the desktop"),
    template("Training cannot use what the desktop and WSLg hold."),
    "gpu",
)
def desktop(look: Look) -> Outcome:
    """Little VRAM is held by others."""
    held = []
    for gpu in look.gpus.samples:
        if gpu.used_bytes is None:
            continue
        resource = f"gpu{gpu.index}"
        if any(p.pid and p.name.lstrip("/") != "Xwayland" for p in gpu.processes):
            return not_applicable(say("programs here are using {resource} now", resource=resource))
        if gpu.used_bytes >= DESKTOP_BYTES:
            held.append(
                say(
                    "{resource}: {held_bytes} held although no program here uses it",
                    resource=resource,
                    held_bytes=gpu.used_bytes,
                )
            )
    if not held:
        return good(say("less than {most_bytes}", most_bytes=DESKTOP_BYTES))
    found = all_of(held)
    if not look.wsl:
        return note(found, shows_who("nvidia-smi"))
    close = say("close browsers and games in Windows before training")
    if any(p.name.endswith("Xwayland") for gpu in look.gpus.samples for p in gpu.processes):
        return note(
            found,
            say(
                "if you need no Linux windows, set guiApplications=false below [wsl2] in .wslconfig; {close}",
                close=close,
            ),
        )
    return note(found, close)


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


def _torches(look: Look) -> Said:
    torches = (t for t in look.torch or () if not t.failure)
    return all_of(
        say("torch {version} (CUDA {cuda})", version=t.version, cuda=t.cuda)
        if t.cuda
        else say("torch {version} (no CUDA)", version=t.version)
        for t in torches
    )


def _sm(capability: tuple[int, int]) -> str:
    return f"sm_{capability[0]}{capability[1]}"


def _dotted(numbers: tuple[int, int]) -> str:
    return f"{numbers[0]}.{numbers[1]}"
