"""Against which earlier moment growth is measured."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.brake.trees import ALICE, GIB, MIB, pids, program
from wslgpud.brake.culprit import CardHistory, GrowthHistory, Job, ResourceUse, filling_job
from wslgpud.model import Forecast, GpuProcess, GpuSample, Level

RAM = Forecast("ram", Level.OK, 8 * GIB, 16 * GIB)
CARD = Forecast("gpu0", Level.CRITICAL, 300 * MIB, 16 * GIB)


@pytest.mark.parametrize(
    ("forecast", "seconds"),
    [
        (RAM, None),
        (replace(RAM, headroom_bytes=8 * GIB - 1), 15.0),
        (replace(RAM, level=Level.INFO), 2.0),
        (replace(RAM, level=Level.INFO, headroom_bytes=GIB), 2.0),
        (replace(RAM, resource="cgroup:/a", level=Level.WARNING), 2.0),
        (replace(RAM, capacity_bytes=0, level=Level.WARNING), None),
        (CARD, None),
    ],
    ids=["half free", "more than half used", "shrinking", "shrinking and used", "a cgroup", "size not known", "a card"],
)
def test_processes_are_scanned_more_often_as_memory_runs_out(forecast, seconds) -> None:
    history, now = GrowthHistory({ALICE}), {forecast.resource: forecast}
    assert history.is_due(100.0, now) is (seconds is not None)
    history.add(100.0, (), now)

    assert [history.is_due(100.0 + later, now) for later in (1.9, 2.0, 14.9, 15.0)] == [
        seconds is not None and later >= seconds for later in (1.9, 2.0, 14.9, 15.0)
    ]


@pytest.mark.parametrize(
    ("window_seconds", "since"), [(None, 97.0), (1.0, 97.0), (3.1, 90.0), (20.0, 80.0), (60.0, 40.0), (200.0, 40.0)]
)
def test_growth_is_measured_over_the_window_of_the_forecast(window_seconds, since) -> None:
    history = GrowthHistory({ALICE})
    for t in (20.0, 40.0, 80.0, 90.0, 97.0, 98.0):
        history.add(t, (), {"ram": RAM})
    forecast = replace(RAM, window_seconds=window_seconds)

    def before(t: float) -> float:
        held = history.measured(t, forecast, ())
        assert isinstance(held, ResourceUse)
        return held.before.t

    assert before(100.0) == since
    assert before(10_000.0) == 98.0
    assert before(98.0) <= 90.0, "a scan is not compared with itself"
    assert history.measured(100.0, CARD, ()) is None


def test_growth_older_than_any_scan_is_measured_from_the_first() -> None:
    history = GrowthHistory({ALICE})
    history.add(96.0, (), {"ram": RAM})
    history.add(98.0, (program(20, 1, "python", GIB, shared_bytes=MIB),), {"ram": RAM, "gpu0": CARD})

    assert history.measured(100.0, replace(RAM, window_seconds=30.0), ()).before.t == 96.0
    first = history.measured(100.0, CARD, ()).before
    assert (first.t, first.own_bytes, first.with_shared_bytes) == (98.0, {(20, 200): GIB}, {(20, 200): GIB + MIB})
    assert first.left_bytes == {"ram": 8 * GIB, "gpu0": 300 * MIB}


@pytest.mark.parametrize(("pause", "left_gib", "began"), [(10, 7, 10), (10, 9, 9), (61, 7, 7)])
def test_a_shortage_begins_at_the_last_scan_with_half_left(pause: int, left_gib: int, began: int) -> None:
    """A minute without a scan means that all was calm."""
    history = GrowthHistory({ALICE})
    own, theirs = program(20, 1, "python"), program(21, 1, "python", uid=1001)
    for t, left in ((100.0, 10), (100.0 + pause, left_gib)):
        history.add(t, (own, theirs), {"ram": replace(RAM, headroom_bytes=left * GIB)})
    held = history.measured(300.0, RAM, ())

    assert held.began == (began * GIB, [own])


def card(left_mib: int, **mib: int | None) -> tuple[GpuSample, Forecast]:
    """Return a card and its forecast; the names of ``mib`` are pids after a letter."""
    listed = tuple(
        GpuProcess(int(name[1:]), "python", None if used is None else used * MIB) for name, used in mib.items()
    )
    return GpuSample(0, "GPU-1", "card", processes=listed), replace(CARD, headroom_bytes=left_mib * MIB)


TRAIN, JULIA = program(20, 1, "python"), program(21, 1, "julia")


def job_on(history: CardHistory, t: float, forecast: Forecast) -> object:
    held = history.measured(t, forecast, [TRAIN, JULIA])
    return held and filling_job(held, {ALICE}, ())


def found_on(samples: dict[float, tuple[GpuSample, Forecast]], window_seconds: float) -> object:
    """Return the pids of the job that fills the card, its growth in MiB and in which time, or why there is none."""
    history = CardHistory({ALICE})
    for t, (gpu, now) in samples.items():
        history.add(t, gpu, now)
    job = job_on(history, t, replace(now, window_seconds=window_seconds))
    if not isinstance(job, Job):
        return job
    assert {one.key for one in (*job.members, *job.roots)} <= {TRAIN.key, JULIA.key}
    return pids(job), job.growth_bytes // MIB, job.growth_seconds


def test_the_window_tells_whose_job_it_is_if_several_fill_a_card() -> None:
    samples = {
        90.0: card(8000, p20=1000, p21=0),
        97.0: card(4000, p20=5000, p21=0),
        100.0: card(300, p20=6850, p21=1850),
    }

    assert found_on(samples, 10.0) == found_on(samples, 20.0) == ({20}, 5850, 10.0)
    assert found_on(samples, 3.0) == "several"


@pytest.mark.parametrize(("lately_mib", "paused"), [(400, 20), (320, 21)])
def test_a_job_holding_most_of_a_card_is_paused_only_if_growing(lately_mib, paused) -> None:
    samples = {
        90.0: card(13000, p20=0, p21=0),
        97.0: card(4000, p20=9400 - lately_mib, p21=0),
        100.0: card(300, p20=9400, p21=3300),
    }

    assert found_on(samples, 10.0)[0] == {paused}


def test_a_card_that_lost_little_is_judged_over_the_longest_time() -> None:
    samples = {90.0: card(400, p20=7700), 95.0: card(310, p20=7790), 100.0: card(300, p20=7800)}

    assert found_on(samples, 10.0) == ({20}, 100, 10.0)


def test_what_was_not_measured_before_has_not_grown() -> None:
    def windows(left_mib: int, known: bool, **mib: int) -> tuple[GpuSample, Forecast]:
        gpu, now = card(left_mib, **mib)
        return replace(gpu, demoted_bytes=0 if known else None), now

    unknown = {90.0: windows(8000, known=False), 97.0: windows(4000, known=False)}
    first = {98.0: windows(3000, known=True, p20=9000, p21=0)}
    assert found_on(unknown | first, 10.0) is None
    later = {104.0: windows(300, known=True, p20=9000, p21=2700)}
    assert found_on(unknown | first | later, 10.0)[0] == {21}


def test_after_a_pause_growth_on_a_card_is_measured_anew() -> None:
    history = CardHistory({ALICE})
    for t, (gpu, now) in {90.0: card(8000, p20=100), 100.0: card(300, p20=7800)}.items():
        history.add(t, gpu, now)
    assert job_on(history, 100.0, CARD) is not None
    history.clear()
    assert job_on(history, 100.0, CARD) is None
    later = replace(CARD, headroom_bytes=200 * MIB)
    history.add(104.0, card(200, p20=7900)[0], later)

    found = job_on(history, 104.0, later)
    assert isinstance(found, Job)
    assert (pids(found), found.growth_bytes) == ({20}, 100 * MIB)


def test_the_job_that_fills_a_card_is_measured_over_the_window() -> None:
    samples = {90.0: card(8000, p20=100), 95.0: card(4000, p20=4100), 100.0: card(300, p20=7800)}

    assert found_on(samples, 10.0) == ({20}, 3700, 5.0), "only its last seconds count where they are the same job's"
    assert found_on({100.0: samples[100.0]}, 10.0) is None


def test_a_recent_loss_within_noise_is_judged_over_a_longer_time() -> None:
    noise_mib = 0.012 * 16 * 1024  # 196.6 MiB
    for lost_mib, since in ((int(noise_mib) + 1, 97.0), (int(noise_mib), 90.0)):
        samples = {
            90.0: card(8000, p20=100),
            97.0: card(300 + lost_mib, p20=7800 - lost_mib),
            100.0: card(300, p20=7800),
        }
        assert found_on(samples, 10.0)[2] == 100.0 - since


def test_one_sample_of_a_card_is_kept_each_second() -> None:
    history, (gpu, now) = CardHistory({ALICE}), card(300, p20=None)
    for tenth in range(1000, 1050):
        history.add(tenth / 10, gpu, now)

    assert [held.t for held in history._samples] == [100.0, 101.0, 102.0, 103.0, 104.0]
