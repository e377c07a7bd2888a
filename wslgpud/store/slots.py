"""Slots for the newest batches in their table: each overwrites a sealed one.

Overwriting a row with one of its size changes only its page. Inserting one and deleting it later changes up to four
more with each commit: the head of the freelist, the freelist, the pointer map, and the parent page. Each page is
written twice, into the log and from there into the file.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, delete, func, select

from wslgpud.store import postgresql, schema
from wslgpud.store.codec import pack_text

#: sizes of ``batch.data``: eight, four, two or one fill a page of 4096 bytes with SQLite's overhead
_SIZES = (470, 980, 2000, 4030)
_PAGE = 4096
#: free slots to keep; a machine that syncs every second for a quarter of an hour needs 900 for a while
_MAX_FREE = 300

_batch = schema.batch


class Slots:
    """The slots of a host; ``load`` looks up those of a newly opened database."""

    def __init__(self) -> None:
        #: id of a batch -> (bytes, slot)
        self._taken: dict[int, tuple[int, int]] = {}
        self._free: list[tuple[int, int]] = []
        self._newest = 0

    def load(self, connection: Connection, host: int, beyond: int) -> None:
        """Look up used slots; in a file with rows still to be recovered, only slots ``beyond`` are free."""
        of = _batch.c
        query = select(of.id, func.length(of.data), of.slot, schema.unsealed).where(schema.of_host(_batch, host))
        rows = connection.execute(query).all()
        self._taken = {number: (size, slot) for number, size, slot, unsealed in rows if unsealed}
        self._free = sorted((size, slot) for _, size, slot, unsealed in rows if not unsealed)
        self._newest = max(beyond, schema.row_range(host)[0], *(slot for *_, slot, _ in rows))

    def write(self, connection: Connection, rows: Sequence[dict[str, Any]]) -> int:
        """Write batches, again after a failed commit that may have happened; return their bytes."""
        if not rows:
            return 0
        deflated = not postgresql.is_server(connection)
        placed = [self._placed(row, pack_text(row["data"]) if deflated else row["data"]) for row in rows]
        write = postgresql.insertion(connection, _batch)
        others = {column.name: write.excluded[column.name] for column in _batch.c if not column.primary_key}
        connection.execute(write.on_conflict_do_update(index_elements=[_batch.c.slot], set_=others), placed)
        return sum(len(row["data"]) for row in placed)

    def free(self, connection: Connection, sealed: int) -> None:
        """Free the slots of batches up to id ``sealed``, and delete surplus ones."""
        for number in [number for number in self._taken if number <= sealed]:
            insort(self._free, self._taken.pop(number))
        # larger ones fit any batch
        surplus = [slot for _, slot in self._free[:-_MAX_FREE]]
        if surplus:
            del self._free[:-_MAX_FREE]
            connection.execute(delete(_batch).where(_batch.c.slot.in_(surplus)))

    def _placed(self, row: dict[str, Any], data: bytes | str) -> dict[str, Any]:
        size, slot = self._taken.get(row["id"]) or self._take(len(data))
        self._taken[row["id"]] = size, slot
        if isinstance(data, bytes):
            data = data.ljust(size, b"\0")
        return {**row, "slot": slot, "data": data}

    def _take(self, size: int) -> tuple[int, int]:
        at = bisect_left(self._free, (size, 0))
        if at < len(self._free):
            return self._free.pop(at)
        self._newest += 1
        return next((known for known in _SIZES if known >= size), -size // _PAGE * -_PAGE), self._newest
