"""The tables of the pages, each generated from what it documents; ``python -m tests.docs.tables`` renews them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import typer

from tests.bench import bench_fleet
from tests.docs import goals, out_of_memory, peers
from tests.gpu.fit_on_a_real_card import GIB, MODELS
from wslgpud import words
from wslgpud.advise.fit import diffusion, picture
from wslgpud.advise.fit.estimate import Plan, estimate
from wslgpud.advise.fit.shape import of_config
from wslgpud.app import catalogue
from wslgpud.cli import app

ROOT = Path(__file__).parents[2]
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
        group = typer.main.get_command(app)
        for name, command in group.commands.items():  # type: ignore[attr-defined] - a group, as the app has several
            more = ", ".join(f"`{part}`" for part in getattr(command, "commands", {}))
            says = command.get_short_help_str(200)
            lines.append(f"| `{name}` | {says}{f' ({more})' * bool(more)} |")
    finally:
        words.use(before.code)
    return "\n".join(lines) + "\n"


def h200_table() -> str:
    """Return what was measured by hand beside a training on a real card."""
    rows = json.loads((ROOT / "tests/gpu/measured.json").read_text())["rows"]
    lines = ["| | measured | goal |", "|---|---|---|"]
    return "\n".join([*lines, *(f"| {row['what']} | {row['measured']} | {row['goal']} |" for row in rows)]) + "\n"


def fit_table(kind: str = "cases") -> str:
    """Return what models took on a real card beside what ``fit`` says they take, then and now."""
    lines = ["| model | task | predicted before the run | measured | now |", "|---|---|---|---|---|"]
    for case in json.loads((ROOT / "tests/advise/fit/h200.json").read_text())[kind]:
        plan, measured = Plan(**case["plan"]), case["measured_bytes"]
        task = f"{plan.mode} {plan.precision}, batch {plan.batch}, context {plan.context}"
        task += ", checkpointing" * plan.checkpointing + ", all matrices" * (plan.targets == "all")
        task += f", {plan.optimizer}" * (plan.mode == "training")
        now = estimate(of_config(MODELS[case["model"]]), plan).total_bytes
        told = (f"{size / GIB:.1f} GiB ({size / measured - 1:+.1%})" for size in (case["predicted_before_bytes"], now))
        before, after = told
        lines.append(f"| {case['model']} | {task} | {before} | {measured / GIB:.1f} GiB | {after} |")
    return "\n".join(lines) + "\n"


def pictures_table() -> str:
    """Return what diffusion pipelines took on a real card beside what ``fit`` says they take, then and now."""
    lines = ["| pipeline | task | predicted before the run | measured | now |", "|---|---|---|---|---|"]
    for case in json.loads((ROOT / "tests/advise/fit/pictures.json").read_text())["cases"]:
        plan, measured, model = picture.PicturePlan(**case["plan"]), case["measured_bytes"], diffusion.of(case["model"])
        assert model is not None
        task = f"{plan.precision}, batch {plan.batch}, {plan.width}x{plan.height}"
        task += ", model offload" * plan.offload
        task += ", VAE tiling" * plan.tiling + ", VAE slicing" * plan.slicing
        now = picture.estimate(model, plan).total_bytes
        told = (f"{size / GIB:.1f} GiB ({size / measured - 1:+.1%})" for size in (case["predicted_before_bytes"], now))
        before, after = told
        lines.append(f"| {case['model']} | {task} | {before} | {measured / GIB:.1f} GiB | {after} |")
    return "\n".join(lines) + "\n"


def stress_table() -> str:
    """Return how long tests of a card's memory took, and how much of it they tested, one after another on one card."""
    lines = ["| tool | seconds in all | of the free memory | checks |", "|---|---|---|---|"]
    for row in json.loads((ROOT / "tests/gpu/stress.json").read_text())["rows"]:
        share = f"{row['tested_mib'] / row['free_mib']:.2%} ({row['tested_mib']:,} of {row['free_mib']:,} MiB)"
        lines.append(f"| {row['tool']} | {row['seconds']} | {share} | {row['checks']} |")
    return "\n".join(lines) + "\n"


TABLES: dict[str, Callable[[], str]] = {
    "commands": commands_table,
    "commands_zh": lambda: commands_table("zh"),
    "cost": peers.cost_table,
    "cost_h100": partial(peers.cost_on_a_card_table, "h100"),
    "cost_h200": partial(peers.cost_on_a_card_table, "h200"),
    "fit": fit_table,
    "fit_held_out": lambda: fit_table("held_out"),
    "fit_pictures": pictures_table,
    "fleet": lambda: bench_fleet.table(json.loads((ROOT / "tests/bench/fleet.json").read_text())),
    "goals": goals.table,
    "h200": h200_table,
    "metrics": catalogue.table,
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
