"""How a database of any age becomes one of today: numbered steps, each atomic with the row that records it.

Append only. The SQL of a released step never changes; what it must lead to is frozen in
``tests/schemas/v<N>.sql``.
"""

from __future__ import annotations

import time
from typing import NamedTuple

from sqlalchemy import Connection, inspect, select

from wslgpud.store import engine, schema
from wslgpud.store.errors import NewerSchemaError
from wslgpud.words import say

#: columns that step 5 adds; ``tiers.PACKED``
PACKED = ("n", "last", "below", "above", "over")


class Migration(NamedTuple):
    """One step; ``statements`` are SQL in which {int8}, {blob}, {exact} and {strict} differ by engine."""

    version: int
    name: str
    statements: tuple[str, ...]


def _value(whole: str, double: str, name: str) -> str:
    return (
        f"CASE WHEN s.divisor > 1 THEN CAST({whole} AS DOUBLE PRECISION) / s.divisor"
        f" WHEN s.divisor = 1 THEN {whole} ELSE {double} END AS {name}"
    )


#: what the views of both summaries show; part of step 2
_SUMMARY = ", ".join(
    (
        _value("(r.last - r.below)", "r.below", "min"),
        _value("(r.last + r.above)", "r.above", "max"),
        _value("(r.n * r.last + r.extra)", "r.extra", "sum"),
        _value("r.last", "r.last", "last"),
    )
)

_COLUMNS = ("n", "last", "below", "above", "extra")


def _of_minute(column: int, engine: str) -> str:
    """Return SQL for what a row of 15 minutes holds for one of them: a list, or one number for all."""
    if engine == "sqlite":
        path = f"'$[{column}]'"
        return (
            f"CASE json_type(m.data, {path}) WHEN 'array'"
            f" THEN json_extract(m.data, '$[{column}][' || k.minute || ']')"
            f" ELSE json_extract(m.data, {path}) END"
        )
    item = f"(m.data::json -> {column})"
    return (
        f"CAST(CASE json_typeof({item}) WHEN 'array' THEN {item} ->> k.minute::int"
        f" ELSE {item} #>> '{{}}' END AS NUMERIC)"
    )


def _piece(column: str) -> str:
    """Return SQL for the bytes of one minute in a column of ``tiers.PACKED``."""
    width = f"(length(m.{column}) / 15)"
    at = f"CAST(1 + k.minute * {width} AS INTEGER)"
    return f"CASE WHEN {width} = 0 THEN m.{column} ELSE substr(m.{column}, {at}, {width}) END AS {column}"


def _of_bytes(column: str, engine: str) -> str:
    """Return SQL for the whole number that some bytes are, highest first."""
    if engine == "postgresql":
        return f"CAST(('x' || lpad(encode({column}, 'hex'), 16, '0'))::bit(64)::int8 AS NUMERIC)"
    digit = "((instr('0123456789ABCDEF', substr(hex({}), -{}, 1)) - 1) << {})"
    return "(" + " + ".join(digit.format(column, i + 1, 4 * i) for i in range(16)) + ")"


_WORDS = {
    "sqlite": {
        "int8": "INTEGER",
        "double": "REAL",
        "blob": "BLOB",
        "exact": "ANY",
        "strict": "STRICT",
        "keyed": "STRICT, WITHOUT ROWID",
        "summary": _SUMMARY,
        **{name: _of_minute(i, "sqlite") for i, name in enumerate(_COLUMNS)},
        "pieces": ", ".join(map(_piece, PACKED)),
        **{f"bytes_{name}": _of_bytes(name, "sqlite") for name in PACKED},
        "drop_minute": "DROP VIEW minute",
        "view": "CREATE VIEW",
        "recent": """
            SELECT (b.ms + o.value) / 1000.0 AS time, h.name AS host, s.metric, s.labels, s.divisor,
                CASE j.type WHEN 'array' THEN json_extract(j.value, '$[' || o.key || ']') ELSE j.value END
                AS value
            FROM batch b, json_each(b.offsets) o, json_each(b.readings) j
            JOIN series s ON s.id = CAST(j.key AS INTEGER) JOIN host h ON h.id = s.host""",
    },
    "postgresql": {
        "int8": "BIGINT",
        "double": "DOUBLE PRECISION",
        "blob": "BYTEA",
        "exact": "NUMERIC",
        "strict": "",
        "keyed": "",
        "summary": _SUMMARY,
        **{name: _of_minute(i, "postgresql") for i, name in enumerate(_COLUMNS)},
        "pieces": ", ".join(map(_piece, PACKED)),
        **{f"bytes_{name}": _of_bytes(name, "postgresql") for name in PACKED},
        # views of others may stand on it
        "drop_minute": "SELECT 1",
        "view": "CREATE OR REPLACE VIEW",
        "recent": """
            SELECT (b.ms + o.value::bigint) / 1000.0 AS time, h.name AS host, s.metric, s.labels, s.divisor,
                CAST(CASE json_typeof(j.value) WHEN 'array' THEN j.value ->> (o.key - 1)::int
                    ELSE j.value #>> '{}' END AS NUMERIC) AS value
            FROM batch b,
                json_array_elements_text(b.offsets::json) WITH ORDINALITY AS o (value, key),
                json_each(b.readings::json) j
            JOIN series s ON s.id = j.key::bigint JOIN host h ON h.id = s.host""",
    },
}

MIGRATIONS = (
    Migration(
        1,
        "first tables",
        (
            "CREATE TABLE host (id {int8} PRIMARY KEY, name TEXT NOT NULL UNIQUE) {strict}",
            """CREATE TABLE series (id {int8} PRIMARY KEY, host {int8} NOT NULL, metric TEXT NOT NULL,
                kind TEXT NOT NULL, labels TEXT NOT NULL, divisor {int8} NOT NULL,
                UNIQUE (host, metric, labels, divisor)) {strict}""",
            """CREATE TABLE batch (id {int8} PRIMARY KEY, batch {int8} NOT NULL, ms {int8} NOT NULL,
                offsets TEXT NOT NULL, readings TEXT NOT NULL, processes TEXT) {strict}""",
            """CREATE TABLE event (id {int8} PRIMARY KEY, ms {int8} NOT NULL, kind TEXT NOT NULL,
                text TEXT NOT NULL, fields TEXT NOT NULL) {strict}""",
            """CREATE TABLE transition (id {int8} PRIMARY KEY, ms {int8} NOT NULL, mono {double} NOT NULL,
                resource TEXT NOT NULL, rule TEXT NOT NULL, old {int8} NOT NULL, new {int8} NOT NULL,
                message TEXT NOT NULL, forecast TEXT) {strict}""",
            """CREATE TABLE outbox (id {int8} PRIMARY KEY, channel TEXT NOT NULL, transition {int8},
                payload TEXT NOT NULL, created_ms {int8} NOT NULL, attempts {int8} NOT NULL,
                error TEXT NOT NULL, done_ms {int8}) {strict}""",
            # the alert loop asks for what is not yet sent, which is next to nothing of the table
            "CREATE INDEX outbox_waiting ON outbox (channel) WHERE done_ms IS NULL",
            """CREATE TABLE daemon_run (id {int8} PRIMARY KEY, started_ms {int8} NOT NULL, stopped_ms {int8},
                clean {int8} NOT NULL, version TEXT NOT NULL, boot_id TEXT NOT NULL) {strict}""",
            """CREATE TABLE chunk (id {int8} PRIMARY KEY, ticks {int8} NOT NULL, low_ms {int8} NOT NULL,
                high_ms {int8} NOT NULL, last_ms {int8} NOT NULL, times {blob} NOT NULL,
                masks {blob} NOT NULL, processes {blob}) {strict}""",
            "CREATE INDEX chunk_by_time ON chunk (high_ms, low_ms)",
            """CREATE TABLE block (id {int8} PRIMARY KEY, mask {int8} NOT NULL, last {exact} NOT NULL,
                data {blob} NOT NULL) {strict}""",
            """CREATE TABLE rollup_minute (part {int8} NOT NULL, series {int8} NOT NULL,
                unit {int8} NOT NULL, base {int8} NOT NULL, data TEXT NOT NULL,
                PRIMARY KEY (part, series)) {keyed}""",
            """CREATE TABLE rollup_hour (part {int8} NOT NULL, series {int8} NOT NULL,
                hour {int8} NOT NULL, n {int8} NOT NULL, last {exact} NOT NULL,
                below {exact} NOT NULL, above {exact} NOT NULL, extra {exact} NOT NULL,
                PRIMARY KEY (part, series, hour)) {keyed}""",
            "CREATE TABLE minute_of_part (minute {int8} PRIMARY KEY) {strict}",
            """INSERT INTO minute_of_part VALUES (0), (1), (2), (3), (4), (5), (6), (7), (8), (9), (10), (11),
                (12), (13), (14)""",
            """CREATE VIEW minute AS
                SELECT r.time, h.name AS host, s.metric, s.labels, r.n, {summary}
                FROM (
                    SELECT time, series, n,
                        CASE unit WHEN 0 THEN last ELSE base + last * unit END AS last,
                        CASE unit WHEN 0 THEN below ELSE below * unit END AS below,
                        CASE unit WHEN 0 THEN above ELSE above * unit END AS above,
                        CASE unit WHEN 0 THEN extra ELSE extra * unit END AS extra
                    FROM (
                        SELECT m.part + k.minute * 60 AS time, m.series, m.unit, m.base,
                            {n} AS n, {last} AS last, {below} AS below, {above} AS above, {extra} AS extra
                        FROM rollup_minute m CROSS JOIN minute_of_part k
                    ) packed
                    WHERE n IS NOT NULL
                ) r
                JOIN series s ON s.id = r.series JOIN host h ON h.id = s.host""",
            """CREATE VIEW hour AS
                SELECT r.part + r.hour * 3600 AS time, h.name AS host, s.metric, s.labels, r.n,
                    {summary}
                FROM rollup_hour r JOIN series s ON s.id = r.series JOIN host h ON h.id = s.host""",
            """CREATE VIEW recent AS
                SELECT time, host, metric, labels, CASE WHEN divisor > 1
                    THEN CAST(value AS DOUBLE PRECISION) / divisor ELSE value END AS value
                FROM ({recent}) newest""",
        ),
    ),
    Migration(
        2,
        "stress runs",
        (
            """CREATE TABLE stress_run (id {int8} PRIMARY KEY, ms {int8} NOT NULL, gpu TEXT NOT NULL,
                verdict TEXT NOT NULL, document TEXT NOT NULL) {strict}""",
        ),
    ),
    Migration(
        3,
        "what was learned",
        (
            """CREATE TABLE learned (id {int8} PRIMARY KEY, ms {int8} NOT NULL, subject TEXT NOT NULL,
                document TEXT NOT NULL) {strict}""",
        ),
    ),
    Migration(4, "what rules saw", ("ALTER TABLE transition ADD COLUMN facts TEXT",)),
    Migration(
        5,
        "sheets, and minutes as bytes",
        (
            *(f"ALTER TABLE rollup_minute ADD COLUMN {name} {{blob}}" for name in PACKED),
            "{drop_minute}",
            """{view} minute AS
                SELECT r.time, h.name AS host, s.metric, s.labels, r.n, {summary}
                FROM (
                    SELECT time, series, n,
                        CASE unit WHEN 0 THEN last ELSE base + last * unit END AS last,
                        CASE unit WHEN 0 THEN below ELSE below * unit END AS below,
                        CASE unit WHEN 0 THEN above ELSE above * unit END AS above,
                        CASE unit WHEN 0 THEN extra ELSE extra * unit END AS extra
                    FROM (
                        SELECT m.part + k.minute * 60 AS time, m.series, m.unit, m.base,
                            {n} AS n, {last} AS last, {below} AS below, {above} AS above, {extra} AS extra
                        FROM rollup_minute m CROSS JOIN minute_of_part k
                        WHERE m.data <> ''
                        UNION ALL
                        SELECT time, series, unit, base, n, last, below, above, over - n * below AS extra
                        FROM (
                            SELECT time, series, unit, base, {bytes_n} AS n, {bytes_last} AS last,
                                {bytes_below} AS below, {bytes_above} AS above, {bytes_over} AS over
                            FROM (
                                SELECT m.part + k.minute * 60 AS time, m.series, m.unit, m.base, {pieces}
                                FROM rollup_minute m CROSS JOIN minute_of_part k
                                WHERE m.data = ''
                            ) pieces
                        ) numbers
                        WHERE n > 0
                    ) packed
                    WHERE n IS NOT NULL
                ) r
                JOIN series s ON s.id = r.series JOIN host h ON h.id = s.host""",
        ),
    ),
)

_RECORD = (
    "CREATE TABLE IF NOT EXISTS schema_migration (version {int8} PRIMARY KEY, name TEXT NOT NULL,"
    " applied_ms {int8} NOT NULL) {strict}"
)


def statements(dialect: str, version: int) -> list[str]:
    """Return the SQL that makes an empty database one of a version; of version 0 there is none."""
    words = _WORDS[dialect]
    some = [statement for m in MIGRATIONS if m.version <= version for statement in m.statements]
    return [statement.format_map(words) for statement in ((_RECORD, *some) if some else ())]


def applied(connection: Connection) -> int:
    """Return the version of a database, 0 for an empty one."""
    if not inspect(connection).has_table(schema.schema_migration.name):
        return 0
    versions = connection.scalars(select(schema.schema_migration.c.version))
    return max(versions, default=0)


def refuse_newer(version: int, target: str, migrations: tuple[Migration, ...] = MIGRATIONS) -> None:
    """Raise NewerSchemaError when a newer program wrote the database."""
    newest = migrations[-1].version
    if version > newest:
        raise NewerSchemaError(
            say(
                "{target}: written by a newer wslgpud (schema {version}, this one knows "
                "{newest}); update wslgpud, or move the file away to start a new history",
                target=str(target),
                version=version,
                newest=newest,
            )
        )


def migrate(connection: Connection, target: str, migrations: tuple[Migration, ...] = MIGRATIONS) -> int:
    """Bring the database to the newest schema and return how many steps that took.

    Raises:
        NewerSchemaError: a newer program wrote it; it is left as it is.
    """
    words = _WORDS[connection.dialect.name]
    with connection.begin():
        version = applied(connection)
        refuse_newer(version, target, migrations)
    pending = [m for m in migrations if m.version > version]
    for migration in pending:
        with connection.begin():
            engine.serialise(connection)
            if applied(connection) >= migration.version:
                continue
            for statement in (_RECORD, *migration.statements):
                connection.exec_driver_sql(statement.format_map(words))
            connection.execute(
                schema.schema_migration.insert(),
                {
                    "version": migration.version,
                    "name": migration.name,
                    "applied_ms": int(time.time() * 1000),
                },
            )
    return len(pending)
