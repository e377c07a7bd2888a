"""A run's note: what it says in words, what is believed of it, and how often it is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.sampling.test_assessor import SteppingClock
from tests.support.elsewhere import Elsewhere, seen
from wslgpud.active_runs import checked, headline, waiting

GIB = 1 << 30
RUN: dict[str, Any] = {"what": "x", "phase": "", "elapsed_seconds": 5.0}
STEPS = RUN | {"kind": "training", "steps": 7}


@pytest.mark.parametrize(
    ("document", "told"),
    [
        (RUN | {"kind": "guard", "phase": "runs"}, "guarded: x: for 5 s"),
        (RUN | {"kind": "stress", "phase": "odd"}, "stress run of x: odd, for 5 s"),
        (
            RUN | {"kind": "stress", "phase": "odd", "done_ratio": 0.0, "left_seconds": 60.0, "peak_bytes": 0},
            "stress run of x: odd, 0 % done, for 5 s, about 60 s left",
        ),
        (
            RUN | {"kind": "guard", "phase": "runs", "left_seconds": 0.0, "peak_bytes": GIB, "waiting": 1},
            "guarded: x: for 5 s, time limit in 1 s, peak 1.0 GiB, 1 compiler waits",
        ),
        (STEPS | {"steps": 1}, "training: x: 1 step, for 5 s"),
        (STEPS | {"step_seconds": 0.25}, "training: x: 7 steps, 4.0 steps per second, for 5 s"),
        (STEPS | {"step_seconds": 1.0}, "training: x: 7 steps, 1 s each, for 5 s"),
        (
            STEPS | {"kept_bytes": GIB, "step_growth_bytes": 1 << 20, "batch": 8, "largest_batch": 8},
            (
                "training: x: 7 steps, keeps 1.0 GiB, 1 MiB more with each step, batch 8, a larger one will not fit, "
                "for 5 s"
            ),
        ),
        (STEPS | {"batch": 8, "largest_batch": 9}, "training: x: 7 steps, for 5 s"),
    ],
)
def test_a_run_is_told_in_one_line(document, told):
    assert str(headline(document)) == told


def test_compilers_that_wait_are_counted():
    assert [str(waiting(count)) for count in (1, 2)] == ["1 compiler waits", "2 compilers wait"]


NOTE = {
    **dict.fromkeys(("what", "who", "phase"), "x"),
    "kind": "guard",
    **dict.fromkeys(("pid", "start_ticks", "began_mono"), 1),
}
MEMORY: dict[str, Any] = {"name": "cuda", "used": 1, "peak": 2, "scales": [[[1, 2, 3, 4]]]}
TRAINING = NOTE | {"kind": "training", "steps": 3, "memory": [MEMORY] * 5}


@pytest.mark.parametrize(
    ("good", "more"),
    [
        (NOTE | {"peaks": {str(i): i for i in range(16)}}, {"peaks": {str(i): i for i in range(17)}}),
        (NOTE | {"pids": [1] * 1024}, {"pids": [1] * 1025}),
        (NOTE, {"pids": ["1"]}),
        (NOTE, {"peaks": {"ram": 0.5}}),
        (NOTE, {"kind": "training"}),
        (TRAINING, {"memory": [MEMORY] * 6}),
        (TRAINING, {"memory": [MEMORY | {"scales": [[[1, 2, 3, 4, 5]]]}]}),
        (TRAINING, {"memory": [MEMORY | {"scales": [[[1, 2, 3]]]}]}),
    ],
)
def test_a_note_with_more_than_a_run_has_is_not_believed(good, more):
    assert checked(good) == good
    with pytest.raises(ValueError, match="not a note"):
        checked(good | more)


def test_the_words_of_a_note_are_short():
    assert len(checked(NOTE | {"what": "ab " * 99})["what"]) == 200


def test_a_note_is_written_twice_a_second_and_on_a_new_phase(tmp_path: Path) -> None:
    host = Elsewhere(tmp_path, clock := SteppingClock())

    def told() -> tuple[str, float | None]:
        (one,) = seen(host)
        return one["phase"], one.get("done_ratio")

    with host.note("stress", "card") as note:
        note.tell("filling", done_ratio=0.1)
        clock.now += 0.49
        note.tell("filling", done_ratio=0.2)
        assert told() == ("filling", 0.1)
        note.tell("reading", done_ratio=0.3)
        assert told() == ("reading", 0.3)
        clock.now += 0.5
        note.tell("reading", done_ratio=0.4, facts={"peaks": {"ram": 1}, "pids": [1] * 1024})
        assert told() == ("reading", 0.4)
