"""The Windows side of WSL2: Windows' memory, its virtual machine, its view of the GPUs.

Read either from the JSON of the probe or from windows_exporter.
"""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from wslgpud.host import NoData, RecordedHost, SourceError
from wslgpud.metrics import MetricSpec, NameLimit, gauge
from wslgpud.model import GpuProcess, Number, RamState, Reading, Sample
from wslgpud.probes import interop
from wslgpud.probes.supervisor import ProbeDown, Supervisor
from wslgpud.security import http_client, safe_files
from wslgpud.security.redaction import address, parts, without
from wslgpud.sources import Source, page_samples, parse_uint, table
from wslgpud.sources import readings as known
from wslgpud.words import cause, say
from wslgpud.words.units import one_line

#: a busy Windows answers within a second; the first answer includes the start of PowerShell and WMI
TIMEOUT_SECONDS, START_TIMEOUT_SECONDS = 15.0, 45.0
#: how often to check whether interop has come back
INTEROP_CHECK_SECONDS = 60.0
EXPORTER_SECONDS = 4.0
#: where its memory shrinks, Windows is queried more often, to get this many answers before exhaustion
FASTEST_SECONDS, ANSWERS_BEFORE_END = 2.0, 8
#: a page with all collectors of a busy server has about 2 MB
MAX_BYTES = 8 << 20

TOTAL = gauge("windows_memory_total_bytes", "RAM of Windows, which is the host.")
AVAILABLE = gauge(
    "windows_memory_available_bytes", "RAM that Windows can still hand out, to programs and to this virtual machine."
)
COMMITTED = gauge(
    "windows_memory_committed_bytes",
    "Memory that Windows has committed; at the limit its programs fail, whether RAM is free or not.",
)
COMMIT_LIMIT = gauge(
    "windows_memory_commit_limit_bytes", "Windows' commit limit: RAM and page files at their present size."
)
POOL = gauge(
    "windows_memory_pool_nonpaged_bytes",
    "RAM held permanently by Windows' kernel and drivers; steady growth is a driver leak.",
)
VM = gauge("windows_vm_resident_bytes", "Windows' RAM held by the process of WSL's virtual machine (VmmemWSL).")
VM_UNRETURNED = gauge(
    "windows_vm_unreturned_bytes",
    "Of that, memory that Linux does not use: freed here, not yet returned to Windows (see autoMemoryReclaim).",
)
#: Their names hold that of the Windows user, or of the program that opened one.
_SESSION_NAMES = NameLimit("session of containers", "session", 8, summed=True)
CONTAINERS = gauge(
    "windows_containers_resident_bytes",
    "Windows' RAM held by a session of WSL's containers (wslc), a virtual machine of its own beside this one.",
    "session",
    names=(_SESSION_NAMES,),
)
GPU_SIZE = gauge("windows_gpu_dedicated_size_bytes", "Memory on the card, as Windows counts it.", "adapter")
GPU_DEDICATED = gauge("windows_gpu_dedicated_bytes", "Memory in use on the card, by all programs.", "adapter")
GPU_SHARED = gauge(
    "windows_gpu_shared_bytes",
    "Windows' RAM in use for the card; if it grows while the card is full, VRAM has been moved out, and programs "
    "become many times slower.",
    "adapter",
)
GPU_COMMITTED = gauge(
    "windows_gpu_committed_bytes", "Memory committed to programs for the card, on it or not.", "adapter"
)
#: Names of programs are chosen by whoever uses Windows.
_PROGRAM_NAMES = NameLimit("Windows program", "program", 24, summed=True)
GPU_PROGRAM = gauge(
    "windows_gpu_program_bytes",
    "Memory on the card in use by a Windows program, of the few that hold most; what programs share counts for each.",
    "adapter",
    "program",
    names=(_PROGRAM_NAMES,),
)

#: Metric -> its name in the probe's answer.
_OF_WINDOWS = {
    TOTAL: "TotalVisibleBytes",
    AVAILABLE: "AvailableBytes",
    COMMITTED: "CommittedBytes",
    COMMIT_LIMIT: "CommitLimit",
    POOL: "PoolNonpagedBytes",
}
_OF_ADAPTERS = {
    GPU_SIZE: "DedicatedVideoMemory",
    GPU_DEDICATED: "DedicatedUsage",
    GPU_SHARED: "SharedUsage",
    GPU_COMMITTED: "TotalCommitted",
}
#: windows_exporter's name -> the probe's
_EXPORTED = {
    "windows_memory_physical_total_bytes": "TotalVisibleBytes",
    "windows_memory_available_bytes": "AvailableBytes",
    "windows_memory_committed_bytes": "CommittedBytes",
    "windows_memory_commit_limit": "CommitLimit",
    "windows_memory_pool_nonpaged_bytes": "PoolNonpagedBytes",
    "windows_gpu_dedicated_video_memory_size_bytes": "DedicatedVideoMemory",
    "windows_gpu_adapter_memory_dedicated_bytes": "DedicatedUsage",
    "windows_gpu_adapter_memory_shared_bytes": "SharedUsage",
    "windows_gpu_adapter_memory_committed_bytes": "TotalCommitted",
    "windows_process_working_set_bytes": "WorkingSet",
    "windows_process_private_bytes": "Private",
}
_INSTANCE = re.compile(r"(?:pid_\d+_)?luid_0x([0-9a-f]+)_0x([0-9a-f]+)_phys_\d+", re.IGNORECASE)
# Anchored at the start of a name: otherwise a long word without "=" takes quadratic time, in which no other Python
# thread runs.
_LABEL = re.compile(r'(?<!\w)(\w{1,60})="((?:[^"\\]|\\.)*)"')
#: limit of cards with a name or a use; each becomes five series that are kept for years
_MAX_ADAPTERS = 16
_NAME_CHARACTERS = 80
#: the programs shown of each card, and the least that one holds; the probe's own limit is for all cards together
MAX_PROGRAMS, MIN_PROGRAM_BYTES = 8, 64 << 20
_PROGRAM_CHARACTERS = 40
#: the process of a session of WSL's containers: https://github.com/microsoft/WSL/discussions/40942
_SESSION = re.compile(r"vmmem(wslc-.+)", re.IGNORECASE)
_MAX_SESSIONS = 8
#: the processes of virtual machines: programs in WSL's own do not run in Windows
_VIRTUAL_MACHINES = frozenset({"vmmem", "vmmemwsl", "vmwp"})
#: Windows' processes without a file
_WITHOUT_FILE = frozenset({"system", "secure system", "registry", "memory compression"})

_Luid = tuple[int, int]
#: Known sizes, in bytes.
Sizes = Mapping[MetricSpec, int]


class Adapter(NamedTuple):
    """A GPU by Windows' counters."""

    luid: _Luid
    name: str
    sizes: Sizes
    #: Windows' largest programs on it, largest first
    programs: tuple[GpuProcess, ...] = ()


class Facts(NamedTuple):
    """``containers`` are the bytes that each session of WSL's containers holds."""

    sizes: Sizes
    adapters: tuple[Adapter, ...]
    containers: Mapping[str, int]


class WindowsSource(Source):
    """Queries a resident process in Windows, or windows_exporter, every few seconds."""

    name = "windows"
    lane = "windows"
    deadline_seconds = 5.0
    metrics = (*_OF_WINDOWS, VM, VM_UNRETURNED, CONTAINERS, *_OF_ADAPTERS, GPU_PROGRAM)

    def _prepare(self) -> None:
        self._probe: Supervisor | None = None
        self._before: tuple[float, float] | None = None

    def read(self) -> Sample:
        """Return Windows' current values; NoData outside WSL 2 and where this or interop is switched off."""
        every = self.period_seconds = self.config.windows.every_seconds
        facts = self._by_exporter() if self.config.windows.exporter_url else self._by_probe()
        now, left = self.host.clock.mono(), left_share(facts.sizes)
        self.period_seconds = every if left is None else next_period(every, self._before, (now, left))
        self._before = None if left is None else (now, left)
        return Sample(tuple(readings(facts, self._linux_used())))

    def close(self) -> None:
        """End the process in Windows by closing its input."""
        if self._probe is not None:
            self._probe.close()

    def ask(self) -> dict[str, Any]:
        """Return the probe's raw answer; NoData where Windows cannot be queried, or is not to be."""
        if isinstance(self.host, RecordedHost) and (recording := self.host.recording("windows.json")) is not None:
            try:
                return safe_files.parsed(recording.read_bytes())
            except ValueError as error:
                raise SourceError("{path}: {why}", path=str(recording), why=cause(error)) from error
        if self._probe is None or self._probe.pid is None:
            off = self.config.windows.probe == "off"
            if absence := say("switched off by windows.probe") if off else interop.absence(self.host):
                self.period_seconds = INTEROP_CHECK_SECONDS
                raise NoData(absence)
        self._probe = self._probe or Supervisor(
            say("Windows probe"),
            interop.powershell_command(self.host, interop.RESIDENT_PROBE),
            timeout_seconds=TIMEOUT_SECONDS,
            start_timeout_seconds=START_TIMEOUT_SECONDS,
            environment=interop.environment(os.environ),
            cwd=self.host.path(interop.drive(self.host)),
            mono=self.host.clock.mono,
        )
        try:
            return self._probe.ask({})
        except ProbeDown as down:
            raise SourceError(down.message) from down

    def _by_probe(self) -> Facts:
        facts = from_probe(answer := self.ask())
        if not any(facts):
            missing = answer.get("missing")
            reasons = sorted({str(r) for r in missing.values()}) if isinstance(missing, dict) else []
            why = "; ".join(reasons)[:300] or say("no reason given")
            raise SourceError("Windows reports nothing about itself: {why}", why=why)
        return facts

    def _by_exporter(self) -> Facts:
        url = self.config.windows.exporter_url
        try:
            exporter = http_client.parsed(url)
        except ValueError:  # an incomplete IPv6 address
            exporter = None
        if exporter is None or exporter.authorization:
            raise SourceError(
                say("windows.exporter_url must be like http://MYPC.local:9182/metrics, without a password")
            )
        shown = address(url)
        try:
            page = http_client.exchange(exporter, deadline_seconds=EXPORTER_SECONDS, max_bytes=MAX_BYTES)
        except (http_client.Unreachable, http_client.ErrorStatus) as error:
            # An error may repeat the URL, with a secret in it.
            hidden = without(str(error), parts(url))
            why = cause(error) if hidden == str(error) else hidden
            raise SourceError("windows_exporter at {url} cannot be read: {why}", url=shown, why=why) from error
        facts = from_exporter(page.decode("utf-8", "replace"))
        if not any(facts):
            raise SourceError(
                "{url} has no memory, gpu or process metrics; is it windows_exporter 0.31 or newer?", url=shown
            )
        return facts

    def _linux_used(self) -> int | None:
        """Return the RAM that this virtual machine has touched and not returned, page cache included."""
        levels = table(self.host.read_optional("/proc/meminfo"))
        total, free = parse_uint(levels.get("MemTotal")), parse_uint(levels.get("MemFree"))
        return None if total is None or free is None else (total - free) * 1024


def scarcer(value: Callable[[MetricSpec], Number | None]) -> RamState | None:
    """Return Windows' RAM, or its commit limit where that is scarcer; ``value`` returns that of a metric."""
    total, available, limit, committed = map(value, (TOTAL, AVAILABLE, COMMIT_LIMIT, COMMITTED))
    known = [RamState(int(total), int(available))] if total and available is not None else []
    known += [RamState(int(limit), max(0, int(limit - committed)))] if limit and committed is not None else []
    return min(known, key=lambda room: room.available / room.total, default=None)


def left_share(sizes: Sizes) -> float | None:
    """Return the share of RAM that Windows has left, or of its commit limit where that is less."""
    room = scarcer(sizes.get)
    return None if room is None else room.available / room.total


def next_period(every: float, before: tuple[float, float] | None, now: tuple[float, float]) -> float:
    """Return the seconds until the next query, from (time, share left) of the last answer and of this one.

    Shorter where memory will soon be scarce at this rate; never above half.
    """
    if before is None or now[0] <= before[0] or now[1] >= 0.5:
        return every
    rate = (before[1] - now[1]) / (now[0] - before[0])
    return every if rate <= 0 else max(min(every, FASTEST_SECONDS), min(every, now[1] / rate / ANSWERS_BEFORE_END))


def readings(facts: Facts, linux_used: int | None) -> Iterator[Reading]:
    yield from known([*facts.sizes.items(), (VM_UNRETURNED, unreturned_bytes(facts.sizes.get(VM), linux_used))])
    for session, size in facts.containers.items():
        yield Reading(CONTAINERS, size, (session,))
    for name, adapter in labelled(facts.adapters):
        yield from known(adapter.sizes.items(), name)
        for program in adapter.programs:
            yield from known([(GPU_PROGRAM, program.used_bytes)], name, program.name)


def from_probe(answer: Mapping[str, Any]) -> Facts:
    """Read an answer of the probe; anything malformed counts as unknown."""
    system, memory = (next(iter(_rows(answer, part)), {}) for part in ("system", "memory"))
    if (total := _whole(system.get("TotalVisibleMemorySize"))) is not None:
        memory = {**memory, "TotalVisibleBytes": total * 1024}
    about: dict[_Luid, Mapping[str, Any]] = {}
    for row in _rows(answer, "adapters"):
        if (number := _whole(row.get("Luid"))) is not None:
            size = row.get("DedicatedVideoMemory")
            about[number >> 32, number & 0xFFFFFFFF] = {"CardName": row.get("Name"), "DedicatedVideoMemory": size}
    held = [
        (str(row.get("Name")), max(_whole(row.get(kind)) or 0 for kind in ("WorkingSet", "Private")))
        for row in _rows(answer, "vm")
    ]
    on_cards = programs(
        (luid, row.get("Program"), _whole(row.get("LocalUsage"))) for luid, row in _by_card(answer, "programs")
    )
    adapters = []
    for luid, row in dict(_by_card(answer, "gpu")).items():
        card = {**row, **about.get(luid, {})}
        name = card["CardName"] if isinstance(card.get("CardName"), str) else ""
        adapters.append(Adapter(luid, name, _sizes(_OF_ADAPTERS, card), on_cards.get(luid, ())))
    vm = vm_bytes(held)
    return Facts(_sizes(_OF_WINDOWS, memory) | ({VM: vm} if vm else {}), tuple(adapters), sessions(held))


def from_exporter(text: str) -> Facts:
    """Read a page of windows_exporter (0.31 or newer).

    https://github.com/prometheus-community/windows_exporter, docs/collector.gpu.md, .memory.md, .process.md
    """
    memory: dict[str, float] = {}
    cards: dict[str, dict[str, Any]] = {}
    processes: dict[tuple[str, str], dict[str, Any]] = {}
    uses: list[tuple[str, str, float]] = []
    for name, written, value in page_samples(text, "windows_"):
        labels, column = dict(_LABEL.findall(written)), _EXPORTED.get(name, "")
        card, process = f"luid_{labels.get('luid', '')}_phys_0", labels.get("process_id", "")
        if name == "windows_gpu_process_memory_local_bytes":
            uses.append((card, process, value))
        elif "luid" in labels:
            cards.setdefault(card, {"Name": card})[column] = value
            if name == "windows_gpu_info":
                cards[card]["CardName"] = labels.get("name", "")
        elif column in ("WorkingSet", "Private"):
            of_process = processes.setdefault((labels.get("process", ""), process), {"Name": labels.get("process", "")})
            of_process[column] = value
        elif not labels:
            memory[column] = value
    names = {pid: name for name, pid in processes}
    programs_of = [
        {"Name": f"pid_{pid}_{card}", "Program": names.get(pid), "LocalUsage": size} for card, pid, size in uses
    ]
    rows = {"gpu": [*cards.values()], "vm": [*processes.values()], "programs": programs_of}
    return from_probe({"memory": [memory], **rows})


def vm_bytes(held: Iterable[tuple[str, int]]) -> int | None:
    """Return the memory of WSL's VM; next to a ``vmmemWSL``, a ``vmmem`` belongs to another VM."""
    sizes = {name.lower(): size for name, size in sorted(held, key=lambda process: process[1])}
    return sizes.get("vmmemwsl") or sizes.get("vmmem")


def sessions(held: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Return the memory of the largest sessions of WSL's containers, by name."""
    found = Counter[str]()
    for name, size in held:
        if size and (match := _SESSION.fullmatch(one_line(name, _PROGRAM_CHARACTERS))):
            found[match[1]] += size
    return dict(found.most_common(_MAX_SESSIONS))


def programs(uses: Iterable[tuple[_Luid, object, int | None]]) -> dict[_Luid, tuple[GpuProcess, ...]]:
    """Return the largest programs of each card, from the use of each process; one without a name has just ended."""
    found: dict[_Luid, Counter[str]] = defaultdict(Counter)
    for card, process, size in uses:
        name = one_line(process, _PROGRAM_CHARACTERS).removesuffix(".exe") if isinstance(process, str) else ""
        if name and size is not None and name.lower() not in _VIRTUAL_MACHINES:
            bare = name.lower() in _WITHOUT_FILE or _SESSION.fullmatch(name)
            found[card][name if bare else f"{name}.exe"] += size
    return {
        card: tuple(
            GpuProcess(0, name, size) for name, size in held.most_common(MAX_PROGRAMS) if size >= MIN_PROGRAM_BYTES
        )
        for card, held in found.items()
    }


def labelled(adapters: Iterable[Adapter]) -> list[tuple[str, Adapter]]:
    """Give each adapter a name that survives a restart of Windows, as its LUID does not; the second is ``NAME #2``.

    Adapters with neither name nor use are omitted: Windows' own software renderer.
    """
    seen = Counter[str]()
    found: list[tuple[str, Adapter]] = []
    real = (a for a in adapters if a.name or a.sizes.get(GPU_DEDICATED) or a.sizes.get(GPU_SHARED))
    for adapter in sorted(real, key=lambda a: a.luid)[:_MAX_ADAPTERS]:
        name = one_line(adapter.name, _NAME_CHARACTERS) or f"luid 0x{adapter.luid[0]:x}_0x{adapter.luid[1]:x}"
        seen[name] += 1
        found.append((name if seen[name] == 1 else f"{name} #{seen[name]}", adapter))
    return found


def unreturned_bytes(vm: int | None, linux_used: int | None) -> int | None:
    """Return the part of Windows' RAM that the virtual machine holds and Linux does not use, not even as page cache.

    None where the process does not show its guest's memory, as in some versions of Windows
    (https://github.com/microsoft/WSL/issues/40705): then it shows less than half of what Linux uses.
    """
    if vm is None or linux_used is None or vm < linux_used / 2:
        return None
    return max(0, vm - linux_used)


def _sizes(names: Mapping[MetricSpec, str], values: Mapping[str, Any]) -> dict[MetricSpec, int]:
    return {spec: size for spec, name in names.items() if (size := _whole(values.get(name))) is not None}


def _rows(answer: Mapping[str, Any], part: str) -> list[Mapping[str, Any]]:
    rows = answer.get(part)
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def _by_card(answer: Mapping[str, Any], part: str) -> Iterator[tuple[_Luid, Mapping[str, Any]]]:
    """Yield the rows of a part that are named by card, each with its card."""
    for row in _rows(answer, part):
        if match := _INSTANCE.fullmatch(str(row.get("Name"))):
            yield (int(match[1], 16), int(match[2], 16)), row


def _whole(value: object) -> int | None:
    """Return a number of bytes; Windows writes them as numbers, WMI's 64 bits sometimes as text.

    With a point or a comma the text depends on the language (9.663 may be nine thousand): unknown.
    """
    if isinstance(value, str):
        value = parse_uint(value)
    return int(value) if isinstance(value, (int, float)) and 0 <= value < 1 << 62 else None
