"""The daemon's handling of a training's note: figures, a leak by name, and a reply to its user."""

from __future__ import annotations

from typing import Any

import pytest

from tests.alerts.ticks import fold, tick, transition
from wslgpud.active_runs import Noted, checked, headline
from wslgpud.alerts.incidents import OpenIncident
from wslgpud.alerts.messages import compose
from wslgpud.alerts.rules import RuleEngine
from wslgpud.app.tick import training_warnings
from wslgpud.model import Forecast, GpuProcess, GpuSample, Level, Reading, Snapshot
from wslgpud.risk import training_metrics as metrics
from wslgpud.sampling.noted_runs import claimed, readings, running, shown
from wslgpud.sources import windows
from wslgpud.sources.procfs import Identity, trust
from wslgpud.training.companion import Floors

MIB, GIB = 1 << 20, 1 << 30
WHO = Identity(4242, 1, 1, alive=True, uids=frozenset({1000}), groups=frozenset(), name="python")
CARD = GpuSample(0, "GPU-1", "RTX 5070 Ti", total_bytes=16 * GIB)
SECOND = GpuSample(1, "GPU-2", "RTX 5070 Ti", total_bytes=16 * GIB)
ROOM = 6 * GIB


def note(steps: int, each: int = 3 * MIB, name: str = "GPU-1", run: dict[str, Any] | None = None, **more: Any) -> Noted:
    """Return a training's note after this many steps, each keeping ``each`` more bytes."""
    floors = Floors()
    for step in range(1, steps + 1):
        floors.add(step, 8 * GIB + each * step, 9 * GIB + each * step)
    memory = {"name": name, "used": 8 * GIB + each * steps, "peak": 9 * GIB + each * steps, "scales": floors.scales}
    document = {"kind": "training", "what": "train.py", "steps": steps, "step_seconds": 2.0, "memory": [memory | more]}
    return Noted(WHO, document | (run or {}))


def forecast(resource: str, room: int = ROOM, eta: float | None = None) -> Forecast:
    return Forecast(resource, Level.OK, room, 16 * GIB, eta_seconds=eta)


def told(one: Noted, *gpus: GpuSample) -> Snapshot:
    """Return the snapshot with a training's note."""
    cards = gpus or (CARD,)
    known = readings([one], tick(1, gpus=cards), [forecast("gpu0"), forecast("ram", 20 * GIB)])
    return tick(1, *known, gpus=cards)


def value(snapshot: Snapshot, spec: Any, resource: str = "gpu0") -> Any:
    return snapshot.value(spec, "4242", "train.py", resource)


def test_how_long_the_card_lasts_is_told_in_steps_and_in_time() -> None:
    seen = told(note(60))

    assert value(seen, metrics.PER_STEP) == 3 * MIB
    assert value(seen, metrics.STEPS_LEFT) == ROOM // (3 * MIB)
    assert value(seen, metrics.TIME_LEFT) == 2 * ROOM // (3 * MIB)


def test_memory_reserved_but_never_used_by_the_allocator_is_room() -> None:
    plain, roomy = told(note(60)), told(note(60, reserved=12 * GIB))

    assert value(roomy, metrics.STEPS_LEFT) > value(plain, metrics.STEPS_LEFT)


def test_without_growth_nothing_is_said_about_an_end() -> None:
    seen = told(note(60, each=0))

    assert value(seen, metrics.KEPT) == 8 * GIB
    assert seen.family(metrics.PER_STEP) == seen.family(metrics.TIME_LEFT) == {}


@pytest.mark.parametrize(
    ("name", "gpus", "resource"),
    [
        ("GPU-2", (CARD, SECOND), "gpu1"),
        ("ram", (CARD,), "ram"),
        ("", (CARD,), "gpu0"),  # an old torch: the only card it can be
        ("", (CARD, SECOND), None),
        ("GPU-9", (CARD,), None),
    ],
)
def test_each_memory_is_the_one_that_the_rest_speaks_of(name: str, gpus: Any, resource: str | None) -> None:
    found = {labels[2] for labels in told(note(60, name=name), *gpus).family(metrics.KEPT)}

    assert found == ({resource} if resource else set())


def test_a_leak_becomes_a_warning_once_it_has_taken_a_quarter() -> None:
    engine = RuleEngine()
    (named,) = engine.observe(told(note(60)))
    (warning,) = engine.observe(told(note(3000)))

    assert (named.rule, named.resource, named.new) == ("training_leak", "gpu0", Level.INFO)
    assert (warning.rule, warning.new) == ("training_leak", Level.WARNING)
    assert "train.py keeps 3 MiB more with each step; full in about 2000 steps" in str(compose(named).headline)


@pytest.mark.parametrize("restarts", [False, True])
def test_a_training_that_has_ended_keeps_nothing_open(restarts: bool) -> None:
    engine = RuleEngine()
    rows = engine.observe(told(note(60)))
    if restarts:
        engine = RuleEngine()
        engine.resume(rows, 1.0)
    closed = [change for second in range(2, 40) for change in engine.observe(tick(second))]

    assert [(change.rule, change.new) for change in closed] == [("training_leak", Level.OK)]


def test_an_allocator_short_of_room_is_a_warning_each_time() -> None:
    engine = RuleEngine()
    assert engine.observe(told(note(60, 0, retries=3, pieces=GIB))) == []  # from before we looked
    (change,) = engine.observe(told(note(61, 0, retries=5, pieces=GIB)))

    assert (change.rule, change.new, change.facts["count"]) == ("training_retries", Level.WARNING, 2)
    assert change.facts["pieces_bytes"] == GIB


@pytest.mark.parametrize(
    ("room", "most"),
    [(6 * GIB, 56), (3 * GIB, 32), (100 * MIB, 8), (128 * MIB - 1, 8), (128 * MIB, 9)],
    ids=["room", "half of it", "none for one more", "a byte too little", "for one more"],
)
def test_the_largest_batch_follows_from_what_each_sample_takes(room: int, most: int) -> None:
    seen = tick(
        1, *readings([note(60, 0, run={"batch": 8})], tick(1, gpus=(CARD,)), [forecast("gpu0", room)]), gpus=(CARD,)
    )

    assert value(seen, metrics.MAX_BATCH) == most  # its work takes 1 GiB, an eighth of it each
    assert shown(seen.reports[0].sample)[4242]["largest_batch"] == most


def test_a_batch_that_cannot_grow_is_shown_with_the_training() -> None:
    (full,) = running(
        [note(60, run={"batch": 8, "phase": "", "began_mono": 0.0, "pid": 4242})],
        trust(),
        9.0,
        {4242: {"largest_batch": 8}},
    )
    (roomy,) = running(
        [note(60, run={"batch": 8, "phase": "", "began_mono": 0.0, "pid": 4242})],
        trust(),
        9.0,
        {4242: {"largest_batch": 9}},
    )

    assert "batch 8, a larger one will not fit" in str(headline(full))
    assert "batch 8" not in str(headline(roomy))


def test_memory_a_training_keeps_is_shown_for_the_card_first() -> None:
    own = [note(60), note(60, name="ram", used=20 * GIB, peak=21 * GIB)]
    seen = tick(1, *readings(own, tick(1, gpus=(CARD,)), [forecast("gpu0"), forecast("ram", 20 * GIB)]), gpus=(CARD,))
    said = note(60, run={"phase": "", "began_mono": 0.0, "pid": 4242})
    (one,) = running([said], trust(), 9.0, shown(seen.reports[0].sample))

    assert shown(seen.reports[0].sample) == {
        4242: {"kept_bytes": 8 * GIB + 180 * MIB, "peak_bytes": 9 * GIB + 180 * MIB, "step_growth_bytes": 3 * MIB}
    }
    assert str(headline(one)) == (
        "training: train.py: 60 steps, 2 s each, keeps 8.2 GiB, 3 MiB more with each step, for 9 s, peak 9.2 GiB"
    )


@pytest.mark.parametrize(
    ("sequences", "lacks"),
    [
        ({"length": 512, "longest": 4096}, GIB),
        ({"length": 512, "longest": 3584}, 0),
        ({"length": 512, "longest": 512}, 0),
        ({"length": 512, "longest": 511}, None),
        ({"length": 1}, None),
    ],
)
def test_shorter_sequences_show_whether_the_longest_will_fit(sequences: dict[str, int], lacks: int | None) -> None:
    seen = told(note(60, 0, run=sequences))  # work of 1 GiB, and room for 6
    changes = RuleEngine().observe(seen)

    assert value(seen, metrics.MAX_LACKS) == lacks
    assert [(change.rule, change.new) for change in changes] == ([("training_length", Level.INFO)] if lacks else [])


def test_steps_three_times_slower_are_reported_on_a_spilled_card() -> None:
    def after(seconds: float, spilled: int) -> list[Any]:
        engine, changes = RuleEngine(), list[Any]()
        for second in range(60):
            slow = readings(
                [note(60, 0, run={"step_seconds": seconds, "usual_step_seconds": 1.0})], tick(1, gpus=(CARD,)), []
            )
            shared = Reading(windows.GPU_SHARED, spilled, (CARD.name,))
            changes += engine.observe(tick(second, *slow, shared, gpus=(CARD,)))
        return changes

    (change,) = [change for change in after(3.4, 2 * GIB) if change.rule == "training_slowed"]
    assert change.new == Level.INFO
    assert str(compose(change).headline) == (
        "GPU 0: steps of train.py take 3.4 times as long: 2.0 GiB has spilled into Windows RAM"
    )
    slow_elsewhere, ordinary = after(3.4, 200 * MIB), after(2.0, 2 * GIB)
    assert "training_slowed" not in {change.rule for change in (*slow_elsewhere, *ordinary)}


def test_those_whose_memory_runs_out_are_told_and_no_others() -> None:
    seen = told(note(60))
    (incident,) = fold([(1, transition(1, Level.OK, Level.CRITICAL, resource="gpu0"))])
    standing = [OpenIncident(incident, False, None)]

    assert training_warnings(standing, seen, [forecast("gpu0", eta=30.0)]) == {4242: ("critical", 30.0)}
    assert training_warnings(standing, seen, [forecast("gpu0", eta=1e9), forecast("ram", eta=1.0)]) == {
        4242: ("critical", value(seen, metrics.TIME_LEFT))
    }
    (lesser,) = fold([(2, transition(1, Level.OK, Level.WARNING, rule="training_leak", resource="gpu0"))])
    for both in ([*standing, OpenIncident(lesser, False, None)], [OpenIncident(lesser, False, None), *standing]):
        assert training_warnings(both, seen, [forecast("gpu0", eta=30.0)]) == {4242: ("critical", 30.0)}
    for level, rule in ((Level.INFO, "training_leak"), (Level.CRITICAL, "gpu_error")):
        (other,) = fold([(3, transition(1, Level.OK, level, rule=rule, resource="gpu0"))])
        assert training_warnings([OpenIncident(other, False, None)], seen, []) == {}
    assert training_warnings(standing, told(note(60, name="ram")), []) == {}
    assert training_warnings([], seen, []) == {}


WILD: list[dict[str, Any]] = [
    {"steps": -1},
    {"steps": 1 << 70},
    {"steps": "many"},
    {"memory": "much"},
    {"memory": [{}]},
    {"memory": [{"name": "ram", "used": 1.5, "peak": 1, "scales": []}]},
    {"memory": [{"name": "ram", "used": 1, "peak": 1, "scales": [[[1, 2, 3]]]}]},
    {"memory": [{"name": "ram", "used": 1, "peak": 1, "scales": []}] * 6},
    {"memory": [{"name": 5, "used": 1, "peak": 1, "scales": []}]},
    {"step_seconds": -2.0},
    {"step_seconds": float("inf")},
    {"usual_step_seconds": 0.0},
    {"batch": -8},
    {"longest": "all"},
]


@pytest.mark.parametrize("wild", WILD, ids=str)
def test_a_note_with_impossible_values_is_ignored(wild: dict[str, Any]) -> None:
    run = {"kind": "training", "what": "a", "who": "a", "phase": "", "pid": 9, "start_ticks": 9, "began_mono": 1.0}
    fine = {**run, "steps": 1, "memory": []}
    assert checked(fine)

    with pytest.raises((ValueError, TypeError)):
        checked({**fine, **wild})


def test_what_is_claimed_stays_within_what_can_be_kept() -> None:
    """A step of a century, and a leak of a byte: no training runs out of memory."""
    leak = note(60, each=MIB)
    seen = told(Noted(WHO, {**leak.document, "step_seconds": 1e15}))

    assert all(isinstance(reading, Reading) and abs(reading.value) < 1 << 62 for reading in seen.readings())
    assert seen.family(metrics.TIME_LEFT) == {}


def test_an_end_is_forecast_only_within_a_hundred_million_steps() -> None:
    def left(room: int) -> list[Any]:
        seen = tick(1, *readings([note(60)], tick(1, gpus=(CARD,)), [forecast("gpu0", room)]), gpus=(CARD,))
        return [value(seen, spec) for spec in (metrics.STEPS_LEFT, metrics.TIME_LEFT)]

    assert left(3 * MIB * 50_000_000) == [50_000_000, 100_000_000]
    assert left(3 * MIB * 50_000_001) == [50_000_001, None]
    assert left(3 * MIB * 100_000_000) == [100_000_000, None]
    assert left(3 * MIB * 100_000_001) == [None, None]


def test_an_unknown_peak_is_left_out_but_a_zero_count_is_shown() -> None:
    seen = told(note(60, 0, peak=0, retries=0))

    assert (value(seen, metrics.PEAK), value(seen, metrics.RETRIES)) == (None, 0)


@pytest.mark.parametrize(
    ("name", "gpus", "resource"),
    [("GPU-2", (CARD, SECOND), "gpu1"), ("ram", (CARD,), None), ("", (CARD,), "gpu0"), ("", (CARD, SECOND), None)],
)
def test_the_memory_a_training_took_of_a_card_is_its_own_report(name, gpus, resource) -> None:
    cards = claimed([note(60, name=name, reserved=12 * GIB)], gpus)

    told = {f"gpu{card.index}": card.self_reported for card in cards if card.self_reported}
    assert told == ({resource: (GpuProcess(4242, "train.py", 12 * GIB),)} if resource else {})
