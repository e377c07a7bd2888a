"""A capture shows a stranger what we would see on this machine, and not whose machine it is."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.hosts.machines import HERE
from wslgpud.config import Config
from wslgpud.host import Host, NoData, RecordedHost, SourceError
from wslgpud.model import ProcessSample, Reading, Sample
from wslgpud.probes.interop import BINFMT
from wslgpud.sampling.capture import Mask, Recorder, _links, _needed, capture
from wslgpud.sampling.sampler import SOURCES
from wslgpud.sources import cgroups
from wslgpud.sources.cgroups import CgroupSource
from wslgpud.sources.cpu import CpuSource
from wslgpud.sources.disk import DiskSource, FilesystemSource
from wslgpud.sources.logs import KernelLogSource
from wslgpud.sources.memory import MemorySource, PressureSource
from wslgpud.sources.network import NetworkSource
from wslgpud.sources.processes import ProcessSource
from wslgpud.sources.wsl import WslSource

MIB = 1 << 20


def series(source_type, host) -> set[tuple[str, tuple[str, ...]]] | str:
    source = source_type(host, Config())
    try:
        return {(r.spec.name, r.labels) for r in source.read().readings if r.spec.kind != "info"}
    except NoData:
        return "absent"
    except SourceError:
        return "failed"
    finally:
        source.close()


@pytest.fixture(scope="module")
def captured(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("capture") / "here"
    secret = [sys.executable, "-c", "import sys; x = b'x' * (200 << 20); print(1, flush=True); sys.stdin.read()"]
    with subprocess.Popen([*secret, "--token=geheim"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        child.stdout.readline()
        capture(Host(), folder)
        child.stdin.close()
    return folder


@pytest.mark.parametrize(
    "source",
    [MemorySource, PressureSource, CpuSource, DiskSource, NetworkSource, FilesystemSource, CgroupSource],
    ids=lambda s: s.name,
)
def test_the_capture_of_this_machine_yields_the_same_series(captured, source, tmp_path):
    # Groups and mounts come and go beside us; of a machine that stood still meanwhile all is there.
    for attempt in range(30):
        if (found := series(source, RecordedHost(captured))) == (here := series(source, Host())):
            break
        captured = tmp_path / str(attempt)
        capture(Host(), captured)
    assert found == here


def test_the_biggest_processes_are_in_it_and_no_others(captured):
    found = ProcessSource(RecordedHost(captured), Config()).read().processes
    assert "geheim" not in {p.command for p in found}
    assert max(p.rss_bytes for p in found) >= 200 * MIB
    # By their statistics: the folder of process 1 is there for its table of mounts, however small it is.
    pids = {int(p.parent.name) for p in (captured / "root/proc").glob("[0-9]*/stat")}
    assert pids == {p.pid for p in found}


def test_no_file_says_whose_machine_it_is(captured):
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    for file in captured.rglob("*"):
        if file.is_file():
            text = file.read_text()
            assert "geheim" not in text, file
            assert boot not in text, file


def test_it_says_that_it_was_recorded(captured):
    facts = json.loads((captured / "host.json").read_text())
    assert facts["kind"] == "recorded"
    assert facts["wall"] > 1_700_000_000


def named(folder: Path, name: str) -> Mask:
    (folder / "proc/sys/kernel").mkdir(parents=True)
    (folder / "proc/sys/kernel/hostname").write_text(f"{name}\n")
    return Mask(Host(folder))


def test_masks_keep_equal_things_equal_and_others_apart(tmp_path):
    mask = named(tmp_path, "alices-pc").words
    first, second = "f3b1c2d4-0000-4000-8000-0123456789ab", "a3b1c2d4-0000-4000-8000-0123456789ab"
    assert mask(first) == mask(first) != mask(second)
    assert mask("/home/alice/x and /home/alice") == "/home/user/x and /home/user"
    assert mask("/mnt/c/Users/Alice/x") == "/mnt/c/Users/user/x"
    assert mask("on alices-pc at 52:54:00:ab:cd:ef") == "on host at 00:00:00:00:00:03"
    assert mask("docker-" + "ab" * 32 + ".scope") == "docker-" + "0" * 63 + "4.scope"
    assert mask("MemTotal: 24684096 kB") == "MemTotal: 24684096 kB"


def test_a_machine_with_an_unlucky_name_stays_readable(tmp_path):
    line = "Killed process 7 (x) total-swap:274916kB swap"
    assert named(tmp_path, "swap").numbers(line) == line
    assert named(tmp_path / "2", "swap").words(line) == line.replace(" swap", " host")
    assert named(tmp_path / "3", "vm").words("vm") == "vm"


def test_of_a_wsl_machine_everything_that_makes_it_wsl_is_kept(tmp_path):
    root = tmp_path / "machine"
    for path, text in {
        "proc/sys/kernel/osrelease": "6.12-custom\n",
        "proc/sys/fs/binfmt_misc/WSLInterop": "",
        "proc/self/mounts": "/dev/sdc / ext4 rw 0 0\nC:\\134 /mnt/c 9p rw,aname=drvfs;uid=1000 0 0\n"
        "nas:/alice /mnt/nas nfs rw,addr=192.168.7.7 0 0\ncgroup2 /sys/fs/cgroup cgroup2 rw,nosuid 0 0\n",
        "proc/meminfo": "MemTotal: 1000000 kB\n",
        "proc/vmstat": "",
        "run/WSL/1_interop": "",
        "dev/dxg": "",
        "mnt/c/x": "",
        "sys/fs/cgroup/a/memory.max": "4096\n",
        "sys/fs/cgroup/a/memory.current": "96\n",
        "sys/fs/cgroup/a/memory.stat": "inactive_file 1\n",
        "sys/fs/cgroup/a/memory.events": "max 3\n",
        "sys/fs/cgroup/b/memory.max": "max\n",
    }.items():
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    copy = tmp_path / "copy"
    capture(Host(root), copy)
    assert (copy / "root/proc/self/mounts").read_text().splitlines() == [
        "/dev/sdc / ext4 rw 0 0",
        "C:\\134 /mnt/c 9p rw,aname=drvfs 0 0",
        "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0",
    ]
    assert not (copy / "root/sys/fs/cgroup/b").exists()
    before, after = Host(root), RecordedHost(copy)
    for source in SOURCES:
        if source.name not in ("gpu", "clock"):
            assert series(source, after) == series(source, before), source.name
    assert [r.value for r in WslSource(after, Config()).read().readings] == [1, 1]


def test_a_folder_with_something_in_it_is_left_alone(tmp_path):
    (tmp_path / "mine").write_text("precious")
    with pytest.raises(OSError, match="not empty"):
        capture(Host(), tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["mine"]


def without_waiting(path, flags):
    return os.open(path, flags | os.O_NONBLOCK)


def test_the_kernel_log_is_copied_without_waiting_for_more():
    recorder = Recorder(Host())
    source = KernelLogSource(recorder, Config())
    lines = 0
    with suppress(OSError), open("/dev/kmsg", "rb", buffering=0, opener=without_waiting) as log:
        while log.read(8192):
            lines += 1
    try:
        source.read()
    except (NoData, SourceError):
        pytest.skip("the kernel log may not be read here")
    assert recorder.files["/dev/kmsg"].count("\n") >= min(lines, 10)


def test_only_what_a_source_needs_is_kept_of_the_files_read(tmp_path):
    recorder = Recorder(Host(tmp_path))
    (tmp_path / "proc/7").mkdir(parents=True)
    (tmp_path / "proc/7/cmdline").write_text("/home/alice/bin/py\0--token=secret\0")
    numbers = " ".join(str(n) for n in range(1, 50))
    recorder.files = {
        "/proc/7/stat": f"7 (py (x)) S {numbers}\n",
        "/proc/7/status": "Name:\tpy\nTgid:\t7\nUid:\t1000\t1000\nVmPeak:\t9 kB\nVmSwap:\t5 kB\n",
        "/proc/7/cmdline": "/home/alice/bin/py\0--token=secret\0",
        "/proc/7/maps": "1-2 r-xp 0 0:1 7 /home/alice/libtorch_cuda.so\n2-3 r-xp 0 0:1 8 /home/alice/libtorch_cpu.so\n",
        "/proc/8/stat": f"8 (other) S {numbers}\n",
        "/proc/meminfo": "MemTotal: 7 kB\n",
        "/proc/swaps": "Filename Type Size Used Priority\n/dev/zram0 partition 9 0 5\n/home/alice/swap file 9 0 -2\n",
        "/dev/kmsg": (
            "4,1,2,-;Killed process 7 (py)\n6,2,3,-;usb 1-1: new device\nKilled process\n"
            "3,4,5,-;hv_storvsc fd1d2cbd: tag#542 cmd 0x28 status: scsi 0x2 srb 0x4 host 0xc0000001\n"
        ),
        "/sys/fs/cgroup/memory.stat": "root\n",
        "/sys/fs/cgroup/a/memory.max": "1\n",
        "/sys/fs/cgroup/a/x/memory.max": "2\n",
        "/sys/fs/cgroup/b/memory.max": "max\n",
    }
    limit = Reading(cgroups.LIMIT, 1, ("/a/x",))
    kept = _needed(recorder, [Sample(processes=(ProcessSample(7, 1, "py", 1, 0),)), Sample((limit,))])

    assert kept == {
        "/proc/7/stat": f"7 (py (x)) S {' '.join(str(n) for n in range(1, 22))}\n",
        "/proc/7/comm": "py (x)\n",
        "/proc/7/status": "Tgid:\t7\nUid:\t1000\t1000\nVmSwap:\t5 kB\n",
        "/proc/7/cmdline": "py\0",
        "/proc/7/maps": "0-1 r-xp 0 00:00 0 /libtorch_\n",
        "/proc/meminfo": "MemTotal: 7 kB\n",
        "/proc/swaps": "/dev/zram0 partition 9 0 5\n",
        "/dev/kmsg": (
            "4,1,2,-;Killed process 7 (py)\n"
            "3,4,5,-;hv_storvsc fd1d2cbd: tag#542 cmd 0x28 status: scsi 0x2 srb 0x4 host 0xc0000001\n"
        ),
        "/sys/fs/cgroup/memory.stat": "root\n",
        "/sys/fs/cgroup/a/memory.max": "1\n",
        "/sys/fs/cgroup/a/x/memory.max": "2\n",
    }


def test_kept_links_lead_only_to_a_program_name_or_a_gpu():
    found = {
        "/proc/7/exe": "/home/alice/bin/python",
        "/proc/7/fd/3": "/dev/nvidia0",
        "/proc/7/fd/4": "/home/alice/secret",
        "/proc/8/exe": "/bin/sh",
        "/etc/localtime": "/usr/share/zoneinfo/Europe/Berlin",
    }

    assert _links(found, {"/proc/7/stat": ""}) == {"/proc/7/exe": "/usr/bin/python", "/proc/7/fd/3": "/dev/nvidia0"}


def test_addresses_of_hundreds_of_devices_stay_addresses(tmp_path):
    mask = named(tmp_path, "alices-pc").words
    told = [mask(f"52:54:00:ab:{number // 256:02x}:{number % 256:02x}") for number in range(300)]

    assert told[0] == "00:00:00:00:00:01"
    assert all(re.fullmatch(r"00(:[0-9a-f]{2}){5}", address) for address in told)


def test_a_folder_that_is_only_asked_for_is_kept_by_a_file_in_it(tmp_path):
    (tmp_path / "usr/lib/wsl").mkdir(parents=True)
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/dxg").touch()
    recorder = Recorder(Host(tmp_path))

    assert [recorder.exists(path) for path in ("/usr/lib/wsl", "/dev/dxg", "/none")] == [True, True, False]
    assert recorder.files == {"/usr/lib/wsl/.keep": "", "/dev/dxg": ""}


def test_of_the_binary_formats_only_the_windows_one_is_kept(tmp_path):
    for folder, name in ((BINFMT, "WSLInterop"), (BINFMT, "python3"), ("/proc", "WSLInterop")):
        (tmp_path / folder[1:]).mkdir(parents=True, exist_ok=True)
        (tmp_path / folder[1:] / name).touch()
    recorder = Recorder(Host(tmp_path))

    assert sorted(recorder.names(BINFMT)) == ["WSLInterop", "python3"]
    assert "WSLInterop" in recorder.names("/proc")
    assert recorder.files == {f"{BINFMT}/WSLInterop": ""}


def test_answers_and_failures_of_programs_are_kept_without_names(tmp_path):
    machine = tmp_path / "machine"
    shutil.copytree(HERE / "wsl2-idle", machine)
    (machine / "root/proc/sys/kernel/hostname").write_text("alices-pc\n")
    facts = json.loads((machine / "host.json").read_text())
    facts["commands"]["wslpath -w /"] = "\\\\wsl.localhost\\alices-pc\\\n"
    facts["commands"]["wslinfo --networking-mode"] = {"error": "alices-pc does not answer"}
    (machine / "host.json").write_text(json.dumps(facts))
    capture(RecordedHost(machine), tmp_path / "copy")

    assert json.loads((tmp_path / "copy/host.json").read_text())["commands"] == {
        "wslinfo --networking-mode": {"error": "host does not answer"},
        "wslinfo --version": "2.6.3\n",
        "wslpath -w /": "\\\\wsl.localhost\\host\\\n",
    }


def test_the_machines_name_is_masked_but_not_in_kernel_tables(tmp_path):
    machine = tmp_path / "machine"
    shutil.copytree(HERE / "wsl2-idle", machine)
    (machine / "root/proc/sys/kernel/hostname").write_text("Buffers\n")
    stat = machine / "root/proc/420/stat"
    stat.write_text(stat.read_text().replace("(node)", "(Buffers)"))
    capture(RecordedHost(machine), tmp_path / "copy")

    assert "420 (host) S 1" in (tmp_path / "copy/root/proc/420/stat").read_text()
    assert "Buffers: " in (tmp_path / "copy/root/proc/meminfo").read_text()


def test_the_kernel_log_is_read_to_its_end(tmp_path):
    class Live(Host):
        live = True

    (tmp_path / "dev").mkdir()
    os.mkfifo(tmp_path / "dev/kmsg")
    record = "4,1,2,-;Killed process 7 (py)\n"
    with (tmp_path / "dev/kmsg").open("r+b", buffering=0) as log:
        log.write(record.encode())
        recorder = Recorder(Live(tmp_path))

        assert recorder.read("/dev/kmsg") == record
