"""The tables, for queries and for creating a database.

Every value of a series is stored as an integer (``value * divisor``), so that sums are exact and blocks compress.

Identifiers are assigned here, not by the database, because rows wait in memory while the disk is full and must refer to
each other. Each host owns a range of them (``SERIES_BITS``, ``ROW_BITS``). The first host is 0, which keeps ids small,
and SQLite stores small numbers in few bytes.

There are no foreign keys: on tables of samples they turned a nightly purge into a full scan per deleted row
(home-assistant/core#117263).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import sqlalchemy as sa
from sqlalchemy.types import TypeEngine

#: version of the tables and views; a change needs a new one, and code to migrate older databases
VERSION = 1

#: ids of a host's series: host << 32 ...; none is used twice, and small ones leave room for a batch on its page
SERIES_BITS = 32
#: the bits of a series id without the host's
OWN_SERIES = (1 << SERIES_BITS) - 1
#: ids of everything else of a host: host << 34 ...; a tick per second fills that in 500 years
ROW_BITS = 34

# Division of the newest data into batches and of older data into chunks, and limits for readers.
#: length of a chunk: long enough to compress well, short enough that unsealed rows stay few
PERIOD_SECONDS = 900
PERIOD_MS = PERIOD_SECONDS * 1000
#: at ten ticks per second a chunk is closed early
MAX_TICKS = 3000
#: limit of ticks in a batch; a batch also ends with its period, and where time does not increase
MAX_BATCH = 60
#: readers' limit of ticks in a chunk, which is closed at MAX_TICKS, after the batch that reaches it
MAX_READ_TICKS = 16 * MAX_TICKS
#: limit of the inflated processes of a chunk; a busy machine's are below a tenth
MAX_INFLATED_BYTES = 16 << 20
#: limit of an inflated batch: 60 ticks of 600 series and 100 processes take a third
MAX_BATCH_BYTES = 2 << 20
#: stored integers are smaller than this, so that their differences fit into 64 bits
MAX_VALUE = 1 << 62
#: limit of values per read: four months of a series at 1 s
MAX_VALUES = 10_000_000
#: readers' limit of bytes in a row of an SQLite file
MAX_ROW_BYTES = 64 << 20


#: JSON encoding in columns
dumps = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode


# SQLite's STRICT tables know these types by these names alone.
_Int: TypeEngine[int] = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_Real: TypeEngine[float] = sa.Double().with_variant(sa.REAL(), "sqlite")
_Blob = sa.LargeBinary()


class _StorableText(sa.TypeDecorator[str]):
    """Text; a lone surrogate, which foreign JSON may hold and no database takes, becomes a question mark.

    Otherwise one such row would be written in vain for ever, and nothing after it.
    """

    impl, cache_ok = sa.Text, True

    def process_bind_param(self, value: str | None, dialect: sa.Dialect) -> str | None:  # noqa: ARG002 - its interface
        return value if value is None else value.encode(errors="replace").decode()


_Text = _StorableText()
#: PostgreSQL compresses long text itself, and its functions can read it
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

# ``sealed`` is the id of the newest batch that was sealed into a chunk; ``source``, on a server, is the progress of
# copying the machine's own file, see ``replication``.
host = _table("host", {"name": _Text, "sealed": _Int, "source": _Text}, sa.UniqueConstraint("name"), optional="source")

# The metric as declared, without prefix and suffix; ``labels`` are a JSON object, keys in the order of the declaration.
# ``seen_ms`` is when it was last looked up, once an hour while it is read.
series = _table(
    "series",
    {"host": _Int, "metric": _Text, "kind": _Text, "labels": _Text, "divisor": _Int, "seen_ms": _Int},
    sa.UniqueConstraint("host", "metric", "labels", "divisor"),
)

# The newest data, as committed: some ticks in order of arrival (``id``), regardless of backward jumps of the wall clock
# (within a batch time only increases). A row per reading would cost several times the CPU time and bytes written. A
# sealed batch stays until it is overwritten, see ``BatchSlots``.
batch = _table(
    "batch",
    {
        "id": _Int,
        "ms": _Int,  # of the first tick
        "ticks": _Int,
        # JSON object, deflated in SQLite. "offsets": milliseconds from ``ms`` to each tick; "values": series id without
        # the host's bits -> value * divisor at each tick, null where there was none, or a single one if all are equal;
        # "processes": [offset, rows] with [pid, start ticks, name, RSS KiB, swapped KiB] of a process, and [UUID of a
        # GPU, pid, name, KiB of its memory or null] of one that uses a GPU.
        "data": _Packed,
    },
    keys="slot",
)
#: condition for unsealed batches
unsealed = batch.c.id > (
    sa.select(host.c.sealed)
    .where(host.c.id == batch.c.slot.bitwise_rshift(sa.literal_column(str(ROW_BITS), sa.Integer)))
    .correlate(batch)
    .scalar_subquery()
)

# Older data: the ticks of one period sealed together.
chunk = _table(
    "chunk",
    {
        "low_ms": _Int,  # earliest and latest by the clock
        "high_ms": _Int,
        "samples": _Int,
        "data": _Blob,  # a sheet, see ``codec``
        "processes": _Blob,  # deflated JSON array as in a batch, with ms for offset
    },
    optional="processes",
)
sa.Index("chunk_by_time", chunk.c.high_ms, chunk.c.low_ms)

#: the numbers of a step of a rollup: n, last - base, last - min, max - last, and sum - n * min
ROLLED_UP = ("n", "last", "below", "above", "over")


class Tier(NamedTuple):
    """Summaries of one length; a row of ``table`` holds ``steps`` of them."""

    table: sa.Table
    step_seconds: int
    steps: int

    @property
    def part_seconds(self) -> int:
        return self.step_seconds * self.steps


def _tier(name: str, step_seconds: int, steps: int) -> Tier:
    """Declare a table of summaries, which the views ``minute`` and ``hour`` show.

    Rows of one part (a quarter of an hour, a day) are clustered by series, which makes them fast to read by series and
    append-only to write; ``part`` is its beginning in seconds since the epoch. A row per step would take more than
    twice the space. Columns of missing steps are null; all but n are in multiples of ``unit``.
    """
    numbers: dict[str, TypeEngine[Any]] = {f"{column}_{step}": _Int for column in ROLLED_UP for step in range(steps)}
    columns = {"unit": _Int, "base": _Int, **numbers}
    return Tier(_table(name, columns, keys="part series", optional=" ".join(numbers)), step_seconds, steps)


MINUTES, HOURS = _tier("rollup_minute", 60, 15), _tier("rollup_hour", 3600, 24)

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

# Messages to send, one row per channel; done_ms is null until the channel has accepted it.
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
# The dispatcher queries unsent messages, a tiny part of the table.
sa.Index("outbox_waiting", outbox.c.channel, sqlite_where=outbox.c.done_ms.is_(None))

# One row per stress run of a GPU, by UUID; there is one per night, kept forever.
stress_run = _table("stress_run", {"ms": _Int, "gpu": _Text, "verdict": _Text, "document": _Text})

# Lessons about this machine, one row per subject (a GPU's UUID, RAM): rewritten with a new id when it changes.
learned = _table("learned", {"ms": _Int, "subject": _Text, "document": _Text})

daemon_run = _table(
    "daemon_run",
    {"started_ms": _Int, "stopped_ms": _Int, "clean": _Int, "version": _Text, "boot_id": _Text},
    optional="stopped_ms",
)


_SHOWN = {"min": "r.low", "max": "r.high", "sum": "n * r.low + over * unit", "last": "r.last"}
#: the steps of a tier, one a row
_VIEW = """
    SELECT r.time, h.name AS host, s.metric, s.labels, r.n, {values}
    FROM (
        SELECT time, series, unit, n, at AS last, at - below * unit AS low, at + above * unit AS high, over
        FROM (
            SELECT m.part + k.step * {seconds} AS time, m.series, CAST(m.unit AS NUMERIC) AS unit, {numbers},
                m.base + CASE k.step {last} END * CAST(m.unit AS NUMERIC) AS at
            FROM {table} m CROSS JOIN (SELECT column1 AS step FROM (VALUES {steps}) v) k
        ) j WHERE n > 0
    ) r JOIN series s ON s.id = r.series JOIN host h ON h.id = s.host"""


def _view(tier: Tier) -> str:
    cases = {
        column: " ".join(f"WHEN {step} THEN m.{column}_{step}" for step in range(tier.steps)) for column in ROLLED_UP
    }
    value = "CASE WHEN s.divisor > 1 THEN CAST({0} AS DOUBLE PRECISION) / s.divisor ELSE {0} END AS {1}"
    return _VIEW.format(
        values=", ".join(value.format(number, name) for name, number in _SHOWN.items()),
        numbers=", ".join(f"CASE k.step {case} END AS {name}" for name, case in cases.items() if name != "last"),
        last=cases["last"],
        seconds=tier.step_seconds,
        table=tier.table.name,
        steps=", ".join(f"({step})" for step in range(tier.steps)),
    )


#: the views for users, by name
VIEWS = {"minute": _view(MINUTES), "hour": _view(HOURS)}


#: tables whose ids are in a host's range of rows
NUMBERED = (batch, chunk, event, transition, outbox, daemon_run, stress_run, learned)

#: returns the condition for a table's rows of one machine
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


def is_server(connection: sa.Connection) -> bool:
    return connection.dialect.name != "sqlite"


def tuples(
    connection: sa.Connection, query: sa.Executable, words: Mapping[str, Any] | None = None
) -> Iterable[Sequence[Any]]:
    """Return the result of a query, row by row: a month of sheets is a hundred megabytes.

    From SQLite they are the driver's own tuples: SQLAlchemy's rows of a year take as long as everything else. A server
    would send everything at once unless told otherwise.
    """
    if not is_server(connection):
        return cast("Iterable[Sequence[Any]]", connection.execute(query, words).cursor)
    options = {"stream_results": True, "max_row_buffer": 16}
    return connection.execute(query, words, execution_options=options)
