"""The card's telemetry during a run comes from the samples taken meanwhile."""

from __future__ import annotations

import pytest

from tests.stress.support import MIB, gpu, night
from wslgpud.model import Event, Reading
from wslgpud.sources import gpu as source
from wslgpud.sources import windows
from wslgpud.stress.comparison import drop, regressions
from wslgpud.stress.result import Frame, WorkerOutput, digest
from wslgpud.stress.telemetry import Recent

SPECS = {spec.name: spec for spec in (*source.FED, source.THROTTLED)}
HERE = ("0", "GPU-1")


def tick(recent, *, shared=None, uuid="GPU-1", **values):
    """Note one sample; names as ``gpu_clock_hertz__memory``."""
    readings = []
    for name, value in values.items():
        metric, _, label = name.partition("__")
        readings.append(Reading(SPECS[metric], value, ("0", uuid, *filter(None, [label]))))
    if shared is not None:
        readings.append(Reading(windows.GPU_SHARED, shared, ("luid_0x0_0xD3EC",)))
    recent.add(1.0, [gpu(uuid=uuid)], lambda: readings)


def run_of(*ticks, before):
    recent = Recent()
    tick(recent, **before)
    with recent.following("GPU-1") as course:
        for values in ticks:
            tick(recent, **values)
    return course


def result_of(course):
    return digest(WorkerOutput([{"event": "end", "outcome": "done", "why": ""}]), Frame(1.0, gpu(), {}, course=course))


def test_heat_power_and_clocks_are_the_highest_seen():
    course = run_of(
        {"gpu_temperature_celsius": 50, "gpu_power_watts": 300.0, "gpu_clock_hertz__memory": 14e9},
        {"gpu_temperature_celsius": 61, "gpu_power_watts": 280.0, "gpu_clock_hertz__memory": 14e9},
        before={"gpu_temperature_celsius": 40, "gpu_clock_hertz__memory": 0.8e9},
    )

    found = course.values()
    assert found["temperature_max_celsius"] == 61
    assert found["power_max_watts"] == 300.0
    assert found["memory_clock_hertz"] == 14e9


def test_another_gpu_does_not_count():
    course = run_of({"gpu_temperature_celsius": 90, "uuid": "GPU-2"}, before={"gpu_temperature_celsius": 40})

    assert "temperature_max_celsius" not in course.values()


def test_what_a_card_does_not_tell_is_absent():
    assert run_of({}, before={}).values() == {}


def test_a_run_slowed_by_heat_is_excluded_from_the_comparison():
    hot = {"gpu_throttle_reason__hw_thermal_slowdown": 1}
    cool = {"gpu_throttle_reason__hw_thermal_slowdown": 0, "gpu_throttle_reason__sw_power_cap": 1}
    course = run_of(cool, cool, cool, hot, before=cool)
    slow = night(9, write_median=600e9, **course.values())

    assert course.values()["slowed_ratio"] == 0.25
    assert drop(600e9, [800e9] * 8, 0.03, 0) is not None
    assert list(regressions(slow, [night(n) for n in range(8)])) == []
    assert list(regressions(night(9, write_median=600e9), [night(n) for n in range(8)])) != []


def test_errors_that_ecc_could_not_correct_are_wrong_data():
    before = {"gpu_ecc_errors__corrected": 5, "gpu_ecc_errors__uncorrected": 2}
    after = {"gpu_ecc_errors__corrected": 8, "gpu_ecc_errors__uncorrected": 3}
    result = result_of(run_of(before, after, before=before))

    assert (result.values["ecc_corrected"], result.values["ecc_uncorrected"]) == (3, 1)
    assert [(f.kind, str(f.text)) for f in result.findings] == [("errors", "1 memory error that ECC could not correct")]
    assert result.verdict == "findings"


def test_errors_that_ecc_corrected_are_only_counted():
    before, after = {"gpu_ecc_errors__corrected": 5}, {"gpu_ecc_errors__corrected": 8}

    assert result_of(run_of(after, before=before)).findings == ()


def test_errors_counted_after_a_run_still_count_but_not_its_heat():
    recent = Recent()
    tick(recent, gpu_ecc_errors__uncorrected=0, gpu_temperature_celsius=40)
    with recent.following("GPU-1") as course:
        tick(recent, gpu_ecc_errors__uncorrected=0, gpu_temperature_celsius=60)
        course.over = True
        tick(recent, gpu_ecc_errors__uncorrected=2, gpu_temperature_celsius=80)

    assert course.values()["ecc_uncorrected"] == 2
    assert course.values()["temperature_max_celsius"] == 60


def test_a_run_between_two_samples_was_not_seen_to_be_slowed():
    """A worker that fails at once: the daemon reads a card every five seconds while all is calm."""
    recent = Recent()
    with recent.following("GPU-1") as course:
        course.over = True
        tick(recent, gpu_throttle_reason__hw_thermal_slowdown=1)

    assert "slowed_ratio" not in course.values()


@pytest.mark.parametrize(("event", "over_seconds"), [("clock_jump", 600.0), ("nvidia_xid", 60.0)])
def test_a_run_waits_after_a_sleep_and_after_errors(event, over_seconds):
    recent = Recent()
    recent.add(100.0, [], events=[Event(event, 0.0, "")])

    assert len([*recent.unrest(99.0 + over_seconds)]) == 1
    assert [*recent.unrest(100.0 + over_seconds)] == []


@pytest.mark.parametrize(("grown", "kinds"), [(256 * MIB, []), (256 * MIB + 1, ["spill"])])
def test_memory_that_windows_moves_out_meanwhile_is_a_spill(grown, kinds):
    course = run_of(
        {"gpu_temperature_celsius": 50, "shared": 300 * MIB + grown},
        before={"gpu_temperature_celsius": 40, "shared": 300 * MIB},
    )

    assert course.values()["shared_grown_bytes"] == grown
    assert [f.kind for f in result_of(course).findings] == kinds


def test_what_shrinks_during_a_run_has_not_grown():
    before = {"gpu_ecc_errors__corrected": 5, "shared": 300 * MIB}
    course = run_of({"gpu_ecc_errors__corrected": 2, "shared": 200 * MIB}, before=before)

    assert (course.values()["ecc_corrected"], course.values()["shared_grown_bytes"]) == (0, 0)
