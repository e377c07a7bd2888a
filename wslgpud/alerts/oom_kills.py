"""The measure of OOM kills: each under the exhausted resource, and with its victim.

The kernel log names it. Where only counters show a kill, the victim is a process that is gone since.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from wslgpud.alerts.measures import KillCount, MeasureContext, Signal, UnnamedKill
from wslgpud.model import Event, Level, ProcessSample, Snapshot
from wslgpud.risk.attribution import full_name, short_name
from wslgpud.sources import cgroups, kernel_lines, memory
from wslgpud.words import Fact, say

#: the next process list, which shows who is gone, comes within this time; a kill is not withheld longer
PATIENCE_SECONDS = 8.0
#: cgroups with kills while no daemon ran that are reported one by one
MAX_MISSED = 5
#: a process that held less was no OOM victim
MIN_BYTES = 64 << 20


def oom_kills(context: MeasureContext) -> Iterator[Signal]:
    """OOM kills, from the kernel log, else from its counters."""
    heard = list(context.events("oom_kill"))
    for event, alike in _condensed(heard):
        yield Signal(_placed(context, event), 1.0, _facts(context, event, alike))
    log = context.report("kernel_log")
    # A log that is merely late, as everything is while memory runs out, will name the victim at the next tick.
    mute = log is None or log.health in ("failed", "absent")
    state = context.kills
    state.growing |= {f.resource: f.who_pid for f in context.forecasts if f.level > Level.OK and f.who_pid}
    if heard or not mute:  # the log covers all kills counted so far
        state.counts = {}
    else:
        for resource in _counted(context):
            before, growing = context.last.processes, state.growing.get(resource)
            seen = UnnamedKill(context.snapshot.mono, context.snapshot.wall, before, growing)
            state.unnamed.setdefault(resource, seen)
    yield from _settled(context)


def resource_of(kill: Event) -> str:
    group = str(kill.fields.get("cgroup", ""))
    limited = kill.fields.get("constraint") == "CONSTRAINT_MEMCG" and group not in ("", kernel_lines.USERS)
    return f"cgroup:{group}" if limited else "ram"


def _placed(context: MeasureContext, kill: Event) -> str:
    """Return the resource of a kill; where the log omits the cgroup, counters may show it."""
    if kill.fields.get("constraint") == "CONSTRAINT_MEMCG" and not kill.fields.get("cgroup"):
        groups = [name for name in risen(_counts(context.last), _counts(context.snapshot)) if name != "ram"]
        return groups[0] if len(groups) == 1 else "ram"
    return resource_of(kill)


def _condensed(heard: Iterable[Event]) -> Iterator[tuple[Event, Sequence[Event]]]:
    """Yield a kill to report of each resource, with all that it represents: the largest, of past ones the last.

    While no daemon ran, there may have been many: of very many cgroups, most of them gone by now, only one is reported.
    """
    kills: dict[str, list[Event]] = {}
    for event in heard:
        kills.setdefault(resource_of(event), []).append(event)
    missed = [name for name, its_kills in kills.items() if name != "ram" and its_kills[-1].fields.get("past")]
    if len(missed) > MAX_MISSED:
        kills[""] = sorted((kill for name in missed for kill in kills.pop(name)), key=lambda kill: kill.wall)
    for its_kills in kills.values():
        past = its_kills[-1].fields.get("past")
        yield its_kills[-1] if past else max(its_kills, key=lambda k: int(k.fields.get("size_bytes", 0))), its_kills


def _facts(context: MeasureContext, event: Event, alike: Sequence[Event]) -> dict[str, Fact]:
    facts: dict[str, Fact] = {**event.fields, "killed_wall": event.wall}
    past, pid = bool(event.fields.get("past")), int(event.fields.get("pid", 0))
    name = str(event.fields.get("victim", ""))
    known = context.processes | {p.pid: p for p in context.snapshot.processes}
    process = known.get(pid) if not past else None
    facts["who"] = full_name(short_name(process) if process is not None and process.name == name else name, pid)
    if past:  # reported now, but in the past
        facts["died_wall"] = event.wall
    if len(alike) > 1:
        facts |= {"kills": len(alike)} if past else {"more": len(alike) - 1}
        if past and resource_of(event) != "ram":
            facts["victims"] = _counted_by_name(alike)
        else:
            facts["also"] = _counted_by_name(kill for kill in alike if kill is not event)
    return facts


def _counted_by_name(kills: Iterable[Event]) -> tuple[Fact, ...]:
    victims = Counter(str(kill.fields.get("victim", "?")) for kill in kills).most_common()
    return tuple(say("{count} x {name}", count=count, name=name) for name, count in victims)


def _counted(context: MeasureContext) -> set[str]:
    """Return the resources with kills since the last tick by the counters.

    The machine's counter and those of cgroups rise together but are read at different times: a kill is the machine's if
    no cgroup claims it a tick before or after.
    """
    state, now = context.kills, _counts(context.snapshot)
    before = state.counts or _counts(context.last)
    found, read = risen(before, now), {name == "ram" for name in now}
    # Of two sources one may not answer; of groups that can be read, those not there are gone.
    state.counts = {**now, **{name: count for name, count in before.items() if (name == "ram") not in read}}
    if found and "ram" not in found:
        if "ram" in state.unnamed and state.unnamed["ram"].mono == context.last.mono:
            del state.unnamed["ram"]
        state.group_rose_mono = context.snapshot.mono
    elif state.group_rose_mono == context.last.mono:
        return set()
    return found


def _counts(snapshot: Snapshot) -> dict[str, KillCount]:
    """Return the kernel's counters by resource."""
    machine, hits = snapshot.value(memory.OOM_KILLS), snapshot.family(cgroups.LIMIT_HITS)
    found = {} if machine is None else {"ram": KillCount(int(machine))}
    for labels, kills in snapshot.family(cgroups.OOM_KILLS).items():
        found[f"cgroup:{labels[0]}"] = KillCount(int(kills), None if labels not in hits else int(hits[labels]))
    return found


def _settled(context: MeasureContext) -> Iterator[Signal]:
    """Yield the counted kills, each once its victim is known, or waiting has not helped."""
    unnamed, mono, groups = context.kills.unnamed, context.snapshot.mono, context.kills.counts.keys() - {"ram"}
    for resource, kill in list(unnamed.items()):
        if groups and resource == "ram" and kill.mono == mono:  # a cgroup may claim it at the next tick
            continue
        gone = victim(kill, context.snapshot.processes, resource.partition(":")[2])
        if gone is None and kill.processes and mono - kill.mono <= PATIENCE_SECONDS:
            continue
        del unnamed[resource]
        facts: dict[str, Fact] = {"killed_wall": kill.wall}
        if gone is not None:
            facts |= {"likely": full_name(short_name(gone), gone.pid), "pid": gone.pid, "size_bytes": gone.held_bytes}
        yield Signal(resource, 1.0, facts)


def risen(before: Mapping[str, KillCount], now: Mapping[str, KillCount]) -> set[str]:
    """Return the resources with kills since the last tick, by their counters.

    A cgroup's counter includes its descendants, and victims of a full machine, whose counter includes all: so only
    cgroups that hit their limit meanwhile count, among nested ones the innermost, and the machine where no cgroup does.
    """
    found = {
        name
        for name, counts in now.items()
        if (then := before.get(name)) is not None
        and counts.kills > then.kills
        # it hit its limit, as far as known
        and (then.limit_hits is None or counts.limit_hits is None or counts.limit_hits > then.limit_hits)
    }

    def holds(name: str) -> bool:
        return any(other != name and (name == "ram" or f"{other}/".startswith(f"{name}/")) for other in found)

    return {name for name in found if not holds(name)}


def victim(kill: UnnamedKill, now: Iterable[ProcessSample], group: str = "") -> ProcessSample | None:
    """Return the most likely victim of an unnamed kill; None where no process fits.

    It existed before and not ``now``, and was in ``group`` where a cgroup hit its limit. The forecast's culprit is
    preferred if it is gone, else the largest.
    """
    alive = {process.key for process in now}
    gone = [
        process
        for process in kill.processes
        if process.key not in alive
        and process.held_bytes >= MIN_BYTES
        and (not group or not process.cgroup or process.within(group))
    ]
    culprits = [process for process in gone if process.pid == kill.growing]
    return max(culprits or gone, key=lambda process: process.held_bytes, default=None)
