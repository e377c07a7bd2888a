"""The framework of checks: facts of the machine, each read once, those of users' torches, and the outcome of a check.

Each check is declared once, by ``@check``, with an id that never changes.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from wslgpud.advise.wslconfig import files
from wslgpud.client import DaemonClient, Unanswered
from wslgpud.config import SYSTEM_STATE, Config
from wslgpud.host import Host, NoData, SourceError
from wslgpud.model import GpuProcess, GpuSample, Reading
from wslgpud.probes import interop
from wslgpud.probes.wsl_config import WSL_CONF, WSLCONFIG, Parsed, WslFile, parse
from wslgpud.security import safe_files
from wslgpud.security.run_as import Command, environment, run
from wslgpud.security.shapes import Shape, flag, maybe, number, pair, record, rows, text, uint
from wslgpud.sources import gpu as gpu_source
from wslgpud.sources import parse_uint, windows
from wslgpud.sources.disk import Mount, mounts
from wslgpud.sources.memory import sizes
from wslgpud.sources.wsl import generation
from wslgpud.stress.find_python import NoTorch, find_python
from wslgpud.words import Fact, Message, MessageLike, cause, say
from wslgpud.words.units import one_line

_ABOUT = record({**dict.fromkeys(("version", "windows", "language"), text), "administrator": flag})
#: the parts of a daemon's status that are used; the service's account, which root need not trust, owns the socket
_STATUS = record(
    {},
    {
        "sources": rows(record({"name": text, "health": text})),
        "gpus": rows(record({"uuid": text}, {"in_windows": rows(record({"name": text, "used_bytes": maybe(uint)}))})),
        "windows": maybe(record({}, {"memory_total_bytes": maybe(number)})),
    },
)
PROBE = Path(__file__).with_name("torch_probe.py")
#: a cold import of torch from a slow disk takes this long, a hung driver forever
ASK_SECONDS = 60.0
_ANSWER: dict[str, Shape] = {
    **dict.fromkeys(("version", "cuda", "kernel"), text),
    **dict.fromkeys(("architectures", "capabilities"), rows(text)),
    "ran": flag,
    "tf32": maybe(flag),
    "cudnn": maybe(uint),
    "pinned": maybe(pair(uint, flag)),
}
_FACTS = record(_ANSWER)


@dataclass(frozen=True, slots=True)
class TorchFacts:
    """One Python's answer about its torch; ``failure`` is why there is none, ``kernel`` why no kernel ran.

    ``python`` is empty where none was found.

    ``pinned`` is the host memory that could be pinned, in bytes, and whether the limit was the probe's own.
    """

    python: str
    version: str = ""
    cuda: str = ""
    architectures: Sequence[str] = ()
    #: the compute capability of each CUDA device, like 12.0
    capabilities: Sequence[str] = ()
    kernel: str = ""
    ran: bool = False
    tf32: bool | None = None
    cudnn: int | None = None
    pinned: Sequence[int] | None = None
    failure: MessageLike = ""


def ask(named: str, environ: Mapping[str, str], state_folder: Path, seconds: float = ASK_SECONDS) -> TorchFacts:
    """Query a Python, "" being the one that trains here; one that hangs is killed and reported."""
    try:
        found = find_python(named, environ, state_folder)
    except NoTorch as error:
        return TorchFacts(named, failure=error.message)
    python = str(found.path)
    try:
        kept = {k: v for k, v in environ.items() if not k.startswith("PYTHON")}
        variables = {**environment(found.account, kept), "PYTHONDONTWRITEBYTECODE": "1"}
        code, output, complaints = run(Command([python], variables, found.account), seconds, script=PROBE)
    except TimeoutError:
        return TorchFacts(python, failure=say("did not answer within {limit_seconds}", limit_seconds=seconds))
    except OSError as error:
        return TorchFacts(python, failure=say("cannot be started: {why}", why=cause(error)))
    return _facts(python, output, complaints, code)


def _facts(python: str, output: str, complaints: str, code: int) -> TorchFacts:
    with suppress(IndexError, ValueError):
        if _FACTS(said := safe_files.parsed(output.strip().splitlines()[-1])):
            return TorchFacts(python, **{name: said[name] for name in _ANSWER})
    last = complaints.strip().splitlines()[-1:]
    why = one_line(last[0]) if last else say("ended with status {status}", status=code)
    return TorchFacts(python, failure=why)


class Gpus(NamedTuple):
    """NVML's answers: the cards, their identity by label name, the library; or why there are none.

    ``lost`` maps the index of each card that the driver counts and that does not answer to NVML's error; ``divided``
    are the indexes of those with MIG, ``unlisted`` of those whose programs the driver does not list; ``denied`` says
    that NVML refused some call for lack of rights.
    """

    samples: tuple[GpuSample, ...] = ()
    identities: tuple[dict[str, str], ...] = ()
    library: str = ""
    error: MessageLike = ""
    lost: Mapping[str, str] = MappingProxyType({})
    divided: frozenset[str] = frozenset()
    unlisted: frozenset[str] = frozenset()
    denied: bool = False


class WslConfig(NamedTuple):
    """One of WSL's files; ``parsed`` is None if it is missing, ``error`` says why it cannot be read."""

    path: str = ""
    parsed: Parsed | None = None
    error: MessageLike = ""


class Evidence:
    """The facts of a machine. ``torch`` is None where it was not queried."""

    def __init__(self, host: Host, config: Config, torch: Sequence[TorchFacts] | None, state_folder: str) -> None:
        self.host, self.config, self.torch, self.state_folder = host, config, torch, state_folder
        self.torches = tuple(facts for facts in torch or () if facts.python)

    def read(self, path: str) -> str | None:
        """Return the text of a file, or None if it is missing.

        Raises:
            SourceError: it exists and cannot be read.
        """
        try:
            return self.host.read(path)
        except NoData:
            return None

    def number(self, path: str) -> int | None:
        """Return the number in a file, or None if it is missing or holds none."""
        return parse_uint((self.read(path) or "").strip())

    @cached_property
    def daemon(self) -> DaemonClient | None:
        """The running daemon, whether it answers this user or not."""
        folders = dict.fromkeys((Path(self.state_folder), SYSTEM_STATE)) if self.host.live else ()
        return next((daemon for daemon in map(DaemonClient.of, folders) if daemon and daemon.pid()), None)

    @cached_property
    def daemon_status(self) -> dict[str, Any]:
        """The status of the running daemon; empty where none answers, or something else does."""
        with suppress(Unanswered):
            if self.daemon and _STATUS(status := self.daemon.status()):
                return status
        return {}

    @cached_property
    def daemon_sources(self) -> dict[str, str]:
        """The health of each source of the running daemon, as it says itself; empty where none answers."""
        return {source["name"]: source["health"] for source in self.daemon_status.get("sources", ())}

    @cached_property
    def daemon_rights(self) -> tuple[int, int]:
        """The user of the running daemon, and its effective capabilities as bits.

        Raises:
            NoData: they cannot be read.
        """
        status = self.daemon and self.read(f"/proc/{self.daemon.pid()}/status")
        found = re.search(r"^Uid:\s+(\d+).*^CapEff:\s+([0-9a-f]+)$", status or "", re.MULTILINE | re.DOTALL)
        if found is None:
            raise NoData(say("the daemon's permissions cannot be read"))
        return int(found[1]), int(found[2], 16)

    @cached_property
    def windows_ram(self) -> int | None:
        """Windows' RAM, as the daemon or the recording knows it; else twice ours where that is WSL's default."""
        if self.host.recorded:
            with suppress(NoData):
                return self.windows_facts.sizes.get(windows.TOTAL)
        if total := (self.daemon_status.get("windows") or {}).get("memory_total_bytes"):
            return int(total)
        file = self.wslconfig
        limited = file.error or (file.parsed and file.parsed.get("wsl2.memory") is not None)
        return None if limited else 2 * self.memory["MemTotal"]

    def programs_in_windows(self, gpu: GpuSample) -> tuple[GpuProcess, ...]:
        """Return Windows' largest programs on a card, as the daemon or the recording knows them."""
        if self.host.recorded:
            with suppress(NoData):
                adapters = dict(windows.labelled(self.windows_facts.adapters))
                return adapters[gpu.name].programs if gpu.name in adapters else ()
        known = {card["uuid"]: card.get("in_windows", ()) for card in self.daemon_status.get("gpus", ())}
        return tuple(GpuProcess(0, one["name"], one["used_bytes"]) for one in known.get(gpu.uuid, ()))

    @cached_property
    def wsl(self) -> int:
        """1 or 2, or 0 for plain Linux."""
        return generation(self.host)

    @cached_property
    def release(self) -> str:
        """The kernel's release, like 6.6.87.2-microsoft-standard-WSL2. Raises NoData: it is not told."""
        return self.host.read("/proc/sys/kernel/osrelease").strip()

    @cached_property
    def running(self) -> tuple[str, ...]:
        """The kernel's name of each process visible to this user."""
        return tuple(self.host.read_optional(f"/proc/{name}/comm").strip() for name in self.host.names("/proc"))

    @cached_property
    def memory(self) -> dict[str, int]:
        """/proc/meminfo in bytes, MemTotal at least."""
        return sizes(self.host)

    @cached_property
    def mounts(self) -> list[Mount]:
        """All mounts."""
        return mounts(self.host.read("/proc/self/mounts"))

    @cached_property
    def gpus(self) -> Gpus:
        """NVML's answers, from a child process."""
        source = gpu_source.GpuSource(self.host, self.config)
        try:
            sample, own = source.read(), source.own()
        except (NoData, SourceError) as error:
            return Gpus(error=error.message)
        finally:
            source.close()
        identities = tuple(_labels(r) for r in sample.readings if r.spec is gpu_source.INFO)
        # In a recording, NVML's "library" is the file with its answers.
        used = (_labels(r)["path"] for r in own if r.spec is gpu_source.LIBRARY and self.host.live)
        divided = frozenset(r.labels[0] for r in sample.readings if r.spec is gpu_source.MIG and r.value)
        cards, listed = sample.gpus or (), {r.labels[0] for r in sample.readings if r.spec is gpu_source.PROCESSES}
        unlisted = frozenset(str(gpu.index) for gpu in cards) - listed
        denied = any(r.spec is gpu_source.ERRORS and r.labels == ("NO_PERMISSION",) for r in own)
        return Gpus(cards, identities, next(used, ""), "", source.lost, divided, unlisted, denied)

    @cached_property
    def wslconfig(self) -> WslConfig:
        """The Windows user's .wslconfig."""
        return self._wsl_file(WSLCONFIG)

    @cached_property
    def wsl_conf(self) -> WslConfig:
        """The distro's /etc/wsl.conf."""
        return self._wsl_file(WSL_CONF)

    def _wsl_file(self, file: WslFile) -> WslConfig:
        try:
            path, document = files.named(self.host, None, file, missing=True)
        except files.NotFound as error:
            return WslConfig(error=error.message)
        return WslConfig(path, parse(document.text, path, file) if self.host.exists(path) else None)

    @cached_property
    def powershell(self) -> dict[str, Any]:
        """Windows PowerShell's version and its response time in ``seconds``; or its ``error``."""
        began = time.monotonic()
        try:
            said = interop.run(self.host, interop.ABOUT)
        except (NoData, SourceError) as error:
            return {"error": error.message}
        with suppress(ValueError):
            if _ABOUT(about := safe_files.parsed(said)):
                return {**about, "seconds": time.monotonic() - began}
        return {"error": say("PowerShell answered {text}", text=repr(one_line(said)))}

    @cached_property
    def windows_answer(self) -> dict[str, Any]:
        """The Windows probe's raw answer; without one, the reason for each part.

        Raises:
            NoData: Windows cannot be queried, or is not to be.
        """
        with closing(windows.WindowsSource(self.host, self.config)) as source:
            try:
                return source.ask()
            except SourceError as error:
                parts = ("memory", "system", "gpu", "vm", "adapters", "programs")
                return {"missing": dict.fromkeys(parts, error.message)}

    @cached_property
    def windows_facts(self) -> windows.Facts:
        """The parsed answer."""
        return windows.from_probe(self.windows_answer)


def _labels(reading: Reading) -> dict[str, str]:
    return dict(zip(reading.spec.labels, reading.labels, strict=True))


State = Literal["good", "note", "problem", "not applicable", "could not tell"]


class Outcome(NamedTuple):
    """The finding of a check, and the command or setting that fixes it (empty when all is well)."""

    state: State
    found: MessageLike
    remedy: MessageLike = ""


def _outcome(state: State, found: MessageLike, remedy: MessageLike = "", /, **facts: Fact) -> Outcome:
    """Return an outcome; ``found`` is a message, or a template with these facts; not foreign text."""
    return Outcome(state, Message(found, facts) if isinstance(found, str) else found, remedy)


good = partial(_outcome, "good")
#: it works, but could be better
note = partial(_outcome, "note")
#: it does harm, or will
problem = partial(_outcome, "problem")
#: the check does not apply to this machine
skipped = partial(_outcome, "not applicable")
unknown = partial(_outcome, "could not tell")

#: What a machine must have for a check to apply, see ``lacking``. The checks named windows.* are those of ``doctor
#: --windows``, which takes seconds and has side effects. Of them a recording may hold "probe" (through PowerShell,
#: where it is live), and nothing else that is PowerShell's.
Need = Literal["wsl", "live", "gpu", "torch", "powershell", "probe"]


class CheckResult(NamedTuple):
    """A check and its outcome."""

    id: str
    title: MessageLike
    state: State
    found: MessageLike
    why: MessageLike
    remedy: MessageLike = ""


Look = Callable[[Evidence], Outcome]


class Check(NamedTuple):
    """A check: its title and its importance, as templates."""

    id: str
    title: str
    why: str
    needs: tuple[Need, ...]
    look: Look


#: in the order in which they are shown
CHECKS: list[Check] = []


def check(name: str, title: str, *needs: Need) -> Callable[[Look], Look]:
    """Register a function as a check; ``needs`` lists the conditions under which it applies.

    Its docstring says why it matters to people who train models, and is shown with the finding.
    """

    def declare(function: Look) -> Look:
        CHECKS.append(Check(name, title, " ".join((function.__doc__ or "").split()), needs, function))
        return function

    return declare


def in_windows(command: str) -> Message:
    """Return a command to run in Windows."""
    return say("{command}   # in Windows", command=command)
