"""Cost of history: bytes per sample, bytes written, CPU time, memory, and the duration of queries.

    python tests/bench/bench_store.py [--hours 24] [--series 60] [--traces FOLDER] [--keep FILE]

Values are those of a simulated machine (a training that allocates and frees, page cache, counters, constants) or of
recorded traces, one tick per second, through the real writer.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import random
import resource
import sqlite3
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from wslgpud.config import StoreSettings
from wslgpud.metrics import MetricSpec
from wslgpud.model import Number, Reading, Sample, Snapshot, SourceReport
from wslgpud.store import Reader, SeriesRef, Store

T0 = 1_750_000_000 - 1_750_000_000 % 86400
PAGE = 4096

LEVEL = MetricSpec("bench_level_bytes", "gauge", "bytes", "A level of memory.", ("n",))
COUNT = MetricSpec("bench_events", "counter", "", "A counter.", ("n",))
SHARE = MetricSpec("bench_share_ratio", "gauge", "ratio", "A share of time.", ("n",), decimals=3)
HEAT = MetricSpec("bench_heat_celsius", "gauge", "celsius", "A temperature.", ("n",))
POWER = MetricSpec("bench_power_watts", "gauge", "watts", "Power.", ("n",), decimals=1)
FIXED = MetricSpec("bench_fixed_bytes", "gauge", "bytes", "What never changes.", ("n",))

#: among twenty series: RAM and VRAM levels, kernel counters, shares, temperatures, powers, fixed sizes
MIX = (LEVEL,) * 5 + (COUNT,) * 5 + (SHARE,) * 3 + (HEAT,) + (POWER,) + (FIXED,) * 5


class Machine:
    """A simulated machine with trainings, builds and idle nights."""

    def __init__(self, series: int, seed: int = 1) -> None:
        self._chance = random.Random(seed)
        self._specs = [MIX[i % len(MIX)] for i in range(series)]
        self._state: list[float] = [2.0**34 if s is LEVEL else 2.0**35 if s is FIXED else 40.0 for s in self._specs]

    def tick(self, second: int) -> tuple[Reading, ...]:
        busy = second % 86400 < 57600 and second // 1800 % 3 != 2
        gauss, state = self._chance.gauss, self._state
        readings = []
        for i, spec in enumerate(self._specs):
            if spec is LEVEL:
                # caches fluctuate all the time, allocations come in steps
                if self._chance.random() < (0.6 if busy else 0.15):
                    state[i] += PAGE * round(gauss(0, 300 if busy else 8))
                if busy and self._chance.random() < 0.01:
                    state[i] = 2.0**34 + PAGE * round(gauss(0, 200_000))
                value: Number = int(state[i])
            elif spec is COUNT:
                if i % 2 or busy:
                    state[i] += max(0, round(gauss(400, 200))) if busy else self._chance.random() < 0.05
                value = int(state[i])
            elif spec is SHARE:
                value = min(1.0, max(0.0, gauss(0.93, 0.04) if busy else gauss(0.01, 0.005)))
            elif spec is HEAT:
                state[i] += (70 if busy else 35) / 50 - state[i] / 50 + gauss(0, 0.3)
                value = round(state[i])
            elif spec is POWER:
                value = gauss(280, 15) if busy else gauss(25, 1)
            else:
                value = int(state[i])
            readings.append(Reading(spec, value, (str(i),)))
        return tuple(readings)


class Traces:
    """Concatenated recordings, one sample per second, extended to the number of series."""

    def __init__(self, folder: Path, series: int) -> None:
        self._columns: list[tuple[MetricSpec, list[Number]]] = []
        by_key: dict[str, list[Number]] = {}
        for file in sorted(folder.glob("*.jsonl.gz")):
            for line in gzip.decompress(file.read_bytes()).splitlines()[1:]:
                for key, value in _flat(json.loads(line)):
                    by_key.setdefault(f"{file.name.split('-')[0]}.{key}", []).append(value)
        for i, (key, values) in enumerate(sorted(by_key.items())[:series]):
            exact = all(isinstance(v, int) for v in values)
            spec = MetricSpec(f"trace{i}", "gauge", "", key, ("n",), decimals=0 if exact else 2)
            self._columns.append((spec, values))

    def tick(self, second: int) -> tuple[Reading, ...]:
        return tuple(Reading(spec, v[second % len(v)], ("0",)) for spec, v in self._columns)


def _flat(record: dict, prefix: str = "") -> Iterator[tuple[str, Number]]:
    for key, value in record.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        elif key == "gpus" and value:
            yield from _flat({k: v for k, v in value[0].items() if k not in ("index", "procs")}, "gpu.")
        elif isinstance(value, (int, float)) and key != "t":
            yield prefix + key, value


class Clock:
    """The simulated time."""

    now = float(T0)

    def wall(self) -> float:
        return self.now

    def mono(self) -> float:
        return self.now


def _timed(name: str, act, goal_ms: float, repeat: int = 7) -> None:
    times = []
    for _ in range(repeat):
        started = time.thread_time()
        result = act()
        times.append(time.thread_time() - started)
    sys.stdout.write(
        f"  {name:<44} {sorted(times)[repeat // 2] * 1e3:8.2f} ms  (goal {goal_ms:g})  {len(result)} values\n"
    )


def fill(file: Path, machine: Machine | Traces, hours: float) -> None:
    """Write ``hours`` of history and print the cost."""
    clock, ticks, samples = Clock(), round(hours * 3600), 0
    making = 0.0
    with Store(file, StoreSettings(raw_days=3650), host_name="bench", clock=clock) as store:
        cpu = time.process_time()
        for second in range(ticks):
            clock.now = T0 + second + 0.35 + 0.001 * math.floor(3 * math.sin(second))
            begun = time.process_time()
            readings = machine.tick(second)
            making += time.process_time() - begun
            samples += len(readings)
            report = SourceReport("bench", "ok", Sample(readings), clock.now, 0.001)
            store.append(Snapshot(clock.now, clock.now, second, (report,)))
            if second % 10 == 9:
                store.flush()
            if second % 60 == 0:
                store._writer.upkeep._due_mono = 0.0
        store.flush()
        cpu = time.process_time() - cpu - making
        stats = store.stats()
        written = stats.written_bytes_total or 0
        size = (stats.file_bytes or 0) + (stats.wal_bytes or 0)
    sys.stdout.write(
        f"{samples:,} samples of {samples // ticks} series in {hours:g} h\n"
        f"  on disk, log and free pages included         {size:,} bytes, {size / samples:.3f} a sample"
        f" (file {stats.file_bytes:,}, log {stats.wal_bytes:,}, free {stats.free_bytes:,})\n"
        f"  written to the disk                          {written / hours * 24 / 1e6:.1f} MB a day,"
        f" {written / samples:.2f} bytes a sample\n"
        f"  processor time a tick, all threads           {cpu / ticks * 1e3:.3f} ms (goal 1)\n"
        f"  peak memory of this process                  "
        f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.1f} MiB\n"
    )


def shares(file: Path) -> None:
    """Print the share of each table."""
    with sqlite3.connect(file) as database:
        sys.stdout.write("  ")
        for table in ("chunk", "rollup_minute", "rollup_hour", "batch"):
            sys.stdout.write(f"{table}: {database.execute(f'SELECT count(*) FROM {table}').fetchone()[0]:,} rows, ")
        data = database.execute("SELECT sum(length(data)) FROM chunk").fetchone()[0]
        sys.stdout.write(f"{data:,} bytes in sheets\n")
        try:
            rows = database.execute("SELECT name, sum(pgsize) FROM dbstat GROUP BY name ORDER BY 2 DESC LIMIT 6")
            sys.stdout.write("  " + ", ".join(f"{name} {size:,}" for name, size in rows) + "\n")
        except sqlite3.OperationalError:
            sys.stdout.write("  (this SQLite has no dbstat)\n")


def queries(file: Path, hours: float) -> None:
    """Time typical queries."""
    reader = Reader(str(file))
    end = T0 + hours * 3600
    refs: list[SeriesRef] = reader.series()
    ref = refs[0]
    _timed("24 h of one series at 1 s, times and values", lambda: reader.columns(ref, end - 86400, end)[0], 10)
    _timed("24 h of one series at 1 s, points", lambda: reader.read(ref, end - 86400, end), 10)
    _timed("24 h of one series by minute", lambda: reader.read(ref, end - 86400, end, 60), 20)
    _timed("a year by hour", lambda: reader.read(ref, end - 366 * 86400, end, 3600), 20)
    _timed("the last value of everything", reader.latest, 5)
    reader.close()


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--hours", type=float, default=24)
    options.add_argument("--series", type=int, default=60)
    options.add_argument("--traces", type=Path)
    options.add_argument("--keep", type=Path)
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        file = chosen.keep or Path(folder) / "bench.db"
        machine = Traces(chosen.traces, chosen.series) if chosen.traces else Machine(chosen.series)
        fill(file, machine, chosen.hours)
        shares(file)
        queries(file, chosen.hours)


if __name__ == "__main__":
    main()
