"""A full card is never fine, and a server that took its share at once is not full."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from wslgpud.model import CgroupState, Forecast, GpuProcess, GpuSample, Level, Observation, RamState, Transition
from wslgpud.risk.engine import RiskEngine

GIB = 1 << 30
UUID = "GPU-aaaa"


def card(used: float, pids: Iterable[int] = (), *, shared: float | None = None, total: float = 16) -> GpuSample:
    """A card with so many GiB in use, as NVML and perhaps Windows see it."""
    programs = tuple(GpuProcess(pid, "python", None) for pid in pids)
    moved = None if shared is None else int(shared * GIB)
    return GpuSample(0, UUID, "NVIDIA RTX", int(total * GIB), int(used * GIB), processes=programs, shared_bytes=moved)


def play(
    samples: Iterable[GpuSample],
    engine: RiskEngine | None = None,
    *,
    start: float = 0.0,
    every: float = 1.0,
    exhausted: Callable[[int], tuple[str, ...]] = lambda _: (),
) -> tuple[list[tuple[float, Level]], Forecast, list[Transition]]:
    """Return (time, level) of each change of a card, its last forecast, and the changes."""
    engine, changes, forecast = engine or RiskEngine(), [], None
    for i, gpu in enumerate(samples):
        seen = engine.observe(Observation(t=start + i * every, gpus=(gpu,), exhausted=exhausted(i)))
        changes += seen.changes
        (forecast,) = seen.forecasts
    assert forecast is not None
    return [(c.mono, c.new) for c in changes], forecast, changes


def slowly(until: float, seconds: int = 1800, base: float = 2.0, pid: int = 7) -> list[GpuSample]:
    return [card(base + (until - base) * i / seconds, [pid]) for i in range(seconds + 1)]


IDLE = [card(0.5)] * 30


@pytest.mark.slow
def test_a_full_card_is_a_warning_for_as_long_as_it_stays_full() -> None:
    for samples in ([card(15.8)] * 4000, [*slowly(15.8), *[card(15.8, [7])] * 4000]):
        found, forecast, _ = play(samples)

        assert forecast.level == Level.WARNING
        assert (forecast.cause, forecast.eta_seconds) == ("full", None)
        assert sum(level < Level.WARNING for _, level in found[1:]) == 0, "it never paused"


def test_a_leak_that_filled_the_card_and_stopped_is_no_emergency() -> None:
    _, _, changes = play([*slowly(15.9), *[card(15.9, [7])] * 600])

    assert [c.new for c in changes[-2:]] == [Level.EMERGENCY, Level.WARNING]
    assert changes[-1].mono <= 1800 + 120
    assert changes[-1].forecast.cause == "full"


def test_a_card_found_full_is_told_of_after_ten_seconds() -> None:
    for every in (0.5, 1.0, 5.0):
        found, _, _ = play([card(15.7)] * 100, every=every)
        assert found == [(pytest.approx(10.0), Level.WARNING)]


def test_who_holds_most_of_a_full_card_is_named() -> None:
    held = (GpuProcess(7, "python", 14 * GIB), GpuProcess(8, "firefox", GIB))
    gpu = GpuSample(0, UUID, "RTX", 16 * GIB, int(15.8 * GIB), processes=held)

    assert play([gpu] * 30)[1].who == "python (pid 7)"


SERVERS = {
    "vLLM": [card(0.5 + 0.5 * i, [7]) for i in range(16)]  # reads the model
    + [card(8.2, [7])] * 40  # compiles
    + [card(15.3, [7])]  # takes the rest for its cache
    + [card(15.3 + 0.01 * i, [7]) for i in range(25)]  # captures graphs
    + [card(15.55 + 0.02 * (i % 3), [7]) for i in range(4000)],
    "JAX": [card(15.6, [7])] * 4000,
    "llama.cpp, weights and then its cache": [card(13, [7])] * 4 + [card(15.65, [7])] * 4000,
    "a large model from a slow disk": [card(0.5 + 0.05 * i, [7]) for i in range(250)] + [card(15.6, [7])] * 4000,
    "programs are not shown": [card(15.6)] * 4000,
}


@pytest.mark.parametrize("samples", SERVERS.values(), ids=list(SERVERS))
def test_a_server_that_takes_its_share_at_once_is_not_full(samples: list[GpuSample]) -> None:
    found, forecast, _ = play([*IDLE, *samples])

    assert forecast.level == Level.OK
    assert [t for t, level in found if t > 300 and level > Level.OK] == []


@pytest.mark.parametrize(
    "samples",
    [
        [*[card(9, [7])] * 600, *[card(15.7, [7])] * 60],
        [*SERVERS["JAX"][:300], *[card(15.6 + 0.0005 * i, [7]) for i in range(800)], *[card(16, [7])] * 30],
        [*slowly(15.7, 600), *[card(15.7, [7])] * 120],
    ],
    ids=["a training whose longest batch came", "something takes the rest", "a leak"],
)
def test_what_did_not_come_there_at_once_is_full(samples: list[GpuSample]) -> None:
    assert play([*IDLE, *samples])[1].level >= Level.WARNING


def test_a_server_on_which_an_allocation_fails_is_full_after_all() -> None:
    samples = [*IDLE, *[card(15.6, [7])] * 400]
    _, forecast, changes = play(samples, exhausted=lambda i: ("gpu0",) if i == 200 else ())

    assert changes[0].new == Level.CRITICAL
    assert changes[0].mono == 200
    assert (forecast.level >= Level.WARNING, forecast.cause) == (True, "full")


def test_a_server_that_spills_into_ram_counts_as_full() -> None:
    calm = [*[card(0.5, shared=0.5)] * 30, *[card(15.6, [7], shared=0.7)] * 200]
    _, forecast, _ = play(calm)
    assert forecast.level == Level.OK

    found, forecast, _ = play([*calm, *[card(15.6, [7], shared=3.7)] * 200])
    assert [level for _, level in found] == [Level.WARNING, Level.CRITICAL]
    assert 235 <= found[0][0] <= 245
    assert forecast.cause == "full"
    assert forecast.spilled_bytes == pytest.approx(3.2 * GIB, abs=0.3 * GIB)


def test_a_countdown_ends_at_once_when_a_full_card_spills() -> None:
    filling = [card(8 + 0.1 * i, [7], shared=0.5) for i in range(79)]
    found, forecast, _ = play([*filling, *[card(15.85, [7], shared=0.5 + 0.1 * i) for i in range(15)]])

    assert [level for _, level in found[-2:]] == [Level.EMERGENCY, Level.WARNING]
    assert (forecast.cause, forecast.eta_seconds) == ("full", None)
    assert forecast.spilled_bytes == pytest.approx(1.4 * GIB, abs=0.1 * GIB)


def test_a_spill_is_reported_with_the_full_card_until_it_is_back() -> None:
    engine = RiskEngine()
    play([card(12, [7], shared=1.5)] * 10, engine)
    found, forecast, _ = play([card(15.9, [7], shared=1.5 + min(1.0, 0.05 * i)) for i in range(120)], engine, start=10)
    assert forecast.spilled_bytes == GIB
    assert [level for _, level in found] == [Level.WARNING]

    found, forecast, _ = play([card(9, [7], shared=1.0)] * 200, engine, start=130)
    assert [level for _, level in found] == [Level.OK]
    assert forecast.spilled_bytes is None


def test_memory_freed_between_two_steps_does_not_hide_a_spill() -> None:
    engine = RiskEngine()
    play([card(12, shared=1.0)], engine)
    breathing = [card(14.0 if t % 10 == 0 else 15.5, shared=1.0 if t < 5 else 4.0) for t in range(1, 60)]
    found, _, _ = play(breathing, engine, start=1)

    assert found == [(15.0, Level.WARNING)]


@pytest.mark.parametrize(
    "samples",
    [
        [card(12, shared=0.1 * t) for t in range(200)],
        [card(15.0, shared=3.0) for _ in range(200)],
        [card(15.0, shared=max(0.0, 3.0 - 0.01 * t)) for t in range(200)],
    ],
    ids=["pinned buffers while the card has room", "steady", "falling"],
)
def test_flat_shared_memory_on_a_full_card_is_no_spill(samples: list[GpuSample]) -> None:
    assert play(samples)[1].level == Level.OK


def test_usage_hovering_around_the_limit_does_not_flap() -> None:
    engine = RiskEngine()
    play(slowly(15.3), engine)
    found, _, _ = play([card(15.7 - 0.5 * (i % 20 > 9), [7]) for i in range(2000)], engine, start=2000)
    assert [level for _, level in found] == [Level.WARNING]

    found, _, _ = play([card(13, [7])] * 100, engine, start=4000)
    assert [(t < 4100, level) for t, level in found] == [(True, Level.OK)]


def test_the_warning_ends_with_the_program_that_filled_the_card() -> None:
    engine = RiskEngine()
    play([*slowly(15.8), *[card(15.8, [7])] * 60], engine)
    found, forecast, _ = play([card(0.5)], engine, start=2000)

    assert found == [(2000, Level.OK)]
    assert str(forecast.who) == "probably python (pid 7)"


def test_a_restart_neither_forgets_a_server_nor_what_lies_in_ram() -> None:
    for samples, level in (
        ([*IDLE, *[card(15.6, [7])] * 100], Level.OK),
        ([*[card(9, shared=1.0)] * 30, *[card(15.0, [7], shared=3.0)] * 100], Level.WARNING),
    ):
        first, second = RiskEngine(), RiskEngine()
        play(samples, first)
        for key, document in first.lessons().items():
            second.recall(key, document, 60.0)
        _, forecast, _ = play([samples[-1]] * 50, second)
        assert forecast.level == level


def test_full_ram_and_groups_are_judged_by_growth_and_stalls() -> None:
    engine, levels = RiskEngine(), set()
    for t in range(300):
        ram, group = RamState(16 * GIB, GIB // 5), CgroupState("/x", GIB, GIB - (1 << 20))
        seen = engine.observe(Observation(t=float(t), ram=ram, cgroups=(group,)))
        levels |= {forecast.level for forecast in seen.forecasts}

    assert levels == {Level.OK}
