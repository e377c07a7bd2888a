"""The stress worker with faults planted: ``faulty_worker.py FAULTS`` (JSON), otherwise as the real one.

flips:   [[pattern, chunk, word, mask]]  bits that change once, after the pattern was written
stuck:   [[chunk, word, mask]]           bits that stay set whatever is written
swap:    [[pattern, chunk, chunk]]       two chunks change places after the pattern was written
alias:   {chunk: chunk}                  a chunk that shares the memory of an earlier one
pinned:  [chunk]                         chunks in the host's memory, where spilled ones lie under WSL2
foreign: [pattern, bytes]                another program takes so much while the pattern is checked
refuse:  count                           the driver refuses further chunks
do:      [pattern, "hang" | "die" | "nonsense" | "flood"]
"""

from __future__ import annotations

import json
import os
import sys
import time

import torch

from wslgpud.stress.worker import card, patterns, phases  # noqa: F401 - tests change some of their constants


class Faulty(phases.Worker):
    faults: dict = {}
    foreign = 0

    def allocate(self, size):
        index = len(self.chunks)
        if self.phase == "fill" and size > self.job.scratch:
            shared = self.faults.get("alias", {}).get(str(index))
            if shared is not None:
                return self.chunks[shared][: size // 8]
            if index in self.faults.get("pinned", ()):
                return pinned(size)
        if self.phase == "fill" and size > self.job.scratch and index == self.faults.get("refuse"):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return super().allocate(size)

    def timings(self, works):
        times = super().timings(works)
        # On a CPU that others use as well a time says nothing of the memory.
        return times if self.cuda else [0.001] * len(times)

    def free_bytes(self):
        return super().free_bytes() - self.foreign

    def written(self, name):
        for pattern, chunk, word, mask in list(self.faults.get("flips", ())):
            if pattern == name:
                self.chunks[chunk][word] ^= card.signed(mask)
                self.faults["flips"].remove([pattern, chunk, word, mask])
        for chunk, word, mask in self.faults.get("stuck", ()):
            self.chunks[chunk][word] |= card.signed(mask)
        for pattern, one, other in self.faults.get("swap", ()):
            if pattern == name:
                # In pieces: the card is full.
                pieces = (self.chunks[n].split(1 << 20) for n in (one, other))
                for here, there in zip(*pieces, strict=True):
                    kept = here.clone()
                    here.copy_(there)
                    there.copy_(kept)
        pattern, size = self.faults.get("foreign", ("", 0))
        if pattern == name:
            self.foreign = size
        for pattern, what in self.faults.get("do", ()):
            if pattern == name:
                self.misbehave(what)

    def misbehave(self, what):
        if what == "hang":
            time.sleep(3600)
        elif what == "die":
            os.kill(os.getpid(), 11)
        elif what == "nonsense":
            self.send.__closure__  # noqa: B018 - the real channel is inside
            speech = next(c.cell_contents for c in self.send.__closure__ if hasattr(c.cell_contents, "write"))
            speech.write("Segmentation fault, maybe\n")
        elif what == "flood":
            for number in range(100_000):
                self.send("chunk", index=number, bytes=1, free_less=1)


def pinned(size):
    """Return words in the host's memory that the GPU reaches over PCIe: as slow as spilled memory is."""
    memory = torch.empty(size, dtype=torch.uint8, pin_memory=True)

    class Mapped:
        __cuda_array_interface__ = {
            "shape": (size // 8,),
            "typestr": "<i8",
            "data": (memory.data_ptr(), False),
            "version": 3,
        }
        kept = memory

    holder = Mapped()
    tensor = torch.as_tensor(holder, device="cuda")
    tensor.holder = holder
    return tensor


if __name__ == "__main__":
    Faulty.faults = json.loads(sys.argv[1])
    phases.converse(Faulty)
