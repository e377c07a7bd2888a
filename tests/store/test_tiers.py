"""Ranges no longer kept in full are answered from their summaries, automatically."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

from wslgpud.store import Reader, SeriesRef, Store, upkeep
from wslgpud.store.maintenance import audit, info
from wslgpud.store.records import matcher

HOURS = 5


@pytest.fixture(autouse=True)
def _looks_after_every_commit(monkeypatch):
    monkeypatch.setattr(upkeep, "INTERVAL_SECONDS", 0.0)


@pytest.fixture
def aged(file, settings, clock, made):
    """Five hours of a tick every ten seconds, of which the samples before the fourth are gone.

    The minutes before the third are, too.
    """
    with Store(file, settings, host_name="pc", clock=clock) as store:
        for second in range(0, HOURS * 3600, 10):
            clock.now = made.T0 + second
            values = {made.RATIO: second % 60 / 100, made.EVENTS: second, (made.BYTES, "free"): 2**34}
            store.append(made.snapshot(clock.now, values))
        made.settle(store, clock)
        with closing(sqlite3.connect(file)) as database, database:
            database.execute("DELETE FROM chunk WHERE high_ms < ?", ((made.T0 + 3 * 3600) * 1000,))
            database.execute("DELETE FROM rollup_minute WHERE part < ?", (made.T0 + 2 * 3600,))
        yield store


def test_values_come_from_the_finest_tier_that_still_has_them(aged, made):
    (ratio,) = aged.reader.series("made_ratio")
    points = aged.reader.read(ratio, made.T0, made.T0 + HOURS * 3600)
    seconds = [round(p.wall - made.T0) for p in points]

    hours, minutes, samples = range(0, 7200, 3600), range(7200, 10800, 60), range(10800, HOURS * 3600, 10)
    assert seconds == [*hours, *minutes, *samples]
    assert all(p.value == pytest.approx(0.25) for p in points[: len(hours) + len(minutes)])
    assert [p.value for p in points[-6:]] == [0, 0.1, 0.2, 0.3, 0.4, 0.5]


def test_a_counter_keeps_its_last_value(aged, made):
    (events,) = aged.reader.series("made_events")
    points = aged.reader.read(events, made.T0, made.T0 + 3 * 3600 - 1)

    assert [p.value for p in points[:3]] == [3590, 7190, 7250]


@pytest.mark.parametrize("step", [10, 60, 300, 3600, 7200])
def test_no_sample_is_counted_twice_at_any_step(aged, made, step):
    (ratio,) = aged.reader.series("made_ratio")
    found = aged.reader.summaries(ratio, made.T0, made.T0 + HOURS * 3600, step)

    assert sum(b.n for b in found) == HOURS * 360
    assert sum(b.total for b in found) == pytest.approx(HOURS * 360 * 0.25)
    assert [b.wall for b in found] == sorted({b.wall for b in found})


def test_a_young_history_is_never_coarser_than_it_must_be(file, settings, clock, made):
    with Store(file, settings, host_name="pc", clock=clock) as store:
        for second in range(35, 1900):
            clock.now = made.T0 + second
            store.append(made.snapshot(clock.now, {made.EVENTS: second}))
        made.settle(store, clock)

        assert [second for second, _ in made.read_all(store.reader)] == list(range(35, 1900))


def test_a_clock_that_goes_to_and_fro_doubles_no_value(file, settings, clock, made):
    """The chunk that ends first begins after another of the same quarter of an hour."""
    seconds = [*range(0, 600, 10), 1000, *range(305, 500, 10), 2000]
    with Store(file, settings, host_name="pc", clock=clock) as store:
        for second in seconds:
            clock.now = made.T0 + second
            store.append(made.snapshot(clock.now, {made.EVENTS: second}))
        made.settle(store, clock)
        assert made.read_all(store.reader) == [(second, second) for second in sorted(seconds)]
        assert made.raw_since(store.reader) == 0


def test_a_history_knows_what_it_holds_and_that_it_is_sound(file, clock, made):
    with Store(file, host_name="pc", clock=clock) as store:
        for second in range(1000):
            clock.now = made.T0 + second
            values = {made.RATIO: second / 1000, **({made.EVENTS: second} if second % 3 else {})}
            store.append(made.snapshot(clock.now, values))
        made.settle(store, clock)
        with Reader(str(file)) as reader:
            found = info(reader)
            assert audit(reader, lambda *_: None) == []
    assert found.samples == 900 + 600, "those that are sealed"
    assert found.oldest.raw_wall == made.T0
    assert made.T0 + 900 <= found.newest_wall <= made.T0 + 999
    assert found.hosts == ("pc",)
    assert found.bytes_a_sample is None or 0 < found.bytes_a_sample < 400


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("made_bytes", 2),
        ("wslgpud_made_bytes", 2),
        ("made_*", 3),
        ('made_bytes{kind="free"}', 1),
        ("made_bytes{kind=free}", 1),
        ("made_bytes{kind=f*}", 1),
        ('{kind="used"}', 1),
        ("made_bytes{colour=red}", 0),
        ("made_bytes{kind}", 0),
        ("made_events_total", 1),
        ("wslgpud_made_events_total", 1),
        ("made", 0),
    ],
)
def test_a_series_is_named_as_one_would_in_prometheus(pattern, found):
    refs = [
        SeriesRef("made_bytes", (("kind", "free"),)),
        SeriesRef("made_bytes", (("kind", "used"),)),
        SeriesRef("made_events"),
    ]

    assert sum(map(matcher(pattern), refs)) == found
