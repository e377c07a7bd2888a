"""Whether the brake may do what it is configured to, and which checks apply to a machine."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.advise.doctor.conftest import outcome
from tests.support.daemons import saying
from wslgpud.advise.doctor import checking, checks_machine, lacking
from wslgpud.advise.doctor.checking import CHECKS, Evidence, Gpus, TorchFacts
from wslgpud.config import BrakeSettings, Config, Windows
from wslgpud.host import Host, NoData

MAY = "the daemon may pause the jobs of the named users"
MAY_NOT = "the daemon may not signal programs of other users"


@pytest.fixture
def running(machine):
    """Return a machine whose daemon has this status in /proc."""

    def build(status: str, **settings: object) -> Evidence:
        here = machine({"/proc/77/status": status})
        here.config, here.daemon = Config(**settings), SimpleNamespace(pid=lambda: 77)
        return here

    return build


@pytest.mark.parametrize(
    ("status", "state"),
    [
        ("Uid:\t0\t0\t0\t0\nCapEff:\t0000000000000020\n", "good"),
        ("Uid:\t0\t0\t0\t0\nCapEff:\t00000000000000c0\n", "problem"),
        ("Uid:\t0\t0\t0\t0\nCapEff:\t0000000000000010\n", "problem"),
        ("Uid:\t1000\t0\t0\t0\nCapEff:\t0000000000000000\n", "good"),
    ],
)
def test_the_daemon_may_signal_own_programs_or_all_with_cap_kill(running, monkeypatch, status, state):
    monkeypatch.setattr(checks_machine, "allowed_users", lambda _: frozenset({1000}))
    said = outcome("rights.brake", running(status, brake=BrakeSettings(on=True)))

    assert (said.state, str(said.found)) == (state, MAY if state == "good" else MAY_NOT)
    assert said.remedy == ("sudo wslgpud service install --allow brake" if state == "problem" else "")


@pytest.mark.parametrize(
    "status", ["", "Uid:\t1000\t0\t0\t0\n", "Uid:\t\nCapEff:\t0000000000000020\n", "Uid:\t0\nCapEff:\tno\n"]
)
def test_rights_that_cannot_be_read_are_not_guessed(running, status):
    with pytest.raises(NoData, match="the daemon's permissions cannot be read"):
        outcome("rights.brake", running(status, brake=BrakeSettings(on=True)))


@pytest.mark.parametrize(
    ("settings", "runs", "state", "found"),
    [
        (BrakeSettings(on=False), True, "not applicable", "the brake is off"),
        (BrakeSettings(on=True, users=("no such user",)), True, "problem", "brake.users: there is no user"),
        (BrakeSettings(on=True), False, "note", "unknown until the daemon runs"),
        (BrakeSettings(on=True), True, "good", MAY),
    ],
)
def test_the_brake_of_a_running_daemon_is_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: BrakeSettings, runs: bool, state: str, found: str
) -> None:
    monkeypatch.setattr(checking, "SYSTEM_STATE", tmp_path / "none")
    with saying(tmp_path, {}) if runs else nullcontext():
        said = outcome("rights.brake", Evidence(Host(), Config(brake=settings), None, str(tmp_path)))

    assert said.state == state
    assert str(said.found).startswith(found)


@pytest.mark.parametrize(
    ("status", "here", "state", "fix"),
    [
        ("Uid:\t0\nCapEff:\t0\n", False, "good", ""),
        ("Uid:\t990\nCapEff:\t2\n", True, "good", ""),
        ("Uid:\t990\nCapEff:\t20\n", True, "problem", "sudo wslgpud service install --allow return-cache"),
        ("Uid:\t990\nCapEff:\t2\n", False, "problem", "wsl --update"),
    ],
)
def test_giving_page_cache_back_needs_roots_file_and_its_right(running, monkeypatch, status, here, state, fix):
    monkeypatch.setattr(checks_machine, "reclaim_file", lambda _: here)
    said = outcome("rights.return_cache", running(status, windows=Windows(return_cache=True)))

    assert said.state == state
    assert fix in str(said.remedy)


TORCH = TorchFacts("/t/bin/python", "2.7")
CARD = Gpus((checking.GpuSample(0, "GPU-1", "RTX"),))
WSL = {"/dev/dxg": ""}


@pytest.mark.parametrize(
    ("check", "files", "gpus", "torch", "lacks"),
    [
        ("wsl.version", {}, Gpus(), None, ("not applicable", "this is not WSL2")),
        (
            "wsl.version",
            {"/proc/sys/kernel/osrelease": "4.4-Microsoft"},
            Gpus(),
            None,
            ("not applicable", "this is not WSL2"),
        ),
        ("wsl.version", WSL, Gpus(), None, None),
        ("windows.memory", {}, Gpus(), None, ("not applicable", "this is not WSL2")),
        ("windows.memory", WSL, Gpus(), None, None),
        ("windows.toast", WSL, Gpus(), None, ("not applicable", "PowerShell cannot be used")),
        ("windows.powershell", WSL, Gpus(), None, None),
        ("gpu.desktop", {}, Gpus(), None, ("not applicable", "no GPU answers")),
        ("gpu.desktop", {}, CARD, None, None),
        ("torch.kernel", {}, Gpus(), (TORCH,), ("not applicable", "no GPU answers")),
        ("torch.kernel", {}, CARD, None, ("could not tell", "torch was not checked")),
        ("torch.kernel", {}, CARD, (), ("not applicable", "no Python with torch was found")),
        ("torch.kernel", {}, CARD, (TORCH,), None),
        ("memory.size", {}, Gpus(), None, None),
        ("gpu.page_file", {}, CARD, None, ("not applicable", "this is not WSL2")),
        ("gpu.cdi_refresh", {}, CARD, None, ("not applicable", "this is not WSL2")),
        *(
            (check, {}, Gpus(), None, ("not applicable", "this is a recording"))
            for check in ("rights.brake", "rights.secrets", "service.runs")
        ),
    ],
)
def test_a_check_that_does_not_apply_says_why(machine, check, files, gpus, torch, lacks):
    here = machine(files)
    here.gpus, here.torch, here.torches = gpus, torch, torch or ()
    (asked,) = (one for one in CHECKS if one.id == check)
    said = next(lacking(asked, here), None)

    assert (said and (said.state, str(said.found))) == lacks
