"""Whole machines: every source reads every one of them, and sees what the machine is there for."""

from __future__ import annotations

import filecmp
import math
import subprocess
import sys

import pytest

from tests.hosts.machines import HERE, MACHINES, facts
from wslgpud.config import Config
from wslgpud.host import NoData, RecordedHost, SourceError
from wslgpud.sampling.observation import observation_of
from wslgpud.sampling.sampler import SOURCES
from wslgpud.sources import logs, windows

GIB = 1 << 30


def test_the_synthetic_machines_are_what_the_script_makes(tmp_path):
    subprocess.run([sys.executable, str(HERE / "make.py"), str(tmp_path)], check=True)
    made = sorted(folder.name for folder in tmp_path.iterdir())
    assert made == [name for name in MACHINES if facts(name)["kind"] == "synthetic"]
    for name in made:
        left, right = (
            {p.relative_to(d): p for p in d.rglob("*") if p.is_file()} for d in (tmp_path / name, HERE / name)
        )
        assert left.keys() == right.keys(), name
        for path, file in left.items():
            assert filecmp.cmp(file, right[path], shallow=False), f"{name}: {path}; run tests/hosts/make.py"


@pytest.mark.parametrize("name", MACHINES)
def test_each_machine_says_where_it_comes_from(name):
    assert facts(name)["kind"] in ("recorded", "synthetic")
    assert facts(name)["origin"]


@pytest.mark.parametrize("name", MACHINES)
@pytest.mark.parametrize("source", [s for s in SOURCES if s.name != "gpu"], ids=lambda s: s.name)
def test_every_source_reads_every_machine_or_says_why_not(name, source):
    reader = source(RecordedHost(HERE / name), Config())
    try:
        readings = reader.read().readings
    except (NoData, SourceError) as reason:
        assert str(reason)
        return
    finally:
        reader.close()
    series = [(r.spec.name, r.labels) for r in readings]
    assert len(set(series)) == len(series)
    for reading in readings:
        assert reading.spec in source.metrics or reading.spec.name.startswith("filesystem_")
        assert len(reading.labels) == len(reading.spec.labels)
        assert math.isfinite(reading.value)


def health(snapshot) -> dict[str, str]:
    return {r.name: r.health for r in snapshot.reports}


LINUX = ("bare-linux", "gpu-lost", "gpu-unreachable", "h200-training", "mig-container", "two-gpus")


@pytest.mark.parametrize("name", MACHINES)
def test_ram_and_biggest_processes_are_known_on_every_machine(ticked, name):
    seen = observation_of(ticked(name)[-1])
    assert 0 < seen.ram.available < seen.ram.total
    assert seen.processes
    assert seen.wsl == (name not in LINUX)


def test_the_recorded_machines_real_kernel_is_understood(ticked):
    (snapshot,) = ticked("bare-linux")
    kills = [e for e in snapshot.events if e.kind == "oom_kill"]
    assert [(e.fields["victim"], e.fields["constraint"]) for e in kills] == [("python3", "CONSTRAINT_MEMCG")] * 2
    assert kills[0].fields["cgroup"].startswith("/wslgpud-test-")
    assert kills[0].fields["size_bytes"] == (263808 + 5784) * 1024


def test_an_idle_wsl2_machine_is_well(ticked):
    (snapshot,) = ticked("wsl2-idle")
    states = health(snapshot)
    assert {name for name, state in states.items() if state != "ok"} == {
        "cgroups",
        "model_servers",
        "oom_daemons",
        "windows",
    }
    (gpu,) = snapshot.gpus
    assert gpu.name == "NVIDIA GeForce RTX 5070 Ti"
    assert [p.used_bytes for p in gpu.processes] == [None]


def test_a_full_card_shows_its_training_and_the_drivers_refusals(ticked):
    (snapshot,) = ticked("wsl2-vram-full")
    assert snapshot.processes[0].roles == {"gpu", "training"}
    assert snapshot.processes[0].command == "python3.12 train.py"
    assert snapshot.gpus[0].free_bytes < 1 * GIB
    assert snapshot.value(logs.DXG_ERRORS, "dxgkio_make_resident", "ENOMEM") == 3
    assert [e.fields["error"] for e in snapshot.events if e.kind == "dxg_error"] == ["ENOMEM"]  # of one second
    assert snapshot.value(windows.GPU_SHARED, snapshot.gpus[0].name) == 3 * GIB


def test_vram_is_measured_where_the_kernel_answers(ticked):
    (snapshot,) = ticked("wsl2-vram-measured")
    (gpu,) = snapshot.gpus
    # A thread's number counts for its process, who has ended and who answers with zeros for nobody.
    assert [(p.pid, p.name, p.used_bytes) for p in gpu.processes] == [
        (9309, "python3.12", 10 * GIB),
        (9400, "python3.12", 3 * GIB),
        (0, "Xwayland", None),
    ]
    assert (gpu.demoted_bytes, gpu.ceiling_bytes) == (1 * GIB, None)


def test_a_kernel_without_the_list_changes_nothing(ticked):
    (snapshot,) = ticked("wsl2-vram-suspected")
    (gpu,) = snapshot.gpus
    assert {(p.pid, p.used_bytes) for p in gpu.processes} == {(9309, None), (0, None)}
    assert gpu.demoted_bytes is None
    assert health(snapshot)["gpu"] == "ok"


def test_a_thrashing_machine_shows_its_build_stalls_and_kill(ticked):
    (snapshot,) = ticked("wsl2-swap-thrash")
    seen = observation_of(snapshot)
    assert {p.name for p in snapshot.processes} == {"cicc", "ninja", "node", "systemd"}
    assert all("build" in p.roles for p in snapshot.processes[:8])
    assert seen.psi["memory"].full_avg10 == 61.2
    assert seen.vm.refault_pages_total == 9_700_000
    assert [e.fields["victim"] for e in snapshot.events if e.kind == "oom_kill"] == ["cicc"]


def test_missing_pressure_and_wslinfo_on_old_wsl_is_no_fault(ticked):
    (snapshot,) = ticked("wsl2-no-psi")
    assert health(snapshot)["pressure"] == "absent"
    assert observation_of(snapshot).psi == {}
    assert health(snapshot)["wsl"] == "ok"


def test_a_machine_without_a_gpu_is_no_fault(ticked):
    (snapshot,) = ticked("no-gpu")
    assert health(snapshot)["gpu"] == "absent"
    assert "failed" not in health(snapshot).values()


def test_limits_of_cgroups_are_seen_with_the_kills_they_caused(ticked):
    (snapshot,) = ticked("cgroup-limit")
    everything, box = observation_of(snapshot).cgroups
    assert everything.path == "/wsl-user"
    assert everything.limit - everything.current < GIB
    assert box.oom_kills_total == 2
    (kill,) = [e for e in snapshot.events if e.kind == "oom_kill"]
    assert kill.fields["cgroup"] == box.path


def test_the_card_that_falls_off_the_bus_was_there_before(ticked):
    before, after = ticked("gpu-lost")
    assert len(before.gpus) == 1
    assert after.gpus == ()
    assert [e.fields["xid"] for e in before.events if e.kind == "nvidia_xid"] == ["79"]


@pytest.mark.parametrize("name", ["nvml-hang", "nvml-crash"])
def test_a_driver_that_breaks_down_takes_nothing_else_along(ticked, name):
    before, after = ticked(name)
    assert len(before.gpus) == 1
    assert after.gpus == ()
    others = {n: h for n, h in health(after).items() if n != "gpu"}
    assert others == {n: h for n, h in health(before).items() if n != "gpu"}


def test_two_cards_are_two(ticked):
    (snapshot,) = ticked("two-gpus")
    assert [g.index for g in snapshot.gpus] == [0, 1]
    assert snapshot.gpus[0].processes[0].pid == 5151


def test_a_driver_with_only_the_first_version_reports_its_memory(ticked):
    (snapshot,) = ticked("unknown-v2")
    assert snapshot.gpus[0].used_bytes is not None
    assert snapshot.gpus[0].reserved_bytes is None


def test_a_driver_updated_under_a_running_wsl_says_what_to_do(ticked):
    (snapshot,) = ticked("driver-mismatch")
    (gpu,) = [r for r in snapshot.reports if r.name == "gpu"]
    assert gpu.health == "failed"
    assert "wsl --shutdown" in gpu.error
