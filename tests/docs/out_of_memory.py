"""The tables of ``bench_oom``: what became of the same runs under each tool."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

MEASURED = Path(__file__).parents[1] / "bench" / "oom.json"
TOOLS = {
    "none": "nothing (the kernel alone)",
    "wslgpud": "**wslgpud's brake**",
    "earlyoom": "earlyoom 1.7",
    "systemd-oomd": "systemd-oomd 252",
    "thrash-protect": "thrash-protect 1.1.2",
}
#: a case that takes at most this long from half full to the first kill by the kernel alone is too fast to judge
FAIR_SECONDS = 5.0
Run = Mapping[str, Any]


def measured() -> list[Run]:
    """Return all runs. Where no tool ran, whoever was killed was killed by the kernel, whose log may be too short."""
    return [_without_tool(run) if run["tool"] == "none" else run for run in json.loads(MEASURED.read_text())]


def _without_tool(run: Run) -> Run:
    return {**run, "kernel_kills": [*run["kernel_kills"], *_by_tool(run)], "tool_kills": []}


def outcome(run: Run) -> str:
    """Return what became of a run in some words."""
    if "error" in run:
        return str(run["error"])
    said = [str(run["job"])]
    for killer, killed in (("kernel", run["kernel_kills"]), ("tool", _by_tool(run))):
        if killed:
            said.append(f"{killer} killed {_counted(killed)}")
    if run["paused"]:
        said.append("paused " + ", ".join(f"{role} {seconds:.0f} s" for role, seconds in run["paused"].items()))
    if run["slow_seconds"]:
        said.append(f"shell late for {run['slow_seconds']:.0f} s")
    return "; ".join(said)


def _by_tool(run: Run) -> Sequence[str]:
    """Return whom the tool killed: not those that went with their user's systemd, which the kernel had killed."""
    return () if "systemd" in run["kernel_kills"] else run["tool_kills"]


def _is_fast(run: Run) -> bool:
    """Return whether the same case ends within ``FAIR_SECONDS`` under the kernel alone."""
    case = run["machine"], run["scenario"]
    alone = next(one for one in measured() if one["tool"] == "none" and (one["machine"], one["scenario"]) == case)
    return alone["half_to_end_seconds"] is not None and alone["half_to_end_seconds"] <= FAIR_SECONDS


def _counted(names: Sequence[str]) -> str:
    counts = {name: names.count(name) for name in dict.fromkeys(names)}
    return ", ".join(name if number == 1 else f"{number} of {name}" for name, number in counts.items())


def summary_table() -> str:
    """Return the figures of each tool over all runs."""
    heads = "runs|kernel kill|the same, of cases over 5 s|tool kill|innocent killed|job paused|innocent paused"
    heads += "|job finished|work lost, s|shell late, s|longest answer, s"
    lines = [f"| | {heads.replace('|', ' | ')} |", "|---" * (2 + heads.count("|")) + "|"]
    for tool, name in TOOLS.items():
        runs = [run for run in measured() if run["tool"] == tool and "error" not in run]
        if not runs:
            continue
        fair = [run for run in runs if not _is_fast(run)]
        cells = [
            len(runs),
            sum(bool(run["kernel_kills"]) for run in runs),
            f"{sum(bool(run['kernel_kills']) for run in fair)} of {len(fair)}",
            sum(bool(_by_tool(run)) for run in runs),
            sum(any(who != "job" for who in (*run["kernel_kills"], *run["tool_kills"])) for run in runs),
            sum("job" in run["paused"] for run in runs),
            sum("ballast" in run["paused"] for run in runs),
            sum(run["job"] == "finished" for run in runs),
            f"{sum(run['lost_seconds'] for run in runs):.0f}",
            f"{sum(run['slow_seconds'] for run in runs):.0f}",
            f"{max(run['longest_answer_seconds'] for run in runs):.1f}",
        ]
        lines.append(f"| {name} | " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines) + "\n"


def runs_table() -> str:
    """Return every run: machine and scenario by tool."""
    runs = measured()
    cases = list(dict.fromkeys((run["machine"], run["scenario"]) for run in runs))
    by_case = {(run["machine"], run["scenario"], run["tool"]): run for run in runs}
    lines = ["| machine | scenario | " + " | ".join(TOOLS.values()) + " |", "|---|---|" + "---|" * len(TOOLS)]
    for machine, scenario in cases:
        cells = [outcome(run) if (run := by_case.get((machine, scenario, tool))) else "not run" for tool in TOOLS]
        lines.append(f"| {machine} | {scenario} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"
