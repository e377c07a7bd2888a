"""The measured memory of a training corrects the estimate for the next one of the same model."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from wslgpud.active_runs.notes import Noted
from wslgpud.advise.fit.measured import Measured, ratio, read
from wslgpud.advise.fit.plan import CONTEXT_BYTES, Plan
from wslgpud.advise.guard import past_runs
from wslgpud.advise.guard.training_peaks import TrainingPeaks
from wslgpud.cli import app
from wslgpud.host import Host
from wslgpud.sources.identity import Identity
from wslgpud.stress import find_python

PARAMETERS = 1_000_000_000
PLAN = Plan("training", "bf16", batch=2, context=1024)


def computed(plan: Plan) -> int:
    """Return the bytes of a plan: 4 GiB, and 1 GiB for each 1,024 tokens."""
    return CONTEXT_BYTES + (4 << 30) + plan.batch * plan.context * (1 << 20)


def took(times: float, plan: Plan = PLAN, parameters: int = PARAMETERS) -> Measured:
    return Measured(parameters, plan, round(times * (computed(plan) - CONTEXT_BYTES)))


def found_of(plan: Plan, known: list[Measured]) -> tuple[float, Plan] | None:
    return ratio(PARAMETERS, plan, known, computed)


def row(one: Measured) -> dict[str, Any]:
    plan = {k: v for k, v in dataclasses.asdict(one.plan).items() if k not in ("rank", "targets")}
    return {"plan": plan | {"parameters": one.parameters}, "bytes": one.bytes}


def test_the_next_answer_is_as_far_off_as_the_last_one_was() -> None:
    found = found_of(PLAN, read([row(took(1.1))]))

    assert found is not None
    assert found[0] == pytest.approx(1.1, rel=1e-6)
    assert found[1] == PLAN


def test_the_training_whose_batch_is_nearest_counts() -> None:
    small, large = took(1.2, Plan("training", batch=1, context=64)), took(0.9, Plan("training", batch=8, context=1024))

    for one in (small, large):
        found = found_of(one.plan, [small, large])
        assert found is not None
        assert found[1] == one.plan


@pytest.mark.parametrize(
    "other",
    [
        took(1.1, dataclasses.replace(PLAN, mode="lora")),
        took(1.1, parameters=round(PARAMETERS * 1.01)),
        took(3.0),
        took(0.2),
    ],
    ids=["another use", "another model", "three times as much", "a fifth"],
)
def test_what_was_something_else_corrects_nothing(other: Measured) -> None:
    assert found_of(PLAN, [other]) is None


@pytest.mark.parametrize(
    ("mode", "parameters", "same"),
    [
        ("training", 999_000_001, True),
        ("training", 998_999_999, False),
        ("training", 1_000_999_999, True),
        ("training", 1_001_000_001, False),
        # with adapters of another rank
        ("lora", 950_000_001, True),
        ("lora", 949_999_999, False),
        ("lora", 1_049_999_999, True),
        ("lora", 1_050_000_001, False),
    ],
)
def test_a_model_is_the_same_within_a_thousandth_and_its_adapters(mode: str, parameters: int, same: bool) -> None:
    plan = dataclasses.replace(PLAN, mode=mode)

    assert (found_of(plan, [took(1.1, plan, parameters)]) is not None) == same


def test_a_training_that_took_a_quarter_less_or_a_third_more_is_still_like_it() -> None:
    own = computed(PLAN) - CONTEXT_BYTES

    def counts(took_bytes: int) -> bool:
        return found_of(PLAN, [Measured(PARAMETERS, PLAN, took_bytes)]) is not None

    assert counts(math.ceil(0.75 * own))
    assert not counts(math.ceil(0.75 * own) - 1)
    assert counts(math.floor(1.35 * own))
    assert not counts(math.floor(1.35 * own) + 1)


@pytest.mark.parametrize(
    "change",
    [{"bytes": -1}, {"bytes": "all"}, {"plan": []}, {"plan": {}}, {"plan": {"mode": "dream"}}, {"plan": {"batch": 0}}],
    ids=str,
)
def test_a_row_that_makes_no_sense_is_passed_over(change: dict[str, Any]) -> None:
    good = row(took(1.1))
    plan = change.get("plan", good["plan"])
    spoiled = good | change | {"plan": good["plan"] | plan if isinstance(plan, dict) and plan else plan}

    assert read([spoiled]) == []
    assert len(read([spoiled, good])) == 1


def test_what_else_a_note_says_of_its_plan_goes_nowhere() -> None:
    """Any program of the user's may write it."""
    good = row(took(1.1))
    found = read([good | {"plan": good["plan"] | {"rank": "x", "targets": "all", "checkpointing": "yes"}}])

    assert [one.plan for one in found] == [PLAN]
    assert found_of(PLAN, found) is not None


def said(steps: int = 9, uid: int | None = None, **memory: int) -> Noted:
    who = Identity(
        7, 1, 1, alive=True, uids=frozenset({os.geteuid() if uid is None else uid}), groups=frozenset(), name=""
    )
    card = {"name": "GPU-1", "used": 1, "peak": 2, "scales": [], "reserved": 8 << 30, "failures": 0, "retries": 0}
    return Noted(who, {"steps": steps, "plan": row(took(1.0))["plan"], "memory": [card | memory]})


def test_guard_keeps_the_most_that_a_plan_took_and_fit_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainings, known = TrainingPeaks(Host()), past_runs.PastRuns()
    own = 8 << 30
    for reserved in (own, round(1.2 * own), own):
        trainings.note([said(reserved=reserved)])
    known.measure(trainings.seen)
    past_runs.save(tmp_path, known)
    monkeypatch.setattr(find_python, "account_for", lambda _: None)
    last = json.dumps({"parameters": PARAMETERS, "torch": "2.13.0", "unmeasured": 0})
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\ncat <<'END'\n\"weights\"\n{own}\n{last}\nEND\n")
    python.chmod(0o755)

    words = ["fit", "1B", "--mode", "training", "--batch", "2", "--context", "1024", "--python", str(python)]
    plain = json.loads(CliRunner().invoke(app, [*words, "--state", str(tmp_path / "none"), "--json"]).output)
    corrected = json.loads(CliRunner().invoke(app, [*words, "--state", str(tmp_path), "--json"]).output)
    shown = CliRunner().invoke(app, [*words, "--state", str(tmp_path)]).output

    assert plain["measured_ratio"] is None
    assert corrected["measured_ratio"] == pytest.approx(1.2, abs=0.001)
    assert corrected["total_bytes"] - CONTEXT_BYTES == pytest.approx(1.2 * own, rel=0.001)
    assert "Corrected to 120 % by a training measured here (batch 2, context 1024)." in shown


@pytest.mark.parametrize(
    "note",
    [said(steps=2), said(uid=12345), said(failures=1), said(retries=1), said(reserved=0)],
    ids=["too early", "of another user", "failed", "on the edge", "not on a card"],
)
def test_what_is_no_measure_of_the_plan_is_not_kept(note: Noted) -> None:
    trainings = TrainingPeaks(Host())
    trainings.note([note])

    assert not trainings.seen


def test_a_plan_that_runs_again_replaces_its_row_and_the_oldest_go() -> None:
    known = past_runs.PastRuns()
    for number in range(2 * past_runs.MAX_TRAININGS):
        known.measure([{"plan": {"batch": number // 2}, "bytes": number}])
    known.measure([{"plan": {"batch": number}, "bytes": 1} for number in range(1000, 1000 + past_runs.MAX_TRAININGS)])

    assert len(known.trainings) == past_runs.MAX_TRAININGS
    assert all(one["bytes"] == 1 for one in known.trainings)
