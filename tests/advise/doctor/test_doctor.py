"""The doctor names the problems of whole machines and their remedies. After a change: ./tests/renew."""

from __future__ import annotations

import dataclasses
import errno
import io
import json
import os
import re
import shlex
import socket
import tarfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.hosts.machines import HERE, MACHINES
from tests.page.stage import Stage
from tests.support.archives import unpack
from tests.support.daemons import saying
from tests.words.latin import latin_words
from wslgpud import words
from wslgpud.advise.doctor import CheckResult, _result, checking, run
from wslgpud.advise.doctor.bundle import write
from wslgpud.advise.doctor.checking import CHECKS, Evidence, TorchFacts
from wslgpud.advise.doctor.checks_machine import service
from wslgpud.advise.doctor.checks_wsl import kernel_log, signs
from wslgpud.cli import app
from wslgpud.cli.console import Console
from wslgpud.cli.doctor import print_findings
from wslgpud.client import SOCKET
from wslgpud.config import Alerts, Config, Otlp, Sampling, StoreSettings, Stress
from wslgpud.host import Host, NoData, RecordedHost
from wslgpud.model import GpuSample, Observation, Sample, Snapshot, SourceReport
from wslgpud.optional_packages import remedy
from wslgpud.serve.router import Response, Route, dumps
from wslgpud.serve.server import LocalApi
from wslgpud.sources.gpu import explain
from wslgpud.words import say

GOLDEN = Path(__file__).parent / "golden"
CONFIG = Config(sampling=Sampling(gpu_timeout_seconds=3.0))
TORCH = TorchFacts(
    "/home/user/.venv/bin/python",
    "2.7.1+cu128",
    "12.8",
    ("sm_75", "sm_80", "sm_90", "sm_120"),
    ("12.0",),
    ran=True,
    tf32=True,
    cudnn=90701,
)
OLD_TORCH = TorchFacts(
    "/opt/conda/bin/python",
    "2.5.1+cu124",
    "12.4",
    ("sm_50", "sm_90"),
    TORCH.capabilities,
    kernel="CUDA error: no kernel image is available for execution on the device",
)

#: torch's and NVML's own words
QUOTED = (
    "no kernel image is available for execution on the device",
    "misc dxg: dxgk: dxgkio_make_resident: Ioctl failed",
    "error",
    # of wsl3-containers: programs of Windows, and the key that its user has to change
    "chrome.exe",
    "dwm.exe",
    "vmmemwslc-cli-user",
    "wslc settings",
    "wslc",
    "session.memorySize",
)


def finding(host: Host, check: str, torch: Sequence[TorchFacts] | None = None) -> CheckResult:
    """Return the finding of one check."""
    (asked,) = (one for one in CHECKS if one.id == check)
    return _result(asked, Evidence(host, CONFIG, torch, "/var/lib/wslgpud"))


def state(name: str, check: str, torch: Sequence[TorchFacts] | None = None) -> str:
    return finding(RecordedHost(HERE / name), check, torch).state


def report(findings: Sequence[CheckResult], language: str, width: int = 100) -> str:
    """The terminal output for all of them."""
    paper = io.StringIO()
    words.use(language)
    try:
        print_findings(findings, everything=True, console=Console(file=paper, width=width))
    finally:
        words.use("en")
    return "".join(f"{line.rstrip()}\n" for line in paper.getvalue().splitlines())


@pytest.mark.parametrize(
    ("name", "language"),
    [
        *(
            (name, "en")
            for name in (
                "wsl2-idle",
                "wsl2-swap-thrash",
                "wsl2-vram-full",
                "wsl2-no-psi",
                "no-gpu",
                "cgroup-limit",
                "driver-mismatch",
                "two-gpus",
                "h200-training",
                "gpu-unreachable",
                "mig-container",
                "no-card",
                "vram-above-ram",
            )
        ),
        ("wsl2-swap-thrash", "zh"),
        ("driver-mismatch", "zh"),
        ("vram-above-ram", "zh"),
    ],
)
def test_the_report_of_a_machine_is_as_it_was(name, language):
    shown = report(run(RecordedHost(HERE / name), CONFIG, [TORCH]), language)

    file = GOLDEN / (f"{name}.txt" if language == "en" else f"{name}.{language}.txt")
    if os.environ.get("WSLGPUD_RENEW"):
        file.write_text(shown)
    assert shown == file.read_text()


@pytest.mark.parametrize("name", MACHINES)
def test_in_chinese_nothing_of_it_is_english(name):
    """Names, paths and commands are the same in every language, and what others say is quoted."""
    findings = run(RecordedHost(HERE / name), CONFIG, [TORCH, OLD_TORCH])

    assert latin_words(report(findings, "zh", 1000), QUOTED) == []


def test_programs_get_english_in_every_locale(monkeypatch):
    monkeypatch.setenv("LC_ALL", "zh_CN.UTF-8")
    told = CliRunner().invoke(app, ["doctor", "--host-root", str(HERE / "wsl2-idle"), "--json"]).stdout

    assert json.loads(told)[0]["title"] == "Linux kernel"


@pytest.mark.parametrize("name", MACHINES)
def test_every_problem_on_every_machine_comes_with_a_remedy(name):
    for finding in run(RecordedHost(HERE / name), CONFIG):
        assert finding.remedy or finding.state != "problem", finding
        assert finding.found, finding
        assert str(finding.why).endswith("."), finding


def test_torch_without_kernels_for_the_card_is_a_problem():
    found = {f.id: f for f in run(RecordedHost(HERE / "wsl2-idle"), CONFIG, [TORCH, OLD_TORCH])}

    assert found["torch.architecture"].state == found["torch.kernel"].state == "problem"
    assert "torch 2.5.1+cu124 in /opt/conda/bin/python has no sm_120" in str(found["torch.architecture"].found)
    assert "whl/cu128" in found["torch.kernel"].remedy


def test_a_torch_newer_than_the_driver_is_a_problem():
    new = TorchFacts("/opt/python", "3.0", "14.0", ("sm_120",))

    assert state("wsl2-idle", "gpu.cuda", [new]) == "problem"


def test_a_newer_minor_cuda_version_matters_only_for_ptx_code():
    """The recorded driver knows CUDA 13.1, and its card is an sm_120."""

    def torch(cuda: str, *architectures: str) -> list[TorchFacts]:
        return [TorchFacts("/opt/python", "2.9", cuda, architectures)]

    def judged(facts: list[TorchFacts]) -> str:
        return state("wsl2-idle", "gpu.cuda", facts)

    assert judged(torch("13.1", "sm_90", "sm_120")) == "good"
    assert judged(torch("12.6", "sm_90", "compute_90")) == "good"
    assert judged(torch("13.2", "sm_90", "sm_120")) == "note"
    assert judged(torch("13.2", "sm_90", "compute_90")) == "problem"
    assert judged(torch("14.0", "sm_120")) == "problem"


@pytest.mark.parametrize(("host", "windows"), [("wsl2-idle", True), ("h200-training", False)])
def test_the_driver_to_update_is_that_of_windows_only_under_wsl(host: str, windows: bool) -> None:
    too_new = TorchFacts("/opt/python", "3.0", "99.0", ("sm_120", "sm_90"))
    found = finding(RecordedHost(HERE / host), "gpu.cuda", [too_new])

    assert found.state == "problem"
    assert ("NVIDIA driver in Windows" in str(found.remedy)) is windows


def test_a_driver_older_than_the_card_is_a_problem_of_the_driver(tmp_path):
    calls = (HERE / "wsl2-idle" / "nvml.json").read_text().replace("13010", "12060")
    machine = copied(tmp_path, "wsl2-idle")
    (tmp_path / "wsl2-idle" / "nvml.json").write_text(calls)

    found = finding(machine, "gpu.cuda", [TORCH])

    assert (found.state, "sm_120 needs 12.8" in str(found.found)) == ("problem", True)


@pytest.mark.parametrize(
    ("name", "remedy"), [("two-gpus", "check whether nvidia-smi works"), ("wsl2-idle", "run 'wsl --shutdown'")]
)
def test_a_crashing_driver_is_a_problem_with_its_own_remedy(tmp_path, name, remedy):
    calls = json.loads((HERE / name / "nvml.json").read_text()) | {"steps": [{"do": "crash"}]}
    machine = copied(tmp_path, name)
    (tmp_path / name / "nvml.json").write_text(json.dumps(calls))

    found = finding(machine, "gpu.visible")

    assert (found.state, "killed by SIGSEGV" in str(found.found)) == ("problem", True)
    assert str(found.remedy).startswith(remedy)


def test_a_clock_that_stood_still_while_windows_slept_is_found(tmp_path):
    """Time zones are no skew: some hardware clocks keep local time."""
    wall = RecordedHost(HERE / "wsl2-idle").clock.wall()

    def judged(name: str, off: float) -> str:
        rtc = {"/sys/class/rtc/rtc0/since_epoch": f"{wall + off:.0f}\n"}
        folder = tmp_path / name
        folder.mkdir()
        return finding(copied(folder, "wsl2-idle", **rtc), "clock.skew").state

    assert judged("right", 1.0) == "good"
    assert judged("slept", 3 * 3600 + 417) == "problem"
    assert judged("ahead", -42) == "problem"
    assert judged("zone", -5.5 * 3600) == "good"
    assert state("wsl2-idle", "clock.skew") == "could not tell"


def test_unasked_or_absent_things_are_reported_not_guessed():
    assert state("wsl2-idle", "torch.kernel") == "could not tell"
    assert state("wsl2-idle", "torch.kernel", [TorchFacts("", failure="none")]) == "not applicable"
    assert state("wsl2-idle", "torch.nightly") == "could not tell"
    assert state("bare-linux", "wsl.stays") == state("no-gpu", "gpu.desktop") == "not applicable"


@pytest.mark.parametrize(
    ("settings", "torch", "state"),
    [
        (Stress(), [TORCH], "good"),
        (Stress(), [TorchFacts("", failure="it is gone")], "note"),
        (Stress(), [TorchFacts("/t/bin/python", failure="it is gone")], "note"),
        (Stress(schedule="off"), [TORCH], "not applicable"),
    ],
)
def test_missing_torch_skips_the_nightly_test_and_has_a_remedy(settings, torch, state):
    found = run(RecordedHost(HERE / "wsl2-idle"), dataclasses.replace(CONFIG, stress=settings), torch)
    check = next(one for one in found if one.id == "torch.nightly")

    assert check.state == state
    assert (check.remedy == remedy("stress")) == (state == "note")
    assert (str(check.found) == "it is gone") == (state == "note")


def copied(tmp_path: Path, name: str, **files: str) -> RecordedHost:
    """Return a recorded machine with other files."""
    folder = tmp_path / name
    for file in (HERE / name).rglob("*"):
        if file.is_file():
            target = folder / file.relative_to(HERE / name)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(file.read_bytes())
    for path, text in files.items():
        target = folder / "root" / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    return RecordedHost(folder)


def test_low_pinned_memory_is_told_apart_from_a_full_card():
    def found(*pinned: tuple[int, bool] | None) -> tuple[str, str]:
        torches = [dataclasses.replace(TORCH, pinned=one) for one in pinned]
        said = finding(RecordedHost(HERE / "wsl2-idle"), "torch.pinned", torches)
        return said.state, str(said.found)

    # FlashML-org/FreeToken#233: 64 GB of RAM, a card of 24 GB, and less than 1 GiB that can be pinned
    assert found((768 << 20, False), (4 << 30, True)) == (
        "note",
        "only 768 MiB can be pinned: more fails as CUDA out of memory with VRAM free",
    )
    assert found((4 << 30, True)) == ("good", "4.0 GiB could be pinned")
    assert found(None)[0] == "not applicable"


def test_a_card_in_tcc_mode_is_not_reported_as_a_missing_driver(tmp_path):
    # microsoft/WSL#9952, microsoft/WSL#12835; with a card in WDDM mode beside it: microsoft/WSL#13027
    host = copied(tmp_path, "wsl2-idle")
    (tmp_path / "wsl2-idle/nvml.json").unlink()
    (tmp_path / "wsl2-idle/root/dev/dxg").unlink()
    found = finding(host, "gpu.visible")

    assert (found.state, "'nvidia-smi -dm 0'" in str(found.remedy)) == ("problem", True)
    assert "'nvidia-smi -dm 0'" in str(explain("UNKNOWN", "nvmlDeviceGetHandleByIndex", "Unknown Error", wsl=True))


@pytest.mark.parametrize(
    ("line", "says"),
    [
        # microsoft/WSL#6220
        (
            "EXT4-fs error (device sdd): ext4_find_entry:1466: inode #47595: comm node: checksumming directory block 0",
            "disk failing",
        ),
        # microsoft/WSL#8340, #6401, #41482
        ("EXT4-fs (sdc): Remounting filesystem read-only", "disk failing"),
        ("blk_update_request: I/O error, dev sdb, sector 1050624 op 0x1:(WRITE) flags 0x800", "disk failing"),
        ("hv_storvsc fd1d2cbd-ce7c: tag#542 cmd 0x28 status: scsi 0x2 srb 0x4 host 0xc0000001", "disk failing"),
        # microsoft/WSL#5410, #9972; #6982, #11274
        ("rcu: INFO: rcu_sched detected stalls on CPUs/tasks:", "stalled, as when"),
        ("rcu: INFO: rcu_sched self-detected stall on CPU", "stalled, as when"),
        ("watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [kworker/3:1:77]", "stalled, as when"),
        # microsoft/WSL#13263, #40458
        ("Out of memory: Killed process 936 (systemd) total-vm:20352kB, anon-rss:0kB, file-rss:3072kB", "WSL's own"),
        # microsoft/WSL#11277 with the kernel's words of zed-industries/zed#35758 and of 5.15
        (
            (
                "nvidia-smi[494]: segfault at 25c ip 00007ffff66809a1 sp 00007ffe7e4fa740 error 4 in "
                "libnvidia-ml.so.1[af2e1a,7ffff6600000+c00000] likely on CPU 12 (core 24, socket 0)"
            ),
            "a library of the GPU driver crashed",
        ),
        (
            "traps: python3[812] general protection fault ip:7f1 sp:7ffc error:0 in libcuda.so.1.1[7f0000+9000]",
            "a library of the GPU driver crashed",
        ),
        # microsoft/WSL#41176
        ("misc dxg: dxgk: dxgkio_make_resident: Ioctl failed: -12", "VRAM cannot be made resident"),
        ("misc dxg: dxgk: dxgkio_create_allocation: Ioctl failed: -75", "VRAM allocations refused"),
        ("misc dxg: dxgk: dxgkio_create_allocation: Ioctl failed: -12", "VRAM allocations refused"),
        ("INFO: task khugepaged:170 blocked for more than 122 seconds.", "stalled, as when"),
    ],
)
def test_signs_of_a_catastrophic_failure_are_seen_in_kernel_log(tmp_path, line, says):
    host = copied(tmp_path, "wsl2-idle")
    log = tmp_path / "wsl2-idle/root/dev/kmsg"
    for text, state in ((f"3,900,1000,-;{line}\n", "problem"), (f"12,901,1000,-;{line}\n", "good")):
        log.write_text(text)  # the second is a program's own word
        found = finding(host, "kernel.log")
        assert (found.state, says in str(found.found)) == (state, state == "problem")


def test_the_worst_of_several_signs_is_reported_with_its_count(tmp_path):
    host = copied(tmp_path, "wsl2-idle")
    lines = [
        "3,1,1000,-;misc dxg: dxgk: dxgkio_make_resident: Ioctl failed: -12",
        # microsoft/WSL#40458, which ended with E_UNEXPECTED
        "4,2,1000,-;kworker/0:0: page allocation failure: order:7, mode:0xdc0(GFP_KERNEL|__GFP_ZERO), nodemask=(null)",
        "4,3,1000,-;CPU: 0 PID: 10720 Comm: kworker/0:0 Not tainted 6.6.87.2-microsoft-standard-WSL2 #1",
        "4,4,1000,-;Workqueue: hv_pri_chan vmbus_add_channel_work",
        "6,5,1000,-;oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,global_oom,task=cc1plus,pid=7,uid=0",
        "3,6,1000,-;Out of memory: Killed process 7 (cc1plus) total-vm:9kB, anon-rss:8kB, file-rss:1kB, shmem-rss:0kB",
        "3,7,1000,-;EXT4-fs error (device sdd): ext4_find_entry:1466: inode #47595: comm node: checksumming",
        "3,8,1000,-;EXT4-fs (sdd): Remounting filesystem read-only",
    ]
    for count, says in ((8, "Remounting filesystem read-only (2 lines"), (6, "no new WSL sessions: Workqueue")):
        (tmp_path / "wsl2-idle/root/dev/kmsg").write_text("\n".join(lines[:count]) + "\n")
        found = finding(host, "kernel.log")
        assert (found.state, says in str(found.found)) == ("problem", True), str(found.found)
    assert "compact_memory" in str(found.remedy)


@pytest.mark.parametrize(
    ("check", "path", "text", "state"),
    [
        ("wsl.interop", "/proc/sys/fs/binfmt_misc/WSLInterop", "disabled\n", "note"),
        ("wslconfig.valid", "/mnt/c/Users/user/.wslconfig", "[wsl2]\nmemory=50gb\n", "problem"),
        ("wslconfig.valid", "/mnt/c/Users/user/.wslconfig", "[wsl2]\nswap=0\n", "note"),
        ("wslconfig.in_force", "/mnt/c/Users/user/.wslconfig", "[wsl2]\nmemory=32GB\n", "problem"),
        ("wslconf.valid", "/etc/wsl.conf", "[boot] systemd=true\n", "problem"),
        ("wslconf.valid", "/etc/wsl.conf", "[gpu]\nenabled=false\n", "note"),
        ("gpu.library", "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1", "", "note"),
        ("kernel.memory_cgroup", "/sys/fs/cgroup/cgroup.controllers", "cpu io\n", "note"),
        ("cuda.toolkit", "/usr/local/cuda/version.json", '{"cuda": {"version": "12.4.1"}}', "problem"),
        ("cuda.toolkit", "/usr/local/cuda/version.json", '{"cuda": {"version": "12.8.1"}}', "good"),
    ],
)
def test_each_trouble_is_seen(tmp_path, check, path, text, state):
    host = copied(tmp_path, "wsl2-idle", **{path: text})

    assert finding(host, check).state == state


def test_a_non_wsl_machine_is_not_told_to_change_wsl_conf(tmp_path):
    version_2 = {
        "/sys/fs/cgroup/cgroup.controllers": "cpu io\n",
        "/proc/self/mounts": "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n",
    }
    host = copied(tmp_path, "bare-linux", **version_2)
    found = finding(host, "kernel.memory_cgroup")

    assert (found.state, str(found.remedy)) == ("note", "remove cgroup_disable=memory from the kernel's command line")


@pytest.mark.parametrize(
    ("header", "state", "found"),
    [
        ("// one\n#define CUDA_VERSION 12040\n", "problem", "12.4"),
        ("#define CUDA_VERSION 13000\n#define CUDAAPI\n", "good", "CUDA 13.0"),
        ("", "could not tell", "contains no version"),
    ],
)
def test_a_toolkit_whose_image_left_out_its_version_file_is_seen(tmp_path, header, state, found):
    toolkit = {"/usr/local/cuda/bin/nvcc": "", "/usr/local/cuda/include/cuda.h": header}
    host = copied(tmp_path, "wsl2-idle", **toolkit)

    said = finding(host, "cuda.toolkit")

    assert said.state == state
    assert found in str(said.found)


@pytest.mark.parametrize(("count", "state"), [(62, "problem"), (2, "good")])  # a day's, in microsoft/WSL#41242
def test_leftover_session_relays_are_seen_before_sessions_fail(tmp_path, count, state):
    names = {f"/proc/{900 + i}/comm": "Relay\n" for i in range(count)}
    served = {f"/proc/{2000 + i}/comm": f"Relay({2001 + i})\n" for i in range(30)}
    host = copied(tmp_path, "wsl2-idle", **names, **served)

    found = finding(host, "wsl.relays")

    assert (found.state, str(count) in str(found.found)) == (state, True)


def test_a_command_to_paste_holds_no_file_name_as_shell_code(tmp_path):
    folder = copied(tmp_path, "wsl2-vram-full").recording("host.json").parent
    recorded = json.loads((folder / "host.json").read_text())
    recorded["links"]["/proc/9309/fd/12"] = "/mnt/c/it's $(reboot)/x"
    (folder / "host.json").write_text(json.dumps(recorded))
    (told,) = [one for one in run(RecordedHost(folder), CONFIG) if one.id == "data.windows_drive"]

    assert shlex.split(str(told.remedy))[-2:] == ["/mnt/c/it's $(reboot)/", "~/data/"]


def test_a_full_windows_drive_is_seen_though_linux_has_space(tmp_path):
    host = copied(tmp_path, "wsl2-idle")
    host._disks = {**host._disks, "/mnt/c": [10**12, 3 * 10**9, 3 * 10**9, 0, 0]}

    assert finding(host, "disk.windows").state == "problem"
    assert finding(host, "disk.space").state == "good"


def test_brief_shows_one_line_per_problem_and_how_to_see_more():
    def typed(machine: str):
        words = ["doctor", "--brief", "--no-torch", "--host-root", str(HERE / machine)]
        return CliRunner().invoke(app, words, env={"COLUMNS": "200"})

    done = typed("wsl2-swap-thrash")
    *problems, last = done.stdout.splitlines()
    titles = [str(f.title) for f in run(RecordedHost(HERE / "wsl2-swap-thrash"), CONFIG) if f.state == "problem"]

    assert done.exit_code == 1
    assert [line.partition(":")[0] for line in problems] == [f"✗ {title}" for title in titles]
    assert re.fullmatch(r"3 problems, \d notes: .+ doctor says what to do\.", last)
    healthy = typed("wsl2-idle")
    assert (healthy.exit_code, healthy.stdout.count("\n")) == (0, 1)


def test_json_and_exit_status_are_for_scripts():
    done = CliRunner().invoke(app, ["doctor", "--json", "--host-root", str(HERE / "no-gpu")])

    found = {f["id"]: f for f in json.loads(done.output)}
    assert done.exit_code == 1
    assert found["gpu.visible"]["state"] == "problem"
    assert CliRunner().invoke(app, ["doctor", "--host-root", str(HERE / "wsl2-idle")]).exit_code == 0


class NotInstalled(Host):
    """This machine without a service."""

    def read(self, path: str) -> str:
        if path.startswith("/var/lib/"):
            raise NoData(path)
        return super().read(path)


def test_a_daemon_runs_while_its_socket_takes_connections(tmp_path):
    def judged():
        return service(Evidence(NotInstalled(), CONFIG, None, str(tmp_path)))

    with saying(tmp_path, {"url": "http://127.0.0.1:9655"}):
        assert judged()[:2] == ("good", say("running at {url}", url="http://127.0.0.1:9655"))
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(tmp_path / SOCKET))
    assert judged().state == "note"


@pytest.mark.parametrize(
    "status",
    [
        {"sources": 5},
        {"sources": [{"name": "kernel_log"}]},
        {"gpus": [{"uuid": "GPU-1", "in_windows": [{"name": "game.exe", "used_bytes": "x"}]}]},
        {"windows": [1]},
        {"windows": {"memory_total_bytes": "x"}},
    ],
)
def test_a_socket_of_something_else_breaks_no_check(tmp_path, status):
    with saying(tmp_path, status):
        machine = Evidence(Host(), CONFIG, None, str(tmp_path))

        assert service(machine).state == "good"
        assert machine.daemon_sources == {}
        assert machine.programs_in_windows(GpuSample(0, "GPU-1", "card")) == ()
        assert machine.daemon_status == {}


@pytest.fixture
def refused(monkeypatch):
    """A machine on which this user may not read the kernel log."""
    opened = os.open

    def refuse(path, *flags, **more):
        if path == "/dev/kmsg":
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), path)
        return opened(path, *flags, **more)

    monkeypatch.setattr(os, "open", refuse)


@pytest.fixture
def log_of_daemon(tmp_path):
    """Return what the doctor says of the kernel log beside a daemon for which that has this health."""
    stage = Stage(tmp_path)
    local = LocalApi(tmp_path, [Route("/api/v1/status", lambda _: Response(200, dumps(stage.now())))])
    assert local.start()

    def look(health):
        report = SourceReport("kernel_log", health, Sample(), stage.clock.mono(), 0.0, "", stage.clock.wall())
        snapshot = Snapshot(stage.clock.wall(), stage.clock.mono(), 1, (report,), 0.0, 1.0)
        stage.publish(snapshot, Observation(0.0))
        return kernel_log(Evidence(Host(), CONFIG, None, str(tmp_path)))

    yield look
    local.close()
    stage.close()


@pytest.mark.usefixtures("refused")
def test_a_kernel_log_only_the_daemon_can_read_is_fine(log_of_daemon):
    assert log_of_daemon("ok")[:2] == ("good", say("the daemon reads it"))


def test_a_kernel_log_only_the_user_can_read_is_noted(log_of_daemon, monkeypatch):
    monkeypatch.setattr("wslgpud.advise.doctor.checks_wsl._log_readable", lambda _: True)

    assert log_of_daemon("absent")[:2] == ("note", say("hidden from the daemon"))


@pytest.mark.usefixtures("refused")
def test_without_a_daemon_the_users_kernel_log_access_counts(tmp_path, monkeypatch):
    monkeypatch.setattr(checking, "SYSTEM_STATE", tmp_path)
    machine = Evidence(Host(), CONFIG, None, str(tmp_path))

    assert kernel_log(machine)[:2] == ("note", say("hidden from this user"))
    assert signs(machine)[:2] == (
        "could not tell",
        say("hidden from this user: {command}", command="sudo wslgpud doctor"),
    )


def test_a_container_without_a_kernel_log_hides_it_from_nobody(tmp_path, monkeypatch):
    monkeypatch.setattr(checking, "SYSTEM_STATE", tmp_path)
    opened = os.open
    monkeypatch.setattr(
        os, "open", lambda path, *a, **k: opened(f"{tmp_path}{path}" if path == "/dev/kmsg" else path, *a, **k)
    )

    with pytest.raises(NoData, match="cannot open /dev/kmsg: No such file or directory"):
        kernel_log(Evidence(Host(), CONFIG, None, str(tmp_path)))


def test_an_archive_and_json_can_be_had_at_once(tmp_path):
    archive = tmp_path / "bundle.tar.gz"
    host = ("--host-root", str(HERE / "no-gpu"))
    done = CliRunner().invoke(app, ["doctor", "--json", "--bundle", str(archive), *host])

    assert done.exit_code == 0
    assert done.stdout == CliRunner().invoke(app, ["doctor", "--json", *host]).stdout
    assert done.stderr.startswith(f"wrote {archive}:")
    assert tarfile.is_tarfile(archive)


def test_the_exit_status_of_an_archive_is_whether_it_was_written(tmp_path):
    """Problems here are the reason for making one."""
    arguments = ["doctor", "--host-root", str(HERE / "no-gpu")]

    def status(*more: str) -> int:
        return CliRunner().invoke(app, [*arguments, *more]).exit_code

    assert status() == 1
    assert status("--bundle", str(tmp_path / "bundle.tar.gz")) == 0
    assert status("--bundle", str(tmp_path / "missing" / "bundle.tar.gz")) == 2


def test_a_malformed_address_of_the_history_hides_no_finding():
    found = run(RecordedHost(HERE / "wsl2-idle"), Config(store=StoreSettings(path="postgresql://me:hunter2@db:port/x")))

    (copy,) = [one for one in found if one.id == "disk.replication"]
    assert copy.state == "could not tell"
    assert "postgresql://db:port/x: is not the address of a database" in str(copy.found)


def test_the_support_archive_holds_no_secrets_and_no_names(tmp_path):
    secrets = ("hunter2", "tok-4711", "annegret")
    host = copied(
        tmp_path,
        "wsl2-idle",
        **{
            "/mnt/c/Users/annegret/.wslconfig": "[wsl2]\nswapFile=C:\\\\Users\\\\annegret\\\\swap.vhdx\n",
            "/etc/wsl.conf": "[boot]\nsystemd=true\ncommand = run tok-4711\n[user]\ndefault=annegret\n",
        },
    )
    (host.folder / "root/mnt/c/Users/user/.wslconfig").unlink()
    (host.folder / "root/mnt/c/Users/user").rmdir()
    config = Config(
        sampling=CONFIG.sampling,
        store=StoreSettings(path="postgresql+psycopg://me:hunter2@db/wslgpud"),
        alerts=Alerts(
            urls=("ntfy://tok-4711@ntfy.sh/x",), command=("/home/annegret/warn", "tok-4711"), save_user="annegret"
        ),
        otlp=Otlp(endpoint="https://annegret:hunter2@collector:4318/v1/metrics"),
    )

    names = write(tmp_path / "bundle.tar.gz", host, config, run(host, config))

    with tarfile.open(tmp_path / "bundle.tar.gz") as archive:
        texts = {m.name: archive.extractfile(m).read().decode() for m in archive}
    assert sorted(texts) == [f"wslgpud-doctor/{name}" for name in names]
    assert "machine/root/mnt/c/Users/user/.wslconfig" in names
    assert [(name, s) for name, text in texts.items() for s in secrets if s in name + text] == []
    assert re.search(r'"id": "wsl.kernel"', texts["wslgpud-doctor/doctor.json"])
    assert "[boot]\nsystemd=true\ncommand = (secret)\n" in texts["wslgpud-doctor/machine/root/etc/wsl.conf"]
    assert '"alerts.urls": "(secret)"' in texts["wslgpud-doctor/configuration.json"]


def test_the_machine_in_the_archive_can_be_looked_at_again(tmp_path):
    host = RecordedHost(HERE / "wsl2-swap-thrash")
    write(tmp_path / "bundle.tar.gz", host, CONFIG, [])
    with tarfile.open(tmp_path / "bundle.tar.gz") as archive:
        unpack(archive, tmp_path)

    again = RecordedHost(tmp_path / "wslgpud-doctor" / "machine")

    unlike = [
        (a.id, a.state, b.state)
        for a, b in zip(run(host, CONFIG), run(again, CONFIG), strict=True)
        if a.state != b.state and not a.id.startswith(("gpu.", "torch."))  # NVML is recorded live
    ]
    assert unlike == []
