"""Records for readers: series, points and others; encoding of changes of level and stress runs in rows."""

from __future__ import annotations

import fnmatch
import json
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple, get_args

from sqlalchemy import Row

from wslgpud.metrics import PREFIX
from wslgpud.model import FindingKind, Forecast, Level, Number, StressFinding, StressResult, StressVerdict, Transition
from wslgpud.security import safe_files, shapes
from wslgpud.security.shapes import DETAIL, LATEST_WALL, MalformedError, Shape, message, number, text
from wslgpud.words import Message, MessageLike, facts_from_json, from_json, from_text, to_json


class SeriesRef(NamedTuple):
    """One series of one host; ``labels`` are pairs in the order of the metric's declaration."""

    metric: str
    labels: tuple[tuple[str, str], ...] = ()
    host: str = ""

    def __str__(self) -> str:
        inside = ",".join(f'{k}="{v}"' for k, v in self.labels)
        return f"{self.metric}{{{inside}}}" if inside else self.metric


_SELECTOR = re.compile(r"([^{}]*)\{(.*)\}")
_LABEL = re.compile(r"\s*([a-z][a-z0-9_]*)\s*=\s*(\"[^\"]*\"|[^\",]*)\s*(?:,|$)")


def shell_pattern(pattern: str) -> Callable[[str], object]:
    """Return a matcher of whole texts.

    ``fnmatch.fnmatchcase`` would cache 32,768 patterns; ``re`` caches 512. Patterns may be foreign: stars do not
    backtrack, so the time is bounded.
    """
    return re.compile(fnmatch.translate(pattern)).match


def matcher(pattern: str) -> Callable[[SeriesRef], bool]:
    """Return a predicate that matches series against a pattern.

    ``gpu_*`` is a shell pattern for the metric; ``gpu_memory_used_bytes{gpu="0"}`` also selects labels (only those
    named; quotes are optional, values may be patterns). Prometheus' prefix and suffix are accepted.
    """
    bare = pattern.removeprefix(PREFIX)
    metric, wanted = bare, {}
    if selector := _SELECTOR.fullmatch(bare):
        metric, inside = selector[1] or "*", selector[2]
        wanted = {name: value.strip('"').strip() for name, value in _LABEL.findall(inside)}
        if _LABEL.sub("", inside).strip():
            return lambda _: False
    matches_pattern = shell_pattern(bare)
    names = [shell_pattern(name) for name in {metric, metric.removesuffix("_total")}]
    values = {label: shell_pattern(value) for label, value in wanted.items()}

    def matches(ref: SeriesRef) -> bool:
        if matches_pattern(str(ref)):
            return True
        labels = dict(ref.labels)
        return any(name(ref.metric) for name in names) and all(
            label in labels and value(labels[label]) for label, value in values.items()
        )

    return matches


class Point(NamedTuple):
    """One value of a series; ``wall`` is seconds since the epoch, exact to the millisecond."""

    wall: float
    value: Number


class Bucket(NamedTuple):
    """The summary of a series over one step that begins at ``wall``."""

    wall: float
    n: int
    low: Number
    high: Number
    total: Number
    last: Number

    @property
    def mean(self) -> float:
        return self.total / self.n


#: made from one tuple: NamedTuple's own constructor is Python code, noticeable with thousands
new_point: Callable[[tuple[float, Number]], Point] = partial(tuple.__new__, Point)


class Oldest(NamedTuple):
    """The start of each tier, in seconds since the epoch; None: it is empty."""

    raw_wall: float | None = None
    minute_wall: float | None = None
    hour_wall: float | None = None


class ProcessPoint(NamedTuple):
    wall: float
    pid: int
    start_ticks: int
    name: str
    rss_bytes: int
    swap_bytes: int


class GpuProcessPoint(NamedTuple):
    """A program on a GPU at ``wall``; ``used_bytes`` is None where the driver did not report it."""

    wall: float
    uuid: str
    pid: int
    name: str
    used_bytes: int | None


class Learned(NamedTuple):
    wall: float
    document: dict[str, Any]


class Delivery(NamedTuple):
    """A message for a channel; ``done_wall`` is None while it is queued, ``error`` is the last failure."""

    id: int
    channel: str
    transition_id: int | None
    payload: dict[str, object]
    created_wall: float
    attempts: int = 0
    error: MessageLike = ""
    done_wall: float | None = None


class DaemonRun(NamedTuple):
    """A run of the daemon; after an unclean end, ``stopped_wall`` is its last write, as far as known."""

    started_wall: float
    stopped_wall: float | None
    clean: bool
    version: str
    boot_id: str


def transition_row(transition: Transition) -> dict[str, Any]:
    """Return a change of level as the columns of its row, without the id."""
    forecast, facts = transition.forecast, to_json(transition.facts)
    return {
        "ms": round(transition.wall * 1000),
        "mono": transition.mono,
        "resource": transition.resource,
        "rule": transition.rule,
        "old": int(transition.old),
        "new": int(transition.new),
        "message": json.dumps(to_json(transition.message), ensure_ascii=False),
        "forecast": None if forecast is None else json.dumps(_forecast_payload(forecast)),
        "facts": json.dumps(facts, ensure_ascii=False) if facts else None,
    }


def delivery_of(row: Row[Any]) -> Delivery:
    """Return the delivery in a row; a damaged one raises one of ``errors.DAMAGE``."""
    payload, error = safe_files.parsed(row.payload), from_text(row.error)
    made, done = row.created_ms / 1000, None if row.done_ms is None else row.done_ms / 1000
    return Delivery(row.id, row.channel, row.transition, payload, made, row.attempts, error, done)


def transition_of(row: Row[Any]) -> Transition:
    """Return the change of level in a row; a damaged one raises one of ``errors.DAMAGE``."""
    message = from_json(safe_files.parsed(row.message))
    return Transition(
        row.ms / 1000,
        row.mono,
        row.resource,
        row.rule,
        Level(row.old),
        Level(row.new),
        Message(message) if isinstance(message, str) else message,
        None if row.forecast is None else _forecast_from(safe_files.parsed(row.forecast)),
        facts_from_json(safe_files.parsed(row.facts or "{}")),
    )


#: the parts of a forecast that are messages
_SAID = ("who", "in_windows")


def _forecast_payload(forecast: Forecast) -> dict[str, Any]:
    probabilities = {str(horizon): p for horizon, p in forecast.probabilities.items()}
    fields = {name: getattr(forecast, name) for name in Forecast.__slots__}
    said = {name: to_json(getattr(forecast, name)) for name in _SAID}
    return fields | {"level": forecast.level.label, "probabilities": probabilities} | said


def _forecast_from(payload: Mapping[str, Any]) -> Forecast:
    known = {name: value for name, value in payload.items() if name in Forecast.__slots__}
    converted = {
        "level": Level[known["level"].upper()],
        "probabilities": {int(h): p for h, p in dict(known.get("probabilities") or {}).items()},
        **{name: from_json(known.get(name, "")) for name in _SAID},
    }
    return Forecast(**known | converted)


#: a stress run in JSON: twice what a worker may say in all
MAX_RESULT_BYTES = 4 << 20
_MAX_GPUS = 1 << 16
_NEEDED: dict[str, Shape] = {
    "wall": lambda wall: number(wall) and 0 <= wall < LATEST_WALL,
    "uuid": text,
    "gpu": lambda gpu: shapes.uint(gpu) and gpu < _MAX_GPUS,
    "name": text,
    "verdict": lambda verdict: verdict in get_args(StressVerdict),
}
_OPTIONAL: dict[str, Shape] = {
    "reason": message,
    "findings": shapes.rows(shapes.record({"kind": lambda kind: kind in get_args(FindingKind), "text": message})),
    "key": shapes.table(text, text),
    "values": shapes.table(text, number),
    "detail": DETAIL,
}


def stress_to_json(result: StressResult, write: Callable[[MessageLike], Any] = to_json) -> dict[str, Any]:
    """Return a result in JSON types: its messages as template and facts, or rendered by ``write``."""
    plain = {name: getattr(result, name) for name in StressResult.__slots__}
    return plain | {
        "reason": write(result.reason),
        "findings": [{"kind": kind, "text": write(text)} for kind, text in result.findings],
        "key": dict(result.key),
        "values": dict(result.values),
        "detail": dict(result.detail),
    }


def stress_from_json(document: dict[str, Any]) -> StressResult:
    """Return the result from its JSON; fields of other versions are ignored.

    MalformedError: a field is missing or malformed; the message names it.
    """
    for name, shape in {**_NEEDED, **_OPTIONAL}.items():
        if name not in document and name in _NEEDED:
            raise MalformedError(f"it has no {name}")
        if name in document and not shape(document[name]):
            raise MalformedError(f"its {name} is malformed: {str(document[name])[:80]!r}")
    known = {name: value for name, value in document.items() if name in StressResult.__slots__}
    findings = tuple(StressFinding(row["kind"], from_json(row["text"])) for row in known.get("findings", ()))
    reason = from_json(known.get("reason", ""))
    return StressResult(**known | {"reason": reason, "findings": findings})
