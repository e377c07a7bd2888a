"""What the checks of other tools find of faults planted in the same memory, beside ours.

Restated from their sources at the commits that were read: gpu-burn 3ead140 (every result block is compared
with the first), cuda_memtest 025bc92 (test 10 as ``--stress`` runs it: a size in 32 bits, so only size modulo
4 GiB is checked), DCGM 4.6.0 (five constant bytes). On a CPU: 64 MiB stand for a card, 40 MiB for 4 GiB.
"""

from __future__ import annotations

import importlib.util
import sys
import threading

import pytest

from wslgpud.stress.parent import WORKER

pytestmark = pytest.mark.bench
torch = pytest.importorskip("torch")

WORDS = 1 << 20
CHUNKS = 8
WRAP = 5 * WORDS


class Card:
    """Memory with one fault."""

    def __init__(self, fault=""):
        self.fault = fault
        self.chunks = [torch.zeros(WORDS, dtype=torch.int64) for _ in range(CHUNKS)]
        if fault == "aliased chunks":
            self.chunks[6] = self.chunks[2]

    def settle(self):
        """Let the fault act on what has been written."""
        if self.fault.startswith("flip"):
            self.chunks[0 if "first" in self.fault else CHUNKS - 1][0 if "first" in self.fault else -1] ^= (
                1 << 40
            )
        elif self.fault == "stuck bit":
            self.chunks[7][1234] |= 1 << 9
        elif self.fault == "swapped chunks":
            kept = self.chunks[1].clone()
            self.chunks[1].copy_(self.chunks[5])
            self.chunks[5].copy_(kept)


def gpu_burn(card):
    """All blocks hold one and the same product; block 0 is the measure."""
    product = torch.randint(1 << 60, (WORDS,), generator=torch.Generator().manual_seed(10))
    for chunk in card.chunks:
        chunk.copy_(product)
    card.settle()
    return any(not torch.equal(chunk, card.chunks[0]) for chunk in card.chunks[1:])


def dcgm(card):
    found = False
    for byte in (0x00, 0xAA, 0x55, 0xFF, 0x00):
        word = int.from_bytes(bytes([byte] * 8), "little", signed=True)
        for chunk in card.chunks:
            chunk.fill_(word)
        card.settle()
        found |= any(bool((chunk != word).any()) for chunk in card.chunks)
    return found


def cuda_memtest(card):
    """Test 10: a pattern and its inverse, over size modulo 2^32 bytes."""
    covered = CHUNKS * WORDS % WRAP
    word, found, left = 0x123456789ABCDEF, False, covered
    for value in (word, ~word):
        for chunk in card.chunks:
            chunk.fill_(value)
        card.settle()
        left = covered
        for chunk in card.chunks:
            part = chunk[: max(0, min(left, WORDS))]
            found |= bool((part != value).any())
            left -= WORDS
    return found


def ours(card):
    spec = importlib.util.spec_from_file_location("worker", WORKER)
    worker = importlib.util.module_from_spec(spec)
    sys.modules["worker"] = worker
    spec.loader.exec_module(worker)
    lines = []
    one = worker.Worker(
        worker.Job(device="cpu", slow_ratio=0.0, retention_seconds=0.0),
        lambda event, **facts: lines.append(event), threading.Event(),
    )  # fmt: skip
    one.look = lambda *_: None
    one.chunks = card.chunks
    one.written = lambda _: card.settle()
    one.patterns()
    return "bad" in lines


FAULTS = (
    "",
    "flip in the first word",
    "flip in the last word",
    "stuck bit",
    "aliased chunks",
    "swapped chunks",
)


def test_who_finds_what():
    tools = {
        "wslgpud": ours, "gpu-burn": gpu_burn, "cuda_memtest --stress": cuda_memtest, "DCGM memory": dcgm,
    }  # fmt: skip
    table = {fault: {name: check(Card(fault)) for name, check in tools.items()} for fault in FAULTS}
    print("\n| fault | " + " | ".join(tools) + " |\n|---|" + "---|" * len(tools))
    for fault, row in table.items():
        print(f"| {fault or 'none'} | " + " | ".join("found" if row[name] else "-" for name in tools) + " |")

    assert [row["wslgpud"] for row in table.values()] == [False] + [True] * 5
