"""Stories of groups that run out of memory, played through engine and manager as the daemon does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from tests.page.stage import Stage, snapshot_of
from wslgpud.alerts.manager import AlertManager, Installation
from wslgpud.config import Alerts
from wslgpud.model import CgroupState, Event, Observation, ProcessSample, RamState, Sample, SourceReport
from wslgpud.risk.engine import RiskEngine

GIB = 1 << 30
LIMIT = 3 * GIB
#: leaks at 20 MiB/s and is killed; fills its group within two seconds and is killed; leaks and stops
TRAIN, LOAD, CACHE = "/user.slice/train.scope", "/user.slice/load.scope", "/user.slice/cache.scope"
TRAIN_KILLED, LOAD_KILLED, CACHE_STOPPED, END = 240, 150, 205, 330
PIDS = {TRAIN: 8932, LOAD: 9120, CACHE: 7001}
SCRIPTS = {TRAIN: "train.py", LOAD: "load.py", CACHE: "cache.py"}


def held(group: str, t: float) -> int:
    """Return a group's memory at a second."""
    if group == TRAIN:
        return GIB // 4 if t >= TRAIN_KILLED else GIB // 2 + int(max(0.0, t - 110) * 20 * (1 << 20))
    if group == LOAD:
        return GIB // 8 if t >= LOAD_KILLED else GIB // 8 + int(max(0.0, t - LOAD_KILLED + 2) * 1.3 * GIB)
    return GIB // 2 + int(max(0.0, min(t, CACHE_STOPPED) - 120) * 22 * (1 << 20))


def alive(group: str, t: float) -> bool:
    """Tell whether the group's program still runs."""
    return not (group == TRAIN and t >= TRAIN_KILLED) and not (group == LOAD and t >= LOAD_KILLED)


def killed(group: str, t: float) -> int:
    """Return how many the kernel has killed in a group."""
    return int(not alive(group, t))


def observations() -> Iterator[Observation]:
    """Yield five minutes, second by second."""
    for t in range(END):
        groups = tuple(
            CgroupState(g, LIMIT, held(g, t), max_events_total=9 * killed(g, t), oom_kills_total=killed(g, t))
            for g in PIDS
        )
        running = tuple(
            ProcessSample(pid, 100, "python3", held(g, t), 0, command=f"/usr/bin/python3 {SCRIPTS[g]}", cgroup=g)
            for g, pid in PIDS.items()
            if alive(g, t)
        )
        used = sum(held(g, t) for g in PIDS)
        yield Observation(float(t), RamState(24 * GIB, 20 * GIB - used), cgroups=groups, processes=running, wsl=True)


def kernel_kill(group: str, wall: float) -> Event:
    """Return the kernel's log lines of a kill."""
    fields: dict[str, str | int | float] = {
        "victim": "python3",
        "pid": PIDS[group],
        "size_bytes": 29 * GIB // 10,
        "anon_bytes": 29 * GIB // 10,
        "shmem_bytes": 0,
        "constraint": "CONSTRAINT_MEMCG",
        "cgroup": group,
        "past": 0,
    }
    text = "the kernel killed {victim} (pid {pid}, {size_bytes}): the memory limit of {cgroup} was used up"
    return Event("oom_kill", wall, text, fields)


def three_groups(stage: Stage, folder: Path) -> AlertManager:
    """Play them; the last moment becomes now. Return the manager, whose incidents they are."""
    engine = RiskEngine()
    wall, mono = stage.clock.wall() - END, stage.clock.mono() - END
    manager = AlertManager(Alerts(), [], stage.store, stage.clock, Installation("pc", folder, folder, "en"))
    for number, seen in enumerate(observations()):
        found = engine.observe(seen, wall + seen.t)
        snapshot = snapshot_of(seen, found.forecasts, wall, mono, number)
        moments = {TRAIN_KILLED: TRAIN, LOAD_KILLED: LOAD}
        events = (kernel_kill(moments[number], snapshot.wall - 0.4),) if number in moments else ()
        log = SourceReport("kernel_log", "ok", Sample(events=events), snapshot.mono, 0.0)
        snapshot = replace(snapshot, reports=(*snapshot.reports, log))
        rows = [replace(change, mono=snapshot.mono) for change in found.changes]
        manager.tick(snapshot, found.forecasts, rows)
        stage.store.append(snapshot)
    stage.ledger, stage.lost = manager._ledger, manager.unseen()
    stage.publish(snapshot, seen, found.forecasts, keep=False)
    stage.store.flush()
    return manager
