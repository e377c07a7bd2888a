"""Somebody who was given a part of the tree of cgroups neither hides other groups nor floods with alerts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.alerts.ticks import oom_kill, tick
from wslgpud.alerts.rules import FLOOD_SECONDS, MAX_NEWS, OOM_KILL, RuleEngine
from wslgpud.config import Config
from wslgpud.host import Host
from wslgpud.model import Level
from wslgpud.sources import cgroups
from wslgpud.sources.cgroups import CgroupSource, CgroupTree, scan

MIB = 1 << 20
TREE = CgroupTree("/sys/fs/cgroup", 2)
USER = "/user.slice/user-1001.slice/user@1001.service"
OTHER = "/user.slice/user-1002.slice/user@1002.service"


class SharedMachine(Host):
    """A machine whose cgroups belong to whom a test says, as only root can give folders away."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.owners: dict[str, int] = {}

    def owner(self, path: str) -> int:
        return self.owners.get(path, 0)

    def add(self, path: str, owner: int) -> Path:
        """Make a cgroup without a limit, as systemd makes ``user@1001.service``, and those around it."""
        top = Path(self.path(TREE.root))
        folder = top / path.lstrip("/")
        folder.mkdir(parents=True, exist_ok=True)
        for one in (folder, *folder.parents):
            if one == top:
                break
            if not (one / "memory.max").exists():
                (one / "memory.max").write_text("max\n")
        self.owners[TREE.root + path] = owner
        return folder


def group(machine: SharedMachine, path: str, limit: int = 100 * MIB, left: int = 50 * MIB, owner: int = 0) -> None:
    folder = machine.add(path, owner)
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text(f"{limit - left}\n")
    (folder / "memory.stat").write_text("inactive_file 0\n")
    (folder / "memory.events").write_text("max 0\noom_kill 0\n")
    (folder / "memory.events.local").write_text("max 0\noom_kill 0\n")


@pytest.fixture
def machine(tmp_path: Path) -> SharedMachine:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/mounts").write_text("cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n")
    (tmp_path / "proc/meminfo").write_text(f"MemTotal: {64 * 1024 * 1024} kB\n")
    return SharedMachine(tmp_path)


def shown(machine: SharedMachine) -> list[str]:
    return [found.path for found in scan(machine, TREE)]


def test_one_users_hundred_full_groups_hide_nobody_elses(machine):
    group(machine, "/system.slice/docker-a.scope", left=40 * MIB)
    machine.add(USER, 1001)
    machine.add(OTHER, 1002)
    group(machine, f"{OTHER}/training", left=30 * MIB, owner=1002)
    for i in range(100):
        group(machine, f"{USER}/tiny{i:03}", limit=MIB, left=0, owner=1001)

    found = shown(machine)
    assert found[0] == "/system.slice/docker-a.scope"
    assert f"{OTHER}/training" in found
    assert len(found) == 20


def test_groups_handed_to_many_users_count_for_the_first_owner(machine):
    """A user with subordinate ids can be many."""
    machine.add(USER, 1001)
    machine.add(OTHER, 1002)
    group(machine, f"{OTHER}/training", owner=1002)
    for i in range(100):
        group(machine, f"{USER}/tiny{i:03}", limit=MIB, left=0, owner=100_000 + i)

    assert f"{OTHER}/training" in shown(machine)


def test_root_s_many_leave_a_place_to_a_user(machine):
    for i in range(40):
        group(machine, f"/system.slice/docker-{i:02}.scope", left=i * MIB)
    machine.add(USER, 1001)
    group(machine, f"{USER}/training", owner=1001)

    found = shown(machine)
    assert f"{USER}/training" in found
    assert len(found) == 20
    assert found[:19] == [f"/system.slice/docker-{i:02}.scope" for i in range(19)]


def test_roots_groups_leave_a_quarter_of_the_places_to_users(machine):
    for i in range(40):
        group(machine, f"/system.slice/docker-{i:02}.scope", left=i * MIB)
    for user in (USER, OTHER):
        machine.add(user, 1001)
        for left in range(5):
            group(machine, f"{user}/{left}", left=left * MIB, owner=1001)

    found = shown(machine)
    assert found[14:] == [
        "/system.slice/docker-14.scope",
        *(f"{USER}/0", f"{OTHER}/0", f"{USER}/1", f"{OTHER}/1", f"{USER}/2"),
    ]


def test_a_wide_tree_of_a_user_s_uses_up_nobody_else_s_looks(machine, monkeypatch):
    monkeypatch.setattr(cgroups, "_MAX_FOLDERS", 100)
    machine.add(USER, 1001)
    machine.add(OTHER, 1002)
    for i in range(300):
        group(machine, f"{USER}/wide{i:03}", owner=1001)
    group(machine, f"{OTHER}/a/b/c/training", left=MIB, owner=1002)
    group(machine, "/kubepods.slice/burstable/pod1/container", left=MIB)

    found = shown(machine)
    assert f"{OTHER}/a/b/c/training" in found
    assert "/kubepods.slice/burstable/pod1/container" in found


def test_of_a_desktop_with_many_programs_each_group_is_found(machine):
    machine.add(USER, 1001)
    for i in range(150):
        machine.add(f"{USER}/app.slice/terminal-{i}.scope", 1001)
    group(machine, f"{USER}/user.slice/training.scope", owner=1001)
    group(machine, f"{USER}/user.slice/libpod.scope/container/training", owner=1001)

    assert sorted(shown(machine)) == [
        f"{USER}/user.slice/libpod.scope/container/training",
        f"{USER}/user.slice/training.scope",
    ]


def test_who_calls_a_group_as_our_service_hides_only_that(machine):
    machine.add(USER, 1001)
    group(machine, f"{USER}/wslgpud.service", owner=1001)
    group(machine, f"{USER}/wslgpud.service/below", owner=1001)
    group(machine, f"{USER}/training", owner=1001)

    assert shown(machine) == [f"{USER}/training"]


@pytest.mark.parametrize("name", ["\x1b[2J\x1b]0;owned\x07", "a,b=c\n", "\udce9", "x" * 255, "wslgpud\u202e"])
def test_any_name_is_a_label_that_can_be_stored(name, machine):
    group(machine, f"/{name}", owner=1001)

    labels = {r.labels[0] for r in CgroupSource(machine, Config()).read().readings}
    assert len(labels) == 1
    assert labels.pop().encode()  # UTF-8, as the database wants it


def news(engine: RuleEngine, mono: float, groups: list[str]) -> list[str]:
    """Return the groups of whose kills it is told at a tick."""
    kills = [oom_kill(cgroup=name) for name in groups]
    changes = engine.observe(tick(mono, events=tuple(kills)))
    return [c.resource for c in changes if c.rule == OOM_KILL and c.new > Level.OK]


def test_a_flood_of_kills_by_one_user_hides_no_other_users_kill():
    engine = RuleEngine(since_wall=0.0)
    told = []
    for second in range(100):
        told += news(engine, 1000.0 + second, [f"{USER}/loop{second}-{i}" for i in range(10)])
    assert len(told) == MAX_NEWS

    assert news(engine, 1200.0, [f"{OTHER}/training"]) == [f"cgroup:{OTHER}/training"]
    assert news(engine, 1201.0, ["/system.slice/docker-a.scope"])
    assert news(engine, 1202.0, ["/system.slice/docker-a.scope"]), "a second victim"
    assert news(engine, 1100.0 + FLOOD_SECONDS + 10, [f"{USER}/loop"]), "when the flood is over"
