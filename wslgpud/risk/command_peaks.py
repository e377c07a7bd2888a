"""Peaks of earlier runs: warns of a command whose usual peak will not fit before it takes the memory.

Peaks are remembered by user and command (program and script, as the process list shows it): another user's run of the
same name proves nothing. Arguments are not part of it, so a run may need less than the last one: the expected peak is
the lowest of all remembered runs, and two runs must agree. A run that ended out of memory needed at least its last use.
For commands under ``wslgpud guard``, the observation includes their expected peak.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from wslgpud.model import Expected, Observation
from wslgpud.risk.attribution import full_name
from wslgpud.risk.headroom import Room, gpu_key
from wslgpud.risk.owners import FREED, SNAPSHOT_SECONDS, Holders, Owner

#: Runs of a command: the lowest peak counts, and more would only lower it.
KEPT_RUNS = 5
#: Commands of one user, and of all: then the user with most of them loses the oldest.
KEPT_COMMANDS = 50
KEPT_ALTOGETHER = 200
#: A month: what a program needs changes with its versions and data.
KEPT_SECONDS = 30 * 24 * 3600.0
#: Share of a resource's capacity below which peaks are ignored.
MIN_SHARE = 0.05
#: A run that takes this many times as long, and a minute, to reach the others' peak is not comparable.
LATE, LATE_SECONDS = 2.0, 60.0
#: The distance to a peak that did no harm must be less than this share of the headroom.
CALM_SHARE = 0.9
#: Share of what was taken since its start that makes a command the one that grows; and how far beyond its highest peak
#: it is still like its earlier runs, which differ by little with the same data.
MUCH, SAME = 0.5, 1.02


class ExpectedPeak(NamedTuple):
    """The memory that running commands will still need; ``who`` needs most, and took ``peak_bytes`` before."""

    rest_bytes: int
    who: str
    peak_bytes: int


class _Run(NamedTuple):
    """One run of a command that has ended."""

    ended: float
    seconds: float  # until its peaks
    peaks: dict[str, int]  # by resource's key
    killed: bool = False


@dataclass(slots=True)
class _Life:
    """A command that runs now; sizes by resource's key."""

    began: float
    pid: int  # of its first process
    room: dict[str, int]  # headroom at its start
    peaks: dict[str, int] = field(default_factory=dict)
    peak_t: float = 0.0


class CommandPeaks:
    """Running commands, and the peaks of earlier ones."""

    def __init__(self) -> None:
        self.document: dict[str, Any] = {}
        self._runs: dict[Owner, list[_Run]] = {}
        self._lives: dict[Owner, _Life] = {}
        self._seen_t = -math.inf
        self._capacity: dict[str, int] = {}
        #: at the last look: headroom by resource's key, and what each command held of it
        self._left: dict[str, int] = {}
        self._held: dict[Owner, dict[str, int]] = {}
        self._now = Observation(0.0)

    def push(
        self, observation: Observation, rooms: Sequence[Room], exhausted: Collection[str], holders: Holders
    ) -> None:
        """Take the next sample: processes and who holds what, headroom, and resources that have just run out."""
        self._now, t = observation, observation.t
        for key in exhausted:
            for command, life in self._lives.items():
                if self._held[command].get(key, 0) >= MIN_SHARE * self._capacity.get(key, 0):
                    self._keep(command, t, life, killed=True)
        if holders.fresh and t - self._seen_t >= SNAPSHOT_SECONDS:
            self._seen_t = t
            self._capacity.update((room.key, room.capacity) for room in rooms)
            self._follow(t, holders, {room.key: room.headroom for room in rooms})

    def _follow(self, t: float, holders: Holders, left: dict[str, int]) -> None:
        """Track commands that start, grow and end."""
        owners, ram = holders.listed()
        held = {owner: {"ram": size} for owner, size in ram.items() if owner.is_command}
        for gpu in self._now.gpus:
            key = gpu_key(gpu)
            for user in gpu.processes:
                if user.used_bytes is not None and user.pid in owners and (sizes := held.get(owners[user.pid])):
                    sizes[key] = sizes.get(key, 0) + user.used_bytes
        for command in [command for command in self._lives if command not in held]:
            life = self._lives.pop(command)
            if self._has_ended(self._held[command], left):
                self._keep(command, t, life)
        for command, sizes in held.items():
            if command not in self._lives:
                pid = min(pid for pid, owner in owners.items() if owner == command)
                self._lives[command] = _Life(t, pid, left)
            life = self._lives[command]
            for key, size in sizes.items():
                if size > life.peaks.get(key, 0):
                    life.peaks[key], life.peak_t = size, t
        self._held, self._left = held, left

    def _has_ended(self, held: Mapping[str, int], left: Mapping[str, int]) -> bool:
        """Return whether a command that is no longer listed has given its memory back.

        Else others may have pushed it out of the list, which shows the biggest.
        """
        much = {key: size for key, size in held.items() if size >= MIN_SHARE * self._capacity.get(key, math.inf)}
        return all(left.get(key, 0) - self._left.get(key, 0) >= FREED * size for key, size in much.items())

    def _keep(self, command: Owner, t: float, life: _Life, *, killed: bool = False) -> None:
        """Record a run that has ended, or is about to run out of memory."""
        peaks = {
            key: size
            for key, size in life.peaks.items()
            if size >= MIN_SHARE * self._capacity.get(key, 0) and self._believed(key, size)
        }
        if not peaks:
            return
        runs = self._runs.pop(command, [])
        if runs and runs[-1].killed and runs[-1].ended >= life.began:
            runs[-1] = runs[-1]._replace(ended=t)  # already recorded as one that ran out
        else:
            runs.append(_Run(t, round(life.peak_t - life.began, 1), peaks, killed))
        self._runs[command] = [run for run in runs if t - run.ended <= KEPT_SECONDS][-KEPT_RUNS:]
        self._make_room()
        self._write_down(t)

    def _make_room(self) -> None:
        """Forget the oldest commands of users with too many."""
        count = Counter(command.uid for command in self._runs)
        while count.total() > KEPT_ALTOGETHER or max(count.values(), default=0) > KEPT_COMMANDS:
            user = max(count, key=count.__getitem__)
            del self._runs[next(command for command in self._runs if command.uid == user)]
            count[user] -= 1

    def wish(self, t: float, room: Room, announced: Sequence[Expected]) -> ExpectedPeak | None:
        """Return the memory of a resource that running commands will still take, judging by earlier runs."""
        if not announced and not self._runs:
            return None
        spoken = {pid for expected in announced for pid in expected.pids}
        rests = [
            ExpectedPeak(expected.peak_bytes - expected.used_bytes, expected.who, expected.peak_bytes)
            for expected in announced
            if expected.resource == room.key
            and expected.peak_bytes > expected.used_bytes
            and self._believed(room.key, expected.peak_bytes)
        ]
        rests += [wish for pid, wish in self._own(t, room.key) if pid not in spoken]
        if not rests:
            return None
        most = max(rests)
        return ExpectedPeak(sum(wish.rest_bytes for wish in rests), most.who, most.peak_bytes)

    def _own(self, t: float, key: str) -> Iterator[tuple[int, ExpectedPeak]]:
        """Yield the memory that running commands have yet to take, by their first pid."""
        for command in self._runs.keys() & self._lives.keys():
            life, runs, held = self._lives[command], self._known(command, key), self._held[command]
            killed = any(run.killed for run in runs[-1:])
            if key not in held or (len(runs) < 2 and not killed):
                continue
            if t - life.began > LATE * max(run.seconds for run in runs) + LATE_SECONDS:
                continue
            peak = runs[-1].peaks[key] if killed else min(run.peaks[key] for run in runs)
            if peak > life.peaks.get(key, 0):  # a program that has only opened the card holds nothing yet
                yield (life.pid, ExpectedPeak(peak - held[key], full_name(command.program, life.pid), peak))

    def _believed(self, key: str, size: int) -> bool:
        """Return whether a peak is plausible: memory shared by forked processes counts in each."""
        ram, swap = self._now.ram, self._now.swap
        most = {gpu_key(gpu): gpu.total_bytes for gpu in self._now.gpus}
        most["ram"] = ram.total + (swap.total if swap is not None else 0) if ram is not None else None
        return size <= (most.get(key) or size)

    def _known(self, command: Owner, key: str) -> list[_Run]:
        """Return a command's runs with a plausible peak of a resource."""
        return [run for run in self._runs[command] if key in run.peaks and self._believed(key, run.peaks[key])]

    def calm(self, room: Room) -> dict[Owner, int]:
        """Return, for each command that has taken much of this resource, how many runs came this far without harm.

        The rest up to their highest peak must fit.
        """
        found = {}
        for command in self._runs.keys() & self._lives.keys():
            held, before = self._held[command].get(room.key, 0), self._lives[command].room.get(room.key)
            if before is None or held < MUCH * (before - room.headroom) or held < MIN_SHARE * room.capacity:
                continue
            runs = self._known(command, room.key)
            if not runs or runs[-1].killed:
                continue
            highest = max(run.peaks[room.key] for run in runs)
            if held <= SAME * highest and highest - held < CALM_SHARE * room.headroom:
                found[command] = len(runs)
        return found

    def _write_down(self, t: float) -> None:
        """Note what is remembered, with the age of each run now, as JSON can hold it.

        Only when it changes, so that nothing unchanged is written to the database again.
        """
        runs = ((command, run) for command, runs in self._runs.items() for run in runs)
        rows = [[*command, round(t - run.ended, 1), *run[1:]] for command, run in runs]
        self.document = {"runs": rows}

    def recall(self, t: float, document: Mapping[str, Any], age_seconds: float) -> None:
        """Take up what an earlier run of the daemon remembered so long ago."""
        for uid, program, age, *known in document["runs"]:
            if age + age_seconds <= KEPT_SECONDS:
                self._runs.setdefault(Owner(uid, program), []).append(_Run(t - age - age_seconds, *known))
        self._write_down(t)
