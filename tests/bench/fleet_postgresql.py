"""Two hundred stores that copy themselves to one PostgreSQL; see ``bench_fleet``."""

from __future__ import annotations

import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine
from sqlalchemy.pool import NullPool

from tests.bench.bench_cost import spent
from tests.bench.fleet import Box
from tests.bench.year import DAY, Line
from tests.store.made import FakeClock
from tests.support.servers import PostgreSQL, free_port, postgresql
from wslgpud.config import StoreSettings
from wslgpud.store import Reader, Store, upkeep
from wslgpud.store.schema import PERIOD_SECONDS

#: one connection per daemon; Debian's default is 100
CONNECTIONS = 300
#: the daemon's default
SETTINGS = StoreSettings()
#: how long a tenth of the machines is disconnected from the server
AWAY_SECONDS = 3600
#: until all are connected, have committed, and are in step with the clock again
WARM_UP_SECONDS = 75
#: tables whose size is listed separately
TABLES = {"samples": ("chunk",), "summaries": ("rollup_minute", "rollup_hour")}
#: time of each machine's newest sample, with one sample per second
NEWEST = "SELECT max(ms + (ticks - 1) * 1000) / 1000.0 FROM batch GROUP BY slot >> 34"


class Fleet:
    """The stores of all machines, with their simulated time; the server listens on ``port``."""

    def __init__(self, known: Sequence[Line], machines: int, folder: Path, port: int, start: int) -> None:
        self.clock, self.series = FakeClock(start), len(known)
        self.url = f"postgresql+psycopg://postgres@127.0.0.1:{port}/postgres"
        self.boxes = [Box(number, known) for number in range(machines)]
        self.stores = [self._store(box.name, folder) for box in self.boxes]

    def _store(self, name: str, folder: Path) -> Store:
        file = folder / name / "wslgpud.db"
        return Store(self.url, SETTINGS, host_name=name, machine_id=name, clock=self.clock, own_file=file)

    def close(self) -> None:
        with ThreadPoolExecutor(50) as pool:  # each may take seconds
            for _ in pool.map(Store.close, self.stores):
                pass
        self.stores = []

    def query(self, sql: str) -> list[Any]:
        engine = create_engine(self.url, isolation_level="AUTOCOMMIT", poolclass=NullPool)
        with engine.connect() as connection:
            return [*connection.exec_driver_sql(sql)]

    def write(self, some: int, seconds: int) -> None:
        """Write ``seconds`` of samples of ``some`` machines, one after another."""
        start = round(self.clock.now)
        for box, store in zip(self.boxes[:some], self.stores, strict=False):
            for begin in range(start, start + seconds, PERIOD_SECONDS):
                for snapshot in box.snapshots(begin, min(PERIOD_SECONDS, start + seconds - begin)):
                    self.clock.now = snapshot.wall
                    store.append(snapshot)
            store.flush()
        self.clock.now = float(start + seconds)

    def look_after(self, when_mono: float = 0.0) -> None:
        """Let each copy on the server seal and delete what is due, now or at another time."""
        for store in self.stores:
            store._replication.upkeep._due_mono = when_mono
            store._replication.wake()


def wait_until(done: Callable[[], bool], patience_seconds: float = 600.0) -> float:
    """Wait for a condition; return the seconds it took."""
    began = time.monotonic()
    while not done():
        if time.monotonic() - began > patience_seconds:
            raise SystemExit("it does not end")
        time.sleep(0.25)
    return time.monotonic() - began


class Meter:
    """CPU time of the server and of this process since its creation."""

    def __init__(self, server: PostgreSQL) -> None:
        self._server = server
        self._before = self._now()

    def _now(self) -> tuple[float, float]:
        return spent([self._server.pid]).cpu_seconds, time.process_time()

    def read(self) -> dict[str, float]:
        server, own = (now - before for now, before in zip(self._now(), self._before, strict=True))
        return {"server_cpu_seconds": server, "machines_cpu_seconds": own}


def _caught_up(fleet: Fleet, server: PostgreSQL, away: int, seconds: int) -> dict[str, Any]:
    """Measure how long the server takes to receive all that ``away`` machines have written while disconnected."""
    meter = Meter(server)
    took = wait_until(lambda: all(store.stats().replication_queue_ticks == 0 for store in fleet.stores))
    samples = away * seconds * fleet.series
    return {"machines": away, "away_seconds": seconds, "samples": samples, "seconds": took, **meter.read()}


def _samples(fleet: Fleet) -> int:
    return int(fleet.query("SELECT sum(samples) FROM chunk")[0][0])


def _sealed(fleet: Fleet, server: PostgreSQL, chunks: int) -> dict[str, Any]:
    """Seal the complete quarters of an hour on the server."""
    meter = Meter(server)
    fleet.look_after()
    took = wait_until(lambda: fleet.query("SELECT count(*) FROM chunk") == [(chunks,)])
    samples = _samples(fleet)
    sizes = {}
    for name, tables in TABLES.items():
        total = " + ".join(f"pg_total_relation_size('{table}')" for table in tables)
        sizes[f"{name}_bytes"] = int(fleet.query(f"SELECT {total}")[0][0])
    return {"quarters": chunks, "samples": samples, "seconds": took, **meter.read(), **sizes}


class Lag(threading.Thread):
    """Polls the server for the age of the newest sample of each machine."""

    def __init__(self, fleet: Fleet) -> None:
        super().__init__(daemon=True)
        self._fleet, self._ended = fleet, threading.Event()
        self.seconds: list[float] = []

    def run(self) -> None:
        while not self._ended.wait(3.0):
            newest = self._fleet.query(NEWEST)
            self.seconds += [self._fleet.clock.now - float(wall) for (wall,) in newest]

    def end(self) -> list[float]:
        self._ended.set()
        self.join()
        return sorted(self.seconds)


def _live(fleet: Fleet, server: PostgreSQL, seconds: int) -> dict[str, Any]:
    """Write in real time."""
    start = round(fleet.clock.now)
    made = [[*box.snapshots(start, WARM_UP_SECONDS + seconds)] for box in fleet.boxes]
    lag, late, meter, log = Lag(fleet), 0.0, Meter(server), 0
    began = time.monotonic()
    for second, snapshots in enumerate(zip(*made, strict=True)):
        if second == WARM_UP_SECONDS:
            meter, log = Meter(server), _log_bytes(fleet)
            lag.start()
        fleet.clock.now = snapshots[0].wall
        for store, snapshot in zip(fleet.stores, snapshots, strict=True):
            store.append(snapshot)
        if second >= WARM_UP_SECONDS:
            late = max(late, time.monotonic() - began - second)
        time.sleep(max(0.0, began + second + 1 - time.monotonic()))
    used, log = meter.read(), _log_bytes(fleet) - log
    found, last = lag.end(), spent([server.pid])
    samples = seconds * fleet.series * len(fleet.stores)
    return {
        "seconds": seconds,
        "samples_a_second": samples / seconds,
        **used,
        "server_pss_bytes": last.pss_bytes,
        "server_processes": last.processes,
        "log_bytes_a_sample": log / samples,
        "lag_p50_seconds": statistics.median(found),
        "lag_max_seconds": found[-1],
        "late_seconds": late,
    }


def _log_bytes(fleet: Fleet) -> int:
    return int(fleet.query("SELECT pg_current_wal_lsn() - '0/0'")[0][0])


def timed(act: Callable[[], object], repeat: int = 5) -> float:
    """Return the median duration of some calls in seconds."""

    def once() -> float:
        began = time.perf_counter()
        act()
        return time.perf_counter() - began

    return statistics.median(once() for _ in range(repeat))


def _questions(fleet: Fleet, begin: float) -> dict[str, float]:
    minute = f"SELECT host, time, last FROM minute WHERE metric = 'memory_available_bytes' AND time >= {begin}"
    with Reader(fleet.url) as reader:
        ref = reader.series("memory_available_bytes", fleet.boxes[0].name)[0]
        return {
            "last values of all machines": timed(reader.latest),
            "available RAM by minute": timed(lambda: fleet.query(minute)),
            "one series of one machine, each second": timed(lambda: reader.columns(ref, begin, fleet.clock.now)),
        }


def _retention(fleet: Fleet, server: PostgreSQL) -> dict[str, Any]:
    """Advance time until everything sealed has expired."""
    samples, meter = _samples(fleet), Meter(server)
    fleet.clock.now += (SETTINGS.raw_days + 1) * DAY
    fleet.look_after()
    seconds = wait_until(lambda: fleet.query("SELECT count(*) FROM chunk") == [(0,)])
    return {"samples": samples, "seconds": seconds, **meter.read()}


def central_database(known: Sequence[Line], machines: int, seconds: int) -> dict[str, Any]:
    """Return the figures for Debian's PostgreSQL with only ``max_connections`` raised."""
    stored = [line for line in known if line.spec.stored]
    away = -(-machines // 10)
    boundary = round(time.time()) // PERIOD_SECONDS * PERIOD_SECONDS
    # the store trusts a clock only after ten steady minutes; the benchmark does not wait that long
    upkeep.SETTLE_SECONDS = 0.0
    with ExitStack() as stack:
        # in memory: the machines' own disks must not compete with the server's
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir="/dev/shm")))
        port = free_port()
        fleet = Fleet(stored, machines, folder, port, boundary - AWAY_SECONDS)
        stack.callback(fleet.close)
        fleet.write(away, AWAY_SECONDS + 1)
        wait_until(lambda: all(store.stats().replication_queue_ticks for store in fleet.stores[:away]))
        fleet.look_after(time.monotonic() + DAY)
        server = stack.enter_context(postgresql(f"max_connections={CONNECTIONS}", port=port))
        stack.callback(fleet.close)
        found: dict[str, Any] = {"machines": machines, "series": len(stored)}
        found["version"] = fleet.query("SHOW server_version")[0][0].split()[0]
        found["caught_up"] = _caught_up(fleet, server, away, AWAY_SECONDS + 1)
        found["sealed"] = _sealed(fleet, server, away * AWAY_SECONDS // PERIOD_SECONDS)
        found["live"] = _live(fleet, server, seconds)
        found["query_seconds"] = _questions(fleet, boundary - AWAY_SECONDS)
        found["retention"] = _retention(fleet, server)
        return found
