"""What there is to say of a guarded run: while it lasts, and at its end; if it failed, why.

The reason follows from measurements and from the last lines: foreign text, trusted only for advice; a measurement
overrules it. Pure, but for the table of wordings.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from wslgpud.active_runs import waiting
from wslgpud.advise.guard.relay import TAIL_BYTES
from wslgpud.advise.guard.usage import CardUse, MemoryLeft, RunStats, VramWatch
from wslgpud.toml import tomllib
from wslgpud.words import Message, MessageLike, say, says

if TYPE_CHECKING:
    from wslgpud.advise.guard.runner import GuardedCommand, GuardedRun

#: with less in use nobody can say that VRAM ran out
_HALF_RATIO = 0.5
_SIGKILL_STATUS, _SIGBUS_STATUS = 128 + 9, 128 + 7
#: a terminal's colours and cursor movements
_ESCAPES = re.compile(rb"\x1b\[[0-9;?]*[ -/]*[@-~]")
_SIZE = re.compile(r"([\d.]+)\s*([KMGT]?)i?B?")
_SCALES = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}

#: causes that say VRAM ran out, which a half empty card refutes
_OF_VRAM = frozenset({"vram", "layers", "segments", "vllm_start"})


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
    """Yield the lines that sum up a run."""
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


class Wording(NamedTuple):
    """A recognised failure: its cause, and the bytes that were asked for and free, where the message says."""

    cause: str
    asked_bytes: float | None = None
    free_bytes: float | None = None


def explanation(output: bytes, stats: RunStats, *, wsl: bool) -> Iterator[Message]:
    """Yield the lines of a summary that say why a run failed; none where nothing is known."""
    wording = recognised(output)
    if wording is not None:
        yield say("by its last lines: {failure}", failure=_advice(wording, stats, wsl=wsl))
    elif stats.code == _SIGKILL_STATUS and not stats.oom_kills:  # the summary counts the kernel's own
        yield _killed(stats)
    elif stats.code == _SIGBUS_STATUS:
        yield Message(failures()["advice"]["shm"])
    if wording is None or wording.cause not in _OF_VRAM:
        for card in stats.cards:
            if card.full:
                used = (card.used_bytes, card.total_bytes)
                yield say("GPU {gpu} was full at the end: {used_bytes} in use", gpu=card.index, used_bytes=used)


def recognised(output: bytes) -> Wording | None:
    """Return the failure that the end of an output tells; None where nothing is recognised."""
    text = _ESCAPES.sub(b"", output[-TAIL_BYTES:]).decode("utf-8", "replace")
    for row in failures()["row"]:
        if row["cause"] == "harmless":
            for pattern in row["patterns"]:
                text = pattern.sub("", text)
            continue
        for pattern in row["patterns"]:
            # The last one counts: programs catch the first, and try again.
            last = max(pattern.finditer(text), key=lambda match: match.start(), default=None)
            if last is not None:
                sizes = last.groupdict()
                return Wording(row["cause"], _bytes(sizes.get("asked")), _bytes(sizes.get("free")))
    return None


def _advice(wording: Wording, stats: RunStats, *, wsl: bool) -> Message:
    cause = wording.cause
    if cause == "killed":
        return _killed(stats)
    roomy = wording.asked_bytes and (wording.free_bytes or 0) > wording.asked_bytes
    if cause in _OF_VRAM and _refuted(wording, stats.cards):
        cause = "refused" if wsl else "half_empty"
    elif wsl and (roomy or cause == "pinned"):
        cause = "refused"
    return Message(failures()["advice"][cause])


def _refuted(wording: Wording, cards: Sequence[CardUse]) -> bool:
    """Return whether no card was even half full, and the requested memory would have fitted.

    A card that was filling may have been full a moment after the last sample.
    """
    asked = wording.asked_bytes or 0
    return bool(cards) and all(
        one.used_bytes + one.rise_bytes < _HALF_RATIO * one.total_bytes and asked < one.total_bytes - one.used_bytes
        for one in cards
    )


def _killed(stats: RunStats) -> Message:
    if stats.oom_kills:
        return Message(failures()["advice"]["killed_for_ram"])
    least = stats.least_available_bytes
    facts = {} if least is None else {"least_bytes": (least, stats.total_bytes)}
    return Message(failures()["advice"]["killed"], facts)


@cache
def failures() -> dict[str, Any]:
    """Return the table of failures: the advice by cause, and the rows in their order."""
    table: dict[str, Any] = tomllib.loads(Path(__file__).with_name("failures.toml").read_text(encoding="utf-8"))
    for row in table["row"]:
        row["patterns"] = [re.compile(pattern, re.MULTILINE) for pattern in row["patterns"]]
    return table


def _bytes(amount: str | None) -> float | None:
    match = _SIZE.match(amount.replace(",", "")) if amount else None
    return float(match[1]) * _SCALES[match[2]] if match else None
