"""Goals of costs beside this version, an earlier one and the floor, each row but the floor from one run.

``cost-calm.json``, ``cost-90-minutes.json``, ``cost-cards.json`` and ``cost-processes.json`` in ``tests/bench`` are by
``bench_cost --beside``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.bench.bench_cost import BEFORE, FLOOR, OURS

BENCH = Path(__file__).parents[1] / "bench"
MIB = 1 << 20
HEADS = ("one sample a second", "before", "now", "goal", "floor")


def _rows(name: str) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in json.loads((BENCH / f"{name}.json").read_text())["rows"]}


def _cpu(row: dict[str, Any], key: str = "cpu_ratio") -> str:
    return f"{row[key]:.2%}"


def _latency(row: dict[str, Any]) -> str:
    return f"{row['scrape_p50_seconds'] * 1e3:.1f} / {row['scrape_p99_seconds'] * 1e3:.1f} ms"


def _memory(row: dict[str, Any]) -> str:
    return f"{row['pss_bytes'] / MIB:.0f} MiB"


def table() -> str:
    """Return the goals beside the figures; "before" is the version of 2026-11-21, "floor" ``cost_floor``.

    The floor needs a card, so that its figures for a calm machine are those of ``cost.json``.
    """
    calm, cards, processes = _rows("cost-calm"), _rows("cost-cards"), _rows("cost-processes")
    long = _rows("cost-90-minutes")
    now, before, floor = calm[OURS], calm[BEFORE], _rows("cost")[FLOOR]
    limit = 0.45 * calm["node_exporter"]["cpu_scraped_ratio"]
    rows = [
        ("processor time while all is calm", *map(_cpu, (before, now)), "0.20%", _cpu(floor)),
        (
            "the same, scraped every second",
            *(_cpu(row, "cpu_scraped_ratio") for row in (before, now)),
            f"{limit:.2%}, 0.45 of node_exporter",
            _cpu(floor, "cpu_scraped_ratio"),
        ),
        ("scrape p50 / p99", *map(_latency, (before, now)), "1.5 / 4 ms", _latency(floor)),
        *(
            (what, *(_cpu(of[name]) for name in (BEFORE, OURS)), goal, _cpu(of[FLOOR]))
            for what, of, goal in (
                ("beside 3,000 processes", processes, "0.4%"),
                ("eight cards that take 0.2 ms for a call", cards, "0.5%"),
            )
        ),
        ("memory (PSS) after five minutes", *map(_memory, (before, now)), "", _memory(floor)),
        ("after 90 minutes", *(_memory(long[name]) for name in (BEFORE, OURS)), "42 MiB", "not measured"),
    ]
    lines = ["| " + " | ".join(row) + " |" for row in (HEADS, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(HEADS), *lines[1:]]) + "\n"
