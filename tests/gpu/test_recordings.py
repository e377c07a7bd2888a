"""Recorded machines are replayed through the very probe that asks real drivers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wslgpud.host import Host, NoData, SourceError
from wslgpud.probes.nvml_calls import GPU_IDENTITY, SENTINELS, Output, error_names
from wslgpud.probes.supervisor import clean_environment, python_command
from wslgpud.sources.gpu import REMEDIES, explain

GPU = {
    "nvmlDeviceGetUUID": "GPU-5b1c0000-0000-0000-0000-000000000001",
    "nvmlDeviceGetName": "NVIDIA GeForce RTX 4090",
    "nvmlDeviceGetMemoryInfo(33554472)": {"error": "UNKNOWN"},
    "nvmlDeviceGetMemoryInfo": {"total": 25757220864, "free": 23622320128, "used": 2134900736},
    "nvmlDeviceGetUtilizationRates": {"gpu": 3, "memory": 1},
}
SYSTEM = {"nvmlSystemGetDriverVersion": "516.59"}


ROOT = Path(__file__).parents[2]
RECORDINGS = Path(__file__).parent / "recordings"


def probe(*arguments, request=""):
    command = python_command("wslgpud.probes.nvml_probe", *arguments)
    environment = clean_environment()
    return subprocess.run(command, env=environment, input=request, capture_output=True, text=True, check=False)


def test_a_recorded_machine_answers_as_it_did(recorded, open_source, values):
    sample = open_source(recorded({"system": SYSTEM, "gpus": [GPU]})).read()
    assert values(sample, "gpu_memory_used_bytes") == {(): 2134900736}
    assert values(sample, "gpu_utilization_ratio") == {(): 0.03}
    assert values(sample, "gpu_power_watts") == {}


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("idle", {"used": 0, "utilization": 0.0, "processes": 0, "throttled": ["gpu_idle"]}),
        ("training", {"used": 43875368960, "utilization": 1.0, "processes": 1, "throttled": ["sw_power_cap"]}),
    ],
)
def test_a_real_h200_reads_as_it_was(replay, values, state, expected):
    sample = replay(f"h200-{state}").read()
    throttled = [reason for (reason,), on in values(sample, "gpu_throttle_reason").items() if on]
    assert expected == {
        "used": values(sample, "gpu_memory_used_bytes")[()],
        "utilization": values(sample, "gpu_utilization_ratio")[()],
        "processes": values(sample, "gpu_processes")[()],
        "throttled": throttled,
    }
    assert values(sample, "gpu_memory_total_bytes") == {(): 150754820096}
    assert values(sample, "gpu_fan_speed_ratio") == {}, "an H200 has no fan"
    assert values(sample, "gpu_ecc_errors") == {("corrected",): 0, ("uncorrected",): 0}
    assert [gpu.name for gpu in sample.gpus] == ["NVIDIA H200"]


WSL_PROCESSES = {"/dev/dxg": "", "/proc/6774/comm": "pt_main_thread\n", "/proc/32/comm": "agetty\n"}
WSL_PROGRAMS = {"/proc/6774/exe": "/usr/bin/python3.12", "/proc/32/exe": "/sbin/agetty"}


@pytest.fixture
def replay(recorded, open_source):
    """Open one of the recordings in the folder beside this file."""

    def open_recording(name, files=(), timeout_seconds=10.0, links=()):
        nvml = json.loads((RECORDINGS / f"{name}.json").read_text())
        return open_source(recorded(nvml, files, links), timeout_seconds=timeout_seconds)

    return open_recording


def test_every_recording_says_where_it_comes_from():
    for file in RECORDINGS.glob("*.json"):
        recording = json.loads(file.read_text())
        assert recording["kind"] in ("recorded", "synthetic")
        assert recording["origin"]


def test_under_wsl2_processes_show_without_their_memory(replay, values):
    sample = replay("wsl2-idle", WSL_PROCESSES, links=WSL_PROGRAMS).read()
    processes = {(process.pid, process.name, process.used_bytes) for process in sample.gpus[0].processes}
    assert processes == {(6774, "python3.12", None), (0, "Xwayland", None)}
    assert values(sample, "gpu_memory_used_bytes") == {(): 1411 << 20}
    assert [labels[4] for labels in values(sample, "gpu")] == ["WDDM"]


def test_processes_come_biggest_first_without_impossible_sizes(recorded, open_source):
    def using(*processes):
        return [{"pid": pid, "usedGpuMemory": used} for pid, used in processes]

    gpu = {
        "nvmlDeviceGetUUID": "GPU-5b1c0000-0000-0000-0000-000000000001",
        "nvmlDeviceGetMemoryInfo": {"total": 1000, "free": 100, "used": 900},
        "nvmlDeviceGetComputeRunningProcesses_v3": using((1, 5), (2, 1001), (3, 1000), (4, 20)),
        "nvmlDeviceGetGraphicsRunningProcesses_v3": using((1, 7), (3, 6)),
    }
    names = {1: "/usr/bin/trainer", 3: "/opt/a-program-with-a-long-name", 4: "/usr/bin/python3.12"}
    system = {f"nvmlSystemGetProcessName({pid})": name for pid, name in names.items()}
    comms = {1: "trainer", 2: "nameless", 3: "a-program-with-", 4: "somebody else"}
    files = {f"/proc/{pid}/comm": f"{comm}\n" for pid, comm in comms.items()} | {"/dev/dxg": ""}
    (read,) = open_source(recorded({"system": system, "gpus": [gpu]}, files)).read().gpus

    assert [(p.pid, p.name, p.used_bytes) for p in read.processes] == [
        (3, "a-program-with-a-long-name", 1000),
        (0, "python3.12", 20),
        (1, "trainer", 7),
        (2, "nameless", None),
    ]


def test_a_full_card_shows_what_is_left(replay):
    (gpu,) = replay("wsl2-vram-full").read().gpus
    assert (gpu.free_bytes, gpu.utilization_ratio) == (192 << 20, 0.99)


def test_unknown_errors_cost_single_values_not_the_card(replay, values):
    sample = replay("wsl2-unknown-v2").read()
    assert values(sample, "gpu_memory_used_bytes") == {(): 1183 << 20}
    assert values(sample, "gpu_utilization_ratio") == {}
    assert values(sample, "gpu_up") == {(): 1}


@pytest.mark.parametrize(
    ("name", "words"), [("wsl2-blocked", "operating system blocks"), ("driver-mismatch", "upgraded")]
)
def test_a_driver_that_refuses_is_a_failure_with_a_remedy(replay, name, words):
    with pytest.raises(SourceError, match=words + ".*wsl --shutdown"):
        replay(name, {"/dev/dxg": ""}).read()


#: a card that the driver counts, and that does not even say which it is, as after a reset in Windows
MUTE = {function: {"error": "UNKNOWN"} for _, function, _ in GPU_IDENTITY}


def test_a_card_that_answers_nothing_is_not_called_missing(recorded, open_source):
    with pytest.raises(SourceError, match=r"nothing but unknown errors.*wsl --shutdown"):
        open_source(recorded({"gpus": [MUTE]}, {"/dev/dxg": ""})).read()


def test_a_card_that_answers_nothing_beside_another_is_lost(recorded, open_source, values, by_gpu):
    sample = open_source(recorded({"system": SYSTEM, "gpus": [GPU, MUTE]})).read()

    assert values(sample, "gpu_lost") == {(): 1}
    assert by_gpu(sample, "gpu_up") == {"0": 1, "1": 0}


@pytest.mark.parametrize(("name", "words"), [("hang", "did not answer"), ("crash", "SIGSEGV")])
def test_a_driver_that_breaks_down_mid_run_is_a_failure(replay, name, words):
    source = replay(name, timeout_seconds=2.0)
    assert source.read().gpus
    assert source.read().gpus
    with pytest.raises(SourceError, match=words):
        source.read()


def test_the_second_of_two_cards_falls_off_the_bus(replay, by_gpu):
    source = replay("gpu-lost-mid-run")
    totals = by_gpu(source.read(), "gpu_memory_total_bytes")
    assert totals == {"0": 16303 << 20, "1": 12288 << 20}
    source.read()
    sample = source.read()
    assert by_gpu(sample, "gpu_up") == {"0": 1, "1": 0}
    assert [gpu.name for gpu in sample.gpus] == ["NVIDIA GeForce RTX 5070 Ti"]


def test_no_way_of_saying_not_available_becomes_a_number(replay, values):
    sample = replay("sentinels").read()
    for name in ("gpu_power_watts", "gpu_performance_state", "gpu_fan_speed_ratio"):
        assert values(sample, name) == {}
    assert [process.used_bytes for process in sample.gpus[0].processes] == [None]


def test_a_recorded_machine_without_nvml_has_no_gpu(recorded, open_source):
    source = open_source(recorded(None, {"/dev/nvidiactl": "", "/dev/dxg": ""}))
    with pytest.raises(NoData):
        source.read()
    assert source._probe.starts_total == 0


def test_another_machines_files_never_show_our_own_gpu(tmp_path, open_source):
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "nvidiactl").touch()
    with pytest.raises(NoData):
        open_source(Host(tmp_path)).read()


@pytest.mark.parametrize(
    ("error", "files", "words"),
    [
        ("LIB_RM_VERSION_MISMATCH", {"/dev/dxg": ""}, "run 'wsl --shutdown' in Windows"),
        ("LIB_RM_VERSION_MISMATCH", {}, "restart the machine"),
        ("DRIVER_NOT_LOADED", {"/dev/dxg": ""}, "/usr/lib/wsl/lib"),
        ("OPERATING_SYSTEM", {"/dev/dxg": ""}, "operating system blocks access to the GPU"),
    ],
)
def test_the_remedy_fits_the_machine(recorded, open_source, error, files, words):
    source = open_source(recorded({"init": {"error": error}, "gpus": []}, files))
    with pytest.raises(SourceError, match=words):
        source.read()


def test_a_driver_package_without_a_card_is_no_fault(recorded, open_source):
    files = {"/sys/bus/pci/devices/0000:00:02.0/vendor": "0x8086\n"}
    source = open_source(recorded({"init": {"error": "DRIVER_NOT_LOADED"}}, files))
    with pytest.raises(NoData):
        source.read()


def test_a_card_whose_driver_does_not_load_is_a_fault(recorded, open_source):
    files = {"/sys/bus/pci/devices/0000:01:00.0/vendor": "0x10de\n"}
    source = open_source(recorded({"init": {"error": "DRIVER_NOT_LOADED"}}, files))
    with pytest.raises(SourceError, match="driver is not loaded"):
        source.read()


def test_a_captured_machine_replays_to_the_same_readings(machine, source, recorded, open_source):
    machine.set(gpus=2, wddm=1, pid=4711)
    machine.gpu(1, used=77 << 20)
    captured = probe("--library", str(machine.library), request='{"record": true}\n')
    assert captured.returncode == 0, captured.stderr
    replayed = open_source(recorded(json.loads(captured.stdout)["recording"])).read()

    def facts(sample):
        return {(r.spec.name, r.labels[0], r.labels[2:]): r.value for r in sample.readings if r.labels}

    assert facts(replayed) == facts(source.read())
    assert "1111-2222-3333-444444444444" not in captured.stdout


def test_costs_are_printed_as_a_table(machine):
    command = [sys.executable, "-m", "tests.bench.nvml_costs", str(machine.library)]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    row = next(line for line in printed.stdout.splitlines() if "nvmlDeviceGetUtilizationRates" in line)
    assert row.startswith("| nvmlDeviceGetUtilizationRates | sample | yes |")


def test_without_nvml_there_is_nothing_to_record():
    done = probe("--library", "/nowhere/libnvidia-ml.so.1", request='{"record": true}\n')
    assert json.loads(done.stdout)["error"] == "LIBRARY_NOT_FOUND"


def test_an_unknown_argument_is_refused():
    done = probe("--captur")
    assert done.returncode == 2
    assert "unknown argument --captur" in done.stderr


def test_the_probe_is_light():
    """It is resident all the time: what it imports is paid for around the clock."""
    heavy = "typing dataclasses argparse subprocess asyncio pathlib inspect logging unittest pynvml"
    code = f"import sys, wslgpud.probes.nvml_probe; print([m for m in {heavy.split()} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], env=clean_environment(), capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


@given(st.sampled_from(sorted(SENTINELS)), st.sampled_from([1, 0.01, 0.001, 1_000_000]))
def test_a_sentinel_never_becomes_a_number(sentinel, factor):
    assert Output("x", None, factor).of(sentinel) is None


@given(st.integers(0, 2**32 - 2), st.sampled_from([1, 0.01, 0.001, 1_000_000]))
def test_any_other_number_is_kept_in_its_unit(value, factor):
    assert Output("x", None, factor).of(value) == pytest.approx(value * factor)


@given(st.sampled_from([*error_names().values(), "31"]), st.booleans())
def test_every_error_has_a_text_that_says_what_to_do(error, wsl):
    text = str(explain(error, "nvmlInit", "", wsl=wsl))
    assert "nvmlInit" in text
    assert error in text
    assert set(REMEDIES) <= set(error_names().values())
