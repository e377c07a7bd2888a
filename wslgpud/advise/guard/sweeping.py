"""Runs a command with one value after the other, until one fails or would not fit."""

from __future__ import annotations

import os
import shlex
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO

from wslgpud.advise.guard import capacity
from wslgpud.advise.guard.capacity import SweepStep
from wslgpud.advise.guard.relay import Relay
from wslgpud.advise.guard.runner import GuardedCommand, GuardedRun
from wslgpud.advise.guard.usage import VramWatch, memory_left
from wslgpud.config import Config
from wslgpud.host import Host
from wslgpud.words import MessageLike, say

_LAST_LINES = 5


@dataclass(slots=True)
class Sweep:
    """A command with ``{}`` for the value, on a machine with this card.

    After the runs ``end`` says why they ended early, and ``last_lines`` are the last ones of a command that failed.
    """

    host: Host
    config: Config
    command: str
    gpu: int = 0
    timeout_seconds: float | None = None
    anyway: bool = False
    end: MessageLike = ""
    last_lines: Sequence[str] = ()

    def run(self, values: Sequence[str]) -> Iterator[SweepStep]:
        """Yield the figures of each value."""
        steps: list[SweepStep] = []
        for value in values:
            vram = VramWatch(self.host, self.config)
            vram.start()
            try:
                left = memory_left(self.host)
                free = left.available_bytes - capacity.reserve(left.total_bytes)
                reason = capacity.too_much(steps, value, free, vram.free_bytes(self.gpu))
                if reason and not self.anyway:
                    self.end = reason
                    return
                with tempfile.TemporaryFile(buffering=0) as log:
                    step, interrupted = self.step(value, vram, log)
                    steps.append(step)
                    yield step
                    if interrupted:  # even if the command then succeeded: Ctrl-C means stop
                        self.end = say("interrupted at {value}", value=value)
                    elif step.code:
                        self.end = say("{value} ended with status {code}", value=value, code=step.code)
                        self.last_lines = tail(log)
                    if self.end:
                        return
            finally:
                vram.stop()

    def step(self, value: str, vram: VramWatch, log: BinaryIO) -> tuple[SweepStep, bool]:
        """Run the command with one value; also return whether it was interrupted."""
        line = self.command.replace("{}", shlex.quote(value))
        guarded = GuardedCommand(["/bin/sh", "-c", line], dict(os.environ), self.timeout_seconds)
        with Relay(log, live=True, quiet=True) as relay:
            relay.show(f"[sweep] {line}"[:79])
            stats = GuardedRun(guarded, self.host, relay, vram).to_end()
        peak, start = stats.vram_peak_bytes.get(self.gpu), stats.vram_start_bytes.get(self.gpu)
        own = None if peak is None or start is None else max(0, peak - start)
        return SweepStep(value, stats.code, round(stats.seconds, 2), stats.peak_bytes, own), stats.interrupted


def tail(log: BinaryIO) -> list[str]:
    """Return the last lines of a log."""
    log.seek(0)
    return log.read()[-4096:].decode("utf-8", "replace").splitlines()[-_LAST_LINES:]
