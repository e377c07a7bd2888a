"""A forgotten daemon never fills a disk."""

from __future__ import annotations

from dataclasses import replace

import pytest

from wslgpud.store import Store, upkeep

DAY = 86400


@pytest.fixture(autouse=True)
def _looks_after_every_commit(monkeypatch):
    monkeypatch.setattr(upkeep, "INTERVAL_SECONDS", 0.0)


def test_samples_beyond_their_age_go_and_transitions_stay(file, settings, clock, made):
    with Store(file, replace(settings, raw_days=2), host_name="pc", clock=clock) as store:
        for day in range(10):
            clock.now = made.T0 + day * DAY
            store.append(made.snapshot(clock.now, {made.EVENTS: day}))
            assert store.flush()
        clock.now += 1
        assert store.flush()
        assert store.flush(), "the second flush waits until the upkeep after the first is over"
        assert [value for _, value in made.read_all(store)] == [8, 9]
        assert store.stats().purged_rows_total == 8


def test_beyond_its_size_the_oldest_samples_go_first_and_the_file_stops_growing(file, settings, clock, made):
    limit = 1_000_000
    with Store(file, replace(settings, max_bytes=limit), host_name="pc", clock=clock) as store:
        sizes = []
        for second in range(6000):
            clock.now = made.T0 + second
            store.append(
                made.snapshot(clock.now, {(made.BYTES, str(i)): 2**40 + second * i for i in range(40)})
            )
            if second % 100 == 99:
                assert store.flush()
                sizes.append(store.stats().file_bytes)
        assert store.flush()
        kept = [wall for wall, _ in made.read_all(store, '*"7"*')]
    assert kept == list(range(6000 - len(kept), 6000)), "what is left is the newest, without a hole"
    assert 0 < len(kept) < 3000
    assert max(sizes) < 1.5 * limit
    assert max(sizes[30:]) <= 1.05 * max(sizes[:30]), "in steady state the file does not grow"
