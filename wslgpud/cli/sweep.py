"""``wslgpud sweep 'CMD {}' 1 2 4 8``: memory and time that each value needs, and which still fits."""

from __future__ import annotations

import dataclasses
import shlex
import sys
from typing import Annotated

from rich.text import Text

from wslgpud.advise.guard import tree
from wslgpud.advise.guard.sweeping import Sweep, SweepStep
from wslgpud.cli import common
from wslgpud.cli.chart import bar
from wslgpud.cli.common import Fault, argument, flag, loaded, picture
from wslgpud.cli.console import Console, table_of
from wslgpud.host import Host
from wslgpud.series.plots import plot_sweep
from wslgpud.words import current, t
from wslgpud.words.moments import seconds
from wslgpud.words.units import size


def sweep(
    command: Annotated[str, argument("COMMAND", "shell command; {} stands for the value")],
    values: Annotated[list[str], argument("VALUE", "values to try, the smallest first")],
    timeout: common.Timeout = "",
    gpu: common.Gpu = 0,
    anyway: Annotated[bool, flag("--anyway", "try values that will not fit, too")] = False,
    plot: common.Plot = None,
    as_json: common.Json = False,
    config: common.Config = None,
) -> None:
    """Run a command with each value; measure RAM, VRAM and time; stop before a value that would not fit.

    Examples:
        wslgpud sweep 'python train.py --batch {}' 1 2 4 8 --timeout 10min
    """
    if "{}" not in command:
        shown = shlex.join(["wslgpud", "sweep", f"{command} {{}}", *values])
        raise Fault("the command has no placeholder for the value: write {command}", command=shown)
    limit = seconds(timeout) if timeout else None
    tree.adopt_orphans()
    tried = Sweep(Host(), loaded(config).config, command, gpu, timeout_seconds=limit, anyway=anyway)
    steps = [*tried.run(values)]
    end = "\n".join([current().text(tried.end), *(f"  {line}" for line in tried.last_lines)])
    documents = [dataclasses.asdict(step) for step in steps]
    if as_json:
        common.print_json({"steps": documents, "end": end}, ensure_ascii=False)
    else:
        _print(steps, end)
    if (file := picture(plot)) is not None:
        plot_sweep(command[:90], documents, file)
    raise SystemExit(int(not any(s.code == 0 for s in steps)))


def _print(steps: list[SweepStep], end: str) -> None:
    on_card = any(s.vram_bytes is not None for s in steps)
    taken = [s.vram_bytes if on_card else s.ram_bytes for s in steps]
    longest = max((t for t in taken if t is not None), default=0) or 1
    headings = (t("value"), t("time"), t("peak RAM"), *[t("peak VRAM")] * on_card)
    table = table_of(*(f">{heading}" for heading in headings), "<")
    for step, its in zip(steps, taken, strict=True):
        shown = (t("not seen") if s is None else size(s) for s in (step.ram_bytes, *[step.vram_bytes] * on_card))
        drawn = "" if its is None else bar(its / longest, 30, "red" if step.code else "cyan")
        table.add_row(Text(step.value), t("{number} s", number=f"{step.seconds:.1f}"), *shown, drawn)
    Console().print(table)
    if end:
        print(end, file=sys.stderr)
