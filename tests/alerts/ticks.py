"""Snapshots made by hand, one tick after another."""

from __future__ import annotations

from collections.abc import Iterable
from operator import itemgetter

from wslgpud.alerts.incidents import Incident, grouped
from wslgpud.model import (
    Event,
    GpuSample,
    Health,
    Level,
    ProcessSample,
    Reading,
    Sample,
    Snapshot,
    SourceReport,
    Transition,
)
from wslgpud.words import Message

START = 1_800_000_000.0


def tick(
    t: float,
    *readings: Reading,
    events: tuple[Event, ...] = (),
    gpus: tuple[GpuSample, ...] | None = None,
    processes: tuple[ProcessSample, ...] | None = None,
    jump: float = 0.0,
    **health: Health,
) -> Snapshot:
    """Return what a tick at ``t`` seconds saw; ``health`` is that of sources by name."""
    states: dict[str, Health] = {"kernel_log": "ok", **health}
    reports = [SourceReport("made", "ok", Sample(readings, processes, gpus, events), t, 0.0)]
    reports += [
        SourceReport(name, state, Sample(), t, 0.0, "" if state == "ok" else "it broke", last_success_wall=START)
        for name, state in states.items()
    ]
    return Snapshot(START + t + jump, t, int(t), tuple(reports))


def oom_kill(victim: str = "python", pid: int = 7, *, cgroup: str = "", past: int = 0, wall: float = START) -> Event:
    fields = {
        "victim": victim,
        "pid": pid,
        "size_bytes": 5 << 30,
        "anon_bytes": 5 << 30,
        "shmem_bytes": 0,
        "constraint": "CONSTRAINT_MEMCG" if cgroup else "CONSTRAINT_NONE",
        "cgroup": cgroup,
        "past": past,
    }
    text = "the kernel killed {victim} (pid {pid}, {size_bytes}): all memory was used up"
    return Event("oom_kill", wall, text, fields)


def transition(
    t: float, old: Level, new: Level, *, rule: str = "memory_exhaustion", resource: str = "ram", headline: str = "x"
) -> Transition:
    return Transition(START + t, t, resource, rule, old, new, Message(headline))


def fold(rows: Iterable[tuple[int, Transition]]) -> list[Incident]:
    """Return the incidents that a few rows in any order make up, by number."""
    return sorted(grouped(sorted(rows, key=itemgetter(0))), key=lambda incident: incident.id)
