"""Faults found by the checks of other tools and by ours, planted in the same memory.

On a CPU: 64 MiB stand for a card, 40 MiB for 4 GiB. On a real card: ``python -m tests.gpu.stress_batteries``.
"""

from __future__ import annotations

import threading

import pytest

from wslgpud.stress.stress_run import PASSES

pytestmark = pytest.mark.bench
pytest.importorskip("torch")
rivals = pytest.importorskip("tests.bench.stress_rivals")


def ours(card):
    from wslgpud.stress.worker.card import WorkerJob
    from wslgpud.stress.worker.phases import Worker

    lines = []
    one = Worker(
        WorkerJob(device="cpu", passes=PASSES["nightly"], slow_ratio=0.0, retention_seconds=0.0),
        lambda event, **facts: lines.append(event),
        threading.Event(),
    )
    one.look = lambda *_: None
    one.chunks = card.chunks
    one.written = lambda _: card.settle()
    one.patterns()
    return "bad" in lines


def test_who_finds_what():
    tools = {"wslgpud": ours} | rivals.RIVALS
    found = {fault: {name: check(rivals.Card(fault)) for name, check in tools.items()} for fault in rivals.FAULTS}
    print("\n" + rivals.table(found))

    assert [row["wslgpud"] for row in found.values()] == [False] + [True] * 5
