"""Who is growing: a process, a group of them, or a pool that belongs to no process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from wslgpud.model import GpuSample, Observation, ProcessSample
from wslgpud.words import Message, Said, say, template

MOST_SNAPSHOTS = 40
NEWEST_KEPT = 10
SNAPSHOT_SECONDS = 1.9
LONGEST_SECONDS = 3 * 3600.0
CULPRIT_SHARE = 0.5


class Culprit(NamedTuple):
    """Who grew: as people know it, ``rate`` in bytes a second, ``share`` of what was lost, 0 to 1.

    ``pid`` is None of what is no single process, or has its number elsewhere.
    ``kind`` tells what can be done: a process can be stopped, a tmpfs cleaned, the rest only explained.
    """

    who: Said
    kind: str
    rate: float = 0.0
    share: float = 0.0
    pid: int | None = None

    @property
    def likely(self) -> Culprit:
        """The same as a guess."""
        return self._replace(who=say("probably {who}", who=self.who))


NOBODY = Culprit("", "")


class _Snapshot(NamedTuple):
    t: float
    held: dict[tuple[int, int], int]
    pools: dict[str, int]


def short_name(process: ProcessSample) -> str:
    """Name a process by its program and the script it runs: ``python train.py``."""
    words = process.command.split()
    if not words:
        return process.name
    program = words[0].rsplit("/", 1)[-1]
    for word in words[1:]:
        if not word.startswith("-"):
            return f"{program} {word.rsplit('/', 1)[-1]}"[:40]
    return program[:40]


def full_name(name: str, pid: int) -> str:
    """Name a process so that it can be found: ``python train.py (pid 4121)``; the same in every language."""
    return f"{name} (pid {pid})" if name else f"pid {pid}"


def briefer(who: Said) -> Iterator[Said]:
    """Yield ever shorter ways to say who: without the pid, and with the script alone."""
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


def group_name(who: Said) -> str:
    """Return what the programs of a group have in common: their name; empty where they have none."""
    while isinstance(who, Message) and isinstance(inner := who.facts.get("who"), (str, Message)):
        who = inner
    return str(who.facts.get("name", "")) if isinstance(who, Message) and who.template == GROUP else ""


def _pools(observation: Observation) -> dict[str, int]:
    ram = observation.ram
    if ram is None:
        return {}
    known = {
        "tmpfs": ram.shmem,
        "kernel": ram.slab_unreclaimable,
        "huge pages": ram.hugepages,
    }
    return {name: value for name, value in known.items() if value is not None}


_POOLS = {
    "tmpfs": template("files in /dev/shm or tmpfs"),
    "kernel": template("the kernel (slab)"),
    "huge pages": template("huge pages"),
}
GROUP = template("{count} x {name}")
SEVERAL = template("several: {parts}")
SHORT_NAME = 20
"""Characters that the shortest form of a name may have."""


def _dispensable(times: list[float]) -> int:
    """Return the index of the time that is missed least: its neighbours are near for its age."""
    now = times[-1]
    return min(
        range(1, len(times) - NEWEST_KEPT),
        key=lambda i: (times[i + 1] - times[i - 1]) / max(1e-9, now - times[i]),
    )


class Attribution:
    """Remembers who held what, ever more coarsely the longer ago."""

    def __init__(self) -> None:
        """Start with nothing seen."""
        self._snapshots: list[_Snapshot] = []

    def push(self, observation: Observation) -> None:
        """Remember who holds what now, at most every other second."""
        snapshots = self._snapshots
        if snapshots and observation.t - snapshots[-1].t < SNAPSHOT_SECONDS:
            return
        if not observation.processes and observation.ram is None:
            return
        snapshots.append(
            _Snapshot(
                observation.t,
                {p.key: p.rss_bytes + p.swap_bytes for p in observation.processes},
                _pools(observation),
            )
        )
        if len(snapshots) > MOST_SNAPSHOTS:
            del snapshots[_dispensable([snapshot.t for snapshot in snapshots])]
            if observation.t - snapshots[0].t > LONGEST_SECONDS:
                del snapshots[0]

    def ram_culprit(self, now: Observation, window: float, lost_rate: float) -> Culprit:
        """Return who took what RAM and swap lost (bytes a second) over the last ``window`` seconds."""
        before = self._before(now.t - max(window, 5.0))
        if before is None or lost_rate <= 0:
            return NOBODY
        seconds = max(now.t - before.t, 1e-3)
        lost_bytes = lost_rate * seconds
        groups: Counter[str] = Counter()
        members: dict[str, list[tuple[int, ProcessSample]]] = {}
        for process in now.processes:
            grown = process.rss_bytes + process.swap_bytes - before.held.get(process.key, 0)
            if grown > 0:
                name = short_name(process)
                groups[name] += grown
                members.setdefault(name, []).append((grown, process))
        if groups:
            name, grown = groups.most_common(1)[0]
            share = grown / lost_bytes
            if share >= CULPRIT_SHARE:
                most, process = max(members[name], key=lambda item: item[0])
                if len(members[name]) == 1 or most >= 0.7 * grown:
                    who = full_name(name, process.pid)
                    return Culprit(who, "process", most / seconds, min(1.0, share), process.pid)
                said = Message(GROUP, {"count": len(members[name]), "name": name})
                return Culprit(said, "group", grown / seconds, min(1.0, share))
        pools = {
            pool: value - before.pools[pool] for pool, value in _pools(now).items() if pool in before.pools
        }
        pool, grown = max(pools.items(), key=lambda item: item[1], default=("", 0))
        if grown >= CULPRIT_SHARE * lost_bytes:
            return Culprit(Message(_POOLS[pool]), pool, grown / seconds, min(1.0, grown / lost_bytes))
        if sum(groups.values()) >= CULPRIT_SHARE * lost_bytes:
            parts = tuple(
                say("{name} {share_ratio}", name=name, share_ratio=round(grown / lost_bytes, 2))
                for name, grown in groups.most_common(2)
            )
            share = min(1.0, sum(groups.values()) / lost_bytes)
            said = Message(SEVERAL, {"parts": parts})
            return Culprit(said, "group", sum(groups.values()) / seconds, share)
        return Culprit(say("no watched process"), "unknown") if now.processes else NOBODY

    def _before(self, t: float) -> _Snapshot | None:
        found = None
        for snapshot in self._snapshots:
            if snapshot.t > t:
                break
            found = snapshot
        return found or (self._snapshots[0] if len(self._snapshots) > 1 else None)


_Holder = tuple[int, str]


def _holders(gpu: GpuSample) -> dict[_Holder, int | None]:
    """Return the VRAM of each program in bytes, None where the driver does not tell.

    Those of other namespaces have no pid here (0): all of one name count as one, or each would be compared
    with what another one held before.
    """
    held: dict[_Holder, int | None] = {}
    for process in gpu.processes:
        key = (process.pid, process.name)
        before = held.get(key)
        held[key] = process.used_bytes if before is None else before + (process.used_bytes or 0)
    return held


def _called(holder: _Holder, names: Mapping[int, str]) -> Said:
    """Name a program on a card; a pid is named only where somebody can act on it."""
    pid, name = holder
    if pid:
        return full_name(names.get(pid, name), pid)
    return say("{name} (in another container or VM)", name=name or "?")


class GpuAttribution:
    """Remembers what each process held on one GPU, where the driver tells, and which are there at all."""

    def __init__(self) -> None:
        """Start with nothing seen."""
        self._held: dict[_Holder, list[tuple[float, int]]] = {}
        self._since: dict[_Holder, float] = {}

    def push(self, t: float, gpu: GpuSample) -> None:
        """Remember one sample, and forget processes that have gone."""
        present = _holders(gpu)
        for gone in [holder for holder in self._since if holder not in present]:
            del self._since[gone]
            self._held.pop(gone, None)
        for holder, used in present.items():
            self._since.setdefault(holder, t)
            if used is None:
                continue
            history = self._held.setdefault(holder, [])
            if not history or t - history[-1][0] >= 1.0:
                history.append((t, used))
                if len(history) > MOST_SNAPSHOTS:
                    del history[_dispensable([when for when, _ in history])]

    def culprit(self, now: Observation, gpu: GpuSample, window: float, lost_rate: float) -> Culprit:
        """Return who took what this GPU lost (bytes a second) over ``window`` seconds, as far as known."""
        t = now.t
        names = {p.pid: short_name(p) for p in now.processes}  # the driver knows no scripts
        present = _holders(gpu)
        best, most, seconds = None, 0.0, 1.0
        for holder, used in present.items():
            if used is None:
                continue
            then_t, then = t - window, 0
            for then_t, then in self._held.get(holder, ()):  # noqa: B007
                if then_t >= t - window:
                    break
            if self._since.get(holder, t) > t - window:
                then, then_t = 0, t - window
            if used - then > most:
                best, most, seconds = holder, float(used - then), max(t - then_t, 1e-3)
        rate = most / seconds
        if best is not None and lost_rate > 0 and rate >= CULPRIT_SHARE * lost_rate:
            share = min(1.0, rate / lost_rate)
            return Culprit(_called(best, names), "process", rate, share, best[0] or None)
        silent = [holder for holder, used in present.items() if used is None]
        if silent:
            newest = max(silent, key=lambda holder: self._since.get(holder, t))
            return Culprit(_called(newest, names), "guess", pid=newest[0] or None).likely
        if best is not None or present:
            return Culprit(say("the desktop or an unlisted process"), "unknown")
        return NOBODY

    def holder(self, now: Observation, gpu: GpuSample) -> Culprit:
        """Return who holds most of a card that is full, or probably does."""
        held = {holder: used for holder, used in _holders(gpu).items() if used}
        if not held:
            return self.culprit(now, gpu, 0.0, 0.0)
        most = max(held, key=lambda holder: held[holder])
        names = {p.pid: short_name(p) for p in now.processes}
        return Culprit(_called(most, names), "process", pid=most[0] or None)
