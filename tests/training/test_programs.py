"""Real trainings with a real torch: leaks as people write them are named within fifty steps, and nothing else is."""

from __future__ import annotations

import importlib.util
import sys

import pytest

from tests.training.judging import judge, watched

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed: ./tests/run --all"),
]
ROOM = 4 << 30


@pytest.mark.parametrize("name", ["loss_summed", "outputs_kept", "cycles_uncollected", "lists_in_workers"])
def test_a_leak_is_named_within_fifty_steps(name: str) -> None:
    rows = watched(sys.executable, name, 60)
    verdict = judge(rows, ROOM)

    assert verdict.named is not None
    assert verdict.named <= 50
    assert verdict.outside is None


@pytest.mark.parametrize("name", ["varying", "evaluating", "two_models"])
def test_a_training_that_keeps_nothing_is_not_warned_of(name: str) -> None:
    assert judge(watched(sys.executable, name, 80), ROOM).warned is None
