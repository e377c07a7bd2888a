"""History as the risk engine saw it: observations rebuilt from the database, for ``replay``."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Protocol

from wslgpud.metrics import MetricSpec
from wslgpud.model import (
    GpuSample,
    Number,
    Observation,
    ProcessSample,
    Reading,
    Sample,
    Snapshot,
    SourceReport,
)
from wslgpud.observe import WANTED, observe
from wslgpud.sources.memory import MEMINFO
from wslgpud.sources.registry import SOURCES
from wslgpud.sources.wsl import WSL

#: read in pieces, so that a week fits into memory
PIECE_SECONDS = 3600.0
#: a look at the process list counts until the next one, as it does live
PROCESSES_SECONDS = 30.0

_GPU_FIELDS = {
    "gpu_memory_total_bytes": "total_bytes",
    "gpu_memory_used_bytes": "used_bytes",
    "gpu_memory_free_bytes": "free_bytes",
    "gpu_memory_reserved_bytes": "reserved_bytes",
    "gpu_utilization_ratio": "utilization_ratio",
    "gpu_power_watts": "power_watts",
    "gpu_temperature_celsius": "temperature_celsius",
}
_Values = dict[tuple[str, tuple[str, ...]], Number]


class Series(Protocol):
    """A series of the store."""

    @property
    def metric(self) -> str:
        """Name as declared."""

    @property
    def labels(self) -> tuple[tuple[str, str], ...]:
        """Pairs, in the order of the declaration."""


class Reader(Protocol):
    """The part of the store's reader that is used here."""

    def series(self) -> list[Any]:
        """Return all series."""

    def columns(self, series: Any, start_wall: float, end_wall: float) -> tuple[list[float], list[Number]]:
        """Return times and values of a series."""

    def processes(self, start_wall: float, end_wall: float) -> list[Any]:
        """Return the processes recorded between two moments, by time."""


def observations(reader: Reader, start_wall: float, end_wall: float) -> Iterator[Observation]:
    """Yield what the engine observed between two moments; ``t`` counts from the first.

    What only lives in memory (processes on the card, events of the kernel log) is not in the history.
    """
    specs = {spec.name: spec for source in SOURCES for spec in source.metrics}
    wanted = [s for s in reader.series() if s.metric in specs and s.metric in WANTED | _GPU_FIELDS.keys()]
    under_wsl = any(s.metric == WSL.name for s in wanted)  # read once a minute, true all the time
    begin, processes = start_wall, _Processes()
    while begin <= end_wall:
        end = min(begin + PIECE_SECONDS, end_wall + 0.001)
        ticks: dict[float, _Values] = defaultdict(dict)
        for series in wanted:
            labels = tuple(value for _, value in series.labels)
            for wall, value in zip(*reader.columns(series, begin, end - 0.001), strict=True):
                ticks[wall][series.metric, labels] = value
        processes.add(reader.processes(begin, end - 0.001))
        for wall in sorted(ticks):
            if (MEMINFO["MemTotal"].name, ()) in ticks[wall]:
                tick = _observation(wall, wall - start_wall, ticks[wall], specs, processes.at(wall))
                yield replace(tick, wsl=under_wsl)
        begin = end


def _observation(
    wall: float,
    t: float,
    values: _Values,
    specs: Mapping[str, MetricSpec],
    processes: tuple[ProcessSample, ...],
) -> Observation:
    cards: dict[tuple[str, ...], dict[str, Number]] = defaultdict(dict)
    readings = []
    for (name, labels), value in values.items():
        if name in _GPU_FIELDS:
            cards[labels][_GPU_FIELDS[name]] = value
        else:
            readings.append(Reading(specs[name], value, labels))
    gpus = tuple(GpuSample(int(index), uuid, "", **fields) for (index, uuid), fields in sorted(cards.items()))  # type: ignore[arg-type]
    sample = Sample(tuple(readings), processes=processes, gpus=gpus)
    return observe(Snapshot(wall, t, 0, (SourceReport("history", "ok", sample, t, 0.0),)))


class _Processes:
    """Looks at the process list, the newest of which counts."""

    def __init__(self) -> None:
        self._looks: dict[float, list[ProcessSample]] = {}
        self._current: tuple[float, tuple[ProcessSample, ...]] = (-1e18, ())

    def add(self, points: list[Any]) -> None:
        for p in points:
            sample = ProcessSample(p.pid, p.start_ticks, p.name, p.rss_bytes, p.swap_bytes, command=p.name)
            self._looks.setdefault(p.wall, []).append(sample)

    def at(self, wall: float) -> tuple[ProcessSample, ...]:
        """Return the last look before ``wall``; ask in order of time."""
        for moment in sorted(m for m in self._looks if m <= wall):
            self._current = moment, tuple(self._looks.pop(moment))
        moment, found = self._current
        return found if wall - moment <= PROCESSES_SECONDS else ()
