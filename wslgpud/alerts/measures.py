"""Measures of the rules: small functions from a tick to (resource, value, facts)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import NamedTuple

from wslgpud.metrics import MetricSpec
from wslgpud.model import Event, Forecast, Level, Number, ProcessSample, Snapshot, SourceReport, Transition
from wslgpud.risk import risk_metrics
from wslgpud.risk import training_metrics as training
from wslgpud.risk.headroom import WINDOWS
from wslgpud.risk.levels import BLIND
from wslgpud.risk.scarcity import FULL_SHARE, Spill
from wslgpud.sources import disk, gpu, memory, windows
from wslgpud.sources.kernel_lines import BRIDGE
from wslgpud.sources.memory import clean_cache_bytes
from wslgpud.words import Fact, MessageLike

#: without PSI: bytes per second that must continuously go both into and out of swap to count as thrashing. A tenth of a
#: slow SSD's throughput; either direction alone is a program that starts or one that sleeps.
SWAP_BYTES_PER_SECOND = 20 << 20
#: Xids that indicate a fault of the card or its memory, unlike a program's error (13, 31, 43, 45):
#: https://docs.nvidia.com/deploy/xid-errors/
ILL_XIDS = frozenset({"48", "62", "63", "64", "74", "79", "92", "94", "95", "119", "120", "140"})
#: throttle reasons that are a problem; a power cap is normal under full load
HARMFUL_REASONS = frozenset({"hw_slowdown", "hw_thermal_slowdown", "sw_thermal_slowdown", "hw_power_brake_slowdown"})
#: page cache that is worth giving back to Windows
MANY_CACHE_BYTES = 2 << 30
#: Windows keeps up to some hundred megabytes of each card in its own memory in any case.
SPILLED_BYTES = 1 << 30
#: sources with a rule of their own
_OWN_RULE = frozenset({"gpu", "memory"})
#: how resources begin that a source of memory tells of -> the place of alerts about that source
READ_BY = {"ram": "source:memory", "gpu": "source:gpu", "cgroup": "source:cgroups"}
_NO_TICK = Snapshot(0.0, 0.0, 0, ())


class Signal(NamedTuple):
    """A rule's measurement of one resource now; ``facts`` are for people and fill the texts."""

    resource: str
    value: float
    facts: Mapping[str, Fact] = {}


class KillCount(NamedTuple):
    """The kernel's counters of one cgroup, or of the machine: kills, and how often it hit its limit (None: unknown)."""

    kills: int
    limit_hits: int | None = None


class UnnamedKill(NamedTuple):
    """A kill known only from a counter: when it was seen, and the state one tick before."""

    mono: float
    wall: float
    processes: tuple[ProcessSample, ...]
    growing: int | None = None


@dataclass(slots=True)
class KillCounters:
    """The kernel's counters as last read: while memory runs out a read may fail."""

    #: by resource
    counts: Mapping[str, KillCount] = field(default_factory=dict)
    unnamed: dict[str, UnnamedKill] = field(default_factory=dict)
    #: by resource, the pid last seen growing
    growing: dict[str, int] = field(default_factory=dict)
    #: when a cgroup's counter last rose
    group_rose_mono: float = -math.inf


@dataclass(slots=True)
class MeasureContext:
    """One tick for the measures, and the state they keep from earlier ones."""

    state_folder: str = "/"
    since_wall: float = math.inf
    snapshot: Snapshot = _NO_TICK
    last: Snapshot = _NO_TICK
    store_error: MessageLike = ""
    store_damage: MessageLike = ""
    forecasts: Sequence[Forecast] = ()
    gpu_seen: bool = False
    silent_since: dict[str, float] = field(default_factory=dict)
    #: sources that did not answer in an earlier run either, and so have never answered in this one
    missed: set[str] = field(default_factory=set)
    kills: KillCounters = field(default_factory=KillCounters)
    #: processes of the last two lists, by pid: the kernel log may be a tick late
    processes: dict[int, ProcessSample] = field(default_factory=dict)
    #: VRAM that Windows has moved into RAM, of each card that only it shows
    spills: dict[str, Spill] = field(default_factory=dict)

    def resume(self, row: Transition, mono: float, value: float) -> None:
        """Take over the state of an open alert: its last row, and the ``value`` that it had reached at least."""
        name = row.resource.removeprefix("source:")
        if name != row.resource or name == "gpu":
            self.missed.add(name)
            self.silent_since[name] = mono - value
        shared, grown = row.facts.get("shared_bytes"), row.facts.get("grown_bytes")
        if isinstance(shared, (int, float)) and isinstance(grown, (int, float)):
            self.spills[str(row.facts.get("adapter"))] = Spill(mono, float(shared - grown), float(grown))

    def advance(self, snapshot: Snapshot) -> None:
        """Advance to the next tick, keeping state of the current one."""
        if self.snapshot.processes is not self.last.processes:
            self.processes = {p.pid: p for p in (*self.last.processes, *self.snapshot.processes)}
        self.gpu_seen = self.gpu_seen or bool(self.snapshot.gpus)
        self.last, self.snapshot = self.snapshot, snapshot

    def events(self, kind: str) -> Iterator[Event]:
        """Yield the events since the last tick, including those from before the daemon's start."""
        for event in self.snapshot.events:
            if event.kind == kind and (not event.fields.get("past") or event.wall > self.since_wall):
                yield event

    def report(self, name: str) -> SourceReport | None:
        return next((r for r in self.snapshot.reports if r.name == name), None)

    def rate(self, spec: MetricSpec) -> float | None:
        """Return the rate of a counter without labels since the last tick; None where unknown."""
        before, now, seconds = self.last.value(spec), self.snapshot.value(spec), self.snapshot.mono - self.last.mono
        return None if before is None or now is None or now < before or seconds <= 0 else (now - before) / seconds


Measure = Callable[[MeasureContext], Iterable[Signal]]


def residency_failures(context: MeasureContext) -> Iterator[Signal]:
    """Failures of WSL's GPU driver to make memory resident."""
    for event in context.events("dxg_error"):
        if "make_resident" in str(event.fields.get("function")) and event.fields.get("error") == "ENOMEM":
            gpus = context.snapshot.gpus
            yield Signal(f"gpu{gpus[0].index}" if len(gpus) == 1 else "gpu", 1.0, {"text": event.text})


def refused_allocations(context: MeasureContext) -> Iterator[Signal]:
    """Allocations that Windows refused to WSL's GPU driver, whatever the card has left: of VRAM, or of pinned RAM."""
    for event in context.events("dxg_error"):
        refused = event.fields.get("error") in ("EOVERFLOW", "ENOMEM")
        if refused and event.fields.get("function") == "dxgkio_create_allocation":
            yield Signal("gpu", 1.0, {"text": event.text})


def happened(kind: str, resource: str, *names: str) -> Measure:
    """Return a measure of events of one kind, about one resource, with these facts."""
    return lambda context: (
        Signal(resource, 1.0, {name: event.fields[name] for name in names if name in event.fields})
        for event in context.events(kind)
    )


def failing_disks(context: MeasureContext) -> Iterator[Signal]:
    """Failures of disks; one that fails is told by several layers of the kernel, so all are one incident."""
    for event in context.events("disk_error"):
        facts: dict[str, Fact] = {"text": event.text}
        if (device := event.fields["device"]) != BRIDGE:
            facts["device"] = device
        yield Signal("machine", 1.0, facts)


def xids(context: MeasureContext) -> Iterator[Signal]:
    """Faults of a card reported by NVIDIA's driver."""
    for event in context.events("nvidia_xid"):
        device = event.fields.get("device", "")
        if str(event.fields.get("xid")) in ILL_XIDS:
            facts = {"xid": event.fields["xid"], "device": device, "text": event.text}
            yield Signal(f"gpu {device}".strip(), 1.0, facts)


def lost_gpus(context: MeasureContext) -> Iterator[Signal]:
    # Without the lost one, the others move up: of two cards with the same index, the lost one counts.
    for (card, uuid), up in sorted(context.snapshot.family(gpu.UP).items(), key=lambda item: -item[1]):
        yield Signal(f"gpu{card}", 1.0 - up, {"uuid": uuid} if uuid else {})


def silent_driver(context: MeasureContext) -> Iterator[Signal]:
    """Return for how long the driver has been silent, if it ever answered."""
    report = context.report("gpu")
    # Where an earlier run missed it, a machine without a card does not prove that it still does not answer.
    missed = report is not None and "gpu" in context.missed and report.health != "absent"
    if report is not None and (context.gpu_seen or missed):
        yield Signal("gpu", _silent_seconds(context, report, "absent"), {"error": report.error})


def thrashing(context: MeasureContext) -> Iterator[Signal]:
    """Return the share of time lost to memory stalls."""
    stalled = context.snapshot.value(memory.STALLED_RATIO, "memory", "10s")
    into, out = context.rate(memory.SWAP_IN), context.rate(memory.SWAP_OUT)
    facts: dict[str, Fact] = {}
    if into is not None and out is not None:
        facts = {"read_per_second_bytes": into, "written_per_second_bytes": out}
    if stalled is not None:
        yield Signal("ram", stalled, {**facts, "stalled_ratio": stalled})
    elif into is not None and out is not None:
        yield Signal("ram", 0.2 * min(into, out) / SWAP_BYTES_PER_SECOND, facts)


def throttling(context: MeasureContext) -> Iterator[Signal]:
    reasons: dict[str, list[str]] = {}
    for (card, _, reason), active in context.snapshot.family(gpu.THROTTLED).items():
        found = reasons.setdefault(card, [])
        found += [reason] if active and reason in HARMFUL_REASONS else []
    degrees = {str(g.index): g.temperature_celsius for g in context.snapshot.gpus}
    for card, found in reasons.items():
        facts: dict[str, Fact] = {"reasons": ", ".join(sorted(found))}
        if (heat := degrees.get(card)) is not None:
            facts["temperature_celsius"] = heat
        yield Signal(f"gpu{card}", float(bool(found)), facts)


def spill(context: MeasureContext) -> Iterator[Signal]:
    """Return the bytes that have moved into Windows' shared memory since a card became full.

    For a card that NVML shows, the forecast reports it: a full card is one incident. Without Windows' counters it is
    unknown.
    """
    cards = {gpu.name for gpu in context.snapshot.gpus}
    sizes, dedicated = context.snapshot.family(windows.GPU_SIZE), context.snapshot.family(windows.GPU_DEDICATED)
    for labels, value in context.snapshot.family(windows.GPU_SHARED).items():
        adapter, shared = labels[0], float(value)
        # An integrated GPU always uses shared memory.
        if adapter in cards or "NVIDIA" not in adapter or labels not in dedicated or not sizes.get(labels):
            continue
        known = context.spills.setdefault(adapter, Spill())
        grown = known.update(context.snapshot.mono, shared, full=dedicated[labels] / sizes[labels] >= FULL_SHARE)
        facts: dict[str, Fact] = {"grown_bytes": grown, "shared_bytes": shared, "adapter": adapter}
        yield Signal(f"gpu {adapter}", grown, {**facts, "dedicated_bytes": dedicated[labels]} if grown else {})


def windows_memory(context: MeasureContext) -> Iterator[Signal]:
    """Return the share that Windows has left, of its RAM or its commit limit, whichever is scarcer.

    Not while the forecast warns of it, which includes this.
    """
    value = context.snapshot.value
    if (value(risk_metrics.LEVEL, WINDOWS) or 0) >= Level.WARNING:
        return
    total, available = value(windows.TOTAL), value(windows.AVAILABLE)
    limit, committed = value(windows.COMMIT_LIMIT), value(windows.COMMITTED)
    share: float | None = None
    facts = _held(context.snapshot)
    if total and available is not None:
        share = available / total
        facts |= {"available_bytes": available, "total_bytes": total}
    if limit and committed is not None:
        promised = max(0, limit - committed)
        if share is None or promised / limit < share:
            share = promised / limit
            facts |= {"commit_left_bytes": promised, "commit_limit_bytes": limit}
    if share is not None:
        yield Signal("windows", share, facts)


def _held(seen: Snapshot) -> dict[str, Fact]:
    """Return how much of Windows' memory WSL holds, and how much of that could be given back."""
    found = {"vm_bytes": seen.value(windows.VM), "unreturned_bytes": seen.value(windows.VM_UNRETURNED)}
    cache, containers = clean_cache_bytes(seen), sum(seen.family(windows.CONTAINERS).values())
    found |= {
        "cache_bytes": cache if (cache or 0) >= MANY_CACHE_BYTES else None,
        "containers_bytes": containers or None,
    }
    return {name: size for name, size in found.items() if size is not None}


def state_space(context: MeasureContext) -> Iterator[Signal]:
    yield from (Signal(place, left, {"bytes": left}) for place, left in _holder(context, disk.AVAILABLE))


def windows_space(context: MeasureContext) -> Iterator[Signal]:
    for (place, kind), left in context.snapshot.family(disk.AVAILABLE).items():
        if kind in disk.WINDOWS_TYPES:
            yield Signal(f"disk:{place}", left, {"bytes": left})


def read_only(context: MeasureContext) -> Iterator[Signal]:
    """The disk of our own data is read-only."""
    yield from (Signal(place, is_so) for place, is_so in _holder(context, disk.READ_ONLY))


def blind_resources(context: MeasureContext) -> Iterator[Signal]:
    """Return for how long each source of memory has told nothing, with the last figures of its fullest resource."""
    blind = [forecast for forecast in context.forecasts if forecast.cause == BLIND]
    for kind, place in READ_BY.items():
        known = [forecast for forecast in blind if forecast.resource.startswith(kind)]
        if not known:
            yield Signal(place, 0.0)
            continue
        fullest = min(known, key=lambda forecast: forecast.headroom_bytes / max(1, forecast.capacity_bytes))
        report = context.report(place.partition(":")[2])
        facts: dict[str, Fact] = {
            "resource": fullest.resource,
            "age_seconds": round(fullest.age_seconds),
            "room_bytes": (fullest.headroom_bytes, fullest.capacity_bytes),
            "error": report.error if report else "",
        }
        yield Signal(place, fullest.age_seconds, facts)


def silent_sources(context: MeasureContext) -> Iterator[Signal]:
    """Return for how long each source that once answered has been silent."""
    for report in context.snapshot.reports:
        answered = report.last_success_wall is not None or report.name in context.missed
        if report.name not in _OWN_RULE and answered:
            silent = _silent_seconds(context, report)
            yield Signal(f"source:{report.name}", silent, {"silent_seconds": silent, "error": report.error})


def failing_store(context: MeasureContext) -> Iterator[Signal]:
    error = context.store_error
    yield Signal("store", float(bool(error)), {"error": error} if error else {})


def damaged_store(context: MeasureContext) -> Iterator[Signal]:
    damage = context.store_damage
    yield Signal("store", float(bool(damage)), {"damage": damage} if damage else {})


def training_leaks(context: MeasureContext) -> list[Signal]:
    """Return the memory leaked by a training, as a share of the room left when the leak began."""
    found = []
    for labels, left in context.snapshot.family(training.STEPS_LEFT).items():
        pid, program, resource = labels
        grown, per_step = (context.snapshot.family(spec)[labels] for spec in (training.GROWN, training.PER_STEP))
        facts: dict[str, Fact] = {"program": program, "pid": int(pid), "steps_left": int(float(f"{left:.2g}"))}
        facts |= {"step_bytes": per_step, "grown_bytes": grown}
        if (seconds := context.snapshot.value(training.TIME_LEFT, *labels)) is not None:
            facts["eta_seconds"] = seconds
        found.append(Signal(resource, grown / (grown + left * per_step), facts))
    return _rising(found)


def training_retries(context: MeasureContext) -> Iterator[Signal]:
    """Cards so full that PyTorch's allocator has to free its cache for new allocations."""
    before = context.last.family(training.RETRIES)
    for labels, count in context.snapshot.family(training.RETRIES).items():
        if count > before.get(labels, count):
            pid, program, resource = labels
            facts: dict[str, Fact] = {"program": program, "pid": int(pid), "count": count - before[labels]}
            if (pieces := context.snapshot.value(training.PIECES, *labels)) is not None:
                facts["pieces_bytes"] = pieces
            yield Signal(resource, 1.0, facts)


def training_lengths(context: MeasureContext) -> list[Signal]:
    """Return the memory that a batch of the longest allowed sequences will lack, judging by the longest so far."""
    return _rising(
        Signal(resource, lacks, {"program": program, "pid": int(pid), "lacking_bytes": lacks})
        for (pid, program, resource), lacks in context.snapshot.family(training.MAX_LACKS).items()
    )


def training_slowed(context: MeasureContext) -> list[Signal]:
    """Return the slowdown of steps relative to the fastest minute, while a card spills into Windows' memory."""
    now, found = context.snapshot, list[Signal]()
    family = now.family
    spilled = {
        f"gpu{gpu.index}": gpu.demoted_bytes
        if gpu.demoted_bytes is not None
        else now.value(windows.GPU_SHARED, gpu.name) or 0
        for gpu in now.gpus
    }
    times, usual = family(training.STEP_TIME), family(training.USUAL_STEP_TIME)
    for pid, program, resource in family(training.KEPT):
        each, once = times.get((pid, program)), usual.get((pid, program))
        if each and once and spilled.get(resource, 0) >= SPILLED_BYTES:
            facts: dict[str, Fact] = {"program": program, "pid": int(pid), "shared_bytes": spilled[resource]}
            facts |= {"times": f"{each / once:.1f}", "number": f"{1 / each:.2g}", "usual": f"{1 / once:.2g}"}
            found.append(Signal(resource, each / once, facts))
    return _rising(found)


def _silent_seconds(context: MeasureContext, report: SourceReport, also: str = "") -> float:
    """Return how long a source has been silent, by the monotonic clock: the wall clock may jump."""
    if report.health not in ("failed", "late", also):
        context.silent_since.pop(report.name, None)
        return 0.0
    return context.snapshot.mono - context.silent_since.setdefault(report.name, context.snapshot.mono)


def _holder(context: MeasureContext, spec: MetricSpec) -> list[tuple[str, Number]]:
    """Return the file system of our own data, as a resource, and its value of a metric, where known."""
    folder = PurePosixPath(context.state_folder)
    inside = [
        (place, value)
        for (place, kind), value in context.snapshot.family(spec).items()
        if kind not in disk.WINDOWS_TYPES and folder.is_relative_to(place)
    ]
    return [(f"disk:{place}", value) for place, value in sorted(inside, key=lambda i: -len(i[0]))[:1]]


def _rising(found: Iterable[Signal]) -> list[Signal]:
    """Return the signals with the largest last: of several on one resource, the last counts."""
    return sorted(found, key=lambda signal: signal.value)
