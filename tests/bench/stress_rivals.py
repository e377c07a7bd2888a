"""The checks of other tools, reimplemented from their sources at the commits read.

gpu-burn 3ead140: every result block is compared with the first. cuda_memtest 025bc92: test 10 as ``--stress`` runs it,
with a 32-bit size, so only size modulo 4 GiB is checked. DCGM 4.6.0: five constant bytes.
"""

from __future__ import annotations

import torch

FAULTS = ("", "flip in the first word", "flip in the last word", "stuck bit", "aliased chunks", "swapped chunks")


class Card:
    """Memory with one fault. ``wrap`` words stand for 4 GiB of a real card."""

    def __init__(
        self, fault: str = "", device: str = "cpu", words: int = 1 << 20, chunks: int = 8, wrap: int = 5 << 20
    ) -> None:
        """Allocate the memory."""
        self.fault, self.words, self.wrap = fault, words, wrap
        self.chunks = [torch.zeros(words, dtype=torch.int64, device=device) for _ in range(chunks)]
        if fault == "aliased chunks":
            self.chunks[-2] = self.chunks[2]

    def settle(self) -> None:
        """Apply the fault to the data written."""
        if self.fault == "flip in the first word":
            self.chunks[0][0] ^= 1 << 40
        elif self.fault == "flip in the last word":
            self.chunks[-1][-1] ^= 1 << 40
        elif self.fault == "stuck bit":
            self.chunks[-1][1234] |= 1 << 9
        elif self.fault == "swapped chunks":
            kept = self.chunks[1].clone()
            self.chunks[1].copy_(self.chunks[5])
            self.chunks[5].copy_(kept)


def gpu_burn(card: Card) -> bool:
    """All blocks hold the same product; block 0 is the reference."""
    device = card.chunks[0].device
    seeded = torch.Generator(device).manual_seed(10)
    product = torch.randint(1 << 60, (card.words,), generator=seeded, device=device)
    for chunk in card.chunks:
        chunk.copy_(product)
    card.settle()
    return any(not torch.equal(chunk, card.chunks[0]) for chunk in card.chunks[1:])


def dcgm(card: Card) -> bool:
    found = False
    for byte in (0x00, 0xAA, 0x55, 0xFF, 0x00):
        word = int.from_bytes(bytes([byte] * 8), "little", signed=True)
        for chunk in card.chunks:
            chunk.fill_(word)
        card.settle()
        found |= any(bool((chunk != word).any()) for chunk in card.chunks)
    return found


def cuda_memtest(card: Card) -> bool:
    """Test 10: a pattern and its inverse, over size modulo 2^32 bytes."""
    word, found = 0x123456789ABCDEF, False
    for value in (word, ~word):
        for chunk in card.chunks:
            chunk.fill_(value)
        card.settle()
        left = len(card.chunks) * card.words % card.wrap
        for chunk in card.chunks:
            part = chunk[: max(0, min(left, card.words))]
            found |= bool((part != value).any())
            left -= card.words
    return found


RIVALS = {"gpu-burn": gpu_burn, "cuda_memtest --stress": cuda_memtest, "DCGM memory": dcgm}


def table(found: dict[str, dict[str, bool]]) -> str:
    """Return a table of the faults found by each tool."""
    tools = list(next(iter(found.values())))
    lines = ["| fault | " + " | ".join(tools) + " |", "|---|" + "---|" * len(tools)]
    for fault, row in found.items():
        marks = " | ".join("found" if row[tool] else "-" for tool in tools)
        lines.append(f"| {fault or 'none'} | {marks} |")
    return "\n".join(lines)
