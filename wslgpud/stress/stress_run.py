"""One stress run from the first gate to the result."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

from wslgpud.active_runs import Note
from wslgpud.config import Stress
from wslgpud.host import Host, NoData, SourceError
from wslgpud.model import GpuSample, StressResult
from wslgpud.probes.nvml_calls import RARELY
from wslgpud.sources.procfs import OwnedFiles
from wslgpud.stress import conditions
from wslgpud.stress.comparison import judged
from wslgpud.stress.conditions import GpuLock, LockError, obstacles, reason_to_leave
from wslgpud.stress.find_python import NoTorch, command, find_python
from wslgpud.stress.parent import WATCH_SECONDS, WORKER, Line, supervise
from wslgpud.stress.result import Frame, WorkerOutput, digest, sold_bytes
from wslgpud.stress.telemetry import ECC, Recent
from wslgpud.words import MessageError, MessageLike, cause, clauses, say

MIB, GIB = 1 << 20, 1 << 30
Mode = Literal["quick", "nightly", "full"]
MODES: tuple[Mode, ...] = get_args(Mode)

#: Increase it when the worker measures differently: older runs are not comparable then.
ENGINE = "1"
#: shares of a 16 GB card: 2, 5, 8, 10, 12 and 14 GB, from users' own notes
LADDER = (1 / 8, 5 / 16, 1 / 2, 5 / 8, 3 / 4, 7 / 8)
_NIGHTLY = ("solid", "checkerboard", "walking", "address", "random", "move", "modulo", "retention")
PASSES: Mapping[Mode, tuple[str, ...]] = {
    "quick": ("solid", "address"),
    "nightly": _NIGHTLY,
    "full": (*_NIGHTLY, "random", "walking", "random", "address", "move", "random"),
}
#: how often a chunk is timed, number of the modulo pattern's twenty offsets, how long memory is left idle
EFFORT: Mapping[Mode, Mapping[str, float]] = {
    "quick": {"repeats": 2, "offsets": 0, "retention_seconds": 0.0},
    "nightly": {"repeats": 3, "offsets": 2, "retention_seconds": 2.0},
    "full": {"repeats": 3, "offsets": 20, "retention_seconds": 15.0},
}
#: A kernel on a chunk must be long relative to its launch, and on a chunk behind PCIe short relative to the 2 s after
#: which Windows resets the driver.
CHUNK_BYTES, LARGE_CARD_BYTES, LARGE_CHUNK_BYTES = 256 * MIB, 64 * GIB, GIB
#: how long NVML may still show memory in use after the worker's end
AFTER_SECONDS = 5.0
#: how long the next sample may take once it is due
COUNTERS_SECONDS = 5.0
#: share of the bytes after which the remaining time can be estimated
_SURE_SHARE = 0.05


def reserve_bytes(total_bytes: int, setting: int, *, wsl: bool) -> int:
    """Return the bytes that must stay free.

    Under WSL2 allocations fail, and the desktop is paged out, before a card is full: with 2 GB left of 16 on one
    machine (microsoft/WSL#41176). On native Linux only the driver's own small needs must fit.
    """
    if setting:
        return setting
    return max(512 * MIB, total_bytes // 16) if wsl else 64 * MIB


def ladder(total_bytes: int) -> list[int]:
    """Return the sizes to try as single tensors, in whole MiB, from the card's nominal size."""
    return [int(sold_bytes(total_bytes) * share) // MIB * MIB for share in LADDER]


def job_of(sample: GpuSample, settings: Stress, mode: Mode, *, wsl: bool) -> dict[str, Any]:
    total = sample.total_bytes or 0
    return {
        "device": "cuda:0",
        "reserve": reserve_bytes(total, settings.reserve_bytes, wsl=wsl),
        "chunk": LARGE_CHUNK_BYTES if total >= LARGE_CARD_BYTES else CHUNK_BYTES,
        "ladder": ladder(total),
        "passes": PASSES[mode],
        **EFFORT[mode],
        "soak_seconds": settings.soak_seconds if mode == "full" else 0.0,
        "beyond": 2 if settings.probe_beyond else 0,
        "seed": random.getrandbits(60),
    }


class NotNow(MessageError):
    """A run must not begin; the message says why."""


@dataclass
class Runner:
    host: Host
    settings: Stress
    state_folder: Path
    recent: Recent
    earlier: Callable[[], Sequence[StressResult]] = tuple  # earlier runs, oldest first
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    worker: Path = WORKER
    lock_folder: Path | None = None
    stop: threading.Event = field(default_factory=threading.Event)  # ends a run under way
    # takes a sample now, including error counters, which are read once per minute
    look: Callable[[], object] | None = None

    def __post_init__(self) -> None:
        self.files = OwnedFiles(self.host)

    def run(self, sample: GpuSample, mode: Mode, progress: Callable[[Line], None] = lambda _: None) -> StressResult:
        lock = GpuLock(sample.index, self.lock_folder)
        try:
            with self.recent.following(sample.uuid) as course:
                with lock.held() as ours:
                    if not ours:
                        holders = lock.holders(self.host) or [say("another program")]
                        locked = say("the GPU is locked by {holders}", holders=tuple(holders))
                        return self._skipped(sample, mode, locked)
                    title, folder = f"GPU {sample.index} {sample.name}", self.state_folder
                    with Note(self.host, "stress", title, state_folder=folder, gpu=sample.index) as note:
                        self._check_conditions(sample)
                        done, frame, earlier = self._run_worker(sample, mode, lock, note, progress)
                        course.over = True
                        after = self._after(frame.before)
                if ECC in course.last and self.look is None:
                    self.stop.wait(RARELY + COUNTERS_SECONDS)
        except (NoTorch, LockError, NotNow) as error:
            return self._skipped(sample, mode, cause(error))
        except (OSError, NoData, SourceError) as error:
            return self._skipped(sample, mode, say("cannot read the state of this machine: {why}", why=cause(error)))
        return judged(digest(done, replace(frame, after=after, course=course)), earlier)

    def _check_conditions(self, sample: GpuSample) -> GpuSample:
        """Return the card's latest sample. Raises NotNow: a run must not begin now."""
        now = self.host.clock.mono()
        silent = self.recent.silent_seconds(sample.uuid, now) > conditions.SILENT_SECONDS
        samples = [] if silent else self.recent.samples(sample.uuid)
        against = obstacles(
            self.settings,
            samples,
            holders=conditions.users(self.files, os.getpid()),
            on_battery=conditions.on_battery(self.host),
            hung_since_boot=conditions.still_hung(self.state_folder, self.host),
        )
        if reasons := [*self.recent.unrest(now), *against]:
            raise NotNow(clauses(reasons))
        return samples[-1]

    def _settle(self, uuid: str, lock: GpuLock) -> None:
        """Wait until the card has been watched for long enough, unless another program wants it before."""
        settled = self.recent.watched_since(uuid) + self.settings.settle_seconds
        while self.host.clock.mono() < settled:
            if lock.wanted(self.host) or self.stop.wait(WATCH_SECONDS):
                return

    def _skipped(self, sample: GpuSample, mode: Mode, reason: MessageLike) -> StressResult:
        wall, key = self.host.clock.wall(), self._key(sample, mode)
        return StressResult(wall, sample.uuid, sample.index, sample.name, "skipped", reason, key=key)

    def _key(self, sample: GpuSample, mode: Mode) -> dict[str, str]:
        wsl = "yes" if self.host.exists(conditions.WSL_DEVICE) else "no"
        # Memory deliberately left free is no loss: nights with another reserve are not comparable.
        reserve = {"reserve_bytes": str(self.settings.reserve_bytes)} if self.settings.reserve_bytes else {}
        driver = self.recent.driver(sample.uuid)
        return {**reserve, "driver": driver, "mode": mode, "engine": ENGINE, "wsl": wsl}

    def _run_worker(
        self, sample: GpuSample, mode: Mode, lock: GpuLock, note: Note, progress: Callable[[Line], None]
    ) -> tuple[WorkerOutput, Frame, Sequence[StressResult]]:
        python, before = find_python(self.settings.python, self.environ, self.state_folder), sample
        earlier: Sequence[StressResult] = ()
        clock, own, known = self.host.clock, os.getpid(), frozenset(self.host.names("/proc"))
        wall, started = clock.wall(), clock.mono()
        job = job_of(sample, self.settings, mode, wsl=self.host.exists(conditions.WSL_DEVICE))
        pace = WorkerPace(job["soak_seconds"], started)

        def settled() -> Mapping[str, Any]:
            nonlocal before, earlier
            earlier = self.earlier()
            self._settle(sample.uuid, lock)
            before, pace.began = self._check_conditions(sample), clock.mono()
            return job

        def watch() -> MessageLike:
            if self.stop.is_set():
                return say("wslgpud is shutting down")
            error = self.recent.last_error_mono
            return reason_to_leave(
                conditions.users(self.files, own, known),
                waiting=lock.wanted(self.host),
                gpu_errors=error is not None and error >= started,
                silent_seconds=self.recent.silent_seconds(sample.uuid, clock.mono()),
            )

        done = supervise(
            command(python, sample.uuid, self.environ),
            settled,
            script=self.worker,
            deadline_seconds=self.settings.deadline_seconds + job["soak_seconds"],
            watch=watch,
            started=note.worker,
            progress=reporting(note, pace, clock.mono, progress),
        )
        if done.hung_pid is not None:
            conditions.note_hung(self.state_folder, self.host, done.hung_pid)
        return done, Frame(wall, before, self._key(sample, mode)), earlier

    def _after(self, before: GpuSample) -> GpuSample | None:
        """Return the GPU sample once the worker's memory is free, or the latest after a timeout."""
        asked = self.host.clock.mono()
        while True:
            if self.look is not None:
                self.look()
            last = self.recent.last(before.uuid)
            fresh = last[1] if last is not None and last[0] >= asked else None
            back = fresh is not None and (fresh.used_bytes or 0) <= (before.used_bytes or 0) + (64 << 20)
            if back or self.host.clock.mono() >= asked + AFTER_SECONDS or self.stop.wait(0.1):
                return fresh


def reporting(
    note: Note, pace: WorkerPace, now: Callable[[], float], progress: Callable[[Line], None]
) -> Callable[[Line], None]:
    """Wrap ``progress`` so that it also updates the note and tracks the run's progress."""

    def report(line: Line) -> None:
        pace.observe(line, now())
        if line["event"] == "beat":
            done, left = pace.done_ratio, pace.left_seconds
            facts = {"verified_bytes": line["verified"]} if "verified" in line else {}
            note.tell(line.get("phase", ""), done_ratio=done, left_seconds=left, facts=facts)
            line = {**line, "done_ratio": done, "left_seconds": left}
        progress(line)

    return report


@dataclass(slots=True)
class WorkerPace:
    """Extrapolates bytes at the pace so far; the soak has a fixed duration.

    On a fast card, waiting is most of a run: by bytes alone, an H200 seemed done for the last 30 of its 65 s.
    """

    soak_seconds: float
    began: float
    planned: int = 0
    done_ratio: float | None = None
    left_seconds: float | None = None
    _filled: float = 0.0
    _soak_end: float | None = None

    def observe(self, line: Mapping[str, Any], now: float) -> None:
        """Take a line of the worker; another version's may have fewer fields."""
        traversed = line.get("traversed", 0)
        if line["event"] == "filled":
            self.planned, self._filled = line.get("planned", 0), now
        if line["event"] != "beat" or not self.planned or traversed < _SURE_SHARE * self.planned:
            return
        if line.get("phase") == "soak":
            self._soak_end = self._soak_end or now + self.soak_seconds
            left = max(0.0, self._soak_end - now)
        else:
            left = self.soak_seconds + max(0, self.planned - traversed) * (now - self._filled) / traversed
        self.left_seconds = left
        share = (now - self.began) / max(now - self.began + left, 1e-9)
        self.done_ratio = max(self.done_ratio or 0.0, share)  # a bar that moves backwards looks broken
