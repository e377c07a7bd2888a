"""``wslgpud guard``, ``inside`` and ``sweep``: commands under watch, a build, a training, a list of values."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shlex
import shutil
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

from rich.cells import chop_cells

from wslgpud import training
from wslgpud.active_runs import MAX_PIDS, Note
from wslgpud.advise.guard import past_runs, summary, tree
from wslgpud.advise.guard.past_runs import PastRuns
from wslgpud.advise.guard.relay import Relay, opened_log, own_log
from wslgpud.advise.guard.runner import GuardedCommand, GuardedRun
from wslgpud.advise.guard.usage import MemoryLeft, RunStats, VramWatch
from wslgpud.cli import common
from wslgpud.cli.common import Fault, argument, flag, loaded, option, picture, refused, state_folder
from wslgpud.host import Host
from wslgpud.security.redaction import masked
from wslgpud.sources.processes import imported_torch
from wslgpud.sources.procfs import OwnedFiles
from wslgpud.training.frameworks import ACTIONS
from wslgpud.words import Fact, Message, cause, current, t
from wslgpud.words.moments import seconds
from wslgpud.words.units import printable, size

if TYPE_CHECKING:
    from wslgpud.advise.guard.sweeping import SweepStep


def guard(
    command: Annotated[list[str], argument("COMMAND", "program to run, with its arguments")],
    jobs: Annotated[
        str, option("--jobs -j", "N", "jobs at once: a number, auto (as many as fit the memory), off")
    ] = "auto",
    timeout: common.Timeout = "",
    fallback: Annotated[str, option("--fallback", "COMMAND", "shell command to try once when the command fails")] = "",
    log: Annotated[Path | None, option("--log", "FILE", "log file; by default one in the state folder")] = None,
    save_signal: Annotated[
        str, option("--save-signal", "NAME", "signal (like USR1) that asks a program to save its work")
    ] = "",
    inside: Annotated[bool, flag("--inside", "look into PyTorch trainings, too (see 'wslgpud inside')")] = False,
    pause: Annotated[bool, flag("--pause", "pause compilers while memory is short")] = False,
    config: common.Config = None,
    state: common.State = None,
) -> None:
    """Run a build or a training under supervision: as many jobs as fit, a time limit, a log, the peaks at the end.

    Output, signals and exit status are those of the command; 124 means that the time limit was reached.

    Examples:
        wslgpud guard -- make  # a build with as many jobs as fit
        wslgpud guard --pause --timeout 2h --fallback 'make -j1' -- pip install flash-attn
        wslgpud guard --inside -- python train.py  # detects a leak hours before memory runs out
        wslgpud guard --save-signal USR1 -- python train.py
    """
    _refuse_absent_python(command[0])
    host, folder = Host(), state_folder(state)
    limit, number = seconds(timeout) if timeout else None, _signal(save_signal)
    tree.adopt_orphans()
    known = past_runs.load(folder)

    def ordered(command: list[str]) -> GuardedCommand:
        expected, environment, message = past_runs.jobs_for(command, host, jobs, known, os.environ)
        if message:
            _say(message)
        environment = training.environment(environment) if inside else environment
        return GuardedCommand(command, environment, limit, pause, number, expected)

    def ran(guarded: GuardedCommand) -> RunStats:
        with VramWatch(host, settings) as vram:  # one for each: its peaks are those of one command
            stats = _run(guarded, host, stream, vram, known, folder, inside=inside)
        _sum_up(stats, guarded, file)
        return stats

    settings, guarded = loaded(config).config, ordered(command)
    file, opened = (log, opened_log(log)) if log else own_log(folder, command)
    with opened as stream:
        stats = ran(guarded)
        if not stats.interrupted:  # the peaks of an interrupted run are incomplete
            known = _remember(folder, guarded, stats)
        if stats.code and not stats.interrupted and fallback:
            _say("it failed with status {code}; trying once: {command}", code=stats.code, command=fallback)
            stats = ran(ordered(["/bin/sh", "-c", fallback]))
    raise SystemExit(stats.code)


def _run(
    guarded: GuardedCommand, host: Host, log: BinaryIO, vram: VramWatch, known: PastRuns, folder: Path, *, inside: bool
) -> RunStats:
    peaks = past_runs.peaks(guarded, host, vram, known)
    for message in past_runs.too_large(peaks, host, vram):
        _say(message)
    files, trains = OwnedFiles(host), not inside
    name = past_runs.short_name(guarded.command)  # arguments may hold secrets, and everybody may read it
    with Relay(log) as relay, Note(host, "guard", name, who=name, state_folder=folder) as note:

        def show(stats: RunStats, left: MemoryLeft, run: GuardedRun) -> None:
            nonlocal trains
            trains = trains or any(imported_torch(files, process.pid) for process in run.processes)
            relay.show(_line(stats, left, run, vram))
            facts: dict[str, Any] = {"peak_bytes": stats.peak_bytes, "waiting": run.stopped}
            if peaks:
                pids = [p.pid for p in sorted(run.processes, key=lambda p: -p.bytes)]
                taken = {c.key: max(0, c.now_bytes - c.start_bytes) for c in vram.cards if c.now_bytes is not None}
                facts |= {"peaks": peaks, "used": {"ram": stats.held_bytes, **taken}, "pids": pids[:MAX_PIDS]}
            limit = guarded.timeout_seconds
            left_seconds = None if limit is None else max(0.0, limit - note.seconds)
            note.tell("waits" if run.stopped else "runs", left_seconds=left_seconds, facts=facts)

        stats = GuardedRun(guarded, host, relay, vram, show).to_end()
    if not trains:
        _say("no Python with PyTorch ran in it: --inside has seen nothing from inside, only the memory from outside")
    return stats


def _line(stats: RunStats, left: MemoryLeft, run: GuardedRun, vram: VramWatch) -> str:
    text = " · ".join(map(current().text, summary.progress(stats, left, run, vram)))
    try:
        width = os.get_terminal_size(2).columns or 80  # a terminal without a size reports 0
    except OSError:
        width = 80
    return chop_cells(f"[guard] {text}", max(1, width - 1))[0]


def _sum_up(stats: RunStats, guarded: GuardedCommand, file: Path) -> None:
    for message in summary.summary(stats, guarded):
        _say(message)
    _say("log: {path}", path=str(file))


def _remember(folder: Path, guarded: GuardedCommand, stats: RunStats) -> PastRuns:
    known = past_runs.load(folder)  # reloaded: others may have ended while this one ran
    known.learn(past_runs.key_of(guarded.command), stats, guarded.jobs)
    try:
        past_runs.save(folder, known)
    except OSError as error:
        _say("cannot save the peaks in {path}: {why}", path=str(folder), why=cause(error))
    return known


def _signal(name: str) -> signal.Signals | None:
    known, wanted = signal.Signals.__members__, f"SIG{name.upper().removeprefix('SIG')}"
    if name and wanted not in known:
        raise Fault("--save-signal {name}: there is no such signal; USR1 is the usual one", name=name)
    return known.get(wanted)


def _refuse_absent_python(program: str) -> None:
    if program == "python" and shutil.which("python") is None and shutil.which("python3"):
        raise Fault("there is no program called python here, only python3: write python3 instead")


def _say(said: str | Message, **facts: Fact) -> None:
    text = current().text(Message(said, facts) if isinstance(said, str) else said)
    with contextlib.suppress(OSError):  # a full disk behind 2>FILE must not change the command's exit status
        os.write(2, f"[guard] {printable(masked(text))}\n".encode())


def inside(
    command: Annotated[list[str], argument("COMMAND", "program to run, with its arguments")],
    on_warning: Annotated[
        str, option("--on-warning", "ACTIONS", "on a warning: save, drop-cache, halve-batch, with commas between")
    ] = "save",
) -> None:
    """Run a PyTorch training so that the daemon sees the memory that it retains with each step.

    In every Python of the command, the steps of PyTorch's optimizers are counted, and the memory in use after each is
    reported to the daemon, which detects a leak hours before memory is full. Hugging Face's Trainer and Lightning save
    a checkpoint when it warns; other programs get a call by wslgpud.training.watch(on_memory_warning=...). drop-cache
    frees PyTorch's unused cache; halve-batch makes Trainer process each batch in two parts from then on, with the same
    gradients. Where several processes train one model (torchrun), nothing is saved or halved: a process that did
    so alone would hang the others.

    Examples:
        wslgpud inside -- python train.py
        wslgpud inside --on-warning save,halve-batch -- python train.py
        wslgpud inside -- torchrun --nproc-per-node 2 train.py
        wslgpud guard --inside -- python train.py  # with a log and the peaks at the end
    """
    actions = on_warning.split(",")
    if unknown := set(actions) - set(ACTIONS):
        known = ", ".join(ACTIONS)
        raise Fault("--on-warning {action}: write {known}, with commas between", action=min(unknown), known=known)
    _refuse_absent_python(command[0])
    with refused("cannot start {path}: {why}", path=command[0]):
        os.execvpe(command[0], command, training.environment(os.environ, actions))  # noqa: S606 - what the user has named


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
    from wslgpud.advise.guard.sweeping import Sweep  # not needed by 'wslgpud guard'
    from wslgpud.series.plots import plot_sweep

    limit = seconds(timeout) if timeout else None
    tree.adopt_orphans()
    tried = Sweep(Host(), loaded(config).config, command, gpu, timeout_seconds=limit, anyway=anyway)
    steps = tried.run(values)
    end = "\n".join([current().text(tried.end), *(f"  {line}" for line in tried.last_lines)])
    documents = [dataclasses.asdict(step) for step in steps]
    if as_json:
        common.print_json({"steps": documents, "end": end}, ensure_ascii=False)
    else:
        _print_steps(steps, end)
    if (file := picture(plot)) is not None:
        plot_sweep(command[:90], documents, file)
    raise SystemExit(int(not any(s.code == 0 for s in steps)))


def _print_steps(steps: list[SweepStep], end: str) -> None:
    from rich.text import Text

    from wslgpud.cli.chart import bar
    from wslgpud.cli.console import Console, table_of

    on_card = any(s.vram_bytes is not None for s in steps)
    taken = [s.vram_bytes if on_card else s.ram_bytes for s in steps]
    longest = max((held for held in taken if held is not None), default=0) or 1
    headings = (t("value"), t("time"), t("peak RAM"), *[t("peak VRAM")] * on_card)
    rows = []
    for step, its in zip(steps, taken, strict=True):
        shown = (t("not seen") if s is None else size(s) for s in (step.ram_bytes, *[step.vram_bytes] * on_card))
        drawn = "" if its is None else bar(its / longest, 30, "red" if step.code else "cyan")
        rows.append((Text(step.value), t("{number} s", number=f"{step.seconds:.1f}"), *shown, drawn))
    Console().print(table_of(*(f">{heading}" for heading in headings), "<", rows=rows))
    if end:
        print(end, file=sys.stderr)
