"""The tables as queries see them; ``migrations.py`` creates them.

Every number of a series is kept as a whole number of its last decimal (``value * divisor``), so that sums
are exact and blocks compress; a series whose metric declares no precision has divisor 0 and keeps doubles.

Identifiers are made here, not by the database, because rows wait in memory while the disk is full and must
refer to each other. Each host owns a range of them (``SERIES_BITS``, ``ROW_BITS``). The first host is 0,
which keeps ids small, and SQLite stores small numbers in few bytes.

There are no foreign keys: on tables of samples they turned a nightly purge into a full scan for each
deleted row (home-assistant/core#117263).
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Connection,
    Dialect,
    Float,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
)
from sqlalchemy.types import UserDefinedType

#: ids of series of one host: host << 16 ... + 65535
SERIES_BITS = 16
#: ids of everything else of one host: host << 34 ...; a tick a second fills that in 500 years
ROW_BITS = 34


class Exact(UserDefinedType[Any]):
    """A number that keeps all its bits, whole or not."""

    cache_ok = True

    def get_col_spec(self, **_: object) -> str:
        """Name the type as both engines know it."""
        return "NUMERIC"

    def bind_processor(self, dialect: Dialect) -> Callable[[Any], Any] | None:
        """Write a double for PostgreSQL so that it comes back as one: with digits behind the point."""
        return None if dialect.name == "sqlite" else _to_decimal

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], Any] | None:
        """Turn PostgreSQL's decimals into the int or float that was written."""
        _ = coltype
        return None if dialect.name == "sqlite" else _from_decimal


def _to_decimal(value: Any) -> Decimal:
    if isinstance(value, float):
        text = f"{Decimal(repr(value)):f}"
        return Decimal(text if "." in text else f"{text}.0")
    return Decimal(value)


def _from_decimal(value: Decimal) -> int | float:
    return float(value) if int(value.as_tuple().exponent) < 0 else int(value)


metadata = MetaData()


def _id() -> Column[int]:
    return Column("id", BigInteger, primary_key=True, autoincrement=False)


schema_migration = Table(
    "schema_migration",
    metadata,
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("name", Text, nullable=False),
    Column("applied_ms", BigInteger, nullable=False),
)

host = Table("host", metadata, _id(), Column("name", Text, nullable=False))

series = Table(
    "series",
    metadata,
    _id(),
    Column("host", Integer, nullable=False),
    Column("metric", Text, nullable=False),  # as declared: neither prefix nor suffix
    Column("kind", Text, nullable=False),
    Column("labels", Text, nullable=False),  # JSON object, keys in the order of the declaration
    Column("divisor", BigInteger, nullable=False),
)

# The newest data, as it is committed: some ticks in order of arrival, which a wall clock that goes back
# cannot disturb (within a batch time only grows). A row holds the series that have a value at the very same
# of these ticks; the rows of one batch, fullest first, bear the id of the first. A row a reading would cost
# several times the processor time and the bytes written.
batch = Table(
    "batch",
    metadata,
    _id(),
    Column("batch", BigInteger, nullable=False),
    Column("ms", BigInteger, nullable=False),  # of the batch's first tick
    Column("offsets", Text, nullable=False),  # JSON array: milliseconds from there to each tick
    Column("readings", Text, nullable=False),  # JSON object: series id -> values * divisor, one if all are it
    # JSON array of [offset, rows]: [pid, start ticks, name, RSS KiB, swapped KiB] of a process, and since
    # schema 3 [UUID of a GPU, pid, name, KiB of its memory or null] of one that uses a GPU
    Column("processes", Text),
)

# Older data: the ticks of one stretch of time sealed together; what their series share is kept once, here.
chunk = Table(
    "chunk",
    metadata,
    _id(),
    Column("ticks", Integer, nullable=False),
    Column("low_ms", BigInteger, nullable=False),  # earliest and latest by the clock
    Column("high_ms", BigInteger, nullable=False),
    Column("last_ms", BigInteger, nullable=False),  # last in order of arrival
    Column("times", LargeBinary, nullable=False),  # block of the ticks' milliseconds
    Column("masks", LargeBinary, nullable=False),  # deflated: for each mask one byte (0 or 1) a tick
    Column("processes", LargeBinary),  # deflated JSON array as in batch, with ms for offset
)

# The blocks of a chunk. Since schema 5 they are one row, a sheet (``sheet.py``), whose id is chunk << 16;
# before, each series had a row, whose id is that + the low 16 bits of the series (never 0).
block = Table(
    "block",
    metadata,
    _id(),
    Column("mask", Integer, nullable=False),  # 0: it has all ticks; else those of the chunk's mask
    Column("last", Exact, nullable=False),
    Column("data", LargeBinary, nullable=False),
)

# Summaries. Rows of one part (a quarter of an hour, a day) lie together by series, which makes them quick
# to read by series and append-only to write. The views ``minute`` and ``hour`` show them plainly.
# A row holds 15 minutes, as distances in multiples of ``unit``, because a row a minute would take more room
# than the samples themselves.
rollup_minute = Table(
    "rollup_minute",
    metadata,
    Column("part", BigInteger, primary_key=True),  # seconds since the epoch, beginning of the part
    Column("series", BigInteger, primary_key=True),
    Column("unit", BigInteger, nullable=False),
    Column("base", BigInteger, nullable=False),
    # JSON: [n, last - base, last - min, max - last, sum - n * last], each a list or one number for all; of
    # doubles (unit 0) the values themselves; since schema 5 empty for whole numbers: then the columns below
    Column("data", Text, nullable=False),
    # hold 15 numbers in as many bytes each as the largest needs, highest first, or one number for all; n of a
    # minute that is missing is 0
    Column("n", LargeBinary),
    Column("last", LargeBinary),  # last - base
    Column("below", LargeBinary),  # last - min
    Column("above", LargeBinary),  # max - last
    Column("over", LargeBinary),  # sum - n * min
)

# Of whole numbers the distances from ``last``, which are small; of doubles min, max and sum themselves.
rollup_hour = Table(
    "rollup_hour",
    metadata,
    Column("part", BigInteger, primary_key=True),
    Column("series", BigInteger, primary_key=True),
    Column("hour", Integer, primary_key=True),
    Column("n", Integer, nullable=False),
    Column("last", Exact, nullable=False),
    Column("below", Exact, nullable=False),
    Column("above", Exact, nullable=False),
    Column("extra", Exact, nullable=False),
)

event = Table(
    "event",
    metadata,
    _id(),
    Column("ms", BigInteger, nullable=False),
    Column("kind", Text, nullable=False),
    Column("text", Text, nullable=False),
    Column("fields", Text, nullable=False),  # JSON object
)

transition = Table(
    "transition",
    metadata,
    _id(),
    Column("ms", BigInteger, nullable=False),
    Column("mono", Float, nullable=False),
    Column("resource", Text, nullable=False),
    Column("rule", Text, nullable=False),
    Column("old", Integer, nullable=False),
    Column("new", Integer, nullable=False),
    Column("message", Text, nullable=False),  # JSON object: template and facts
    Column("forecast", Text),  # JSON object
    Column("facts", Text),  # JSON object: what the rule saw
)

# What is still to be sent, one row a channel; done_ms is null until the channel has taken it.
outbox = Table(
    "outbox",
    metadata,
    _id(),
    Column("channel", Text, nullable=False),
    Column("transition", BigInteger),
    Column("payload", Text, nullable=False),  # JSON object
    Column("created_ms", BigInteger, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("error", Text, nullable=False),
    Column("done_ms", BigInteger),
)

# One row a stress run; there is one a night, and it stays.
stress_run = Table(
    "stress_run",
    metadata,
    _id(),
    Column("ms", BigInteger, nullable=False),
    Column("gpu", Text, nullable=False),  # UUID
    Column("verdict", Text, nullable=False),
    Column("document", Text, nullable=False),  # JSON object: the result
)

# What the daemon has found out about this machine, one row a subject (a GPU's UUID, RAM): written anew with a
# new id when it changes.
learned = Table(
    "learned",
    metadata,
    _id(),
    Column("ms", BigInteger, nullable=False),
    Column("subject", Text, nullable=False),
    Column("document", Text, nullable=False),  # JSON object
)

daemon_run = Table(
    "daemon_run",
    metadata,
    _id(),
    Column("started_ms", BigInteger, nullable=False),
    Column("stopped_ms", BigInteger),
    Column("clean", Integer, nullable=False),
    Column("version", Text, nullable=False),
    Column("boot_id", Text, nullable=False),
)


def block_id(chunk: int, series_id: int) -> int:
    """Return the id of the block of a series in a chunk."""
    return (chunk << SERIES_BITS) | (series_id & ((1 << SERIES_BITS) - 1))


#: gives what is true of a table's rows that are a machine's own
Ours = Callable[[Connection, Table], ColumnElement[bool]]


def row_range(host_id: int) -> tuple[int, int]:
    """Return the first and last id of a host's rows of any table but series and block."""
    return host_id << ROW_BITS, ((host_id + 1) << ROW_BITS) - 1


def series_range(host_id: int) -> tuple[int, int]:
    """Return the first and last id of a host's series."""
    return host_id << SERIES_BITS, ((host_id + 1) << SERIES_BITS) - 1


def key_range(table: Table, host_id: int) -> tuple[Column[int], tuple[int, int]]:
    """Return the column that tells whose a row is, and its first and last value of a host."""
    if "series" in table.c:
        return table.c.series, series_range(host_id)
    low, high = row_range(host_id)
    return table.c.id, (block_id(low, 0), block_id(high, -1)) if table is block else (low, high)
