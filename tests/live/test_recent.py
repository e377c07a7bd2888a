"""What the live view concludes from the last minutes: curves, rates, growth, and hints at their thresholds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.live.test_rows import looked, training
from tests.support.documents import GIB, calm
from wslgpud.advise.live_sample import CurveKey, LiveSample, RecentSeries, Values, busy_share, hints, vram
from wslgpud.client import read_values

MIB = 1 << 20
#: metric -> curve
RATES = {
    "disk_read_bytes_total": "disk read",
    "disk_written_bytes_total": "disk write",
    "network_receive_bytes_total": "received",
    "network_transmit_bytes_total": "sent",
    "swap_in_bytes_total": "swap in",
    "swap_out_bytes_total": "swap out",
}


def told(look: LiveSample, trail: RecentSeries) -> list[tuple[str, str]]:
    return [(str(hint.text), str(hint.evidence)) for hint in hints(look, trail)]


def steady(key: CurveKey, value: float, seconds: int = 60) -> RecentSeries:
    trail = RecentSeries()
    trail.seed(key, [(float(second), value) for second in range(60 - seconds, 60)])
    return trail


@pytest.mark.parametrize(
    ("cpu", "gpu", "cores", "advice"),
    [
        (0.9 / 8, 0.79, 8.0, "num_workers"),
        (0.85 / 4, 0.4, 4.0, "num_workers"),
        (1.6 / 4, 0.4, 4.0, "num_workers"),
        (0.84 / 4, 0.4, 4.0, ""),
        (1.61 / 4, 0.4, 4.0, ""),
        (1.0 / 3, 0.4, 3.0, "num_workers"),
        (1.0 / 2, 0.4, 2.0, ""),
        (0.91, 0.4, 8.0, "augmentation"),
        (0.9, 0.4, 8.0, ""),
        (0.91, 0.04, 8.0, "augmentation"),
        (0.91, 0.03, 8.0, ""),
        (0.91, 0.8, 8.0, ""),
    ],
)
def test_a_card_waits_for_one_thread_or_for_all_cores(cpu: float, gpu: float, cores: float, advice: str) -> None:
    look, trail = training(cpu=cpu, gpu=gpu)
    found = told(replace(look, values={"wslgpud_cpus": [({}, cores)]}), trail)

    assert [advice in text for text, _ in found] == [True] * bool(advice)


def test_a_card_that_waits_is_told_with_what_is_used() -> None:
    assert [evidence for _, evidence in told(*training(cpu=1.05 / 8))] == ["GPU 0 40 % busy, 1.1 of 8 cores"]
    assert [evidence for _, evidence in told(*training(cpu=0.95))] == ["GPU 0 40 % busy, CPU 95 %"]


@pytest.mark.parametrize(("waiting", "slows"), [(0.30, False), (0.31, True)])
def test_a_disk_slows_training_from_more_than_30_percent_waiting(waiting: float, *, slows: bool) -> None:
    look, trail = training(cpu=0.3)
    trail.seed(CurveKey("waiting", "io"), [(float(second), waiting) for second in range(60)])

    assert bool(told(look, trail)) == slows


@pytest.mark.parametrize(("mib", "low"), [(4, False), (5, True)])
def test_ram_is_too_small_above_4_mib_per_second_of_swapping_in(mib: int, *, low: bool) -> None:
    trail = steady(CurveKey("swap in"), float(mib * MIB))
    advice = "RAM is too small for what runs: stop something, or use fewer workers"

    assert told(looked(calm()), trail) == [(advice, "+300 MiB/min come back from swap")] * low
    trail.seed(CurveKey("waiting", "memory"), [(float(second), 0.25) for second in range(60)])
    waits = "+300 MiB/min come back from swap, programs wait for memory 25 % of the time"
    assert told(looked(calm()), trail) == [(advice, waits)] * low


@pytest.mark.parametrize(
    ("left", "size", "place", "advice"),
    [
        (5, 100, "/", []),
        (4, 100, "/", [("free up /", "4.0 of 100 GiB left")]),
        (
            4,
            100,
            "/mnt/c",
            [("free up /mnt/c: when the Windows drive is full, WSL's disk turns read-only", "4.0 of 100 GiB left")],
        ),
        (0, 0, "/", []),
    ],
)
def test_a_volume_is_nearly_full_below_5_percent(left: int, size: int, place: str, advice: list[Any]) -> None:
    values: Values = {
        "wslgpud_filesystem_size_bytes": [({"mountpoint": place}, float(size * GIB))],
        "wslgpud_filesystem_avail_bytes": [({"mountpoint": place}, float(left * GIB))],
    }

    assert told(replace(looked(calm()), values=values), RecentSeries()) == advice


@pytest.mark.parametrize(
    ("used", "level", "resource", "fine"),
    [
        ([0.85, 0.859], "ok", "gpu0", True),
        ([0.849, 0.85], "ok", "gpu0", False),
        ([0.90, 0.911], "ok", "gpu0", False),
        ([0.90, 0.90], "warning", "gpu0", False),
        ([0.90, 0.90], "ok", "ram", False),
    ],
)
def test_a_full_card_is_fine_while_it_is_steady(used: list[float], level: str, resource: str, *, fine: bool) -> None:
    forecast = {"resource": resource, "level": level, "headroom_bytes": 1 << 30, "capacity_bytes": 16 << 30}
    look = replace(looked(calm(forecasts=[forecast])), mono=100.0)
    trail = RecentSeries()
    before, recent = [(39.0, 0.2)], [(40.0, used[0]), *((float(n), used[1]) for n in range(41, 101))]
    trail.seed(CurveKey("used", resource), [*before, *recent])

    assert bool(told(look, trail)) == fine


def test_of_a_steady_card_the_last_figure_is_told() -> None:
    forecast = {"resource": "gpu0", "level": "ok", "headroom_bytes": 1 << 30, "capacity_bytes": 16 << 30}
    trail = RecentSeries()
    trail.seed(CurveKey("used", "gpu0"), [(40.0, 0.904), (99.0, 0.904), (100.0, 0.906)])

    ((_, figure),) = told(replace(looked(calm(forecasts=[forecast])), mono=100.0), trail)
    assert figure == "GPU 0 VRAM 91 %"


@pytest.mark.parametrize(("begun", "fine"), [(70.0, True), (70.5, False)])
def test_a_card_is_steady_only_after_half_a_minute(begun: float, *, fine: bool) -> None:
    forecast = {"resource": "gpu0", "level": "ok", "headroom_bytes": 1 << 30, "capacity_bytes": 16 << 30}
    trail = RecentSeries()
    trail.seed(CurveKey("used", "gpu0"), [(begun, 0.9), (100.0, 0.9)])

    assert bool(told(replace(looked(calm(forecasts=[forecast])), mono=100.0), trail)) == fine


def counted(mono: float, **values: float) -> LiveSample:
    """Return a sample with counters: PSI's, the processor's modes, and those of two devices each."""
    found = {f"wslgpud_{name}": [({"device": "a"}, value), ({"device": "b"}, value)] for name, value in values.items()}
    return replace(looked(calm(at=f"2026-11-21T12:00:{mono:02.0f}+00:00")), mono=mono, values=found)


@pytest.mark.parametrize(("name", "curve"), RATES.items())
def test_a_counter_becomes_a_rate_of_all_its_series(name: str, curve: str) -> None:
    trail = RecentSeries()
    trail.add(counted(10.0, **{name: 1000.0}))
    trail.add(counted(14.0, **{name: 1400.0}))
    trail.add(counted(16.0, **{name: 1400.0}))

    assert trail.points(CurveKey(curve)) == ((14.0, 200.0), (16.0, 0.0))


def test_pressure_and_the_processor_are_shares_of_the_time() -> None:
    def at(mono: float, waited: float, *modes: float) -> LiveSample:
        names = ("user", "idle", "iowait")
        values = {
            "wslgpud_pressure_waiting_seconds_total": [({"resource": "io"}, waited), ({"resource": "cpu"}, 9 * waited)],
            "wslgpud_cpu_seconds_total": [({"mode": n}, spent) for n, spent in zip(names, modes, strict=True)],
        }
        return replace(counted(mono), values=values)

    trail = RecentSeries()
    for look in (at(10.0, 1.0, 10.0, 20.0, 5.0), at(20.0, 3.0, 14.0, 34.0, 7.0), at(21.0, 3.0, 14.0, 34.0, 7.0)):
        trail.add(look)

    assert trail.points(CurveKey("waiting", "io")) == ((20.0, 0.2), (21.0, 0.0))
    assert trail.points(CurveKey("waiting", "cpu")) == ((20.0, 1.0), (21.0, 0.0))
    ((moment, busy),) = trail.points(CurveKey("cpu"))
    assert (moment, round(busy, 9)) == (20.0, 0.2)


def test_what_is_held_now_becomes_a_point_of_each_curve() -> None:
    document = calm(swap={"total": 8 * GIB, "free": 6 * GIB})
    document["processes"][0]["swap_bytes"] = GIB
    trail = RecentSeries()
    trail.add(replace(looked(document), mono=7.0))

    assert {key: trail.points(key) for key in trail.known()} == {
        CurveKey("used", "ram"): ((7.0, 0.25),),
        CurveKey("used", "gpu0"): ((7.0, 0.25),),
        CurveKey("used", "swap"): ((7.0, 0.25),),
        CurveKey("busy", "0"): ((7.0, 0.97),),
        CurveKey("rss", "4000"): ((7.0, 10 * GIB),),
        CurveKey("rss", "8932"): ((7.0, 5 * GIB),),
        CurveKey("vram", "8932"): ((7.0, 6 * GIB),),
    }


def test_what_has_no_size_has_no_curve() -> None:
    document = calm(swap={"total": 0, "free": 0}, gpus=[{"index": 0, "name": "x", "processes": []}], processes=[])
    trail = RecentSeries()
    trail.add(looked({**document, "forecasts": [{**document["forecasts"][0], "capacity_bytes": 0}]}))

    assert trail.known() == []


def test_vram_is_of_all_cards_and_unknown_if_one_does_not_tell() -> None:
    first = [{"pid": 1, "used_bytes": 5}, {"pid": 2, "used_bytes": 5}, {"pid": 3}]
    second = [{"pid": 1, "used_bytes": 2}, {"pid": 2}, {"pid": 3, "used_bytes": 2}]

    assert vram({"gpus": [{"processes": first}, {"processes": second}]}) == {1: 7, 2: None, 3: None}


def test_a_mean_needs_half_of_its_time_and_growth_ten_seconds() -> None:
    trail, key = RecentSeries(), CurveKey("cpu")
    trail.seed(key, [(0.0, 9.0), (2.0, 1.0), (9.0, 3.0)])

    assert trail.mean(key, 18.0) == pytest.approx(13 / 3)
    assert trail.mean(key, 18.1) is None
    assert trail.mean(key, 7.0) == 2.0  # at its edge as well
    assert trail.growth(key) is None
    trail.seed(key, [(10.0, 29.0)])
    assert trail.growth(key) == 2.0
    trail.seed(key, [(69.0, 60.0)])
    assert trail.growth(key) == pytest.approx(57 / 60)
    assert (trail.last(key), trail.last(CurveKey("none"))) == (60.0, None)


def test_what_a_silent_source_told_last_is_not_told_as_current() -> None:
    trail, key = steady(CurveKey("cpu"), 0.9), CurveKey("cpu")
    trail.add(counted(69.0))
    assert (trail.last(key), trail.mean(key, 30.0)) == (0.9, pytest.approx(0.9))
    trail.add(counted(69.5))
    assert (trail.last(key), trail.mean(key, 20.0)) == (None, None)
    trail.add(replace(counted(71.0), interval_seconds=5.0))
    assert trail.last(key) == 0.9  # where samples come rarely
    trail.add(counted(109.5))
    assert trail.growth(key) is None
    assert len(trail.points(key)) == 60


def test_the_processor_is_busy_unless_idle_or_waiting_for_disks() -> None:
    assert busy_share({"user": 1.0, "idle": 2.0, "iowait": 1.0}) == 0.25
    assert (busy_share({"user": 1.0, "idle": 3.0}), busy_share({"user": 4.0}), busy_share({})) == (0.25, 1.0, None)


def test_an_hour_of_samples_is_kept() -> None:
    trail, key = RecentSeries(), CurveKey("cpu")
    trail.seed(key, [(float(n), 0.0) for n in range(4000)])

    assert trail.points(key)[0][0] == 400.0


def test_labels_are_read_as_prometheus_writes_them() -> None:
    known = {r'x{a="1\n2",b="\"\\"}': 3.0, "y": 2, 'x{a=""}': 4.0}

    assert read_values(known) == {"x": [({"a": "1\n2", "b": '"\\'}, 3.0), ({"a": ""}, 4.0)], "y": [({}, 2.0)]}


@pytest.mark.parametrize(
    ("age", "interval", "stale"), [(10.0, 1.0, False), (10.1, 1.0, True), (15.0, 3.0, False), (15.1, 3.0, True)]
)
def test_a_sample_is_stale_after_10_s_or_five_intervals(age: float, interval: float, *, stale: bool) -> None:
    assert replace(looked(calm()), age_seconds=age, interval_seconds=interval).stale == stale
