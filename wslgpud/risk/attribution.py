"""Attribution of growth: to a process, a group of processes, or a memory pool without a process."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from operator import itemgetter
from typing import NamedTuple

from wslgpud.model import GpuProcess, GpuSample, Observation, ProcessSample, RamState
from wslgpud.risk.headroom import Room, gpu_used
from wslgpud.risk.owners import SNAPSHOT_SECONDS, CardSuspects, Suspect, thin
from wslgpud.risk.settings import RiskSettings
from wslgpud.words import Message, MessageLike, all_of, say, template

MAX_SECONDS = 3 * 3600.0
CULPRIT_SHARE = 0.5
#: From this probability, a suspect is named as the probable culprit.
LIKELY = 0.5


class Culprit(NamedTuple):
    """The cause of a growth."""

    who: MessageLike
    kind: str  # decides the advice: stop a process, clean a tmpfs, explain the rest
    rate: float = 0.0  # bytes per second
    share: float = 0.0  # of the lost memory, 0 to 1
    pid: int | None = None  # None for a group, or a process of another namespace

    @property
    def likely(self) -> Culprit:
        """The same, marked as a guess."""
        return self._replace(who=say("probably {who}", who=self.who))


NOBODY = Culprit("", "")


class _Snapshot(NamedTuple):
    t: float
    processes: Sequence[ProcessSample]
    ram: RamState | None
    containers: Mapping[str, int] | None
    newest_ticks: int  # start of the newest process in this list or an earlier one

    @property
    def unlisted_bytes(self) -> int:
        """The most that an unlisted process can have held: half of the list is simply the biggest."""
        sizes = sorted(process.held_bytes for process in self.processes)
        return sizes[len(sizes) // 2] if sizes else 0


def _grown(before: Mapping[str, int] | None, now: Mapping[str, int] | None) -> tuple[int, str]:
    """Return the growth of the session of containers that grew most, in bytes, and its name; one may be new."""
    if before is None or not now:
        return 0, ""
    return max((max(0, held - before.get(session, 0)), session) for session, held in now.items())


def short_name(process: ProcessSample) -> str:
    """Return a process's program and script: ``python train.py``."""
    return _program(process.command) or process.name


@lru_cache(maxsize=1024)
def _program(command: str) -> str:
    words = command.split()
    script = next((word for word in words[1:] if not word.startswith("-")), "")
    return " ".join(word.rsplit("/", 1)[-1] for word in (*words[:1], script) if word)[:40]


def full_name(name: str, pid: int) -> str:
    """Return the name with the pid, as in ``python train.py (pid 4121)``; the same in every language."""
    return f"{name} (pid {pid})" if name else f"pid {pid}"


def briefer(who: MessageLike) -> Iterator[MessageLike]:
    """Yield shorter and shorter names: without the pid, then the script alone."""
    yield who
    if isinstance(who, str):
        name = who.partition(" (pid ")[0]
        last = name.rpartition(" ")[2]
        yield from (name, last if len(last) <= SHORT_NAME else f"{last[: SHORT_NAME - 1]}…")
    elif isinstance(inner := who.facts.get("who"), (str, Message)):
        for said in list(briefer(inner))[1:]:
            yield Message(who.template, {**who.facts, "who": said})
    elif who.template == SEVERAL:
        yield say("several programs")


def group_name(who: MessageLike) -> str:
    """Return the common name of the programs of a group; empty where there is none."""
    while isinstance(who, Message) and isinstance(inner := who.facts.get("who"), (str, Message)):
        who = inner
    return str(who.facts.get("name", "")) if isinstance(who, Message) and who.template == GROUP else ""


def _pools(ram: RamState | None) -> dict[str, int]:
    if ram is None:
        return {}
    known = {"tmpfs": ram.shmem, "kernel": ram.slab_unreclaimable, "huge pages": ram.hugepages, "balloon": -ram.total}
    return {name: value for name, value in known.items() if value is not None}


_POOLS = {
    "tmpfs": template("files in /dev/shm or tmpfs"),
    "kernel": template("the kernel (slab)"),
    "huge pages": template("huge pages"),
    "balloon": template("the host, which is taking memory back"),
}
GROUP = template("{count} x {name}")
SEVERAL = template("several: {parts}")
#: Longest allowed shortest form of a name, in characters.
SHORT_NAME = 20


class Attribution:
    """Keeps who held how much, more coarsely with age."""

    def __init__(self) -> None:
        self._snapshots: list[_Snapshot] = []

    def push(self, observation: Observation) -> None:
        """Record who holds how much now, at most every other second."""
        snapshots, t = self._snapshots, observation.t
        if snapshots and t - snapshots[-1].t < SNAPSHOT_SECONDS:
            return
        if not observation.processes and observation.ram is None:
            return
        started = (process.start_ticks for process in observation.processes)
        newest = max(started, default=0)
        newest = max(newest, snapshots[-1].newest_ticks) if snapshots else newest
        snapshots.append(_Snapshot(t, observation.processes, observation.ram, observation.containers, newest))
        if thin(snapshots) and t - snapshots[0].t > MAX_SECONDS:
            del snapshots[0]

    def ram_culprit(self, now: Observation, window: float, lost_rate: float) -> Culprit:
        """Return the cause of the loss of RAM and swap (bytes per second) over the last ``window`` seconds."""
        before = self._before(now.t - max(window, 5.0), listed=bool(now.processes))
        if before is None or lost_rate <= 0:
            return NOBODY
        seconds = now.t - before.t
        lost = lost_rate * seconds
        held = {process.key: process.held_bytes for process in before.processes}
        groups: dict[str, list[tuple[int, ProcessSample]]] = {}
        for process in now.processes:
            # One that ran already has not grown by all that it holds, only because the list did not name it.
            least = before.unlisted_bytes if 0 < process.start_ticks <= before.newest_ticks else 0
            grown = process.held_bytes - held.get(process.key, least)
            if grown > 0:
                groups.setdefault(short_name(process), []).append((grown, process))
        sums = Counter({name: sum(grown for grown, _ in members) for name, members in groups.items()})
        name, grown = max(sums.items(), key=itemgetter(1), default=("", 0))
        if grown >= CULPRIT_SHARE * lost:
            share = min(1.0, grown / lost)
            most, process = max(groups[name], key=itemgetter(0))
            if len(groups[name]) == 1 or most >= 0.7 * grown:
                return Culprit(full_name(name, process.pid), "process", most / seconds, share, process.pid)
            group = Message(GROUP, {"count": len(groups[name]), "name": name})
            return Culprit(group, "group", grown / seconds, share)
        then = _pools(before.ram)
        pools = {pool: value - then[pool] for pool, value in _pools(now.ram).items() if pool in then}
        pool, grown = max(pools.items(), key=itemgetter(1), default=("", 0))
        if grown >= CULPRIT_SHARE * lost:
            return Culprit(Message(_POOLS[pool]), pool, grown / seconds, min(1.0, grown / lost))
        if sums.total() >= CULPRIT_SHARE * lost:
            parts = tuple(
                say("{name} {share_ratio}", name=name, share_ratio=round(grown / lost, 2))
                for name, grown in sums.most_common(2)
            )
            several = Message(SEVERAL, {"parts": parts})
            return Culprit(several, "group", sums.total() / seconds, min(1.0, sums.total() / lost))
        return Culprit(say("no watched process"), "unknown") if now.processes else NOBODY

    def windows_culprit(self, now: Observation, window: float, lost_rate: float) -> Culprit:
        """Return the cause of Windows' loss of memory: this VM, a session of WSL's containers, or Windows' programs."""
        before, ram = self._before(now.t - max(window, 5.0)), now.ram
        if before is None or before.ram is None or ram is None or None in (before.ram.free, ram.free) or lost_rate <= 0:
            return NOBODY
        lost = lost_rate * (now.t - before.t)
        # Linux holds what it has touched and not returned, page cache included.
        taken = (ram.total - (ram.free or 0)) - (before.ram.total - (before.ram.free or 0))
        share = max(0.0, min(1.0, taken / lost))
        grown, session = _grown(before.containers, now.containers)
        held = min(1.0 - share, grown / lost)
        if share >= max(CULPRIT_SHARE, held):
            return Culprit(say("Linux, including its page cache"), "linux", lost_rate * share, share)
        rest = 1.0 - share - held
        if held >= rest:
            return Culprit(say("WSL's containers ({session})", session=session), "containers", lost_rate * held, held)
        return Culprit(say("programs of Windows"), "windows", lost_rate * rest, rest)

    def _before(self, t: float, *, listed: bool = False) -> _Snapshot | None:
        """Return what was known by then, or first; ``listed`` leaves out moments without a list of processes."""
        known = [snapshot for snapshot in self._snapshots if snapshot.processes or not listed]
        earlier = [snapshot for snapshot in known if snapshot.t <= t]
        return earlier[-1] if earlier else known[0] if len(known) > 1 else None


#: A program's pid and name; 0 for one of another namespace, below that for one of Windows.
_Holder = tuple[int, str]
_IN_WINDOWS = -1
#: Windows' programs named in a message.
_MAX_NAMED = 4


def windows_programs(programs: Sequence[GpuProcess]) -> MessageLike:
    """Return Windows' largest programs on a card with their memory: ``chrome.exe 2.1 GiB, dwm.exe 922 MiB``."""
    largest = programs[:_MAX_NAMED]
    return all_of(say("{program} {held_bytes}", program=one.name, held_bytes=one.used_bytes or 0) for one in largest)


def _holders(gpu: GpuSample) -> dict[_Holder, int | None]:
    """Return the VRAM of each program in bytes, None where neither the driver nor the program reports it.

    Processes of other namespaces have no pid here (0): all of one name count as one, or each would be compared with an
    earlier value of another.
    """
    held: dict[_Holder, int | None] = {}
    for process in gpu.processes:
        key = (process.pid, process.name)
        before = held.get(key)
        held[key] = process.used_bytes if before is None else before + (process.used_bytes or 0)
    names = {pid: name for pid, name in held if pid}
    for process in gpu.self_reported:  # a program's report is better than none, but the driver's takes precedence
        key = (process.pid, names.get(process.pid, process.name))
        held[key] = process.used_bytes if held.get(key) is None else held[key]
    return held | {(_IN_WINDOWS, program.name): program.used_bytes for program in gpu.in_windows}


def _unlisted_bytes(before: Sequence[GpuProcess], newcomer: GpuProcess) -> int:
    """Return the most that a Windows program held while Windows' list, of the largest only, did not name it."""
    if not before:  # nothing is known of the time before the first list
        return newcomer.used_bytes or 0
    earlier = {one.name: one.used_bytes or 0 for one in before}
    return earlier.get(newcomer.name, min(earlier.values()))


def _holder_name(holder: _Holder, now: Observation) -> MessageLike:
    """Return a program's name; with its pid only where a user can act on it."""
    pid, name = holder
    if pid == _IN_WINDOWS:
        return say("{who} (in Windows)", who=name)
    if pid:  # the driver does not know scripts
        return full_name(next((short_name(p) for p in now.processes if p.pid == pid), name), pid)
    return say("{name} (in another container or VM)", name=name or "?")


def _measured(holder: _Holder, now: Observation, rate: float = 0.0, share: float = 0.0) -> Culprit:
    kind = "windows program" if holder[0] == _IN_WINDOWS else "process"
    return Culprit(_holder_name(holder, now), kind, rate, share, holder[0] if holder[0] > 0 else None)


def _suspected(suspect: Suspect) -> Culprit:
    """Return the suspect that is likelier than not, and how likely; a weaker guess is no better than chance."""
    process, chance = suspect.process, round(suspect.chance, 2)
    if chance < LIKELY:
        return Culprit(say("one of {count} programs on it", count=suspect.among), "unknown")
    who = say("probably {who}, {chance_ratio}", who=full_name(short_name(process), process.pid), chance_ratio=chance)
    return Culprit(who, "guess", pid=process.pid)


@dataclass(slots=True)
class _Use:
    """A program's VRAM: since when it is listed, what it may have held before, and (time, bytes) since then."""

    since: float
    unlisted: int = 0
    history: list[tuple[float, int]] = field(default_factory=list)


class GpuAttribution:
    """Keeps the VRAM of each process on one GPU, where the driver reports it, and which processes exist."""

    def __init__(self) -> None:
        self._uses: dict[_Holder, _Use] = {}
        self._in_windows: tuple[GpuProcess, ...] = ()
        self._measured = False
        self.suspects = CardSuspects()

    def push(self, t: float, gpu: GpuSample) -> None:
        """Record one sample, and forget processes that have ended; an empty list may be one that was not read."""
        present = _holders(gpu)
        if present:
            self._uses = {holder: use for holder, use in self._uses.items() if holder in present}
        before, self._measured = self._measured, gpu.demoted_bytes is not None
        # Whoever is first seen when measuring begins may have held it all along.
        unlisted = {holder: used or 0 for holder, used in present.items()} if self._measured and not before else {}
        unlisted |= {(_IN_WINDOWS, one.name): _unlisted_bytes(self._in_windows, one) for one in gpu.in_windows}
        self._in_windows = gpu.in_windows or self._in_windows
        for holder, used in present.items():
            use = self._uses.setdefault(holder, _Use(t, unlisted.get(holder, 0)))
            if used is not None and (not use.history or t - use.history[-1][0] >= 1.0):
                use.history.append((t, used))
                thin(use.history)

    def culprit(self, now: Observation, gpu: GpuSample, window: float, lost_rate: float) -> Culprit:
        """Return the cause of this GPU's loss of memory (bytes per second) over ``window`` seconds, if known."""
        t, start = now.t, now.t - window
        present = _holders(gpu)
        best, most, seconds = None, 0.0, 1.0
        for holder, used in present.items():
            if used is None:
                continue
            use = self._uses.get(holder, _Use(t))
            then_t, then = start, use.unlisted
            if use.since <= start and use.history:
                then_t, then = next((point for point in use.history if point[0] >= start), use.history[-1])
            if used - then > most:
                best, most, seconds = holder, float(used - then), t - then_t
        rate = most / seconds
        if best is not None and lost_rate > 0 and rate >= CULPRIT_SHARE * lost_rate:
            return _measured(best, now, rate, min(1.0, rate / lost_rate))
        silent = [holder for holder, used in present.items() if used is None]
        hidden = bool(silent) or (now.wsl and not gpu.processes)
        if hidden and window > 0 and (suspect := self.suspects.likeliest(now, gpu, window)) is not None:
            return _suspected(suspect)
        if silent:
            newest = max(silent, key=lambda holder: self._uses.get(holder, _Use(t)).since)
            return Culprit(_holder_name(newest, now), "guess", pid=newest[0] or None).likely
        if any(pid != _IN_WINDOWS for pid, _ in present):
            return Culprit(say("the desktop or an unlisted process"), "unknown")
        return NOBODY

    def holder(self, now: Observation, gpu: GpuSample) -> Culprit:
        """Return who holds, or probably holds, most of a full card."""
        held = {holder: used for holder, used in _holders(gpu).items() if used}
        most = max(held, key=held.__getitem__, default=None)
        # Under WSL2 the use of programs here may be unknown: then only a program with half of it holds most for sure.
        if most is None or (most[0] == _IN_WINDOWS and held[most] < (gpu_used(gpu) or 0) / 2):
            return self.culprit(now, gpu, 0.0, 0.0)
        return _measured(most, now)


@dataclass(slots=True)
class Grower:
    """The last to grow on a resource: once it has ended, the likely victim of a kill.

    Whoever gave its memory back and lives on also leaves the list of the biggest, so no text says that it has ended.
    """

    _culprit: Culprit = NOBODY
    _gone_t: float = math.inf

    def note(self, culprit: Culprit) -> None:
        """Record who grows now; only processes can end."""
        if culprit.pid:
            self._culprit, self._gone_t = culprit, math.inf

    def just_ended(self, room: Room, observation: Observation, settings: RiskSettings) -> bool:
        """Return whether it has ended since the last sample; False where unknown."""
        card = room.gpu
        if self._culprit is NOBODY:
            # A driver that shows no programs: one that freed nearly all of a card has ended.
            return card is not None and not card.processes and room.share >= settings.recovered_headroom
        # Under WSL2 the driver lists no programs and so does not show their end: Linux does.
        running = (() if card is None else card.processes) or observation.processes
        if not running and (card is None or observation.wsl):
            return False
        if any(p.pid == self._culprit.pid for p in running):
            self._gone_t = math.inf
            return False
        first = self._gone_t == math.inf
        self._gone_t = min(self._gone_t, observation.t)
        return first

    def ended(self, t: float, settings: RiskSettings) -> Culprit:
        """Return who ended about then, and so was killed, or freed its memory."""
        return self._culprit if abs(self._gone_t - t) <= settings.ending_seconds else NOBODY
