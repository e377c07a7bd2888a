"""``wslgpud sweep 'CMD {}' 1 2 4 8``: what each value takes, and which still fits."""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from wslgpud.cli.common import (
    ConfigOption,
    Fault,
    GpuOption,
    JsonOption,
    PlotOption,
    TimeoutOption,
    loaded,
    picture,
)
from wslgpud.cli.moments import seconds
from wslgpud.host import Host
from wslgpud.units import size
from wslgpud.words import cause, current, t

if TYPE_CHECKING:
    from wslgpud.advise.guard.watch import VramWatch
    from wslgpud.advise.sweep import Step

_LAST_LINES = 5


def sweep(
    command: Annotated[str, typer.Argument(metavar="COMMAND", help="shell command; {} stands for the value")],
    values: Annotated[list[str], typer.Argument(metavar="VALUE", help="values to try, the smallest first")],
    timeout: TimeoutOption = "",
    gpu: GpuOption = 0,
    anyway: Annotated[bool, typer.Option("--anyway", help="try values that will not fit, too")] = False,
    plot: PlotOption = None,
    as_json: JsonOption = False,
    config: ConfigOption = None,
) -> None:
    """Run a command with each value; measure RAM, VRAM and time; stop before a value that would not fit.

    Examples:
        wslgpud sweep 'python train.py --batch {}' 1 2 4 8 --timeout 10min
    """
    from wslgpud.advise.guard import plan, tree  # noqa: PLC0415 - only this command needs them
    from wslgpud.advise.guard.memory import room  # noqa: PLC0415
    from wslgpud.advise.guard.watch import VramWatch  # noqa: PLC0415
    from wslgpud.advise.sweep import too_much  # noqa: PLC0415

    if "{}" not in command:
        shown = shlex.join(["wslgpud", "sweep", f"{command} {{}}", *values])
        raise Fault(t("the command does not say where the value goes: write {command}", command=shown))
    host, settings = Host(), loaded(config).config
    limit = seconds(timeout) if timeout else None
    tree.adopt_orphans()
    steps: list[Step] = []
    end = ""
    for value in values:
        vram = VramWatch(host, settings)
        vram.start()
        try:
            left = room(host)
            free = left.available_bytes - plan.reserve(left.total_bytes)
            reason = too_much(steps, value, free, vram.free_bytes(gpu))
            if reason and not anyway:
                end = current().text(reason)
                break
            with tempfile.TemporaryFile(buffering=0) as log:
                step, interrupted = _step(command, value, limit, host, vram, gpu, log)
                steps.append(step)
                if interrupted:  # also where the command then ended well: who presses Ctrl-C wants an end
                    end = t("interrupted at {value}", value=value)
                    break
                if step.code:
                    end = (
                        t("{value} ended with status {code}", value=value, code=step.code) + f"\n{_tail(log)}"
                    )
                    break
        finally:
            vram.stop()
    if as_json:
        document = {"steps": [dataclasses.asdict(s) for s in steps], "end": end}
        print(json.dumps(document, indent=2, ensure_ascii=False))
    else:
        _print(steps, end)
    if (file := picture(plot)) is not None:
        _draw(command, steps, file)
    raise typer.Exit(int(not any(s.code == 0 for s in steps)))


def _step(
    command: str, value: str, seconds: float | None, host: Host, vram: VramWatch, gpu: int, log: BinaryIO
) -> tuple[Step, bool]:
    """Run the command with one value; also return whether somebody interrupted it."""
    from wslgpud.advise.guard.relay import Relay  # noqa: PLC0415
    from wslgpud.advise.guard.runner import Order, Run  # noqa: PLC0415
    from wslgpud.advise.sweep import Step  # noqa: PLC0415

    line = command.replace("{}", shlex.quote(value))
    order = Order(["/bin/sh", "-c", line], dict(os.environ), seconds)
    with Relay(log, live=True, quiet=True) as relay:
        relay.show(f"[sweep] {line}"[:79])
        account = Run(order, host, relay, vram).to_end()
    peak, start = account.vram_peak_bytes.get(gpu), account.vram_start_bytes.get(gpu)
    own = None if peak is None or start is None else max(0, peak - start)
    step = Step(value, account.code, round(account.seconds, 2), account.peak_bytes, own)
    return step, account.interrupted


def _draw(command: str, steps: list[Step], file: Path) -> None:
    from wslgpud.plots import PlotError, Trial, plot_sweep  # noqa: PLC0415 - only for a picture

    trials = [Trial(s.value, s.ram_bytes, s.vram_bytes, s.seconds, bool(s.code)) for s in steps]
    try:
        plot_sweep(command[:90], trials, file)
    except PlotError as error:
        raise Fault(cause(error)) from error


def _tail(log: BinaryIO) -> str:
    log.seek(0)
    lines = log.read()[-4096:].decode("utf-8", "replace").splitlines()[-_LAST_LINES:]
    return "\n".join(f"  {line}" for line in lines)


def _print(steps: list[Step], end: str) -> None:
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    from wslgpud.cli.console import Console  # noqa: PLC0415 - rich only when somebody looks
    from wslgpud.cli.rows import bar  # noqa: PLC0415

    on_card = any(s.vram_bytes is not None for s in steps)
    taken = [s.vram_bytes if on_card else s.ram_bytes for s in steps]
    most = max((t for t in taken if t is not None), default=0) or 1
    table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, 2, 0, 0))
    for heading in (t("value"), t("time"), t("peak RAM"), *([t("peak VRAM")] if on_card else [])):
        table.add_column(heading, justify="right")
    table.add_column("")
    for step, its in zip(steps, taken, strict=True):
        shown = [step.ram_bytes, *([step.vram_bytes] if on_card else [])]
        cells: list[str | Text] = [
            Text(step.value),
            t("{number} s", number=f"{step.seconds:.1f}"),
            *(t("not seen") if s is None else size(s) for s in shown),
        ]
        colour = "red" if step.code else "cyan"
        table.add_row(*cells, "" if its is None else bar(its / most, 30, colour))
    Console().print(table)
    if end:
        print(end, file=sys.stderr)
