"""What earlier runs teach: how many are kept, how a peak scales, and which trainings are measured."""

from __future__ import annotations

import os
from typing import Any

import pytest

from wslgpud.active_runs.notes import Noted
from wslgpud.advise.guard import training_peaks
from wslgpud.advise.guard.past_runs import PastRuns
from wslgpud.advise.guard.training_peaks import TrainingPeaks
from wslgpud.host import Host
from wslgpud.sources.identity import identity


def test_two_hundred_commands_and_fifty_trainings_are_kept_the_last_ones():
    known = PastRuns()
    for number in range(201):
        known.learn(str(number), {}, {})
    known.learn("1", {"again": True}, {})
    known.measure({"plan": {"n": number}, "bytes": number} for number in range(51))
    known.measure([{"plan": {"n": 7}, "bytes": 9}])

    assert list(known.commands) == [*map(str, range(2, 201)), "1"]
    assert [one["plan"]["n"] for one in known.trainings] == [*range(1, 7), *range(8, 51), 7]


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


def test_the_memory_of_a_compiler_decays_by_half_of_the_difference():
    known = PastRuns(compilers={"cc1plus": 9})
    known.learn("make", {}, {"cc1plus": 4, "cicc": 5})

    assert known.compilers == {"cc1plus": 6, "cicc": 5}


@pytest.mark.parametrize(
    ("steps", "memory", "measured"),
    [
        (3, {"reserved": 9}, [9]),
        (2, {"reserved": 9}, []),
        (3, {"reserved": 0}, []),
        (3, {"reserved": 9, "failures": 1}, []),
        (3, {"reserved": 9, "retries": 1}, []),
        (3, {"reserved": 9, "failures": 0, "retries": 0}, [9]),
    ],
)
def test_a_training_is_measured_from_its_third_step_on_unless_it_was_short_of_memory(steps, memory, measured):
    peaks = TrainingPeaks(Host())
    who = identity(Host(), os.getpid())
    document: dict[str, Any] = {"plan": {"batch": 1}, "steps": steps, "memory": [memory]}
    peaks.note([Noted(who, document), Noted(who, {**document, "plan": {}})])

    assert [one["bytes"] for one in peaks.seen] == measured


def test_of_one_plan_the_highest_peak_counts():
    peaks = TrainingPeaks(Host())
    for reserved in (5, 9, 7):
        memory = [{"reserved": reserved}]
        peaks.note([Noted(identity(Host(), os.getpid()), {"plan": {"batch": 1}, "steps": 3, "memory": memory})])

    assert list(peaks.seen) == [{"plan": {"batch": 1}, "bytes": 9}]


def test_another_users_training_is_not_measured(monkeypatch):
    monkeypatch.setattr(training_peaks.os, "geteuid", lambda: os.getuid() + 1)
    peaks = TrainingPeaks(Host())
    memory = [{"reserved": 9}]
    peaks.note([Noted(identity(Host(), os.getpid()), {"plan": {"batch": 1}, "steps": 3, "memory": memory})])

    assert not peaks.seen
