"""Fills a database in minutes as a daemon would have in a year.

    python -m tests.bench.year FILE [--days 366] [--raw-days 30] [--series 60] [--seed 1]

The newest days have every sample, made in stretches of a quarter of an hour and sealed by the store's own functions;
the minute and hour summaries before them repeat these days, with counters that keep growing.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from sqlalchemy import Connection, text

from wslgpud.app.catalogue import catalogue
from wslgpud.config import StoreSettings
from wslgpud.metrics import MetricSpec
from wslgpud.model import Reading, Sample, Snapshot, SourceReport
from wslgpud.store import Store, engines, schema, series_reader, upkeep
from wslgpud.store.schema import PERIOD_SECONDS

DAY = 86400
PAGE = 4096
UUIDS = ("GPU-5d3a2c1e-0000-4000-8000-000000000000", "GPU-5d3a2c1e-0000-4000-8000-000000000001")
#: values of each label on a machine with two cards
VALUES = {
    "gpu": ("0", "1"),
    "mode": ("user", "system", "iowait", "idle"),
    "resource": ("memory", "cpu", "io"),
    "window": ("10s",),
    "device": ("sda",),
    "type": ("anon", "file"),
    "clock": ("graphics", "memory"),
    "program": ("python", "nvcc"),
}
#: series of most machines, most informative first; the rest of the catalogue follows
FIRST = (
    "memory_total_bytes",
    "memory_available_bytes",
    "swap_total_bytes",
    "swap_free_bytes",
    "gpu_memory_total_bytes",
    "gpu_memory_used_bytes",
    "gpu_memory_free_bytes",
    "gpu_utilization_ratio",
    "gpu_temperature_celsius",
    "gpu_power_watts",
    "gpu_clock_hertz",
    "cpu_seconds",
    "load1",
)


@dataclass
class Line:
    """A series of the machine with its state."""

    spec: MetricSpec
    labels: tuple[str, ...]
    value: float

    @property
    def key(self) -> str:
        return f"{self.spec.name}{self.labels}"


def lines(count: int) -> list[Line]:
    """Return ``count`` series of the catalogue for a machine with two cards."""
    specs = {spec.name: spec for spec in catalogue() if spec.stored and spec.kind != "info"}
    ordered = [specs[name] for name in FIRST] + [s for n, s in specs.items() if n not in FIRST]
    found: list[Line] = []
    for spec in ordered:
        if set(spec.labels) - {*VALUES, "uuid"}:
            continue
        combinations: list[tuple[str, ...]] = [()]
        for label in spec.labels:
            combinations = [
                (*c, *([UUIDS[int(c[spec.labels.index("gpu")])]] if label == "uuid" else [value]))
                for c in combinations
                for value in (VALUES[label] if label != "uuid" else ("",))
            ]
        start = 2.0**34 if spec.unit == "bytes" else 40.0 if spec.kind == "gauge" else 0.0
        found += [Line(spec, labels, start) for labels in combinations]
    if len(found) < count:
        raise SystemExit(f"this machine has {len(found)} series at most")
    return found[:count]


class Machine:
    """A machine with trainings and builds on weekdays, and on some nights a training."""

    def __init__(self, known: list[Line], seed: int) -> None:
        self.lines = known
        self._chance = np.random.default_rng(seed)

    def stretch(self, start: int, seconds: int) -> list[list[int] | list[float]]:
        """Return the values of each series at each second from ``start`` on."""
        clock = start + np.arange(seconds)
        hour, day = clock % DAY / 3600, clock // DAY
        working = (day % 7 < 5) & (hour > 8) & (hour < 19)
        busy = (working & (clock // 1800 % 3 != 2)) | ((day % 3 == 0) & (hour < 6))
        return [self._values(line, busy) for line in self.lines]

    def _values(self, line: Line, busy: np.ndarray) -> list[int] | list[float]:
        spec, chance, count = line.spec, self._chance, len(busy)
        noise = chance.normal(size=count)
        if spec.kind == "info" or (spec.kind == "gauge" and not spec.unit and not spec.decimals):
            return [int(line.value)] * count  # identities, levels and booleans
        if spec.kind == "counter":
            grows = busy | (chance.random(count) < 0.02)
            scale = PAGE * 200 if spec.unit == "bytes" else 0.5 if spec.unit == "seconds" else 40
            rise = np.where(grows, np.maximum(0, scale * (1 + noise / 3)), 0)
            values = line.value + np.cumsum(np.round(rise, spec.decimals))
            line.value = float(values[-1])
        elif spec.unit == "bytes":
            if any(word in spec.name for word in ("total", "limit", "size", "capacity")):
                return [int(line.value)] * count
            moves = chance.random(count) < np.where(busy, 0.6, 0.15)
            steps = np.where(moves, np.round(noise * np.where(busy, 300, 8)), 0)
            jumps = np.where(busy & (chance.random(count) < 0.005), np.round(noise * 200_000), 0)
            pull = (2.0**33 - line.value) / PAGE * 2e-4
            values = line.value + PAGE * np.cumsum(np.round(steps + jumps + pull))
            values = np.clip(values, 0, 2**35)
            line.value = float(values[-1])
        elif spec.unit == "ratio":
            values = np.clip(np.where(busy, 0.93 + noise * 0.04, 0.01 + noise * 0.005), 0, 1)
        elif spec.unit == "watts":
            values = np.where(busy, 280 + 15 * noise, 25 + noise)
        elif spec.unit == "celsius":
            values = np.round(np.where(busy, 71, 38) + noise * 0.4)
        elif spec.unit == "hertz":
            values = np.where(busy, 2_400_000_000, 210_000_000)
        else:
            values = np.where(busy, 4 + noise, 0.2 + noise * 0.05).clip(0)
        return [round(v) for v in (values * 10**spec.decimals).tolist()]


def make(file: Path, *, end: int, days: float, raw_days: float, series: int, seed: int = 1) -> Iterator[float]:
    """Fill ``file`` with history up to ``end``; yield the progress as a ratio."""
    machine = Machine(lines(series), seed)
    raw_start = end - round(raw_days * DAY)
    raw_start -= raw_start % PERIOD_SECONDS
    numbers = _declare(file, machine, raw_start)
    engine = engines.writer_engine(file)
    with engine.connect() as connection:
        engines.run_outside(connection, "PRAGMA cache_size = -65536")
        periods = range(raw_start, end - PERIOD_SECONDS + 1, PERIOD_SECONDS)
        for done, start in enumerate(periods):
            _seal(connection, done + 1, start, numbers, machine.stretch(start, PERIOD_SECONDS))
            yield done / len(periods)
        grown = {
            number: round(line.value * 10 ** (line.spec.decimals)) * (line.spec.kind == "counter")
            for number, line in zip(numbers, machine.lines, strict=True)
        }
        _repeat(connection, grown, raw_start, end, end - round(days * DAY))
    engine.dispose()


def _declare(file: Path, machine: Machine, start: int) -> list[int]:
    """Let the store create the file and register the series; return their ids."""
    readings = tuple(Reading(line.spec, 0, line.labels) for line in machine.lines)
    with Store(file, StoreSettings(), host_name="year") as store:
        sample = SourceReport("year", "ok", Sample(readings), start, 0.001)
        store.append(Snapshot(start, start, 0, (sample,)))
        if not store.flush(60):
            raise SystemExit(store.stats().error)
        with store.reader.connected() as connection:
            known = {
                f"{row.ref.metric}{tuple(value for _, value in row.ref.labels)}": row.number
                for row in series_reader.listed(connection)
            }
        engine = engines.writer_engine(file)
    with engine.begin() as connection:
        connection.execute(text("DELETE FROM batch"))
    engine.dispose()
    return [known[line.key] for line in machine.lines]


def _seal(
    connection: Connection, chunk: int, start: int, numbers: list[int], columns: list[list[int] | list[float]]
) -> None:
    # timers fire some milliseconds late
    times = [(start + second) * 1000 + 350 + second * 7 % 4 for second in range(len(columns[0]))]
    write = upkeep.chunk_writer(chunk, [(n, times, values) for n, values in zip(numbers, columns, strict=True)], [])
    with connection.begin():
        write(connection)


def _repeat(connection: Connection, grown: dict[int, int], start: int, end: int, first: int) -> None:
    """Repeat the summaries before themselves, back to ``first``; ``grown`` is the growth of counters per repetition."""
    span = (end - start) // DAY * DAY or end - start
    connection.execute(text("CREATE TEMP TABLE grown (series INTEGER PRIMARY KEY, by INTEGER NOT NULL)"))
    added = [{"series": number, "by": by} for number, by in grown.items()]
    connection.execute(text("INSERT INTO grown VALUES (:series, :by)"), added)
    connection.commit()
    for copy in range(-(-(end - first) // span) - 1, 0, -1):
        for tier in (schema.MINUTES, schema.HOURS):
            columns = ", ".join(tier.table.c.keys()[4:])
            again = (
                f"INSERT OR REPLACE INTO {tier.table.name} (part, series, unit, base, {columns})"
                f" SELECT part - :back, old.series, unit, base - :copy * by, {columns}"
                f" FROM {tier.table.name} old JOIN grown ON grown.series = old.series"
                " WHERE part >= :start AND part - :back >= :first ORDER BY part, old.series"
            )
            words = {"back": copy * span, "copy": copy, "start": start // DAY * DAY, "first": first}
            connection.execute(text(again), words)
            connection.commit()


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("file", type=Path)
    options.add_argument("--days", type=float, default=366)
    options.add_argument("--raw-days", type=float, default=30)
    options.add_argument("--series", type=int, default=60)
    options.add_argument("--seed", type=int, default=1)
    chosen = options.parse_args()
    if chosen.file.exists():
        raise SystemExit(f"{chosen.file} exists already; it is left as it is")
    began, shown = time.monotonic(), 0.0
    end = int(time.time()) // PERIOD_SECONDS * PERIOD_SECONDS
    for share in make(
        chosen.file, end=end, days=chosen.days, raw_days=chosen.raw_days, series=chosen.series, seed=chosen.seed
    ):
        if share >= shown:
            sys.stderr.write(f"\r{share:4.0%}")
            shown = share + 0.01
    sys.stderr.write(f"\r{chosen.file}: {chosen.file.stat().st_size:,} bytes in {time.monotonic() - began:.0f} s\n")


if __name__ == "__main__":
    main()
