"""A forgotten daemon never fills a disk."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from wslgpud.store import Store, upkeep

DAY = 86400


@pytest.fixture(autouse=True)
def _looks_after_every_commit(monkeypatch):
    monkeypatch.setattr(upkeep, "INTERVAL_SECONDS", 0.0)
    monkeypatch.setattr(upkeep, "SETTLE_SECONDS", 0.0)


def test_samples_beyond_their_age_go_and_transitions_stay(file, settings, clock, made):
    with Store(file, replace(settings, raw_days=2), host_name="pc", clock=clock) as store:
        for day in range(10):
            clock.now = made.T0 + day * DAY
            store.append(made.snapshot(clock.now, {made.EVENTS: day}))
            assert store.flush()
        made.settle(store, clock)
        assert [value for _, value in made.read_all(store)] == [8, 9]
        assert store.stats().purged_rows_total > 0


def test_beyond_its_size_the_oldest_samples_go_first_and_the_file_stops_growing(file, settings, clock, made):
    limit = 2_000_000
    noise = random.Random(1)  # noqa: S311 - what cannot be compressed
    with Store(file, replace(settings, max_bytes=limit), host_name="pc", clock=clock) as store:
        sizes = []
        for second in range(12_000):
            clock.now = made.T0 + second
            values = {(made.BYTES, str(i)): noise.getrandbits(50) for i in range(30)}
            store.append(made.snapshot(clock.now, values))
            if second % 100 == 99:
                assert store.flush()
                sizes.append(store.stats().file_bytes)
        made.settle(store, clock)
        kept = [wall for wall, _ in made.read_all(store, '*"7"*')]
    assert kept == list(range(12_000 - len(kept), 12_000)), "what is left is the newest, without a hole"
    assert 0 < len(kept) < 8000
    assert max(sizes) < 1.3 * limit
    assert max(sizes[90:]) <= 1.1 * max(sizes[:90]), "in steady state the file does not grow"


def test_a_clock_that_is_years_ahead_for_a_while_costs_no_history(file, settings, clock, made, monkeypatch):
    monkeypatch.setattr(upkeep, "SETTLE_SECONDS", 600.0)
    keep = replace(settings, raw_days=30)
    with Store(file, keep, host_name="pc", clock=clock) as store:
        store.append(made.snapshot(clock.now, {made.EVENTS: 1}))
    clock.now += 10 * 365 * DAY
    with Store(file, keep, host_name="pc", clock=clock) as store:
        made.settle(store, clock)
        clock.now = made.T0 + 60
        made.settle(store, clock)
        assert made.read_all(store) == [(0, 1)]
