"""Statements that write: rows inserted or replaced, the ids of series, and where batches lie in the file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import sqlite

from wslgpud.metrics import MAX_SERIES_OF_NAMES
from wslgpud.store import schema


def _insertion(connection: sa.Connection, table: sa.Table) -> Any:
    """Return the engine's own INSERT, which has ON CONFLICT."""
    if not schema.is_server(connection):
        return sqlite.insert(table)
    # Imported late: 2 MiB, needed only with PostgreSQL.
    from sqlalchemy.dialects import postgresql as server

    return server.insert(table)


def insert_new(connection: sa.Connection, table: sa.Table, rows: Sequence[dict[str, Any]]) -> None:
    """Insert rows, skipping existing keys.

    A failed commit may have happened nevertheless, so a batch is rewritten as a whole.
    """
    if rows:
        connection.execute(_insertion(connection, table).on_conflict_do_nothing(), rows)


def put(connection: sa.Connection, table: sa.Table, rows: Sequence[dict[str, Any]]) -> None:
    """Insert rows, replacing those with the same keys."""
    if rows:
        insert = _insertion(connection, table)
        others = {column.name: insert.excluded[column.name] for column in table.c if not column.primary_key}
        keys = table.primary_key.columns.values()
        connection.execute(insert.on_conflict_do_update(index_elements=keys, set_=others), rows)


def register(connection: sa.Connection, row: Mapping[str, Any], *, limited: bool = False) -> int | None:
    """Return the id of a series, a row of its table, and note that it is read; a new one if the database has none.

    ``limited``: None instead of a new one where its metric has ``MAX_SERIES_OF_NAMES``.
    """
    first, last = schema.series_range(row["host"])
    ours, of = schema.series.c.id.between(first, last), schema.series.c
    # a row that another program has put under our name is not ours
    same = [of[name] == row[name] for name in ("host", "metric", "labels", "divisor")]
    known: int | None = connection.scalar(sa.select(of.id).where(ours, *same))
    if known is not None:  # the kind of a metric may have changed
        now = {"kind": row["kind"], "seen_ms": row["seen_ms"]}
        connection.execute(sa.update(schema.series).where(of.id == known).values(now))
        return known
    if limited and (connection.scalar(sa.select(sa.func.count()).where(*same[:2])) or 0) >= MAX_SERIES_OF_NAMES:
        return None
    number = (connection.scalar(sa.select(sa.func.max(of.id)).where(ours)) or first) + 1
    insert_new(connection, schema.series, [{**row, "id": number}])
    return number


_SEALED = sa.select(schema.host.c.sealed).where(schema.host.c.id == sa.bindparam("host"))


class BatchSlots:
    """Where the batches of a host lie in an SQLite file: each is written over a sealed one of its size.

    That changes one page. To insert a row and delete it later changes three to six with each commit, and each page is
    written twice, into the log and from there into the file. The slots are known in memory: to look for one with each
    commit would read all batches, from the disk when memory is short.
    """

    def __init__(self, host_id: int) -> None:
        """Made anew for each connection: a commit that failed may have happened nevertheless."""
        self._host_id, self._sealed = host_id, -1
        self._newest = 0
        #: id of an unsealed batch -> its slot
        self._taken: dict[int, int] = {}
        #: size of data -> slots of sealed batches, the lowest last
        self._free: dict[int, list[int]] = {}

    def write(self, connection: sa.Connection, row: Mapping[str, Any]) -> None:
        """Write a row of ``batch``, given without its slot."""
        sealed = connection.scalar(_SEALED, {"host": self._host_id}) or 0
        if sealed != self._sealed:
            self._look(connection, sealed)
        slot = self._taken.get(row["id"])
        if slot is None:
            free = self._free.get(len(row["data"]))
            slot = self._taken[row["id"]] = free.pop() if free else self._newest + 1
            self._newest = max(self._newest, slot)
        put(connection, schema.batch, [{**row, "slot": slot}])

    def _look(self, connection: sa.Connection, sealed: int) -> None:
        self._taken, self._free = {}, {}
        of = schema.batch.c
        known = sa.select(of.slot, of.id, sa.func.length(of.data)).where(schema.of_host(schema.batch, self._host_id))
        rows = connection.execute(known.order_by(of.slot.desc())).all()
        for slot, number, size in rows:
            if number > sealed:
                self._taken[number] = slot
            else:
                self._free.setdefault(size, []).append(slot)
        self._sealed, self._newest = sealed, rows[0].slot if rows else schema.row_range(self._host_id)[0]
