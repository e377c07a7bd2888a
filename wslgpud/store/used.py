"""How much room the data takes, free room left out: what the limit on its size is held against."""

from __future__ import annotations

import time

from sqlalchemy import Connection, func, select, text

from wslgpud.store import engine as engines
from wslgpud.store import schema

#: PostgreSQL's tables do not shrink when rows go, so the rows themselves are measured, this often
MEASURE_SECONDS = 6 * 3600.0
#: of a row in PostgreSQL beside its columns: header, line pointer, entry of the primary key
_ROW_BYTES = 56
_MEASURED = (schema.block, schema.chunk, schema.batch, schema.event)
_BY_SERIES = (schema.rollup_minute, schema.rollup_hour)


class Used:
    """Bytes in use: of an SQLite file, or of the rows of one machine in PostgreSQL."""

    def __init__(self) -> None:
        """Nothing is measured yet."""
        self._due_mono = 0.0
        self._bytes = 0.0
        self._bytes_a_row = 0.0

    def __call__(self, connection: Connection, host: int) -> int:
        """Return the bytes in use."""
        if connection.dialect.name == "sqlite":
            pages, free, size = engines.page_counts(connection)
            return (pages - free) * size
        if time.monotonic() >= self._due_mono:
            self._due_mono = time.monotonic() + MEASURE_SECONDS
            self._measure(connection, host)
        return round(self._bytes)

    def freed(self, rows: int) -> None:
        """Count rows as gone until the next measurement."""
        self._bytes -= rows * self._bytes_a_row

    def _measure(self, connection: Connection, host: int) -> None:
        rows, taken = 0, 0
        for table in (*_MEASURED, *_BY_SERIES):
            key, (low, high) = schema.key_range(table, host)
            sizes = select(func.count(), func.sum(func.pg_column_size(text(f"{table.name}.*"))))
            count, data = connection.execute(sizes.select_from(table).where(key.between(low, high))).one()
            rows, taken = rows + count, taken + int(data or 0) + count * _ROW_BYTES
        self._bytes, self._bytes_a_row = float(taken), taken / max(rows, 1)
