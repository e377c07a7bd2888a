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
from rich.cells import chop_cells

from wslgpud import documents
from wslgpud.cli.common import ConfigOption, Fault, StateOption, TimeoutOption, loaded, state_folder
from wslgpud.cli.moments import seconds
from wslgpud.host import Host
from wslgpud.masking import masked
from wslgpud.running.headline import waiting
from wslgpud.running.write import Claim, Note
from wslgpud.units import printable
from wslgpud.words import Said, current, failure, says, t

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
                _say(
                    t(
                        "it failed with status {code}; trying once: {command}",
                        code=account.code,
                        command=fallback,
                    )
                )
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
            raise Fault(t("--jobs {jobs}: write a number, auto or off", jobs=jobs))
        processors = len(os.sched_getaffinity(0))
        fitting = plan.jobs(left.available_bytes, left.total_bytes, expected, processors)
        chosen = fitting if jobs == "auto" else int(jobs)
        environment |= plan.limits(chosen, os.environ)
        facts = {
            "jobs": chosen,
            "processors": processors,
            "free_bytes": left.available_bytes,
            "job_bytes": expected,
        }
        _say(
            t(
                "jobs: {jobs} of {processors}, {free_bytes} free and {job_bytes} measured for each",
                **facts,
            )
            if remembered
            else t(
                "jobs: {jobs} of {processors}, {free_bytes} free and {job_bytes} expected for each", **facts
            )
        )
    return Order(command, environment, seconds, pause, number, expected)


def _run(order: Order, host: Host, log: BinaryIO, vram: VramWatch, known: Ledger) -> Account:
    from wslgpud.advise.guard import plan  # noqa: PLC0415
    from wslgpud.advise.guard.memory import room  # noqa: PLC0415
    from wslgpud.advise.guard.relay import Relay  # noqa: PLC0415
    from wslgpud.advise.guard.runner import Run  # noqa: PLC0415

    peaks = _peaks(order, host, vram, known)
    left = room(host)
    free = {"ram": left.available_bytes + left.swap_bytes}
    if len(peaks.keys() - free.keys()):
        free |= vram.free_by_uuid()
    for what, peak in peaks.items():
        if peak > free.get(what, peak):
            facts = {"peak_bytes": peak, "free_bytes": free[what]}
            _say(
                t("an earlier run took {peak_bytes} of memory; {free_bytes} is free now", **facts)
                if what == "ram"
                else t("an earlier run took {peak_bytes} of VRAM; {free_bytes} is free now", **facts)
            )
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


def _peaks(order: Order, host: Host, vram: VramWatch, known: Ledger) -> dict[str, int]:
    """Return what the command came to before, as far as this machine can hold it."""
    from wslgpud.advise.guard import plan  # noqa: PLC0415
    from wslgpud.advise.guard.memory import most_bytes  # noqa: PLC0415

    key, jobs, ram = plan.key_of(order.command), _jobs(order), most_bytes(host)
    most = {} if ram is None else {"ram": ram}
    peaks = known.peaks(key, jobs, most)
    return known.peaks(key, jobs, most | vram.total_by_uuid()) if peaks.keys() - {"ram"} else peaks


def _jobs(order: Order) -> int | None:
    number = order.environment.get("MAX_JOBS", "")
    return int(number) if number.isdecimal() else None


def _line(account: Account, left: Room, run: Run, vram: VramWatch) -> str:
    limit = run.order.timeout_seconds
    now = _clock(account.seconds)
    parts = [t("{elapsed} of {limit}", elapsed=now, limit=_clock(limit)) if limit else now]
    parts.append(t("{left_bytes} left", left_bytes=left.available_bytes))
    if account.peak_bytes is not None:
        parts.append(t("peak {peak_bytes}", peak_bytes=account.peak_bytes))
    for index, used in vram.now_bytes.items():
        peak = vram.peak_bytes[index]
        parts.append(
            t("GPU {gpu} {used_bytes}, peak {peak_bytes}", gpu=index, used_bytes=used, peak_bytes=peak)
        )
    if run.stopped:
        parts.append(current().text(waiting(run.stopped)))
    try:
        width = os.get_terminal_size(2).columns or 80  # a terminal that nobody has given a size has 0
    except OSError:
        width = 80
    return chop_cells(f"[guard] {' · '.join(parts)}", max(1, width - 1))[0]


def _sum_up(account: Account, order: Order, file: Path) -> None:
    command, took = shlex.join(order.command)[:60], _clock(account.seconds)
    if account.timed_out:
        _say(t("{command}: the time was up after {time}", command=command, time=took))
    else:
        _say(t("{command}: exit status {code} after {time}", command=command, code=account.code, time=took))
    if (least := account.least_available_bytes) is not None:
        peak, when = account.peak_bytes, _clock(account.least_at_seconds)
        _say(
            t("peak RAM not seen: it ended too soon")
            if peak is None
            else t("peak RAM {peak_bytes}", peak_bytes=peak)
        )
        room, share = (least, account.total_bytes), least / account.total_bytes
        _say(
            t(
                "least left: {room_bytes} ({left_ratio}), after {time}",
                room_bytes=room,
                left_ratio=share,
                time=when,
            )
        )
    if account.biggest[1]:
        _say(
            t(
                "biggest program: {program}, {size_bytes}",
                program=account.biggest[0],
                size_bytes=account.biggest[1],
            )
        )
    for index, top in sorted(account.vram_peak_bytes.items()):
        own = max(0, top - account.vram_start_bytes.get(index, 0))
        _say(
            t(
                "peak VRAM {peak_bytes} on GPU {gpu}, {own_bytes} more than before",
                peak_bytes=top,
                gpu=index,
                own_bytes=own,
            )
        )
    if account.pauses:
        _say(
            says(
                "compilers had to wait {count} time, {paused_seconds} altogether",
                "compilers had to wait {count} times, {paused_seconds} altogether",
                count=account.pauses,
                paused_seconds=account.paused_seconds,
            )
        )
    for who, after in account.saved:
        _say(
            t(
                "memory was short after {after_seconds}: asked {who} to save itself",
                after_seconds=after,
                who=who,
            )
        )
    if account.oom_kills:
        _say(
            says(
                "the kernel killed {count} process for want of memory: try --pause, or --jobs {jobs}",
                "the kernel killed {count} processes for want of memory: try --pause, or --jobs {jobs}",
                count=account.oom_kills,
                jobs=max(1, (_jobs(order) or 2) // 2),
            )
        )
    _say(t("log: {path}", path=str(file)))


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
        _say(t("cannot remember the peaks in {path}: {why}", path=str(folder), why=failure(error)))
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
        why = failure(error)
        raise Fault(
            t("cannot keep a log in {path}: {why}; name one with --log", path=str(logs), why=why)
        ) from error


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
        raise Fault(t("cannot write the log {path}: {why}", path=str(file), why=failure(error))) from error


def _has_nvcc() -> bool:
    homes = filter(None, (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"))
    return any(Path(home, "bin", "nvcc").exists() for home in homes)


def _signal(name: str) -> signal.Signals | None:
    if not name:
        return None
    try:
        return signal.Signals[f"SIG{name.upper().removeprefix('SIG')}"]
    except KeyError as error:
        raise Fault(
            t("--save-signal {name}: there is no such signal; USR1 is the usual one", name=name)
        ) from error


def _clock(seconds: float) -> str:
    """Write a span so that somebody who waits sees it pass."""
    minutes, rest = divmod(int(seconds), 60)
    if not minutes:
        return t("{number} s", number=rest)
    if minutes < 60:
        return t("{minutes} min {seconds} s", minutes=minutes, seconds=f"{rest:02}")
    return t("{hours} h {minutes} min", hours=minutes // 60, minutes=f"{minutes % 60:02}")


def _say(said: Said) -> None:
    text = current().text(said)
    with contextlib.suppress(OSError):  # a full disk behind 2>FILE: the exit status is the command's own
        os.write(2, f"[guard] {printable(masked(text))}\n".encode())
