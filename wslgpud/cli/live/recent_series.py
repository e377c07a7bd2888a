"""What was seen lately, for sparklines and rates: a bounded number of points a curve."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

from wslgpud.cli.live.live_sample import LiveSample

#: at a look a second, as much as an hour
MOST_POINTS = 3600
GROWTH_WINDOW_SECONDS, GROWTH_LEAST_SECONDS = 60.0, 10.0


class SeriesKey(NamedTuple):
    """A curve: what it shows, and of which thing (a GPU's index, a resource of PSI, a pid)."""

    what: str
    which: str = ""


class RecentSeries:
    """Curves of the last minutes, fed with one look after another."""

    def __init__(self) -> None:
        self._curves: dict[SeriesKey, deque[tuple[float, float]]] = {}
        self._last: LiveSample | None = None

    def add(self, look: LiveSample) -> None:
        """Take a look in; one that repeats the last (a daemon that has not sampled since) adds nothing."""
        if self._last is not None and look.document["at"] == self._last.document["at"]:
            return
        for key, value in (*_levels(look), *_rates(self._last, look)):
            self._curves.setdefault(key, deque(maxlen=MOST_POINTS)).append((look.mono, value))
        alive = {str(p["pid"]) for p in look.document["processes"]}
        for key in [k for k in self._curves if k.what in ("rss", "vram") and k.which not in alive]:
            del self._curves[key]
        self._last = look

    def seed(self, key: SeriesKey, points: Iterable[tuple[float, float]]) -> None:
        """Put (monotonic time, value) of before the first look under a curve."""
        self._curves[key] = deque(sorted([*points, *self._curves.get(key, ())]), maxlen=MOST_POINTS)

    def known(self) -> list[SeriesKey]:
        """Return what there are curves of."""
        return list(self._curves)

    def points(self, key: SeriesKey, seconds: float = math.inf) -> Sequence[tuple[float, float]]:
        """Return the last ``seconds`` of a curve, oldest first; empty when it is not known."""
        if not (curve := self._curves.get(key)):
            return ()
        return tuple(point for point in curve if point[0] >= curve[-1][0] - seconds)

    def last(self, key: SeriesKey) -> float | None:
        """Return the newest value of a curve."""
        curve = self._curves.get(key)
        return curve[-1][1] if curve else None

    def mean(self, key: SeriesKey, seconds: float) -> float | None:
        """Return the mean of the last ``seconds``, None where less than half of that is known."""
        curve = self.points(key)
        if not curve or curve[-1][0] - curve[0][0] < seconds / 2:
            return None
        return fmean(value for _, value in self.points(key, seconds))

    def growth(self, key: SeriesKey) -> float | None:
        """Return by how much a curve rose a second over the last minute; None before ten seconds."""
        curve = self.points(key, GROWTH_WINDOW_SECONDS)
        seconds = curve[-1][0] - curve[0][0] if curve else 0.0
        return (curve[-1][1] - curve[0][1]) / seconds if seconds >= GROWTH_LEAST_SECONDS else None


def _levels(look: LiveSample) -> Iterator[tuple[SeriesKey, float]]:
    document = look.document
    for forecast in document["forecasts"]:
        if capacity := forecast["capacity_bytes"]:
            yield SeriesKey("used", forecast["resource"]), 1 - forecast["headroom_bytes"] / capacity
    if (swap := document.get("swap")) and swap["total"]:
        yield SeriesKey("used", "swap"), 1 - swap["free"] / swap["total"]
    for card in document["gpus"]:
        if "utilization_ratio" in card:
            yield SeriesKey("busy", str(card["index"])), card["utilization_ratio"]
    for process in document["processes"]:
        yield SeriesKey("rss", str(process["pid"])), process["rss_bytes"] + process["swap_bytes"]
    for pid, used in vram(document).items():
        if used is not None:
            yield SeriesKey("vram", str(pid)), used


def vram(document: Mapping[str, Any]) -> dict[int, int | None]:
    """Return what each process holds of all cards together; None where a card does not tell."""
    found: dict[int, int | None] = {}
    for process in (process for card in document["gpus"] for process in card["processes"]):
        used, before = process.get("used_bytes"), found.get(process["pid"], 0)
        found[process["pid"]] = None if before is None or used is None else before + used
    return found


#: curve -> counter, added up over everything that has it
_RATES = {
    "disk read": "disk_read_bytes",
    "disk write": "disk_written_bytes",
    "received": "network_receive_bytes",
    "sent": "network_transmit_bytes",
    "swap in": "swap_in_bytes",
    "swap out": "swap_out_bytes",
}


def _rates(before: LiveSample | None, now: LiveSample) -> Iterator[tuple[SeriesKey, float]]:
    if before is None or (seconds := now.mono - before.mono) <= 0:
        return
    for what, counter in _RATES.items():
        old, new = before.value(counter), now.value(counter)
        if old is not None and new is not None and new >= old:  # one that fell has begun anew
            yield SeriesKey(what), (new - old) / seconds
    for resource, spent in _increases(before, now, "pressure_waiting_seconds", "resource").items():
        yield SeriesKey("waiting", resource), min(1.0, spent / seconds)
    if (busy := busy_share(_increases(before, now, "cpu_seconds", "mode"))) is not None:
        yield SeriesKey("cpu"), busy


def busy_share(modes: Mapping[str, float]) -> float | None:
    """Return the share of the processor's time that was work, of the time spent in each mode."""
    total = sum(modes.values())
    return 1 - (modes.get("idle", 0.0) + modes.get("iowait", 0.0)) / total if total else None


def _increases(before: LiveSample, now: LiveSample, counter: str, label: str) -> dict[str, float]:
    old = {labels[label]: value for labels, value in before.series(counter)}
    new = {labels[label]: value for labels, value in now.series(counter)}
    return {key: value - old[key] for key, value in new.items() if value >= old.get(key, math.inf)}
