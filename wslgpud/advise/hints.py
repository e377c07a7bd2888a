"""Hints from the last minutes, with the figures they rest on."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from wslgpud.advise.live_sample import CurveKey, LiveSample, RecentSeries
from wslgpud.host import Host
from wslgpud.sources.disk import READERS, open_there, windows_points
from wslgpud.words import MessageLike, all_of, say

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


class Hint(NamedTuple):
    """A suggestion, or with ``act`` False a reassurance; ``evidence`` holds the observations."""

    text: MessageLike
    evidence: MessageLike
    act: bool = True


def hints(look: LiveSample, trail: RecentSeries) -> list[Hint]:
    """Return the hints, the most useful first."""
    return [hint for find in (_thrashing, _volumes, _windows_drive, _waiting_gpus, _flat) for hint in find(look, trail)]


def _waiting_gpus(look: LiveSample, trail: RecentSeries) -> Iterator[Hint]:
    """Find a training whose card waits, and for what, if known."""
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
