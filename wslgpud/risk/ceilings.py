"""Where the memory of a card really ends, learned from allocations that failed there."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from wslgpud.model import GpuSample
from wslgpud.risk.headroom import gpu_key, gpu_used
from wslgpud.risk.settings import RiskSettings

TREND_SECONDS = 60.0
FALL_SECONDS = 10.0
"""A program that ran out of memory is gone, or has given it back, within this."""


class Ceiling(NamedTuple):
    """The most that a card has given, in bytes; ``probable`` where the failure itself was not seen."""

    used_bytes: int
    certainty: Literal["seen", "probable"]


class Failure(NamedTuple):
    """An allocation that has probably failed: ``program`` ended, or gave memory back, with the card full."""

    resource: str
    uuid: str
    used_bytes: int
    program: str


@dataclass(slots=True)
class _Card:
    """The last minute of a card: (time, used bytes), when it was full, and its programs with their names."""

    full_t: float = -math.inf
    seen: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=128))
    programs: Mapping[int, str] = field(default_factory=dict)
    gone: tuple[float, str] | None = None


class Ceilings:
    """What was learned of each card, by what it is remembered by."""

    def __init__(self, settings: RiskSettings) -> None:
        """Start with nothing known."""
        self._settings = settings
        self._known: dict[str, Ceiling] = {}
        self._cards: dict[str, _Card] = {}

    @property
    def bytes_by_key(self) -> dict[str, int]:
        """The learned ceilings in bytes."""
        return {key: ceiling.used_bytes for key, ceiling in self._known.items()}

    def certainty(self, key: str) -> Literal["", "seen", "probable"]:
        """Tell how a card's ceiling is known: "" where it is not learned."""
        ceiling = self._known.get(key)
        return ceiling.certainty if ceiling else ""

    def failed(self, key: str, used: int, total: int) -> None:
        """Learn from an allocation that failed with so much in use."""
        if used >= (1.0 - self._settings.learn_ceiling_below) * total:
            self._known[key] = Ceiling(used, "seen")

    def look(self, t: float, gpu: GpuSample, limit: int, *, usual: bool) -> Failure | None:
        """Take a sample; drop a ceiling that was passed after all; tell of an allocation that has failed.

        On native Linux nothing tells of a CUDA out-of-memory error. What can be seen of one: use grows until
        next to nothing is left, and within seconds a program on the card ends and much of it is free again.
        Where the driver shows no programs, a fall is enough the first time: what comes back is a saw.

        Args:
            t: now, in seconds.
            gpu: the sample.
            limit: bytes that can be used, as far as known so far.
            usual: use came this far before and went back, without harm.
        """
        key, used = gpu_key(gpu), gpu_used(gpu)
        if used is None:
            return None
        known = self._known.get(key)
        if known is not None and used > known.used_bytes:
            del self._known[key]
        card = self._cards.setdefault(key, _Card())
        programs = {process.pid: process.name for process in gpu.processes if process.pid}
        ended = [name for pid, name in card.programs.items() if pid not in programs]
        if ended:
            card.gone = (t, ended[0])
        card.programs = programs
        self._remember(card, t, used)
        s = self._settings
        if used >= (1.0 - s.ceiling_reached) * limit:
            card.full_t = t
        if t - card.full_t > FALL_SECONDS:
            return None
        top = max(value for when, value in card.seen if t - when <= FALL_SECONDS)
        if top - used < s.ceiling_fall * limit or top - card.seen[0][1] < s.noise * limit:
            return None
        gone = card.gone[1] if card.gone is not None and t - card.gone[0] <= FALL_SECONDS else ""
        if not gone and (usual or programs or known is not None):
            return None
        self._cards[key] = _Card(programs=programs)
        self._known.setdefault(key, Ceiling(top, "probable"))
        return Failure(f"gpu{gpu.index}", gpu.uuid, top, gone)

    @staticmethod
    def _remember(card: _Card, t: float, used: int) -> None:
        seen = card.seen
        while seen and t - seen[0][0] > TREND_SECONDS:
            seen.popleft()
        # At ten samples a second the ring would hold too little; of half a second the most is kept.
        if len(seen) > 1 and t - seen[-2][0] < 2.0 * TREND_SECONDS / 128:
            t, used = max(seen.pop(), (t, used), key=lambda pair: pair[1])
        seen.append((t, used))

    def document(self, key: str) -> dict[str, Any]:
        """Return what is known of a card, to be kept over a restart."""
        known = self._known.get(key)
        return {} if known is None else {"ceiling_bytes": known.used_bytes, "ceiling": known.certainty}

    def recall(self, key: str, document: Mapping[str, Any]) -> None:
        """Take what an earlier run has learned; what is no such thing is left out."""
        used, certainty = document.get("ceiling_bytes"), document.get("ceiling")
        if isinstance(used, int) and certainty in ("seen", "probable"):
            self._known[key] = Ceiling(used, certainty)
