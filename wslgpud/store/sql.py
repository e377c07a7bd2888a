"""The few statements that both engines know under different names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Table
from sqlalchemy.dialects import sqlite


def insert_new(connection: Connection, table: Table, rows: Sequence[dict[str, Any]]) -> None:
    """Insert rows, leaving those whose key is there already.

    A commit that failed may have happened all the same, so a batch is written again as a whole.
    """
    if not rows:
        return
    make: Any = sqlite.insert
    if connection.dialect.name != "sqlite":
        # Late: nobody without PostgreSQL should keep 2 MiB of it in memory.
        from sqlalchemy.dialects import postgresql  # noqa: PLC0415

        make = postgresql.insert
    connection.execute(make(table).on_conflict_do_nothing(), list(rows))
