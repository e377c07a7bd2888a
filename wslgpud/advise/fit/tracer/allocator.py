"""A simulation of PyTorch's caching allocator: the memory it reserves for a sequence of allocations. Pure.

The rules are those of ``DeviceCachingAllocator`` in
https://github.com/pytorch/pytorch/blob/v2.11.0/c10/cuda/CUDACachingAllocator.cpp with its default settings, of one
stream: ``round_size``, ``get_allocation_size``, ``get_free_block``, ``should_split`` and ``free_block``. Fed with a
history recorded on a real card (``torch.cuda.memory._record_memory_history``), it reserves as many bytes as were
reserved there.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import NamedTuple

MIB = 1 << 20
#: Sizes are multiples of this.
GRAIN_BYTES = 512
#: Up to this size, blocks come from separate segments of 2 MiB.
SMALL_BYTES, SMALL_SEGMENT_BYTES = MIB, 2 * MIB
#: Below this size, segments have 20 MiB; from here on the block's own size, rounded up to 2 MiB.
LARGE_BYTES, LARGE_SEGMENT_BYTES, ROUND_BYTES = 10 * MIB, 20 * MIB, 2 * MIB
Pool = list[tuple[int, int]]


class Block(NamedTuple):
    """A piece of a segment that is in use."""

    address: int
    size: int
    purpose: str


class Allocator:
    """Allocates blocks as torch does; segments are kept until the cache is emptied, as long as the card has room."""

    def __init__(self) -> None:
        #: at most, until now
        self.reserved_bytes = self._held_bytes = self._next_address = 0
        #: the purpose of further blocks, and the bytes in use for each purpose, now and at the peak
        self.purpose = ""
        self.used, self.peak = dict[str, int](), dict[str, int]()
        #: size and address of the free blocks of a pool, the best fit first; of small blocks in the second
        self._pools: tuple[Pool, Pool] = [], []
        #: sizes of free blocks by address, their addresses by end, and sizes of segments by address
        self._free, self._ends, self._segments = dict[int, int](), dict[int, int](), dict[int, int]()

    def take(self, size: int) -> Block:
        """Return a block of at least this size."""
        size = max(GRAIN_BYTES, -(-size // GRAIN_BYTES) * GRAIN_BYTES)
        small = size <= SMALL_BYTES
        pool = self._pools[small]
        if not pool or pool[-1][0] < size:
            large = LARGE_SEGMENT_BYTES if size < LARGE_BYTES else -(-size // ROUND_BYTES) * ROUND_BYTES
            self._reserve(pool, SMALL_SEGMENT_BYTES if small else large)
        address = pool[bisect_left(pool, (size, 0))][1]
        rest = self._remove(pool, address) - size
        if rest >= GRAIN_BYTES if small else rest > SMALL_BYTES:
            self._add(pool, address + size, rest)
        else:
            size += rest
        self.used[self.purpose] = self.used.get(self.purpose, 0) + size
        if sum(self.used.values()) > sum(self.peak.values()):
            self.peak = self.used.copy()
        return Block(address, size, self.purpose)

    def give(self, block: Block) -> None:
        """Free a block and merge it with its free neighbours."""
        self.used[block.purpose] -= block.size
        pool, start, end = self._pools[block.size <= SMALL_BYTES], block.address, block.address + block.size
        if start in self._ends:
            start = self._ends[start]
            self._remove(pool, start)
        if end in self._free:
            end += self._remove(pool, end)
        self._add(pool, start, end - start)

    def empty_cache(self) -> None:
        """Give segments back that are free as a whole, as ``torch.cuda.empty_cache`` does."""
        for pool in self._pools:
            for size, address in [*pool]:
                if self._segments.get(address) == size:
                    self._held_bytes -= self._remove(pool, address)

    def _reserve(self, pool: Pool, size: int) -> None:
        self._add(pool, self._next_address, size)
        self._segments[self._next_address] = size
        self._next_address += size + GRAIN_BYTES  # so that blocks of two segments are no neighbours
        self._held_bytes += size
        self.reserved_bytes = max(self.reserved_bytes, self._held_bytes)

    def _add(self, pool: Pool, address: int, size: int) -> None:
        insort(pool, (size, address))
        self._free[address], self._ends[address + size] = size, address

    def _remove(self, pool: Pool, address: int) -> int:
        """Remove a block that is no longer free; return its size."""
        size = self._free.pop(address)
        del self._ends[address + size], pool[bisect_left(pool, (size, address))]
        return size
