"""``doctor --windows``: each part of Windows' side is used once, and what worked is said plainly.

Stand-ins for powershell.exe answer like several Windows; no Windows takes part.
"""

from __future__ import annotations

import json
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from tests.hosts.machines import HERE
from tests.probes.test_windows import ANSWER, CARD
from wslgpud.advise.doctor import checks_windows, run
from wslgpud.cli import app
from wslgpud.config import Config, Windows
from wslgpud.host import Host, RecordedHost
from wslgpud.probes import interop
from wslgpud.sources import windows
from wslgpud.sources.windows import WindowsSource

#: Tells by its words which script it was given. What it says is in ``says.json``, as text or as bytes in hexadecimal.
POWERSHELL = """#!{python}
import base64, json, sys, time
from pathlib import Path
here = Path(sys.argv[0]).parent
script = base64.b64decode(sys.argv[-1]).decode("utf-16-le")
marks = {{"about": "WindowsPrincipal", "probe": "vmmemWSL", "toast": "ToastNotification", "task": "ScheduledTask",
          "size": "Win32_ComputerSystem", "folder": "USERPROFILE"}}
part = next(name for name, mark in marks.items() if mark in script)
said = json.loads((here / "says.json").read_text())[part]
with (here / "asked").open("a") as asked:
    print(part, file=asked)
time.sleep(said.get("seconds", 0))
given = sys.stdin.readline()
if part == "task":
    (here / "task").write_text(given)
sys.stdout.buffer.write(said.get("text", "").encode())
sys.stdout.flush()
sys.stderr.buffer.write(bytes.fromhex(said.get("complaint", "")))
if part == "probe" and not said.get("dies"):
    sys.stdin.read()
sys.exit(said.get("status", 0))
"""
DENIED = {"de": "Zugriff verweigert", "zh": "拒绝访问。"}
#: as PowerShell's own host prints it, where the script's words for failures are refused as well
CONSTRAINED = (
    "Der Methodenaufruf wird nur für Kerntypen unterstützt.\n"
    "    + FullyQualifiedErrorId : MethodInvocationNotSupportedInConstrainedLanguage\n"
)


def about(build: str, language: str, *, administrator: bool = False) -> dict[str, str]:
    facts = {
        "version": build.replace("10.0", "5.1"),
        "windows": build,
        "language": language,
        "administrator": administrator,
    }
    return {"text": json.dumps(facts) + "\r\n"}


def fails(words: str, encoding: str = "utf-8") -> dict[str, Any]:
    return {"status": 1, "complaint": words.encode(encoding).hex()}


ELEVEN = {
    "about": about("10.0.26100.4652", "en-US"),
    "probe": {"text": json.dumps(ANSWER) + "\n"},
    "toast": {},
    "task": {"text": "0x0\r\n"},
    "size": {"text": "68524797952 24\r\n"},
    "folder": {"text": "C:\\Users\\erika\r\n"},
}
OLD_ANSWER = {k: v for k, v in ANSWER.items() if k not in ("gpu", "vm")} | {
    "vm": [{"Name": "vmmem", "WorkingSet": 19 << 30, "Private": 0}],
    "missing": {"gpu": "Ungültige Klasse"},
}
TEN_IN_GERMAN = ELEVEN | {
    "about": about("10.0.19045.5965", "de-DE"),
    "probe": {"text": json.dumps(OLD_ANSWER, ensure_ascii=False) + "\n"},
    "task": fails(DENIED["de"]),
}
ELEVEN_IN_CHINESE = ELEVEN | {
    "about": about("10.0.22631.5472", "zh-CN", administrator=True),
    "toast": fails(DENIED["zh"]),
    "size": fails(DENIED["zh"], "gbk"),  # without a console its encoding stays the country's
}


class Pc:
    """A folder that looks like a WSL2 machine on a Windows that says what the test wants."""

    def __init__(self, root: Path) -> None:
        self.host = Host(root)
        self.folder = root / "mnt/c/Windows/System32/WindowsPowerShell/v1.0"
        self.folder.mkdir(parents=True)
        for name in ("erika", "jan"):
            (root / "mnt/c/Users" / name).mkdir(parents=True)
        files = {
            "proc/sys/fs/binfmt_misc/WSLInterop": "enabled\n",
            "proc/meminfo": "MemTotal:  49283072 kB\nMemFree:    8388608 kB\n",
            "proc/vmstat": "",
            "proc/self/mounts": "C:\\134 /mnt/c 9p rw,aname=drvfs;path=C:\\134 0 0\n",
            "proc/1/mounts": "C:\\134 /mnt/c 9p rw,aname=drvfs;path=C:\\134 0 0\n",
            "dev/dxg": "",
        }
        for name, text in files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)

    def says(self, answers: dict[str, dict[str, Any]]) -> None:
        (self.folder / "says.json").write_text(json.dumps(answers))
        program = self.folder / "powershell.exe"
        program.write_text(POWERSHELL.format(python=sys.executable))
        program.chmod(0o755)

    def found(self) -> dict[str, tuple[str, str]]:
        findings = run(self.host, Config(), windows=True)
        assert [f.id for f in findings if f.state == "problem" and not f.remedy] == []
        return {f.id.partition(".")[2]: (f.state, str(f.found)) for f in findings}

    def asked(self) -> list[str]:
        file = self.folder / "asked"
        return file.read_text().split() if file.exists() else []


@pytest.fixture
def pc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pc:
    # What runs here to name the distribution, as WSL has it.
    wslpath = tmp_path / "bin/wslpath"
    wslpath.parent.mkdir()
    wslpath.write_text("#!/bin/sh\nprintf '%s\\n' '\\\\wsl.localhost\\Ubuntu-24.04\\'\n")
    wslpath.chmod(0o755)
    monkeypatch.setenv("PATH", f"{wslpath.parent}:/usr/bin:/bin")
    return Pc(tmp_path / "pc")


def states(found: dict[str, tuple[str, str]]) -> dict[str, str]:
    return {name: state for name, (state, _) in found.items()}


def test_where_all_works_it_says_of_each_part_what_it_saw(pc: Pc) -> None:
    pc.says(ELEVEN)
    found = pc.found()

    assert set(states(found).values()) == {"good"}
    assert "Windows 11 (10.0.26100.4652, en-US, as an ordinary user), PowerShell 5.1" in found["powershell"][1]
    assert found["memory"][1] == "9.0 GiB of 64 GiB available"
    assert CARD in found["gpus"][1]
    assert found["size"][1] == "64 GiB of RAM, 24 logical processors"
    assert found["paths"][1] == "/mnt/c/Users/erika/.wslconfig"
    assert (pc.folder / "task").read_text() == "try Ubuntu-24.04\n"
    assert sorted(pc.asked()) == ["about", "folder", "probe", "size", "task", "toast"]


def test_windows_10_in_german_without_counters_for_gpus_and_with_a_forbidden_task(pc: Pc) -> None:
    pc.says(TEN_IN_GERMAN)
    found = pc.found()

    assert found["powershell"][1].startswith("Windows 10 (10.0.19045.5965, de-DE, as an ordinary user)")
    assert found["gpus"] == ("problem", "Ungültige Klasse")
    assert found["task"][0] == "problem"
    assert found["task"][1].endswith("failed (1): Zugriff verweigert")
    assert {n for n, state in states(found).items() if state == "good"} >= {"memory", "vm", "toast", "size", "paths"}


def test_windows_11_in_chinese_as_administrator(pc: Pc) -> None:
    pc.says(ELEVEN_IN_CHINESE)
    found = pc.found()

    assert "zh-CN, as administrator" in found["powershell"][1]
    assert found["toast"] == ("problem", f"{pc.folder}/powershell.exe failed (1): {DENIED['zh']}")
    assert found["size"] == ("problem", "Windows gave no answer")
    assert found["task"][0] == "good"


def test_a_policy_that_restricts_powershell_is_named_in_every_language(pc: Pc) -> None:
    pc.says(dict.fromkeys(ELEVEN, fails(CONSTRAINED)))
    first, *others = run(pc.host, Config(), windows=True)

    assert first.state == "problem"
    assert "AppLocker" in str(first.remedy)
    assert {other.state for other in others} == {"not applicable"}
    assert pc.asked() == ["about"]  # nothing else is tried in vain


def test_interop_that_is_off_starts_nothing(pc: Pc) -> None:
    pc.says(ELEVEN)
    Path(pc.host.path(f"{interop.BINFMT}/WSLInterop")).unlink()
    found = pc.found()

    assert found["powershell"] == ("problem", str(interop.OFF))
    assert {state for name, state in states(found).items() if name != "powershell"} == {"not applicable"}
    assert pc.asked() == []


def test_a_slow_start_is_a_note_and_one_that_hangs_a_problem(pc: Pc, monkeypatch: pytest.MonkeyPatch) -> None:
    pc.says(ELEVEN | {"about": {**ELEVEN["about"], "seconds": 0.3}})
    monkeypatch.setattr(checks_windows, "_SLOW_SECONDS", 0.2)
    assert pc.found()["powershell"][0] == "note"

    pc.says(ELEVEN | {"about": {"seconds": 600}})
    monkeypatch.setattr(interop, "START_SECONDS", 1.0)
    state, found = pc.found()["powershell"]
    assert (state, "did not answer within 1 s" in found) == ("problem", True)


def test_a_probe_whose_pipe_dies_costs_only_what_it_tells(pc: Pc) -> None:
    pc.says(ELEVEN | {"probe": {"text": '{"memory": [{"Avail', "dies": True, "status": 5}})
    found = pc.found()

    assert {n for n, state in states(found).items() if state != "good"} == {"memory", "vm", "gpus"}
    assert "Windows probe ended with status 5" in found["memory"][1]
    assert pc.asked().count("probe") == 1


def test_a_task_that_windows_runs_in_vain_is_told_with_its_result(pc: Pc) -> None:
    pc.says(ELEVEN | {"task": {"text": "0x80070002\r\n"}})

    assert pc.found()["task"] == ("problem", "Windows ran it, and it ended with 0x80070002")


def test_memory_that_the_virtual_machine_keeps_is_told_with_what_gives_it_back(pc: Pc) -> None:
    kept = {**ANSWER, "vm": [{"Name": "vmmemWSL", "WorkingSet": 60 << 30, "Private": 0}]}
    pc.says(ELEVEN | {"probe": {"text": json.dumps(kept) + "\n"}})
    (found,) = (f for f in run(pc.host, Config(), windows=True) if f.id == "windows.vm")

    assert (found.state, str(found.found)) == ("note", "its process holds 60 GiB, of which Linux uses 39 GiB")
    assert "vm.compact_memory=1" in str(found.remedy)


def test_page_cache_that_windows_lacks_is_told_as_what_its_virtual_machine_keeps(pc: Pc) -> None:
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
    pc.says(ELEVEN | {"probe": {"text": json.dumps(said) + "\n"}})
    state, found = pc.found()["vm"]

    assert (state, found) == ("note", "its process holds 37 GiB, 25 GiB of it page cache; Windows has 3 % left")
    said["memory"] = [{"AvailableBytes": 20 << 30}]
    pc.says(ELEVEN | {"probe": {"text": json.dumps(said) + "\n"}})
    assert pc.found()["vm"][0] == "good"


@pytest.fixture
def typed(pc: Pc, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    monkeypatch.setattr("wslgpud.cli.doctor.host_at", lambda _: pc.host)
    return lambda *options: CliRunner().invoke(app, ["doctor", "--windows", *options])


def test_the_report_is_a_recorded_machine_that_names_nobody(
    pc: Pc, typed: Callable[..., Result], tmp_path: Path
) -> None:
    pc.says(ELEVEN)
    done = typed("--bundle", f"{tmp_path}/r.tgz")
    assert (done.exit_code, "wrote" in done.output) == (0, True), done.output
    assert "Scheduled task: made, run and removed again" in done.output
    with tarfile.open(tmp_path / "r.tgz") as archive:
        archive.extractall(tmp_path / "report", filter="data")
    report = tmp_path / "report/wslgpud-doctor"

    findings = json.loads((report / "doctor.json").read_text())
    assert [f["id"] for f in findings[:2]] == ["windows.powershell", "windows.memory"]
    assert any(f["id"] == "wsl.kernel" for f in findings)
    texts = [file.read_text() for file in report.rglob("*") if file.is_file()]
    assert not any("erika" in text for text in texts)
    recorded = RecordedHost(report / "machine")
    assert windows.from_probe(WindowsSource(recorded, Config()).ask()) == windows.from_probe(ANSWER)
    again = {f.id: f.state for f in run(recorded, Config(), windows=True)}
    assert again["windows.powershell"] == "could not tell"


def test_the_command_shows_all_and_ends_with_1_where_something_failed(pc: Pc, typed: Callable[..., Result]) -> None:
    pc.says(ELEVEN)
    assert typed().exit_code == 0
    pc.says(TEN_IN_GERMAN)
    assert typed().exit_code == 1
    assert {f["state"] for f in json.loads(typed("--json").output)} >= {"good", "problem"}


def test_the_doctor_names_this_way_where_windows_can_be_asked_and_nowhere_else() -> None:
    def ends(machine: str) -> str:
        return CliRunner().invoke(app, ["doctor", "--host-root", str(HERE / machine)]).output.splitlines()[-1]

    assert ends("wsl2-idle").endswith("--windows tries the Windows side.")
    assert "--windows" not in ends("bare-linux")


def test_the_probe_that_is_switched_off_is_said(pc: Pc) -> None:
    pc.says(ELEVEN)
    found = {f.id: f for f in run(pc.host, Config(windows=Windows(probe="off")), windows=True)}

    assert (found["windows.memory"].state, str(found["windows.memory"].found)) == (
        "could not tell",
        "switched off by windows.probe",
    )
