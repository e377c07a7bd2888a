"""Recorded allocations, given to the allocator again."""

from __future__ import annotations

from collections.abc import Iterable

from wslgpud.advise.fit.tracer.allocator import Allocator


def replayed(events: Iterable[str | int]) -> Allocator:
    """Return the allocator after a recording.

    A number above 0 is a size; one below, or 0, the number of the block that is given back; a word the purpose of the
    next blocks, or that the cache is emptied.
    """
    allocator = Allocator()
    blocks = {}
    count = 0
    for event in events:
        if event == "emptied":
            allocator.empty_cache()
        elif isinstance(event, str):
            allocator.purpose = event
        elif event > 0:
            blocks[count] = allocator.take(event)
            count += 1
        else:
            allocator.give(blocks.pop(-event))
    return allocator
