"""What the engine says of recorded machines: it changes on purpose only (``./tests/renew``)."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

from tests.risk.wording import headline_of
from wslgpud.model import Forecast
from wslgpud.risk.levels import HORIZONS
from wslgpud.risk.trace import read_trace, replay
from wslgpud.words import Message

TRACES = Path(__file__).parent.parent / "traces"
GOLDEN = Path(__file__).with_name("recorded.json")
#: moments of each resource at which everything is compared, besides the changes of level
MOMENTS = 8
ALL = sorted(str(path.relative_to(TRACES)).removesuffix(".jsonl.gz") for path in TRACES.rglob("*.jsonl.gz"))
#: those of this folder, and every third below it
NAMES = [*(name for name in ALL if "/" not in name), *[name for name in ALL if "/" in name][::3]]


def plain(value: Any) -> Any:
    """Return a value as JSON gives it back."""
    match value:
        case Message():
            return str(value)
        case Enum():
            return value.name
        case Mapping():
            return [[str(key), plain(one)] for key, one in value.items()]
        case list() | tuple():
            return [plain(one) for one in value]
        case float():
            return float(f"{value:.6g}")
    return value


#: no recording has programs of Windows, and the limit of a group never changes
FIELDS = [known for known in dataclasses.fields(Forecast) if known.name not in {"in_windows", "memory_limit_bytes"}]


def forecast(one: Forecast) -> Any:
    return [plain(getattr(one, known.name)) for known in FIELDS]


def totals(forecasts: list[Forecast]) -> list[Any]:
    """Return, for each field of the forecasts, the sum of its figures, or how often it held each value."""
    found: list[Any] = []
    for known in FIELDS:
        values = [getattr(one, known.name) for one in forecasts]
        figures = [value for value in values if isinstance(value, (int, float)) and not isinstance(value, Enum)]
        if known.name == "probabilities":
            found.append([plain(math.fsum(one.get(horizon, 0.0) for one in values)) for horizon in HORIZONS])
        elif figures:
            found.append([len(figures), plain(math.fsum(figures))])
        else:
            found.append(sorted(Counter(str(plain(value)) for value in values if value).items()))
    return plain(found)


def said(name: str) -> dict[str, Any]:
    """Return each change of level, the forecasts at a few moments, and the totals of all forecasts."""
    found = replay(name, read_trace(TRACES / f"{name}.jsonl.gz"))
    return {
        "changes": [
            [
                one.mono,
                one.resource,
                one.old.name,
                one.new.name,
                headline_of(one),
                one.forecast and forecast(one.forecast),
            ]
            for one in found.changes
        ],
        "forecasts": {
            resource: [[t, forecast(one)] for t, one in rows[:: max(1, len(rows) // MOMENTS)]]
            for resource, rows in found.forecasts.items()
        },
        "totals": {resource: totals([one for _, one in rows]) for resource, rows in found.forecasts.items()},
    }


def differences(now: Any, before: Any, place: str = "") -> Iterator[str]:
    """Yield where two documents differ; figures may differ in what processors and libraries round."""
    match now, before:
        case dict(), dict() if now.keys() == before.keys():
            for key in now:
                yield from differences(now[key], before[key], f"{place}/{key}")
        case list(), list() if len(now) == len(before):
            for i, (one, other) in enumerate(zip(now, before, strict=True)):
                yield from differences(one, other, f"{place}/{i}")
        case ((int() | float()), (int() | float())) if math.isclose(now, before, rel_tol=1e-5, abs_tol=1e-9):
            pass
        case _ if now != before:
            yield f"{place}: {now!r}, was {before!r}"


@pytest.fixture(scope="module")
def golden() -> dict[str, Any]:
    if os.environ.get("WSLGPUD_RENEW"):
        rows = ",\n".join(f"{json.dumps(name)}: {json.dumps(said(name), ensure_ascii=False)}" for name in NAMES)
        GOLDEN.write_text(f"{{\n{rows}\n}}\n")
    found: dict[str, Any] = json.loads(GOLDEN.read_text())
    return found


@pytest.mark.parametrize("name", NAMES)
def test_the_engine_says_of_a_recording_what_it_said(name: str, golden: dict[str, Any]) -> None:
    assert list(differences(said(name), golden[name]))[:5] == []
