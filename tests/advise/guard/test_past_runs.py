"""What earlier runs teach: how many are kept and how a peak scales."""

from __future__ import annotations

import pytest

from wslgpud.advise.guard.past_runs import PastRuns
from wslgpud.advise.guard.usage import RunStats


def test_the_last_two_hundred_commands_are_kept():
    known = PastRuns()
    for number in range(201):
        known.learn(str(number), RunStats(), None)
    known.learn("1", RunStats(code=1), None)

    assert list(known.commands) == [*map(str, range(2, 201)), "1"]


@pytest.mark.parametrize(
    ("facts", "jobs", "most", "peak"),
    [
        ({"peak_bytes": 0}, None, {}, None),
        ({"peak_bytes": 1}, None, {"ram": 1}, 1),
        ({"peak_bytes": 2}, None, {"ram": 1}, None),
        ({"peak_bytes": 8, "jobs": 0, "compiler_bytes": 1}, 2, {}, 16),
        ({"peak_bytes": 8, "jobs": 2, "compiler_bytes": 1}, 3, {"ram": 11}, 11),
        ({"peak_bytes": 8, "jobs": 2, "compiler_bytes": 1}, 3, {"ram": 12}, 12),
        ({"peak_bytes": 1, "jobs": 4, "compiler_bytes": 1}, 1, {}, None),
        ({"peak_bytes": 8, "jobs": "2", "compiler_bytes": 1}, 3, {}, 8),
        ({"peak_bytes": 8, "vram_bytes": [1]}, None, {}, 8),
    ],
)
def test_a_peak_grows_with_the_jobs_up_to_what_the_machine_has(facts, jobs, most, peak):
    assert PastRuns({"make": facts}).peaks("make", jobs, most) == ({} if peak is None else {"ram": peak})


@pytest.mark.parametrize(("noted", "learned"), [(0, None), (1, 1), (-1, None), ("1", None)])
def test_a_compiler_that_took_nothing_teaches_nothing(noted, learned):
    assert PastRuns({"make": {"compiler_bytes": noted}}).compiler_bytes("make") == learned


def test_known_compiler_memory_decays_by_half_the_difference():
    known = PastRuns(compilers={"cc1plus": 9})
    known.learn("make", RunStats(compilers={"cc1plus": 4, "cicc": 5}), None)

    assert known.compilers == {"cc1plus": 6, "cicc": 5}
