"""Stress runs as rows."""

from __future__ import annotations

import functools
import json
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any, get_args

from sqlalchemy import Connection, func, inspect
from sqlalchemy import select as selecting

from wslgpud import documents, words
from wslgpud.model import Finding, FindingKind, StressResult, StressVerdict
from wslgpud.shapes import (
    DETAIL,
    LATEST_WALL,
    Shape,
    ShapeError,
    number,
    record,
    rows,
    said,
    table,
    text,
    whole,
)
from wslgpud.store import schema
from wslgpud.store.sql import insert_new
from wslgpud.words import Said

log = logging.getLogger(__name__)

_MOST_GPUS = 1 << 16
_NEEDED: dict[str, Shape] = {
    "wall": lambda wall: number(wall) and 0 <= wall < LATEST_WALL,
    "uuid": text,
    "gpu": lambda gpu: whole(gpu) and gpu < _MOST_GPUS,
    "name": text,
    "verdict": lambda verdict: verdict in get_args(StressVerdict),
}
_OPTIONAL: dict[str, Shape] = {
    "reason": said,
    "findings": rows(record({"kind": lambda kind: kind in get_args(FindingKind), "text": said})),
    "key": table(text, text),
    "values": table(text, number),
    "detail": DETAIL,
}


def to_json(result: StressResult, write: Callable[[Said], Any] = words.to_json) -> dict[str, Any]:
    """Return a result as JSON holds it: what it says as template and facts, or as ``write`` words it."""
    plain = {name: getattr(result, name) for name in StressResult.__slots__}
    return plain | {
        "reason": write(result.reason),
        "findings": [{"kind": kind, "text": write(said_of_it)} for kind, said_of_it in result.findings],
        "key": dict(result.key), "values": dict(result.values), "detail": dict(result.detail),
    }  # fmt: skip


def from_json(document: dict[str, Any]) -> StressResult:
    """Return the result of its JSON; fields of other versions are ignored.

    The one place where text becomes a result: whoever has one reckons with it and shows it without a thought.

    Raises:
        ShapeError: something of it is not there, or is something else; it names the field.
    """
    for name, shape in {**_NEEDED, **_OPTIONAL}.items():
        if name not in document and name in _NEEDED:
            raise ShapeError(f"it has no {name}")
        if name in document and not shape(document[name]):
            raise ShapeError(f"its {name} is none: {str(document[name])[:80]!r}")
    known = {name: value for name, value in document.items() if name in StressResult.__slots__}
    findings = tuple(Finding(row["kind"], words.from_json(row["text"])) for row in known.get("findings", ()))
    reason = words.from_json(known.get("reason", ""))
    return StressResult(**known | {"reason": reason, "findings": findings})


def insert(connection: Connection, number: int, result: StressResult) -> None:
    """Write one run."""
    row = {
        "id": number,
        "ms": round(result.wall * 1000),
        "gpu": result.uuid,
        "verdict": result.verdict,
        "document": json.dumps(to_json(result), ensure_ascii=False),
    }
    insert_new(connection, schema.stress_run, [row])


def select(  # noqa: PLR0913 - what may be asked
    connection: Connection,
    since_wall: float,
    ours: schema.Ours,
    *,
    brief: bool = False,
    least: int = 0,
    before: int | None = None,
    newest: int | None = None,
) -> list[tuple[int, StressResult]]:
    """Return runs since a moment with their ids, by time; see ``Reader.stress_runs``."""
    of = schema.stress_run.c
    if not _is_there(connection):
        return []
    query = selecting(of.id, of.document).where(of.ms >= round(since_wall * 1000), of.id >= least)
    query = query.where(ours(connection, schema.stress_run))
    if before is not None:
        query = query.where(of.id < before)
    # Pages are cut by id.
    query = query.order_by(of.ms, of.id) if newest is None else query.order_by(of.id.desc()).limit(newest)
    found = []
    with connection.execute(query, execution_options={"stream_results": True, "max_row_buffer": 8}) as rows_:
        for number_, document in rows_:
            try:
                run = from_json(documents.parsed(document))
            except (ValueError, TypeError) as error:  # the second for what is no text at all
                _tell(number_, str(error))
                continue
            found.append((number_, replace(run, detail={}) if brief else run))
    return found if newest is None else found[::-1]


def count(connection: Connection, ours: schema.Ours) -> int:
    """Return how many there are."""
    if not _is_there(connection):
        return 0
    query = selecting(func.count()).select_from(schema.stress_run)
    return connection.scalar(query.where(ours(connection, schema.stress_run))) or 0


def _is_there(connection: Connection) -> bool:
    """Tell whether there is such a table: an older version that still runs made none."""
    return inspect(connection).has_table(schema.stress_run.name)


@functools.lru_cache(maxsize=1024)
def _tell(number: int, why: str) -> None:
    """Say it once, and not at every look at the history."""
    log.warning("stress run %d is left out, its row in the database is damaged: %s", number, why)
