"""The records that flow from sensor to alert: frozen, without I/O.

Bytes are plain byte counts, ``t`` and ``mono`` are seconds of the monotonic clock, ``wall`` is seconds
since the epoch. None means "not known": it is never 0, and it is never exported.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from wslgpud.metrics import MetricSpec
from wslgpud.words import Fact, Message, MessageLike

Number = int | float
Values = dict[tuple[str, ...], Number]
NOTHING_SAID = Message("")
#: needs a default_factory in dataclasses: not hashable before Python 3.12
_NOTHING: Mapping[Any, Any] = MappingProxyType({})

#: events whose text is a line of the kernel log: programs can influence it, so it is never used as a template
_QUOTED = frozenset({"nvidia_xid", "dxg_error", "vmbus_starved", "disk_error"})


class Event(NamedTuple):
    """A kill, a jump of the clock, ...: ``text`` is a template with blanks for ``fields``, or the kernel's line."""

    kind: str
    wall: float
    text: str
    fields: Mapping[str, str | int | float] = _NOTHING

    @property
    def message(self) -> MessageLike:
        """Return the event as a message, rendered in the reader's language."""
        return self.text if self.kind in _QUOTED else Message(self.text, self.fields)


class Reading(NamedTuple):
    """One value of one series: ``labels`` holds a value for each of the metric's label names."""

    spec: MetricSpec
    value: Number
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ProcessSample:
    """A process that matters; its identity is (pid, start_ticks).

    ``cgroup`` is the path of its group as the memory controller counts, empty where that is not known; ``torch`` its
    interpreter and the torch that it has imported. ``cpu_seconds``, ``faults_total`` (page faults) and
    ``major_faults_total`` (those that read from a disk) count from its start; ``pinned_bytes`` cannot be swapped out.
    """

    pid: int
    start_ticks: int
    name: str
    rss_bytes: int
    swap_bytes: int
    uid: int | None = None
    roles: frozenset[str] = frozenset()
    command: str = ""
    cgroup: str = ""
    cpu_seconds: float | None = None
    faults_total: int | None = None
    major_faults_total: int | None = None
    pinned_bytes: int | None = None
    torch: tuple[str, str] | None = None

    def within(self, group: str) -> bool:
        """Return whether it is known to be in a cgroup or below it."""
        return bool(self.cgroup) and f"{self.cgroup}/".startswith(f"{group.rstrip('/')}/")

    @property
    def key(self) -> tuple[int, int]:
        """Identity that survives the reuse of a pid."""
        return self.pid, self.start_ticks

    @property
    def held_bytes(self) -> int:
        return self.rss_bytes + self.swap_bytes


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process on a GPU; ``used_bytes`` None: not known; ``pid`` 0: of another container or VM, whose pids differ."""

    pid: int
    name: str
    used_bytes: int | None


@dataclass(frozen=True, slots=True)
class GpuSample:
    """One GPU; from Windows ``shared_bytes`` (RAM) to ``ceiling_bytes`` and ``in_windows``."""

    index: int
    uuid: str
    name: str
    total_bytes: int | None = None
    used_bytes: int | None = None
    free_bytes: int | None = None
    reserved_bytes: int | None = None
    utilization_ratio: float | None = None
    memory_utilization_ratio: float | None = None
    power_watts: float | None = None
    temperature_celsius: float | None = None
    processes: tuple[GpuProcess, ...] = ()
    shared_bytes: int | None = None
    windows_ratio: float | None = None
    demoted_bytes: int | None = None  # of our programs, moved into RAM
    ceiling_bytes: int | None = None  # use at which a budget is spent
    self_reported: tuple[GpuProcess, ...] = ()  # by trainings themselves
    in_windows: tuple[GpuProcess, ...] = ()


@dataclass(frozen=True, slots=True)
class Sample:
    """The result of one read of a source; ``families`` holds its values by metric and labels."""

    readings: tuple[Reading, ...] = ()
    processes: tuple[ProcessSample, ...] | None = None
    gpus: tuple[GpuSample, ...] | None = None
    events: tuple[Event, ...] = ()
    families: dict[str, Values] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Index the values once, however many snapshots hold them."""
        for spec, value, labels in self.readings:
            self.families.setdefault(spec.name, {})[labels] = value


EMPTY = Sample()

#: ``absent``: the machine does not have it (no PSI, no GPU), which is no fault; ``late``: a read missed its deadline
Health = Literal["ok", "absent", "failed", "late"]


@dataclass(frozen=True, slots=True)
class SourceReport:
    """Health of a source beside its data, never mixed."""

    name: str
    health: Health
    sample: Sample  # empty unless the health is ok
    mono: float  # when it was taken: seconds ago if it is read rarely
    duration_seconds: float
    error: MessageLike = ""
    last_success_wall: float | None = None
    failures_total: int = 0
    fresh: bool = True


class Level(IntEnum):
    """Severity; ordered, so that ``max`` returns the worst."""

    OK = 0
    INFO = 1
    WARNING = 2
    CRITICAL = 3
    EMERGENCY = 4

    @property
    def label(self) -> str:
        """Name as written in JSON, metrics and texts."""
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Forecast:
    """The risk engine's assessment of one resource (``ram``, ``gpu0``, ``cgroup:/path``).

    ``rate`` is positive while free memory shrinks. ``eta`` is the early, middle and late end of the range, None when
    nothing points to exhaustion; ``probabilities`` gives that of exhaustion within so many seconds. ``cause`` is the
    evidence of the last ``window_seconds`` (growth, steps, pressure, stall, limit, oom, expected, full), or "paused"
    (no growth for that long), "blind" (its source is late: the last figures), "gone" (it no longer exists), or why
    room came back: "killed" (``who`` is the victim), "refused" (an allocation failed), "freed" (``who`` ended).
    ``who_kind`` is process, group, tmpfs, ...; ``may_stop`` marks the first growth; ``age_seconds`` is the sample's.
    """

    resource: str
    level: Level
    headroom_bytes: int
    capacity_bytes: int
    rate_bytes_per_second: float | None = None
    eta_early_seconds: float | None = None
    eta_seconds: float | None = None
    eta_late_seconds: float | None = None
    probabilities: Mapping[int, float] = field(default_factory=lambda: _NOTHING)
    who: MessageLike = ""
    cause: str = ""
    who_kind: str = ""
    who_pid: int | None = None
    who_bytes_per_second: float | None = None
    who_share_ratio: float | None = None
    may_stop: bool = False
    next_step_bytes: int | None = None
    window_seconds: float | None = None
    age_seconds: float = 0.0
    capacity_learned: Literal["", "seen", "probable"] = ""
    expected_peak_bytes: int | None = None
    spilled_bytes: int | None = None
    in_windows: MessageLike = ""  # its programs on a card
    steps_alike: bool = False  # the last two were as large as the next
    swap_free_bytes: int | None = None  # part of the headroom
    memory_limit_bytes: int | None = None  # of a cgroup, whose capacity includes its swap


#: the rule of the risk engine; all others are in ``alerts/rules.py``
MEMORY = "memory_exhaustion"


@dataclass(frozen=True, slots=True)
class Transition:
    """A change of level of one resource under one rule; the alert manager gives it its ``message``, the headline."""

    wall: float
    mono: float
    resource: str
    rule: str
    old: Level
    new: Level
    message: Message = NOTHING_SAID
    forecast: Forecast | None = None
    facts: Mapping[str, Fact] = field(default_factory=lambda: _NOTHING)


@dataclass(frozen=True, slots=True)
class RamState:
    """/proc/meminfo, in bytes."""

    total: int
    available: int
    free: int | None = None
    cached: int | None = None
    buffers: int | None = None
    dirty: int | None = None
    shmem: int | None = None
    anon: int | None = None
    slab_reclaimable: int | None = None
    slab_unreclaimable: int | None = None
    hugepages: int | None = None
    committed: int | None = None
    compressible: int | None = None  # RAM that filling the swap on zram would free


@dataclass(frozen=True, slots=True)
class SwapState:
    """Swap that is not in RAM itself, in bytes; totals are counters since boot."""

    total: int
    free: int
    in_bytes_total: int | None = None
    out_bytes_total: int | None = None


@dataclass(frozen=True, slots=True)
class VmState:
    """/proc/vmstat counters since boot."""

    major_faults_total: int | None = None
    oom_kills_total: int | None = None
    alloc_stalls_total: int | None = None
    direct_scan_pages_total: int | None = None
    refault_pages_total: int | None = None
    steal_pages_total: int | None = None
    blocked_processes: int | None = None


@dataclass(frozen=True, slots=True)
class PsiState:
    """Stall totals of one of memory, cpu, io, in microseconds since boot (the averages follow from them)."""

    some_total_us: int | None = None
    full_total_us: int | None = None
    some_avg10: float | None = None
    full_avg10: float | None = None


@dataclass(frozen=True, slots=True)
class CgroupState:
    """A cgroup with a finite limit, in bytes."""

    path: str
    limit: int
    current: int
    inactive_file: int | None = None
    active_file: int | None = None
    slab_reclaimable: int | None = None
    swap_limit: int | None = None
    swap_current: int | None = None
    max_events_total: int | None = None
    oom_kills_total: int | None = None


@dataclass(frozen=True, slots=True)
class Expected:
    """A running command expected to reach its earlier peak; bytes include swap, on a card only use since its start."""

    resource: str  # ``ram`` or a card's UUID
    who: str
    peak_bytes: int
    used_bytes: int
    pids: tuple[int, ...] = ()  # all its processes, which bytes include


@dataclass(frozen=True, slots=True)
class Observation:
    """One sample as the risk engine sees it, live or in ``wslgpud replay``; every part may be missing.

    ``exhausted`` names resources on which an allocation has just failed ("gpu" where the card is unknown), ``late`` the
    kinds of resources (ram, gpu, cgroup, windows) that could not be read in time.
    """

    t: float
    ram: RamState | None = None
    swap: SwapState | None = None
    vm: VmState | None = None
    psi: Mapping[str, PsiState] = field(default_factory=lambda: _NOTHING)
    gpus: tuple[GpuSample, ...] = ()
    processes: tuple[ProcessSample, ...] = ()
    cgroups: tuple[CgroupState, ...] = ()
    wsl: bool = False
    gap_expected: bool = False  # the gap since the last sample is no stall (a suspended VM, a restart)
    exhausted: tuple[str, ...] = ()
    late: tuple[str, ...] = ()
    expected: tuple[Expected, ...] = ()
    windows: RamState | None = None  # its available memory
    containers: Mapping[str, int] | None = None  # bytes by session of WSL's containers, outside this VM


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that is known at one tick; immutable, hence shared between threads without locks."""

    wall: float
    mono: float
    sequence: int
    reports: tuple[SourceReport, ...]
    lateness_seconds: float = 0.0  # of this tick
    interval_seconds: float = 1.0  # planned, to the next
    observation: Observation = Observation(0.0)  # the part for the risk engine
    forecasts: tuple[Forecast, ...] = ()
    _families: dict[str, Values] = field(default_factory=dict, init=False, repr=False, compare=False)

    def readings(self) -> Iterator[Reading]:
        """Iterate over every known value, fresh or a few seconds old."""
        for report in self.reports:
            yield from report.sample.readings

    def family(self, spec: MetricSpec) -> Mapping[tuple[str, ...], Number]:
        """Return the known values of one metric by their labels."""
        if not self._families:
            found: dict[str, Values] = {}
            for report in self.reports:
                for name, values in report.sample.families.items():
                    found[name] = {**found[name], **values} if name in found else values
            self._families.update(found)  # at once: other threads ask as well
        return self._families.get(spec.name, _NOTHING)

    def value(self, spec: MetricSpec, *labels: str) -> Number | None:
        """Return the value of one series, or None where it is not known."""
        return self.family(spec).get(labels)

    @property
    def processes(self) -> tuple[ProcessSample, ...]:
        """Relevant processes, biggest first; empty when unknown."""
        return next((r.sample.processes for r in self.reports if r.sample.processes), ())

    @property
    def gpus(self) -> tuple[GpuSample, ...]:
        """GPUs as last seen; empty when there is none or the driver is silent."""
        return next((r.sample.gpus for r in self.reports if r.sample.gpus), ())

    @property
    def events(self) -> tuple[Event, ...]:
        """Events since the last tick."""
        return tuple(e for r in self.reports if r.fresh for e in r.sample.events)


StressVerdict = Literal["passed", "findings", "left", "skipped", "failed"]
FindingKind = Literal["errors", "spill", "bandwidth", "usable", "leak", "hung", "changed"]


class StressFinding(NamedTuple):
    """A finding of a stress run: ``changed`` is informational (another driver), everything else a problem."""

    kind: FindingKind
    text: MessageLike


@dataclass(frozen=True, slots=True)
class StressResult:
    """One stress run of a GPU's memory.

    Only ``passed`` and ``findings`` are complete runs; ``left`` yielded the card to another program, ``skipped`` never
    began, ``failed`` broke down; ``reason`` says why. Only runs with the same ``key`` (driver, torch, ...) are
    compared. ``values`` holds the figures by name, in bytes, bytes per second, seconds or counts; values not measured
    are omitted. ``detail`` holds the rows behind them (ladder, chunks, patterns, errors).
    """

    wall: float
    uuid: str
    gpu: int
    name: str
    verdict: StressVerdict
    reason: MessageLike = ""
    findings: tuple[StressFinding, ...] = ()
    key: Mapping[str, str] = field(default_factory=lambda: _NOTHING)
    values: Mapping[str, Number] = field(default_factory=lambda: _NOTHING)
    detail: Mapping[str, Any] = field(default_factory=lambda: _NOTHING)

    @property
    def complete(self) -> bool:
        """Return whether the run was completed: a skipped run has not passed."""
        return self.verdict in ("passed", "findings")
