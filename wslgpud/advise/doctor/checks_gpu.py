"""The GPU: its driver, the library, torch, and the holders of its memory."""

from __future__ import annotations

import re
from collections.abc import Iterator

from wslgpud import optional_packages
from wslgpud.advise.doctor.checking import (
    Evidence,
    Outcome,
    check,
    good,
    in_windows,
    note,
    problem,
    shows_who,
    skipped,
    unknown,
)
from wslgpud.advise.doctor.torches import TorchFacts, runs_on, version
from wslgpud.probes.nvml_remedies import explain_lost, explain_unread
from wslgpud.risk.attribution import windows_programs
from wslgpud.sources.gpu import LIBRARY_FOLDERS
from wslgpud.words import TEMPLATES, Message, MessageLike, all_of, say, template

GIB = 1 << 30
WSL_LIBRARIES = "/usr/lib/wsl/"
#: The desktop of one screen takes about this much; more is worth checking.
DESKTOP_BYTES = GIB
#: From this capability on cards have TF32: NVIDIA's Ampere.
TF32_CAPABILITY = (8, 0)
#: Capability -> CUDA that first compiles for it (CUDA's release notes); torch wheels that carry it.
FIRST_CUDA = {(12, 0): (12, 8), (10, 0): (12, 8), (9, 0): (11, 8), (8, 9): (11, 8)}
_RTX_50 = (12, 0)
_TOOLKIT = "/usr/local/cuda/version.json"
#: Slim images omit that file; their compiler still needs this header (13000 means CUDA 13.0).
_NVCC, _HEADER = "/usr/local/cuda/bin/nvcc", "/usr/local/cuda/include/cuda.h"
_HEADER_VERSION = re.compile(r"^#define CUDA_VERSION (\d+)", re.MULTILINE)
_WHEELS = "pip install --force-reinstall torch --index-url https://download.pytorch.org/whl/cu128"


#: where Windows is told the size of its page file
PAGE_FILE = say("in Windows: Advanced system settings, Performance, Virtual memory: at least as much as the card has")

#: https://github.com/microsoft/WSL/issues/9952, https://github.com/microsoft/WSL/issues/12835
_TCC = template(
    "{remedy}; if 'nvidia-smi' in Windows shows the card in TCC mode, WSL cannot see it: 'nvidia-smi -dm 0' there as "
    "administrator, if the card allows it, and restart Windows"
)


@check("gpu.visible", "GPU")
def visible(machine: Evidence) -> Outcome:
    """Without one there is nothing to train on."""
    gpus = machine.gpus
    if gpus.samples:
        cards = tuple(
            say("{name} ({total_bytes})", name=g.name, total_bytes=g.total_bytes) if g.total_bytes else g.name
            for g in gpus.samples
        )
        driver = _identity(machine, "driver_version")
        seen = say("{cards}, driver {version}", cards=cards, version=driver) if driver else all_of(cards)
        return _lost(machine, seen) or _unread(machine, seen) or good(seen)
    if machine.wsl == 2 and not machine.host.exists("/dev/dxg"):
        enable = say(
            "remove gpuSupport=false from .wslconfig or install the NVIDIA driver in Windows, "
            "then run 'wsl --shutdown' there"
        )
        return problem(say("WSL offers no GPU (/dev/dxg is missing)"), Message(_TCC, {"remedy": enable}))
    facts = {} if isinstance(gpus.error, str) else gpus.error.facts
    meaning, remedy = facts.get("meaning"), facts.get("remedy")
    if isinstance(meaning, (str, Message)) and isinstance(remedy, Message):
        return problem(meaning, remedy)
    if machine.wsl == 2:
        install = say("install the NVIDIA driver in Windows, then run 'wsl --shutdown' there")
        return problem(gpus.error, Message(_TCC, {"remedy": install}))
    return skipped(gpus.error)


def _lost(machine: Evidence, seen: MessageLike) -> Outcome | None:
    """Return which cards do not answer while others do: NVIDIA/dcgm-exporter#604, meta-llama/llama-models#200."""
    lost = machine.gpus.lost
    if not lost:
        return None
    names = tuple(
        say("{resource} ({error})", resource=f"gpu{card}", error=f"NVML_ERROR_{error}") for card, error in lost.items()
    )
    found = say("{lost} does not answer; {cards}", lost=names, cards=seen)
    return problem(found, explain_lost(next(iter(lost.values())), wsl=machine.wsl == 2))


def _unread(machine: Evidence, seen: MessageLike) -> Outcome | None:
    """Return why the memory of a card is not known, where the driver keeps it from us."""
    gpus = machine.gpus
    for card in (card for card in gpus.samples if card.total_bytes is None):
        why = explain_unread(mig=str(card.index) in gpus.divided, denied=gpus.denied)
        if why is not None:
            return note(say("{cards}: {why}", cards=seen, why=why), Message(TEMPLATES["unread_memory"]["remedy"]))
    return None


# https://github.com/microsoft/WSL/issues/40678 (64 GB of RAM, 96 GB of VRAM),
# https://github.com/victorchall/EveryDream2trainer/issues/163 (16 and 48 GB), ollama/ollama#8825
@check("gpu.page_file", "VRAM beside RAM", "gpu")
def page_file(machine: Evidence) -> Outcome:
    """Windows promises room for the whole card in RAM and page file; without it every CUDA program fails in WSL2."""
    if machine.wsl != 2:
        return skipped(say("this is not WSL2"))
    # WSL has what .wslconfig says, else half of Windows' RAM.
    file = machine.wslconfig.parsed
    limited = machine.wslconfig.error or (file is not None and file.get("wsl2.memory") is not None)
    facts = {"vram_bytes": most_vram(machine), "ram_bytes": machine.memory["MemTotal"] * (1 if limited else 2)}
    if facts["vram_bytes"] <= facts["ram_bytes"]:
        return good(say("{vram_bytes} of VRAM; Windows has at least {ram_bytes} of RAM", **facts))
    found = say(
        "{vram_bytes} of VRAM; Windows may have only {ram_bytes} of RAM: then every CUDA program fails unless its page "
        "file is as large as the VRAM",
        **facts,
    )
    return note(found, say("{fix}; {command} compares them", fix=PAGE_FILE, command="wslgpud doctor --windows"))


#: the first Blackwell card: https://developer.nvidia.com/cuda-gpus
_BLACKWELL = (10, 0)
_CDI = "nvidia-cdi-refresh.service"
_UNITS = ("/etc/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system")


# https://github.com/microsoft/WSL/issues/14452
@check("gpu.cdi_refresh", "CDI refresh at the start", "gpu")
def cdi_refresh(machine: Evidence) -> Outcome:
    """NVIDIA's container toolkit asks CUDA seconds after the start; on Blackwell under WSL2 this upset the driver."""
    if machine.wsl != 2 or all(capability < _BLACKWELL for capability in _capabilities(machine)):
        return skipped(say("this is no Blackwell card under WSL2"))
    where = next((folder for folder in _UNITS if machine.host.exists(f"{folder}/{_CDI}")), "")
    if not where or machine.host.link(f"{_UNITS[0]}/{_CDI}") == "/dev/null":
        return good(say("{unit} is off or not installed", unit=_CDI))
    found = say("{unit} is on: it may break CUDA until WSL is restarted (microsoft/WSL#14452)", unit=_CDI)
    command = f"sudo systemctl mask --now {_CDI.replace('.service', '.path')} {_CDI}"
    return note(found, say("if CUDA fails after the start of WSL: {command}", command=command))


@check("gpu.library", "NVIDIA library")
def library(machine: Evidence) -> Outcome:
    """A driver package of the distribution that comes before WSL's own library hides the card."""
    used = machine.gpus.library
    paths = [f"{folder}/libnvidia-ml.so.1" for folder in LIBRARY_FOLDERS if not folder.startswith(WSL_LIBRARIES)]
    others = [path for path in paths if machine.host.exists(path)]
    if "/stubs/" in used:
        remedy = say("remove CUDA's stubs folder from LD_LIBRARY_PATH")
        return problem(say("{path} is a stub, for linking only", path=used), remedy)
    if machine.wsl == 2 and others:
        removal = "sudo apt-get remove 'libnvidia-compute-*' 'nvidia-utils-*'"
        if used and not used.startswith(WSL_LIBRARIES):
            return problem(say("{path} is loaded instead of WSL's own", path=used), removal)
        found = say("besides WSL's own there is {path}: programs that load it find no card", path=others[0])
        return note(found, removal)
    if used:
        return good(used)
    if machine.gpus.samples:
        return unknown(say("not in the recording"))
    return skipped(say("none is in use"))


@check("gpu.cuda", "CUDA of the driver", "torch")
def cuda(machine: Evidence) -> Outcome:
    """A torch built for a newer major version of CUDA than the driver's does not start.

    One built for a newer minor version works in part.
    """
    driver = _identity(machine, "cuda_version")
    if not driver:
        return unknown(say("the driver does not report its CUDA version"))
    update = say("update the NVIDIA driver")
    if machine.wsl:
        update = say("update the NVIDIA driver in Windows, then run 'wsl --shutdown' there")
    for card, needed in _too_new(machine, driver):
        found = say("the driver supports CUDA {driver}; {card} needs {needed}", driver=driver, card=card, needed=needed)
        return problem(found, update)
    newer = [t for t in machine.torches if t.cuda and version(t.cuda)[:2] > version(driver)[:2]]
    late = [t for t in newer if version(t.cuda)[:1] > version(driver)[:1] or _needs_compiling(machine, t)]
    which = tuple(
        say("torch {version} (CUDA {cuda}) in {python}", version=t.version, cuda=t.cuda, python=t.python)
        for t in late or newer
    )
    if late:
        found = say("the driver supports CUDA {driver}, too old for {torches}", driver=driver, torches=which)
        return problem(found, update)
    if newer:
        found = say(
            "the driver supports CUDA {driver}: {torches} runs, except for code that must compile PTX",
            driver=driver,
            torches=which,
        )
        return note(found, update)
    return good(say("the driver supports CUDA {driver}; {torches}", driver=driver, torches=_torches(machine)))


def _too_new(machine: Evidence, cuda: str) -> Iterator[tuple[str, str]]:
    """Yield each kind of card that a version of CUDA does not support yet, and the first that does."""
    for capability in _capabilities(machine):
        first = FIRST_CUDA.get(capability, (0, 0))
        if version(cuda)[:2] < first:
            yield _sm(capability), f"{first[0]}.{first[1]}"


def _needs_compiling(machine: Evidence, facts: TorchFacts) -> bool:
    """Return whether a build has only intermediate code for a card, which an older driver cannot compile.

    Within a major version, newer builds run on older drivers, except for PTX:
    https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html
    """
    built = facts.architectures
    compiled = [name for name in built if name.startswith("sm_")]
    return any(runs_on(built, card) and not runs_on(compiled, card) for card in _capabilities(machine))


@check("torch.architecture", "torch's code for the card", "torch")
def architecture(machine: Evidence) -> Outcome:
    """A build without code for the card detects it, and fails at the first kernel."""
    built = [(t, card) for t in machine.torches for card in _capabilities(machine) if t.cuda and t.architectures]
    missing = [(torch, card) for torch, card in built if not runs_on(torch.architectures, card)]
    if missing:
        found: MessageLike = all_of(
            say("torch {version} in {python} has no {card}", version=t.version, python=t.python, card=_sm(capability))
            for t, capability in missing
        )
        if any(capability == _RTX_50 for _, capability in missing):
            found = say("{builds} (RTX 50 cards need CUDA 12.8 and torch 2.7)", builds=found)
        return problem(found, _WHEELS)
    for torch in machine.torches:
        if not torch.failure and not torch.cuda:
            found = say("torch {version} in {python} is built without CUDA", version=torch.version, python=torch.python)
            return note(found, _WHEELS)
    return good(say("torch has code for {cards}", cards=tuple(map(_sm, _capabilities(machine)))))


@check("torch.kernel", "A kernel runs", "torch")
def kernel(machine: Evidence) -> Outcome:
    """torch.cuda.is_available() is true even where no kernel can run."""
    failed = [t for t in machine.torches if t.failure or (t.cuda and not t.ran)]
    if not failed:
        return good(_torches(machine))
    found = all_of(say("{python}: {why}", python=t.python, why=_why(t)) for t in failed)
    if any("no kernel image" in t.kernel for t in failed):
        return problem(found, _WHEELS)
    restart = say("check whether nvidia-smi works; if it does not, restart the machine")
    return problem(found, in_windows("wsl --shutdown") if machine.wsl else restart)


def _why(facts: TorchFacts) -> MessageLike:
    silent = say("it computes wrong results") if facts.devices else say("torch sees no CUDA device")
    return facts.failure or facts.kernel or silent


@check("torch.speed", "Fast arithmetic", "torch")
def speed(machine: Evidence) -> Outcome:
    """TF32 makes float32 matrix products several times faster, with a mantissa of 10 bits; torch leaves it off."""
    ran = [t for t in machine.torches if t.ran]
    if not ran:
        return skipped(say("no torch runs on the card"))
    if any(not t.cudnn for t in ran):
        return note(say("torch finds no cuDNN"), _WHEELS)
    if all(t.tf32 for t in ran) or all(c < TF32_CAPABILITY for c in _capabilities(machine)):
        return good(f"cuDNN {ran[0].cudnn}")
    found = say("TF32 is off, torch's default; turn it on in your program if that computes in float32")
    return note(found, "torch.set_float32_matmul_precision('high'); torch.backends.cudnn.benchmark = True")


# https://docs.nvidia.com/cuda/wsl-user-guide/#known-limitations-for-linux-cuda-applications,
# https://github.com/microsoft/WSL/issues/8447, https://github.com/microsoft/WSL/issues/14078
@check("torch.pinned", "Pinned memory", "torch")
def pinned(machine: Evidence) -> Outcome:
    """Under WSL2 more pinned host memory than Windows allows fails as "CUDA out of memory" with VRAM free."""
    known = [t.pinned for t in machine.torches if t.pinned is not None]
    if not known:
        return skipped(say("measured under WSL2 only, which limits it"))
    taken, whole = min(known)
    if whole:
        return good(say("{taken_bytes} could be pinned", taken_bytes=taken))
    found = say("only {taken_bytes} can be pinned: more fails as CUDA out of memory with VRAM free", taken_bytes=taken)
    return note(found, say("pin_memory=False in data loaders, and no offloading to pinned memory"))


@check("torch.nightly", "torch for the nightly test", "gpu")
def nightly(machine: Evidence) -> Outcome:
    """The nightly test of the GPU's memory runs in a Python that has torch, and is skipped where there is none."""
    if machine.config.stress.schedule == "off":
        return skipped(say("the nightly test is off"))
    if machine.torch is None:
        return unknown(say("torch was not checked"))
    if machine.torches:
        return good(machine.torches[0].python)
    return note(machine.torch[0].failure, optional_packages.remedy("stress"))


@check("cuda.toolkit", "CUDA toolkit")
def toolkit(machine: Evidence) -> Outcome:
    """Compiling extensions takes a toolkit that matches torch's CUDA and supports the card."""
    installed = _installed_cuda(machine)
    if installed is None:
        return skipped(say("none in /usr/local/cuda; needed only for compiling"))
    if not version(installed):
        return unknown(say("{path} contains no version", path=_TOOLKIT))
    for card, needed in _too_new(machine, installed):
        found = say("CUDA {installed} cannot compile for {card}", installed=installed, card=card)
        url = "https://developer.nvidia.com/cuda-downloads"
        return problem(found, say("install CUDA {needed} or newer: {url}", needed=needed, url=url))
    for facts in machine.torches:
        if facts.cuda and version(facts.cuda)[:1] != version(installed)[:1]:
            found = say(
                "CUDA {installed}, but torch {version} is built with {cuda}: extensions will not compile",
                installed=installed,
                version=facts.version,
                cuda=facts.cuda,
            )
            return note(found, say("install CUDA {cuda} beside it and set CUDA_HOME", cuda=facts.cuda))
    return good(f"CUDA {installed}")


@check("gpu.desktop", "VRAM held by the desktop", "gpu")
def desktop(machine: Evidence) -> Outcome:
    """VRAM held by the desktop and WSLg is lost to training."""
    samples = machine.gpus.samples
    for gpu in samples:
        if gpu.used_bytes is not None and any(p.pid and p.name.lstrip("/") != "Xwayland" for p in gpu.processes):
            return skipped(say("programs here are using {resource} now", resource=f"gpu{gpu.index}"))
    found = all_of(
        say(
            "{resource}: {held_bytes} held although no program here uses it[ ({programs} in Windows)]",
            resource=f"gpu{gpu.index}",
            held_bytes=gpu.used_bytes,
            **({"programs": told} if (told := windows_programs(machine.programs_in_windows(gpu))) else {}),
        )
        for gpu in samples
        if gpu.used_bytes is not None and gpu.used_bytes >= DESKTOP_BYTES
    )
    if not found:
        return good(say("less than {most_bytes}", most_bytes=DESKTOP_BYTES))
    if not machine.wsl:
        return note(found, shows_who("nvidia-smi"))
    close = say("close browsers and games in Windows before training")
    if not any(p.name.endswith("Xwayland") for gpu in samples for p in gpu.processes):
        return note(found, close)
    return note(
        found,
        say(
            "if you need no graphical Linux programs, set guiApplications=false below [wsl2] in .wslconfig; {close}",
            close=close,
        ),
    )


def most_vram(machine: Evidence) -> int:
    """Return the memory of the largest card, in bytes."""
    return max((gpu.total_bytes or 0 for gpu in machine.gpus.samples), default=0)


def _installed_cuda(machine: Evidence) -> str | None:
    """Return the toolkit's version, empty where unknown; None without a toolkit."""
    text = machine.read(_TOOLKIT)
    if text is not None:
        found = text.partition('"cuda"')[2].partition('"version"')[2].split('"')
        return found[1] if len(found) > 1 else ""
    if not machine.host.exists(_NVCC):
        return None
    number = _HEADER_VERSION.search(machine.read(_HEADER) or "")
    return f"{int(number[1]) // 1000}.{int(number[1]) % 1000 // 10}" if number else ""


def _identity(machine: Evidence, name: str) -> str:
    return next((i[name] for i in machine.gpus.identities if i.get(name)), "")


def _capabilities(machine: Evidence) -> list[tuple[int, int]]:
    """Return each kind of card once: from NVML, else from torch."""
    texts = [i.get("compute_capability", "") for i in machine.gpus.identities]
    found = [(v[0], v[1]) for v in map(version, texts) if len(v) == 2]
    found = found or [capability for t in machine.torches for _, capability in t.devices]
    return list(dict.fromkeys(found))


def _torches(machine: Evidence) -> MessageLike:
    return all_of(
        say("torch {version} (CUDA {cuda})", version=t.version, cuda=t.cuda)
        if t.cuda
        else say("torch {version} (no CUDA)", version=t.version)
        for t in machine.torches
        if not t.failure
    )


def _sm(capability: tuple[int, int]) -> str:
    return f"sm_{capability[0]}{capability[1]}"
