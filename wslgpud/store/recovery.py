"""Recovery of a damaged file: its readable rows are copied into a new one, which takes its place."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from datetime import datetime, timezone
from itertools import islice
from pathlib import Path

from sqlalchemy import Connection, Table
from sqlalchemy.exc import IntegrityError

from wslgpud.store import engines, schema

log = logging.getLogger(__name__)

#: rows copied at a time
SLICE_ROWS = 300
_SIDE_FILES = ("-wal", "-shm")
#: beyond all keys
_FAR = 1 << 61


def is_damage(text: str) -> bool:
    return "malformed" in text or "not a database" in text or "is damaged" in text


def recover(path: Path, wall: float) -> Path:
    """Put the readable rows of a damaged file in its place; return where the file is kept now, with its date.

    Only the newest such file is kept. OSError, or an error of SQLite: the copy could not be made; nothing has changed.
    """
    made = path.with_name(f"{path.name}.recovering")
    for suffix in ("", *_SIDE_FILES):
        Path(f"{made}{suffix}").unlink(missing_ok=True)
    engine = engines.writer_engine(str(made))
    with closing(sqlite3.connect(path)) as old, engine.connect() as connection:
        old.row_factory = sqlite3.Row
        with connection.begin():
            engines.create(connection, str(path))
        for table in schema.metadata.sorted_tables:
            with connection.begin():
                _copy(old, connection, table)
        engines.run_outside(connection, "PRAGMA wal_checkpoint(TRUNCATE)")
    engine.dispose()
    earlier = list(path.parent.glob(f"{path.name}.damaged-*"))
    stamp = datetime.fromtimestamp(wall, timezone.utc).strftime("%Y%m%dT%H%M%SZ")
    aside = path.with_name(f"{path.name}.damaged-{stamp}")
    for suffix in (*_SIDE_FILES, ""):
        with suppress(FileNotFoundError):
            Path(f"{path}{suffix}").rename(f"{aside}{suffix}")
    made.rename(path)
    for name in earlier:
        if not name.name.startswith(aside.name):
            name.unlink(missing_ok=True)
    log.error("%s was damaged; it is kept as %s, and its readable rows are in a new one", path, aside)
    return aside


def _copy(old: sqlite3.Connection, connection: Connection, table: Table) -> None:
    readable = _rows(old, table)
    while rows := [dict(row) for row in islice(readable, SLICE_ROWS)]:
        try:
            schema.insert_new(connection, table, rows)
        except IntegrityError:
            # a damaged value costs its row, not those that follow
            for row in rows:
                with suppress(IntegrityError):
                    schema.insert_new(connection, table, [row])


def _rows(old: sqlite3.Connection, table: Table) -> Iterator[sqlite3.Row]:
    """Yield the readable rows by key, some twice.

    Behind an unreadable row, a readable one is sought at distances that double with each attempt. Rows that this misses
    are found from the other end, up to the damage there. A cursor is a row ahead, so the last one before is lost, too.
    """
    names, keys = ", ".join(table.columns.keys()), table.primary_key.columns.keys()
    ascending = f"SELECT {names} FROM {table.name} WHERE {keys[0]} > ? ORDER BY {', '.join(keys)}"
    descending = f"SELECT {names} FROM {table.name} ORDER BY {' DESC, '.join(keys)} DESC"
    reached, skipped, damaged = -1, 0, False
    while skipped < _FAR:
        try:
            for row in old.execute(ascending, (reached + skipped,)):
                yield row
                reached, skipped = row[keys[0]], 0
        except sqlite3.DatabaseError as error:
            log.debug("%s: %s after %d", table.name, error, reached)
            skipped, damaged = 2 * skipped or 1, True
        else:
            break
    if damaged:
        with suppress(sqlite3.DatabaseError):
            yield from old.execute(descending)
