"""``doctor --windows`` tells whether the VRAM of each program can be measured, and what stands in the way."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.advise.doctor.conftest import outcome
from tests.hosts.machines import HERE
from tests.support.dxg import GIB, Adapter, Entry, Generation, Kernel
from wslgpud.advise.doctor import run
from wslgpud.advise.doctor.checking import Evidence
from wslgpud.config import Config
from wslgpud.host import RecordedHost
from wslgpud.probes.dxg import DxgDevice, try_each

CHECK = "windows.vram_by_process"


def recorded(tmp_path: Path, name: str, generation: Generation) -> Evidence:
    """A machine on which each call was answered by a driver of this kind."""
    kernel = Kernel([Adapter(entries=[Entry(9321, 10 * GIB), Entry(9400, GIB)])], generation)
    folder = tmp_path / name
    shutil.copytree(HERE / name, folder)
    nvml = json.loads((folder / "nvml.json").read_text())
    nvml["dxg_tried"] = try_each(lambda: DxgDevice("/dev/null", kernel.ioctl))
    (folder / "nvml.json").write_text(json.dumps(nvml))
    return Evidence(RecordedHost(folder), Config(), None, "/var/lib/wslgpud")


def test_a_kernel_that_answers_is_told_with_what_it_lists(tmp_path: Path) -> None:
    found = outcome(CHECK, recorded(tmp_path, "wsl2-vram-measured", "pids"))
    assert (found.state, str(found.found)) == ("good", "measured: 9 calls answered, 2 programs listed")


def test_figures_that_do_not_fit_are_told_apart(tmp_path: Path) -> None:
    found = outcome(CHECK, recorded(tmp_path, "wsl2-vram-suspected", "pids"))
    assert str(found.found).endswith("none with a figure that fits NVML's")


@pytest.mark.parametrize("generation", ["einval", "caller"])
def test_a_kernel_without_the_list_is_named_with_its_error(tmp_path: Path, generation: Generation) -> None:
    found = outcome(CHECK, recorded(tmp_path, "wsl2-vram-suspected", generation))
    assert found.state == "note"
    assert str(found.found) == "LX_DXENUMPROCESSES fails with ENOTTY: who fills the card stays a guess"


def test_it_is_asked_for_only_by_that_option() -> None:
    host = RecordedHost(HERE / "wsl2-vram-measured")
    assert CHECK not in {finding.id for finding in run(host)}
    assert CHECK in {finding.id for finding in run(host, windows=True)}
