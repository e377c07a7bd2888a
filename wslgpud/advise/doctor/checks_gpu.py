"""The GPU: its driver, the library, torch, and the holders of its memory."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from wslgpud import optional_packages
from wslgpud.advise.doctor.checking import Evidence, Outcome, check, good, in_windows, note, problem, skipped, unknown
from wslgpud.advise.doctor.checks_wsl import version
from wslgpud.risk.attribution import windows_programs
from wslgpud.sources.gpu import LIBRARY_FOLDERS, explain_lost, explain_unread
from wslgpud.words import TEMPLATES, Message, MessageLike, all_of, filled, say, template

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
_ARCHITECTURE = re.compile(r"(sm|compute)_(\d+)(\d)[a-z]?")
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
    gpus, card = machine.gpus, template("{name}[ ({total_bytes})]")
    if not gpus.samples:
        return _no_card(machine)
    cards = tuple(filled(card, {"name": gpu.name, "total_bytes": gpu.total_bytes}) for gpu in gpus.samples)
    driver = _identity(machine, "driver_version")
    seen = filled(template("{cards}[, driver {version}]"), {"cards": cards, "version": driver})
    # Cards that do not answer while others do: NVIDIA/dcgm-exporter#604, meta-llama/llama-models#200.
    if gpus.lost:
        named = template("{resource} ({error})")
        lost = tuple(Message(named, {"resource": f"gpu{n}", "error": f"NVML_ERROR_{e}"}) for n, e in gpus.lost.items())
        remedy = explain_lost(next(iter(gpus.lost.values())), wsl=machine.wsl == 2)
        return problem("{lost} does not answer; {cards}", remedy, lost=lost, cards=seen)
    for unread in (gpu for gpu in gpus.samples if gpu.total_bytes is None):
        if why := explain_unread(mig=str(unread.index) in gpus.divided, denied=gpus.denied):
            return note("{cards}: {why}", Message(TEMPLATES["unread_memory"]["remedy"]), cards=seen, why=why)
    return good(seen)


def _no_card(machine: Evidence) -> Outcome:
    if machine.wsl == 2 and not machine.host.exists("/dev/dxg"):
        enable = say(
            "remove gpuSupport=false from .wslconfig or install the NVIDIA driver in Windows, "
            "then run 'wsl --shutdown' there"
        )
        return problem("WSL offers no GPU (/dev/dxg is missing)", Message(_TCC, {"remedy": enable}))
    why = machine.gpus.error
    facts = why.facts if isinstance(why, Message) else {}
    meaning, remedy = facts.get("meaning"), facts.get("remedy")
    if isinstance(meaning, (str, Message)) and isinstance(remedy, Message):
        return Outcome("problem", meaning, remedy)
    if machine.wsl == 2:
        install = say("install the NVIDIA driver in Windows, then run 'wsl --shutdown' there")
        return Outcome("problem", why, Message(_TCC, {"remedy": install}))
    return Outcome("not applicable", why)


# https://github.com/microsoft/WSL/issues/40678 (64 GB of RAM, 96 GB of VRAM),
# https://github.com/victorchall/EveryDream2trainer/issues/163 (16 and 48 GB), ollama/ollama#8825
@check("gpu.page_file", "VRAM beside RAM", "gpu", "wsl")
def page_file(machine: Evidence) -> Outcome:
    """Windows promises room for the whole card in RAM and page file; without it every CUDA program fails in WSL2."""
    vram, ram = most_vram(machine), machine.windows_ram or machine.memory["MemTotal"]
    if vram <= ram:
        return good("{vram_bytes} of VRAM; Windows has at least {ram_bytes} of RAM", vram_bytes=vram, ram_bytes=ram)
    return note(
        "{vram_bytes} of VRAM; Windows may have only {ram_bytes} of RAM: then every CUDA program fails unless its page "
        "file is as large as the VRAM",
        say("{fix}; {command} compares them", fix=PAGE_FILE, command="wslgpud doctor --windows"),
        vram_bytes=vram,
        ram_bytes=ram,
    )


#: the first Blackwell card: https://developer.nvidia.com/cuda-gpus
_BLACKWELL = (10, 0)
_CDI = "nvidia-cdi-refresh.service"
_UNITS = ("/etc/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system")


# https://github.com/microsoft/WSL/issues/14452
@check("gpu.cdi_refresh", "CDI refresh at the start", "gpu", "wsl")
def cdi_refresh(machine: Evidence) -> Outcome:
    """NVIDIA's container toolkit asks CUDA seconds after the start; on Blackwell under WSL2 this upset the driver."""
    if all(capability < _BLACKWELL for capability in _capabilities(machine)):
        return skipped("this is no Blackwell card under WSL2")
    installed = any(machine.host.exists(f"{folder}/{_CDI}") for folder in _UNITS)
    if not installed or machine.host.link(f"{_UNITS[0]}/{_CDI}") == "/dev/null":
        return good("{unit} is off or not installed", unit=_CDI)
    command = f"sudo systemctl mask --now {_CDI.replace('.service', '.path')} {_CDI}"
    remedy = say("if CUDA fails after the start of WSL: {command}", command=command)
    return note("{unit} is on: it may break CUDA until WSL is restarted (microsoft/WSL#14452)", remedy, unit=_CDI)


@check("gpu.library", "NVIDIA library")
def library(machine: Evidence) -> Outcome:
    """A driver package of the distribution that comes before WSL's own library hides the card."""
    used, removal = machine.gpus.library, "sudo apt-get remove 'libnvidia-compute-*' 'nvidia-utils-*'"
    paths = [f"{folder}/libnvidia-ml.so.1" for folder in LIBRARY_FOLDERS if not folder.startswith(WSL_LIBRARIES)]
    others = [path for path in paths if machine.host.exists(path)]
    if "/stubs/" in used:
        remedy = say("remove CUDA's stubs folder from LD_LIBRARY_PATH")
        return problem("{path} is a stub, for linking only", remedy, path=used)
    if machine.wsl == 2 and others:
        if used and not used.startswith(WSL_LIBRARIES):
            return problem("{path} is loaded instead of WSL's own", removal, path=used)
        return note("besides WSL's own there is {path}: programs that load it find no card", removal, path=others[0])
    if used:
        return Outcome("good", used)
    return unknown("not in the recording") if machine.gpus.samples else skipped("none is in use")


@check("gpu.cuda", "CUDA of the driver", "gpu", "torch")
def cuda(machine: Evidence) -> Outcome:
    """A torch built for a newer major version of CUDA than the driver's does not start.

    One built for a newer minor version works in part.
    """
    driver = _identity(machine, "cuda_version")
    if not driver:
        return unknown("the driver does not report its CUDA version")
    update = say("update the NVIDIA driver")
    if machine.wsl:
        update = say("update the NVIDIA driver in Windows, then run 'wsl --shutdown' there")
    for card, needed in _too_new(machine, driver):
        found = say("the driver supports CUDA {driver}; {card} needs {needed}", driver=driver, card=card, needed=needed)
        return problem(found, update)
    newer = [t for t in machine.torches if t.cuda and version(t.cuda)[:2] > version(driver)[:2]]
    late = [t for t in newer if version(t.cuda)[:1] > version(driver)[:1] or _needs_compiling(machine, t.architectures)]
    which = tuple(
        say("torch {version} (CUDA {cuda}) in {python}", version=t.version, cuda=t.cuda, python=t.python)
        for t in late or newer
    )
    facts = {"driver": driver, "torches": which or _torches(machine)}
    if late:
        return problem("the driver supports CUDA {driver}, too old for {torches}", update, **facts)
    if newer:
        text = template("the driver supports CUDA {driver}: {torches} runs, except for code that must compile PTX")
        return note(text, update, **facts)
    return good(filled(template("the driver supports CUDA {driver}[; {torches}]"), facts))


def _too_new(machine: Evidence, cuda: str) -> Iterator[tuple[str, str]]:
    """Yield each kind of card that a version of CUDA does not support yet, and the first that does."""
    for capability in _capabilities(machine):
        first = FIRST_CUDA.get(capability, (0, 0))
        if version(cuda)[:2] < first:
            yield _sm(capability), f"{first[0]}.{first[1]}"


def _needs_compiling(machine: Evidence, built: Sequence[str]) -> bool:
    """Return whether a build has only intermediate code for a card, which an older driver cannot compile.

    Within a major version, newer builds run on older drivers, except for PTX:
    https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html
    """
    compiled = [name for name in built if name.startswith("sm_")]
    return any(runs_on(built, card) and not runs_on(compiled, card) for card in _capabilities(machine))


def runs_on(architectures: Iterable[str], capability: tuple[int, int]) -> bool:
    """Return whether a build for these architectures (sm_90, compute_90) has code for a card.

    Compiled code (sm_XY) runs on cards of the same major version and no lower minor one; intermediate code (compute_XY)
    on every later one: https://docs.nvidia.com/cuda/blackwell-compatibility-guide/.
    """
    for match in filter(None, map(_ARCHITECTURE.fullmatch, architectures)):
        built = int(match[2]), int(match[3])
        if built <= capability and (match[1] == "compute" or built[0] == capability[0]):
            return True
    return False


@check("torch.architecture", "torch's code for the card", "gpu", "torch")
def architecture(machine: Evidence) -> Outcome:
    """A build without code for the card detects it, and fails at the first kernel."""
    cards = _capabilities(machine)
    built = [t for t in machine.torches if t.cuda and t.architectures]
    missing = [(t, card) for t in built for card in cards if not runs_on(t.architectures, card)]
    if missing:
        builds = all_of(
            say("torch {version} in {python} has no {card}", version=t.version, python=t.python, card=_sm(card))
            for t, card in missing
        )
        if any(card == _RTX_50 for _, card in missing):
            return problem("{builds} (RTX 50 cards need CUDA 12.8 and torch 2.7)", _WHEELS, builds=builds)
        return Outcome("problem", builds, _WHEELS)
    for t in machine.torches:
        if not t.failure and not t.cuda:
            text = template("torch {version} in {python} is built without CUDA")
            return note(text, _WHEELS, version=t.version, python=t.python)
    if not built or not cards:
        return unknown("torch was not checked")
    return good("torch has code for {cards}", cards=tuple(map(_sm, cards)))


@check("torch.kernel", "A kernel runs", "gpu", "torch")
def kernel(machine: Evidence) -> Outcome:
    """torch.cuda.is_available() is true even where no kernel can run."""
    failed = [t for t in machine.torches if t.failure or (t.cuda and not t.ran)]
    if not failed:
        ran = any(t.ran for t in machine.torches)
        return Outcome("good", _torches(machine)) if ran else skipped("no torch runs on the card")
    wrong, blind = say("it computes wrong results"), say("torch sees no CUDA device")
    whys = [(t.python, t.failure or t.kernel or (wrong if t.capabilities else blind)) for t in failed]
    found = all_of(say("{python}: {why}", python=python, why=why) for python, why in whys)
    remedy: MessageLike = say("check whether nvidia-smi works; if it does not, restart the machine")
    if any("no kernel image" in t.kernel for t in failed):
        remedy = _WHEELS
    elif machine.wsl:
        remedy = in_windows("wsl --shutdown")
    return Outcome("problem", found, remedy)


@check("torch.speed", "Fast arithmetic", "gpu", "torch")
def speed(machine: Evidence) -> Outcome:
    """TF32 makes float32 matrix products several times faster, with a mantissa of 10 bits; torch leaves it off."""
    ran = [t for t in machine.torches if t.ran]
    if not ran:
        return skipped("no torch runs on the card")
    if any(not t.cudnn for t in ran):
        return note("torch finds no cuDNN", _WHEELS)
    if all(t.tf32 for t in ran) or all(c < TF32_CAPABILITY for c in _capabilities(machine)):
        return Outcome("good", f"cuDNN {ran[0].cudnn}")
    return note(
        "TF32 is off, torch's default; turn it on in your program if that computes in float32",
        "torch.set_float32_matmul_precision('high'); torch.backends.cudnn.benchmark = True",
    )


# https://docs.nvidia.com/cuda/wsl-user-guide/#known-limitations-for-linux-cuda-applications,
# https://github.com/microsoft/WSL/issues/8447, https://github.com/microsoft/WSL/issues/14078
@check("torch.pinned", "Pinned memory", "gpu", "torch")
def pinned(machine: Evidence) -> Outcome:
    """Under WSL2 more pinned host memory than Windows allows fails as "CUDA out of memory" with VRAM free."""
    known = [t.pinned for t in machine.torches if t.pinned is not None]
    if not known:
        return skipped("measured under WSL2 only, which limits it")
    taken, whole = min(map(tuple, known))
    if whole:
        return good("{taken_bytes} could be pinned", taken_bytes=taken)
    remedy = say("pin_memory=False in data loaders, and no offloading to pinned memory")
    text = template("only {taken_bytes} can be pinned: more fails as CUDA out of memory with VRAM free")
    return note(text, remedy, taken_bytes=taken)


@check("torch.nightly", "torch for the nightly test", "gpu")
def nightly(machine: Evidence) -> Outcome:
    """The nightly test of the GPU's memory runs in a Python that has torch, and is skipped where there is none."""
    if machine.config.stress.schedule == "off":
        return skipped("the nightly test is off")
    if machine.torch is None:
        return unknown("torch was not checked")
    python, failure = machine.torch[0].python, machine.torch[0].failure
    return Outcome("note", failure, optional_packages.remedy("stress")) if failure else Outcome("good", python)


@check("cuda.toolkit", "CUDA toolkit")
def toolkit(machine: Evidence) -> Outcome:
    """Compiling extensions takes a toolkit that matches torch's CUDA and supports the card."""
    installed = _installed_cuda(machine)
    if installed is None:
        return skipped("none in /usr/local/cuda; needed only for compiling")
    if not version(installed):
        return unknown("{path} contains no version", path=_TOOLKIT)
    for card, needed in _too_new(machine, installed):
        url = "https://developer.nvidia.com/cuda-downloads"
        remedy = say("install CUDA {needed} or newer: {url}", needed=needed, url=url)
        return problem("CUDA {installed} cannot compile for {card}", remedy, installed=installed, card=card)
    for facts in machine.torches:
        if facts.cuda and version(facts.cuda)[:1] != version(installed)[:1]:
            return note(
                "CUDA {installed}, but torch {version} is built with {cuda}: extensions will not compile",
                say("install CUDA {cuda} beside it and set CUDA_HOME", cuda=facts.cuda),
                installed=installed,
                version=facts.version,
                cuda=facts.cuda,
            )
    return Outcome("good", f"CUDA {installed}")


@check("gpu.desktop", "VRAM held by the desktop", "gpu")
def desktop(machine: Evidence) -> Outcome:
    """VRAM held by the desktop and WSLg is lost to training."""
    unlisted = machine.gpus.unlisted
    known = [gpu for gpu in machine.gpus.samples if gpu.used_bytes is not None and str(gpu.index) not in unlisted]
    if not known:
        return unknown("the driver does not report how much is in use, or by which programs")
    for gpu in known:
        if any(p.pid and p.name.lstrip("/") != "Xwayland" for p in gpu.processes):
            return skipped("programs here are using {resource} now", resource=f"gpu{gpu.index}")
    held = template("{resource}: {held_bytes} held although no program here uses it[ ({programs} in Windows)]")
    found = tuple(
        filled(
            held,
            {
                "resource": f"gpu{gpu.index}",
                "held_bytes": gpu.used_bytes,
                "programs": windows_programs(machine.programs_in_windows(gpu)),
            },
        )
        for gpu in known
        if (gpu.used_bytes or 0) >= DESKTOP_BYTES
    )
    if not found:
        return good("less than {most_bytes}", most_bytes=DESKTOP_BYTES)
    if not machine.wsl:
        return note(all_of(found), say("{command}   # shows who", command="nvidia-smi"))
    remedy = say("close browsers and games in Windows before training")
    if any(p.name.endswith("Xwayland") for gpu in machine.gpus.samples for p in gpu.processes):
        remedy = say(
            "if you need no graphical Linux programs, set guiApplications=false below [wsl2] in .wslconfig; {close}",
            close=remedy,
        )
    return note(all_of(found), remedy)


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
    known = [i["compute_capability"] for i in machine.gpus.identities if i.get("compute_capability")]
    known = known or [capability for t in machine.torches for capability in t.capabilities]
    return list(dict.fromkeys((v[0], v[1]) for v in map(version, known) if len(v) == 2))


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
