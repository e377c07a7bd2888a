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

from sqlalchemy import BigInteger, Column, Dialect, Float, Integer, MetaData, Table, Text
from sqlalchemy.types import UserDefinedType

#: ids of series of one host: host << 16 ... + 65535
SERIES_BITS = 16
#: ids of everything else of one host: host << 40 ...; a tick every 0.1 s fills that in 3,000 years
ROW_BITS = 40


class Exact(UserDefinedType[Any]):
    """A number that keeps all its bits, whole or not."""

    cache_ok = True

    def get_col_spec(self, **_: object) -> str:
        """Name the type as both engines know it."""
        return "NUMERIC"

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], Any] | None:
        """Turn PostgreSQL's decimals into the int or float that was written."""
        _ = coltype
        if dialect.name == "sqlite":
            return None
        return lambda v: v if not isinstance(v, Decimal) else int(v) if v == v.to_integral() else float(v)


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

# The newest data: one row a tick in order of arrival, which a wall clock that goes back cannot disturb.
# One row a reading would cost several times the processor time and the bytes written.
tick = Table(
    "tick",
    metadata,
    _id(),
    Column("ms", BigInteger, nullable=False),
    Column("readings", Text, nullable=False),  # JSON object: series id -> value * divisor
    Column("processes", Text),  # JSON array of [pid, start ticks, name, resident KiB, swapped KiB]
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
    Column("headline", Text, nullable=False),
    Column("forecast", Text),  # JSON object
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
