"""What frameworks do on a warning, and tell of their batches."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.daemons import WSLGPUD
from wslgpud.training.frameworks import Batches, split

HALVES = Path(__file__).with_name("halves.py")


class Rows(list[Any]):
    """As much of a tensor as ``split`` looks at."""

    @property
    def ndim(self) -> int:
        return 1

    @property
    def shape(self) -> tuple[int]:
        return (len(self),)

    def __getitem__(self, what: Any) -> Any:
        found = super().__getitem__(what)
        return Rows(found) if isinstance(what, slice) else found


@given(st.integers(0, 20), st.integers(1, 40))
def test_no_row_of_a_batch_is_lost_or_worked_on_twice(rows: int, parts: int) -> None:
    whole = {"input_ids": Rows(range(rows)), "labels": Rows(range(rows))}
    found = split(whole, parts)

    assert [row for part in found for row in part["input_ids"]] == list(range(rows))
    assert all(part["input_ids"] == part["labels"] for part in found)
    assert len(found) <= parts
    assert all(part["input_ids"] for part in found) or not rows


@pytest.mark.parametrize(
    "inputs", [{"a": Rows(range(4)), "b": Rows(range(3))}, {"a": Rows(range(4)), "n": 7}, {}, [1, 2], None]
)
def test_a_batch_that_is_no_table_of_rows_is_left_whole(inputs: Any) -> None:
    assert split(inputs, 2) == [inputs]


def test_each_warning_halves_what_is_worked_on_at_once() -> None:
    batches = Batches(SimpleNamespace(facts={}))
    batches.halve("warning", 40.0)
    batches.halve("critical", 3.0)

    assert batches.parts == 4


def test_an_unknown_action_is_refused_with_the_known_ones() -> None:
    command = [*WSLGPUD, "inside", "--on-warning", "save,pray", "--", "true"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 2
    assert "--on-warning pray: write save, drop-cache, halve-batch, with commas between" in done.stderr


def trained(trainer: Any, *batches: Any, halved: bool = False) -> tuple[Any, list[Any]]:
    """Return the batches reported by a class of trainers, and their micro-batches."""
    worked: list[Any] = []

    class Trainer:
        def training_step(self, model: Any, inputs: Any) -> float:
            worked.append(inputs)
            return 1.0

    companion = SimpleNamespace(facts={})
    looked_at = Batches(companion)
    looked_at.of(SimpleNamespace(Trainer=Trainer))
    if halved:
        looked_at.halve("warning", 40.0)
    one = Trainer()
    vars(one).update(trainer)
    for batch in batches:
        one.training_step(None, batch)
    return companion.facts, worked


def test_a_trainer_that_we_do_not_understand_works_on() -> None:
    """It has none of the attributes that are looked at."""
    facts, worked = trained({}, {"input_ids": Rows(range(4))}, [1, 2], halved=True)

    assert facts == {}
    assert worked == [{"input_ids": Rows(range(4))}, [1, 2]]


@pytest.mark.parametrize("deepspeed", [False, True])
def test_deepspeed_which_counts_passes_gets_whole_batches(deepspeed: bool) -> None:
    attributes = {"current_gradient_accumulation_steps": 1, "is_deepspeed_enabled": deepspeed}
    _, worked = trained(attributes, {"input_ids": Rows(range(4))}, halved=True)

    assert [len(part["input_ids"]) for part in worked] == ([4] if deepspeed else [2, 2])


@pytest.mark.torch
@pytest.mark.parametrize("kind", ["sums", "means"])
def test_a_batch_in_halves_has_the_gradients_of_the_whole_one(kind: str, tmp_path: Path) -> None:
    """By the weights after three steps; losses that the model sums over all items, and means as of old."""
    if any(importlib.util.find_spec(name) is None for name in ("torch", "transformers", "accelerate")):
        pytest.skip("torch, transformers or accelerate is not installed: ./tests/run --all")
    command = [sys.executable, str(HALVES), kind, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    whole, halves = json.loads(done.stdout.splitlines()[-1])

    assert halves["calls"] == 2 * whole["calls"]
    assert halves["began"] == whole["began"] != pytest.approx(whole["weights"], rel=1e-4)
    assert halves["weights"] == pytest.approx(whole["weights"], rel=1e-4, abs=1e-6)
    assert halves["loss"] == pytest.approx(whole["loss"], rel=1e-4)
    told = {"batch": 4, "tokens": 3 * 4 * 8, "length": 8}
    assert whole["facts"] == halves["facts"] == told
