"""What a disk held at any moment, from the kernel's own log of every write to it (dm-log-writes).

The log has writes in the order in which they can have reached the disk: plain ones with the flush that made
them durable, forced ones (FUA) at once. A power cut falls between two flushes: what was flushed is there, of
the writes since then any part; but none that was made once a forced one was done, which the cut prevented, as
ext4's are that follow its commits. Format: drivers/md/dm-log-writes.c of Linux.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_SUPER = struct.Struct("<QQQI")
_ENTRY = struct.Struct("<QQQQ")
_MAGIC = 0x6A736677736872
_FLUSH, _FUA, _DISCARD, _MARK = 1, 2, 4, 8
_UNIT = 512


class Write(NamedTuple):
    """One entry: bytes to ``offset``; ``mark`` is what the machine said at that point."""

    offset: int
    data: bytes
    flags: int
    mark: str = ""

    @property
    def flushes(self) -> bool:
        """Whether all before it is durable from here on."""
        return bool(self.flags & _FLUSH)

    @property
    def forced(self) -> bool:
        """Whether it is durable by itself."""
        return bool(self.flags & _FUA)


class Cut(NamedTuple):
    """A disk after a power cut, and the last mark before it."""

    disk: bytes
    mark: str


def entries(log: Path) -> Iterator[Write]:
    """Read a log."""
    with log.open("rb") as file:
        magic, _, count, unit = _SUPER.unpack(file.read(_SUPER.size))
        assert magic == _MAGIC, "no log of writes"
        file.seek(unit)
        for _ in range(count):
            head = file.read(unit)
            sector, sectors, flags, length = _ENTRY.unpack_from(head)
            if flags & _MARK:
                yield Write(0, b"", flags, head[_ENTRY.size : _ENTRY.size + length].rstrip(b"\0").decode())
            elif flags & _DISCARD:
                yield Write(sector * unit, bytes(sectors * unit), flags)
            else:
                yield Write(sector * unit, file.read(sectors * unit), flags)


def cuts(log: Path, size: int, count: int, chance: random.Random, after: str) -> Iterator[Cut]:
    """Yield the disk (``size`` bytes, zeros at first) at ``count`` moments after the mark ``after``."""
    writes = list(entries(log))
    begin = next(i for i, w in enumerate(writes) if w.mark == after)
    moments = sorted(chance.sample(range(begin, len(writes)), count))
    disk, last_mark, epoch = bytearray(size), "", 0
    for number, write in enumerate(writes):
        while moments and moments[0] == number:
            moments.pop(0)
            cut = bytearray(disk)
            for volatile in _volatile(writes, epoch, number):
                # of what was not flushed yet anything may have come through
                if chance.random() < 0.5:
                    _apply(cut, volatile)
            yield Cut(bytes(cut), last_mark)
        if write.mark:
            last_mark = write.mark
        if write.flushes:
            for durable in writes[epoch:number]:
                _apply(disk, durable)
            epoch = number
        if write.forced:
            _apply(disk, write)


def _volatile(writes: list[Write], flushed: int, cut: int) -> Iterator[Write]:
    """Yield the writes since a flush that may or may not be there after a cut.

    Plain ones stand in the log after forced ones that were done before them, and after some that were not:
    these may be there only in cuts after the forced one.
    """
    for number in range(flushed, len(writes)):
        write = writes[number]
        if (number > flushed and write.flushes) or (number >= cut and write.forced):
            return
        yield write


def _apply(disk: bytearray, write: Write) -> None:
    disk[write.offset : write.offset + len(write.data)] = write.data
