"""Cgroups: every limit that can kill, and none that cannot."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path

import pytest

from wslgpud.config import Config
from wslgpud.host import Host, NoData
from wslgpud.sources import cgroups
from wslgpud.sources.cgroups import CgroupSource

MIB = 1 << 20
V2 = "cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid 0 0\n"
V1 = "tmpfs /sys/fs/cgroup tmpfs rw 0 0\ncgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0\n"
HYBRID = V1 + "cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n"
MEMINFO = {"/proc/meminfo": f"MemTotal: {64 * 1024 * 1024} kB\n"}


def v2(path: str, limit: str, current: int, events_max: int = 0) -> dict[str, str]:
    folder = f"/sys/fs/cgroup{path}"
    return {
        f"{folder}/memory.max": f"{limit}\n",
        f"{folder}/memory.current": f"{current}\n",
        f"{folder}/memory.swap.max": "max\n",
        f"{folder}/memory.swap.current": "4096\n",
        f"{folder}/memory.stat": f"anon 5\ninactive_file {MIB}\nslab_reclaimable {2 * MIB}\nslab 9\n",
        f"{folder}/memory.events": f"low 0\nhigh 0\nmax {events_max}\noom 1\noom_kill 1\noom_group_kill 0\n",
        f"{folder}/memory.events.local": f"low 0\nhigh 0\nmax {events_max}\noom 1\noom_kill 0\noom_group_kill 0\n",
    }


def v1(path: str, limit: int, used: int) -> dict[str, str]:
    folder = f"/sys/fs/cgroup/memory{path}"
    return {
        f"{folder}/memory.limit_in_bytes": f"{limit}\n",
        f"{folder}/memory.usage_in_bytes": f"{used}\n",
        f"{folder}/memory.memsw.limit_in_bytes": f"{limit + MIB}\n",
        f"{folder}/memory.memsw.usage_in_bytes": f"{used + 8192}\n",
        f"{folder}/memory.failcnt": "7\n",
        f"{folder}/memory.stat": f"inactive_file 1\nhierarchical_memory_limit 5\ntotal_inactive_file {MIB}\n",
        f"{folder}/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n",
    }


def test_a_container_of_v2_shows_all_that_its_headroom_needs(machine, values):
    files = {"/proc/self/mounts": V2, **MEMINFO, **v2("/docker/abc", str(512 * MIB), 100 * MIB, 42)}
    files["/sys/fs/cgroup/docker/memory.max"] = "max\n"
    assert values(CgroupSource(machine(files), Config()).read()) == {
        "cgroup_memory_limit_bytes{/docker/abc}": 512 * MIB,
        "cgroup_memory_current_bytes{/docker/abc}": 100 * MIB,
        "cgroup_memory_inactive_file_bytes{/docker/abc}": MIB,
        "cgroup_memory_slab_reclaimable_bytes{/docker/abc}": 2 * MIB,
        "cgroup_swap_current_bytes{/docker/abc}": 4096,
        "cgroup_memory_limit_hits_total{/docker/abc}": 42,
        "cgroup_oom_kills_total{/docker/abc}": 1,
    }


def test_hits_of_a_container_are_not_those_of_its_parent(machine, values):
    around = v2("/wsl-user", str(900 * MIB), 300 * MIB, events_max=5000)
    around["/sys/fs/cgroup/wsl-user/memory.events.local"] = "max 0\noom_kill 0\n"
    inside = v2("/wsl-user/box", str(100 * MIB), 99 * MIB, events_max=5000)
    files = {"/proc/self/mounts": V2, **MEMINFO, **around, **inside}
    found = values(CgroupSource(machine(files), Config()).read())

    assert found["cgroup_memory_limit_hits_total{/wsl-user}"] == 0
    assert found["cgroup_memory_limit_hits_total{/wsl-user/box}"] == 5000


@pytest.mark.parametrize("mounts", [V1, HYBRID], ids=["v1", "hybrid"])
def test_a_container_of_v1_shows_the_same(machine, values, mounts):
    files = {"/proc/self/mounts": mounts, **MEMINFO, **v1("/docker/abc", 512 * MIB, 100 * MIB)}
    files |= v1("", 9223372036854771712, 5000 * MIB)  # how v1 writes "no limit"
    assert values(CgroupSource(machine(files), Config()).read()) == {
        "cgroup_memory_limit_bytes{/docker/abc}": 512 * MIB,
        "cgroup_memory_current_bytes{/docker/abc}": 100 * MIB,
        "cgroup_memory_inactive_file_bytes{/docker/abc}": MIB,
        "cgroup_swap_limit_bytes{/docker/abc}": MIB,
        "cgroup_swap_current_bytes{/docker/abc}": 8192,
        "cgroup_memory_limit_hits_total{/docker/abc}": 7,
        "cgroup_oom_kills_total{/docker/abc}": 3,
    }


def test_inside_a_container_the_root_itself_has_the_limit(machine, values):
    files = {"/proc/self/mounts": V2, **MEMINFO, **v2("", str(512 * MIB), 100 * MIB)}
    found = values(CgroupSource(machine(files), Config()).read())
    assert found["cgroup_memory_limit_bytes{/}"] == 512 * MIB


def test_a_limit_above_the_machines_memory_is_left_out(machine):
    files = {"/proc/self/mounts": V2, **MEMINFO, **v2("/big", str(1 << 40), 100 * MIB)}
    with pytest.raises(NoData, match="no cgroup has a memory limit"):
        CgroupSource(machine(files), Config()).read()


def test_a_limit_equal_to_all_memory_does_not_count_as_a_limit(machine, values):
    whole = 64 << 30
    files = {"/proc/self/mounts": V2, **MEMINFO, **v2("/all", str(whole), MIB), **v2("/less", str(whole - 1), MIB)}
    found = values(CgroupSource(machine(files), Config()).read())
    assert [name for name in found if "limit_bytes" in name] == ["cgroup_memory_limit_bytes{/less}"]


def test_every_limit_counts_if_the_machines_memory_is_unknown(machine, values):
    files = {"/proc/self/mounts": V2, **v2("/big", str(1 << 40), MIB)}
    assert values(CgroupSource(machine(files), Config()).read())["cgroup_memory_limit_bytes{/big}"] == 1 << 40


def test_swap_in_cgroup_v1_is_never_negative(machine, values):
    group = v1("/job", 512 * MIB, 100 * MIB)
    files = {"/proc/self/mounts": V1, **MEMINFO, **group}
    files["/sys/fs/cgroup/memory/job/memory.memsw.usage_in_bytes"] = f"{100 * MIB - 4096}\n"
    files["/sys/fs/cgroup/memory/job/memory.memsw.limit_in_bytes"] = f"{512 * MIB}\n"
    found = values(CgroupSource(machine(files), Config()).read())
    assert (found["cgroup_swap_current_bytes{/job}"], found["cgroup_swap_limit_bytes{/job}"]) == (0, 0)


def test_only_v1_has_limits_below_a_group_without_controller(machine):
    two = machine({"/proc/self/mounts": V2, **MEMINFO, **v2("/a/b", str(MIB), 1), **v2("/c", str(MIB), 2)})
    one = machine({"/proc/self/mounts": V1, **MEMINFO, **v1("/a/b", MIB, 1), **v1("/c", MIB, 2)})
    found = [[limited.path for limited in cgroups.scan(host, cgroups.find_tree(host))] for host in (two, one)]
    assert found == [["/c"], ["/c", "/a/b"]]


@pytest.mark.parametrize(
    ("mounts", "tree"),
    [
        ("cgroup /c/cpu cgroup rw,cpu 0 0\n" + V1, ("/sys/fs/cgroup/memory", 1)),
        ("cgroup2 /first cgroup2 rw 0 0\n" + V2, ("/first", 2)),
        ("shortened\n" + V2, ("/sys/fs/cgroup", 2)),
    ],
    ids=["other controllers", "mounted twice", "malformed"],
)
def test_the_first_mount_with_the_memory_controller_is_used(machine, mounts, tree):
    assert cgroups.find_tree(machine({"/proc/self/mounts": mounts})) == tree


def test_without_a_hierarchy_there_is_no_limit(machine):
    with pytest.raises(NoData, match="no cgroup hierarchy with a memory controller is mounted"):
        cgroups.find_tree(machine({"/proc/self/mounts": "cgroup /c/cpu cgroup rw,cpu 0 0\n"}))


class Growing:
    """A machine whose cgroups change while a source watches it."""

    def __init__(self, machine, mounts: str = V2) -> None:
        root = "/sys/fs/cgroup" if mounts == V2 else "/sys/fs/cgroup/memory"
        self.mounts, self.now = mounts, 5000.0
        self.host = machine({"/proc/self/mounts": mounts, **MEMINFO, f"{root}/keep": ""})
        self.host.clock = self
        self.source = CgroupSource(self.host, Config())
        self.tell(3)

    def mono(self) -> float:
        return self.now

    def write(self, files: dict[str, str]) -> None:
        for path, text in files.items():
            file = Path(self.host.path(path))
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)

    def tell(self, number: int, dying: int = 0) -> None:
        if self.mounts == V2:
            self.write({"/sys/fs/cgroup/cgroup.stat": f"nr_descendants {number}\nnr_dying_descendants {dying}\n"})
        else:
            self.write({"/proc/cgroups": f"#subsys_name\thierarchy\nmemory\t4\t{number + dying}\t1\n"})

    def sees(self, path: str, seconds: float) -> bool:
        self.now += seconds
        try:
            return any(path in reading.labels for reading in self.source.read().readings)
        except NoData:
            return False


def test_slow_scans_still_run_every_half_minute(machine, monkeypatch):
    growing, scans = Growing(machine), []

    def slow(host, tree):
        scans.append(growing.now)
        growing.now += 2.0
        return []

    monkeypatch.setattr(cgroups, "scan", slow)
    for tick in range(120):
        growing.tell(tick)
        growing.sees("/job", 1.0)
    assert [round(later - before) for before, later in pairwise(scans)] == [30] * (len(scans) - 1)
    assert len(scans) > 3


@pytest.mark.parametrize("mounts", [V2, V1], ids=["v2", "v1"])
def test_a_new_group_is_seen_at_the_next_tick(machine, mounts):
    growing = Growing(machine, mounts)
    assert not growing.sees("/job", 0.0)
    assert not growing.sees("/job", 3.0)
    growing.write(v2("/job", str(512 * MIB), MIB) if mounts == V2 else v1("/job", 512 * MIB, MIB))
    growing.tell(4)
    assert growing.sees("/job", 1.0)


def test_a_new_group_given_its_limit_a_moment_later_is_seen_soon(machine):
    growing = Growing(machine)
    assert not growing.sees("/job", 0.0)
    assert not growing.sees("/job", 3.0)
    growing.write(v2("/job", "max", MIB))
    growing.tell(3, dying=1)  # another one has ended at the same moment
    assert not growing.sees("/job", 1.0)
    growing.write(v2("/job", str(512 * MIB), MIB))
    assert growing.sees("/job", 2.0)


def test_a_new_limit_on_an_old_group_is_seen_in_half_a_minute(machine):
    growing = Growing(machine)
    assert not growing.sees("/job", 0.0)
    assert not growing.sees("/job", 3.0)
    growing.write(v2("/job", str(512 * MIB), MIB))
    assert growing.sees("/job", 30.0)


@pytest.mark.parametrize("mounts", [V1, V2], ids=["v1", "v2"])
def test_a_changed_or_lifted_limit_is_seen_at_the_next_tick(machine, values, mounts):
    def group(limit):
        return v2("/job", str(limit), MIB) if mounts is V2 else v1("/job", limit, MIB)

    growing, seen = Growing(machine, mounts), []
    for limit in (512 * MIB, 256 * MIB, 1024 * MIB, "max" if mounts is V2 else 2**63 - 4096):
        growing.write(group(limit))
        seen.append(values(growing.source.read()).get("cgroup_memory_limit_bytes{/job}"))
    assert seen == [512 * MIB, 256 * MIB, 1024 * MIB, None]


def test_constant_group_creation_does_not_cause_constant_scans(machine, monkeypatch):
    growing, scans = Growing(machine), []

    def slow(host, tree):
        scans.append(growing.now)
        growing.now += 0.05
        return []

    monkeypatch.setattr(cgroups, "scan", slow)
    for tick in range(300):
        growing.tell(tick)
        growing.sees("/job", 1.0)
    assert 20 <= len(scans) <= 32  # each costs 50 ms, and they may have half a percent of a core


def test_our_own_service_is_not_watched(machine):
    ours = v2("/system.slice/wslgpud.service", str(256 * MIB), 60 * MIB)
    host = machine({"/proc/self/mounts": V2, **MEMINFO, "/sys/fs/cgroup/system.slice/memory.max": "max\n", **ours})
    with pytest.raises(NoData):
        CgroupSource(host, Config()).read()


def test_of_many_the_tightest_stay_and_wsls_own_limit_always(machine):
    files = {"/proc/self/mounts": V2, **MEMINFO, **v2("/wsl-user", str(60 << 30), MIB)}
    for i in range(1, 41):
        files |= v2(f"/box{i}", str((100 + i) * MIB), 50 * MIB)
    sample = CgroupSource(machine(files), Config()).read()
    paths = {r.labels[0] for r in sample.readings}
    assert paths == {"/wsl-user", *(f"/box{i}" for i in range(1, 20))}


def test_a_cgroup_that_ends_leaves_the_others(machine, values):
    host = machine({"/proc/self/mounts": V2, **MEMINFO, **v2("/a", str(MIB), 1), **v2("/b", str(MIB), 2)})
    source = CgroupSource(host, Config())
    source.read()
    Path(host.path("/sys/fs/cgroup/a/memory.stat")).unlink()
    found = values(source.read())
    assert found["cgroup_memory_current_bytes{/b}"] == 2
    assert not [name for name in found if "{/a}" in name]


def test_a_limit_set_on_this_machine_is_found(limited_cgroup, values):
    found = values(CgroupSource(Host(), Config()).read())
    assert found[f"cgroup_memory_limit_bytes{{/{limited_cgroup.name}}}"] == 32 * MIB
    assert found[f"cgroup_oom_kills_total{{/{limited_cgroup.name}}}"] == 0


def test_a_group_with_a_non_utf_8_name_is_watched_and_reported(machine, values):
    host = machine({"/proc/self/mounts": V2, **MEMINFO, **v2("/x", str(512 * MIB), 100 * MIB)})
    group = os.fsencode(host.path("/sys/fs/cgroup/x"))
    os.rename(group, group[:-1] + b"tr\xe4ning")  # noqa: PTH104 - bytes are no path
    found = values(CgroupSource(host, Config()).read())

    assert found["cgroup_memory_current_bytes{/tr\N{REPLACEMENT CHARACTER}ning}"] == 100 * MIB


@pytest.mark.parametrize(
    ("files", "own"),
    [
        (
            {"/proc/self/mounts": V2, **v2("/a", str(900 * MIB), 7), **v2("/a/b", "max", 6), **v2("/a/b/c", "4096", 5)},
            "3:cpu,memory:/elsewhere\n0::/a/b/c\n",
        ),
        (
            {"/proc/self/mounts": V1, **v1("/a", 900 * MIB, 7), **v1("/a/b/c", 4096, 5)},
            "3:cpu,memory:/a/b/c\n1:memory_other:/elsewhere\n0::/elsewhere\n",
        ),
    ],
    ids=["v2", "v1"],
)
def test_limits_around_this_process_are_found_innermost_first(machine, files, own):
    elsewhere = {**v2("/elsewhere", "8192", 9), **v1("/elsewhere", 8192, 9)}
    host = machine({**MEMINFO, **elsewhere, **files, "/proc/self/cgroup": own})
    found = cgroups.around_us(host, cgroups.find_tree(host))

    assert [(one.path, one.limit, one.current) for one in found] == [("/a/b/c", 4096, 5), ("/a", 900 * MIB, 7)]
