"""What the risk engine would have seen in the recorded past, for ``wslgpud replay --since``."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, Generic, TypeVar

from wslgpud import model
from wslgpud.metrics import MetricSpec
from wslgpud.sampling.observation import OBSERVED, observe
from wslgpud.sources import gpu, wsl
from wslgpud.store.reader import Reader
from wslgpud.store.records import SeriesRef

WINDOW_SECONDS = 3600.0
#: older values are dropped
OLDEST_SECONDS, PROCESSES_OLDEST_SECONDS = 15.0, 150.0
#: a gap this long in the database is a daemon that did not run, not a stall
AWAY_SECONDS = 60.0

_GPU_FIELDS = {f"gpu_memory_{name}_bytes": f"{name}_bytes" for name in ("total", "used", "free", "reserved")}
_SPECS: dict[str, MetricSpec] = {
    spec.name: spec
    for spec in (*(spec for source in OBSERVED for spec in source.metrics), *gpu.FED)
    if spec.name in _GPU_FIELDS or not spec.name.startswith("gpu")
}

T = TypeVar("T")
Known = dict[SeriesRef, tuple[float, model.Number]]


def observations(reader: Reader, start_wall: float, end_wall: float) -> Iterator[model.Observation]:
    """Yield what was recorded between two moments, in order; ``t`` is the time since the epoch.

    Read an hour at a time, so that a month takes no more memory than an hour.
    """
    refs = [ref for ref in reader.series() if ref.metric in _SPECS]
    under_wsl = any(ref.metric == wsl.WSL.name for ref in refs)  # read once a minute, true all the time
    known: Known = {}
    last: float | None = None
    while start_wall < end_wall:
        until = min(end_wall, start_wall + WINDOW_SECONDS)
        ticks: dict[float, list[tuple[SeriesRef, model.Number]]] = defaultdict(list)
        for ref in refs:
            for wall, value in zip(*reader.columns(ref, start_wall, until), strict=True):
                ticks[wall].append((ref, value))
        since = start_wall - PROCESSES_OLDEST_SECONDS
        processes = _Past(
            (p.wall, model.ProcessSample(p.pid, p.start_ticks, p.name, p.rss_bytes, p.swap_bytes))
            for p in reader.processes(since, until)
        )
        on_cards = _Past(
            (p.wall, (p.uuid, model.GpuProcess(p.pid, p.name, p.used_bytes)))
            for p in reader.gpu_processes(since, until)
        )
        for wall in sorted(ticks):
            known.update((ref, (wall, value)) for ref, value in ticks[wall])
            if not any(ref.metric in _TELLING for ref, _ in ticks[wall]) or wall == last:
                continue
            seen = _observation(wall, known, processes.at(wall), on_cards.at(wall))
            away = last is not None and wall - last > AWAY_SECONDS
            yield replace(seen, wsl=under_wsl, gap_expected=away)
            last = wall
        start_wall = until


_TELLING = {"gpu_memory_used_bytes", *(name for name in _SPECS if name.startswith("memory_available"))}


class _Past(Generic[T]):
    """What was seen now and then, asked for at times that only grow."""

    def __init__(self, seen: Iterable[tuple[float, T]]) -> None:
        by_time: dict[float, list[T]] = defaultdict(list)
        for wall, one in seen:
            by_time[wall].append(one)
        self._seen = deque((wall, tuple(by_time[wall])) for wall in sorted(by_time))

    def at(self, wall: float) -> tuple[T, ...]:
        """Return what was seen last, unless it is too old."""
        while len(self._seen) > 1 and self._seen[1][0] <= wall:
            self._seen.popleft()
        if self._seen and 0.0 <= wall - self._seen[0][0] <= PROCESSES_OLDEST_SECONDS:
            return self._seen[0][1]
        return ()


def _observation(
    wall: float,
    known: Known,
    running: tuple[model.ProcessSample, ...],
    on_cards: tuple[tuple[str, model.GpuProcess], ...],
) -> model.Observation:
    young = [
        model.Reading(_SPECS[ref.metric], value, tuple(label for _, label in ref.labels))
        for ref, (t, value) in known.items()
        if wall - t <= OLDEST_SECONDS
    ]
    gpus = tuple(
        replace(gpu, processes=tuple(process for uuid, process in on_cards if uuid == gpu.uuid)) for gpu in _gpus(young)
    )
    sample = model.Sample(readings=tuple(young), processes=running, gpus=gpus)
    report = model.SourceReport("history", "ok", sample, wall, 0.0)
    return observe(model.Snapshot(wall, wall, 0, (report,)))


def _gpus(readings: Iterable[model.Reading]) -> Iterator[model.GpuSample]:
    cards: dict[tuple[str, str], dict[str, Any]] = defaultdict(dict)
    for spec, value, labels in readings:
        if spec.name in _GPU_FIELDS:
            index, uuid = labels
            cards[index, uuid][_GPU_FIELDS[spec.name]] = int(value)
    for (index, uuid), known in sorted(cards.items()):
        if index.isdigit():
            yield model.GpuSample(int(index), uuid, "", **known)
