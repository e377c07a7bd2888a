"""What rules measure, to the value: from which swapping, events and figures of Windows an alert is made."""

from __future__ import annotations

from typing import Any

import pytest

from tests.alerts.test_rules import STALLED
from tests.alerts.ticks import START, tick
from wslgpud.alerts import measures
from wslgpud.alerts.measures import MeasureContext, Signal
from wslgpud.model import Event, GpuSample, Reading, Snapshot
from wslgpud.sources import disk, gpu, memory, windows

MIB, GIB = 1 << 20, 1 << 30


def measured(measure: measures.Measure, *snapshots: Snapshot, **settings: Any) -> list[Signal]:
    """Return what is measured at the last tick."""
    context = MeasureContext(**settings)
    for snapshot in snapshots:
        context.advance(snapshot)
    return list(measure(context))


def swapped(t: float, into: int, out: int) -> Snapshot:
    return tick(t, Reading(memory.SWAP_IN, into * MIB), Reading(memory.SWAP_OUT, out * MIB))


def test_swapping_20_mib_a_second_both_ways_counts_as_time_lost() -> None:
    rates = {"read_per_second_bytes": 60 * MIB, "written_per_second_bytes": 20 * MIB}

    assert measured(measures.thrashing, swapped(8, 1, 1), swapped(10, 121, 41)) == [Signal("ram", 0.2, rates)]
    assert measured(measures.thrashing, swapped(10, 121, 41), swapped(12, 1, 41)) == [], "counters that began anew"
    assert measured(measures.thrashing, swapped(10, 1, 1), swapped(10, 2, 2)) == [], "no time has passed"

    stalled = tick(10, *swapped(10, 121, 41).reports[0].sample.readings, Reading(memory.STALLED_RATIO, 0.3, STALLED))
    facts = {**rates, "stalled_ratio": 0.3}
    assert measured(measures.thrashing, swapped(8, 1, 1), stalled) == [Signal("ram", 0.3, facts)]


def test_an_event_before_the_start_counts_if_newer_than_last_run() -> None:
    def past(wall: float) -> Snapshot:
        return tick(1, events=(Event("clock_jump", wall, "", {"past": 1, "seconds": 5}),))

    jumps = measures.happened("clock_jump", "clock", "seconds", "source")
    assert measured(jumps, past(START - 1), since_wall=START - 1) == []
    assert measured(jumps, past(START - 1), since_wall=START - 2) == [Signal("clock", 1.0, {"seconds": 5})]


def test_a_residency_failure_with_two_cards_is_of_neither() -> None:
    fields = {"function": "dxgkio_make_resident", "error": "ENOMEM"}
    cards = (GpuSample(0, "GPU-1", "RTX"), GpuSample(1, "GPU-2", "RTX"))

    def failed(**more: str) -> Event:
        return Event("dxg_error", START, "misc dxg", {**fields, **more})

    assert [s.resource for s in measured(measures.residency_failures, tick(1, events=(failed(),), gpus=cards))] == [
        "gpu"
    ]
    assert measured(measures.residency_failures, tick(1, events=(failed(error="EINVAL"),), gpus=cards)) == []


def test_a_fault_of_a_card_names_its_place_where_the_driver_does() -> None:
    def xid(**place: str) -> list[Signal]:
        return measured(measures.xids, tick(1, events=(Event("nvidia_xid", START, "NVRM", {"xid": 79, **place}),)))

    assert xid(device="0000:01:00") == [
        Signal("gpu 0000:01:00", 1.0, {"xid": 79, "device": "0000:01:00", "text": "NVRM"})
    ]
    assert xid() == [Signal("gpu", 1.0, {"xid": 79, "device": "", "text": "NVRM"})]


def test_reasons_of_a_throttled_card_are_named_with_temperature() -> None:
    def reason(card: str, name: str, active: int = 1) -> Reading:
        return Reading(gpu.THROTTLED, active, (card, f"GPU-{card}", name))

    seen = tick(
        1,
        reason("0", "sw_thermal_slowdown"),
        reason("0", "hw_slowdown"),
        reason("0", "hw_thermal_slowdown", 0),
        reason("1", "sw_power_cap"),
        gpus=(GpuSample(0, "GPU-0", "RTX", temperature_celsius=91),),
    )

    assert measured(measures.throttling, seen) == [
        Signal("gpu0", 1.0, {"reasons": "hw_slowdown, sw_thermal_slowdown", "temperature_celsius": 91}),
        Signal("gpu1", 0.0, {"reasons": ""}),
    ]


def of_windows(**gib: float) -> list[Signal]:
    specs = {
        "total": windows.TOTAL,
        "available": windows.AVAILABLE,
        "limit": windows.COMMIT_LIMIT,
        "committed": windows.COMMITTED,
        "unreturned": windows.VM_UNRETURNED,
    }
    return measured(measures.windows_memory, tick(1, *(Reading(specs[name], int(v * GIB)) for name, v in gib.items())))


def test_the_scarcer_of_windows_ram_and_commit_limit_counts() -> None:
    ram = {"available_bytes": 4 * GIB, "total_bytes": 64 * GIB}
    commit = {"commit_left_bytes": 2 * GIB, "commit_limit_bytes": 80 * GIB}

    assert of_windows(total=64, available=4) == [Signal("windows", 4 / 64, ram)]
    assert of_windows(limit=80, committed=78) == [Signal("windows", 2 / 80, commit)]
    assert of_windows(total=64, available=4, limit=80, committed=78) == [Signal("windows", 2 / 80, ram | commit)]
    assert of_windows(total=64, available=4, limit=80, committed=75) == [Signal("windows", 4 / 64, ram)]
    assert of_windows(limit=80, committed=81)[0].value == 0, "more was promised than the limit"
    assert of_windows(total=64, available=0, unreturned=3) == [
        Signal("windows", 0, {**ram, "available_bytes": 0, "unreturned_bytes": 3 * GIB})
    ]
    assert of_windows(total=0, available=0, limit=0, committed=0) == []


def test_the_state_folder_is_on_the_innermost_linux_disk() -> None:
    def on(*places: tuple[str, str, int]) -> list[Signal]:
        seen = tick(1, *(Reading(disk.READ_ONLY, is_so, (place, kind)) for place, kind, is_so in places))
        return measured(measures.read_only, seen, state_folder="/home/me/state")

    root, home = ("/", "ext4", 0), ("/home", "ext4", 1)
    assert on(root, home, ("/home/me", "9p", 0), ("/homely", "ext4", 0)) == [Signal("disk:/home", 1)]
    assert on(root, ("/mnt/c", "9p", 1)) == [Signal("disk:/", 0)]
    assert on() == []


@pytest.mark.parametrize(
    ("measure", "name", "fact"),
    [(measures.failing_store, "store_error", "error"), (measures.damaged_store, "store_damage", "damage")],
)
def test_a_store_is_well_unless_it_says_why_not(measure: measures.Measure, name: str, fact: str) -> None:
    assert measured(measure, tick(1)) == [Signal("store", 0.0)]
    assert measured(measure, tick(1), **{name: "it broke"}) == [Signal("store", 1.0, {fact: "it broke"})]


def test_a_source_is_silent_from_its_first_failure_to_its_answer() -> None:
    context, told = MeasureContext(), []
    for t, health in enumerate(["ok", "failed", "late", "failed", "ok", "late"]):
        context.advance(tick(t, disk=health))
        told += [signal.value for signal in measures.silent_sources(context) if signal.resource == "source:disk"]

    assert told == [0, 0, 1, 2, 0, 0]
