"""How far a run is said to be, held against how long it really took."""

from __future__ import annotations

import pytest

from tests.sampling.test_assessor import SteppingClock
from tests.support.elsewhere import Elsewhere
from wslgpud.cli.stress import _show_line
from wslgpud.stress.stress_run import WorkerPace, reporting

PLANNED = 100_000


def course(work_seconds, soak_seconds):
    """Yield (second, line) of a run: the work, a soak."""
    yield 5.0, {"event": "filled", "planned": PLANNED}
    now, done, step = 5.0, 0.0, 0.1
    while done < PLANNED:
        yield now, {"event": "beat", "phase": "patterns", "traversed": round(done)}
        now, done = now + step, done + PLANNED * step / work_seconds
    end = now + soak_seconds
    while now < end:
        yield now, {"event": "beat", "phase": "soak", "traversed": round(done)}
        now, done = now + step, done + PLANNED * step / work_seconds


@pytest.mark.parametrize(
    ("work", "soak"),
    [(15, 30), (15, 0), (600, 30), (8, 0)],
    ids=["an H200's full run", "its night", "a slow card", "quick"],
)
def test_the_time_left_is_right_up_to_the_last_phase(work, soak):
    lines = list(course(work, soak))
    end = lines[-1][0]
    pace, said = WorkerPace(soak, began=0.0), []
    for now, line in lines:
        pace.observe(line, now)
        if pace.left_seconds is not None:
            said.append((now, pace.left_seconds, pace.done_ratio))
    assert said[0][0] < 5.0 + 0.1 * work
    for now, left, _ in said:
        assert left == pytest.approx(end - now, abs=0.5 + 0.02 * end)
    shares = [share for _, _, share in said]
    assert shares == sorted(shares)
    # Never done before it is over.
    assert shares[-1] == pytest.approx(1.0, abs=0.05)
    assert shares[len(shares) // 2] < 0.75


def test_a_worker_that_says_nothing_of_its_plan_ends_no_run():
    pace = WorkerPace(0.0, began=0.0)
    pace.observe({"event": "beat", "traversed": 9}, 0.5)
    pace.observe({"event": "filled"}, 1.0)
    pace.observe({"event": "beat", "traversed": 9}, 2.0)
    pace.observe({"event": "filled", "planned": 10}, 3.0)
    pace.observe({"event": "beat"}, 4.0)
    assert (pace.done_ratio, pace.left_seconds) == (None, None)


def test_progress_and_worker_of_a_run_are_visible_to_others(tmp_path):
    clock, heard = SteppingClock(), []
    host = Elsewhere(tmp_path, clock)

    with host.note("stress", "GPU 0", gpu=0) as note:
        pace = WorkerPace(soak_seconds=0.0, began=clock.now)
        line = reporting(note, pace, clock.mono, heard.append)
        for seconds, said in [
            (1.0, {"event": "filled", "planned": 100}),
            (1.0, {"event": "beat", "phase": "fill", "traversed": 0, "verified": 0}),
            (2.0, {"event": "beat", "phase": "patterns", "traversed": 50, "verified": 20}),
            (1.0, {"event": "phase", "phase": "patterns", "seconds": 2.0}),
        ]:
            clock.now += seconds
            line(said)
        (noted,) = (one.document for one in host.runs.read())

    assert heard == [
        {"event": "filled", "planned": 100},
        {"event": "beat", "phase": "fill", "traversed": 0, "verified": 0, "done_ratio": None, "left_seconds": None},
        {"event": "beat", "phase": "patterns", "traversed": 50, "verified": 20}
        | {"done_ratio": 4.0 / 7.0, "left_seconds": 3.0},
        {"event": "phase", "phase": "patterns", "seconds": 2.0},
    ]
    assert {name: noted[name] for name in ("phase", "done_ratio", "ends_mono", "verified_bytes")} == {
        "phase": "patterns",
        "done_ratio": 4.0 / 7.0,
        "ends_mono": 1007.0,
        "verified_bytes": 20,
    }


def test_the_bar_fills_as_far_as_known_and_else_moves_to_and_fro() -> None:
    shown: list[tuple[float, float | None]] = []
    for line in ({"event": "beat", "phase": "filling"}, {"event": "beat", "phase": "patterns", "done_ratio": 0.25}):
        _show_line(lambda done, total, _: shown.append((done, total)), line)

    assert shown == [(0.0, None), (0.25, 1.0)]


def test_the_time_left_follows_from_the_pace_and_what_remains():
    pace = WorkerPace(soak_seconds=10.0, began=0.0)
    pace.observe({"event": "filled", "planned": 100}, 5.0)
    course = [
        (6.0, 4, "patterns", None),  # too early to tell
        (7.0, 5, "patterns", 10.0 + 95 * 2.0 / 5),
        (9.5, 50, "patterns", 10.0 + 4.5),
        (13.5, 100, "patterns", 10.0),
        (14.0, 100, "soak", 10.0),
        (20.0, 150, "soak", 4.0),
        (25.0, 200, "soak", 0.0),
    ]
    left, shares = [], []
    for now, traversed, phase, _ in course:
        pace.observe({"event": "beat", "phase": phase, "traversed": traversed}, now)
        left.append(pace.left_seconds)
        shares.append(pace.done_ratio)

    assert left == [seconds for *_, seconds in course]
    assert shares == [None, 7 / 55, 9.5 / 24, 13.5 / 23.5, 14 / 24, 20 / 24, 1.0]
