"""Snapshots made of plain numbers, for tests of the store.

Run as a program it is the victim of the crash tests: ``made.py FILE`` writes a tick after each line it
reads, and prints the tick's number once that is on disk.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping

from sqlalchemy import create_engine, text
from sqlalchemy.pool import NullPool

from wslgpud.config import StoreSettings
from wslgpud.metrics import MetricSpec
from wslgpud.model import EMPTY, Event, Number, ProcessSample, Reading, Sample, Snapshot, SourceReport
from wslgpud.store import Store

BYTES = MetricSpec("made_bytes", "gauge", "bytes", "A level.", ("kind",))
RATIO = MetricSpec("made_ratio", "gauge", "ratio", "A share.", decimals=3)
DOUBLE = MetricSpec("made_double", "gauge", "", "A number of which every bit counts.", decimals=None)
EVENTS = MetricSpec("made_events", "counter", "", "A counter.")
PASSING = MetricSpec("made_passing", "gauge", "", "Of no interest tomorrow.", stored=False)

#: a plausible Tuesday, at midnight
T0 = 1_750_000_000 - 1_750_000_000 % 86400


def snapshot(
    wall: float,
    values: Mapping[MetricSpec | tuple[MetricSpec, str], Number] | None = None,
    *,
    fresh: bool = True,
    events: tuple[Event, ...] = (),
    processes: tuple[ProcessSample, ...] | None = None,
) -> Snapshot:
    """Return a tick at ``wall`` with these values; a key is a metric or (metric, value of its label)."""
    readings = tuple(
        Reading(key[0], value, (key[1],)) if isinstance(key, tuple) and isinstance(key[0], MetricSpec)
        else Reading(key, value)
        for key, value in (values or {}).items()
    )  # fmt: skip
    sample = Sample(readings, processes=processes, events=events)
    report = SourceReport("made", "ok", sample, wall, 0.001, fresh=fresh)
    return Snapshot(wall, wall, 1, (report, SourceReport("other", "failed", EMPTY, wall, 0.001)))


class FakeClock:
    """A clock that stands still until it is set."""

    def __init__(self, wall: float) -> None:
        self.now = wall

    def wall(self) -> float:
        return self.now

    def mono(self) -> float:
        return self.now


def read_all(store, pattern="*", start=T0 - 10**7, end=T0 + 10**9):
    """Return (seconds after T0, value) of every point of the series that match."""
    return [
        (round(p.wall - T0, 3), p.value) for ref in store.series(pattern) for p in store.read(ref, start, end)
    ]


def query(target, sql, **values):
    """Return the rows of a query that a person might type."""
    url = str(target) if "://" in str(target) else f"sqlite:///{target}"
    engine = create_engine(url, poolclass=NullPool)
    with engine.connect() as connection:
        return [tuple(row) for row in connection.execute(text(sql), values)]


def until(condition, seconds=60):
    """Wait for something that another thread brings about."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def settle(store, clock, seconds=60):
    """Wait until the upkeep after all that was appended has nothing left to do."""
    assert store.flush()
    clock.now += 0.001
    deadline = time.monotonic() + seconds
    while store.stats().last_purge_wall != clock.now:
        assert store.flush()
        assert time.monotonic() < deadline, store.stats()


def victim(file: str) -> None:
    """Write a tick for each line read; print its number once it is on disk."""
    store = Store(file, StoreSettings(raw_days=3650), host_name="pc")
    for line in sys.stdin:
        number = int(line)
        values = {(BYTES, str(i)): number for i in range(50)}
        store.append(snapshot(T0 + number, values), urgent=number % 2 == 0)
        if number % 10 == 0 and store.flush():
            sys.stdout.write(f"{number}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    victim(sys.argv[1])
