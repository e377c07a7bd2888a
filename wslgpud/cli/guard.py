"""``wslgpud guard -- CMD``: a build or a training under watch."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
from datetime import datetime
from pathlib import Path
from typing import Annotated, BinaryIO

from rich.cells import chop_cells

from wslgpud import training
from wslgpud.active_runs.notes import Claim, Note
from wslgpud.active_runs.run_messages import waiting
from wslgpud.advise.guard import capacity, past_runs, tree
from wslgpud.advise.guard.past_runs import PastRuns
from wslgpud.advise.guard.relay import Relay
from wslgpud.advise.guard.runner import GuardedCommand, GuardedRun
from wslgpud.advise.guard.usage import MemoryLeft, RunStats, VramWatch, memory_left, most_bytes
from wslgpud.cli import common
from wslgpud.cli.common import Fault, argument, flag, loaded, option, refused, seconds, state_folder
from wslgpud.host import Host
from wslgpud.security import private_files, safe_files
from wslgpud.security.redaction import masked
from wslgpud.words import Fact, Message, cause, current, say, says, t, template
from wslgpud.words.units import printable

_KEPT_LOGS, _MAX_LOGS = 20, 10_000


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
    host, folder = Host(), state_folder(state)
    limit, number = seconds(timeout) if timeout else None, _signal(save_signal)
    tree.adopt_orphans()
    known = past_runs.load(folder)

    def ordered(command: list[str]) -> GuardedCommand:
        expected, environment = _jobs_for(command, host, jobs, known)
        environment = training.environment(environment) if inside else environment
        return GuardedCommand(command, environment, limit, pause, number, expected)

    guarded = ordered(command)
    vram = VramWatch(host, loaded(config).config)
    file, opened = (log, _opened(log)) if log else _own_log(folder, command)
    vram.start()
    try:
        with opened as stream:
            stats = _run(guarded, host, stream, vram, known)
            _sum_up(stats, guarded, file)
            if not stats.interrupted:  # the peaks of an interrupted run are incomplete
                known = _remember(folder, guarded, stats)
            if stats.code and not stats.interrupted and fallback:
                _say("it failed with status {code}; trying once: {command}", code=stats.code, command=fallback)
                second = ordered(["/bin/sh", "-c", fallback])
                stats = _run(second, host, stream, vram, known)
                _sum_up(stats, second, file)
    finally:
        vram.stop()
    raise SystemExit(stats.code)


def _jobs_for(command: list[str], host: Host, jobs: str, known: PastRuns) -> tuple[int, dict[str, str]]:
    """Return the expected memory of a job, and the environment that limits the number of jobs."""
    left = memory_left(host)
    remembered = known.compiler_bytes(capacity.key_of(command))
    expected = capacity.job_bytes(known.compilers, remembered, nvcc=_has_nvcc())
    if jobs == "off":
        return expected, dict(os.environ)
    if jobs != "auto" and not (jobs.isdecimal() and int(jobs)):
        raise Fault("--jobs {jobs}: write a number, auto or off", jobs=jobs)
    processors = len(os.sched_getaffinity(0))
    fitting = capacity.jobs(left.available_bytes, left.total_bytes, expected, processors)
    chosen = fitting if jobs == "auto" else int(jobs)
    facts = {"jobs": chosen, "processors": processors, "free_bytes": left.available_bytes, "job_bytes": expected}
    measured = template("jobs: {jobs} of {processors}, {free_bytes} free and {job_bytes} measured for each")
    guessed = template("jobs: {jobs} of {processors}, {free_bytes} free and {job_bytes} expected for each")
    _say(measured if remembered else guessed, **facts)
    return expected, {**os.environ, **capacity.limits(chosen, os.environ)}


def _run(guarded: GuardedCommand, host: Host, log: BinaryIO, vram: VramWatch, known: PastRuns) -> RunStats:
    peaks, left = _peaks(guarded, host, vram, known), memory_left(host)
    free = {"ram": left.available_bytes + left.swap_bytes}
    if peaks.keys() - free.keys():
        free |= vram.free_by_uuid()
    for what, peak in peaks.items():
        if peak > free.get(what, peak):
            ram = template("an earlier run took {peak_bytes} of memory; {free_bytes} is free now")
            card = template("an earlier run took {peak_bytes} of VRAM; {free_bytes} is free now")
            _say(ram if what == "ram" else card, peak_bytes=peak, free_bytes=free[what])
    name = capacity.short_name(guarded.command)  # arguments may hold secrets, and everybody may read the note
    with Relay(log, live=True) as relay, Note(host, "guard", name, who=name) as note:

        def show(stats: RunStats, left: MemoryLeft, run: GuardedRun) -> None:
            relay.show(_line(stats, left, run, vram))
            pids = [p.pid for p in sorted(run.processes, key=lambda p: -p.bytes)]
            used, limit = {"ram": stats.held_bytes, **vram.taken_bytes(vram.now_bytes)}, guarded.timeout_seconds
            note.tell(
                "waits" if run.stopped else "runs",
                left_seconds=None if limit is None else max(0.0, limit - note.seconds),
                facts={"peak_bytes": stats.peak_bytes, "waiting": run.stopped},
                claim=Claim(peaks, used, pids) if peaks else None,
            )

        return GuardedRun(guarded, host, relay, vram, show).to_end()


def _peaks(guarded: GuardedCommand, host: Host, vram: VramWatch, known: PastRuns) -> dict[str, int]:
    """Return the command's earlier peaks, up to the capacity of this machine."""
    key, jobs, ram = capacity.key_of(guarded.command), _jobs(guarded), most_bytes(host)
    most = {} if ram is None else {"ram": ram}
    peaks = known.peaks(key, jobs, most)
    return known.peaks(key, jobs, most | vram.total_by_uuid()) if peaks.keys() - {"ram"} else peaks


def _jobs(guarded: GuardedCommand) -> int | None:
    number = guarded.environment.get("MAX_JOBS", "")
    return int(number) if number.isdecimal() else None


def _line(stats: RunStats, left: MemoryLeft, run: GuardedRun, vram: VramWatch) -> str:
    limit, now = run.guarded.timeout_seconds, _clock(stats.seconds)
    parts = [t("{elapsed} of {limit}", elapsed=now, limit=_clock(limit)) if limit else now]
    parts.append(t("{left_bytes} left", left_bytes=left.available_bytes))
    if stats.peak_bytes is not None:
        parts.append(t("peak {peak_bytes}", peak_bytes=stats.peak_bytes))
    for index, used in vram.now_bytes.items():
        peak = vram.peak_bytes[index]
        parts.append(t("GPU {gpu} {used_bytes}, peak {peak_bytes}", gpu=index, used_bytes=used, peak_bytes=peak))
    if run.stopped:
        parts.append(current().text(waiting(run.stopped)))
    try:
        width = os.get_terminal_size(2).columns or 80  # a terminal without a size reports 0
    except OSError:
        width = 80
    return chop_cells(f"[guard] {' · '.join(parts)}", max(1, width - 1))[0]


def _sum_up(stats: RunStats, guarded: GuardedCommand, file: Path) -> None:
    command, took = shlex.join(guarded.command)[:60], _clock(stats.seconds)
    if stats.timed_out:
        _say("{command}: time limit reached after {time}", command=command, time=took)
    else:
        _say("{command}: exit status {code} after {time}", command=command, code=stats.code, time=took)
    if (least := stats.least_available_bytes) is not None:
        if (peak := stats.peak_bytes) is None:
            _say("peak RAM unknown: it ended too soon")
        else:
            _say("peak RAM {peak_bytes}", peak_bytes=peak)
        room, share, when = (least, stats.total_bytes), least / stats.total_bytes, _clock(stats.least_at_seconds)
        _say("least left: {room_bytes} ({left_ratio}), after {time}", room_bytes=room, left_ratio=share, time=when)
    if stats.biggest[1]:
        _say("biggest program: {program}, {size_bytes}", program=stats.biggest[0], size_bytes=stats.biggest[1])
    for gpu, top in sorted(stats.vram_peak_bytes.items()):
        own = max(0, top - stats.vram_start_bytes.get(gpu, 0))
        peaks = {"peak_bytes": top, "gpu": gpu, "own_bytes": own}
        _say("peak VRAM {peak_bytes} on GPU {gpu}, {own_bytes} more than before", **peaks)
    if stats.pauses:
        waited = says(
            "compilers had to wait {count} time, {paused_seconds} altogether",
            "compilers had to wait {count} times, {paused_seconds} altogether",
            count=stats.pauses,
            paused_seconds=stats.paused_seconds,
        )
        _say(waited)
    for who, after in stats.saved:
        _say("memory was short after {after_seconds}: asked {who} to save its work", after_seconds=after, who=who)
    if stats.oom_kills:
        killed = says(
            "the kernel killed {count} process for lack of memory: try --pause, or --jobs {jobs}",
            "the kernel killed {count} processes for lack of memory: try --pause, or --jobs {jobs}",
            count=stats.oom_kills,
            jobs=max(1, (_jobs(guarded) or 2) // 2),
        )
        _say(killed)
    for line in stats.explanation:
        _say(line)
    _say("log: {path}", path=str(file))


def _remember(folder: Path, guarded: GuardedCommand, stats: RunStats) -> PastRuns:
    known = past_runs.load(folder)  # reloaded: others may have ended while this one ran
    key = capacity.key_of(guarded.command)
    before = known.commands.get(key, {})
    facts = {
        "seconds": round(stats.seconds, 1),
        "peak_bytes": stats.peak_bytes,
        "compiler_bytes": stats.compiler_bytes,
        "vram_bytes": stats.vram_taken_bytes,
        "jobs": _jobs(guarded),
        "code": stats.code,
    }
    compilers = stats.compilers
    if stats.oom_kills:  # it needs at least this much; a compiler's need is unknown
        peak = max(stats.peak_bytes or 0, before.get("peak_bytes") or 0)
        facts |= {"killed": True, "peak_bytes": peak, "compiler_bytes": before.get("compiler_bytes")}
        compilers = {}
    known.learn(key, facts, compilers)
    try:
        past_runs.save(folder, known)
    except OSError as error:
        _say("cannot save the peaks in {path}: {why}", path=str(folder), why=cause(error))
    return known


def _own_log(folder: Path, command: list[str]) -> tuple[Path, BinaryIO]:
    """Start a log in the state folder, which keeps the last twenty."""
    logs = folder / "guard"
    name = re.sub(r"[^\w.-]+", "-", Path(command[0]).name)[:40]
    new = f"{datetime.now().astimezone():%Y%m%d-%H%M%S}-{name}-{os.getpid()}.log"
    with refused("cannot keep a log in {path}: {why}; name one with --log", path=str(logs)):
        private_files.make_folder(folder)
        private_files.make_folder(logs)
        with safe_files.Folder(logs) as kept:
            # Not by name: a training started twenty builds ago still writes.
            written = {old: _written(kept, old) for old in kept.names(_MAX_LOGS) if old.endswith(".log")}
            for old in sorted(written, key=written.__getitem__)[: -_KEPT_LOGS + 1]:
                kept.remove(old)
            return logs / new, kept.create(new)


def _written(folder: safe_files.Folder, name: str) -> float:
    """Return when a log was last written; one just removed by another guard counts as the oldest."""
    with contextlib.suppress(FileNotFoundError):
        return folder.stat(name).st_mtime
    return 0.0


def _opened(file: Path) -> BinaryIO:
    with refused("cannot write the log {path}: {why}", path=str(file)):
        if file.is_symlink():
            raise Fault(
                "cannot write the log {path}: {why}", path=str(file), why=say("it is a link; name the file itself")
            )
        # In a folder of another user's, root is led to no file elsewhere, and held up by no pipe.
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(file, flags, 0o666)
    os.set_blocking(descriptor, True)
    return os.fdopen(descriptor, "wb", buffering=0)


def _has_nvcc() -> bool:
    homes = filter(None, (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"))
    return any(Path(home, "bin", "nvcc").exists() for home in homes)


def _signal(name: str) -> signal.Signals | None:
    if not name:
        return None
    try:
        return signal.Signals[f"SIG{name.upper().removeprefix('SIG')}"]
    except KeyError as error:
        raise Fault("--save-signal {name}: there is no such signal; USR1 is the usual one", name=name) from error


def _clock(seconds: float) -> str:
    """Format a duration with seconds, as a running clock."""
    minutes, rest = divmod(int(seconds), 60)
    if minutes >= 60:
        return t("{hours} h {minutes} min", hours=minutes // 60, minutes=f"{minutes % 60:02}")
    if minutes:
        return t("{minutes} min {seconds} s", minutes=minutes, seconds=f"{rest:02}")
    return t("{number} s", number=rest)


def _say(said: str | Message, **facts: Fact) -> None:
    text = current().text(Message(said, facts) if isinstance(said, str) else said)
    with contextlib.suppress(OSError):  # a full disk behind 2>FILE must not change the command's exit status
        os.write(2, f"[guard] {printable(masked(text))}\n".encode())
