"""Summaries in TimescaleDB's hypertables, on a real server with the extension; skipped where it is not."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import create_engine
from sqlalchemy.pool import NullPool

from wslgpud.store import Reader, Store, upkeep

pytestmark = pytest.mark.servers
HYPERTABLES = "SELECT hypertable_name FROM timescaledb_information.hypertables ORDER BY 1"
DAY = 86400


@pytest.fixture(autouse=True)
def _looks_after_every_commit(monkeypatch):
    monkeypatch.setattr(upkeep, "INTERVAL_SECONDS", 0.0)
    monkeypatch.setattr(upkeep, "SETTLE_SECONDS", 0.0)


def administer(target, *statements):
    engine = create_engine(target, isolation_level="AUTOCOMMIT", poolclass=NullPool)
    with engine.connect() as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)


@pytest.fixture
def write(file, settings, made, clock):
    """Return a function that copies ticks to a server, and returns its summaries."""

    def write(target, seconds):
        with Store(target, settings, host_name="pc", clock=clock, own_file=file) as store:
            for second in seconds:
                clock.now = made.T0 + second
                store.append(made.snapshot(clock.now, {made.EVENTS: second, made.RATIO: second % 7 / 8}))
            made.copied(store, clock)
        with Reader(target) as reader:
            return {
                step: [reader.summaries(ref, made.T0 - DAY, made.T0 + 400 * DAY, step) for ref in reader.series()]
                for step in (60, 3600)
            }

    return write


def make_hypertables(target):
    readme = (Path(__file__).parents[2] / "wslgpud" / "store" / "README.md").read_text(encoding="utf-8")
    lines = map(str.strip, readme.splitlines())
    administer(target, *(line for line in lines if line.startswith("SELECT create_hypertable(")))


def test_tables_become_hypertables_by_the_statements_we_give(timescale_target, made, write):
    before = write(timescale_target, range(0, 10_000, 10))
    make_hypertables(timescale_target)
    after = write(timescale_target, range(10_000, 10_001))
    assert made.query(timescale_target, HYPERTABLES) == [("rollup_hour",), ("rollup_minute",)]
    assert after[60][0][: len(before[60][0]) - 1] == before[60][0][:-1]


def test_compressed_minutes_are_read_joined_and_deleted_as_ever(timescale_target, made, clock, write):
    before = write(timescale_target, range(0, 10_000, 10))
    make_hypertables(timescale_target)
    administer(
        timescale_target,
        "ALTER TABLE rollup_minute SET (timescaledb.compress, timescaledb.compress_segmentby = 'series',"
        " timescaledb.compress_orderby = 'part')",
        "SELECT compress_chunk(c) FROM show_chunks('rollup_minute') c",
    )
    again = write(timescale_target, range(10_000, 10_001))
    assert again[60][0][: len(before[60][0]) - 1] == before[60][0][:-1]
    # a clock that went back adds to minutes that are compressed
    joined = write(timescale_target, range(5, 3605, 10))
    assert sum(b.n for b in joined[60][0]) == 1000 + 1 + 360
    clock.now = made.T0 + 500 * DAY
    write(timescale_target, ())
    assert made.query(timescale_target, "SELECT count(*) FROM rollup_minute") == [(0,)]
