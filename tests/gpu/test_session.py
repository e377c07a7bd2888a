"""What the probe asks when, seen from inside: its clock cannot be turned from outside."""

from __future__ import annotations

import itertools
import json

import pytest

from wslgpud.probes import nvml_probe
from wslgpud.probes.nvml_calls import CALLS, Failed, Recorded
from wslgpud.probes.nvml_probe import Session

GPU = {
    "nvmlDeviceGetUUID": "GPU-5b1c0000-0000-0000-0000-000000000001",
    "nvmlDeviceGetMemoryInfo": {"total": 100, "free": 60, "used": 40},
    "nvmlDeviceGetUtilizationRates": {"gpu": 50, "memory": 10},
    "nvmlDeviceGetFanSpeed": 30,
    "nvmlDeviceGetTotalEnergyConsumption": 5000,
    "nvmlDeviceGetPerformanceState": 2,
    "nvmlDeviceGetCurrPcieLinkWidth": 16,
    "nvmlDeviceGetCurrPcieLinkGeneration": 4,
}


NAMED = {"nvmlDeviceGetUUID": GPU["nvmlDeviceGetUUID"]}


class Backend(Recorded):
    """A recording that counts what it is asked and that a test changes as it goes."""

    def __init__(self, path):
        super().__init__(str(path))
        self.asked = []

    @property
    def gpus(self):
        return self._gpus

    def __getattr__(self, function):
        call = super().__getattr__(function)

        def counted(*arguments):
            self.asked.append(function)
            return call(*arguments)

        return counted


@pytest.fixture
def backend(tmp_path):
    path = tmp_path / "nvml.json"
    path.write_text(json.dumps({"gpus": [GPU]}))
    return Backend(path)


@pytest.fixture
def session(backend):
    return Session(backend, now=0.0)


def sample(session, now):
    """Return the values of the only GPU."""
    (gpu,) = session.sample(now)["gpus"]
    return gpu["values"]


def test_what_is_dear_is_asked_rarely(session):
    read_at = {"gpu_utilization_ratio": [], "gpu_fan_speed_ratio": [], "gpu_energy_joules": []}
    for second in range(121):
        found = sample(session, float(second))
        for name, times in read_at.items():
            if name in found:
                times.append(second)
    assert len(read_at["gpu_utilization_ratio"]) == 121
    assert read_at["gpu_fan_speed_ratio"] == list(range(0, 121, 5))
    assert read_at["gpu_energy_joules"] == [0, 60, 120]


def test_what_is_dear_is_asked_as_well_when_everything_is(session):
    sample(session, 0.0)
    (gpu,) = session.sample(1.0, everything=True)["gpus"]

    assert gpu["values"]["gpu_energy_joules"] == 5.0
    assert "gpu_energy_joules" not in sample(session, 2.0)


def test_a_brief_sample_asks_only_who_uses_how_much_memory(session, backend):
    sample(session, 0.0)
    backend.asked.clear()

    (gpu,) = session.sample(30.0, brief=True)["gpus"]

    assert backend.asked == ["nvmlDeviceGetMemoryInfo"]
    assert gpu["values"]["gpu_memory_used_bytes"] == 40
    assert "gpu_fan_speed_ratio" in sample(session, 31.0), "what has become due meanwhile"


@pytest.mark.parametrize(("took_seconds", "read_at"), [(0.00019, list(range(11))), (0.00021, [0, 5, 10])])
def test_clocks_and_processes_are_read_every_sample_if_cheap(session, backend, monkeypatch, took_seconds, read_at):
    backend.gpus[0]["nvmlDeviceGetComputeRunningProcesses_v3"] = [{"pid": 1, "usedGpuMemory": 5}]
    clock = itertools.count(0.0, took_seconds)
    monkeypatch.setattr(nvml_probe.time, "perf_counter", lambda: next(clock))

    samples = [sample(session, float(second)) for second in range(11)]

    for read in ("compute_processes", "gpu_performance_state"):
        assert [second for second, values in enumerate(samples) if read in values] == read_at
    assert all("gpu_utilization_ratio" in values for values in samples)


def test_processes_are_read_again_when_memory_in_use_changes(session, backend, monkeypatch):
    def at(second: float, used: int) -> bool:
        backend.gpus[0]["nvmlDeviceGetMemoryInfo"] = {"total": 1000, "free": 1000 - used, "used": used}
        return "compute_processes" in sample(session, second)

    backend.gpus[0]["nvmlDeviceGetComputeRunningProcesses_v3"] = [{"pid": 1, "usedGpuMemory": 5}]
    monkeypatch.setattr(nvml_probe.time, "perf_counter", itertools.count(0.0, 0.001).__next__)

    assert [at(0.0, 100), at(0.1, 104), at(0.2, 105), at(0.3, 105), at(0.4, 100)] == [True, False, True, False, True]


def test_extra_samples_in_between_ask_only_what_is_cheap(session, backend):
    sample(session, 0.0)
    backend.asked.clear()
    for tenth in range(1, 10):
        sample(session, tenth / 10)
    each_time = {form[0] for call in CALLS if call.eager or not call.every_seconds for form in call.forms}
    assert set(backend.asked) <= each_time


def test_pcie_throughput_is_never_asked():
    assert not [form for call in CALLS for form in call.forms if "PcieThroughput" in form[0]]


def test_an_unsupported_call_is_made_once(session, backend):
    for second in range(1000):
        sample(session, float(second))
    assert backend.asked.count("nvmlDeviceGetPowerUsage") == 1


def test_an_unknown_error_is_tried_again_less_and_less_often(session, backend):
    backend.gpus[0]["nvmlDeviceGetPowerUsage"] = {"error": "UNKNOWN"}
    for second in range(2000):
        sample(session, float(second))
    assert backend.asked.count("nvmlDeviceGetPowerUsage") == 14  # at 0 1 3 7 15 31 63 127 255 511, then each 300
    backend.gpus[0]["nvmlDeviceGetPowerUsage"] = 25000
    assert any(sample(session, 2000.0 + second).get("gpu_power_watts") == 25.0 for second in range(301))


def test_support_is_told_when_it_changes_and_only_then(session, backend):
    backend.gpus[0]["nvmlDeviceGetPowerUsage"] = {"error": "UNKNOWN"}
    (first,) = session.sample(0.0)["support"]
    assert first["calls"]["memory"] is True
    assert first["calls"]["ecc_corrected"] is False
    assert "power" not in first["calls"]
    assert "support" not in session.sample(0.5)
    backend.gpus[0]["nvmlDeviceGetPowerUsage"] = 25000
    (later,) = session.sample(1.0)["support"]
    assert later["calls"]["power"] is True


def test_a_new_gpu_asks_for_a_new_session(session, backend):
    assert "changed" not in session.sample(59.0)
    assert session.sample(60.0)["changed"] is False
    backend.gpus.append(dict(GPU))
    assert "changed" not in session.sample(119.0)
    assert session.sample(120.0)["changed"] is True


def test_a_driver_that_answers_nothing_any_more_is_given_up(session, backend):
    sample(session, 0.0)
    for call in list(backend.gpus[0]):
        backend.gpus[0][call] = {"error": "UNKNOWN"}
    assert sample(session, 5.0)["gpu_utilization_ratio"] is None
    with pytest.raises(Failed) as failed:
        session.sample(11.0)
    assert failed.value.error == "UNKNOWN"


@pytest.mark.parametrize(
    ("call", "nothing", "metric"),
    [
        ("nvmlDeviceGetPerformanceState", 32, "gpu_performance_state"),
        ("nvmlDeviceGetCurrPcieLinkWidth", 0, "gpu_pcie_link_width"),
        ("nvmlDeviceGetCurrPcieLinkGeneration", 0, "gpu_pcie_link_generation"),
    ],
)
def test_what_the_driver_does_not_know_is_no_number(session, backend, call, nothing, metric):
    assert sample(session, 0.0)[metric] == GPU[call]
    backend.gpus[0][call] = nothing
    assert sample(session, 10.0)[metric] is None


def test_each_error_is_counted_once(session, backend):
    backend.gpus[0]["nvmlDeviceGetFanSpeed"] = {"error": "UNKNOWN"}
    session.sample(0.0)
    assert session.sample(5.0)["errors"] == {"UNKNOWN": 1}


def test_an_error_at_the_start_is_counted_in_the_first_answer(session):
    # Name, bus, versions and the like are not in this recording.
    assert session.sample(0.0)["errors"]["NOT_SUPPORTED"] > 5
    assert "errors" not in session.sample(0.5)


def test_no_figure_waits_for_the_name_of_a_process(backend, session):
    """NVIDIA's library takes it from /proc/PID/cmdline, whose readers the process can make wait for ever."""
    backend.gpus[0]["nvmlDeviceGetComputeRunningProcesses_v3"] = [{"pid": pid, "usedGpuMemory": None} for pid in (1, 2)]

    for second in (0.0, 5.0):
        assert sample(session, second)["compute_processes"] == [[1, None], [2, None]]
    assert "nvmlSystemGetProcessName" not in backend.asked


def test_a_process_that_nobody_may_look_at_has_no_name(backend, session):
    backend._system |= {
        "nvmlSystemGetProcessName(1)": {"error": "NO_PERMISSION"},
        "nvmlSystemGetProcessName(2)": "/Xwayland",
    }

    assert [session.process_name(pid) for pid in (1, 2, 3)] == [None, "/Xwayland", None]


#: an answer of each call that the newest drivers understand, and the values that are told of it
ANSWERS: dict[str, tuple[object, dict[str, object]]] = {
    "nvmlDeviceGetMemoryInfo(33554472)": (
        {"total": 1000, "free": 600, "used": 300, "reserved": 100},
        {
            "gpu_memory_total_bytes": 1000,
            "gpu_memory_used_bytes": 300,
            "gpu_memory_free_bytes": 600,
            "gpu_memory_reserved_bytes": 100,
        },
    ),
    "nvmlDeviceGetUtilizationRates": (
        {"gpu": 83, "memory": 7},
        {"gpu_utilization_ratio": 0.83, "gpu_memory_utilization_ratio": 0.07},
    ),
    "nvmlDeviceGetTemperatureV(0)": (54, {"gpu_temperature_celsius": 54}),
    "nvmlDeviceGetPowerUsage": (142_345, {"gpu_power_watts": 142.345}),
    "nvmlDeviceGetClockInfo(0)": (2100, {"gpu_clock_hertz:graphics": 2_100_000_000}),
    "nvmlDeviceGetClockInfo(1)": (2101, {"gpu_clock_hertz:sm": 2_101_000_000}),
    "nvmlDeviceGetClockInfo(2)": (2102, {"gpu_clock_hertz:memory": 2_102_000_000}),
    "nvmlDeviceGetClockInfo(3)": (2103, {"gpu_clock_hertz:video": 2_103_000_000}),
    "nvmlDeviceGetPerformanceState": (2, {"gpu_performance_state": 2}),
    "nvmlDeviceGetCurrentClocksEventReasons": (0x44, {"throttle_reasons": 0x44}),
    "nvmlDeviceGetComputeRunningProcesses_v3": ([{"pid": 7, "usedGpuMemory": 5}], {"compute_processes": [[7, 5]]}),
    "nvmlDeviceGetGraphicsRunningProcesses_v3": ([], {"graphics_processes": []}),
    "nvmlDeviceGetFanSpeed": (41, {"gpu_fan_speed_ratio": 0.41}),
    "nvmlDeviceGetEncoderUtilization": ([12, 166_667], {"gpu_encoder_utilization_ratio": 0.12}),
    "nvmlDeviceGetDecoderUtilization": ([13, 166_667], {"gpu_decoder_utilization_ratio": 0.13}),
    "nvmlDeviceGetCurrPcieLinkGeneration": (4, {"gpu_pcie_link_generation": 4}),
    "nvmlDeviceGetCurrPcieLinkWidth": (8, {"gpu_pcie_link_width": 8}),
    "nvmlDeviceGetEnforcedPowerLimit": (300_000, {"gpu_power_limit_watts": 300.0}),
    "nvmlDeviceGetTotalEnergyConsumption": (5001, {"gpu_energy_joules": 5.001}),
    "nvmlDeviceGetTotalEccErrors(0, 0)": (21, {"gpu_ecc_errors:corrected": 21}),
    "nvmlDeviceGetTotalEccErrors(1, 0)": (22, {"gpu_ecc_errors:uncorrected": 22}),
    "nvmlDeviceGetRemappedRows": (
        [31, 32, 1, 0],
        {
            "gpu_remapped_rows:correctable": 31,
            "gpu_remapped_rows:uncorrectable": 32,
            "gpu_row_remap_pending": 1,
            "gpu_row_remap_failed": 0,
        },
    ),
    "nvmlDeviceGetDisplayActive": (1, {"gpu_display_active": 1}),
    "nvmlDeviceGetMaxPcieLinkGeneration": (5, {"gpu_pcie_link_generation_max": 5}),
    "nvmlDeviceGetMaxPcieLinkWidth": (16, {"gpu_pcie_link_width_max": 16}),
    "nvmlDeviceGetTemperatureThreshold(0)": (95, {"gpu_temperature_limit_celsius:shutdown": 95}),
    "nvmlDeviceGetTemperatureThreshold(1)": (90, {"gpu_temperature_limit_celsius:slowdown": 90}),
    "nvmlDeviceGetMigMode": ([1, 0], {"gpu_mig_enabled": 1}),
}


def opened(tmp_path, *gpus, now=0.0, **system):
    path = tmp_path / "opened.json"
    path.write_text(json.dumps({"gpus": gpus, "system": system}))
    return Session(Backend(path), now)


def test_each_call_gives_its_own_values_in_their_units(tmp_path):
    gpu = {call: answer for call, (answer, _) in ANSWERS.items()}
    session = opened(tmp_path, NAMED | gpu)

    assert sample(session, 0.0) == {name: value for _, values in ANSWERS.values() for name, value in values.items()}


def test_an_older_driver_is_asked_in_its_own_way(tmp_path):
    older = NAMED | {
        "nvmlDeviceGetMemoryInfo": {"total": 1000, "free": 600, "used": 400},
        "nvmlDeviceGetTemperature(0)": 55,
        "nvmlDeviceGetCurrentClocksThrottleReasons": 1,
        "nvmlDeviceGetComputeRunningProcesses_v2": [],
        "nvmlDeviceGetGraphicsRunningProcesses_v2": [],
    }
    known = {name: value for name, value in sample(opened(tmp_path, older), 0.0).items() if value is not None}

    assert known == {
        "gpu_memory_total_bytes": 1000,
        "gpu_memory_used_bytes": 400,
        "gpu_memory_free_bytes": 600,
        "gpu_temperature_celsius": 55,
        "throttle_reasons": 1,
        "compute_processes": [],
        "graphics_processes": [],
    }


@pytest.mark.parametrize(("model", "name"), [(0, "WDDM"), (1, "TCC"), (2, "MCDM"), (3, "")])
def test_a_session_says_which_cards_and_versions_it_has(tmp_path, model, name):
    gpu = {
        "nvmlDeviceGetName": "NVIDIA H200",
        "nvmlDeviceGetPciInfo": {"busId": "00000000:01:00.0"},
        "nvmlDeviceGetCudaComputeCapability": [9, 1],
        "nvmlDeviceGetDriverModel": [model, 5],
    }
    session = opened(tmp_path, gpu, {}, nvmlSystemGetCudaDriverVersion_v2=12_080, nvmlSystemGetNVMLVersion="12.570")
    told = session.describe()
    del told["library"]

    assert told == {
        "cuda_version": "12.8",
        "nvml_version": "12.570",
        "gpus": [
            {
                "index": 0,
                "uuid": "00000000:01:00.0",  # where the card has no other identity
                "name": "NVIDIA H200",
                "pci_bus_id": "00000000:01:00.0",
                "compute_capability": "9.1",
                "driver_model": name,
            }
        ],
    }


def test_a_lost_card_is_reported_beside_the_others(tmp_path):
    lost = {"nvmlDeviceGetHandleByIndex": {"error": "GPU_IS_LOST"}}
    session = opened(tmp_path, lost, GPU)

    first, second = session.sample(0.0)["gpus"]
    assert first == {"index": 0, "uuid": "", "lost": "GPU_IS_LOST"}
    assert second["values"]["gpu_utilization_ratio"] == 0.5
    assert [gpu["uuid"] for gpu in session.support()] == [GPU["nvmlDeviceGetUUID"]]

    session.backend.gpus[1]["nvmlDeviceGetUtilizationRates"] = {"error": "RESET_REQUIRED"}
    assert [one["lost"] for one in session.sample(1.0)["gpus"]] == ["GPU_IS_LOST", "RESET_REQUIRED"]


def test_a_driver_may_be_silent_for_ten_seconds(session, backend):
    sample(session, 0.0)
    backend.gpus[0]["*"] = {"error": "UNKNOWN"}
    assert sample(session, 10.0)["gpu_utilization_ratio"] is None
    with pytest.raises(Failed, match="every call"):
        session.sample(10.1)


@pytest.mark.parametrize(
    ("newer", "older", "asked"),
    [("UNKNOWN", "NOT_SUPPORTED", 4), ("NOT_SUPPORTED", "UNKNOWN", 4), ("NOT_SUPPORTED", "FUNCTION_NOT_FOUND", 2)],
)
def test_a_call_is_repeated_while_one_of_its_forms_may_work(session, backend, newer, older, asked):
    backend.gpus[0] |= {
        "nvmlDeviceGetMemoryInfo(33554472)": {"error": newer},
        "nvmlDeviceGetMemoryInfo": {"error": older},
    }
    for second in (0.0, 1.0):
        assert sample(session, second).get("gpu_memory_used_bytes") is None
    assert backend.asked.count("nvmlDeviceGetMemoryInfo") == asked
