"""What a history on a PostgreSQL server needs that one in an SQLite file does not.

A server is a target of replication and can be read; a daemon never waits for one.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from wslgpud import optional_packages
from wslgpud.security.redaction import address
from wslgpud.store import errors
from wslgpud.words import cause, say

#: time limit of a statement on a server, and until its answer must be here, whatever the server does
STATEMENT_SECONDS = 300
ANSWER_SECONDS = STATEMENT_SECONDS + 10.0

#: each schema of a server's database is a separate history
_OUR_SCHEMA: sa.ColumnElement[int] = sa.literal_column(
    "CAST(CAST(current_schema() AS regnamespace) AS oid)::int", sa.Integer
)
#: view of unsealed data, whose text a server can read
RECENT = """
        SELECT r.time, h.name AS host, s.metric, s.labels,
            CASE WHEN s.divisor > 1 THEN CAST(r.value AS DOUBLE PRECISION) / s.divisor ELSE r.value END AS value
        FROM (
            SELECT (b.ms + o.value::bigint) / 1000.0 AS time,
                (b.slot >> {row_bits} << {series_bits}) | j.key::bigint AS series,
                CAST(CASE json_typeof(j.value) WHEN 'array' THEN j.value ->> (o.key - 1)::int
                    ELSE j.value #>> '{{}}' END AS NUMERIC) AS value
            FROM batch b JOIN host a ON a.id = b.slot >> {row_bits} AND a.sealed < b.id,
                json_array_elements_text(b.data::json -> 'offsets') WITH ORDINALITY AS o (value, key),
                json_each(b.data::json -> 'values') j
        ) r JOIN series s ON s.id = r.series JOIN host h ON h.id = s.host
        WHERE r.value IS NOT NULL"""


def engine(target: str, **options: Any) -> sa.Engine:
    """Return an engine of a database server, or raise MissingDriverError."""
    try:
        made = sa.create_engine(target, connect_args={"connect_timeout": 10}, **options)
    except (ModuleNotFoundError, SQLAlchemyError) as error:
        raise errors.MissingDriverError(
            "{database}: {error}; an address such as postgresql+psycopg://user@host/database needs psycopg: {remedy}",
            database=address(target, path=True),
            error=cause(error),
            remedy=optional_packages.remedy("postgresql"),
        ) from error
    if made.driver == "psycopg":
        sa.event.listen(made, "do_connect", _connect)
    sa.event.listen(made, "connect", _pin_schema)
    return made


def _connect(_dialect: object, _record: object, positional: list[Any], named: dict[str, Any]) -> Any:
    """Connect to PostgreSQL so that no answer is awaited forever: libpq limits only the time to connect."""
    import psycopg

    class Bounded(psycopg.Connection):
        def wait(self, gen: Generator[Any, Any, Any], *more: Any, **options: Any) -> Any:
            try:
                return super().wait(_in_time(gen), *more, **options)
            except TimeoutError as error:
                self.pgconn.finish()  # otherwise SQLAlchemy would roll back, and wait for that
                late = f"the server did not answer within {ANSWER_SECONDS:g} s"
                raise psycopg.OperationalError(late) from error

    return Bounded.connect(*positional, **named)


def _in_time(steps: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
    """Pass on what psycopg waits for; TimeoutError: too long. It looks every tenth of a second, also in silence."""
    until_mono = time.monotonic() + ANSWER_SECONDS
    try:
        wanted = next(steps)
        while time.monotonic() < until_mono:
            wanted = steps.send((yield wanted))
    except StopIteration as end:
        return end.value
    raise TimeoutError


def _pin_schema(connection: Any, _: object) -> None:
    """Resolve names only in our schema and PostgreSQL's own, and limit the time of statements.

    A user who can create a function in another schema of the path could have it run with our rights:
    https://www.postgresql.org/docs/current/ddl-schemas.html#DDL-SCHEMAS-PATTERNS
    """
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_catalog.quote_ident(pg_catalog.current_schema())")
        (ours,) = cursor.fetchone()
        if ours is None:
            raise errors.StoreError(say("the role has no schema; make one: CREATE SCHEMA AUTHORIZATION role"))
        cursor.execute(f"SET search_path = {ours}, pg_temp")
        cursor.execute(f"SET statement_timeout = {STATEMENT_SECONDS * 1000}")
    connection.commit()


def lock_schema(connection: sa.Connection, application: int) -> None:
    """Let only one daemon at a time create tables, until the transaction ends."""
    connection.execute(sa.select(sa.func.pg_advisory_xact_lock(application, _OUR_SCHEMA)))


def lock_host(connection: sa.Connection, application: int, number: int) -> bool:
    """Lock a machine's rows against other daemons while the connection is open; return whether none had."""
    lock = sa.func.pg_try_advisory_lock(_OUR_SCHEMA.op("#")(application), number)
    return bool(connection.scalar(sa.select(lock)))


def table_bytes(connection: sa.Connection, names: Iterable[str]) -> dict[str, int]:
    """Return the size of each table with its indexes, of all machines."""
    return {name: connection.scalar(sa.select(sa.func.pg_total_relation_size(name))) or 0 for name in names}
