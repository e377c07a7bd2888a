"""Stress runs as rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

from wslgpud import words
from wslgpud.model import FindingKind, StressFinding, StressResult, StressVerdict
from wslgpud.security import shapes
from wslgpud.security.shapes import DETAIL, LATEST_WALL, Shape, ShapeError, number, said, text
from wslgpud.words import MessageLike

_MOST_GPUS = 1 << 16
_NEEDED: dict[str, Shape] = {
    "wall": lambda wall: number(wall) and 0 <= wall < LATEST_WALL,
    "uuid": text,
    "gpu": lambda gpu: shapes.whole(gpu) and gpu < _MOST_GPUS,
    "name": text,
    "verdict": lambda verdict: verdict in get_args(StressVerdict),
}
_OPTIONAL: dict[str, Shape] = {
    "reason": said,
    "findings": shapes.rows(shapes.record({"kind": lambda kind: kind in get_args(FindingKind), "text": said})),
    "key": shapes.table(text, text),
    "values": shapes.table(text, number),
    "detail": DETAIL,
}


def to_json(result: StressResult, write: Callable[[MessageLike], Any] = words.to_json) -> dict[str, Any]:
    """Return a result as JSON holds it: what it says as template and facts, or as ``write`` words it."""
    plain = {name: getattr(result, name) for name in StressResult.__slots__}
    return plain | {
        "reason": write(result.reason),
        "findings": [{"kind": kind, "text": write(said_of_it)} for kind, said_of_it in result.findings],
        "key": dict(result.key),
        "values": dict(result.values),
        "detail": dict(result.detail),
    }


def from_json(document: dict[str, Any]) -> StressResult:
    """Return the result of its JSON, checked field by field; those of other versions are ignored.

    Raises:
        ShapeError: a field is missing, or of another shape; it names the field.
    """
    for name, shape in {**_NEEDED, **_OPTIONAL}.items():
        if name not in document and name in _NEEDED:
            raise ShapeError(f"it has no {name}")
        if name in document and not shape(document[name]):
            raise ShapeError(f"its {name} is none: {str(document[name])[:80]!r}")
    known = {name: value for name, value in document.items() if name in StressResult.__slots__}
    findings = tuple(StressFinding(row["kind"], words.from_json(row["text"])) for row in known.get("findings", ()))
    reason = words.from_json(known.get("reason", ""))
    return StressResult(**known | {"reason": reason, "findings": findings})
