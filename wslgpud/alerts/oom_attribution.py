"""Whom the kernel killed, and in which group, where only its counters tell of it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from wslgpud.model import Number, ProcessSample

#: whoever held less was not killed to make room
LEAST_BYTES = 64 << 20
#: share of what somebody held that must have come back: the list of processes is some seconds old
LEAST_BACK = 0.5


class Counts(NamedTuple):
    """What the kernel counts of one cgroup: kills, and how often it ran into its limit (None: not known)."""

    kills: int
    limit_hits: int | None = None


class Unnamed(NamedTuple):
    """A kill that only a counter tells of: when it was seen, and how things were at the look before it."""

    mono: float
    wall: float
    kills_per_second: float
    processes: tuple[ProcessSample, ...]
    used_bytes: Number | None = None
    growing: int | None = None


@dataclass(slots=True)
class Counted:
    """What is remembered of the kernel's counters from look to look."""

    #: the machine's count and when it was read: while memory runs out that may fail for a look
    machine: tuple[float, Number] | None = None
    groups: Mapping[str, Counts] = field(default_factory=dict)
    #: kills that the machine counted and no group yet; below 0 those that only a group has counted yet
    unplaced: int = 0
    #: by resource
    unnamed: dict[str, Unnamed] = field(default_factory=dict)
    #: by resource, the pid of who was last seen to grow
    growing: dict[str, int] = field(default_factory=dict)

    def of_the_machine(self, counted: int, in_groups: int, *, watched: bool) -> int:
        """Return how many of the kills since the last look were for no group's limit.

        Both counters grow at the same moment but are not read at the same moment: where groups are
        ``watched``, a kill is the machine's when no group claims it by the next look.
        """
        if not watched:
            self.unplaced = 0
            return max(0, counted - in_groups)
        waited, ahead = max(0, self.unplaced), max(0, -self.unplaced)
        claimed = min(waited, in_groups)
        self.unplaced = counted - min(ahead, counted) - (in_groups - claimed)
        return waited - claimed


def kills_by_group(before: Mapping[str, Counts], now: Mapping[str, Counts]) -> dict[str, int]:
    """Return how many were killed for the limit of which group since the last look, by path.

    A group's counter includes the groups below it, and victims of a machine that is full: so only groups
    that ran into their limit meanwhile count, and of nested ones the innermost.
    """
    grown = {
        path: counts.kills - then.kills
        for path, counts in now.items()
        if (then := before.get(path)) is not None
        and counts.kills > then.kills
        # it ran into its limit, as far as that is known
        and (then.limit_hits is None or counts.limit_hits is None or counts.limit_hits > then.limit_hits)
    }

    def holds(path: str) -> bool:
        return any(other != path and f"{other}/".startswith(f"{path.rstrip('/')}/") for other in grown)

    return {path: kills for path, kills in grown.items() if not holds(path)}


def victim(
    kill: Unnamed, now: Iterable[ProcessSample], group: str = "", freed_bytes: int | None = None
) -> ProcessSample | None:
    """Return whom an unnamed kill has most likely taken; None where nobody fits.

    The victim was there before and is not there ``now``, was in ``group`` where a cgroup ran into its limit, and
    took its memory along, where it is known how much came back. The forecast's culprit is meant if it is gone.
    """
    alive = {process.key for process in now}
    gone = [
        process
        for process in kill.processes
        if process.key not in alive
        and held(process) >= LEAST_BYTES
        and (not group or not process.cgroup or process.within(group))
        and (freed_bytes is None or freed_bytes >= LEAST_BACK * held(process))
    ]
    culprits = [process for process in gone if process.pid == kill.growing]
    return max(culprits or gone, key=held, default=None)


def held(process: ProcessSample) -> int:
    """Return what a process holds of RAM and swap."""
    return process.rss_bytes + process.swap_bytes
