"""Runs a command with one value after the other, until one fails or would not fit."""

from __future__ import annotations

import math
import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from wslgpud.advise.guard.relay import Relay
from wslgpud.advise.guard.runner import GuardedCommand, GuardedRun
from wslgpud.advise.guard.tree import reserve
from wslgpud.advise.guard.usage import VramWatch, memory_left
from wslgpud.config import Config
from wslgpud.host import Host
from wslgpud.words import Fact, Message, MessageLike, say

_LAST_LINES = 5
#: Margin on top of predictions: allocators take memory in steps.
CAUTION = 1.05


@dataclass(frozen=True, slots=True)
class SweepStep:
    """A value and the memory of its run, None where unknown; VRAM in addition to that used before."""

    value: str
    code: int
    seconds: float
    ram_bytes: int | None
    vram_bytes: int | None


def _number(value: str) -> float | None:
    """Return a value of a sweep as a number, if it is a finite one."""
    try:
        number = float(value)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def predict(points: Sequence[tuple[float, int]], value: float) -> int | None:
    """Return the predicted memory of ``value``: on the line through the last two points, at least the last one.

    Memory grows with a batch by a constant for each sample on top of a fixed part; one point determines neither. Where
    growth accelerates (attention without flash), the last two are the steepest.
    """
    known = sorted(points)[-2:]
    if len(known) < 2 or known[0][0] == known[1][0]:
        return None
    (x0, y0), (x1, y1) = known
    slope = max(0.0, (y1 - y0) / (x1 - x0))
    return max(y1 if value >= x1 else 0, round(y1 + slope * (value - x1)))


def too_much(
    steps: Sequence[SweepStep], value: str, ram_room_bytes: int, vram_room_bytes: int | None
) -> Message | None:
    """Return why the next value will not fit; None: it fits, or is unknown."""
    new = _number(value)
    if new is None:
        return None
    known = [(x, step) for step in steps if step.code == 0 and (x := _number(step.value)) is not None]
    ram = predict([(x, step.ram_bytes) for x, step in known if step.ram_bytes is not None], new)
    vram = predict([(x, step.vram_bytes) for x, step in known if step.vram_bytes is not None], new)
    if vram is not None and vram_room_bytes is not None and vram * CAUTION > vram_room_bytes:
        need: dict[str, Fact] = {"value": value, "need_bytes": vram, "free_bytes": vram_room_bytes}
        return say("{value} would take {need_bytes} of VRAM, but only {free_bytes} is free: stopped before it", **need)
    if ram is not None and ram * CAUTION > ram_room_bytes:
        need = {"value": value, "need_bytes": ram, "free_bytes": ram_room_bytes}
        return say("{value} would take {need_bytes} of RAM, but only {free_bytes} is free: stopped before it", **need)
    return None


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

    def run(self, values: Sequence[str]) -> list[SweepStep]:
        """Return the figures of each value that was tried."""
        steps: list[SweepStep] = []
        for value in values:
            with VramWatch(self.host, self.config) as vram:
                left = memory_left(self.host)
                free = left.available_bytes - reserve(left.total_bytes)
                vram_free = next((one.free_bytes for one in vram.first_answer() if one.index == self.gpu), None)
                reason = too_much(steps, value, free, vram_free)
                if reason and not self.anyway:
                    self.end = reason
                else:
                    steps.append(self.step(value, vram))
            if self.end:
                break
        return steps

    def step(self, value: str, vram: VramWatch) -> SweepStep:
        """Run the command with one value."""
        line = self.command.replace("{}", shlex.quote(value))
        guarded = GuardedCommand(["/bin/sh", "-c", line], dict(os.environ), self.timeout_seconds)
        with Relay(None, quiet=True) as relay:
            relay.show(f"[sweep] {line}"[:79])
            stats = GuardedRun(guarded, self.host, relay, vram).to_end()
        if stats.interrupted:  # even if the command then succeeded: Ctrl-C means stop
            self.end = say("interrupted at {value}", value=value)
        elif stats.code:
            self.end = say("{value} ended with status {code}", value=value, code=stats.code)
            self.last_lines = relay.tail.decode("utf-8", "replace").splitlines()[-_LAST_LINES:]
        own = next((card.taken_bytes for card in stats.cards if card.index == self.gpu), None)
        return SweepStep(value, stats.code, round(stats.seconds, 2), stats.peak_bytes, own)
