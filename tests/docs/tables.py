"""The tables of the pages, each generated from what it documents; ``python -m tests.docs.tables`` renews them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from tests.bench import bench_fleet
from tests.docs import goals, out_of_memory, peers
from wslgpud import words
from wslgpud.app.catalogue import catalogue
from wslgpud.cli import app
from wslgpud.cli import help as helps

ROOT = Path(__file__).parents[2]
GIB = 1 << 30
#: the pages that have generated tables
PAGES = (
    "README.md",
    "README.zh.md",
    "tests/bench/README.md",
    "wslgpud/advise/fit/README.md",
    "wslgpud/brake/COMPARED.md",
    "wslgpud/serve/METRICS.md",
)
_MARKED = re.compile(r"(?P<begin><!-- (?P<name>\w+): generated [^>]*-->\n)(?P<table>.*?)(?=<!-- end -->)", re.DOTALL)


def commands_table(language: str = "en") -> str:
    """Return all commands with what each is for, in the words of its own help."""
    heads = {"en": ("command", "purpose"), "zh": ("命令", "用途")}[language]
    lines = [f"| {heads[0]} | {heads[1]} |", "|---|---|"]
    before = words.current()
    words.use(language)
    try:
        for name, command in app.commands.items():
            more = ", ".join(f"`{part}`" for part in getattr(command, "commands", {}))
            says = helps.short(command)
            lines.append(f"| `{name}` | {says}{f' ({more})' * bool(more)} |")
    finally:
        words.use(before.code)
    table = "\n".join(lines) + "\n"
    if language != "zh":
        return table
    return re.sub(r" \(([^()]*)\)", lambda part: f"\uff08{part[1].replace(', ', chr(0x3001))}\uff09", table)


#: lists of ``tests/gpu/trace_cases.py`` that were compared
_LISTS = ("SECOND", "THIRD", "FOURTH")


def h200_table() -> str:
    """Return what was measured by hand beside a training on a real card."""
    rows = json.loads((ROOT / "tests/gpu/measured.json").read_text())["rows"]
    lines = ["| | measured | goal |", "|---|---|---|"]
    return "\n".join([*lines, *(f"| {row['what']} | {row['measured']} | {row['goal']} |" for row in rows)]) + "\n"


def _traced(*names: str) -> list[dict[str, Any]]:
    cases = json.loads((ROOT / "tests/gpu/traced.json").read_text())["cases"]
    return [case for case in cases if case["list"] in names]


def _off_by(case: dict[str, Any]) -> float:
    return float(case["traced_bytes"] / case["reserved_bytes"] - 1)


def _compared(*names: str) -> list[dict[str, Any]]:
    return [case for case in _traced(*names) if "traced_bytes" in case and "reserved_bytes" in case]


def fit_table(cases: list[dict[str, Any]]) -> str:
    """Return what models took on a real card beside what their traces said."""
    lines = ["| model | task | traced | measured |", "|---|---|---|---|"]
    for case in cases:
        traced, measured = (
            f"{case[key] / GIB:.2f} GiB" if key in case else case.get(why, "refused")
            for key, why in (("traced_bytes", "refused"), ("reserved_bytes", "failed"))
        )
        off = f" ({_off_by(case):+.1%})" if case in _compared(case["list"]) else ""
        lines.append(f"| {case['model']} | {case['task']} | {traced}{off} | {measured} |")
    return "\n".join(lines) + "\n"


def fit_far() -> str:
    """Return the models that were off by more than 3 %, and those that could not be compared."""
    every = _traced(*_LISTS)
    near = [case for case in _compared(*_LISTS) if abs(_off_by(case)) <= 0.03]
    return fit_table([case for case in every if case not in near])


def fit_summary() -> str:
    """Return how many traces were how far off."""
    lines = ["| list | compared | within 3 % | within 8 % | more than 5 % too low |", "|---|---|---|---|---|"]
    for label, names in (*((name.lower(), (name,)) for name in _LISTS), ("all", _LISTS)):
        off = [_off_by(case) for case in _compared(*names)]
        near = [sum(abs(one) <= most for one in off) for most in (0.03, 0.08)]
        compared = f"{len(off)} of {len(_traced(*names))}"
        share = f"{near[0]} ({near[0] / len(off):.0%})"
        lines.append(f"| {label} | {compared} | {share} | {near[1]} | {sum(one < -0.05 for one in off)} |")
    return "\n".join(lines) + "\n"


def stress_table() -> str:
    """Return how long tests of a card's memory took, and how much of it they tested, one after another on one card."""
    lines = ["| tool | seconds in all | of the free memory | checks |", "|---|---|---|---|"]
    for row in json.loads((ROOT / "tests/gpu/stress.json").read_text())["rows"]:
        share = f"{row['tested_mib'] / row['free_mib']:.2%} ({row['tested_mib']:,} of {row['free_mib']:,} MiB)"
        lines.append(f"| {row['tool']} | {row['seconds']} | {share} | {row['checks']} |")
    return "\n".join(lines) + "\n"


def metrics_table() -> str:
    lines = ["| metric | kind | labels | meaning |", "|---|---|---|---|"]
    lines += [
        f"| `{spec.exposed_name}` | {spec.kind} | {', '.join(spec.labels)} | {spec.help} |" for spec in catalogue()
    ]
    return "\n".join(lines) + "\n"


TABLES: dict[str, Callable[[], str]] = {
    "commands": commands_table,
    "commands_zh": lambda: commands_table("zh"),
    "cost": peers.cost_table,
    "cost_calm": partial(peers.other_cost_table, "calm"),
    "cost_h200": partial(peers.other_cost_table, "h200"),
    "fit_summary": fit_summary,
    "fit_fourth": lambda: fit_table(_traced("FOURTH")),
    "fit_far": fit_far,
    "fleet": lambda: bench_fleet.table(json.loads((ROOT / "tests/bench/fleet.json").read_text())),
    "goals": goals.table,
    "h200": h200_table,
    "metrics": metrics_table,
    "out_of_memory": out_of_memory.summary_table,
    "out_of_memory_runs": out_of_memory.runs_table,
    "peers": peers.peers_table,
    "stress": stress_table,
}


def found(text: str) -> dict[str, str]:
    """Return the marked tables of a page, by name."""
    return {match["name"]: match["table"] for match in _MARKED.finditer(text)}


def renewed(text: str) -> str:
    """Return the page with all its tables made anew."""
    return _MARKED.sub(lambda match: match["begin"] + TABLES[match["name"]](), text)


if __name__ == "__main__":
    for page in PAGES:
        (ROOT / page).write_text(renewed((ROOT / page).read_text()))
