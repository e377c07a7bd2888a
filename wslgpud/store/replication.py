"""Replication: copies the rows of the machine's own file to a central database, in order, each once.

The daemon writes only to its own file. A second ``Writer`` copies new rows, so that a server that is unreachable for a
day causes only delay. The progress is stored in the server's row of this machine, in the same transaction as the rows:
whichever side dies, nothing is duplicated or missing. Batches are not sealed in the file before they are copied, so the
backlog is bounded by ``store.max_bytes``, like the whole file.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from sqlalchemy import Connection, Table, func, select, update

from wslgpud.config import StoreSettings
from wslgpud.store import engines, schema
from wslgpud.store.codec import unpack_text
from wslgpud.store.errors import LockedError, StoreError, gap
from wslgpud.store.reader import Reader
from wslgpud.store.store_metrics import StoreStats
from wslgpud.store.write_buffer import FORGET_SECONDS, WriteBuffer, register
from wslgpud.store.writer import Writer

#: time that ``close`` waits for a server
CLOSE_SECONDS = 0.4
#: rows of a table copied per transaction
_AT_ONCE = 500
#: unsent messages followed after a start: as many as the upkeep leaves of them here
_MAX_OPEN = 100_000
#: tables copied besides batches, in the order of their references
_TABLES = (schema.transition, schema.outbox, schema.event, schema.stress_run)
#: in place of a damaged batch
_EMPTY = schema.dumps({"offsets": [], "values": {}, "processes": []})
_batch, _box, _series = schema.batch.c, schema.outbox.c, schema.series.c


class _Source(NamedTuple):
    """Progress of copying a file, as JSON in ``host.source``."""

    #: creation time of the file, in milliseconds since the epoch, which identifies it
    file: int
    #: id of the machine that wrote it, empty where unknown
    machine: str
    #: id and start of the last run that copied: a file without it was restored from a backup, or is a copy
    run: Sequence[int]
    #: offset of ids in the server to ids in the file; None: to be chosen
    shift: int | None
    #: table -> id in the file of the last copied row
    copied: dict[str, int]


class _Rows(NamedTuple):
    """Rows of the file by table, to be copied in one transaction; batches as text."""

    rows: dict[Table, list[dict[str, Any]]]
    #: series in the batches, as far as the server may not have them
    series: list[dict[str, Any]]


class ReplicationSource:
    """Replaces ``WriteBuffer`` for the writer of a central database: rows wait in a file, not in memory."""

    waiting_place = "on this machine's disk"
    sealable_row = 1 << 62

    def __init__(self, file: str, host: str, machine: str, buffer: WriteBuffer) -> None:
        """``buffer`` is told up to which id the batches in the ``file`` may be sealed."""
        self._file, self._host, self._machine, self._buffer = file, host, machine, buffer
        self._reader: Reader | None = None
        self._source = _Source(0, "", (0, 0), None, {})
        #: id of the machine in the server
        self.host_id = 0
        #: ids, without the host's bits, of series that the server has; copied again each hour, to be known as read
        self._registered: set[int] = set()
        self._forgotten_wall = 0.0
        #: ids in the file of the copied messages that were unsent
        self._open: set[int] = set()
        #: samples that wait in the file, None while unknown
        self.waiting_ticks: int | None = None

    def attach(self, connection: Connection, host_id: int) -> None:
        """Look up the progress of an opened database, or raise LockedError: another machine has our name there."""
        self.host_id = host_id
        self._source = _Source(0, "", (0, 0), None, {})
        given = connection.scalar(select(schema.host.c.source).where(schema.host.c.id == host_id))
        with gap("how far the rows of host %d were copied", host_id):
            self._source = _Source(*json.loads(given)) if given else self._source
        if self._source.machine not in ("", self._machine):
            name = self._host.replace("'", "''")  # meant to be pasted
            take_over = f"UPDATE host SET source = NULL WHERE name = '{name}'"
            raise LockedError(
                "the database holds another machine named {host}; give this one another name, or, if it takes the "
                "place of that one: {command}",
                host=self._host,
                command=take_over,
            )
        unsent = select(_box.id).where(schema.of_host(schema.outbox, host_id), _box.done_ms.is_(None)).limit(_MAX_OPEN)
        self._open = {number - (self._source.shift or 0) for number in connection.scalars(unsent)}

    def waiting(self, ticks: int) -> Sequence[_Rows]:
        """Return rows that are new or have ended, if there are any; ``ticks`` is about the most per transaction."""
        with self._local() as local:
            self._follow(local)
            copied = self._source.copied
            self._buffer.sealable_row = copied[schema.batch.name]
            rows = {}
            for table in (*_TABLES, schema.batch):
                limit = _AT_ONCE if table is not schema.batch else ticks // 10
                new = select(table).where(table.c.id > copied[table.name]).order_by(table.c.id).limit(limit)
                rows[table] = _dicts(local, new)
            self.waiting_ticks = self._count(local)
            # those still unsent are few, and found by an index: no range of ids, which SQLite would scan instead
            sent = sorted(self._open.difference(local.scalars(select(_box.id).where(_box.done_ms.is_(None)))))
            ended = _dicts(local, select(schema.outbox).where(_box.id.in_(sent[:_AT_ONCE])))
            self._open -= {*sent[:_AT_ONCE]} - {row["id"] for row in ended}  # deleted in the file
            rows[schema.outbox] += ended
            if not any(rows.values()):
                return []
            series = _dicts(local, select(schema.series).where(_series.id.in_(self._new_series(rows[schema.batch]))))
        return [_Rows(rows, series)]

    def write(self, connection: Connection, waiting: Sequence[_Rows]) -> int:
        ((rows, series),) = waiting
        if self._source.shift is None:
            first = min(self._source.copied.values())
            self._source = self._source._replace(shift=engines.last_row(connection, self.host_id) - first)
        first, _ = schema.series_range(self.host_id)
        for row in series:
            register(connection, {**row, "id": first | row["id"] & schema.OWN_SERIES, "host": self.host_id})
        for table, of in rows.items():
            moved = map(self._shifted, of)
            schema.put(connection, table, [row | {"slot": row["id"]} if "slot" in row else row for row in moved])
        reached = schema.dumps(self._reached(rows))
        connection.execute(update(schema.host).where(schema.host.c.id == self.host_id).values(source=reached))
        return 0

    def committed(self, done: Sequence[_Rows]) -> None:
        ((rows, series),) = done
        self._source = self._reached(rows)
        self._registered |= {row["id"] & schema.OWN_SERIES for row in series}
        for row in rows[schema.outbox]:
            (self._open.discard if row["done_ms"] is not None else self._open.add)(row["id"])

    def detached(self) -> None:
        """Count the backlog while the server is unreachable; ``attach`` looks up everything else."""
        self._registered = set()
        with suppress(StoreError), self._local() as local:
            self.waiting_ticks = self._count(local)

    @property
    def empty(self) -> bool:
        """Rows not copied yet are not lost: they are in the file."""
        return True

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()

    @contextmanager
    def _local(self) -> Iterator[Connection]:
        self._reader = self._reader or Reader(self._file, self._host)
        with self._reader.connected() as local:
            yield local

    def _count(self, local: Connection) -> int:
        waiting = schema.unsealed, _batch.id > self._source.copied.get(schema.batch.name, 0)
        return int(local.scalar(select(func.sum(_batch.ticks)).where(*waiting)) or 0)

    def _follow(self, local: Connection) -> None:
        """Start over with a new file, or one restored from a backup: its rows get new ids."""
        made = int(local.scalar(select(func.min(schema.schema_migration.c.applied_ms))) or 0)
        here = local.execute(select(schema.host).where(schema.host.c.name == self._host)).one()
        run, source = schema.daemon_run.c, self._source
        ours = local.scalar(select(func.max(run.id))) or 0
        runs = local.execute(select(run.id, run.started_ms).where(run.id.in_((ours, source.run[0]))))
        started = {row.id: row.started_ms for row in runs}
        known = source.file == made and source.run[1] == started.get(source.run[0], 0)
        reached = max(source.copied.values(), default=0)
        # the row of a new run comes after all that earlier ones have copied
        if known and (reached < ours if ours > source.run[0] else reached <= engines.last_row(local, here.id)):
            self._source = source._replace(run=(ours, started.get(ours, 0)))
            return
        # sealed rows of a new file are older history; the rows of a restored one are already there
        first = max(here.sealed, ours - 1) if source.file == made else here.sealed
        names = (table.name for table in (schema.batch, *_TABLES))
        run_ = (ours, started.get(ours, 0))
        self._source = _Source(made, self._machine, run_, None, dict.fromkeys(names, first))
        self._open = set()

    def _new_series(self, batches: Sequence[dict[str, Any]]) -> list[int]:
        """Make the ``batches`` text; return the ids of their series that the server may not have."""
        if abs(time.time() - self._forgotten_wall) >= FORGET_SECONDS:
            self._forgotten_wall, self._registered = time.time(), set()
        numbers: set[int] = set()
        for row in batches:
            text = _EMPTY
            with gap("ticks %d", row["id"]):
                text = unpack_text(row["data"])
                numbers |= {int(number) for number in json.loads(text)["values"]}
            row["data"] = text
        first, _ = schema.series_range(self._buffer.host_id)
        return [first | number for number in numbers - self._registered]

    def _reached(self, rows: Mapping[Table, Sequence[Mapping[str, Any]]]) -> _Source:
        copied = self._source.copied
        last = {table.name: max((row["id"] for row in of), default=0) for table, of in rows.items()}
        return self._source._replace(copied={name: max(copied[name], last[name]) for name in last})

    def _shifted(self, row: Mapping[str, Any]) -> dict[str, Any]:
        shift = self._source.shift or 0
        moved = {name: row[name] + shift for name in ("id", "transition") if row.get(name) is not None}
        return {**row, **moved}


def _dicts(connection: Connection, query: Any) -> list[dict[str, Any]]:
    return [dict(row) for row in connection.execute(query).mappings()]


class Central:
    """The writer of a database of many machines, to which the rows of our file are copied."""

    def __init__(
        self, target: str, settings: StoreSettings, source: ReplicationSource, host: str, wall: Callable[[], float]
    ) -> None:
        """Start copying; nobody waits for the server. Raises MissingDriverError."""
        self._target, self._host, self.source, self.stats = target, host, source, StoreStats()
        self.writer = Writer(target, settings, source, self.stats, wall, attach=self._attach)
        self.writer.begin()

    def _attach(self, connection: Connection) -> None:
        with connection.begin():
            self.source.attach(connection, engines.prepare(connection, self._target, self._host))

    def close(self) -> None:
        """Copy as much as possible now; the rest waits for the next start."""
        self.writer.close(CLOSE_SECONDS)
        self.source.close()
