"""While nothing moves, only what can end a training is read every second; a user's warnings do not suffer from it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.sampling.test_assessor import Watched, is_fresh, watching
from wslgpud.model import Event, Forecast, GpuProcess, GpuSample, Level, Observation
from wslgpud.risk.engine import RiskEngine
from wslgpud.risk.trace import read_trace
from wslgpud.sampling.assessor import CALM_SECONDS, Scene, is_calm

TRACES = Path(__file__).parent.parent / "traces"
GIB = 1 << 30
ROOMY = Forecast("ram", Level.OK, 10 * GIB, 16 * GIB)


@pytest.fixture
def machine() -> Iterator[Watched]:
    """A machine on which nothing has moved for a few ticks."""
    with watching() as found:
        for _ in range(6):
            found.next_tick(watched=False)
        yield found


def reads(machine: Watched, source: str, ticks: int, *, watched: bool = False) -> int:
    return sum(is_fresh(machine.next_tick(watched=watched), source) for _ in range(ticks))


@pytest.mark.parametrize(("source", "times"), [("memory", 20), ("pressure", 20), ("cpu", 4), ("network", 4)])
def test_a_calm_machine_has_all_but_its_memory_read_rarely(machine, source, times):
    assert reads(machine, source, 20) == times


def test_everything_is_read_each_second_while_somebody_looks(machine):
    assert reads(machine, "cpu", 10, watched=True) == 10


def test_an_event_ends_the_calm(machine):
    machine.assessor.own_events.append(Event("cache_returned", 0.0, "given back", {}))
    for _ in range(2):
        machine.next_tick(watched=False)
        assert not machine.assessor.calm


def still(*forecasts: Forecast, before: tuple[Forecast, ...] = (ROOMY,)) -> bool:
    nothing = Observation(t=0.0)
    return is_calm(Scene.of(nothing, forecasts), Scene.of(nothing, before), forecasts)


def test_a_machine_with_room_that_stands_still_is_calm():
    assert still(ROOMY)
    assert still(replace(ROOMY, headroom_bytes=ROOMY.headroom_bytes - GIB // 10))


@pytest.mark.parametrize(
    "change",
    [
        {"headroom_bytes": 9 * GIB},
        {"headroom_bytes": 11 * GIB},
        {"level": Level.INFO},
        {"eta_seconds": 3000.0},
        {"resource": "gpu0"},
    ],
    ids=["falls", "rises", "level", "grows", "new"],
)
def test_whatever_moves_ends_the_calm(change):
    assert not still(replace(ROOMY, **change))


def test_a_machine_with_little_left_is_never_calm():
    full = replace(ROOMY, headroom_bytes=2 * GIB)

    assert not still(full, before=(full,))


def test_a_machine_whose_memory_is_unknown_is_never_calm():
    assert not still(before=())


def test_a_program_that_appears_on_a_card_ends_the_calm():
    card = GpuSample(0, "GPU-1", "card", 16 * GIB, GIB, 15 * GIB, 0, None)
    alone, joined = (
        Scene.of(Observation(t=0.0, gpus=(replace(card, processes=processes),)), (ROOMY,))
        for processes in ((), (GpuProcess(7, "python", None),))
    )

    assert is_calm(alone, alone, (ROOMY,))
    assert not is_calm(joined, alone, (ROOMY,))


def levels(path: Path, *, two_speeds: bool) -> list[tuple[float, str, Level]]:
    """Replay a recording; at ``two_speeds`` the processes are those of the last tick that read everything."""
    engine, changes = RiskEngine(), []
    calm, full, scene = False, Observation(t=float("-inf")), Scene({}, frozenset())
    for seen in read_trace(path):
        fast = two_speeds and calm and seen.t - full.t + 0.25 < CALM_SECONDS
        shown = replace(seen, processes=full.processes) if fast else seen
        if fast and shown.vm is not None and full.vm is not None:
            shown = replace(shown, vm=replace(shown.vm, blocked_processes=full.vm.blocked_processes))
        found = engine.observe(shown, seen.t)
        now = Scene.of(seen, found.forecasts)
        if not fast:
            full, scene = seen, now
        calm = is_calm(now, scene, found.forecasts)
        changes += [(seen.t, change.resource, change.new) for change in found.changes]
    return changes


@pytest.mark.slow
@pytest.mark.parametrize("folder", sorted({path.parent for path in TRACES.rglob("*.jsonl.gz")}), ids=lambda p: p.name)
def test_each_recording_has_the_same_levels_at_both_speeds(folder):
    for path in sorted(folder.glob("*.jsonl.gz"))[::4]:
        assert levels(path, two_speeds=True) == levels(path, two_speeds=False), path.name
