"""The kernel log: kills for lack of memory and GPU errors, each once, with who and how much."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from wslgpud.config import Config
from wslgpud.host import Host, NoData, SourceError, StoppedClock
from wslgpud.sources.cgroups import CgroupSource
from wslgpud.sources.kernel_lines import PRECEDES_THE_END, parse_line
from wslgpud.sources.logs import KernelLogSource
from wslgpud.sources.memory import MemorySource

# The kernel's generic forms (mm/oom_kill.c of 5.15 to 6.18) and dxgkrnl's lines from
# https://github.com/microsoft/WSL/issues/11293, /9099, /41176 and /41062.
GLOBAL = """\
python3 invoked oom-killer: gfp_mask=0x140cca(GFP_HIGHUSER_MOVABLE|__GFP_COMP), order=0, oom_score_adj=0
oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,\
task_memcg=/user.slice,task=python3,pid=1234,uid=1000
Out of memory: Killed process 1234 (python3) total-vm:50000000kB, anon-rss:41943040kB, file-rss:1024kB, \
shmem-rss:2048kB, UID:1000 pgtables:82000kB oom_score_adj:0
""".splitlines()
CGROUP = """\
oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/wsl-user,\
task_memcg=/wsl-user/x,task=cc1plus,pid=77,uid=1000
Memory cgroup out of memory: Killed process 77 (cc1plus) total-vm:900kB, anon-rss:800kB, file-rss:0kB, \
shmem-rss:0kB, UID:1000 pgtables:8kB oom_score_adj:0
""".splitlines()
BOOT = [
    "hv_vmbus: registering driver dxgkrnl",
    "misc dxg: dxgk: dxgkio_is_feature_enabled: Ioctl failed: -22",
    "misc dxg: dxgk: dxgkio_query_adapter_info: Ioctl failed: -22",
    "misc dxg: dxgk: dxgkio_query_adapter_info: Ioctl failed: -2",
]
DXG = [
    "misc dxg: dxgk: dxgkio_make_resident: Ioctl failed: -12",
    "misc dxg: dxgk: dxgkio_make_resident: Ioctl failed: -12",
    "misc dxg: dxgk: dxgvmb_send_create_process: create_process failed -75",
]


def kmsg(*texts: str, seconds: float = 100.0, priority: int = 6) -> str:
    return "".join(
        f"{priority},{1000 + i},{int((seconds + i) * 1e6)},-;{text}\n SUBSYSTEM=misc\n" for i, text in enumerate(texts)
    )


def read(machine, *texts: str, **kwargs):
    return KernelLogSource(machine({"/dev/kmsg": kmsg(*texts, **kwargs)}), Config()).read()


def test_a_machine_that_ran_full_names_its_victim(machine, values):
    sample = read(machine, *GLOBAL)
    assert values(sample)["kernel_oom_kills_total{global}"] == 1
    assert values(sample)["kernel_oom_kills_total{cgroup}"] == 0
    (event,) = sample.events
    size = (41943040 + 1024 + 2048) * 1024
    assert event.kind == "oom_kill"
    assert dict(event.fields) == {
        "sequence": 1002,
        "past": 1,
        "victim": "python3",
        "pid": 1234,
        "size_bytes": size,
        "anon_bytes": 41943040 * 1024,
        "file_bytes": 1024 * 1024,
        "shmem_bytes": 2048 * 1024,
        "virtual_bytes": 50000000 * 1024,
        "constraint": "CONSTRAINT_NONE",
        "cgroup": "/user.slice",
    }
    assert str(event.message) == "the kernel killed python3 (pid 1234, 40 GiB): all memory was used up"
    # 102 s after boot; this machine's clock stands at 5000 s after boot
    assert event.wall == 1_790_000_000.0 - 5000 + 102


def test_a_limit_that_was_hit_names_the_cgroup(machine, values):
    sample = read(machine, *CGROUP)
    assert values(sample)["kernel_oom_kills_total{cgroup}"] == 1
    (event,) = sample.events
    assert event.fields["cgroup"] == "/wsl-user"
    assert event.fields["constraint"] == "CONSTRAINT_MEMCG"
    assert str(event.message).endswith("all memory that WSL gives programs was used up")


def test_a_containers_limit_is_told_by_its_cgroup(machine):
    """Another cgroup's limit says so, also below WSL's own."""
    lines = [line.replace("oom_memcg=/wsl-user", "oom_memcg=/wsl-user/x") for line in CGROUP]
    (event,) = read(machine, *lines).events
    assert str(event.message).endswith("the memory limit of /wsl-user/x was used up")


def test_a_second_oom_victim_is_not_mixed_with_the_first(machine):
    second = CGROUP[1].replace("process 77 (cc1plus)", "process 78 (ld)")
    first, other = read(machine, *CGROUP, second).events
    assert (first.fields["pid"], first.fields["cgroup"]) == (77, "/wsl-user")
    assert (other.fields["pid"], other.fields["cgroup"]) == (78, "")
    assert other.fields["constraint"] == "CONSTRAINT_MEMCG"


def test_victims_killed_together_share_the_same_group_limit(machine):
    """memory.oom.group: the kernel names the group once, and its members one by one."""
    together = "Tasks in /wsl-user/job are going to be killed due to memory.oom.group set"
    members = [CGROUP[1].replace("process 77 (cc1plus)", f"process {pid} (ld)") for pid in (78, 79)]
    kills = read(machine, *CGROUP, together, *members).events
    assert [(kill.fields["pid"], kill.fields["cgroup"]) for kill in kills] == [
        (77, "/wsl-user"),
        (78, "/wsl-user"),
        (79, "/wsl-user"),
    ]


def test_no_program_can_feign_a_kill(machine, values):
    # what a program writes to /dev/kmsg has a facility of its own
    sample = read(machine, *GLOBAL, priority=12)
    assert sample.events == ()
    assert values(sample)["kernel_oom_kills_total{global}"] == 0


def test_usual_boot_complaints_of_the_gpu_driver_are_no_error(machine, values):
    sample = read(machine, *BOOT)
    assert sample.events == ()
    assert values(sample)["dxg_notices_total"] == 3


def test_real_errors_of_the_gpu_driver_are_counted_and_told(machine, values):
    sample = read(machine, *BOOT, *DXG)
    found = values(sample)
    assert found["dxg_errors_total{dxgkio_make_resident,ENOMEM}"] == 2
    assert found["dxg_errors_total{dxgvmb_send_create_process,EOVERFLOW}"] == 1
    assert [e.fields["function"] for e in sample.events] == [
        "dxgkio_make_resident",
        "dxgkio_make_resident",
        "dxgvmb_send_create_process",
    ]


def test_a_flood_of_different_errors_stays_bounded(machine, values):
    texts = [f"misc dxg: dxgk: dxgkio_function_{i}: Ioctl failed: -{i}" for i in range(1, 101)]
    found = values(read(machine, *texts))
    labels = [name for name in found if name.startswith("dxg_errors")]
    assert len(labels) == 33
    assert found["dxg_errors_total{other,other}"] == 68


def test_a_flood_of_one_error_is_one_event_a_second_and_card(machine, values):
    lines = [
        "misc dxg: dxgk: dxgkio_make_resident: Ioctl failed: -12",
        "NVRM: Xid (PCI:0000:01:00): 31, pid=7, name=python3, MMU Fault",
        "NVRM: Xid (PCI:0000:02:00): 31, pid=7, name=python3, MMU Fault",
    ]
    flood = "".join(kmsg(line, seconds=100 + tenth / 10) for tenth in range(15) for line in lines)
    sample = KernelLogSource(machine({"/dev/kmsg": flood}), Config()).read()

    assert values(sample)["dxg_errors_total{dxgkio_make_resident,ENOMEM}"] == 15
    assert values(sample)["nvidia_xid_errors_total{31}"] == 30
    assert [event.kind for event in sample.events] == ["dxg_error", "nvidia_xid", "nvidia_xid"] * 2


def test_errors_of_nvidias_own_driver_are_known_by_number(machine, values):
    text = "NVRM: Xid (PCI:0000:01:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
    sample = read(machine, text)
    assert values(sample)["nvidia_xid_errors_total{79}"] == 1
    assert sample.events[0].fields["device"] == "0000:01:00"


def test_the_past_is_told_once(machine, values):
    source = KernelLogSource(machine({"/dev/kmsg": kmsg(*GLOBAL)}), Config())
    assert len(source.read().events) == 1
    again = source.read()
    assert again.events == ()
    assert values(again)["kernel_oom_kills_total{global}"] == 1


def test_a_machine_without_a_kernel_log_is_no_fault(machine):
    with pytest.raises(NoData, match="/dev/kmsg"):
        KernelLogSource(machine(), Config()).read()


def test_continuation_lines_and_rubbish_are_no_messages():
    for record in ("", " SUBSYSTEM=misc", "x,1,2,-;y", "6,1;y", "6,1,-5,-;text"):
        assert parse_line(record) is None
    assert parse_line("6,5,2500000,-,caller=T1;hello;world\n KEY=1\n") == (5, 2.5, "hello;world")


def test_missing_log_permission_is_no_fault_and_has_a_remedy(monkeypatch):
    def refuse(*_args):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(NoData, match=r"CAP_SYSLOG.*dmesg_restrict=0"):
        KernelLogSource(Host(), Config()).read()


def test_this_machines_log_is_read_to_its_end_and_then_followed():
    if not os.access("/dev/kmsg", os.R_OK | os.W_OK):
        pytest.skip("reading and writing the kernel log needs root")
    source = KernelLogSource(Host(), Config())
    source.read()
    # Programs' lines are not believed, yet they must be consumed: the next read starts behind them.
    Path("/dev/kmsg").write_text("Out of memory: Killed process 1 (init) feigned by a test\n")
    before = [r.value for r in source.read().readings]
    assert [r.value for r in source.read().readings] == before
    source.close()


def test_a_broken_log_reports_earlier_events_then_the_failure(monkeypatch, tmp_path, values):
    (tmp_path / "log").touch()
    answers = [line.encode() for line in kmsg(*GLOBAL).splitlines()[::2]]
    answers[1:1] = [BrokenPipeError(32, "overwritten")]
    answers += [OSError(5, "Input/output error"), OSError(5, "Input/output error")]

    def read_one(*_):
        answer = answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer

    source = KernelLogSource(Host(), Config())
    source._descriptor = os.open(tmp_path / "log", os.O_RDONLY)
    monkeypatch.setattr(os, "read", read_one)
    sample = source.read()
    assert [event.fields["victim"] for event in sample.events] == ["python3"]
    assert values(sample)["kernel_log_lost_records_total"] == 1
    with pytest.raises(SourceError, match="cannot read /dev/kmsg"):
        source.read()
    source.close()


def test_new_log_lines_get_our_time_as_the_log_clock_drifts():
    reader, writer = os.pipe2(os.O_NONBLOCK | os.O_DIRECT)  # like the log, one record for each read

    def write(seconds: float) -> None:
        os.write(writer, kmsg(GLOBAL[2], seconds=seconds).splitlines()[0].encode())

    source = KernelLogSource(Host(clock=StoppedClock(1.8e9, 5000.0)), Config())
    source._descriptor, source._opened_mono = reader, 4000.0
    for seconds in (4000.0, 4001.0):
        write(seconds)
    first = source.read().events
    write(3990.0)
    second = source.read().events
    source.close()
    with pytest.raises(BrokenPipeError):
        os.write(writer, b"nobody reads on")
    os.close(writer)

    told = [(event.fields["past"], event.wall) for event in (*first, *second)]
    assert told == [(1, 1.8e9 - 1000), (0, 1.8e9 - 999), (0, 1.8e9)]


@pytest.mark.parametrize("number", [errno.ENXIO, errno.ENODEV])
def test_a_containers_log_without_a_device_is_no_fault(monkeypatch, number):
    def refuse(*_args):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(NoData, match="/dev/kmsg has no device behind it"):
        KernelLogSource(Host(), Config()).read()
    number = errno.EIO
    with pytest.raises(SourceError, match="cannot open /dev/kmsg: Input/output error"):
        KernelLogSource(Host(), Config()).read()


def test_a_real_kill_is_told_once_with_victim_size_and_cgroup(limited_cgroup, values):
    if not os.access("/dev/kmsg", os.R_OK):
        pytest.skip("reading the kernel log needs root")
    log, cgroups, memory = (kind(Host(), Config()) for kind in (KernelLogSource, CgroupSource, MemorySource))
    log.read()
    before = values(memory.read())["oom_kills_total"]
    hog = f"{sys.executable} -c 'x = bytearray(200 << 20)'"
    enter = f"echo $$ > {limited_cgroup}/cgroup.procs && exec {hog}"
    child = subprocess.Popen(["sh", "-c", enter])
    assert child.wait() == -signal.SIGKILL

    # Not by its pid: in a container the kernel's log knows it by another.
    told = [e for e in log.read().events if e.kind == "oom_kill"]
    kills = [e for e in told if e.fields["cgroup"] == f"/{limited_cgroup.name}"]
    assert [(e.fields["constraint"], e.fields["past"]) for e in kills] == [("CONSTRAINT_MEMCG", 0)]
    # The kernel says what was resident at the kill: a little more or less than the limit.
    assert 16 << 20 < kills[0].fields["size_bytes"] < 48 << 20
    assert values(cgroups.read())[f"cgroup_oom_kills_total{{/{limited_cgroup.name}}}"] == 1
    assert values(memory.read())["oom_kills_total"] > before
    log.close()


@pytest.mark.parametrize(
    "line",
    [
        # microsoft/WSL#10595, #11293, #41654, #40715, #13734: answers to questions, at whatever error number
        "misc dxg: dxgk: dxgkio_query_statistics: Ioctl failed: -22",
        "misc dxg: dxgk: dxgkio_query_adapter_info: Ioctl failed: -2",
        "misc dxg: dxgk: dxgkio_query_adapter_info: Ioctl failed: -75",
        "misc dxg: dxgk: dxgkio_is_feature_enabled: Ioctl failed: -71",
        # drivers/hv/dxgkrnl/ioctl.c: the other calls that change nothing
        "misc dxg: dxgk: dxgkio_query_clock_calibration: Ioctl failed: -22",
        "misc dxg: dxgk: dxgkio_enum_adapters3: Ioctl failed: -22",
        "misc dxg: dxgk: dxgkio_enum_processes: Ioctl failed: -75",
    ],
)
def test_a_question_that_the_host_cannot_answer_is_a_notice(machine, values, line):
    sample = read(machine, line)
    assert (values(sample)["dxg_notices_total"], sample.events) == (1, ())


@pytest.mark.parametrize(
    ("line", "labels"),
    [
        # a program that talks with the driver, or takes addresses: microsoft/WSL#41062 is the last
        ("misc dxg: dxgk: dxgkio_escape: Ioctl failed: -75", "dxgkio_escape,EOVERFLOW"),
        ("misc dxg: dxgk: dxgkio_reserve_gpu_va: Ioctl failed: -75", "dxgkio_reserve_gpu_va,EOVERFLOW"),
        ("misc dxg: dxgk: dxgkio_create_allocation: Ioctl failed: -12", "dxgkio_create_allocation,ENOMEM"),
        ("misc dxg: dxgk: create_existing_sysmem: establish_gpadl failed: -122", "create_existing_sysmem,EDQUOT"),
        (
            "misc dxg: dxgk: dxgvmb_send_create_process: create_process failed -75",
            "dxgvmb_send_create_process,EOVERFLOW",
        ),
    ],
)
def test_what_the_gpu_driver_could_not_do_is_an_error(machine, values, line, labels):
    sample = read(machine, line)
    assert (values(sample)[f"dxg_errors_total{{{labels}}}"], len(sample.events)) == (1, 1)


@pytest.mark.parametrize(
    ("line", "stalls"),
    [
        # xanmod/linux#301, lkrg-org/lkrg#189: the words of 6.x
        ("rcu: INFO: rcu_preempt detected expedited stalls on CPUs/tasks: { 3-.... } 91 jiffies s: 2269", True),
        # microsoft/WSL#7913, #11274, #13186; 4.14
        ("rcu: INFO: rcu_sched detected stalls on CPUs/tasks:", True),
        ("rcu: INFO: rcu_sched self-detected stall on CPU", True),
        ("watchdog: BUG: soft lockup - CPU#0 stuck for 26s! [(udev-worker):579]", True),
        ("INFO: rcu_sched self-detected stall on CPU", True),
        # systemd/systemd#6614, coreos/bugs#2655, sonic-net/sonic-buildimage#17363; kernel/watchdog.c of 6.6
        ("NMI watchdog: BUG: soft lockup - CPU#0 stuck for 22s! [systemd:1]", True),
        ("NMI watchdog: Watchdog detected hard LOCKUP on cpu 1", True),
        ("watchdog: Watchdog detected hard LOCKUP on cpu 3", True),
        ("watchdog: CPU3: Watchdog detected hard LOCKUP on cpu 3", True),
        # GoogleCloudPlatform/compute-image-packages#905, NixOS/nixpkgs#37886, Open-CAS/open-cas-linux#746
        ("INFO: task jbd2/sda1-8:161 blocked for more than 120 seconds.", True),
        ("INFO: task umount:482 blocked for more than 120 seconds.", True),
        ("INFO: task kworker/u146:16:495 blocked for more than 120 seconds.", True),
        ("INFO: task (networkd):520 blocked for more than 122 seconds.", True),
        # koverstreet/bcachefs#114
        ("BUG: workqueue lockup - pool cpus=3 node=0 flags=0x1 nice=0 stuck for 23152s!", True),
        ("rcu: blocking rcu_node structures (internal RCU debug):", False),
        ("rcu: \t(detected by 2, t=205367 jiffies, g=334085, q=323)", False),
        ("hrtimer: interrupt took 44005651 ns", False),
        ("task: INFO: task umount:482 blocked for more than 120 seconds.", False),
    ],
)
def test_stalls_of_processors_and_tasks_are_signs_of_an_end(line, stalls):
    assert bool(PRECEDES_THE_END["stall"].match(line)) == stalls


def test_a_count_of_pages_is_no_error_number(machine):
    # drivers/hv/dxgkrnl/dxgvmbus.c, create_existing_sysmem
    short = "misc dxg: dxgk: create_existing_sysmem: get_user_pages_fast failed: 103"
    fault = "misc dxg: dxgk: create_existing_sysmem: get_user_pages_fast failed: -14"

    assert [e.fields["error"] for e in read(machine, short, fault).events] == ["ENOMEM", "EFAULT"]


# https://github.com/microsoft/WSL/issues/11612
UNALLOCATED = [
    "kworker/0:1: page allocation failure: order:7, mode:0xdc0(GFP_KERNEL|__GFP_ZERO), nodemask=(null),cpuset=/",
    "CPU: 0 PID: 2701214 Comm: kworker/0:1 Not tainted 5.15.146.1-microsoft-standard-WSL2 #1",
    "Workqueue: hv_pri_chan vmbus_add_channel_work",
]


def test_vmbus_lacking_contiguous_memory_is_reported(machine, values):
    sample = read(machine, *UNALLOCATED)

    assert values(sample)["vmbus_allocation_failures_total"] == 1
    assert [(e.kind, e.fields["order"]) for e in sample.events] == [("vmbus_starved", 7)]


@pytest.mark.parametrize("texts", [UNALLOCATED[:2], UNALLOCATED[2:], ["train: " + UNALLOCATED[0], UNALLOCATED[2]]])
def test_other_contiguous_allocation_failures_are_ignored(machine, values, texts):
    sample = read(machine, *texts)

    assert (values(sample)["vmbus_allocation_failures_total"], sample.events) == (0, ())


@pytest.mark.parametrize(
    "line",
    [
        # Bumblebee-Project/Bumblebee#554
        "NVRM: GPU at 0000:0a:00.0 has fallen off the bus.",
        # https://docs.nvidia.com/deploy/xid-errors/; src/nvidia/arch/nvalloc/unix/src/osinit.c of the open driver
        "NVRM: GPU 0000:0a:00.0: GPU has fallen off the bus.",
        # NVIDIA/NVSentinel#155, leptonai/gpud#1209; /dev/kmsg escapes what ends a line within a record
        (
            r"NVRM: The NVIDIA GPU 0000:0a:00.0\x0aNVRM: (PCI ID: 10de:26b5) installed in this system has\x0a"
            "NVRM: fallen off the bus and is not responding to commands."
        ),
    ],
)
def test_a_card_off_the_bus_is_told_without_an_xid(machine, line):
    (event,) = read(machine, line).events

    assert (event.kind, event.fields["xid"], event.fields["device"]) == ("nvidia_xid", "79", "0000:0a:00")


def test_a_card_off_the_bus_counts_once_per_fall(machine, values):
    number = "NVRM: Xid (PCI:0000:0a:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
    words = "NVRM: GPU 0000:0a:00.0: GPU has fallen off the bus."
    for lines, falls in (((number, words), 1), ((words, number), 1), ((number, words, number, words), 2)):
        sample = read(machine, *lines)
        assert (values(sample)["nvidia_xid_errors_total{79}"], len(sample.events)) == (falls, falls)
