"""Upkeep waits for a steady clock, returns only plenty of free pages, and checks the file when it is due."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from sqlalchemy import func, select

from wslgpud.config import StoreSettings
from wslgpud.store import engines, schema, statements, upkeep
from wslgpud.store.store_metrics import StoreStats
from wslgpud.store.upkeep import NightlyCheck, Upkeep

DAY = 86400.0


@pytest.fixture
def mono(monkeypatch, made):
    """The monotonic clock of upkeep, which stands still until it is set."""
    clock = made.FakeClock(1000.0)
    monkeypatch.setattr(upkeep, "time", SimpleNamespace(monotonic=clock.mono))
    return clock


@pytest.fixture
def kept(mono, clock):
    """The upkeep of a history, with a wall clock that is set apart from the monotonic one."""
    return Upkeep(StoreSettings(), clock.wall, StoreStats())


def test_a_clock_is_trusted_only_after_ten_steady_minutes(kept, mono, clock):
    def after(seconds: float, jump: float = 0.0) -> bool:
        mono.now += seconds
        clock.now += seconds + jump
        return kept._clock_settled()

    assert [after(0.0), after(599.0), after(1.0)] == [False, False, True]
    assert [after(1.0, jump=3600.0), after(1.0, jump=-7201.0)] == [True, False]
    assert [after(599.0), after(1.0)] == [False, True]
    assert [after(1.0, jump=3601.0), after(599.0), after(1.0)] == [False, False, True]


@pytest.mark.parametrize(
    ("pages", "free", "shrinks"), [(2000, 256, False), (2000, 257, True), (10_000, 1000, False), (10_000, 1001, True)]
)
def test_free_pages_are_returned_beyond_a_tenth_of_the_file(tmp_path, monkeypatch, mono, clock, pages, free, shrinks):
    kept = Upkeep(StoreSettings(), clock.wall, StoreStats())
    scripts = []
    monkeypatch.setattr(engines, "page_counts", lambda _: (pages, free, 4096))
    monkeypatch.setattr(engines, "run_outside", lambda _, script: scripts.append(script))
    with engines.writer_engine(tmp_path / "h.db").connect() as connection:
        assert kept._shrink(connection) is shrinks
        connection.rollback()
        assert kept._used_bytes(connection) == (pages - free) * 4096
    assert scripts == ["PRAGMA incremental_vacuum(256)"] * shrinks


@pytest.fixture
def connection(tmp_path):
    """The writing connection to a new history."""
    with engines.writer_engine(tmp_path / "new.db").connect() as connection:
        with connection.begin():
            engines.create(connection, "new.db")
        yield connection


@pytest.mark.parametrize("table", [schema.event, schema.transition, schema.outbox, schema.daemon_run], ids=str)
def test_rows_that_are_kept_for_years_are_bounded_by_number_too(clock, mono, connection, monkeypatch, table):
    monkeypatch.setattr(upkeep, "_EXCESS", {name: upkeep._excess(name, 10) for name in upkeep.MAX_ROWS})
    kept = Upkeep(StoreSettings(), clock.wall, StoreStats())
    values = {"ms": 0, "created_ms": 0, "started_ms": 0, "attempts": 0, "mono": 0, "old": 0, "new": 1, "clean": 1}
    row = {column.name: values.get(column.name, "") for column in table.c if not column.nullable}
    with connection.begin():
        statements.insert_new(connection, table, [{**row, "id": number} for number in range(12)])
        assert [kept._delete_excess(connection), kept._delete_excess(connection)] == [2, 0]
        assert [*connection.scalars(table.select())] == [*range(2, 12)], "the oldest go"


@pytest.mark.parametrize("batches", [3000, 3001, 9000])
def test_a_period_of_more_batches_than_a_chunk_takes_is_sealed(connection, batches):
    """Ten ticks a second, each committed at once."""
    row = {"data": b"", "ticks": 1}
    rows = [{**row, "slot": n, "id": n, "ms": 60 * n} for n in range(1, batches + 1)]
    rows.append({**row, "slot": batches + 1, "id": batches + 1, "ms": schema.PERIOD_MS})
    with connection.begin():
        engines.add_host(connection, "pc")
        statements.insert_new(connection, schema.batch, rows)
        assert upkeep.due(connection, 0, 1 << 62) == 3000


def with_hours(connection, metric, numbers, *, part):
    """Insert series of a metric that each have one hour in a part, and were seen then."""
    series = {"host": 0, "metric": metric, "kind": "gauge", "divisor": 1, "seen_ms": part * 1000}
    hour = {"part": part, "unit": 1, "base": 0, "n_0": 1}
    statements.insert_new(connection, schema.series, [{**series, "id": n, "labels": str(n)} for n in numbers])
    statements.insert_new(connection, schema.HOURS.table, [{**hour, "series": n} for n in numbers])


def test_every_six_hours_series_without_data_are_forgotten(mono, clock, connection):
    stats = StoreStats()
    kept = Upkeep(StoreSettings(hour_days=1, minute_days=1, raw_days=1), clock.wall, stats)

    def forgotten(after_seconds: float) -> int:
        mono.now += after_seconds
        before = stats.purged_rows_total
        with connection.begin():
            with_hours(connection, "m", [7, 8], part=0)
        while kept._forget(connection):
            pass
        return stats.purged_rows_total - before

    assert [forgotten(0.0), forgotten(6 * 3600.0 - 1)] == [1, 0]
    assert [*connection.scalars(select(schema.series.c.id))] == [7, 8], "the newest stays, as its number is not reused"
    connection.rollback()
    assert forgotten(1.0) == 1


def test_series_of_a_clock_that_was_ahead_count_as_seen_now(mono, clock, connection):
    kept = Upkeep(StoreSettings(), clock.wall, StoreStats())
    with connection.begin():
        with_hours(connection, "n", [2], part=clock.now + 9 * DAY)
        with_hours(connection, "o", [3], part=clock.now - DAY)
    assert not kept._forget(connection)

    seen = connection.execute(select(schema.series.c.id, schema.series.c.seen_ms)).all()
    assert [tuple(row) for row in seen] == [(2, clock.now * 1000), (3, (clock.now - DAY) * 1000)]


@pytest.mark.parametrize(
    ("names", "after_days", "left"),
    [(448, 2, 448), (512, 1, 512), (512, 2, 448), (513, 2, 448), (513, 4, 448), (448, 6, 0)],
)
def test_names_without_samples_make_room_beyond_448(mono, clock, connection, names, after_days, left):
    stats, days = StoreStats(), {"raw_days": 1, "minute_days": 2, "hour_days": 4}
    kept = Upkeep(StoreSettings(**days), clock.wall, stats)
    with connection.begin():
        with_hours(connection, "m", range(names), part=100 * DAY)
        with_hours(connection, "few", [600], part=100 * DAY)
    clock.now = (100 + after_days) * DAY
    while kept._forget(connection):
        pass

    metrics = select(schema.series.c.metric, func.count()).group_by(schema.series.c.metric)
    assert dict(connection.execute(metrics).all()) == {"few": 1} | ({"m": left} if left else {})
    assert stats.purged_rows_total == names - left


def test_a_part_of_many_series_goes_in_slices(kept, connection):
    table = schema.HOURS.table

    def left() -> list[int]:
        kept._delete_first(connection, {"rollup_hour": 100 * DAY + 1})
        return [*connection.scalars(select(table.c.series))]

    with connection.begin():
        with_hours(connection, "m", range(420), part=100 * DAY)
        with_hours(connection, "n", [500], part=101 * DAY)
        assert [left(), left(), left(), left()] == [[*range(200, 420), 500], [*range(400, 420), 500], [500], [500]]


def test_the_first_check_comes_after_15_minutes_or_on_request(file, clock):
    check = NightlyCheck(str(file), clock.wall, StoreStats(), lambda *_: None)

    def checked() -> bool:
        check._thread = None
        check()
        if check._thread is not None:
            check._thread.join()
        return check._thread is not None

    clock.now += 899.0
    assert not checked()
    clock.now += 1.0
    assert [checked(), checked()] == [True, False]
    check.soon()
    assert [checked(), checked()] == [True, False]


def test_a_clock_that_was_years_ahead_puts_no_check_off(file, clock):
    clock.now += 3650 * DAY
    check = NightlyCheck(str(file), clock.wall, StoreStats(), lambda *_: None)
    clock.now -= 3650 * DAY
    check()
    assert check._thread is None
    clock.now += DAY
    check()
    assert check._thread is not None
