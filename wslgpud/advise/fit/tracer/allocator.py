"""A simulation of PyTorch's caching allocator: the memory it reserves for a sequence of allocations. Pure.

The rules are those of ``DeviceCachingAllocator`` in
https://github.com/pytorch/pytorch/blob/v2.11.0/c10/cuda/CUDACachingAllocator.cpp with its default settings, of one
stream: ``round_size``, ``get_allocation_size``, ``get_free_block``, ``should_split`` and ``free_block``. Fed with a
history recorded on a real card (``torch.cuda.memory._record_memory_history``), it reserves as many bytes as were
reserved there.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

#: the event of ``torch.cuda.empty_cache``
EMPTIED = "emptied"
MIB = 1 << 20
#: Sizes are multiples of this.
GRAIN_BYTES = 512
#: Up to this size, blocks come from separate segments of 2 MiB.
SMALL_BYTES, SMALL_SEGMENT_BYTES = MIB, 2 * MIB
#: Below this size, segments have 20 MiB; from here on the block's own size, rounded up to 2 MiB.
LARGE_BYTES, LARGE_SEGMENT_BYTES, ROUND_BYTES = 10 * MIB, 20 * MIB, 2 * MIB


@dataclass(eq=False, slots=True)
class Block:
    """A piece of a segment; its neighbours are those before and after it in the same one."""

    address: int
    size: int
    small: bool
    before: Block | None = None
    after: Block | None = None
    free: bool = True
    purpose: str = ""


class Allocator:
    """Allocates blocks as torch does; segments are kept until the end, as long as the card has room."""

    def __init__(self) -> None:
        #: at most, until now
        self.reserved_bytes = self._held_bytes = 0
        self.allocated_bytes = 0
        #: the purpose of further blocks, and the bytes in use for each purpose at the peak
        self.purpose = ""
        self.peak: dict[str, int] = {}
        self._used: dict[str, int] = {}
        self._peak_bytes = 0
        #: free blocks of each pool, the best fit first
        self._pools: dict[bool, list[tuple[int, int, Block]]] = {False: [], True: []}
        self._next_address = 0

    def take(self, size: int) -> Block:
        """Return a block of at least this size."""
        size = max(GRAIN_BYTES, -(-size // GRAIN_BYTES) * GRAIN_BYTES)
        small = size <= SMALL_BYTES
        pool = self._pools[small]
        place = bisect_left(pool, (size,))
        block = pool.pop(place)[2] if place < len(pool) else self._segment(size, small=small)
        rest = block.size - size
        if rest >= GRAIN_BYTES if small else rest > SMALL_BYTES:
            self._split(block, size)
        block.free, block.purpose = False, self.purpose
        self._used[block.purpose] = self._used.get(block.purpose, 0) + block.size
        self.allocated_bytes += block.size
        if self.allocated_bytes > self._peak_bytes:
            self._peak_bytes, self.peak = self.allocated_bytes, self._used.copy()
        return block

    def give(self, block: Block) -> None:
        """Free a block and merge it with its free neighbours."""
        self.allocated_bytes -= block.size
        self._used[block.purpose] -= block.size
        block.free = True
        pool = self._pools[block.small]
        for other in (block.before, block.after):
            if other is not None and other.free:
                del pool[bisect_left(pool, (other.size, other.address))]
                block, rest = (other, block) if other is block.before else (block, other)
                block.size, block.after = block.size + rest.size, rest.after
                if block.after is not None:
                    block.after.before = block
        insort(pool, (block.size, block.address, block))

    def empty_cache(self) -> None:
        """Give segments back that are free as a whole, as ``torch.cuda.empty_cache`` does."""
        for pool in self._pools.values():
            for entry in [entry for entry in pool if entry[2].before is None and entry[2].after is None]:
                pool.remove(entry)
                self._held_bytes -= entry[0]

    def _segment(self, size: int, *, small: bool) -> Block:
        large = LARGE_SEGMENT_BYTES if size < LARGE_BYTES else -(-size // ROUND_BYTES) * ROUND_BYTES
        taken = SMALL_SEGMENT_BYTES if small else large
        block = Block(self._next_address, taken, small)
        self._next_address += taken
        self._held_bytes += taken
        self.reserved_bytes = max(self.reserved_bytes, self._held_bytes)
        return block

    def _split(self, block: Block, size: int) -> None:
        rest = Block(block.address + size, block.size - size, block.small, block, block.after)
        if rest.after is not None:
            rest.after.before = rest
        block.after, block.size = rest, size
        insort(self._pools[block.small], (rest.size, rest.address, rest))


class Reserved(NamedTuple):
    """Memory reserved by the allocator, and the peak in use, by purpose."""

    reserved_bytes: int
    used: dict[str, int]


def held(events: Iterable[str | int]) -> Reserved:
    """Return the memory held at the end of a trace, as ``tracer/main.py`` prints it.

    Raises ValueError: a storage ends that is not there.
    """
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
