"""A card's last run as Prometheus sees it."""

from __future__ import annotations

from dataclasses import replace

from tests.stress.support import MIB, night
from wslgpud.stress import stress_metrics


def chunks(*gigabytes_per_second: float) -> dict[str, list[dict[str, float]]]:
    size = 256 * MIB
    return {"chunks": [{"bytes": size, "read": size / (speed * 1e9)} for speed in gigabytes_per_second]}


def values(run, spec):
    return {r.labels[2:]: r.value for r in stress_metrics.readings([run]) if r.spec == spec}


def test_a_large_card_is_shown_in_parts_each_as_slow_as_its_slowest_chunk() -> None:
    speeds = [700.0] * 640
    speeds[639] = 50.0
    shown = values(replace(night(1), detail=chunks(*speeds)), stress_metrics.REGION)

    assert list(shown) == [(f"{n:02d}",) for n in range(stress_metrics.REGIONS)]
    assert (shown["30",], shown["31",]) == (700e9, 50e9)


def test_a_small_card_has_one_part_a_chunk_and_a_run_without_chunks_none() -> None:
    assert values(replace(night(1), detail=chunks(1, 2, 3)), stress_metrics.REGION) == {
        ("00",): 1e9,
        ("01",): 2e9,
        ("02",): 3e9,
    }
    assert values(night(1), stress_metrics.REGION) == {}


def test_a_run_says_with_what_it_was_made_so_that_drivers_can_be_compared() -> None:
    shown = values(night(1, driver="591.44"), stress_metrics.RUN)

    assert shown == {("591.44", "2.13.0", "", "nightly"): 1}
