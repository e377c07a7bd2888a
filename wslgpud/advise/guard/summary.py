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
from typing import TYPE_CHECKING, NamedTuple

from wslgpud.active_runs import waiting
from wslgpud.advise.guard.relay import TAIL_BYTES
from wslgpud.advise.guard.usage import CardUse, MemoryLeft, RunStats, VramWatch
from wslgpud.toml import tomllib
from wslgpud.words import Message, MessageLike, say, says, template

if TYPE_CHECKING:
    from wslgpud.advise.guard.runner import GuardedCommand, GuardedRun

#: with less in use nobody can say that VRAM ran out
_HALF_RATIO = 0.5
_SIGKILL_STATUS, _SIGBUS_STATUS = 128 + 9, 128 + 7
#: a terminal's colours and cursor movements
_ESCAPES = re.compile(rb"\x1b\[[0-9;?]*[ -/]*[@-~]")
_SIZE = re.compile(r"([\d.]+)\s*([KMGT]?)i?B?")
_SCALES = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}

#: under WSL2 allocations may fail although VRAM is free
_REFUSED = template(
    "CUDA reports out of memory with VRAM free: Windows refused it. Less pinned memory helps (pin_memory=False, no CPU "
    "offload), as do fewer CUDA programs and a larger page file in Windows; else wsl --shutdown there"
)
_HALF_EMPTY = template(
    "out of memory is reported with no card even half full: one allocation larger than the rest, or a limit of its own "
    "(a memory fraction, a MIG slice)"
)
_KILLED_FOR_RAM = template("the kernel killed one of its processes: RAM ran out")
_KILLED = template(
    "one of its processes was killed (SIGKILL), as the kernel does when RAM or a cgroup's limit runs out[; at the "
    "lowest, {least_bytes} was left]"
)
_SHM = template("shared memory (/dev/shm) is full: use fewer workers, or give the container more (--shm-size)")
#: causes that say VRAM ran out, which a half empty card refutes
_OF_VRAM = frozenset({"vram", "layers", "segments", "vllm_start"})
#: cause (see failures.toml) -> advice
_ADVICE = {
    "card_used_up": template(
        "the card's memory was used up, even if some looks free: stay below about 80 % of it, and do not retry, "
        "which has crashed Windows"
    ),
    "address_space": template(
        "the driver or Windows refused to reserve addresses, whatever VRAM is free: llama.cpp runs when built with "
        "GGML_CUDA_NO_VMM=ON, PyTorch with expandable_segments:False"
    ),
    "pinned": template("the driver could not pin that much RAM: pin_memory=False, or less offload to the CPU"),
    "loader_killed": template(
        "RAM ran out and the kernel killed a data loader's worker: use fewer workers (num_workers)"
    ),
    "compiler_killed": template("a compiler ran out of RAM: fewer jobs at once (--jobs), or --pause"),
    "vllm_share": template(
        "less VRAM is free than the share it is told to take: lower gpu_memory_utilization, or free VRAM elsewhere "
        "(under WSL2, in Windows, too)"
    ),
    "vllm_cache": template(
        "no VRAM is left for the KV cache of that context: a shorter one (max_model_len), or a larger share "
        "(gpu_memory_utilization)"
    ),
    "vllm_start": template("VRAM ran out at the start: lower max_num_seqs or gpu_memory_utilization"),
    "segments": template(
        "VRAM ran out while one of PyTorch's expandable segments grew: a smaller batch, or expandable_segments:False"
    ),
    "layers": template("VRAM ran out: fewer layers on the GPU, or a shorter context"),
    "vram": template("VRAM ran out: a smaller batch or a shorter context"),
    "on_chip": template("a kernel needs more of the card's on-chip memory than it has, not VRAM: smaller blocks"),
    "arch": template(
        "the program was built without kernels for this card: install a build that has them (for the RTX 50 series, "
        "sm_120: CUDA 12.8 or newer)"
    ),
    "ecc": template("the card's memory has errors that cannot be corrected: 'wslgpud stress' tests it"),
    "lost": template(
        "the card stopped answering, not for lack of memory: power, heat or a fault; restart the machine (under WSL2, "
        "Windows)"
    ),
    "timed_out": template(
        "the driver ended a CUDA kernel that ran too long, not for lack of memory: shorter kernels, or no display on "
        "that card"
    ),
    "program": template(
        "a CUDA kernel of the program failed, not for lack of memory: CUDA_LAUNCH_BLOCKING=1 shows where"
    ),
    "launch": template(
        "a CUDA kernel failed, not for lack of memory: the driver was reset, clocks are unstable, or the program has a "
        "fault (CUDA_LAUNCH_BLOCKING=1 shows where)"
    ),
    "driver": template(
        "the GPU driver does not respond properly, as after its upgrade: restart the machine (under WSL2, "
        "wsl --shutdown in Windows)"
    ),
    "old_driver": template(
        "the driver (under WSL2, that of Windows) is older than the program's CUDA: update it, or install a build for "
        "an older CUDA"
    ),
    "no_cuda": template("the program finds no card, or was built without CUDA: 'wslgpud doctor' shows which"),
    "system_memory": template(
        "RAM is too small for that model: a smaller one, or more RAM (under WSL2, a larger memory= in .wslconfig)"
    ),
    "shm": _SHM,
    "files": template(
        "too many files were open, not for lack of memory: ulimit -n 65536, or "
        "torch.multiprocessing.set_sharing_strategy('file_system')"
    ),
    "threads": template("no further thread or process was allowed, not for lack of memory: see ulimit -u"),
    "mappings": template(
        "the kernel refused a mapping: too many of them (sysctl vm.max_map_count), a limit (ulimit -v), or RAM"
    ),
    "wsl_service": template(
        "WSL's service in Windows failed: save your work, then wsl --shutdown there, and wsl --update"
    ),
    "disk_full": template(
        "a disk is full: 'df -h' shows which; under WSL2 the Windows drive of the virtual disk counts, too"
    ),
    "heap": template("the program reached its own heap limit, not the machine's: raise --max-old-space-size or -Xmx"),
    "ram": template("the program could not allocate more RAM"),
}


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
        yield Message(_SHM)
    if wording is None or wording.cause not in _OF_VRAM:
        for card in stats.cards:
            if card.full:
                used = (card.used_bytes, card.total_bytes)
                yield say("GPU {gpu} was full at the end: {used_bytes} in use", gpu=card.index, used_bytes=used)


def recognised(output: bytes) -> Wording | None:
    """Return the failure that the end of an output tells; None where nothing is recognised."""
    text = _ESCAPES.sub(b"", output[-TAIL_BYTES:]).decode("utf-8", "replace")
    for cause, patterns in _table():
        if cause == "harmless":
            for pattern in patterns:
                text = pattern.sub("", text)
            continue
        for pattern in patterns:
            # The last one counts: programs catch the first, and try again.
            last = max(pattern.finditer(text), key=lambda match: match.start(), default=None)
            if last is not None:
                sizes = last.groupdict()
                return Wording(cause, _bytes(sizes.get("asked")), _bytes(sizes.get("free")))
    return None


def _advice(wording: Wording, stats: RunStats, *, wsl: bool) -> Message:
    if wording.cause == "killed":
        return _killed(stats)
    if wording.cause in _OF_VRAM and _refuted(wording, stats.cards):
        return Message(_REFUSED if wsl else _HALF_EMPTY)
    roomy = wording.asked_bytes and (wording.free_bytes or 0) > wording.asked_bytes
    return Message(_REFUSED if wsl and (roomy or wording.cause == "pinned") else _ADVICE[wording.cause])


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
        return Message(_KILLED_FOR_RAM)
    least = stats.least_available_bytes
    return Message(_KILLED, {} if least is None else {"least_bytes": (least, stats.total_bytes)})


@cache
def _table() -> Sequence[tuple[str, Sequence[re.Pattern[str]]]]:
    rows = tomllib.loads(Path(__file__).with_name("failures.toml").read_text(encoding="utf-8"))["row"]
    return [(row["cause"], [re.compile(pattern, re.MULTILINE) for pattern in row["patterns"]]) for row in rows]


def _bytes(amount: str | None) -> float | None:
    match = _SIZE.match(amount.replace(",", "")) if amount else None
    return float(match[1]) * _SCALES[match[2]] if match else None
