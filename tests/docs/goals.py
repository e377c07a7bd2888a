"""Goals of costs beside this version, an earlier one and the floor, each row from one run.

``cost.json``, ``cost-cards.json`` and ``cost-processes.json`` in ``tests/bench`` are by ``bench_cost --beside``.
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


def table() -> str:
    """Return the goals beside the figures; "before" is the version of 2026-11-21, "floor" ``cost_floor``."""
    alone, cards, processes = _rows("cost"), _rows("cost-cards"), _rows("cost-processes")
    now, before, floor = (alone[name] for name in (OURS, BEFORE, FLOOR))
    half = alone["node_exporter"]["cpu_scraped_ratio"] / 2
    rows = [
        ("processor time", *map(_cpu, (before, now)), "0.25%", _cpu(floor)),
        (
            "scraped every second",
            *(_cpu(row, "cpu_scraped_ratio") for row in (before, now)),
            f"{half:.2%}, half of node_exporter",
            _cpu(floor, "cpu_scraped_ratio"),
        ),
        ("scrape p50 / p99", *map(_latency, (before, now)), "1.5 / 4 ms", _latency(floor)),
        *(
            (what, *(_cpu(of[name]) for name in (BEFORE, OURS)), goal, _cpu(of[FLOOR]))
            for what, of, goal in (
                ("beside 3,000 processes", processes, "0.6%"),
                ("eight cards that take 0.2 ms for a call", cards, "0.8%"),
            )
        ),
        (
            "memory (PSS)",
            *(f"{row['pss_bytes'] / MIB:.0f} MiB" for row in (before, now)),
            "42 MiB without a card",
            f"{floor['pss_bytes'] / MIB:.0f} MiB",
        ),
        (
            "written a day",
            *(f"{row['written_bytes_a_day'] / 1e6:.0f} MB" for row in (before, now)),
            "120 MB",
            f"{floor['written_bytes_a_day'] / 1e6:.0f} MB",
        ),
    ]
    lines = ["| " + " | ".join(row) + " |" for row in (HEADS, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(HEADS), *lines[1:]]) + "\n"
