"""The tables: queries are made of them, and a new database is created from them.

Every number of a series is kept as a whole number of its last decimal (``value * divisor``), so that sums
are exact and blocks compress.

Identifiers are made here, not by the database, because rows wait in memory while the disk is full and must
refer to each other. Each host owns a range of them (``SERIES_BITS``, ``ROW_BITS``). The first host is 0,
which keeps ids small, and SQLite stores small numbers in few bytes.

There are no foreign keys: on tables of samples they turned a nightly purge into a full scan for each
deleted row (home-assistant/core#117263).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import sqlite
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.types import TypeEngine, UserDefinedType

#: of the tables and views; a change of them needs another, and code that brings older databases to it
VERSION = 1

#: ids of series of one host: host << 16 ... + 65535
SERIES_BITS = 16
#: of the id of a series those bits that are its own, not its host's
OWN_SERIES = (1 << SERIES_BITS) - 1
#: ids of everything else of one host: host << 34 ...; a tick a second fills that in 500 years
ROW_BITS = 34

# How newest data is cut into batches and older data into chunks, and what readers believe of them.
#: length of a chunk: long enough to compress, short enough that the newest, larger rows stay few
PERIOD_SECONDS = 900
PERIOD_MS = PERIOD_SECONDS * 1000
#: at ten ticks a second a chunk is closed early
MAX_TICKS = 3000
#: ticks in one batch at most; a batch also ends with its period, and where time does not grow
MAX_BATCH = 60
#: ticks of a chunk that readers believe; a chunk is closed at MAX_TICKS, after the batch that brings it there
MOST_TICKS = 16 * MAX_TICKS
#: bytes that the masks, or the processes, of a chunk inflate to; those of a busy machine are below a tenth
MOST_INFLATED_BYTES = 16 << 20
#: bytes that a batch inflates to: 60 ticks of 600 series and 100 processes take a third
MOST_BATCH_BYTES = 2 << 20
#: values that one read gives; of a series at 1 s those of four months
MOST_VALUES = 10_000_000
#: identities in one statement; SQLite bounds its values
MOST_IDENTITIES = 200
#: bytes of a row that readers take from an SQLite file
MOST_ROW_BYTES = 64 << 20


#: JSON as columns hold it
dumps = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode


class Exact(UserDefinedType[int]):
    """A whole number of any size."""

    cache_ok = True

    def result_processor(self, dialect: sa.Dialect, coltype: object) -> Callable[[Any], int] | None:
        """Turn PostgreSQL's decimals into what was written."""
        _ = coltype
        return None if dialect.name == "sqlite" else int


@compiles(Exact)
def _exact(_type: Exact, compiler: Any, **_: object) -> str:
    return "ANY" if compiler.dialect.name == "sqlite" else "NUMERIC"


# SQLite's STRICT tables know these types by these names alone.
_Int: TypeEngine[int] = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_Real: TypeEngine[float] = sa.Double().with_variant(sa.REAL(), "sqlite")
_Text, _Blob, _Exact = sa.Text(), sa.LargeBinary(), Exact()
#: PostgreSQL compresses a long text by itself, and its functions can look into it
_Packed: TypeEngine[Any] = sa.Text().with_variant(sa.LargeBinary(), "sqlite")

metadata = sa.MetaData()


def _table(
    table: str, columns: dict[str, TypeEngine[Any]], *others: sa.UniqueConstraint, keys: str = "id", optional: str = ""
) -> sa.Table:
    """Return a table; ``keys`` and ``optional`` name columns that are its primary key, or may be null."""
    primary = [sa.Column(key, _Int, primary_key=True, autoincrement=False) for key in keys.split()]
    rest = [sa.Column(name, type_, nullable=name in optional.split()) for name, type_ in columns.items()]
    with_rowid = len(primary) == 1
    return sa.Table(table, metadata, *primary, *rest, *others, sqlite_strict=True, sqlite_with_rowid=with_rowid)


schema_migration = _table("schema_migration", {"name": _Text, "applied_ms": _Int}, keys="version")

# ``sealed`` is the id of the newest batch that was sealed into a chunk; ``source``, on a server, tells how far the
# rows of the machine's own file were copied, see ``replication``.
host = _table("host", {"name": _Text, "sealed": _Int, "source": _Text}, sa.UniqueConstraint("name"), optional="source")

# The metric as declared, with neither prefix nor suffix; ``labels`` are a JSON object, keys in the order of the
# declaration.
series = _table(
    "series",
    {"host": _Int, "metric": _Text, "kind": _Text, "labels": _Text, "divisor": _Int},
    sa.UniqueConstraint("host", "metric", "labels", "divisor"),
)

# The newest data, as it is committed: some ticks in order of arrival (``id``), which a wall clock that goes back
# cannot disturb (within a batch time only grows). A row a reading would cost several times the processor time and
# the bytes written. A batch that was sealed stays until another takes its place, see ``slots``.
batch = _table(
    "batch",
    {
        "id": _Int,
        "ms": _Int,  # of the first tick
        "ticks": _Int,
        # JSON object, deflated in SQLite. "ticks": [offsets, readings] of the series that have a value at the very
        # same ticks, the fullest first: milliseconds from ``ms`` to each; series id -> values * divisor, one if all
        # are it. "processes": [offset, rows] with [pid, start ticks, name, RSS KiB, swapped KiB] of a process, and
        # [UUID of a GPU, pid, name, KiB of its memory or null] of one that uses a GPU.
        "data": _Packed,
    },
    keys="slot",
)
#: true of the batches that are not sealed yet
unsealed = batch.c.id > (
    sa.select(host.c.sealed)
    .where(host.c.id == batch.c.slot.bitwise_rshift(sa.literal_column(str(ROW_BITS), sa.Integer)))
    .correlate(batch)
    .scalar_subquery()
)

# Older data: the ticks of one stretch of time sealed together; what their series share is kept once, here.
chunk = _table(
    "chunk",
    {
        "ticks": _Int,
        "low_ms": _Int,  # earliest and latest by the clock
        "high_ms": _Int,
        "last_ms": _Int,  # last in order of arrival
        "times": _Blob,  # block of the ticks' milliseconds
        "masks": _Blob,  # deflated: for each mask one byte (0 or 1) a tick
        "processes": _Blob,  # deflated JSON array as in a batch, with ms for offset
    },
    optional="processes",
)
sa.Index("chunk_by_time", chunk.c.high_ms, chunk.c.low_ms)

# The blocks of all series of the chunk with this id: a sheet, see ``codec``.
block = _table("block", {"data": _Blob})

# Summaries. Rows of one part (a quarter of an hour, a day) lie together by series, which makes them quick
# to read by series and append-only to write. The views ``minute`` and ``hour`` show them plainly.
# A row holds 15 minutes, as distances in multiples of ``unit``, because a row a minute would take more room
# than the samples themselves. ``part`` is its beginning in seconds since the epoch.
rollup_minute = _table(
    "rollup_minute",
    {
        "unit": _Int,
        "base": _Int,
        # JSON of numbers too far apart: [n, last, min, max, sum], each a list with null for a
        # minute that is missing; empty for all others, for which the columns below
        "data": _Text,
        # hold 15 numbers in as many bytes each as the largest needs, highest first, or one number for all; n of
        # a minute that is missing is 0
        "n": _Blob,
        "last": _Blob,  # last - base
        "below": _Blob,  # last - min
        "above": _Blob,  # max - last
        "over": _Blob,  # sum - n * min
    },
    keys="part series",
    optional="n last below above over",
)

# The distances from ``last``, which are small.
rollup_hour = _table(
    "rollup_hour",
    {"n": _Int, "last": _Exact, "below": _Exact, "above": _Exact, "extra": _Exact},
    keys="part series hour",
)

# ``fields`` is a JSON object.
event = _table("event", {"ms": _Int, "kind": _Text, "text": _Text, "fields": _Text})

transition = _table(
    "transition",
    {
        "ms": _Int,
        "mono": _Real,
        "resource": _Text,
        "rule": _Text,
        "old": _Int,
        "new": _Int,
        "message": _Text,  # JSON object: template and facts
        "forecast": _Text,  # JSON object
        "facts": _Text,  # JSON object: what the rule saw
    },
    optional="forecast facts",
)

# What is still to be sent, one row a channel; done_ms is null until the channel has taken it.
outbox = _table(
    "outbox",
    {
        "channel": _Text,
        "transition": _Int,
        "payload": _Text,
        "created_ms": _Int,
        "attempts": _Int,
        "error": _Text,
        "done_ms": _Int,
    },
    optional="transition done_ms",
)
# The alert loop asks for what is not yet sent, which is next to nothing of the table.
_waiting = outbox.c.done_ms.is_(None)
_outbox_waiting = sa.Index("outbox_waiting", outbox.c.channel, sqlite_where=_waiting)


@sa.event.listens_for(metadata, "before_create")
def _for_postgresql(_metadata: sa.MetaData, connection: sa.Connection, **_: Any) -> None:
    """Say the same to PostgreSQL; as an argument of the index it would load 2 MiB of that dialect for everybody."""
    if connection.dialect.name == "postgresql":
        _outbox_waiting.dialect_options["postgresql"]["where"] = _waiting


# One row a stress run of the GPU with a UUID; there is one a night, and it stays.
stress_run = _table("stress_run", {"ms": _Int, "gpu": _Text, "verdict": _Text, "document": _Text})

# What the daemon has found out about this machine, one row a subject (a GPU's UUID, RAM): written anew with a
# new id when it changes.
learned = _table("learned", {"ms": _Int, "subject": _Text, "document": _Text})

daemon_run = _table(
    "daemon_run",
    {"started_ms": _Int, "stopped_ms": _Int, "clean": _Int, "version": _Text, "boot_id": _Text},
    optional="stopped_ms",
)


#: whose ids are a host's rows'
NUMBERED = (batch, chunk, event, transition, outbox, daemon_run, stress_run, learned)

#: gives what is true of a table's rows that are a machine's own
Ours = Callable[[sa.Connection, sa.Table], sa.ColumnElement[bool]]


def row_range(host_id: int) -> tuple[int, int]:
    """Return the first and last id of a host's rows of any table but series."""
    return host_id << ROW_BITS, ((host_id + 1) << ROW_BITS) - 1


def series_range(host_id: int) -> tuple[int, int]:
    """Return the first and last id of a host's series."""
    return host_id << SERIES_BITS, ((host_id + 1) << SERIES_BITS) - 1


def of_host(table: sa.Table, host_id: int) -> sa.ColumnElement[bool]:
    if "series" in table.c:
        return table.c.series.between(*series_range(host_id))
    return table.primary_key.columns.values()[0].between(*row_range(host_id))


def insert_new(connection: sa.Connection, table: sa.Table, rows: Sequence[dict[str, Any]]) -> None:
    """Insert rows, leaving those whose key is there already.

    A commit that failed may have happened all the same, so a batch is written again as a whole.
    """
    make: Any = sqlite.insert
    if connection.dialect.name != "sqlite":
        # Late: nobody without PostgreSQL should keep 2 MiB of it in memory.
        from sqlalchemy.dialects import postgresql

        make = postgresql.insert
    if rows:
        connection.execute(make(table).on_conflict_do_nothing(), list(rows))
