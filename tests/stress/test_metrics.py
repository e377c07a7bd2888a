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


def test_a_large_card_is_shown_in_parts_by_its_slowest_chunk() -> None:
    speeds = [700.0] * 640
    speeds[639] = 50.0
    shown = values(replace(night(1), detail=chunks(*speeds)), stress_metrics.REGION)

    assert list(shown) == [(f"{n:02d}",) for n in range(stress_metrics.REGIONS)]
    assert (shown["30",], shown["31",]) == (700e9, 50e9)


def test_a_small_card_has_one_part_a_chunk() -> None:
    assert values(replace(night(1), detail=chunks(1, 2, 3)), stress_metrics.REGION) == {
        ("00",): 1e9,
        ("01",): 2e9,
        ("02",): 3e9,
    }
    assert values(night(1), stress_metrics.REGION) == {}


def test_a_run_names_its_driver_and_libraries() -> None:
    shown = values(night(1, driver="591.44"), stress_metrics.RUN)

    assert shown == {("591.44", "2.13.0", "", "nightly"): 1}


def test_all_runs_count_and_figures_are_of_the_last_complete_one() -> None:
    found = [("errors", "one"), ("errors", "two"), ("leak", "three")]
    third = night(3, verdict="findings", findings=found, errors=7, slowed_ratio=0.25, peak_bandwidth=1000e9)
    runs = [night(1), night(2), third, night(4, verdict="skipped")]
    shown = {
        (reading.spec.name.removeprefix("vram_stress_"), *reading.labels[2:]): reading.value
        for reading in stress_metrics.readings(runs)
    }

    assert {reading.labels[:2] for reading in stress_metrics.readings(runs)} == {("0", "GPU-1")}
    assert shown == {
        ("last_run_timestamp_seconds",): runs[3].wall,
        ("last_success_timestamp_seconds",): runs[1].wall,
        ("result", "passed"): 0,
        ("result", "findings"): 0,
        ("result", "left"): 0,
        ("result", "skipped"): 1,
        ("result", "failed"): 0,
        ("runs", "passed"): 2,
        ("runs", "findings"): 1,
        ("runs", "left"): 0,
        ("runs", "skipped"): 1,
        ("runs", "failed"): 0,
        ("errors",): 7,
        ("findings", "errors"): 2,
        ("findings", "leak"): 1,
        ("slowed_ratio",): 0.25,
        ("duration_seconds",): 9.0,
        ("bytes", "free"): 14500 * MIB,
        ("bytes", "verified"): 14400 * MIB,
        ("bytes", "usable"): 14000 * MIB,
        ("bandwidth_bytes_per_second", "write", "median"): 800e9,
        ("bandwidth_bytes_per_second", "change", "median"): 780e9,
        ("bandwidth_bytes_per_second", "read", "median"): 760e9,
        ("coverage_ratio",): 144 / 145,
        ("bandwidth_ratio", "write"): 0.8,
        ("bandwidth_ratio", "change"): 0.78,
        ("bandwidth_ratio", "read"): 0.76,
        ("run", "576.88", "2.13.0", "", "nightly"): 1,
    }


def test_a_card_without_a_passed_run_has_no_success_metric() -> None:
    shown = {reading.spec: reading.value for reading in stress_metrics.readings([night(1, verdict="failed")])}

    assert stress_metrics.LAST_SUCCESS not in shown
    assert shown[stress_metrics.ERRORS] == 0
