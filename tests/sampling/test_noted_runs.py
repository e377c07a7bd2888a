"""What active runs announce is good for: a row of ``status``, and growth that is expected."""

from __future__ import annotations

from typing import Any

import pytest

from wslgpud.active_runs import Noted
from wslgpud.model import Expected, ProcessSample
from wslgpud.sampling.noted_runs import expected, running
from wslgpud.sources.procfs import Identity, trust

MOST = 1 << 50


def noted(uid: int = 1000, **document: Any) -> Noted:
    """Return a note that a user has left."""
    who = Identity(4242, 1, 1, alive=True, uids=frozenset({uid}), groups=frozenset(), name="wslgpud")
    return Noted(who, {"kind": "guard", "what": "make", "who": "make", "began_mono": 100.0, **document})


def process(pid: int, uid: int) -> ProcessSample:
    return ProcessSample(pid, 1, "python", 1 << 20, 0, uid=uid)


@pytest.mark.parametrize(
    ("now", "elapsed", "left"), [(99.0, 0.0, 61.0), (101.26, 1.3, 58.7), (160.0, 60.0, 0.0), (170.0, 70.0, 0.0)]
)
def test_a_row_shows_elapsed_and_remaining_time_to_a_tenth(now: float, elapsed: float, left: float) -> None:
    (row,) = running([noted(ends_mono=160.0)], trust(), now)

    assert (row["elapsed_seconds"], row["left_seconds"]) == (elapsed, left)


@pytest.mark.parametrize(("user", "covered"), [(1000, (1,)), (0, (1, 2))], ids=["its own", "root"])
def test_a_claim_covers_its_users_processes_or_all_if_by_root(user: int, covered: tuple[int, ...]) -> None:
    (claim,) = expected([noted(user, peaks={"ram": 7}, pids=[1, 2, 3])], [process(1, 1000), process(2, 1001)])

    assert claim == Expected("ram", "make (guard 4242)", 7, 0, covered)


def test_claims_that_no_memory_can_hold_count_for_nothing() -> None:
    peaks = {"none": 0, "least": 1, "most": MOST - 1, "too much": MOST, "taken": 5, "all taken": 5, "owed": 5}
    used = {"taken": MOST - 1, "all taken": MOST, "owed": -1}
    claims = expected([noted(peaks=peaks, used=used)], [])

    assert [(claim.resource, claim.peak_bytes, claim.used_bytes) for claim in claims] == [
        ("least", 1, 0),
        ("most", MOST - 1, 0),
        ("taken", 5, MOST - 1),
    ]
