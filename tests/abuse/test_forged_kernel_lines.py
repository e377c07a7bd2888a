"""Only the kernel can report that a process was killed or that VRAM ran out."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from wslgpud.config import Config
from wslgpud.host import Host
from wslgpud.security.redaction import named
from wslgpud.sources import kernel_lines
from wslgpud.sources.kernel_lines import KernelEvent, LineParser, parse_line
from wslgpud.sources.logs import KernelLogSource

KILL = (
    "Out of memory: Killed process 7008 (cicc) total-vm:5242880kB, anon-rss:3145728kB, file-rss:512kB, "
    "shmem-rss:0kB, UID:1000 pgtables:6400kB oom_score_adj:0"
)
GROUP_KILL = KILL.replace("Out of memory", "Memory cgroup out of memory")
RESIDENT = "misc dxg: dxgk: dxgkio_make_resident: Ioctl failed: -12"
XID = "NVRM: Xid (PCI:0000:01:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
DISK = "Buffer I/O error on dev sdc, logical block 134184960, lost sync page write"
REAL = {
    "kill": (KILL, "oom_kill"),
    "group kill": (GROUP_KILL, "oom_kill"),
    "VRAM": (RESIDENT, "dxg_error"),
    "Xid": (XID, "nvidia_xid"),
    "disk": (DISK, "disk_error"),
}

#: where the kernel repeats words that anybody may choose: options of a mount in a namespace, names
FRAMES = [
    "tmpfs: Unknown parameter '{}'",
    "overlay: Unknown parameter '{}'",
    "{}[4242]: segfault at 0 ip 0000000000000000 sp 00007ffd error 14",
    "python: {}",
    "process '{}' launched '/bin/true' with NULL argv: empty string added",
    "traps: {}[4242] general protection fault",
    " {}",
]


def events(record: str) -> list[str]:
    line = parse_line(record)
    found = None if line is None else LineParser().add(line.text)
    return [] if found is None else [found.kind]


@pytest.mark.parametrize(("text", "kind"), REAL.values(), ids=REAL)
def test_the_kernel_s_own_lines_count(text, kind):
    assert events(f"6,100,1200000,-;{text}") == [kind]
    assert events(f"6,100,1200000,-,caller=T1;{text}\n SUBSYSTEM=pci") == [kind]


@pytest.mark.parametrize("facility", [1, 3, 4, 10, 16, 23])
@pytest.mark.parametrize(("text", "kind"), REAL.values(), ids=REAL)
def test_a_line_written_by_a_program_into_the_kernel_log_is_not(text, kind, facility):
    assert events(f"{facility << 3 | 2},100,1200000,-;{text}") == []


@pytest.mark.parametrize("frame", FRAMES)
@pytest.mark.parametrize(("text", "kind"), REAL.values(), ids=REAL)
def test_words_that_the_kernel_repeats_do_not(text, kind, frame):
    # A name of a program has fifteen characters; where more is repeated, something stands before it.
    forged = frame.format(text[:15] if frame.startswith("{}") else text)

    assert events(f"3,100,1200000,-;{forged}") == []


@pytest.mark.parametrize("record", ["6,1,2,-", ";" + KILL, "6;" + KILL, "-2,1,1,-;" + KILL, "\n6,1,1,-;" + KILL])
def test_what_is_no_record_says_nothing(record):
    assert events(record) == []


def killed(details: str, victim: str = "cicc") -> KernelEvent:
    story = LineParser()
    assert story.add(f"oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),{details}") is None
    found = story.add(GROUP_KILL.replace("cicc", victim))
    assert found is not None
    assert found.kind == "oom_kill"
    return found


@pytest.mark.parametrize(
    ("details", "group"),
    [
        ("cpuset=/,mems_allowed=0,oom_memcg=/a,task_memcg=/a/b,task=cicc,pid=7008,uid=1000", "/a"),
        ("cpuset=/,mems_allowed=0-1,3,oom_memcg=/a,b,task_memcg=/a,b/c,task=cicc,pid=7008,uid=1000", "/a,b"),
        ("cpuset=x,oom_memcg=,mems_allowed=0,oom_memcg=/a,task_memcg=/a,task=cicc,pid=7008,uid=1", ""),
        ("cpuset=/,mems_allowed=0,oom_memcg=/a,oom_memcg=/wsl-user,task_memcg=/a,task=cicc,pid=7008,uid=1", ""),
        ("cpuset=/,mems_allowed=0,oom_memcg=/a,task_memcg=/a,task=a,oom_memcg=/wsl,pid=7008,uid=1", "/a"),
        ("cpuset=/,mems_allowed=0,oom_memcg=/a,task_memcg=/a,task=x,pid=1,uid=0,pid=7008,uid=1", "/a"),
        ("cpuset=/,mems_allowed=0,oom_memcg=/a,task_memcg=/a,task=cicc,pid=1,uid=1", ""),
    ],
    ids=["plain", "commas", "in the cpuset", "in a group", "in a program", "a pid in a program", "another's pid"],
)
def test_a_name_does_not_put_the_blame_on_another_group(details, group):
    assert killed(details).fields["cgroup"] == group


@pytest.mark.parametrize("name", ["a), total-vm:9k", "x) (y", "\x1b[2J", "-1", "cicc) total"])
def test_a_name_of_a_program_changes_no_figure(name):
    found = killed("cpuset=/,mems_allowed=0,oom_memcg=/a,task_memcg=/a,task=x,pid=7008,uid=1", name).fields

    assert (found["pid"], found["anon_bytes"], found["victim"]) == (7008, 3145728 * 1024, named(name))


def test_a_long_line_takes_no_long_time():
    for text in (
        KILL[:40] + "(" * 8000,
        RESIDENT[:40] + " fail" * 1600,
        "oom-kill:constraint=A," + ",task=" * 1300,
        "JBD2: " * 1300,
    ):
        assert LineParser().add(text) is None


@pytest.mark.skipif(not os.access("/dev/kmsg", os.W_OK), reason="may not write into a kernel log here")
def test_whoever_writes_into_the_real_log_is_no_kernel():
    """Even root, who claims to be the kernel (``<2>`` has its facility): the kernel marks the line."""
    source = KernelLogSource(Host(), Config())
    try:
        source.read()
        before = source.read().readings
        with Path("/dev/kmsg").open("w") as log:
            log.write(f"<2>{RESIDENT}\n")  # harmless to whatever else reads the log
        sample = source.read()
        assert not sample.events
        assert sample.readings == before
    finally:
        source.close()


def test_all_patterns_hold_from_the_beginning():
    patterns = {name for name, value in vars(kernel_lines).items() if isinstance(value, re.Pattern)}
    source = Path(kernel_lines.__file__).read_text()
    searched = set(re.findall(r"(_[A-Z]+)\.search\(", source))
    assert searched <= patterns
    assert searched == {"_GROUP"}  # of a line whose beginning has been matched
