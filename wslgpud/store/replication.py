"""Replication: copies the rows of the machine's own file to a central database, in order, each once.

The daemon writes only to its own file. A second ``Writer`` copies new rows, so that a server that is unreachable for a
day causes only delay. The progress is stored in the server's row of this machine, in the same transaction as the rows:
whichever side dies, nothing is duplicated or missing. Batches are not sealed in the file before they are copied, so the
backlog is bounded by ``store.max_bytes``, like the whole file.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import count
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, Table, delete, func, select, text, update

from wslgpud.config import StoreSettings
from wslgpud.store import engines, schema, series_ids
from wslgpud.store.batches import renumbered
from wslgpud.store.codec import unpack_text
from wslgpud.store.errors import LockedError, StoreError, gap
from wslgpud.store.reader import Reader
from wslgpud.store.schema import insert_new
from wslgpud.store.series_ids import SeriesKey
from wslgpud.store.store_metrics import StoreStats
from wslgpud.store.upkeep import Upkeep
from wslgpud.store.write_buffer import Waiting
from wslgpud.store.writer import Writer

#: time that ``close`` waits for a server
CLOSE_SECONDS = 0.4
#: tables do not shrink when rows are deleted, so the rows themselves are measured, this often
MEASURE_SECONDS = 6 * 3600.0
_MEASURED = (schema.chunk, schema.batch, schema.event, schema.MINUTES.table, schema.HOURS.table)
#: overhead of a row: header, line pointer, entry of the primary key
_ROW_BYTES = 56
#: rows of a table copied per transaction
_AT_ONCE = 500
#: open rows followed after a start: as many as the upkeep leaves of any table here
_MAX_OPEN = 100_000
#: tables copied besides batches, in the order of their references
_TABLES = (schema.transition, schema.outbox, schema.event, schema.stress_run, schema.learned, schema.daemon_run)
#: for rows that change once after creation: the column that is null until then
_ENDS = {schema.outbox: schema.outbox.c.done_ms, schema.daemon_run: schema.daemon_run.c.stopped_ms}
_batch, _series = schema.batch.c, schema.series.c
_CREATED = select(func.min(schema.schema_migration.c.applied_ms))


class _Source(NamedTuple):
    """Progress of copying a file, as JSON in ``host.source``."""

    #: creation time of the file, in milliseconds since the epoch, which identifies it
    file: int
    #: id of the machine that wrote it, empty where unknown
    machine: str
    #: id and start of the last run that copied: a file without it was restored from a backup, or is a copy
    run: tuple[int, int]
    #: offset of ids in the server to ids in the file
    shift: int
    #: table -> id in the file of the last copied row
    copied: dict[str, int]


_NOTHING = _Source(0, "", (0, 0), 0, {})


class ReplicationSource:
    """Replaces ``WriteBuffer`` for the writer of a central database: rows wait in a file, not in memory."""

    waiting_place = "on this machine's disk"

    def __init__(
        self, file: str, host: str, machine: str, run_row: Callable[[], int | None], copied: Callable[[int, int], None]
    ) -> None:
        """``copied`` gets the host in the ``file`` and the id up to which its batches may be sealed.

        ``run_row`` returns the id of the run that wrote them last.
        """
        self._file, self._host, self._machine, self._run_row, self._copied = file, host, machine, run_row, copied
        self._reader: Reader | None = None
        self._source = _NOTHING
        self._run = (0, 0)
        #: id of the machine in the file
        self._low = 0
        #: id of the machine in the server
        self.host_id = 0
        self._sealable_row = 0
        #: id of a series in the file, as in its batches -> in the server
        self._numbers: dict[str, int] = {}
        #: ids in the file of the copied rows that have not ended there
        self._open: dict[Table, set[int]] = {table: set() for table in _ENDS}
        self._new: list[tuple[int, SeriesKey]] = []
        self._rows: dict[Table, list[dict[str, Any]]] = {}
        self._ended: dict[Table, list[dict[str, Any]]] = {}
        self._batches: list[dict[str, Any]] = []
        #: samples that wait in the file, None while unknown
        self.waiting_ticks: int | None = None

    def attach(self, connection: Connection, host_id: int) -> None:
        """Look up the progress of an opened database, or raise LockedError: another machine has our name there."""
        self.host_id, self._numbers, self._new = host_id, {}, []
        self._source = _NOTHING
        given = connection.scalar(select(schema.host.c.source).where(schema.host.c.id == host_id))
        with gap("how far the rows of host %d were copied", host_id):
            self._source = _Source(*json.loads(given)) if given else _NOTHING
        if self._source.machine not in ("", self._machine):
            name = self._host.replace("'", "''")  # meant to be pasted
            take_over = f"UPDATE host SET source = NULL WHERE name = '{name}'"
            raise LockedError(
                "the database holds another machine named {host}; give this one another name, or, if it takes the "
                "place of that one: {command}",
                host=self._host,
                command=take_over,
            )
        for table, end in _ENDS.items():
            unended = select(table.c.id).where(schema.of_host(table, host_id), end.is_(None))
            self._open[table] = {number - self._source.shift for number in connection.scalars(unended.limit(_MAX_OPEN))}

    def look_up(self, connection: Connection) -> bool:
        """Read new rows from the file and look up their series' numbers; return whether new ones were assigned."""
        with self._local() as local:
            self._follow(connection, local)
            self._read(local)
            names = {name for row in self._batches for _, of in row["data"]["ticks"] for name in of}
            wanted = [int(name) for name in names - self._numbers.keys()]
            rows = [] if not wanted else local.execute(select(schema.series).where(_series.id.in_(wanted))).all()
        keys = {row.id: SeriesKey(row.metric, row.kind, row.labels, row.divisor) for row in rows}
        if keys:
            with connection.begin():
                known = series_ids.find(connection, self.host_id, keys.values())
            unused = count(known.newest + 1)
            for number, key in keys.items():
                theirs = known.numbers.get(key.identity)
                self._numbers[str(number)] = theirs = next(unused) if theirs is None else theirs
                self._new.append((theirs, key))
        return bool(self._new)

    def waiting(self, ticks: int) -> Waiting:
        """Return the rows read by ``look_up``; ``ticks`` is about the most per transaction."""
        _ = ticks
        rows = [self._renumbered(row) for row in self._batches]
        some = bool(self._batches or any(self._rows.values()) or any(self._ended.values()))
        return Waiting(self._new, [], rows, [], [self._copy] if some else [])

    def committed(self, done: Waiting) -> None:
        if done.writes:
            self._source = self._reached()
            for table, rows in self._rows.items():
                if table in _ENDS:
                    self._open[table] |= {row["id"] for row in rows if row[_ENDS[table].name] is None}
            for table, rows in self._ended.items():
                self._open[table] -= {row["id"] for row in rows}
        self._new, self._rows, self._ended, self._batches = [], {}, {}, []

    def synced(self) -> None:
        """A server's commits are durable: they may be sealed, there and in the file."""
        copied = self._source.copied.get(schema.batch.name, 0)
        self._sealable_row = copied + self._source.shift
        self._copied(self._low >> schema.ROW_BITS, copied)

    def sealable_row(self, host_id: int) -> int:
        """Return the last id of our batches in the server that may be sealed."""
        _ = host_id
        return self._sealable_row

    def again(self) -> None:
        """Count the backlog while the server is unreachable; ``attach`` looks up everything else."""
        with suppress(StoreError), self._local() as local:
            self.waiting_ticks = self._count(local)

    @property
    def empty(self) -> bool:
        """Rows not copied yet are not lost: they are in the file."""
        return True

    def in_use(self) -> set[int]:
        return {*self._numbers.values()}

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()

    @contextmanager
    def _local(self) -> Iterator[Connection]:
        self._reader = self._reader or Reader(self._file, self._host)
        with self._reader.connected() as local:
            yield local

    def _count(self, local: Connection) -> int:
        copied = self._source.copied.get(schema.batch.name, 0)
        ours = select(schema.host.c.id).where(schema.host.c.name == self._host).scalar_subquery()
        waiting = schema.unsealed, _batch.id > copied, _batch.slot.bitwise_rshift(schema.ROW_BITS) == ours
        return int(local.scalar(select(func.sum(_batch.ticks)).where(*waiting)) or 0)

    def _follow(self, connection: Connection, local: Connection) -> None:
        """Start over with a new file, or one restored from a backup: its rows get new ids."""
        made, ours = int(local.scalar(_CREATED) or 0), self._run_row() or 0
        here = local.execute(select(schema.host).where(schema.host.c.name == self._host)).one()
        low, server_low = schema.row_range(here.id)[0], schema.row_range(self.host_id)[0]
        ids = (select(func.max(table.c.id)).where(schema.of_host(table, here.id)) for table in schema.NUMBERED)
        newest = max(local.scalar(query) or low for query in ids)
        if here.id << schema.ROW_BITS != self._low or self._source.file != made:
            self._low, self._numbers = low, {}
        run = schema.daemon_run.c
        rows = local.execute(select(run.id, run.started_ms).where(run.id.in_((ours, self._source.run[0]))))
        started = {row.id: row.started_ms for row in rows}
        self._run = ours, started.get(ours, 0)
        known = self._source.run[1] == started.get(self._source.run[0], 0)
        reached = max(self._source.copied.values(), default=low)
        # the row of a new run comes after all that earlier ones have copied
        complete = reached < ours if ours > self._source.run[0] else reached <= newest
        if self._source.file == made and known and complete:
            return
        with connection.begin():
            ids = (select(func.max(t.c.id)).where(schema.of_host(t, self.host_id)) for t in schema.NUMBERED)
            taken = max(connection.scalar(query) or server_low for query in ids)
        # sealed rows of a new file are older history; the rows of a restored one are already there
        first = max(here.sealed, ours - 1) if self._source.file == made else here.sealed
        names = (table.name for table in (schema.batch, *_TABLES))
        self._source = _Source(made, self._machine, self._run, taken - first, dict.fromkeys(names, first))
        self._open = {table: set() for table in _ENDS}

    def _read(self, local: Connection) -> None:
        copied, host = self._source.copied, self._low >> schema.ROW_BITS

        def after(table: Table) -> Any:
            return select(table).where(schema.of_host(table, host), table.c.id > copied.get(table.name, 0))

        self._rows = {t: _dicts(local, after(t).order_by(t.c.id).limit(_AT_ONCE)) for t in _TABLES}
        self._ended = {table: self._newly_ended(local, table, end) for table, end in _ENDS.items()}
        self.waiting_ticks = self._count(local)
        self._batches = _dicts(local, after(schema.batch).order_by(_batch.id).limit(_AT_ONCE // 8))
        for row in self._batches:
            parsed: dict[str, Any] = {"ticks": [], "processes": []}
            with gap("ticks %d", row["id"]):
                parsed = json.loads(unpack_text(row["data"]))
            row["data"] = parsed

    def _newly_ended(self, local: Connection, table: Table, end: ColumnElement[int]) -> list[dict[str, Any]]:
        """Return rows that have ended since they were copied, up to ``_AT_ONCE``; forget those deleted in the file."""
        followed = self._open[table]
        if not followed:
            return []
        # those that have not ended are few, and found by an index: no range of ids, which SQLite would scan instead
        ended = sorted(followed.difference(local.scalars(select(table.c.id).where(end.is_(None)))))[:_AT_ONCE]
        rows = _dicts(local, select(table).where(table.c.id.in_(ended)))
        followed.difference_update({*ended} - {row["id"] for row in rows})
        return rows

    def _renumbered(self, row: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "id": row["id"] + self._source.shift,
            "ms": row["ms"],
            "ticks": row["ticks"],
            "data": renumbered(row["data"], self._numbers),
        }

    def _reached(self) -> _Source:
        read = {**self._rows, schema.batch: self._batches}
        last = {table.name: rows[-1]["id"] for table, rows in read.items() if rows}
        return self._source._replace(run=self._run, copied=self._source.copied | last)

    def _copy(self, connection: Connection) -> None:
        shift = self._source.shift
        for table, rows in self._rows.items():
            insert_new(connection, table, [self._shifted(row) for row in rows])
        for row in self._rows.get(schema.learned, ()):
            of = schema.learned.c
            earlier = schema.of_host(schema.learned, self.host_id), of.id < row["id"] + shift
            connection.execute(delete(schema.learned).where(*earlier, of.subject == row["subject"]))
        for table, rows in self._ended.items():
            for row in map(self._shifted, rows):
                connection.execute(update(table).where(table.c.id == row["id"]).values(row))
        reached = schema.dumps(self._reached())
        connection.execute(update(schema.host).where(schema.host.c.id == self.host_id).values(source=reached))

    def _shifted(self, row: dict[str, Any]) -> dict[str, Any]:
        shifted = {**row, "id": row["id"] + self._source.shift}
        if row.get("transition") is not None:
            shifted["transition"] = row["transition"] + self._source.shift
        return shifted


def _dicts(connection: Connection, query: Any) -> list[dict[str, Any]]:
    return [dict(row) for row in connection.execute(query).mappings()]


class ServerUpkeep(Upkeep):
    """Seals and deletes the rows of our machine, not those of others; the server's administrator does the rest."""

    _measure_due_mono = 0.0
    _measured = (0.0, 0.0, 0)

    def _earlier_names(self, connection: Connection) -> list[tuple[int, int]]:
        _ = connection
        return []

    def _ours(self, table: Table) -> ColumnElement[bool]:
        return schema.of_host(table, self._buffer.host_id)

    def _shrink(self, connection: Connection) -> bool:
        _ = connection
        return False

    def _used_bytes(self, connection: Connection) -> float:
        """Return the size of our rows, measured now and then, estimated between: tables do not shrink by themselves."""
        if time.monotonic() >= self._measure_due_mono:
            self._measure_due_mono = time.monotonic() + MEASURE_SECONDS
            rows = taken = 0
            for table in _MEASURED:
                sizes = select(func.count(), func.sum(func.pg_column_size(text(f"{table.name}.*"))))
                count_, data = connection.execute(sizes.select_from(table).where(self._ours(table))).one()
                rows, taken = rows + count_, taken + int(data or 0) + count_ * _ROW_BYTES
            self._measured = taken, taken / max(rows, 1), self._stats.purged_rows_total
        used_bytes, bytes_a_row, purged = self._measured
        return used_bytes - (self._stats.purged_rows_total - purged) * bytes_a_row


class Central:
    """The writer of a database of many machines, to which the rows of our file are copied."""

    def __init__(  # noqa: PLR0913 - as many as the writer's
        self,
        target: str,
        settings: StoreSettings,
        source: ReplicationSource,
        host: str,
        wall: Callable[[], float],
        *,
        once: bool,
    ) -> None:
        """Start copying, ``once`` or as long as rows come; nobody waits for the server. Raises MissingDriverError."""
        self._target, self._host, self.source, self.stats = target, host, source, StoreStats()
        self.writer = Writer(
            target, settings, source, self.stats, wall, attach=self._attach, upkeep=ServerUpkeep, once=once
        )
        self.writer.begin()

    def _attach(self, connection: Connection, *, same_file: bool) -> None:
        _ = same_file  # a server's commits are durable
        with connection.begin():
            self.source.attach(connection, engines.prepare(connection, self._target, self._host))

    def close(self) -> None:
        """Copy as much as possible now; the rest waits for the next start."""
        self.writer.close(CLOSE_SECONDS)
        self.source.close()
