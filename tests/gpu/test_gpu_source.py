"""The real source, supervisor and probe, with a library of our own in place of NVIDIA's."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from wslgpud.config import Config, Sampling
from wslgpud.host import Host, NoData, SourceError
from wslgpud.metrics import Catalogue
from wslgpud.probes import nvml_calls
from wslgpud.probes.supervisor import clean_environment
from wslgpud.sources.gpu import FED, OUTPUTS, GpuSource

MIB = 1 << 20


def test_a_gpu_is_read_in_base_units(machine, source, values):
    machine.set(used=5000 * MIB, total=16000 * MIB, reserved=300 * MIB, utilization=83)
    sample = source.read()
    assert values(sample, "gpu_memory_used_bytes") == {(): 5000 * MIB}
    assert values(sample, "gpu_memory_free_bytes") == {(): 10700 * MIB}
    assert values(sample, "gpu_utilization_ratio") == {(): 0.83}
    assert values(sample, "gpu_power_watts") == {(): 142.345}
    assert values(sample, "gpu_power_limit_watts") == {(): 300.0}
    assert values(sample, "gpu_energy_joules") == {(): 123456.789}
    assert values(sample, "gpu_clock_hertz")[("memory",)] == 14_001_000_000
    assert values(sample, "gpu_fan_speed_ratio") == {(): 0.41}
    assert values(sample, "gpu_temperature_limit_celsius") == {("shutdown",): 95, ("slowdown",): 90}


def test_the_risk_engine_gets_the_same_numbers(machine, source):
    machine.set(used=5000 * MIB, total=16000 * MIB, reserved=300 * MIB)
    (gpu,) = source.read().gpus
    assert (gpu.used_bytes, gpu.total_bytes, gpu.reserved_bytes, gpu.free_bytes) == (
        5000 * MIB,
        16000 * MIB,
        300 * MIB,
        10700 * MIB,
    )
    assert (gpu.index, gpu.uuid) == (0, "GPU-00000000-1111-2222-3333-444444444444")
    assert (gpu.name, gpu.temperature_celsius) == ("NVIDIA GeForce RTX 5070 Ti", 54)


def test_identity_stands_on_one_series(source):
    (info,) = [r for r in source.read().readings if r.spec.exposed_name == "wslgpud_gpu_info"]
    assert dict(zip(info.spec.labels, info.labels, strict=True)) == {
        "gpu": "0",
        "uuid": "GPU-00000000-1111-2222-3333-444444444444",
        "name": "NVIDIA GeForce RTX 5070 Ti",
        "pci_bus_id": "00000000:01:00.0",
        "vbios_version": "98.03.3b.00.01",
        "compute_capability": "12.0",
        "driver_model": "WDDM",
        "driver_version": "591.44",
        "cuda_version": "13.1",
        "nvml_version": "13.590.44.01",
    }


def test_throttle_reasons_are_one_series_each(machine, source, values):
    machine.set(throttle=0x4 | 0x40)
    reasons = values(source.read(), "gpu_throttle_reason")
    assert {name for (name,), active in reasons.items() if active} == {"sw_power_cap", "hw_thermal_slowdown"}
    assert len(reasons) == 9


def test_memory_falls_back_to_v1_for_good_when_v2_is_unknown(machine, source, values):
    machine.set(DeviceGetMemoryInfo_v2=999, used=1000 * MIB, reserved=200 * MIB)
    first = source.read()
    assert values(first, "gpu_memory_used_bytes") == {(): 1200 * MIB}
    assert values(first, "gpu_memory_reserved_bytes") == {}
    machine.set(DeviceGetMemoryInfo_v2=0)
    assert values(source.read(), "gpu_memory_used_bytes") == {(): 1200 * MIB}, "no jump by changing the question"


def test_what_a_card_does_not_support_is_absent_and_said_so(source, values):
    sample = source.read()
    assert values(sample, "gpu_ecc_errors") == {}
    support = values(sample, "gpu_field_supported")
    assert (support[("ecc_corrected",)], support[("mig",)], support[("memory",)]) == (0, 0, 1)


def test_a_call_that_is_not_supported_is_not_made_again(machine, source, values):
    machine.set(DeviceGetPowerUsage=3)
    assert values(source.read(), "gpu_power_watts") == {}
    machine.set(DeviceGetPowerUsage=0)
    assert values(source.read(), "gpu_power_watts") == {}
    errors = [r for r in source.own() if r.spec.name == "gpu_nvml_errors"]
    source.read()
    assert [r for r in source.own() if r.spec.name == "gpu_nvml_errors"] == errors


def test_an_unknown_error_costs_one_value_and_is_tried_again(machine, source, values):
    machine.set(DeviceGetUtilizationRates=999)
    sample = source.read()
    assert values(sample, "gpu_utilization_ratio") == {}
    assert values(sample, "gpu_memory_used_bytes") != {}
    assert ("utilization",) not in values(sample, "gpu_field_supported"), "unknown is neither yes nor no"
    machine.set(DeviceGetUtilizationRates=0)
    assert eventually(lambda: values(source.read(), "gpu_utilization_ratio")) == {(): 0.37}


def test_a_value_that_goes_away_does_not_linger(machine, source, values):
    assert values(source.read(), "gpu_temperature_celsius") == {(): 54}
    machine.set(DeviceGetTemperature=999)
    assert values(source.read(), "gpu_temperature_celsius") == {}


@pytest.mark.parametrize("setting", ["utilization", "temperature", "DeviceGetPowerUsage.value"])
def test_the_32_bit_sentinel_is_no_number(machine, source, setting):
    machine.set(**{setting: 2**32 - 1})
    assert all(reading.value < 2**32 * 0.01 for reading in source.read().readings if is_small(reading))


def is_small(reading):
    return reading.spec.name in ("gpu_utilization_ratio", "gpu_temperature_celsius", "gpu_power_watts")


class UnderWsl(Host):
    """This machine, with the device that WSL2 has for GPUs."""

    def exists(self, path):
        return path == "/dev/dxg" or super().exists(path)


@pytest.fixture
def source_under_wsl(machine, open_source):
    return open_source(UnderWsl(clock=machine.clock), library=machine.library, timeout_seconds=2.0)


def processes_of(source):
    return [(process.pid, process.name, process.used_bytes) for gpu in source.read().gpus for process in gpu.processes]


def test_under_wddm_processes_have_no_memory(machine, source_under_wsl):
    name = Path(f"/proc/{os.getpid()}/comm").read_text().strip()
    machine.set(pid=os.getpid(), wddm=1, process_name=name)
    assert eventually(lambda: (os.getpid(), name, None) in processes_of(source_under_wsl))


def test_a_pid_that_a_stranger_uses_again_gets_its_new_name(machine, source_under_wsl):
    for name in ("old", "new"):
        machine.set(pid=1 << 23, process_name=f"/{name}")  # no pid of ours
        assert eventually(lambda name=name: processes_of(source_under_wsl) == [(0, name, 1 << 30)])
        machine.set(pid=0)
        assert eventually(lambda: processes_of(source_under_wsl) == [])


def test_figures_do_not_wait_for_a_process_name_that_never_comes(machine, source_under_wsl):
    machine.set(pid=os.getpid(), process_name="/Xwayland", hang="SystemGetProcessName")
    for _ in range(3):
        assert processes_of(source_under_wsl) == [(0, "", 1 << 30)]
    assert {r.spec.name: r.value for r in source_under_wsl.own()}["gpu_probe_hangs"] == 0


def test_a_process_with_memory_is_reported(machine, source, values):
    machine.set(pid=os.getpid(), process_name=Path("/proc/self/exe").resolve())
    sample = source.read()
    ((process,),) = [gpu.processes for gpu in sample.gpus]
    assert (process.pid, process.used_bytes) == (os.getpid(), 1 << 30)
    assert values(sample, "gpu_processes") == {(): 1}


def test_a_process_whose_name_is_not_text_does_no_harm(machine, source):
    machine.set(pid=os.getpid(), process_name=r"\xff\xfe")
    ((process,),) = [gpu.processes for gpu in source.read().gpus]
    assert process.used_bytes == 1 << 30


def test_a_pid_that_is_somebody_else_here_is_not_blamed(machine, source_under_wsl):
    machine.set(pid=os.getpid(), process_name="/Xwayland")
    assert eventually(lambda: processes_of(source_under_wsl) == [(0, "Xwayland", 1 << 30)])


@pytest.mark.slow
def test_a_hang_ends_in_time_and_is_over_when_the_driver_is_back(machine, open_source, values):
    source = open_source(Host(clock=machine.clock), timeout_seconds=2.0, library=machine.library)
    source.read()
    machine.set(hang="DeviceGetMemoryInfo_v2")
    with pytest.raises(SourceError, match=r"did not answer within 2 s and was killed; (check|run) "):
        source.read()
    assert {r.spec.name: r.value for r in source.own()}["gpu_probe_hangs"] == 1
    machine.set(hang=None)
    with pytest.raises(SourceError, match="did not answer"):
        source.read()
    machine.clock.now += 1.1
    assert values(source.read(), "gpu_up") == {(): 1}


def test_a_crash_is_followed_by_a_restart_with_growing_delay(machine, source):
    source.read()
    machine.set(crash="DeviceGetUtilizationRates")
    for delay in (1, 2, 4):
        with pytest.raises(SourceError, match=r"NVML probe was killed by SIGSEGV.*; (check|run) "):
            source.read()
        starts = source._probe.starts_total
        machine.clock.now += delay - 0.1
        with pytest.raises(SourceError, match="SIGSEGV"):
            source.read()
        assert source._probe.starts_total == starts
        machine.clock.now += 0.2
    machine.set(crash=None)
    assert source.read().gpus
    assert {r.spec.name: r.value for r in source.own()}["gpu_probe_crashes"] == 3


def test_errors_are_counted_across_restarts(source):
    def not_supported():
        own = {r.labels: r.value for r in source.own() if r.spec.name == "gpu_nvml_errors"}
        return own[("NOT_SUPPORTED",)]

    source.read()
    once = not_supported()
    source._probe.renew()
    source.read()
    assert not_supported() == 2 * once


def test_a_configured_library_that_is_missing_is_named(machine, source):
    machine.uninstall()
    with pytest.raises(NoData, match=f"there is no {machine.library}"):
        source.read()
    assert source._probe.starts_total == 0


def test_nvml_is_left_alone_where_somebody_says_so(machine):
    sampling = Sampling(gpu=False, nvml_library=str(machine.library))
    source = GpuSource(Host(clock=machine.clock), Config(sampling=sampling))
    with pytest.raises(NoData, match=r"switched off by sampling\.gpu"):
        source.read()
    assert source._probe.starts_total == 0


def test_nvml_that_appears_later_is_found_within_a_minute(machine, source):
    machine.uninstall()
    with pytest.raises(NoData):
        source.read()
    assert source.period_seconds == 60
    machine.install()
    assert source.read().gpus
    assert source.period_seconds == 0


def test_a_driver_without_gpus_is_no_fault_and_keeps_no_child(machine, source):
    machine.set(gpus=0)
    with pytest.raises(NoData, match="shows no GPU"):
        source.read()
    assert (source._probe.pid, source.period_seconds) == (None, 60)
    machine.set(gpus=1)
    assert source.read().gpus


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (18, "was upgraded"),
        (17, "operating system blocks access to the GPU"),
        (999, "unknown errors"),
        (23, "NVML returned INSUFFICIENT_RESOURCES"),
    ],
)
def test_an_unusable_driver_is_named_with_a_remedy_and_returns(machine, source, code, words):
    machine.set(init=code)
    with pytest.raises(SourceError, match=words):
        source.read()
    machine.set(init=0)
    machine.clock.now += 1.1
    assert source.read().gpus


def test_a_driver_upgrade_under_way_drops_the_old_values(machine, source, values):
    source.read()
    machine.set(DeviceGetMemoryInfo_v2=18, init=18)
    with pytest.raises(SourceError, match="was upgraded"):
        source.read()
    machine.set(DeviceGetMemoryInfo_v2=0, init=0)
    machine.clock.now += 1.1
    assert values(source.read(), "gpu_up") == {(): 1}


def test_one_lost_gpu_leaves_the_other(machine, source, by_gpu):
    machine.set(gpus=2)
    assert by_gpu(source.read(), "gpu_up") == {"0": 1, "1": 1}
    machine.gpu(0, lost=1)
    sample = source.read()
    assert by_gpu(sample, "gpu_up") == {"0": 0, "1": 1}
    assert list(by_gpu(sample, "gpu_memory_used_bytes")) == ["1"]
    assert [gpu.index for gpu in sample.gpus] == [1]
    assert {r.value for r in sample.readings if r.spec.name == "gpu_lost"} == {1}


def test_a_lost_gpu_that_comes_back_is_found_again(machine, source, by_gpu):
    machine.set(gpus=2)
    source.read()
    machine.gpu(1, lost=1)
    assert by_gpu(source.read(), "gpu_up") == {"0": 1, "1": 0}
    machine.clock.now += 120
    assert by_gpu(source.read(), "gpu_up") == {"0": 1, "1": 0}, "still lost after a first new start"
    machine.gpu(1, lost=None)
    machine.clock.now += 120
    assert by_gpu(source.read(), "gpu_up") == {"0": 1, "1": 1}


def test_a_lost_gpu_is_looked_for_every_two_minutes(machine, source):
    machine.set(gpus=2)
    source.read()
    machine.gpu(1, lost=1)
    source.read()
    for number in (1, 2, 3):
        machine.clock.now += 119
        source.read()
        assert source._probe.starts_total == number
        machine.clock.now += 1
        source.read()
        assert source._probe.starts_total == number + 1


def test_gpus_are_known_by_uuid_when_indexes_move(machine, source):
    machine.set(gpus=2)
    machine.gpu(0, uuid=0xAA, used=1 * MIB)
    machine.gpu(1, uuid=0xBB, used=2 * MIB)
    before = {gpu.uuid: gpu.used_bytes for gpu in source.read().gpus}
    machine.gpu(0, uuid=0xBB, used=2 * MIB)
    machine.set(gpus=1)
    source._probe.renew()
    sample = source.read()
    assert {gpu.uuid: gpu.used_bytes for gpu in sample.gpus} == {
        uuid: used for uuid, used in before.items() if "000000bb" in uuid
    }
    up = {r.labels[1][4:12]: r.value for r in sample.readings if r.spec.name == "gpu_up"}
    assert up == {"000000aa": 0, "000000bb": 1}


def test_the_only_gpu_lost_is_lost_until_it_answers_again(machine, source):
    source.read()
    machine.set(lost=1)
    for _ in range(3):  # the second and third time NVML is new, and knows no card by name
        sample = source.read()
        assert (sample.gpus, [r.value for r in sample.readings if r.spec.name in ("gpu_up", "gpu_lost")]) == (
            (),
            [1, 0],
        )
        machine.clock.now += 120
    machine.set(lost=None)
    machine.clock.now += 120
    assert [r.value for r in source.read().readings if r.spec.name in ("gpu_up", "gpu_lost")] == [0, 1]


def test_a_gpu_divided_into_instances_is_read_as_a_whole(machine, source, values):
    machine.set(mig=1, DeviceGetUtilizationRates=3, DeviceGetEncoderUtilization=3)
    sample = source.read()
    assert values(sample, "gpu_mig_enabled") == {(): 1}
    assert values(sample, "gpu_utilization_ratio") == {}
    assert sample.gpus[0].total_bytes


def test_closing_leaves_no_process_behind(source):
    source.read()
    pid = source._probe.pid
    source.close()
    assert not Path(f"/proc/{pid}").exists()


def test_the_library_in_use_is_named(machine, source):
    source.read()
    (library,) = [r for r in source.own() if r.spec.name == "gpu_library"]
    assert library.labels == (str(machine.library), "13.590.44.01")


@pytest.mark.parametrize("wsl", [True, False])
def test_wsls_library_comes_first_then_the_loaders(machine, wsl):
    """Without a setting: /usr/lib/wsl/lib where it exists, else what the dynamic loader finds."""
    folder = str(machine.library.parent)
    code = f"""
from wslgpud.probes import nvml_calls
nvml_calls.WSL_LIBRARY = {str(machine.library) if wsl else "/nowhere"!r}
print(nvml_calls.NvmlLibrary("").library)
"""
    environment = {**clean_environment(), "LD_LIBRARY_PATH": "" if wsl else folder}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(machine.library)


def test_a_library_that_prints_does_not_disturb_the_answers(machine, source):
    """The probe's standard output is for answers alone; what a library prints goes elsewhere."""
    machine.set(print="hello")
    assert source.read().gpus


def test_every_reading_fits_its_declaration(machine, source):
    machine.set(gpus=2, pid=os.getpid())
    declared = {spec.name: spec for spec in Catalogue(GpuSource.metrics)}
    seen = set()
    for reading in (*source.read().readings, *source.own()):
        assert declared[reading.spec.name] is reading.spec
        assert len(reading.labels) == len(reading.spec.labels)
        assert (reading.spec.name, reading.labels) not in seen
        seen.add((reading.spec.name, reading.labels))


def test_every_probe_output_has_a_metric_and_vice_versa():
    assert {spec.name for spec, _ in OUTPUTS.values()} == {spec.name for spec in FED}
    names = [call.name for call in nvml_calls.CALLS]
    assert len(names) == len(set(names))


def eventually(ask, seconds=180.0):
    """Return the first true answer; the probe's own clock cannot be turned."""
    deadline = time.monotonic() + seconds
    while not (answer := ask()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return answer
