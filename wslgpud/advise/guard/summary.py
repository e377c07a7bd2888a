"""What there is to say of a guarded run: while it lasts, and at its end."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from datetime import timedelta

from wslgpud.active_runs import waiting
from wslgpud.advise.guard.runner import GuardedCommand, GuardedRun
from wslgpud.advise.guard.usage import MemoryLeft, RunStats, VramWatch
from wslgpud.words import Message, MessageLike, say, says


def progress(stats: RunStats, left: MemoryLeft, run: GuardedRun, vram: VramWatch) -> Iterator[MessageLike]:
    """Yield the state of a run that lasts."""
    limit, now = run.guarded.timeout_seconds, clock(stats.seconds)
    yield say("{elapsed} of {limit}", elapsed=now, limit=clock(limit)) if limit else now
    yield say("{left_bytes} left", left_bytes=left.available_bytes)
    if stats.peak_bytes is not None:
        yield say("peak {peak_bytes}", peak_bytes=stats.peak_bytes)
    for card in vram.cards:
        if card.now_bytes is not None:
            used = {"used_bytes": card.now_bytes, "peak_bytes": card.peak_bytes}
            yield say("GPU {gpu} {used_bytes}, peak {peak_bytes}", gpu=card.index, **used)
    if run.stopped:
        yield waiting(run.stopped)


def summary(stats: RunStats, guarded: GuardedCommand) -> Iterator[Message]:
    """Yield what is known of a run that has ended."""
    command, took = shlex.join(guarded.command)[:60], clock(stats.seconds)
    if stats.timed_out:
        yield say("{command}: time limit reached after {time}", command=command, time=took)
    else:
        yield say("{command}: exit status {code} after {time}", command=command, code=stats.code, time=took)
    if (least := stats.least_available_bytes) is not None:
        if (peak := stats.peak_bytes) is None:
            yield say("peak RAM unknown: it ended too soon")
        else:
            yield say("peak RAM {peak_bytes}", peak_bytes=peak)
        room, share, when = (least, stats.total_bytes), least / stats.total_bytes, clock(stats.least_at_seconds)
        yield say("least left: {room_bytes} ({left_ratio}), after {time}", room_bytes=room, left_ratio=share, time=when)
    if stats.biggest[1]:
        yield say("biggest program: {program}, {size_bytes}", program=stats.biggest[0], size_bytes=stats.biggest[1])
    for card in stats.cards:
        peaks = {"peak_bytes": card.peak_bytes, "gpu": card.index, "own_bytes": card.taken_bytes}
        yield say("peak VRAM {peak_bytes} on GPU {gpu}, {own_bytes} more than before", **peaks)
    if stats.pauses:
        yield says(
            "compilers had to wait {count} time, {paused_seconds} altogether",
            "compilers had to wait {count} times, {paused_seconds} altogether",
            count=stats.pauses,
            paused_seconds=stats.paused_seconds,
        )
    for who, after in stats.saved:
        yield say("memory was short after {after_seconds}: asked {who} to save its work", after_seconds=after, who=who)
    if stats.oom_kills:
        yield says(
            "the kernel killed {count} process for lack of memory: try --pause, or --jobs {jobs}",
            "the kernel killed {count} processes for lack of memory: try --pause, or --jobs {jobs}",
            count=stats.oom_kills,
            jobs=max(1, (guarded.jobs or 2) // 2),
        )
    yield from stats.explanation


def clock(seconds: float) -> str:
    """Format a duration as a running clock: ``1:02:05``."""
    return str(timedelta(seconds=int(seconds)))
