"""What the rules measure: small functions from a tick to (resource, value, facts)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import NamedTuple

from wslgpud.alerts.victims import Counted
from wslgpud.event import Event
from wslgpud.metrics import MetricSpec
from wslgpud.model import ProcessSample, Reading, Snapshot, SourceReport
from wslgpud.risk.spill import FULL_SHARE, Spill
from wslgpud.sources import disk, gpu, memory, pressure, windows
from wslgpud.words import Fact, Said

#: without PSI: bytes a second that must go both into and out of swap, all the time, to be called thrashing.
#: A tenth of what a slow SSD moves; either direction alone is a program that starts or one that sleeps.
SWAP_BYTES_PER_SECOND = 20 << 20
#: Xids that say the card or its memory is ill, not that a program made a mistake (13, 31, 43, 45):
#: https://docs.nvidia.com/deploy/xid-errors/
ILL_XIDS = frozenset({"48", "62", "63", "64", "74", "79", "92", "94", "95", "119", "120", "140"})
#: what slows a card down against its owner's wish; a power cap is normal under full load
HARMFUL_REASONS = frozenset(
    {"hw_slowdown", "hw_thermal_slowdown", "sw_thermal_slowdown", "hw_power_brake_slowdown"}
)
#: sources with a rule of their own
_OWN_RULE = frozenset({"gpu"})


class Signal(NamedTuple):
    """What a rule sees of one resource now; ``facts`` are for people and fill the texts."""

    resource: str
    value: float
    facts: Mapping[str, Fact] = {}


@dataclass(slots=True)
class Remembered:
    """What the measures must remember from tick to tick."""

    state_folder: str = "/"
    since_wall: float = math.inf
    last: Snapshot | None = None
    gpu_seen: bool = False
    silent_since: dict[str, float] = field(default_factory=dict)
    #: sources that did not answer an earlier run either, and so have never answered this one
    missed: set[str] = field(default_factory=set)
    kills: Counted = field(default_factory=Counted)
    #: processes of the last two lists of them, by pid: the kernel's log may be a tick late
    processes: dict[int, ProcessSample] = field(default_factory=dict)
    #: what Windows has moved into RAM of each card that only it shows
    spills: dict[str, Spill] = field(default_factory=dict)

    def resume(self, resource: str, facts: Mapping[str, Fact], mono: float, value: float) -> None:
        """Take over what an open alert rests on, which one look at the machine does not show again.

        Args:
            resource: that it is about.
            facts: what it has told.
            mono: now.
            value: what it had at least come to.
        """
        name = resource.removeprefix("source:")
        if name != resource or resource == "gpu":
            self.missed.add(name)
            self.silent_since[name] = mono - value
        shared, grown = facts.get("shared_bytes"), facts.get("grown_bytes")
        if isinstance(shared, (int, float)) and isinstance(grown, (int, float)):
            self.spills[str(facts.get("adapter"))] = known = Spill()
            known.resume(mono, float(shared - grown), float(grown))

    def remember(self, snapshot: Snapshot) -> None:
        """Note the tick that has just been looked at."""
        before = self.last.processes if self.last is not None else ()
        if snapshot.processes is not before:
            self.processes = {p.pid: p for p in (*before, *snapshot.processes)}
        self.last = snapshot
        self.gpu_seen = self.gpu_seen or bool(snapshot.gpus)


@dataclass(slots=True)
class Look:
    """One tick, as the measures see it."""

    snapshot: Snapshot
    remembered: Remembered
    store_error: Said = ""
    store_damage: Said = ""
    #: by resource, whom the forecast sees growing
    growing: Mapping[str, int] = field(default_factory=dict)

    def events(self, kind: str) -> Iterator[Event]:
        """Yield what happened since the last tick, and what happened while no daemon ran."""
        for event in self.snapshot.events:
            if event.kind == kind and (
                not event.fields.get("past") or event.wall > self.remembered.since_wall
            ):
                yield event

    def readings(self, spec: MetricSpec) -> list[Reading]:
        """Return what is known of a metric."""
        return [Reading(spec, value, labels) for labels, value in self.snapshot.family(spec).items()]

    def report(self, name: str) -> SourceReport | None:
        """Return how a source fared."""
        return next((r for r in self.snapshot.reports if r.name == name), None)

    def rate(self, spec: MetricSpec) -> float | None:
        """Return how fast a counter without labels has grown since the last tick; None where not known."""
        last = self.remembered.last
        if last is None or self.snapshot.mono <= last.mono:
            return None
        before, now = last.value(spec), self.snapshot.value(spec)
        if before is None or now is None or now < before:
            return None
        return (now - before) / (self.snapshot.mono - last.mono)


Measure = Callable[[Look], Iterable[Signal]]


def residency_failures(look: Look) -> Iterator[Signal]:
    """WSL's GPU driver could not bring memory of the card in."""
    for event in look.events("dxg_error"):
        if "make_resident" in str(event.fields.get("function")) and event.fields.get("error") == "ENOMEM":
            gpus = look.snapshot.gpus
            resource = f"gpu{gpus[0].index}" if len(gpus) == 1 else "gpu"
            yield Signal(resource, 1.0, {"text": event.text})


def xids(look: Look) -> Iterator[Signal]:
    """NVIDIA's driver reports an illness of a card."""
    for event in look.events("nvidia_xid"):
        if str(event.fields.get("xid")) in ILL_XIDS:
            facts = {"xid": event.fields["xid"], "device": event.fields.get("device", ""), "text": event.text}
            yield Signal(f"gpu {event.fields.get('device', '')}".strip(), 1.0, facts)


def lost_gpus(look: Look) -> Iterator[Signal]:
    """A card that was there does not answer."""
    # Without the lost one the others move up: of two cards of one number it is the one that counts.
    for reading in sorted(look.readings(gpu.UP), key=lambda r: -r.value):
        yield Signal(f"gpu{reading.labels[0]}", 1.0 - reading.value, {"uuid": reading.labels[1]})


def silent_driver(look: Look) -> Iterator[Signal]:
    """Return for how long the driver has been silent, once it has spoken."""
    report = look.report("gpu")
    # Where another run has missed it, a machine without a card is no sign that it still does not answer.
    missed = report is not None and "gpu" in look.remembered.missed and report.health != "absent"
    if report is None or not (look.remembered.gpu_seen or missed):
        return
    yield Signal("gpu", _silent_seconds(look, report, also_absent=True), {"error": report.error})


def thrashing(look: Look) -> Iterator[Signal]:
    """Return the share of time lost to a lack of memory."""
    stalled = look.snapshot.value(pressure.STALLED_RATIO, "memory", "10s")
    into, out = look.rate(memory.SWAP_IN), look.rate(memory.SWAP_OUT)
    facts: dict[str, Fact] = {}
    if into is not None and out is not None:
        facts = {"read_per_second_bytes": into, "written_per_second_bytes": out}
    if stalled is not None:
        yield Signal("ram", stalled, {**facts, "stalled_ratio": stalled})
    elif into is not None and out is not None:
        both = min(into, out)
        yield Signal("ram", 0.2 * both / SWAP_BYTES_PER_SECOND, facts)


def throttling(look: Look) -> Iterator[Signal]:
    """A card is slowed down by heat or its power supply."""
    reasons: dict[str, list[str]] = {}
    for reading in look.readings(gpu.THROTTLED):
        card, _, reason = reading.labels
        found = reasons.setdefault(card, [])
        if reading.value and reason in HARMFUL_REASONS:
            found.append(reason)
    for card, found in reasons.items():
        sample = next((g for g in look.snapshot.gpus if str(g.index) == card), None)
        facts: dict[str, Fact] = {"reasons": ", ".join(sorted(found))}
        if sample is not None and sample.temperature_celsius is not None:
            facts["temperature_celsius"] = sample.temperature_celsius
        yield Signal(f"gpu{card}", float(bool(found)), facts)


def spill(look: Look) -> Iterator[Signal]:
    """Return the bytes that have moved into Windows' shared memory since a card became full.

    That of a card which NVML shows is told by the forecast: a full card is one incident. Where Windows tells
    nothing, nothing is known.
    """
    cards = {gpu.name for gpu in look.snapshot.gpus}
    sizes = {r.labels[0]: r.value for r in look.readings(windows.GPU_SIZE)}
    dedicated = {r.labels[0]: r.value for r in look.readings(windows.GPU_DEDICATED)}
    for reading in look.readings(windows.GPU_SHARED):
        adapter, shared = reading.labels[0], float(reading.value)
        # An integrated GPU lives in shared memory.
        if adapter in cards or "NVIDIA" not in adapter or adapter not in dedicated or not sizes.get(adapter):
            continue
        known = look.remembered.spills.setdefault(adapter, Spill())
        grown = known.look(look.snapshot.mono, shared, full=dedicated[adapter] / sizes[adapter] >= FULL_SHARE)
        facts: dict[str, Fact] = {"grown_bytes": grown, "shared_bytes": shared, "adapter": adapter}
        facts["dedicated_bytes"] = dedicated[adapter]
        yield Signal(f"gpu {adapter}", grown, facts if grown else {})


def windows_memory(look: Look) -> Iterator[Signal]:
    """Return the share of Windows' memory that is left: of its RAM or of what it can promise, the scarcer."""
    value = look.snapshot.value
    total, available = value(windows.TOTAL), value(windows.AVAILABLE)
    limit, committed = value(windows.COMMIT_LIMIT), value(windows.COMMITTED)
    shares: dict[str, float] = {}
    facts: dict[str, Fact] = {}
    if total and available is not None:
        shares["ram"] = available / total
        facts |= {"available_bytes": available, "total_bytes": total}
    if limit and committed is not None:
        shares["commit"] = max(0, limit - committed) / limit
    if not shares:
        return
    if min(shares, key=lambda name: shares[name]) == "commit" and limit and committed is not None:
        facts |= {"commit_left_bytes": max(0, limit - committed), "commit_limit_bytes": limit}
    for name, spec in (("vm_bytes", windows.VM), ("unreturned_bytes", windows.VM_UNRETURNED)):
        if (held := value(spec)) is not None:
            facts[name] = held
    yield Signal("windows", min(shares.values()), facts)


def state_space(look: Look) -> Iterator[Signal]:
    """Return the space left where our own data lies."""
    reading = _holder(look, disk.AVAILABLE)
    if reading is not None:
        yield Signal("disk:" + reading.labels[0], reading.value, {"bytes": reading.value})


def windows_space(look: Look) -> Iterator[Signal]:
    """Return the space left on each drive of Windows."""
    for reading in look.readings(disk.AVAILABLE):
        if reading.labels[1] in disk.WINDOWS_TYPES:
            yield Signal("disk:" + reading.labels[0], reading.value, {"bytes": reading.value})


def read_only(look: Look) -> Iterator[Signal]:
    """The disk where our own data lies cannot be written."""
    reading = _holder(look, disk.READ_ONLY)
    if reading is not None:
        yield Signal("disk:" + reading.labels[0], reading.value)


def silent_sources(look: Look) -> Iterator[Signal]:
    """Return for how long each source that once answered has not."""
    for report in look.snapshot.reports:
        answered = report.last_success_wall is not None or report.name in look.remembered.missed
        if report.name not in _OWN_RULE and answered:
            yield Signal(f"source:{report.name}", _silent_seconds(look, report), {"error": report.error})


def clock_jumps(look: Look) -> Iterator[Signal]:
    """The wall clock was set, or the machine slept."""
    for event in look.events("clock_jump"):
        yield Signal("clock", 1.0, {"seconds": event.fields.get("seconds", 0)})


def failing_store(look: Look) -> Iterator[Signal]:
    """The database takes nothing."""
    yield Signal(
        "store", float(bool(look.store_error)), {"error": look.store_error} if look.store_error else {}
    )


def damaged_store(look: Look) -> Iterator[Signal]:
    """The database was found damaged."""
    yield Signal(
        "store", float(bool(look.store_damage)), {"damage": look.store_damage} if look.store_damage else {}
    )


def _silent_seconds(look: Look, report: SourceReport, *, also_absent: bool = False) -> float:
    """Return how long a source has not answered, by the monotonic clock: the other may jump meanwhile."""
    silent = report.health in ("failed", "late") or (also_absent and report.health == "absent")
    if not silent:
        look.remembered.silent_since.pop(report.name, None)
        return 0.0
    return look.snapshot.mono - look.remembered.silent_since.setdefault(report.name, look.snapshot.mono)


def _holder(look: Look, spec: MetricSpec) -> Reading | None:
    """Return the reading of the file system that holds our own data."""
    folder = PurePosixPath(look.remembered.state_folder)
    inside = [
        r
        for r in look.readings(spec)
        if r.labels[1] not in disk.WINDOWS_TYPES and folder.is_relative_to(r.labels[0])
    ]
    return max(inside, key=lambda r: len(r.labels[0]), default=None)
