"""Names that other people choose must not become series without end.

Attacked by real processes that rename themselves.
"""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from tests.store.made import T0, FakeClock, snapshot
from tests.support.daemons import eventually
from wslgpud.config import Config, Sampling, StoreSettings
from wslgpud.host import Host
from wslgpud.metrics import CGROUP_NAMES, MAX_SERIES_OF_NAMES, OTHER, PROGRAM_NAMES, MetricSpec
from wslgpud.model import ProcessSample, Reading, Sample, Snapshot, SourceReport
from wslgpud.sampling.cardinality import CardinalityLimiter, NameSlots
from wslgpud.serve.publisher import families
from wslgpud.sources import cgroups, processes
from wslgpud.sources.processes import ProcessSource
from wslgpud.store import Store, upkeep

#: A name that ends like a compiler's has the role of one, and so is kept however small the process is.
RENAMING = """
import ctypes, os, sys
libc = ctypes.CDLL(None)
if len(sys.argv) > 1:
    os.setuid(int(sys.argv[1]))
for line in sys.stdin:
    libc.prctl(15, line.strip().encode(), 0, 0, 0)
    print(flush=True)
"""
PROGRAM_SERIES = 2 * (PROGRAM_NAMES.an_hour + 1)


class Pretender:
    """A real process that takes any name."""

    def __init__(self, uid: int | None = None) -> None:
        user = [] if uid is None else [str(uid)]
        self.process = subprocess.Popen(
            [sys.executable, "-c", RENAMING, *user], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def rename(self, name: str) -> None:
        assert self.process.stdin
        assert self.process.stdout
        print(name, file=self.process.stdin, flush=True)
        assert self.process.stdout.readline(), "the pretender has ended"


@contextmanager
def pretenders(count: int, uid: int | None = None) -> Iterator[list[Pretender]]:
    found = [Pretender(uid) for _ in range(count)]
    try:
        yield found
    finally:
        for pretender in found:
            pretender.process.kill()
            pretender.process.communicate()


class Watch:
    """The real source, and the rule that each tick passes before it is published and kept."""

    def __init__(self) -> None:
        self.source = ProcessSource(Host(), Config(sampling=Sampling(processes_max=100)))
        self.limiter = CardinalityLimiter()
        self.ticks = 0

    def tick(self) -> Snapshot:
        self.ticks += 1
        report = SourceReport("processes", "ok", self.source.read(), self.ticks, 0.001)
        return self.limiter.limited(Snapshot(T0 + self.ticks, float(self.ticks), self.ticks, (report,)))


def programs(snapshot: Snapshot) -> set[str]:
    return {labels[0] for labels in snapshot.family(processes.RESIDENT)}


def rows(file: Path, metric: str = "program_%", labels: str = "%") -> int:
    with closing(sqlite3.connect(file)) as database:
        query = "SELECT count(*) FROM series WHERE metric LIKE ? AND labels LIKE ?"
        return int(database.execute(query, (metric, labels)).fetchone()[0])


def test_renaming_processes_cannot_exceed_the_hourly_limit(tmp_path: Path) -> None:
    # programs of other users, such as those of a test beside this one, take places over: only our own names count
    file, watch, mine, exposed = tmp_path / "wslgpud.db", Watch(), f"-{os.getpid() % 100_000}", set()
    with pretenders(10) as some, Store(file, host_name="pc") as store:
        for round_ in range(40):
            for number, pretender in enumerate(some):
                pretender.rename(f"{round_}n{number}{mine}-gcc")
            tick = watch.tick()
            store.append(tick)
            samples = [str(labels) for family in families(tick.readings(), {}) for labels in family.series]
            exposed |= {labels for labels in samples if mine in labels}
        assert store.flush()
        last = tick.value(processes.RESIDENT, OTHER)

    assert last, "what has no name of its own is counted all the same"
    assert 40 < rows(file, labels=f"%{mine}%") <= PROGRAM_SERIES
    assert 20 < len(exposed) <= PROGRAM_NAMES.an_hour, "and a scrape has no more of them"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to be two users")
def test_renaming_cannot_push_another_users_training_into_other() -> None:
    watch = Watch()
    with pretenders(10, uid=51234) as hostile, pretenders(1, uid=51235) as victim:
        victim[0].rename("idle-gcc")
        for round_ in range(20):
            for number, pretender in enumerate(hostile):
                pretender.rename(f"{round_}n{number}-gcc")
            tick = watch.tick()
        assert OTHER in programs(tick), "all places are taken"

        victim[0].rename("training-gcc")

        assert "training-gcc" in programs(watch.tick())


def test_a_name_has_its_place_for_an_hour_and_then_makes_room() -> None:
    places = NameSlots(3)

    assert places.refused("abcd", lambda _: (), 0) == {"d"}
    assert places.refused("d", lambda _: (), 3599) == {"d"}
    assert places.refused("a", lambda _: (), 3599) == set()
    assert places.refused("ad", lambda _: (), 3600) == set()


def test_two_users_get_equal_shares_and_names_do_not_alternate() -> None:
    places, owned = NameSlots(8), lambda name: (name[0],)
    places.refused([f"a{n}" for n in range(20)], owned, 0)

    refused = places.refused([f"b{n}" for n in range(20)], owned, 1)

    assert len(refused) == 16
    assert places.refused([f"a{n}" for n in range(20, 40)], owned, 2) == {f"a{n}" for n in range(20, 40)}


def test_uids_of_a_user_namespace_count_as_the_user_who_made_it() -> None:
    """Everybody may have 65,536 uids; the slice in which their processes run stays their own."""
    limiter, slice_ = CardinalityLimiter(), "/user.slice/user-1000.slice/session-1.scope"

    def tick(mono: float, names: list[tuple[str, int, str]]) -> Snapshot:
        seen = tuple(ProcessSample(1, 1, name, 1, 0, uid, cgroup=group) for name, uid, group in names)
        readings = tuple(Reading(processes.RESIDENT, 1, (name,)) for name, _, _ in names)
        report = SourceReport("processes", "ok", Sample(readings, processes=seen), mono, 0.001)
        return limiter.limited(Snapshot(T0, mono, 1, (report,)))

    many = [(f"n{n}", 100_000 + n, slice_) for n in range(PROGRAM_NAMES.an_hour)]
    assert OTHER not in programs(tick(0, many))
    mine = ("training", 1001, "/user.slice/user-1001.slice/session-2.scope")
    assert "training" in programs(tick(1, [*many, mine]))


def test_endless_cgroups_are_left_out_rather_than_added_up() -> None:
    """A sum of limits would be a resource that nobody has, and that is always about to run out."""
    limiter, seen = CardinalityLimiter(), set()
    for number in range(5 * CGROUP_NAMES.an_hour):
        reading = Reading(cgroups.LIMIT, 1, (f"/user.slice/user-1000.slice/{number}",))
        report = SourceReport("cgroups", "ok", Sample((reading,)), number, 0.001)
        seen |= set(limiter.limited(Snapshot(T0, float(number), 1, (report,))).family(cgroups.LIMIT))

    assert len(seen) == CGROUP_NAMES.an_hour
    assert (OTHER,) not in seen


NAMED = MetricSpec("made_named_bytes", "gauge", "bytes", "Of a program.", ("program",), names=(PROGRAM_NAMES,))


def test_a_history_has_so_many_series_of_names_and_no_more(tmp_path: Path) -> None:
    file = tmp_path / "wslgpud.db"
    with Store(file, host_name="pc") as store:
        for second, names in {0: range(500), 1: range(500, 1000), 2: range(1000), 4000: range(1000)}.items():
            store.append(snapshot(T0 + second, {(NAMED, f"n{n}"): 1 for n in names}))
            assert store.flush()
        refused = store.stats().rejected_values_total

    assert rows(file, "made_named%") == MAX_SERIES_OF_NAMES
    assert refused == 1000 - MAX_SERIES_OF_NAMES, "from the tick after they were refused on"


def test_series_without_data_and_long_unseen_names_are_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "INTERVAL_SECONDS", 0.0)
    monkeypatch.setattr(upkeep, "PASS_SECONDS", 0.0)
    file, clock = tmp_path / "wslgpud.db", FakeClock(T0)
    keep = StoreSettings(raw_days=1, minute_days=2, hour_days=4)

    @contextmanager
    def seen(*names: str) -> Iterator[Store]:
        monkeypatch.setattr(upkeep, "SETTLE_SECONDS", 600.0)
        with Store(file, keep, host_name="pc", clock=clock) as store:
            store.append(snapshot(clock.now, {(NAMED, name): 1 for name in names}))
            store.append(snapshot(clock.now + 1800, {(NAMED, names[-1]): 1}))
            assert store.flush()
            monkeypatch.setattr(upkeep, "SETTLE_SECONDS", 0.0)
            yield store

    with seen(*(f"n{n}" for n in range(MAX_SERIES_OF_NAMES))):
        pass
    clock.now = T0 + 2 * 86400
    with seen("n7") as store:
        eventually(lambda: store.flush() and rows(file, "made_named%") <= upkeep.ROOMY, "room for new names")
        assert len(store.reader.read(*store.reader.series("made_named_bytes{program=n7}"), 0, clock.now, 3600)) == 2
    clock.now = T0 + 6 * 86400
    with seen("new") as store:
        eventually(lambda: store.flush() and rows(file, "made_named%") == 2, "the end of all others")
        assert {dict(ref.labels)["program"] for ref in store.reader.series("made_named*")} == {"n7", "new"}
