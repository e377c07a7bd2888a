"""Stress runs as rows."""

from __future__ import annotations

import json
import math
from typing import Any

from sqlalchemy import Connection, inspect
from sqlalchemy import select as selecting

from wslgpud.model import Finding, StressResult
from wslgpud.store import schema
from wslgpud.store.sql import insert_new

_KINDS: dict[str, type | tuple[type, ...]] = {
    "wall": (int, float), "uuid": str, "gpu": int, "name": str, "verdict": str, "reason": str,
    "findings": list, "key": dict, "values": dict, "detail": dict,
}  # fmt: skip


def to_json(result: StressResult) -> dict[str, Any]:
    """Return a result as JSON holds it."""
    plain = {name: getattr(result, name) for name in StressResult.__slots__}
    return plain | {
        "findings": [finding._asdict() for finding in result.findings],
        "key": dict(result.key), "values": dict(result.values), "detail": dict(result.detail),
    }  # fmt: skip


def from_json(document: dict[str, Any]) -> StressResult:
    """Return the result of its JSON; fields of other versions are ignored.

    Raises:
        KeyError, TypeError: something of it is not there, or is something else.
    """
    known = {name: value for name, value in document.items() if name in StressResult.__slots__}
    for name, value in known.items():
        if not isinstance(value, _KINDS[name]):
            raise TypeError(f"{name} is {value!r}")
    if not math.isfinite(known["wall"]) or not all(
        isinstance(value, (int, float)) for value in known.get("values", {}).values()
    ):
        raise TypeError("a figure is none")
    findings = tuple(Finding(row["kind"], str(row["text"])) for row in known.get("findings", ()))
    return StressResult(**known | {"findings": findings})


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


def select(connection: Connection, since_wall: float, ours: schema.Ours) -> list[tuple[int, StressResult]]:
    """Return the runs since a moment with their ids, by time."""
    table = schema.stress_run
    if not inspect(connection).has_table(table.name):  # written by an older version that still runs
        return []
    query = selecting(table).where(table.c.ms >= round(since_wall * 1000), ours(connection, table))
    query = query.order_by(table.c.ms, table.c.id)
    return [(row.id, from_json(json.loads(row.document))) for row in connection.execute(query)]
