"""``doctor --windows`` tells whether the VRAM of each program can be measured, and what stands in the way."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from tests.advise.doctor.conftest import outcome
from tests.hosts.machines import HERE
from wslgpud.advise.doctor import run
from wslgpud.advise.doctor.checking import Evidence
from wslgpud.config import Config
from wslgpud.host import RecordedHost

CHECK = "windows.vram_by_process"


def evidence(folder: Path) -> Evidence:
    return Evidence(RecordedHost(folder), Config(), None, "/var/lib/wslgpud")


def test_a_kernel_that_answers_is_told_with_what_it_lists() -> None:
    found = outcome(CHECK, evidence(HERE / "wsl2-vram-measured"))
    assert (found.state, str(found.found)) == ("good", "measured: 4 programs listed")


def test_figures_that_do_not_fit_are_told_apart(tmp_path: Path) -> None:
    folder = tmp_path / "machine"
    shutil.copytree(HERE / "wsl2-vram-suspected", folder)
    nvml = json.loads((folder / "nvml.json").read_text())
    nvml["dxg"] = {"adapters": [{"luid": "0x0_0x1", "vram_bytes": 1, "pci": "", "own": [0] * 4, "processes": []}]}
    (folder / "nvml.json").write_text(json.dumps(nvml))

    found = outcome(CHECK, evidence(folder))
    assert str(found.found) == "0 programs listed; none with a figure that fits NVML's"


def test_a_kernel_without_the_list_is_named_with_its_error() -> None:
    found = outcome(CHECK, evidence(HERE / "wsl2-vram-suspected"))
    assert found.state == "note"
    assert str(found.found) == "LX_DXENUMPROCESSES fails with ENOTTY: who fills the card stays a guess"


def test_it_is_asked_for_only_by_that_option() -> None:
    host = RecordedHost(HERE / "wsl2-vram-measured")
    assert CHECK not in {finding.id for finding in run(host)}
    assert CHECK in {finding.id for finding in run(host, windows=True)}
