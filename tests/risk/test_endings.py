"""An alarm ends when its cause is over, and says how; and the next one comes in time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pytest

from wslgpud.model import (
    CgroupState,
    Forecast,
    GpuProcess,
    GpuSample,
    Level,
    Observation,
    ProcessSample,
    RamState,
    Transition,
    VmState,
)
from wslgpud.risk.engine import RiskEngine
from wslgpud.risk.levels import ending_facts

GIB = 1 << 30
GROUP = "cgroup:/train"


def group(
    t: float, used: float, kills: int = 0, *, pid: int | None = 8932, limit: float = 3.0, host: float = 20.0
) -> Observation:
    """A limited group with train.py in it, on a machine with plenty."""
    held = int(used * GIB)
    size = held if pid else 1 << 20
    train = ProcessSample(pid or 1, 5, "python3", size, 0, command="python3 train.py", cgroup="/train")
    return Observation(
        t=t,
        ram=RamState(32 * GIB, int(host * GIB)),
        vm=VmState(oom_kills_total=kills),
        processes=(train,),
        cgroups=(CgroupState("/train", int(limit * GIB), held, oom_kills_total=kills),),
    )


def play(
    engine: RiskEngine, observations: Iterable[Observation], resource: str = GROUP
) -> tuple[list[Transition], Forecast]:
    """Return the changes of a resource and its last forecast."""
    changes, forecast = [], None
    for observation in observations:
        seen = engine.observe(observation)
        changes += [change for change in seen.changes if change.resource == resource]
        forecast = next(f for f in seen.forecasts if f.resource == resource)
    assert forecast is not None
    return changes, forecast


def leak(start: float = 0.0, kills: int = 0, pid: int = 8932, seconds: int = 140) -> Iterator[Observation]:
    """20 MiB per second up to the limit."""
    for i in range(seconds):
        yield group(start + i, min(3.0, 0.2 + 0.02 * i), kills, pid=pid)


def levels(changes: Iterable[Transition]) -> list[Level]:
    return [change.new for change in changes if change.new != Level.INFO]


def test_a_kill_ends_the_alarm_in_the_same_sample_and_says_who() -> None:
    engine = RiskEngine()
    before, _ = play(engine, leak())
    assert before[-1].new == Level.EMERGENCY

    (end,), forecast = play(engine, [group(140, 0.0, kills=1, pid=None)])
    assert (end.old, end.new, end.forecast.cause) == (Level.EMERGENCY, Level.OK, "killed")
    assert ending_facts(end.forecast, 1000.0) == {
        "ending": "killed",
        "ended_wall": 1000.0,
        "victim": "python3 train.py (pid 8932)",
        "free_bytes": 3 * GIB,
        "capacity_bytes": 3 * GIB,
    }

    _, forecast = play(engine, [group(140 + i, 0.0, kills=1, pid=None) for i in range(1, 24)])
    assert (forecast.level, forecast.cause, forecast.window_seconds) == (Level.OK, "killed", 23.0)
    assert forecast.who == "python3 train.py (pid 8932)"
    assert forecast.eta_seconds is None


def test_after_ten_minutes_a_kill_is_no_news_any_more() -> None:
    engine = RiskEngine()
    play(engine, leak())
    _, forecast = play(engine, [group(140 + i, 0.0, kills=1, pid=None) for i in range(700)])

    assert (forecast.cause, forecast.who) == ("", "")


def test_an_unforeseen_kill_that_made_room_is_not_critical() -> None:
    calm = [group(t, 0.5) for t in range(30)]
    changes, forecast = play(RiskEngine(), [*calm, *(group(30 + t, 0.5, kills=1) for t in range(30))])

    assert changes == []
    assert (forecast.level, forecast.cause) == (Level.OK, "killed")


def test_memory_returning_seconds_after_a_kill_ends_the_alarm() -> None:
    engine = RiskEngine()
    play(engine, leak())
    slow = [group(140 + i, 3.0 - 0.5 * i, kills=1, pid=8932 if i < 5 else None) for i in range(7)]
    changes, _ = play(engine, slow)

    assert [(c.mono, c.new) for c in changes] == [(142.0, Level.OK)]


def test_a_kill_of_another_process_does_not_end_the_alarm() -> None:
    engine = RiskEngine()
    play(engine, leak())
    changes, forecast = play(engine, [group(140 + i, min(3.0, 2.7 + 0.02 * i), kills=1) for i in range(20)])

    assert forecast.level >= Level.CRITICAL
    assert Level.OK not in levels(changes)


@pytest.mark.parametrize("held", [0, 2], ids=["memory back at once", "counted before the memory is back"])
def test_a_worker_that_leaks_again_is_warned_of_before_each_kill(held: int) -> None:
    engine = RiskEngine()
    for life in range(6):
        start = 200.0 * life
        changes, _ = play(engine, leak(start, life, pid=8932 + life))
        assert levels(changes) == [Level.WARNING, Level.CRITICAL, Level.EMERGENCY]
        warned = next(c.mono for c in changes if c.new == Level.WARNING)
        assert start + 140 - warned >= 15
        still = [group(start + 140 + i, 2.99, life + 1, pid=8932 + life) for i in range(held)]
        gone = [group(start + 140 + i, 0.1, life + 1, pid=None) for i in range(held, 60)]
        changes, _ = play(engine, [*still, *gone])
        assert [c.new for c in changes if c.new not in {Level.INFO, Level.EMERGENCY}][-1:] == [Level.OK]
        assert levels(changes).count(Level.OK) == 1


def test_alarms_of_three_killed_groups_end_one_by_one() -> None:
    engine, found = RiskEngine(), []
    for t in range(160):
        groups = []
        for i in range(3):
            killed = t >= 130 + 5 * i
            held = 0 if killed else min(GIB, int((0.1 + 0.008 * (t - 5 * i)) * GIB))
            groups.append(CgroupState(f"/g{i}", GIB, max(0, held), oom_kills_total=int(killed)))
        seen = engine.observe(
            Observation(
                t=float(t),
                ram=RamState(32 * GIB, 20 * GIB),
                cgroups=tuple(groups),
                vm=VmState(oom_kills_total=sum(g.oom_kills_total or 0 for g in groups)),
            )
        )
        found += [(c.mono, c.resource) for c in seen.changes if c.new == Level.OK]
        assert all(c.resource != "ram" for c in seen.changes)

    assert found == [(130.0, "cgroup:/g0"), (135.0, "cgroup:/g1"), (140.0, "cgroup:/g2")]


@pytest.mark.parametrize(("own_hits", "cause"), [(0, ""), (1, "killed")], ids=["inner limit", "own limit"])
def test_a_group_around_a_killed_container_is_not_exhausted(own_hits: int, cause: str) -> None:
    engine = RiskEngine()
    for t in range(16):
        killed = int(t == 15)
        groups = (
            CgroupState("/user", 16 * GIB, 4 * GIB, oom_kills_total=killed, max_events_total=killed * own_hits),
            CgroupState("/user/box", 2 * GIB, 1 * GIB, oom_kills_total=killed, max_events_total=killed),
        )
        vm = VmState(oom_kills_total=killed)
        seen = engine.observe(Observation(t=float(t), ram=RamState(32 * GIB, 20 * GIB), cgroups=groups, vm=vm))

    causes = {forecast.resource: forecast.cause for forecast in seen.forecasts}
    assert (causes["cgroup:/user"], causes["cgroup:/user/box"]) == (cause, "killed")


def test_who_is_stopped_by_its_owner_ends_the_alarm_at_once_too() -> None:
    engine = RiskEngine()
    play(engine, leak(seconds=125))
    (end,), _ = play(engine, [group(125, 0.1, pid=None)])

    assert (end.new, end.forecast.cause) == (Level.OK, "freed")
    assert end.forecast.who == "python3 train.py (pid 8932)"
    assert "victim" not in ending_facts(end.forecast, 0.0)


def test_waves_of_a_build_are_a_single_alarm() -> None:
    """Nobody has ended: the next compilers are there already."""

    def build() -> Iterator[Observation]:
        for t in range(400):
            used = 4 + 18 * min(1.0, (t % 40) / 30)
            crowd = tuple(
                ProcessSample(100 + p + 20 * (t // 40), 1, "cc1plus", int(used * GIB / 20), 0, command="cc1plus")
                for p in range(20)
            )
            yield Observation(t=float(t), ram=RamState(24 * GIB, int((24 - used) * GIB)), processes=crowd)

    changes, _ = play(RiskEngine(), build(), "ram")
    assert levels(changes).count(Level.OK) <= 1


def test_a_training_that_ran_out_of_vram_leaves_no_alarm_behind() -> None:
    """On native Linux nothing tells of it: use came to the end, and within seconds the program was gone."""

    def card(t: float, used: float, pids: tuple[int, ...]) -> Observation:
        programs = tuple(GpuProcess(pid, "python", int(used * GIB)) for pid in pids)
        return Observation(t=t, gpus=(GpuSample(0, "u", "RTX", 16 * GIB, int(used * GIB), processes=programs),))

    engine = RiskEngine()
    before, _ = play(engine, [card(float(t), 4 + 11.9 * t / 120, (7,)) for t in range(121)], "gpu0")
    (end,), _ = play(engine, [card(121.0, 0.5, ())], "gpu0")

    assert before[-1].new >= Level.CRITICAL
    assert (end.new, end.forecast.cause, end.forecast.who) == (Level.OK, "refused", "python (pid 7)")


@pytest.mark.parametrize("after", [0.5, 6.0])
def test_a_refused_allocation_is_over_when_there_is_room_again(after: float) -> None:
    def card(t: float, used: float) -> Observation:
        gpu = GpuSample(0, "u", "RTX", 16 * GIB, int(used * GIB))
        return Observation(t=t, gpus=(gpu,), wsl=True, exhausted=("gpu0",) if t == 100 else ())

    engine = RiskEngine()
    before, _ = play(engine, [card(float(t), 15.0) for t in range(101)], "gpu0")
    changes, forecast = play(engine, [card(100.0 + t, after) for t in range(1, 3)], "gpu0")

    assert before[-1].new == Level.CRITICAL
    assert levels(changes) == [Level.OK]
    assert forecast.cause == "refused"
