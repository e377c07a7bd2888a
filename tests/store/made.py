"""Snapshots made of plain numbers, for tests of the store.

Run as a program it is the victim of the crash tests: ``made.py FILE`` writes a tick after each line it
reads, and prints the tick's number once that is on disk.
"""

from __future__ import annotations

import os
import sqlite3
import sys
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.pool import NullPool

from wslgpud.config import StoreSettings
from wslgpud.metrics import MetricSpec
from wslgpud.model import (
    EMPTY,
    Event,
    Forecast,
    GpuProcess,
    GpuSample,
    Level,
    Number,
    ProcessSample,
    Reading,
    Sample,
    Snapshot,
    SourceReport,
    Transition,
)
from wslgpud.store import Store
from wslgpud.words import Message

BYTES = MetricSpec("made_bytes", "gauge", "bytes", "A level.", ("kind",))
RATIO = MetricSpec("made_ratio", "gauge", "ratio", "A share.", decimals=3)
EVENTS = MetricSpec("made_events", "counter", "", "A counter.")
PASSING = MetricSpec("made_passing", "gauge", "", "Of no interest tomorrow.", stored=False)

#: a plausible Tuesday, at midnight
T0 = 1_750_000_000 - 1_750_000_000 % 86400
#: a stretch that begins with a chunk, and has a gap of minutes
SEALED_FROM = T0 - 2700
SEALED_SECONDS = (*range(0, 300, 5), *range(540, 800, 5))


def snapshot(
    wall: float,
    values: Mapping[MetricSpec | tuple[MetricSpec, str], Number] | None = None,
    *,
    fresh: bool = True,
    events: tuple[Event, ...] = (),
    processes: tuple[ProcessSample, ...] | None = None,
    gpus: tuple[GpuSample, ...] | None = None,
) -> Snapshot:
    """Return a tick at ``wall`` with these values; a key is a metric or (metric, value of its label)."""
    readings = tuple(
        Reading(key[0], value, (key[1],))
        if isinstance(key, tuple) and isinstance(key[0], MetricSpec)
        else Reading(key, value)
        for key, value in (values or {}).items()
    )
    sample = Sample(readings, processes=processes, gpus=gpus, events=events)
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


def read_all(reader, pattern="*", start=T0 - 10**7, end=T0 + 10**9):
    """Return (seconds after T0, value) of every point of the series that match."""
    return [(round(p.wall - T0, 3), p.value) for ref in reader.series(pattern) for p in reader.read(ref, start, end)]


def raw_since(reader):
    """Return since when every sample is kept, in seconds after T0."""
    return round(reader.oldest().raw_wall - T0, 3)


def damage(file, table, *places):
    """Overwrite the page in the middle of a table with noise, or those at these places in order."""
    with closing(sqlite3.connect(file)) as database:
        if ("ENABLE_DBSTAT_VTAB",) not in database.execute("PRAGMA compile_options").fetchall():
            pytest.skip("this SQLite cannot tell which page is which")
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        size = database.execute("PRAGMA page_size").fetchone()[0]
        pages = [
            page
            for (page,) in database.execute(
                "SELECT pageno FROM dbstat WHERE name = ? AND pagetype = 'leaf' ORDER BY path", (table,)
            )
        ]
    with file.open("r+b") as raw:
        for place in places or (len(pages) // 2,):
            raw.seek((pages[place] - 1) * size)
            raw.write(b"\xa5" * size)
    return len(pages)


def query(target, sql, **values):
    """Return the rows of a query that a person might type."""
    url = str(target) if "://" in str(target) else f"sqlite:///{target}"
    engine = create_engine(url, poolclass=NullPool)
    with engine.connect() as connection:
        return [tuple(row) for row in connection.execute(text(sql), values)]


def until(condition, seconds=300):
    """Wait for something that another thread brings about."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def settle(store, clock, seconds=300):
    """Wait until the upkeep after all that was appended has nothing left to do."""
    assert store.flush()
    clock.now += 0.001
    deadline = time.monotonic() + seconds
    while store.stats().last_purge_wall != clock.now:
        assert store.flush()
        assert time.monotonic() < deadline, store.stats()


def copied(store, clock=None):
    """Wait until all that the file holds is on the server, and, with a ``clock``, its upkeep there is done."""
    assert store.flush()
    assert store._replication.flush(300)
    assert store.stats().replication_queue_ticks == 0
    if clock is not None:
        clock.now += 0.001
        until(lambda: store._replication.flush(300) and store._replication.stats.last_purge_wall == clock.now)


def as_on_a_server(file):
    """Give the rows of a file the ids of a second machine, so that another one has the first, as on a server."""
    with closing(sqlite3.connect(file)) as database, database:
        database.execute("UPDATE host SET id = 1, sealed = sealed + (1 << 34)")
        database.execute("UPDATE series SET host = 1, id = id + (1 << 32)")
        database.execute("UPDATE batch SET slot = slot + (1 << 34)")
        for table in ("rollup_minute", "rollup_hour"):
            database.execute(f"UPDATE {table} SET series = series + (1 << 32)")
        for table in ("batch", "chunk", "event", "transition", "daemon_run"):
            database.execute(f"UPDATE {table} SET id = id + (1 << 34)")
        database.execute("INSERT INTO host (id, name, sealed) VALUES (0, '', 0)")


def victims(file: str) -> None:
    """For each line "FIRST LAST" fork a writer of these ticks; tell its id, and each tick that is on disk."""
    for line in sys.stdin:
        child = os.fork()
        if not child:
            write_until_killed(file, *map(int, line.split()))
        os.waitpid(child, 0)
        tell("gone")


def write_until_killed(file: str, first: int, last: int) -> None:
    tell(f"writer {os.getpid()}")
    store = Store(file, StoreSettings(raw_days=3650), host_name="pc")
    for number in range(first, last):
        values = {(BYTES, str(i)): number for i in range(50)}
        store.append(snapshot(T0 + number, values), urgent=number % 2 == 0)
        if number % 10 == 0 and store.flush():
            tell(f"written {number}")
    time.sleep(3600)


def tell(line: str) -> None:
    os.write(1, f"{line}\n".encode())


def sealed_values(second: int) -> dict[MetricSpec | tuple[MetricSpec, str], Number]:
    """Return the blocks of a frozen history, from its second 0 on."""
    values: dict[MetricSpec | tuple[MetricSpec, str], Number] = {
        (BYTES, "sealed"): 2**34 + 4096 * (second * second % 101),
        (BYTES, "still"): 2**30,
        RATIO: second % 7 / 8,
    }
    return values | ({EVENTS: second} if second % 25 == 0 else {})


def seal_some(store: Store) -> None:
    """Append the seconds of ``sealed_values`` and wait until they are sealed."""
    for second in SEALED_SECONDS:
        store.append(snapshot(SEALED_FROM + second, sealed_values(second)))
    store.append(snapshot(T0 - 1, {}, processes=(ProcessSample(42, 123, "python", 2**30, 0),)))

    def sealed() -> bool:
        store._writer.upkeep._due_mono = 0.0
        return store.flush() and store.reader.oldest().minute_wall is not None

    until(sealed)


def freeze(folder: Path) -> None:
    """Write a small history of today's schema as SQL; made once for each schema, before its release."""
    file = folder / "frozen.db"
    with Store(file, host_name="pc", boot_id="5b1c", clock=FakeClock(T0)) as store:
        seal_some(store)
        for second in range(5):
            values = {(BYTES, "free"): 2**34 + second * 4096, RATIO: second / 8}
            event = Event("clock_jump", T0 + second, "went back", {"seconds": -1})
            process = ProcessSample(42, 123, "python", 2**30, 0)
            gpu = GpuSample(0, "GPU-1", "card", processes=(GpuProcess(42, "python", 2**30),))
            tick = snapshot(T0 + second, values, events=(event,), processes=(process,), gpus=(gpu,))
            store.append(tick)
        store.append(snapshot(T0 + 900, {EVENTS: 7}))
        forecast = Forecast("ram", Level.WARNING, 5, 10, 1.5, 1.0, 2.0, None, {60: 0.25}, "python", "growing")
        transition = Transition(T0, 12.5, "ram", "r", Level.OK, Level.WARNING, Message("RAM full in 2 s"), forecast)
        store.outbox.record(transition, {"command": {"text": "RAM"}, "ntfy": {"text": "RAM"}})
        store.outbox.tried(store.outbox.unsent("command")[0].id, done=True)
        store.learn("GPU-1", {"ceiling_bytes": 2**33, "ceiling": "seen"})
    with closing(sqlite3.connect(file)) as database:
        (version,) = database.execute("SELECT max(version) FROM schema_migration").fetchone()
        (mark,) = database.execute("PRAGMA application_id").fetchone()
        pragmas = f"PRAGMA auto_vacuum = INCREMENTAL;\nPRAGMA application_id = {mark};\n"
        dump = Path(__file__).parents[1] / "schemas" / f"v{version}.sql"
        dump.write_text(
            f"-- a small history as schema {version} wrote it; never changed\n{pragmas}"
            + "\n".join(database.iterdump())
            + "\n",
            encoding="utf-8",
        )


if __name__ == "__main__":
    if sys.argv[1] == "--freeze":
        with TemporaryDirectory() as scratch:
            freeze(Path(scratch))
    else:
        victims(sys.argv[1])
