"""``doctor --windows``: each part of Windows' side is used once, and what worked is said plainly.

Stand-ins for powershell.exe answer like several Windows, see ``tests/probes/windows``; no Windows takes part.
"""

from __future__ import annotations

import json
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.hosts.machines import HERE
from tests.probes.windows_pc import ANSWER, WINDOWS, Pc
from tests.support.archives import unpack
from wslgpud.advise.doctor import checks_windows, run
from wslgpud.advise.doctor.checking import Evidence
from wslgpud.cli import app
from wslgpud.config import Config, Windows
from wslgpud.host import Host, RecordedHost
from wslgpud.model import GpuSample
from wslgpud.probes import interop


@pytest.fixture
def pc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pc:
    # What runs here to name the distribution, as WSL has it.
    wslpath = tmp_path / "bin/wslpath"
    wslpath.parent.mkdir()
    wslpath.write_text("#!/bin/sh\nprintf '%s\\n' '\\\\wsl.localhost\\Ubuntu-24.04\\'\n")
    wslpath.chmod(0o755)
    monkeypatch.setenv("PATH", f"{wslpath.parent}:/usr/bin:/bin")
    return Pc(tmp_path / "pc")


def found_on(pc: Pc) -> dict[str, tuple[str, str]]:
    findings = run(pc.host, Config(), windows=True)
    assert [f.id for f in findings if f.state == "problem" and not f.remedy] == []
    # /dev/dxg is this machine's, not the stand-in's (test_dxg.py)
    told = {f.id.partition(".")[2]: (f.state, str(f.found)) for f in findings}
    return {part: said for part, said in told.items() if part != "vram_by_process"}


@pytest.mark.parametrize("name", WINDOWS)
def test_each_part_of_each_windows_is_told_as_it_is(pc: Pc, name: str) -> None:
    pc.says(name)
    found = found_on(pc)
    expected = {part: told for part, told in WINDOWS[name]["expected"].items() if part != "metrics"}

    assert {part: state for part, (state, _) in found.items()} == {part: state for part, (state, _) in expected.items()}
    assert {part: found[part][1] for part, (_, words) in expected.items() if words not in found[part][1]} == {}


def test_each_part_is_tried_once_for_this_distribution(pc: Pc) -> None:
    found_on(pc)

    assert sorted(start["part"] for start in pc.starts()) == ["about", "folder", "probe", "size", "task", "toast"]
    assert (pc.folder / "task").read_text() == "try Ubuntu-24.04\n"


def test_a_policy_against_powershell_is_named_in_any_language(pc: Pc) -> None:
    pc.says("10-german-policy")
    first, *_ = run(pc.host, Config(), windows=True)

    assert (first.state, "AppLocker" in str(first.remedy)) == ("problem", True)
    assert [start["part"] for start in pc.starts()] == ["about"]


def test_interop_that_is_off_starts_nothing(pc: Pc) -> None:
    pc.says("11-without-interop")
    found_on(pc)

    assert pc.starts() == []


def test_a_slow_start_is_a_note_and_one_that_hangs_a_problem(pc: Pc, monkeypatch: pytest.MonkeyPatch) -> None:
    about = WINDOWS["11-english"]["about"]
    pc.says(about=about | {"seconds": 0.3})
    monkeypatch.setattr(checks_windows, "_SLOW_SECONDS", 0.2)
    assert found_on(pc)["powershell"][0] == "note"

    pc.says(about=about | {"seconds": 600})
    monkeypatch.setattr(interop, "START_SECONDS", 1.0)
    state, found = found_on(pc)["powershell"]
    assert (state, "did not answer within 1 s" in found) == ("problem", True)


def test_a_task_windows_runs_in_vain_is_reported_with_its_result(pc: Pc) -> None:
    pc.says(task={"text": "0x80070002\n"})

    assert found_on(pc)["task"] == ("problem", "Windows ran it, and it ended with 0x80070002")


def test_memory_the_vm_keeps_is_reported_with_a_way_to_return_it(pc: Pc) -> None:
    kept = {**ANSWER, "vm": [{"Name": "vmmemWSL", "WorkingSet": 60 << 30, "Private": 0}]}
    pc.says(probe={"answer": kept})
    (found,) = (f for f in run(pc.host, Config(), windows=True) if f.id == "windows.vm")

    assert (found.state, str(found.found)) == ("note", "its process holds 60 GiB, of which Linux uses 19 GiB")
    assert "vm.compact_memory=1" in str(found.remedy)


def test_page_cache_windows_lacks_is_reported_as_kept_by_the_vm(pc: Pc) -> None:
    # microsoft/WSL#10011: Windows 97 % full, VmmemWSL at 37 GB, of which Linux uses 15 and caches 25
    said = {
        "system": [{"TotalVisibleMemorySize": 66693120}],
        "memory": [{"AvailableBytes": 1900 << 20}],
        "vm": [{"Name": "vmmemWSL", "WorkingSet": 37399 << 20, "Private": 0}],
        "missing": {},
    }
    levels = {"MemTotal": 44142, "MemFree": 960, "Cached": 26000, "Shmem": 126}
    meminfo = "".join(f"{name}: {mebibytes << 10} kB\n" for name, mebibytes in levels.items())
    Path(pc.host.path("/proc/meminfo")).write_text(meminfo)
    pc.says(probe={"answer": said})
    state, found = found_on(pc)["vm"]

    assert (state, found) == ("note", "its process holds 37 GiB, 25 GiB of it page cache; Windows has 3 % left")
    said["memory"] = [{"AvailableBytes": 20 << 30}]
    pc.says(probe={"answer": said})
    assert found_on(pc)["vm"][0] == "good"


@pytest.fixture
def typed(pc: Pc, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    monkeypatch.setattr("wslgpud.cli.doctor.host_at", lambda _: pc.host)
    return lambda *options: CliRunner().invoke(app, ["doctor", "--windows", *options])


@pytest.mark.parametrize("name", ["11-english", "10-german", "11-chinese-administrator", "11-without-interop"])
def test_the_report_is_a_recorded_machine_that_names_nobody(
    pc: Pc, typed: Callable[..., Result], tmp_path: Path, name: str
) -> None:
    pc.says(name)
    owner = WINDOWS[name].get("users", WINDOWS["11-english"]["users"])[0]
    (pc.root / "mnt/c/Users" / owner / ".wslconfig").write_text("[wsl2]\nmemory=48GB\n")
    done = typed("--bundle", f"{tmp_path}/r.tgz")
    assert (done.exit_code, "wrote" in done.output, "Scheduled task:" in done.output) == (0, True, True), done.output
    with tarfile.open(tmp_path / "r.tgz") as archive:
        unpack(archive, tmp_path / "report")
    report = tmp_path / "report/wslgpud-doctor"

    texts = [file.read_text() for file in report.rglob("*") if file.is_file()]
    assert [word for word in owner.split() if any(word in text for text in texts)] == []
    told = {f["id"]: f["state"] for f in json.loads((report / "doctor.json").read_text())}
    assert list(told)[:2] == ["windows.powershell", "windows.memory"]

    # As one of tests/hosts: the probe's answers are there, and the rest of the machine as it was.
    kept = RecordedHost(report / "machine")
    again = {f.id: f.state for f in (*run(kept, Config(), windows=True), *run(kept, Config()))}
    assert json.loads((report / "machine/host.json").read_text())["kind"] == "recorded"
    same = [f"windows.{part}" for part in ("memory", "vm", "gpus")] if name != "11-without-interop" else []
    same += [name for name in told if name.startswith(("wsl", "memory.", "kernel.")) and "swap" not in name]
    assert {name: again[name] for name in same} == {name: told[name] for name in same}
    assert again["windows.powershell"] == "could not tell"


def test_the_command_shows_all_and_exits_1_if_something_failed(pc: Pc, typed: Callable[..., Result]) -> None:
    assert typed().exit_code == 0
    pc.says("10-german")
    assert typed().exit_code == 1
    assert {f["state"] for f in json.loads(typed("--json").output)} >= {"good", "problem"}


def test_the_doctor_offers_windows_checks_only_where_they_work() -> None:
    def ends(machine: str) -> str:
        return CliRunner().invoke(app, ["doctor", "--host-root", str(HERE / machine)]).output.splitlines()[-1]

    assert ends("wsl2-idle").endswith("--windows tries the Windows side.")
    assert "--windows" not in ends("bare-linux")


def test_the_probe_that_is_switched_off_is_said(pc: Pc) -> None:
    found = {f.id: f for f in run(pc.host, Config(windows=Windows(probe="off")), windows=True)}

    assert (found["windows.memory"].state, str(found["windows.memory"].found)) == (
        "could not tell",
        "switched off by windows.probe",
    )


def test_the_desktop_on_the_card_is_named_by_windows(tmp_path: Path) -> None:
    machine = tmp_path / "machine"
    shutil.copytree(HERE / "wsl2-idle", machine)
    shutil.copy(HERE / "wsl2-vram-full/windows.json", machine)
    (told,) = [f for f in run(RecordedHost(machine), Config()) if f.id == "gpu.desktop"]

    assert "(chrome.exe 2.1 GiB, dwm.exe 922 MiB in Windows)" in str(told.found)


def test_a_driver_that_lists_no_programs_blames_no_desktop(tmp_path: Path) -> None:
    shutil.copytree(HERE / "wsl2-idle", tmp_path / "machine")
    file = tmp_path / "machine/nvml.json"
    recorded = json.loads(file.read_text())
    for kind in ("Compute", "Graphics"):
        recorded["gpus"][0][f"nvmlDeviceGet{kind}RunningProcesses_v3"] = {"error": "NOT_SUPPORTED"}
    file.write_text(json.dumps(recorded))
    (told,) = [f for f in run(RecordedHost(tmp_path / "machine"), Config()) if f.id == "gpu.desktop"]

    assert told.state == "could not tell"


@pytest.mark.parametrize(
    ("status", "named"),
    [
        ({"gpus": [{"uuid": "GPU-1", "in_windows": [{"name": "game.exe", "used_bytes": 3 << 30}]}]}, ["game.exe"]),
        ({"gpus": [{"uuid": "GPU-2", "in_windows": [{"name": "game.exe", "used_bytes": 3 << 30}]}]}, []),
        ({"gpus": [{"uuid": "GPU-1"}]}, []),
        ({}, []),
    ],
)
def test_the_running_daemon_tells_who_holds_the_card_in_windows(
    monkeypatch: pytest.MonkeyPatch, status: dict[str, Any], named: list[str]
) -> None:
    monkeypatch.setattr(Evidence, "daemon_status", status)
    found = Evidence(Host(), Config(), None, "/nowhere").programs_in_windows(GpuSample(0, "GPU-1", "card"))

    assert [program.name for program in found] == named
