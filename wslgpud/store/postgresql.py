"""Connections to a PostgreSQL server, which run none of its code and wait for none of its answers for ever."""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import Any

from sqlalchemy import Engine, create_engine, event
from sqlalchemy.exc import SQLAlchemyError

from wslgpud import optional_packages
from wslgpud.security.redaction import address
from wslgpud.store import errors
from wslgpud.words import cause, say

#: time limit of a statement on a server, and until its answer must be here, whatever the server does
STATEMENT_SECONDS = 300
ANSWER_SECONDS = STATEMENT_SECONDS + 10.0


def server_engine(target: str, **options: Any) -> Engine:
    """Return an engine of a database server, or raise StoreError: its driver is missing."""
    try:
        made = create_engine(target, connect_args={"connect_timeout": 10}, **options)
    except (ModuleNotFoundError, SQLAlchemyError) as error:
        raise errors.StoreError(
            "{database}: {error}; an address such as postgresql+psycopg://user@host/database needs psycopg: {remedy}",
            database=address(target, path=True),
            error=cause(error),
            remedy=optional_packages.remedy("postgresql"),
        ) from error
    if made.driver == "psycopg":
        event.listen(made, "do_connect", _connect)
    event.listen(made, "connect", _pin_schema)
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
