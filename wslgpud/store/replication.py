"""Replication: copies the rows of the machine's own file to a PostgreSQL server, in order, each once.

The daemon writes only to its own file; this thread copies new rows, so that a server that is unreachable for a day
causes only delay. The progress is stored in the server's row of this machine, in the same transaction as the rows:
whichever side dies, nothing is duplicated or missing. Batches are not sealed in the file before they are copied, so the
backlog is bounded by ``store.max_bytes``, like the whole file.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, Integer, Table, func, literal_column, select, update
from sqlalchemy.pool import NullPool

from wslgpud.config import StoreSettings
from wslgpud.store import engines, schema, statements
from wslgpud.store.codec import renumbered, unpack_text
from wslgpud.store.engines import APPLICATION_ID
from wslgpud.store.errors import LockedError, StoreError, gap
from wslgpud.store.postgresql import server_engine
from wslgpud.store.reader import Reader
from wslgpud.store.store_metrics import StoreStats
from wslgpud.store.upkeep import Upkeep
from wslgpud.store.writer import FORGET_SECONDS, DatabaseThread

#: time that the end of the program waits for a server: what is not copied by then waits for the next start
CLOSE_SECONDS = 0.4
#: rows of a table, and batches, copied per transaction
_AT_ONCE, _BATCHES_AT_ONCE = 500, 60
#: unsent messages followed after a start: as many as the upkeep leaves of them here
_MAX_OPEN = 100_000
#: tables copied besides batches, in the order of their references
_TABLES = (schema.transition, schema.outbox, schema.event, schema.stress_run)
_batch, _box, _series = schema.batch.c, schema.outbox.c, schema.series.c
#: each schema of a server's database is a separate history
_OUR_SCHEMA: ColumnElement[int] = literal_column("CAST(CAST(current_schema() AS regnamespace) AS oid)::int", Integer)
#: view of unsealed data, whose text a server can read
_RECENT = f"""
        SELECT r.time, h.name AS host, s.metric, s.labels,
            CASE WHEN s.divisor > 1 THEN CAST(r.value AS DOUBLE PRECISION) / s.divisor ELSE r.value END AS value
        FROM (
            SELECT (b.ms + o.value::bigint) / 1000.0 AS time,
                (b.slot >> {schema.ROW_BITS} << {schema.SERIES_BITS}) | j.key::bigint AS series,
                CAST(CASE json_typeof(j.value) WHEN 'array' THEN j.value ->> (o.key - 1)::int
                    ELSE j.value #>> '{{}}' END AS NUMERIC) AS value
            FROM batch b JOIN host a ON a.id = b.slot >> {schema.ROW_BITS} AND a.sealed < b.id,
                json_array_elements_text(b.data::json -> 'offsets') WITH ORDINALITY AS o (value, key),
                json_each(b.data::json -> 'values') j
        ) r JOIN series s ON s.id = r.series JOIN host h ON h.id = s.host
        WHERE r.value IS NOT NULL"""


def prepare(connection: Connection, target: str, host_name: str) -> int:
    """Create missing parts of a server's database; return a machine's id, locked against other daemons while open.

    Raises:
        NewerSchemaError: a newer wslgpud made it.
        LockedError: another daemon writes for this machine.
    """
    # only one at a time creates tables
    connection.execute(select(func.pg_advisory_xact_lock(APPLICATION_ID, _OUR_SCHEMA)))
    name, host = engines.shown(target), schema.host
    engines.create(connection, name, {**schema.VIEWS, "recent": _RECENT})
    number = connection.scalar(select(host.c.id).where(host.c.name == host_name))
    number = engines.add_host(connection, host_name) if number is None else number
    if not connection.scalar(select(func.pg_try_advisory_lock(_OUR_SCHEMA.op("#")(APPLICATION_ID), number))):
        raise LockedError(
            "{database}: another wslgpud writes for the host {host_name}; give each its own name",
            database=name,
            host_name=host_name,
        )
    return number


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


_NOTHING_COPIED = _Source(0, "", (0, 0), None, {})


class Replication(DatabaseThread):
    """Copies a file to a server; nobody waits for that."""

    waiting_place = "on this machine's disk"

    def __init__(  # noqa: PLR0913 - what to copy, from where to where
        self,
        server: str,
        settings: StoreSettings,
        *,
        file: str,
        host: str,
        machine: str,
        wall: Callable[[], float],
        of_file: Upkeep,
    ) -> None:
        """Start copying; ``of_file`` is told what may be sealed in the file. Raises StoreError: no driver."""
        self.stats = StoreStats()
        super().__init__("wslgpud-replication", server, self.stats, settings.commit_seconds)
        self._engine = server_engine(server, poolclass=NullPool)
        # by age alone: its size is its administrator's, as are checks, which all of a fleet would do at the same hour
        self.upkeep, self._of_file = Upkeep(settings, wall, self.stats, on_server=True), of_file
        self._file, self._host, self._machine = file, host, machine
        self._reader: Reader | None = None
        self._source = _NOTHING_COPIED
        #: id of the machine in the server
        self._host_id = 0
        #: series in the file's batches -> in the server's; looked up again each hour, to be known as read
        self._numbers: dict[str, int] = {}
        self._forgotten_wall = 0.0
        #: ids in the file of the copied messages that were unsent
        self._open: set[int] = set()
        #: samples that wait in the file, None while unknown
        self.waiting_ticks: int | None = None
        self._thread.start()

    def _write(self) -> None:
        connection = self._connected()
        while self._copy(connection):
            pass

    def _upkeep_slice(self) -> bool:
        return self.upkeep(self._connected(), self._host_id)

    def _connected(self) -> Connection:
        """Return the connection to the server; a new one looks up the progress.

        LockedError: another machine has our name there.
        """
        if self._connection is None:
            self._connection = self._engine.connect()
            with self._connection.begin():
                self._host_id = prepare(self._connection, self._target, self._host)
                self._look_up(self._connection)
        return self._connection

    def _look_up(self, connection: Connection) -> None:
        self._source, self._numbers = _NOTHING_COPIED, {}
        given = connection.scalar(select(schema.host.c.source).where(schema.host.c.id == self._host_id))
        with gap("how far the rows of host %d were copied", self._host_id):
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
        ours = schema.of_host(schema.outbox, self._host_id)
        unsent = connection.scalars(select(_box.id).where(ours, _box.done_ms.is_(None)).limit(_MAX_OPEN))
        self._open = {number - (self._source.shift or 0) for number in unsent}

    def _close_connection(self) -> None:
        super()._close_connection()
        with suppress(StoreError), self._local() as local:  # the backlog grows while the server is unreachable
            self.waiting_ticks = self._count(local)
        if self._stopping and self._reader is not None:
            self._reader.close()

    def _copy(self, connection: Connection) -> bool:
        """Copy some rows that are new or have ended; return whether there were any."""
        with self._local() as local:
            self._follow(local)
            rows = self._waiting(local)
            series = _dicts(local, select(schema.series).where(_series.id.in_(self._new_series(rows[schema.batch]))))
        self._of_file.sealable_row = self._source.copied[schema.batch.name]
        if not any(rows.values()):
            return False
        with connection.begin():
            if self._source.shift is None:
                last = min(self._source.copied.values())
                self._source = self._source._replace(shift=engines.last_row(connection, self._host_id) - last)
            for row in series:
                theirs = statements.register(connection, {**row, "host": self._host_id}) or 0
                self._numbers[str(row["id"] & schema.OWN_SERIES)] = theirs & schema.OWN_SERIES
            for row in rows[schema.batch]:
                row["data"] = renumbered(row["data"], self._numbers)
            for table, of in rows.items():
                moved = map(self._shifted, of)
                statements.put(
                    connection, table, [row | {"slot": row["id"]} if "slot" in row else row for row in moved]
                )
            reached = self._reached(rows)
            progress = update(schema.host).where(schema.host.c.id == self._host_id)
            connection.execute(progress.values(source=schema.dumps(reached)))
        self._source = reached
        for row in rows[schema.outbox]:
            (self._open.discard if row["done_ms"] is not None else self._open.add)(row["id"])
        return True

    @contextmanager
    def _local(self) -> Iterator[Connection]:
        self._reader = self._reader or Reader(self._file, self._host)
        with self._reader.connected() as local:
            yield local

    def _waiting(self, local: Connection) -> dict[Table, list[dict[str, Any]]]:
        """Return some of the rows that are new or have ended, by table."""
        copied = self._source.copied
        rows = {}
        for table in (*_TABLES, schema.batch):
            limit = _BATCHES_AT_ONCE if table is schema.batch else _AT_ONCE
            new = select(table).where(table.c.id > copied[table.name]).order_by(table.c.id).limit(limit)
            rows[table] = _dicts(local, new)
        self.waiting_ticks = self._count(local)
        # those still unsent are few, and found by an index: no range of ids, which SQLite would scan instead
        sent = sorted(self._open.difference(local.scalars(select(_box.id).where(_box.done_ms.is_(None)))))
        ended = _dicts(local, select(schema.outbox).where(_box.id.in_(sent[:_AT_ONCE])))
        self._open -= {*sent[:_AT_ONCE]} - {row["id"] for row in ended}  # deleted in the file
        rows[schema.outbox] += ended
        return rows

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
        """Parse the ``batches``; return the ids in the file of series whose number in the server is not known."""
        if abs(time.time() - self._forgotten_wall) >= FORGET_SECONDS:
            self._forgotten_wall, self._numbers = time.time(), {}
        unknown: set[int] = set()
        for row in batches:
            known: dict[str, Any] = {"offsets": [], "values": {}, "processes": []}
            first, _ = schema.series_range(row["slot"] >> schema.ROW_BITS)
            with gap("ticks %d", row["id"]):
                known = json.loads(unpack_text(row["data"]))
                unknown |= {first | int(name) for name in known["values"].keys() - self._numbers.keys()}
            row["data"] = known
        return [*unknown]

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
