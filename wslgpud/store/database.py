"""Parts of a database besides the tables of ``schema``: views, version, machines."""

from __future__ import annotations

import time

from sqlalchemy import Connection, func, inspect, select

from wslgpud.store import engines, postgresql, schema
from wslgpud.store.errors import ForeignDatabaseError, LockedError, NewerSchemaError
from wslgpud.store.rollup import COLUMNS, DAY

#: time range of a chunk in seconds, by table, where TimescaleDB holds it: a month and five years
CHUNK_SECONDS = {schema.rollup_minute: 30 * DAY, schema.rollup_hour: 3650 * DAY // 2}
#: views for users, by name; words in braces differ by engine
_VIEWS = {
    "minute": """
        SELECT r.time, h.name AS host, s.metric, s.labels, r.n, {values}
        FROM (
            SELECT time, series, n, last, below AS low, above AS high, over AS total
            FROM (SELECT m.part + k.minute * 60 AS time, m.series, {texts}
                FROM rollup_minute m CROSS JOIN (SELECT column1 AS minute FROM (VALUES {minutes}) v) k
                WHERE m.data <> '') j
            WHERE n IS NOT NULL
            UNION ALL
            SELECT time, series, n, at AS last, at - below * unit AS low, at + above * unit AS high,
                n * (at - below * unit) + over * unit AS total
            FROM (SELECT time, series, unit, n, base + last * unit AS at, below, above, over
                FROM (SELECT time, series, unit, base, {numbers}
                    FROM (SELECT m.part + k.minute * 60 AS time, m.series, m.unit, m.base, {pieces}
                        FROM rollup_minute m CROSS JOIN (SELECT column1 AS minute FROM (VALUES {minutes}) v) k
                        WHERE m.data = '') p) b) c
            WHERE n > 0
        ) r JOIN series s ON s.id = r.series JOIN host h ON h.id = s.host""",
    "hour": """
        SELECT r.time, h.name AS host, s.metric, s.labels, r.n, {values}
        FROM (
            SELECT r.part + r.hour * 3600 AS time, r.series, r.n, r.last,
                CASE s.divisor WHEN 0 THEN r.below ELSE r.last - r.below END AS low,
                CASE s.divisor WHEN 0 THEN r.above ELSE r.last + r.above END AS high,
                CASE s.divisor WHEN 0 THEN r.extra ELSE r.n * r.last + r.extra END AS total
            FROM rollup_hour r JOIN series s ON s.id = r.series
        ) r JOIN series s ON s.id = r.series JOIN host h ON h.id = s.host""",
}
_VALUE = "CASE WHEN s.divisor > 1 THEN CAST(r.{0} AS DOUBLE PRECISION) / s.divisor ELSE r.{0} END AS {1}"


def _text(column: int, dialect: str) -> str:
    if dialect == "sqlite":
        return f"json_extract(m.data, '$[{column}][' || k.minute || ']')"
    return f"CAST(m.data::json -> {column} ->> k.minute::int AS NUMERIC)"


def _piece(column: str) -> str:
    """Return SQL for the bytes of one minute."""
    width = f"(length(m.{column}) / 15)"
    at = f"CAST(1 + k.minute * {width} AS INTEGER)"
    return f"CASE WHEN {width} = 0 THEN m.{column} ELSE substr(m.{column}, {at}, {width}) END"


def _number(column: str, dialect: str) -> str:
    """Return SQL for the big-endian integer in some bytes."""
    if dialect == "postgresql":
        return f"CAST(('x' || lpad(encode({column}, 'hex'), 16, '0'))::bit(64)::int8 AS NUMERIC)"
    digit = "((instr('0123456789ABCDEF', substr(hex({}), -{}, 1)) - 1) << {})"
    return "(" + " + ".join(digit.format(column, i + 1, 4 * i) for i in range(16)) + ")"


def views(dialect: str) -> dict[str, str]:
    shown = (("low", "min"), ("high", "max"), ("total", "sum"), ("last", "last"))
    words = {
        "values": ", ".join(_VALUE.format(*pair) for pair in shown),
        "value": _VALUE.format("value", "value"),
        "bits": schema.ROW_BITS,
        "minutes": ", ".join(f"({minute})" for minute in range(15)),
        "texts": ", ".join(f"{_text(i, dialect)} AS {name}" for i, name in enumerate(COLUMNS)),
        "pieces": ", ".join(f"{_piece(name)} AS {name}" for name in COLUMNS),
        "numbers": ", ".join(f"{_number(name, dialect)} AS {name}" for name in COLUMNS),
    }
    queries = _VIEWS | ({"recent": postgresql.RECENT} if dialect == "postgresql" else {})
    return {name: query.format_map(words) for name, query in queries.items()}


def version_of(connection: Connection, target: str) -> int:
    """Return the version of a database, 0 for an empty one; NewerSchemaError: written by a newer wslgpud."""
    if not inspect(connection).has_table(schema.schema_migration.name):
        return 0
    version = connection.scalar(select(func.max(schema.schema_migration.c.version))) or 0
    if version > schema.VERSION:
        raise NewerSchemaError(
            "{target}: written by a newer wslgpud (schema {version}, this one knows "
            "{newest}); update wslgpud, or move the file away to start a new history",
            target=target,
            version=version,
            newest=schema.VERSION,
        )
    return version


def create(connection: Connection, target: str) -> None:
    """Create the tables and views of an empty database within the caller's transaction, or raise NewerSchemaError."""
    postgresql.lock_schema(connection, engines.APPLICATION_ID)
    if version_of(connection, target):
        return
    schema.metadata.create_all(connection)
    for name, query in views(connection.dialect.name).items():
        connection.exec_driver_sql(f"CREATE VIEW {name} AS {query}")
    first = {"version": schema.VERSION, "name": "first tables", "applied_ms": int(time.time() * 1000)}
    connection.execute(schema.schema_migration.insert(), first)


def prepare(connection: Connection, target: str, host_name: str) -> int:
    """Create missing parts of an opened database; return a machine's number, locked against other writers while open.

    Raises:
        NewerSchemaError: a newer wslgpud wrote it.
        ForeignDatabaseError: the file is another program's.
        LockedError: another daemon writes for this machine.
    """
    name, host = engines.shown(target), schema.host
    if not postgresql.is_server(connection):
        mark = connection.exec_driver_sql("PRAGMA application_id").scalar()
        if mark != engines.APPLICATION_ID and connection.exec_driver_sql("SELECT 1 FROM sqlite_master").first():
            raise ForeignDatabaseError("{name}: belongs to another program; name another file in store.path", name=name)
    create(connection, name)
    postgresql.make_hypertables(connection, CHUNK_SECONDS)
    number: int | None = connection.scalar(select(host.c.id).where(host.c.name == host_name))
    if number is None:
        number = connection.scalar(select(func.coalesce(func.max(host.c.id) + 1, 0))) or 0
        connection.execute(host.insert(), {"id": number, "name": host_name, "sealed": schema.row_range(number)[0]})
    if not postgresql.lock_host(connection, engines.APPLICATION_ID, number):
        raise LockedError(
            "{database}: another wslgpud writes for the host {host_name}; give each its own name",
            database=name,
            host_name=host_name,
        )
    return number
