"""A sample of the live view, the recent series that sparklines and rates are drawn from, and hints from both."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, NamedTuple

from wslgpud.client import Values
from wslgpud.host import Host
from wslgpud.metrics import PREFIX, SUFFIXES
from wslgpud.sources.disk import READERS, open_there, windows_points
from wslgpud.words import MessageLike, all_of, say

#: without a sample for this long, or for this many intervals, the state is unknown; as in /-/healthy
STALE_SECONDS, STALE_INTERVALS = 10.0, 5
#: who took a sample that no daemon took
OWN_LOOK = "own look"

WINDOW_SECONDS = 30.0
#: check interval of open files: a data set does not move
DRIVES_SECONDS = 10.0
#: a card below this utilization during a training is waiting for something
_IDLE_GPU = 0.8
#: one thread at full speed, and little else
_ONE_CORE = (0.85, 1.6)
_FULL_VRAM = 0.85
_FLAT = 0.01
_THRASH_BYTES_PER_SECOND = 4 << 20
_NEARLY_FULL = 0.05


@dataclass(frozen=True)
class LiveSample:
    """One sample, taken at ``mono``: the document of ``wslgpud.serve.status`` and every metric.

    ``seen_by`` is "daemon", ``OWN_LOOK`` or "recording"; ``where`` the daemon's address.
    """

    mono: float
    document: Mapping[str, Any]
    values: Values
    seen_by: str
    where: str = ""
    #: name of a training that reads from a Windows drive, and its open path there
    on_windows: tuple[str, str] | None = None
    #: age of the sample, and the sampling interval
    age_seconds: float = 0.0
    interval_seconds: float = 0.0

    def series(self, name: str, **labels: str) -> Iterator[tuple[Mapping[str, str], float]]:
        """Yield the series of a metric (no prefix, no suffix) that have these labels among theirs."""
        for suffix in SUFFIXES.values():
            for series_labels, value in self.values.get(f"{PREFIX}{name}{suffix}", ()):
                if labels.items() <= series_labels.items():
                    yield series_labels, value

    def value(self, name: str, **labels: str) -> float | None:
        """Return the sum of those series, or None where there is none."""
        values = [value for _, value in self.series(name, **labels)]
        return sum(values) if values else None

    @property
    def patience_seconds(self) -> float:
        """Return the age from which a figure is no longer current."""
        return max(STALE_SECONDS, STALE_INTERVALS * self.interval_seconds)

    @property
    def stale(self) -> bool:
        """Return whether the daemon answers but does not sample."""
        return self.age_seconds > self.patience_seconds


#: an hour at one sample per second
MAX_POINTS = 3600
GROWTH_WINDOW_SECONDS, MIN_GROWTH_SECONDS = 60.0, 10.0


class CurveKey(NamedTuple):
    """A curve: its quantity, and its object (a GPU's index, a resource of PSI, a pid)."""

    what: str
    which: str = ""


class RecentSeries:
    """Curves of the last minutes, fed sample by sample."""

    def __init__(self) -> None:
        self._curves: dict[CurveKey, deque[tuple[float, float]]] = {}
        self._last: LiveSample | None = None

    def add(self, look: LiveSample) -> None:
        """Add a sample; one that repeats the last (the daemon has not sampled since) adds nothing."""
        if self._last is not None and look.document["at"] == self._last.document["at"]:
            return
        for key, value in (*_levels(look), *_rates(self._last, look)):
            self._curves.setdefault(key, deque(maxlen=MAX_POINTS)).append((look.mono, value))
        alive = {str(p["pid"]) for p in look.document["processes"]}
        for key in [k for k in self._curves if k.what in ("rss", "vram") and k.which not in alive]:
            del self._curves[key]
        self._last = look

    def seed(self, key: CurveKey, points: Iterable[tuple[float, float]]) -> None:
        """Prepend (monotonic time, value) from before the first sample to a curve."""
        self._curves[key] = deque(sorted([*points, *self._curves.get(key, ())]), maxlen=MAX_POINTS)

    def known(self) -> list[CurveKey]:
        return list(self._curves)

    def points(self, key: CurveKey, seconds: float = math.inf) -> Sequence[tuple[float, float]]:
        """Return what is known of a curve in the ``seconds`` before the last sample, oldest first."""
        if not (curve := self._curves.get(key)):
            return ()
        now = self._last.mono if self._last else curve[-1][0]
        return tuple(point for point in curve if point[0] >= now - seconds)

    def last(self, key: CurveKey) -> float | None:
        """Return the last value of a curve; None where its source has been silent for a while."""
        curve = self.points(key, self._last.patience_seconds if self._last else math.inf)
        return curve[-1][1] if curve else None

    def mean(self, key: CurveKey, seconds: float) -> float | None:
        """Return the mean of the last ``seconds``, None where less than half of them are known."""
        curve = self.points(key, seconds)
        if not curve or curve[-1][0] - curve[0][0] < seconds / 2:
            return None
        return fmean(value for _, value in curve)

    def growth(self, key: CurveKey) -> float | None:
        """Return the rise of a curve per second over the last minute; None before ten seconds."""
        curve = self.points(key, GROWTH_WINDOW_SECONDS)
        if not curve or (seconds := curve[-1][0] - curve[0][0]) < MIN_GROWTH_SECONDS:
            return None
        return (curve[-1][1] - curve[0][1]) / seconds


def _levels(look: LiveSample) -> Iterator[tuple[CurveKey, float]]:
    document = look.document
    for forecast in document["forecasts"]:
        if capacity := forecast["capacity_bytes"]:
            yield CurveKey("used", forecast["resource"]), 1 - forecast["headroom_bytes"] / capacity
    if (swap := document.get("swap")) and swap["total"]:
        yield CurveKey("used", "swap"), 1 - swap["free"] / swap["total"]
    for card in document["gpus"]:
        if "utilization_ratio" in card:
            yield CurveKey("busy", str(card["index"])), card["utilization_ratio"]
    for process in document["processes"]:
        yield CurveKey("rss", str(process["pid"])), process["rss_bytes"] + process["swap_bytes"]
    for pid, used in vram(document).items():
        if used is not None:
            yield CurveKey("vram", str(pid)), used


def vram(document: Mapping[str, Any]) -> dict[int, int | None]:
    """Return each process's VRAM on all cards; None where a card does not report it."""
    bytes_by_pid: dict[int, int | None] = {}
    for process in (process for card in document["gpus"] for process in card["processes"]):
        used, before = process.get("used_bytes"), bytes_by_pid.get(process["pid"], 0)
        bytes_by_pid[process["pid"]] = None if before is None or used is None else before + used
    return bytes_by_pid


#: curve -> counter, summed over all its series
_RATES = {
    "disk read": "disk_read_bytes",
    "disk write": "disk_written_bytes",
    "received": "network_receive_bytes",
    "sent": "network_transmit_bytes",
    "swap in": "swap_in_bytes",
    "swap out": "swap_out_bytes",
}


def _rates(before: LiveSample | None, now: LiveSample) -> Iterator[tuple[CurveKey, float]]:
    if before is None or (seconds := now.mono - before.mono) <= 0:
        return
    for what, counter in _RATES.items():
        old, new = before.value(counter), now.value(counter)
        if old is not None and new is not None and new >= old:  # a decrease means a reset
            yield CurveKey(what), (new - old) / seconds
    for resource, spent in _increases(before, now, "pressure_waiting_seconds", "resource").items():
        yield CurveKey("waiting", resource), min(1.0, spent / seconds)
    if (busy := busy_share(_increases(before, now, "cpu_seconds", "mode"))) is not None:
        yield CurveKey("cpu"), busy


def busy_share(modes: Mapping[str, float]) -> float | None:
    """Return the busy share of CPU time, from the time spent in each mode."""
    total = sum(modes.values())
    return 1 - (modes.get("idle", 0.0) + modes.get("iowait", 0.0)) / total if total else None


def _increases(before: LiveSample, now: LiveSample, counter: str, label: str) -> dict[str, float]:
    old = {labels[label]: value for labels, value in before.series(counter)}
    new = {labels[label]: value for labels, value in now.series(counter)}
    return {key: value - old[key] for key, value in new.items() if value >= old.get(key, math.inf)}


class Hint(NamedTuple):
    """A suggestion, or with ``act`` False a reassurance; ``evidence`` holds the observations."""

    text: MessageLike
    evidence: MessageLike
    act: bool = True


def hints(look: LiveSample, trail: RecentSeries) -> list[Hint]:
    """Return the hints, the most useful first."""
    return [hint for find in (_thrashing, _volumes, _windows_drive, _waiting_gpus, _flat) for hint in find(look, trail)]


def _waiting_gpus(look: LiveSample, trail: RecentSeries) -> Iterator[Hint]:
    """Find a training whose card waits, and the reason, if known."""
    # A stress run's worker has torch loaded and a card half busy, but is not a training.
    stress = any(work["kind"] == "stress" for work in look.document.get("running", ()))
    if stress or not any("training" in p["roles"] for p in look.document["processes"]):
        return
    cpu, cpus = trail.mean(CurveKey("cpu"), WINDOW_SECONDS), look.value("cpus")
    for card in look.document["gpus"]:
        busy = trail.mean(CurveKey("busy", str(card["index"])), WINDOW_SECONDS)
        # an idle one is not waiting: it has no work
        if busy is None or not 0.03 < busy < _IDLE_GPU:
            continue
        seen = say("{resource} {busy_ratio} busy", resource=f"gpu{card['index']}", busy_ratio=busy)
        disk = trail.mean(CurveKey("waiting", "io"), WINDOW_SECONDS)
        if disk is not None and disk > 0.3:
            waits = say("programs wait for the disk {share_ratio} of the time", share_ratio=disk)
            yield Hint(
                say("the disk slows the training down: keep the dataset on ext4 or in RAM"), all_of((seen, waits))
            )
        elif cpu is not None and cpus and _ONE_CORE[0] <= cpu * cpus <= _ONE_CORE[1] and cpus > 2:
            cores = say("{used} of {count} cores", used=f"{cpu * cpus:.1f}", count=round(cpus))
            yield Hint(say("one thread feeds the GPU: raise the data loader's num_workers"), all_of((seen, cores)))
        elif cpu is not None and cpu > 0.9:
            advice = say("the CPU slows the GPU down: move augmentation to the GPU, or cache its results")
            yield Hint(advice, all_of((seen, say("CPU {busy_ratio}", busy_ratio=cpu))))


def _windows_drive(look: LiveSample, _: RecentSeries) -> Iterator[Hint]:
    if look.on_windows is not None:
        who, path = look.on_windows
        advice = say("the dataset is on a Windows drive, which is many times slower: copy it to ~/data")
        yield Hint(advice, say("{program} has {path} open", program=who, path=path))


def _flat(look: LiveSample, trail: RecentSeries) -> Iterator[Hint]:
    for forecast in look.document["forecasts"]:
        resource = forecast["resource"]
        points = trail.points(CurveKey("used", resource))
        recent = [v for mono, v in points if mono >= look.mono - 2 * WINDOW_SECONDS]
        if not resource.startswith("gpu") or not recent or points[0][0] > look.mono - WINDOW_SECONDS:
            continue
        if min(recent) >= _FULL_VRAM and max(recent) - min(recent) <= _FLAT and forecast["level"] == "ok":
            seen = say("{resource} VRAM {used_ratio}", resource=resource, used_ratio=recent[-1])
            yield Hint(say("full but steady is fine: the program has taken what it needs"), seen, act=False)


def _thrashing(_: LiveSample, trail: RecentSeries) -> Iterator[Hint]:
    back = trail.mean(CurveKey("swap in"), WINDOW_SECONDS)
    memory = trail.mean(CurveKey("waiting", "memory"), WINDOW_SECONDS)
    if back is not None and back > _THRASH_BYTES_PER_SECOND:
        seen = [say("{rate_bytes_per_second} come back from swap", rate_bytes_per_second=back)]
        if memory is not None:
            seen.append(say("programs wait for memory {share_ratio} of the time", share_ratio=memory))
        yield Hint(say("RAM is too small for what runs: stop something, or use fewer workers"), all_of(seen))


def _volumes(look: LiveSample, _: RecentSeries) -> Iterator[Hint]:
    sizes = {labels["mountpoint"]: value for labels, value in look.series("filesystem_size_bytes")}
    for labels, left in look.series("filesystem_avail_bytes"):
        place = labels["mountpoint"]
        if sizes.get(place) and left / sizes[place] < _NEARLY_FULL:
            advice = say("free up {place}", place=place)
            if "/mnt/" in place:
                advice = say("free up {place}: when the Windows drive is full, WSL's disk turns read-only", place=place)
            yield Hint(advice, say("{left_bytes} left", left_bytes=(left, sizes[place])))


class DriveWatch:
    """Checks now and then whether a training has files of a Windows drive open; see the doctor's check."""

    def __init__(self, host: Host) -> None:
        self._host, self._looked = host, -math.inf
        self._slow_reader: tuple[str, str] | None = None

    def slow_reader(self, document: Mapping[str, Any]) -> tuple[str, str] | None:
        """Return the name of that process of a document, and the path; None where there is none."""
        now = time.monotonic()
        if now - self._looked >= DRIVES_SECONDS:
            self._looked = now
            points = windows_points(self._host)
            names = {p["pid"]: p["name"] for p in document.get("processes", ()) if READERS & set(p["roles"])}
            seen = next(open_there(self._host, names, points), None) if points else None
            self._slow_reader = None if seen is None else (f"{names[seen[0]]} (pid {seen[0]})", seen[1])
        return self._slow_reader
