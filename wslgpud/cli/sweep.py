"""``wslgpud sweep 'CMD {}' 1 2 4 8``: memory and time that each value needs, and which still fits."""

from __future__ import annotations

import dataclasses
import os
import shlex
import sys
import tempfile
from typing import Annotated, BinaryIO

from rich.text import Text

from wslgpud.advise.guard import capacity, tree
from wslgpud.advise.guard.capacity import SweepStep, too_much
from wslgpud.advise.guard.relay import Relay
from wslgpud.advise.guard.runner import GuardedCommand, GuardedRun
from wslgpud.advise.guard.usage import VramWatch, memory_left
from wslgpud.cli import common
from wslgpud.cli.common import Fault, argument, flag, loaded, picture, seconds
from wslgpud.cli.console import Console, table_of
from wslgpud.cli.rows import bar
from wslgpud.host import Host
from wslgpud.series.plots import plot_sweep
from wslgpud.words import current, t
from wslgpud.words.units import size

_LAST_LINES = 5


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
    host, settings = Host(), loaded(config).config
    limit = seconds(timeout) if timeout else None
    tree.adopt_orphans()
    steps: list[SweepStep] = []
    end = ""
    for value in values:
        vram = VramWatch(host, settings)
        vram.start()
        try:
            left = memory_left(host)
            free = left.available_bytes - capacity.reserve(left.total_bytes)
            reason = too_much(steps, value, free, vram.free_bytes(gpu))
            if reason and not anyway:
                end = current().text(reason)
                break
            with tempfile.TemporaryFile(buffering=0) as log:
                step, interrupted = _step(command, value, limit, host, vram, gpu, log)
                steps.append(step)
                if interrupted:  # even if the command then succeeded: Ctrl-C means stop
                    end = t("interrupted at {value}", value=value)
                elif step.code:
                    end = t("{value} ended with status {code}", value=value, code=step.code) + f"\n{_tail(log)}"
                if end:
                    break
        finally:
            vram.stop()
    documents = [dataclasses.asdict(step) for step in steps]
    if as_json:
        common.print_json({"steps": documents, "end": end}, ensure_ascii=False)
    else:
        _print(steps, end)
    if (file := picture(plot)) is not None:
        plot_sweep(command[:90], documents, file)
    raise SystemExit(int(not any(s.code == 0 for s in steps)))


def _step(
    command: str, value: str, seconds: float | None, host: Host, vram: VramWatch, gpu: int, log: BinaryIO
) -> tuple[SweepStep, bool]:
    """Run the command with one value; also return whether it was interrupted."""
    line = command.replace("{}", shlex.quote(value))
    guarded = GuardedCommand(["/bin/sh", "-c", line], dict(os.environ), seconds)
    with Relay(log, live=True, quiet=True) as relay:
        relay.show(f"[sweep] {line}"[:79])
        stats = GuardedRun(guarded, host, relay, vram).to_end()
    peak, start = stats.vram_peak_bytes.get(gpu), stats.vram_start_bytes.get(gpu)
    own = None if peak is None or start is None else max(0, peak - start)
    step = SweepStep(value, stats.code, round(stats.seconds, 2), stats.peak_bytes, own)
    return step, stats.interrupted


def _tail(log: BinaryIO) -> str:
    log.seek(0)
    lines = log.read()[-4096:].decode("utf-8", "replace").splitlines()[-_LAST_LINES:]
    return "\n".join(f"  {line}" for line in lines)


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
