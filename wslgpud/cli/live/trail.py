"""What was seen lately, for sparklines and rates: a bounded number of points a curve."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from wslgpud.cli.live.looks import Look

#: at a look a second, as much as an hour
MOST_POINTS = 3600
GROWTH_WINDOW_SECONDS, GROWTH_LEAST_SECONDS = 60.0, 10.0


class Key(NamedTuple):
    """A curve: what it shows, and of which thing (a GPU's index, a resource of PSI, a pid)."""

    what: str
    which: str = ""


class Trail:
    """Curves of the last minutes, fed with one look after another."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self._curves: dict[Key, deque[tuple[float, float]]] = {}
        self._last: Look | None = None

    def add(self, look: Look) -> None:
        """Take a look in; one that repeats the last (a daemon that has not sampled since) adds nothing."""
        if self._last is not None and look.document["at"] == self._last.document["at"]:
            return
        for key, value in (*_levels(look), *_rates(self._last, look)):
            self._curves.setdefault(key, deque(maxlen=MOST_POINTS)).append((look.mono, value))
        alive = {str(p["pid"]) for p in look.document["processes"]}
        for key in [k for k in self._curves if k.what in ("rss", "vram") and k.which not in alive]:
            del self._curves[key]
        self._last = look

    def seed(self, key: Key, points: Iterable[tuple[float, float]]) -> None:
        """Put (monotonic time, value) of before the first look under a curve."""
        self._curves[key] = deque(sorted([*points, *self._curves.get(key, ())]), maxlen=MOST_POINTS)

    def known(self) -> list[Key]:
        """Return what there are curves of."""
        return list(self._curves)

    def points(self, key: Key) -> Sequence[tuple[float, float]]:
        """Return a curve, oldest first; empty when it is not known."""
        return tuple(self._curves.get(key, ()))

    def last(self, key: Key) -> float | None:
        """Return the newest value of a curve."""
        curve = self._curves.get(key)
        return curve[-1][1] if curve else None

    def mean(self, key: Key, seconds: float) -> float | None:
        """Return the mean of the last ``seconds``, None where less than half of that is known."""
        curve = self.points(key)
        if not curve or curve[-1][0] - curve[0][0] < seconds / 2:
            return None
        values = [value for mono, value in curve if mono >= curve[-1][0] - seconds]
        return sum(values) / len(values)

    def growth(self, key: Key) -> float | None:
        """Return by how much a curve rose a second over the last minute; None before ten seconds."""
        curve = [p for p in self.points(key) if p[0] >= self.points(key)[-1][0] - GROWTH_WINDOW_SECONDS]
        if len(curve) < 2 or curve[-1][0] - curve[0][0] < GROWTH_LEAST_SECONDS:
            return None
        return (curve[-1][1] - curve[0][1]) / (curve[-1][0] - curve[0][0])


def _levels(look: Look) -> Iterator[tuple[Key, float]]:
    document = look.document
    for forecast in document["forecasts"]:
        if forecast["capacity_bytes"]:
            used = 1 - forecast["headroom_bytes"] / forecast["capacity_bytes"]
            yield Key("used", forecast["resource"]), used
    swap = document.get("swap")
    if swap and swap["total"]:
        yield Key("used", "swap"), 1 - swap["free"] / swap["total"]
    for card in document["gpus"]:
        if "utilization_ratio" in card:
            yield Key("busy", str(card["index"])), card["utilization_ratio"]
    for process in document["processes"]:
        yield Key("rss", str(process["pid"])), process["rss_bytes"] + process["swap_bytes"]
    for pid, used in vram(document).items():
        if used is not None:
            yield Key("vram", str(pid)), used


def vram(document: Mapping[str, Any]) -> dict[int, int | None]:
    """Return what each process holds of all cards together; None where a card does not tell."""
    found: dict[int, int | None] = {}
    for card in document["gpus"]:
        for process in card["processes"]:
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


def _rates(before: Look | None, now: Look) -> Iterator[tuple[Key, float]]:
    if before is None or now.mono <= before.mono:
        return
    seconds = now.mono - before.mono
    for what, counter in _RATES.items():
        rate = _increase(before.value(counter), now.value(counter))
        if rate is not None:
            yield Key(what), rate / seconds
    for resource, spent in _increases(before, now, "pressure_waiting_seconds", "resource").items():
        yield Key("waiting", resource), min(1.0, spent / seconds)
    modes = _increases(before, now, "cpu_seconds", "mode")
    busy = busy_share(modes)
    if busy is not None:
        yield Key("cpu"), busy


def busy_share(modes: Mapping[str, float]) -> float | None:
    """Return the share of the processor's time that was work, of the time spent in each mode."""
    total = sum(modes.values())
    return 1 - (modes.get("idle", 0.0) + modes.get("iowait", 0.0)) / total if total else None


def _increase(before: float | None, now: float | None) -> float | None:
    if before is None or now is None or now < before:  # one that fell has begun anew
        return None
    return now - before


def _increases(before: Look, now: Look, counter: str, label: str) -> dict[str, float]:
    old = {labels[label]: value for labels, value in before.series(counter)}
    found = {labels[label]: _increase(old.get(labels[label]), v) for labels, v in now.series(counter)}
    return {key: value for key, value in found.items() if value is not None}
