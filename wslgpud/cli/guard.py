"""``wslgpud guard -- CMD``: a build or a training under watch."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from wslgpud import documents
from wslgpud.cli.common import ConfigOption, Fault, StateOption, TimeoutOption, loaded, state_folder
from wslgpud.cli.moments import seconds
from wslgpud.host import Host
from wslgpud.masking import masked
from wslgpud.running.write import Claim, Note
from wslgpud.units import duration, printable, size

if TYPE_CHECKING:
    from wslgpud.advise.guard.ledger import Ledger
    from wslgpud.advise.guard.memory import Room
    from wslgpud.advise.guard.runner import Order, Run
    from wslgpud.advise.guard.watch import Account, VramWatch

_KEPT_LOGS, _MOST_LOGS = 20, 10_000


def guard(
    command: Annotated[
        list[str], typer.Argument(metavar="COMMAND", help="program to run, with its arguments")
    ],
    jobs: Annotated[
        str,
        typer.Option(
            "--jobs", "-j", metavar="N", help="jobs at once: a number, auto (as many as fit the memory), off"
        ),
    ] = "auto",
    timeout: TimeoutOption = "",
    fallback: Annotated[
        str,
        typer.Option(
            "--fallback", metavar="COMMAND", help="shell command to try once when the command fails"
        ),
    ] = "",
    log: Annotated[
        Path | None,
        typer.Option("--log", metavar="FILE", help="log file; one in the state folder otherwise"),
    ] = None,
    save_signal: Annotated[
        str,
        typer.Option(
            "--save-signal", metavar="NAME", help="signal (like USR1) that asks a program to save itself"
        ),
    ] = "",
    pause: Annotated[bool, typer.Option("--pause", help="let compilers wait while memory is short")] = False,
    config: ConfigOption = None,
    state: StateOption = None,
) -> None:
    """Run a build or a training under watch: as many jobs as fit, a time limit, a log, the peaks at the end.

    Output, signals and exit status are those of the command; 124 means that the time was up.

    Examples:
        wslgpud guard -- make  # a build with as many jobs as fit
        wslgpud guard --pause --timeout 2h --fallback 'make -j1' -- pip install flash-attn
        wslgpud guard --save-signal USR1 -- python train.py
    """
    from wslgpud.advise.guard import ledger, tree  # noqa: PLC0415 - only this command needs them
    from wslgpud.advise.guard.watch import VramWatch  # noqa: PLC0415

    host, folder = Host(), state_folder(state)
    limit, number = seconds(timeout) if timeout else None, _signal(save_signal)
    tree.adopt_orphans()
    known = ledger.load(folder)
    order = _order(command, host, jobs, known, limit, number, pause)
    vram = VramWatch(host, loaded(config).config)
    file, opened = (log, _opened(log)) if log else _own_log(folder, command)
    vram.start()
    try:
        with opened as stream:
            account = _run(order, host, stream, vram, known)
            _sum_up(account, order, file)
            if not account.interrupted:  # else the peaks are not what it wants
                known = _remember(folder, order, account)
            if account.code and not account.interrupted and fallback:
                _say(f"it failed with status {account.code}; trying once: {fallback}")
                second = _order(["/bin/sh", "-c", fallback], host, jobs, known, limit, number, pause)
                account = _run(second, host, stream, vram, known)
                _sum_up(account, second, file)
    finally:
        vram.stop()
    raise typer.Exit(account.code)


def _order(
    command: list[str],
    host: Host,
    jobs: str,
    known: Ledger,
    seconds: float | None,
    number: signal.Signals | None,
    pause: bool,
) -> Order:
    from wslgpud.advise.guard import plan  # noqa: PLC0415
    from wslgpud.advise.guard.memory import room  # noqa: PLC0415
    from wslgpud.advise.guard.runner import Order  # noqa: PLC0415

    left = room(host)
    remembered = known.compiler_bytes(plan.key_of(command))
    expected = plan.job_bytes(known.compilers, remembered, nvcc=_has_nvcc())
    environment = dict(os.environ)
    if jobs != "off":
        if jobs != "auto" and not (jobs.isdecimal() and int(jobs)):
            raise Fault(f"--jobs {jobs}: write a number, auto or off")
        processors = len(os.sched_getaffinity(0))
        fitting = plan.jobs(left.available_bytes, left.total_bytes, expected, processors)
        chosen = fitting if jobs == "auto" else int(jobs)
        environment |= plan.limits(chosen, os.environ)
        why = "measured before" if remembered else "expected"
        free = f"{size(left.available_bytes)} are free"
        _say(f"{chosen} of {processors} jobs: {free}, {size(expected)} each {why}")
    return Order(command, environment, seconds, pause, number, expected)


def _run(order: Order, host: Host, log: BinaryIO, vram: VramWatch, known: Ledger) -> Account:
    from wslgpud.advise.guard import plan  # noqa: PLC0415
    from wslgpud.advise.guard.memory import room  # noqa: PLC0415
    from wslgpud.advise.guard.relay import Relay  # noqa: PLC0415
    from wslgpud.advise.guard.runner import Run  # noqa: PLC0415

    peaks = known.peaks(plan.key_of(order.command), _jobs(order))
    left = room(host)
    free = {"ram": left.available_bytes + left.swap_bytes}
    if len(peaks.keys() - free.keys()):
        free |= vram.free_by_uuid()
    for what, peak in peaks.items():
        if peak > free.get(what, peak):
            where = "memory" if what == "ram" else "VRAM"
            _say(f"in an earlier run it came to {size(peak)} of {where}; {size(free[what])} are free now")
    name = plan.short_name(order.command)  # arguments hold secrets, and everybody may read the note
    noted = Note(host, "guard", name, who=name)
    with Relay(log, live=True) as relay, noted as note:

        def show(account: Account, left: Room, run: Run) -> None:
            relay.show(_line(account, left, run, vram))
            claim = None
            if peaks:
                used = {"ram": account.held_bytes, **vram.taken_bytes(vram.now_bytes)}
                claim = Claim(peaks, used, [p.pid for p in sorted(run.processes, key=lambda p: -p.bytes)])
            limit = order.timeout_seconds
            note.tell(
                "waits" if run.stopped else "runs",
                left_seconds=None if limit is None else max(0.0, limit - note.seconds),
                facts={"peak_bytes": account.peak_bytes, "waiting": run.stopped},
                claim=claim,
            )

        return Run(order, host, relay, vram, show).to_end()


def _jobs(order: Order) -> int | None:
    number = order.environment.get("MAX_JOBS", "")
    return int(number) if number.isdecimal() else None


def _line(account: Account, left: Room, run: Run, vram: VramWatch) -> str:
    limit = run.order.timeout_seconds
    parts = [f"{_clock(account.seconds)}" + (f" of {_clock(limit)}" if limit else "")]
    peak = "" if account.peak_bytes is None else f", peak {size(account.peak_bytes)}"
    parts.append(f"{size(left.available_bytes)} left{peak}")
    for index, used in vram.now_bytes.items():
        parts.append(f"GPU {index} {size(used)}, peak {size(vram.peak_bytes[index])}")
    if run.stopped:
        parts.append(f"{run.stopped} compilers wait")
    try:
        width = os.get_terminal_size(2).columns
    except OSError:
        width = 80
    return f"[guard] {' · '.join(parts)}"[: width - 1]


def _sum_up(account: Account, order: Order, file: Path) -> None:
    end = "the time was up" if account.timed_out else f"exit status {account.code}"
    _say(f"{shlex.join(order.command)[:60]}: {end} after {_clock(account.seconds)}")
    if account.least_available_bytes is not None:
        share, when = account.least_available_bytes / account.total_bytes, _clock(account.least_at_seconds)
        most = "not seen, it ended too soon" if account.peak_bytes is None else size(account.peak_bytes)
        _say(
            f"peak RAM {most}; at the narrowest, after {when},"
            f" {size(account.least_available_bytes)} ({share:.0%}) of {size(account.total_bytes)} were left"
        )
    if account.biggest[1]:
        _say(f"biggest program: {account.biggest[0]}, {size(account.biggest[1])}")
    for index, peak in sorted(account.vram_peak_bytes.items()):
        own = peak - account.vram_start_bytes.get(index, 0)
        _say(f"peak VRAM {size(peak)} on GPU {index}, {size(max(own, 0))} more than before")
    if account.pauses:
        _say(f"compilers waited {account.pauses} times, {duration(account.paused_seconds)} altogether")
    for who in account.saved:
        _say(f"memory was short: asked {who} to save itself")
    if account.oom_kills:
        fewer = max(1, (_jobs(order) or 2) // 2)
        who = f"{account.oom_kills} process{'es' * (account.oom_kills > 1)}"
        _say(f"the kernel killed {who} for want of memory: try --pause, or --jobs {fewer}")
    _say(f"log: {file}")


def _remember(folder: Path, order: Order, account: Account) -> Ledger:
    from wslgpud.advise.guard import ledger, plan  # noqa: PLC0415

    known = ledger.load(folder)  # anew: others may have ended while this one ran
    key = plan.key_of(order.command)
    before = known.commands.get(key, {})
    facts = {
        "seconds": round(account.seconds, 1),
        "peak_bytes": account.peak_bytes,
        "compiler_bytes": account.compiler_bytes,
        "vram_bytes": account.vram_taken_bytes,
        "jobs": _jobs(order),
        "code": account.code,
    }
    compilers = account.compilers
    if account.oom_kills:  # it needs at least so much; how much a compiler needs is not known
        peak = max(account.peak_bytes or 0, before.get("peak_bytes") or 0)
        facts |= {"killed": True, "peak_bytes": peak, "compiler_bytes": before.get("compiler_bytes")}
        compilers = {}
    known.learn(key, facts, compilers)
    try:
        ledger.save(folder, known)
    except OSError as error:
        _say(f"cannot remember the peaks in {folder}: {error.strerror}")
    return known


def _own_log(folder: Path, command: list[str]) -> tuple[Path, BinaryIO]:
    """Begin a log in the state folder, where the last twenty stay."""
    logs = folder / "guard"
    name = re.sub(r"[^\w.-]+", "-", Path(command[0]).name)[:40]
    new = f"{datetime.now().astimezone():%Y%m%d-%H%M%S}-{name}-{os.getpid()}.log"
    try:
        logs.mkdir(parents=True, exist_ok=True)
        with documents.Folder(logs) as kept:
            # Not by name: a training that has begun before twenty builds still writes.
            written = {old: _written(kept, old) for old in kept.names(_MOST_LOGS) if old.endswith(".log")}
            for old in sorted(written, key=written.__getitem__)[: -_KEPT_LOGS + 1]:
                kept.remove(old)
            return logs / new, kept.create(new)
    except OSError as error:
        raise Fault(f"cannot keep a log in {logs}: {error.strerror}; name one with --log") from error


def _written(folder: documents.Folder, name: str) -> float:
    """Return when a log was last written; one that another guard has just removed is the oldest."""
    try:
        return folder.stat(name).st_mtime
    except FileNotFoundError:
        return 0.0


def _opened(file: Path) -> BinaryIO:
    try:
        return file.open("wb", buffering=0)
    except OSError as error:
        raise Fault(f"cannot write the log {file}: {error.strerror}") from error


def _has_nvcc() -> bool:
    homes = filter(None, (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"))
    return any(Path(home, "bin", "nvcc").exists() for home in homes)


def _signal(name: str) -> signal.Signals | None:
    if not name:
        return None
    try:
        return signal.Signals[f"SIG{name.upper().removeprefix('SIG')}"]
    except KeyError as error:
        raise Fault(f"--save-signal {name}: there is no such signal; USR1 is the usual one") from error


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return (
        f"{minutes // 60}h{minutes % 60:02}m"
        if minutes >= 60
        else f"{minutes}m{rest:02}s"
        if minutes
        else f"{rest}s"
    )


def _say(text: str) -> None:
    with contextlib.suppress(OSError):  # a full disk behind 2>FILE: the exit status is the command's own
        os.write(2, f"[guard] {printable(masked(text))}\n".encode())
