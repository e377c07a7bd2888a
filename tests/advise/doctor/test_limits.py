"""The doctor's limits of the machine and of WSL: at each, and just below it."""

from __future__ import annotations

import pytest

from tests.advise.doctor.conftest import outcome

WSL = {"/dev/dxg": ""}
GIB = 1 << 30
MIB = 1 << 20
RTC = "/sys/class/rtc/rtc0/since_epoch"
GROUP = "/sys/fs/cgroup/wsl-user/memory"
NOW = 1_790_000_000


def meminfo(**kilobytes: int) -> dict[str, str]:
    return {"/proc/meminfo": "".join(f"{name}: {count} kB\n" for name, count in kilobytes.items())}


def relays(count: int) -> dict[str, str]:
    return {f"/proc/{900 + i}/comm": "Relay\n" for i in range(count)}


def sysctl(name: str, value: object) -> dict[str, str]:
    return {f"/proc/sys/{name}": f"{value}\n"}


def stalled(percent: str) -> dict[str, str]:
    line = f"avg10={percent} avg60=0.00 avg300=0.00 total=0\n"
    return {"/proc/pressure/memory": f"some avg10=99.00\nfull {line}"}


def mounts(*lines: str) -> dict[str, str]:
    return {"/proc/self/mounts": "".join(f"{line} 0 0\n" for line in lines)}


NO_SWAP = meminfo(MemTotal=32 * MIB, SwapTotal=0)
SMALL = meminfo(MemTotal=15 * MIB - 1, MemAvailable=MIB)
IDLE = "WSL stops this distro {} after its last terminal closes"
KEEPS = "or: wslgpud wslconfig apply training"


@pytest.mark.parametrize(
    ("check", "files", "state", "found"),
    [
        (
            "memory.size",
            meminfo(MemTotal=15 * MIB),
            "note",
            "15 GiB; how much is available is not told, so nothing warns of its end",
        ),
        ("memory.size", meminfo(MemTotal=15 * MIB, MemAvailable=MIB), "good", "15 GiB, 1.0 GiB of it available"),
        ("memory.size", SMALL, "note", "only 15 GiB"),
        ("memory.size", SMALL | WSL, "note", "WSL has only 15 GiB"),
        ("memory.swap", meminfo(MemTotal=32 * MIB), "could not tell", "/proc/meminfo does not say"),
        ("memory.swap", meminfo(MemTotal=32 * MIB, SwapTotal=4 * MIB), "good", "4.0 GiB"),
        ("memory.swap", meminfo(MemTotal=32 * MIB, SwapTotal=4 * MIB - 1), "note", "4.0 GiB for 32 GiB of RAM"),
        ("memory.swap", NO_SWAP, "problem", "there is none"),
        ("memory.swap", NO_SWAP | WSL, "problem", "there is none"),
        ("memory.swap", NO_SWAP | WSL | {"/proc/uptime": "60.0 9.0\n"}, "problem", "there is none"),
        (
            "memory.swap",
            NO_SWAP | WSL | {"/proc/uptime": "59.9 99.0\n"},
            "could not tell",
            "WSL adds swap some seconds after it starts; check again in a minute",
        ),
        ("memory.swap", NO_SWAP | {"/proc/uptime": "5.0 9.0\n"}, "problem", "there is none"),
        (
            "memory.thrashing",
            {"/proc/pressure/memory": "some avg10=1\n"},
            "could not tell",
            "/proc/pressure/memory does not say",
        ),
        ("memory.thrashing", stalled("9.40"), "good", "programs stalled on memory for 9 % of the last 10 s"),
        ("memory.thrashing", stalled("10.00"), "problem", "all programs stalled on memory for 10 % of the last 10 s"),
        ("memory.killed", {}, "could not tell", "/proc/vmstat does not say"),
        ("memory.killed", {"/proc/vmstat": "oom_kill 0\n"}, "good", "none since boot"),
        ("memory.killed", {"/proc/vmstat": "oom_kill 1\n"}, "note", "1 process killed for lack of memory since boot"),
        ("kernel.swappiness", sysctl("vm/swappiness", 0), "note", "0"),
        ("kernel.swappiness", sysctl("vm/swappiness", 1), "good", "1"),
        ("kernel.swappiness", sysctl("vm/swappiness", 60), "good", "60"),
        ("kernel.swappiness", sysctl("vm/swappiness", 61), "note", "61"),
        (
            "kernel.swappiness",
            sysctl("vm/swappiness", "many"),
            "could not tell",
            "/proc/sys/vm/swappiness does not hold a number",
        ),
        ("kernel.overcommit", sysctl("vm/overcommit_memory", 0), "good", "0"),
        (
            "kernel.overcommit",
            sysctl("vm/overcommit_memory", 1),
            "note",
            "1: every allocation succeeds until something is killed",
        ),
        (
            "kernel.overcommit",
            sysctl("vm/overcommit_memory", 2),
            "note",
            "2: programs that reserve much address space, as CUDA does, may not start",
        ),
        ("kernel.max_map_count", sysctl("vm/max_map_count", 262143), "note", "262143"),
        ("kernel.max_map_count", sysctl("vm/max_map_count", 262144), "good", "262144"),
        ("kernel.max_map_count", sysctl("vm/max_map_count", (1 << 31) - 1), "good", "2147483647"),
        ("kernel.inotify", sysctl("fs/inotify/max_user_watches", 65535), "note", "65535"),
        ("kernel.inotify", sysctl("fs/inotify/max_user_watches", 65536), "good", "65536"),
        ("kernel.pressure", {}, "note", "the kernel does not report it"),
        ("kernel.pressure", WSL | sysctl("kernel/osrelease", "5.15.1-x"), "note", "Linux 5.15.1 has none"),
        ("kernel.pressure", WSL | sysctl("kernel/osrelease", "6.18.1-x"), "note", "built into the kernel, but off"),
        ("kernel.memory_cgroup", mounts("tmpfs / tmpfs rw"), "could not tell", "/sys/fs/cgroup shows no controllers"),
        ("kernel.memory_cgroup", mounts("cgroup /sys/fs/cgroup/memory cgroup rw,memory"), "good", "version 1"),
        (
            "kernel.memory_cgroup",
            mounts("cgroup /c cgroup rw,cpu"),
            "could not tell",
            "/sys/fs/cgroup shows no controllers",
        ),
        ("kernel.memory_cgroup", {"/sys/fs/cgroup/cgroup.controllers": "cpu memory\n"}, "good", "version 2"),
        (
            "kernel.memory_cgroup",
            mounts("tmpfs / tmpfs rw")
            | {
                "/sys/fs/cgroup/cgroup.controllers": "cpu\n",
                "/proc/cgroups": "#subsys_name\thierarchy\tnum_cgroups\tenabled\nmemory\t5\t120\t1\n",
            },
            "note",
            "version 1 holds the memory controller, and is not mounted here",
        ),
        ("memory.limited", {f"{GROUP}.max": "max\n"}, "not applicable", "WSL sets none here"),
        ("memory.limited", {f"{GROUP}.max": "1024\n"}, "not applicable", "WSL sets none here"),
        (
            "memory.limited",
            {f"{GROUP}.max": f"{20 * GIB}\n", f"{GROUP}.current": f"{19 * GIB}\n"},
            "good",
            "19 of 20 GiB that WSL allows all programs together",
        ),
        (
            "memory.limited",
            {f"{GROUP}.max": f"{20 * GIB}\n", f"{GROUP}.current": f"{19 * GIB + 1}\n"},
            "note",
            "19 of 20 GiB that WSL allows all programs together",
        ),
        ("disk.state", mounts("tmpfs /tmp tmpfs rw"), "could not tell", "no mount holds /var/lib/wslgpud"),
        ("disk.state", mounts("srv / nfs4 rw"), "problem", "/var/lib/wslgpud is on nfs4"),
        ("disk.state", mounts("/dev/sda / ext4 ro"), "problem", "/var/lib/wslgpud is read-only"),
        ("clock.daemons", {"/proc/7/comm": "systemd-timesyn\n"}, "note", "systemd-timesyn sets it as well"),
        ("clock.skew", {RTC: f"{NOW + 5}\n"}, "good", "within 5 s of the hardware clock"),
        ("clock.skew", {RTC: f"{NOW - 5}\n"}, "good", "within 5 s of the hardware clock"),
        ("clock.skew", {RTC: f"{NOW + 6}\n"}, "note", "6 s behind the hardware clock"),
        ("clock.skew", WSL | {RTC: f"{NOW - 6}\n"}, "problem", "6 s ahead of the hardware clock"),
        ("clock.skew", {RTC: f"{NOW + 905}\n"}, "good", "agrees with the hardware clock, which keeps local time"),
        ("clock.skew", {RTC: f"{NOW + 906}\n"}, "note", "15 min behind the hardware clock"),
        (
            "clock.skew",
            {RTC: f"{NOW + 14 * 3600 + 5}\n"},
            "good",
            "agrees with the hardware clock, which keeps local time",
        ),
        ("clock.skew", {RTC: f"{NOW - 14 * 3600 - 900}\n"}, "note", "14 h ahead of the hardware clock"),
        ("docker.nvidia", {}, "not applicable", "Docker is not installed here"),
        ("docker.nvidia", {"/usr/bin/dockerd": ""}, "note", "Docker has no NVIDIA runtime"),
        ("docker.nvidia", {"/usr/bin/dockerd": "", "/etc/cdi/nvidia.yaml": ""}, "good", "through CDI"),
        (
            "docker.nvidia",
            {"/usr/bin/dockerd": "", "/etc/docker/daemon.json": "{"},
            "problem",
            "/etc/docker/daemon.json is not valid JSON",
        ),
        (
            "docker.nvidia",
            {"/usr/bin/dockerd": "", "/etc/docker/daemon.json": '{"runtimes": {"runc": {}}}'},
            "note",
            "Docker has no NVIDIA runtime",
        ),
        (
            "docker.nvidia",
            {"/usr/bin/dockerd": "", "/etc/docker/daemon.json": '{"runtimes": {"nvidia": {}}}'},
            "good",
            "through NVIDIA's runtime",
        ),
        ("docker.nvidia", {"/usr/bin/dockerd": "", "/usr/bin/com.docker.cli": ""}, "good", "through Docker Desktop"),
        ("rights.processes", mounts("proc /proc proc rw,hidepid=invisible"), "note", "hidden from this user (hidepid)"),
        ("rights.processes", mounts("proc /proc proc rw,hidepid=0"), "good", "visible"),
        ("rights.processes", mounts("proc /proc proc rw,hidepid=off"), "good", "visible"),
        ("rights.processes", mounts("tmpfs /tmp tmpfs rw,hidepid=2"), "good", "visible"),
        ("wsl.kernel", sysctl("kernel/osrelease", "4.19.0"), "good", "4.19.0"),
        ("wsl.kernel", WSL | sysctl("kernel/osrelease", "5.10.42-x"), "problem", "5.10.42-x"),
        ("wsl.kernel", WSL | sysctl("kernel/osrelease", "5.10.43-x"), "good", "5.10.43-x"),
        ("wsl.kernel", sysctl("kernel/osrelease", "4.4-Microsoft"), "problem", "this is WSL 1, which has no GPU"),
        (
            "wsl.systemd",
            {"/proc/1/comm": "runit\n"},
            "note",
            "process 1 is runit: have this machine's init system start 'wslgpud run'",
        ),
        ("wsl.systemd", WSL | {"/proc/1/comm": "init\n"}, "problem", "off: process 1 is init"),
        ("wsl.relays", relays(19), "good", "19 are left"),
        ("wsl.relays", relays(20), "problem", "20 left behind: new terminals soon hang or end with E_UNEXPECTED"),
    ],
)
def test_each_limit_is_told_from_there_on_and_not_before(machine, check, files, state, found):
    said = outcome(check, machine(files))

    assert (said.state, str(said.found)) == (state, found)


@pytest.mark.parametrize(
    ("mebibytes", "wsl", "advised"), [(4, True, "swap=4GB"), (32, True, "swap=13GB"), (32, False, "fallocate -l 16G")]
)
def test_the_swap_that_is_advised_is_two_fifths_of_the_memory(machine, mebibytes, wsl, advised):
    files = meminfo(MemTotal=mebibytes * MIB, SwapTotal=0) | (WSL if wsl else {})

    assert advised in str(outcome("memory.swap", machine(files)).remedy)


@pytest.mark.parametrize(
    ("check", "path", "left", "state"),
    [
        ("disk.space", "/", 5 * GIB, "good"),
        ("disk.space", "/", 5 * GIB - 1, "problem"),
        ("disk.windows", "/mnt/c", 20 * GIB, "good"),
        ("disk.windows", "/mnt/c", 20 * GIB - 1, "note"),
        ("disk.windows", "/mnt/c", 5 * GIB, "note"),
        ("disk.windows", "/mnt/c", 5 * GIB - 1, "problem"),
        ("disk.windows", "/", 5 * GIB, "could not tell"),
    ],
)
def test_a_disk_is_full_below_these_sizes(machine, check, path, left, state):
    drives = mounts(r"C:\134 /mnt/c 9p rw,aname=drvfs;path=C:\\", "/dev/sdc / ext4 rw")
    here = machine(drives, disks={path: [10**12, left, left, 1, 1]})

    assert outcome(check, here).state == state


@pytest.mark.parametrize(
    ("said", "state", "found"),
    [("2.0.0\n", "good", "WSL 2.0.0"), ("1.9.9\n", "note", "WSL 1.9.9"), ("", "note", "too old to report its version")],
)
def test_wsl_is_to_be_updated_below_2_0(machine, said, state, found):
    here = machine(WSL, commands={"wslinfo --version": said})

    told = outcome("wsl.version", here)
    assert (told.state, str(told.found)) == (state, found)


@pytest.mark.parametrize(
    ("setting", "state", "found"),
    [
        ("", "note", IDLE.format("15 s")),
        ("instanceIdleTimeout=30000", "note", IDLE.format("30 s")),
        ("instanceIdleTimeout=0", "note", IDLE.format("1 s")),
        ("instanceIdleTimeout=-1", "good", "instanceIdleTimeout=-1: the distro keeps running"),
    ],
)
def test_how_long_a_distro_stays_is_that_of_its_setting(machine, setting, state, found):
    files = WSL | mounts(r"C:\134 /mnt/c 9p rw,aname=drvfs;path=C:\\")
    here = machine(files | {"/mnt/c/Users/me/.wslconfig": f"[general]\n{setting}\n"})
    said = outcome("wsl.stays", here)

    assert (said.state, str(said.found)) == (state, found)
    assert str(said.remedy).endswith(KEEPS) is (state == "note")


@pytest.mark.parametrize(
    ("files", "state", "found"),
    [
        ({}, "note", "no Windows program can be started: the binfmt_misc entry is gone (microsoft/WSL#8843)"),
        ({"WSLInterop-late": "disabled\n"}, "note", "switched off in binfmt_misc"),
        ({"WSLInterop": "enabled\n"}, "good", "WSLInterop is registered"),
    ],
)
def test_windows_programs_take_an_entry_that_is_on(machine, files, state, found):
    entries = {f"/proc/sys/fs/binfmt_misc/{name}": text for name, text in files.items()}
    said = outcome("wsl.interop", machine(entries | {"/run/WSL/1_interop": ""}))

    assert (said.state, str(said.found)) == (state, found)
