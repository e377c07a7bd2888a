"""Recovery of a damaged file: it is set aside under its date, and readable data copied into a new one in slices."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from datetime import datetime, timezone
from math import isqrt
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Table
from sqlalchemy.exc import IntegrityError

from wslgpud.store import schema

log = logging.getLogger(__name__)

#: rows copied at a time, so that new samples never wait for long
SLICE_ROWS = 300
#: rows that others refer to first, then the most valuable
_IDENTITY = (schema.host, schema.series, schema.outbox)
_CONTENT = (
    schema.transition,
    schema.stress_run,
    schema.learned,
    schema.daemon_run,
    schema.event,
    schema.batch,
    schema.rollup_hour,
    schema.rollup_minute,
    schema.chunk,
    schema.block,
)
_FAR = 1 << 61
#: keys that are times, in seconds, lie between these, and almost all ids below
_EARLIEST, _LATEST = 1 << 30, 1 << 31
#: how often an unreadable range is divided in search of readable rows
_DEPTH = 12
_SIDE_FILES = ("", "-wal", "-shm")


def is_damage(text: str) -> bool:
    return "malformed" in text or "not a database" in text or "is damaged" in text


def set_aside(path: Path, wall: float) -> Path:
    """Rename a damaged file (and its log) with its date; only the newest is kept."""
    earlier = list(path.parent.glob(f"{path.name}.damaged-*"))
    stamp = datetime.fromtimestamp(wall, timezone.utc).strftime("%Y%m%dT%H%M%SZ")
    aside = path.with_name(f"{path.name}.damaged-{stamp}")
    for suffix in _SIDE_FILES:
        part = Path(f"{path}{suffix}")
        if part.exists():
            part.rename(f"{aside}{suffix}")
    for old in earlier:
        if not old.name.startswith(aside.name):
            old.unlink(missing_ok=True)
    return aside


def take_over(connection: Connection, aside: Path) -> Iterator[int]:
    """Copy the readable rows, a slice each time the iterator is advanced.

    First come rows that others refer to and unsent messages, and the highest row id in use is yielded; then the number
    of rows of each slice.
    """
    total = 0
    with closing(_open(aside)) as old:
        with connection.begin():
            for table in _IDENTITY:
                for rows in _rows(old, table):
                    _insert(connection, table, rows)
        yield max(_greatest_id(old, table) for table in schema.NUMBERED)
        for table in _CONTENT:
            for rows in _rows(old, table):
                with connection.begin():
                    _insert(connection, table, rows)
                total += len(rows)
                yield len(rows)
    log.warning("%s: %d rows could be saved into the new history", aside, total)


def _open(aside: Path) -> sqlite3.Connection:
    old = sqlite3.connect(aside, check_same_thread=False)
    old.row_factory = sqlite3.Row
    try:
        # where not even the list of tables can be read, a search is hopeless
        old.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.DatabaseError:
        old.close()
        raise
    return old


def _greatest_id(old: sqlite3.Connection, table: Table) -> int:
    try:
        (newest,) = old.execute(f"SELECT max(id) FROM {table.name}").fetchone()
    except sqlite3.DatabaseError:
        # unreadable: leave half the range free, so that no id is used twice
        return 1 << (schema.ROW_BITS - 1)
    return int(newest or 0)


def _insert(connection: Connection, table: Table, rows: list[dict[str, Any]]) -> None:
    try:
        schema.insert_new(connection, table, rows)
    except IntegrityError:
        # a damaged value costs its row, not those that follow
        for row in rows:
            with suppress(IntegrityError):
                schema.insert_new(connection, table, [row])


def _rows(
    old: sqlite3.Connection, table: Table, low: int = 0, high: int = _FAR, depth: int = _DEPTH
) -> Iterator[list[dict[str, Any]]]:
    """Return the rows with keys in a range: from both ends up to the damage, then from its parts."""
    keys = table.primary_key.columns.keys()
    step = len(keys) == 1  # else rows share the first part of their keys
    for backwards in (False, True):
        for rows in _onwards(old, table, low, high, backwards=backwards):
            if rows is None:
                break
            yield rows
            last = rows[-1][keys[0]]
            low, high = (low, last - step) if backwards else (last + step, high)
        else:
            return
    if depth and high - low > 1:
        middle = _middle(low, high)
        yield from _rows(old, table, low, middle, depth - 1)
        yield from _rows(old, table, middle + 1, high, depth - 1)


def _middle(low: int, high: int) -> int:
    for edge in (_EARLIEST, _LATEST):
        if low < edge < high:
            return edge
    # where nothing is known of the keys, small ones are as likely as large ones
    return isqrt(max(low, 1) * high) if low < high // 4 else (low + high) // 2


def _onwards(
    old: sqlite3.Connection, table: Table, low: int, high: int, *, backwards: bool
) -> Iterator[list[dict[str, Any]] | None]:
    """Return rows from one end in groups; None at the first unreadable one, and no more."""
    keys = table.primary_key.columns.keys()
    sign, order = ("<", " DESC") if backwards else (">", "")
    query = (
        f"SELECT {', '.join(table.columns.keys())} FROM {table.name}"
        f" WHERE {keys[0]} BETWEEN ? AND ? AND ({', '.join(keys)}) {sign} ({', '.join('?' * len(keys))})"
        f" ORDER BY {', '.join(key + order for key in keys)} LIMIT ?"
    )
    last: list[int] = [high + 1 if backwards else low - 1, *[0] * (len(keys) - 1)]
    # small at first: near damage most attempts fail
    limit = 1
    while True:
        try:
            rows = [dict(row) for row in old.execute(query, (low, high, *last, limit))]
        except sqlite3.DatabaseError as error:
            if limit == 1:
                log.debug("%s: %s at %s", table.name, error, last)
                yield None
                return
            limit = max(1, limit // 8)
            continue
        if not rows:
            return
        yield rows
        last, limit = [rows[-1][key] for key in keys], min(SLICE_ROWS, limit * 8)
