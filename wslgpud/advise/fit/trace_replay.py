"""What PyTorch's allocator holds after the storages of a trace have come and gone. Pure.

A trace is a sequence of events, see ``tracer/main.py``: a purpose, a size that appears, or the negative place of a
storage that ends.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from wslgpud.advise.fit.allocator import Allocator, Block

#: the event of ``torch.cuda.empty_cache``
EMPTIED = "emptied"


class Reserved(NamedTuple):
    """Memory reserved by the allocator, and the peak in use, by purpose."""

    reserved_bytes: int
    used: dict[str, int]


def held(events: Iterable[str | int]) -> Reserved:
    """Return the memory held at the end. Raises ValueError: a storage ends that is not there."""
    allocator = Allocator()
    blocks: dict[int, Block] = {}
    count = 0
    for event in events:
        if event == EMPTIED:
            allocator.empty_cache()
        elif isinstance(event, str):
            allocator.purpose = event
        elif event > 0:
            blocks[count] = allocator.take(event)
            count += 1
        elif (block := blocks.pop(-event, None)) is None:
            raise ValueError(f"storage {-event} ends, but is not there")
        else:
            allocator.give(block)
    return Reserved(allocator.reserved_bytes, dict(allocator.peak))
