"""A command whose peak would not fit is warned of before it takes the memory, one that fitted is not."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wslgpud.model import Expected, GpuProcess, GpuSample, Level, Observation, ProcessSample, RamState, SwapState
from wslgpud.risk.command_peaks import CommandPeaks
from wslgpud.risk.engine import COMMANDS, RiskEngine
from wslgpud.risk.forecast_messages import headline
from wslgpud.risk.headroom import Room
from wslgpud.risk.owners import Holders
from wslgpud.risk.trace import observation_from_row, row_from_observation

GIB = 1 << 30
TOTAL = 24
SHELL = ProcessSample(9, 1, "bash", GIB // 100, 0, command="bash")


class Desk:
    """A machine of 24 GiB on which commands run one after another, one sample per second."""

    def __init__(self):
        self.engine, self.t, self.pid, self.others = RiskEngine(), 0.0, 100, 4.0
        self.forecast, self.levels = None, []

    def sample(self, *running, **more):
        used = self.others + sum(gib for _, gib in running)
        processes = (
            SHELL,
            *(
                ProcessSample(self.pid + i, 1, "python", int(gib * GIB), 0, command=command)
                for i, (command, gib) in enumerate(running)
            ),
        )
        ram = RamState(TOTAL * GIB, int((TOTAL - used) * GIB))
        seen = self.engine.observe(Observation(self.t, ram, processes=processes, **more))
        self.t += 1.0
        self.forecast = seen.forecasts[0]
        self.levels.append(self.forecast.level)

    def run(self, command, peak, seconds=30):
        """Let a command climb to its peak in GiB, stay there for a while, and end."""
        for i in range(seconds):
            self.sample((command, 0.2 + (peak - 0.2) * i / seconds))
        for _ in range(20):
            self.sample((command, peak))
        self.pid += 10
        for _ in range(100):
            self.sample()


def test_a_command_whose_peak_no_longer_fits_is_warned_of_early():
    desk = Desk()
    desk.run("python train.py", 12.0)
    desk.run("python train.py", 12.5)
    assert max(desk.levels) < Level.WARNING
    desk.others = 14.0  # somebody else has come meanwhile
    for _ in range(4):
        desk.sample(("python train.py", 0.2))
    found = desk.forecast
    assert (found.level, found.cause) == (Level.WARNING, "expected")
    assert found.who == f"python train.py (pid {desk.pid})"
    assert found.expected_peak_bytes == 12 * GIB
    assert "came to 12 GiB before" in str(headline(found))
    assert found.eta_seconds is None  # when it will take it is not known


def test_one_run_or_a_command_without_a_program_is_not_enough():
    for runs, command in ((1, "python train.py"), (3, "python -c"), (3, "python"), (3, "")):
        desk = Desk()
        for _ in range(runs):
            desk.run(command, 14.0)
        desk.others = 12.0
        for _ in range(4):
            desk.sample((command, 0.2))
        assert desk.forecast.level < Level.WARNING


def test_what_is_expected_is_the_least_that_every_run_came_to():
    """The process list shows no arguments: a small run must not be taken for the large one of before."""
    desk = Desk()
    desk.run("python train.py", 3.0)
    desk.run("python train.py", 12.0)
    desk.others = 14.0
    for _ in range(4):
        desk.sample(("python train.py", 0.2))
    assert desk.forecast.level == Level.OK


def test_a_run_killed_for_lack_of_memory_is_remembered_at_once():
    desk = Desk()
    for i in range(40):
        desk.sample(("python train.py", 0.2 + 0.49 * i))
    desk.sample(("python train.py", 19.8), exhausted=("ram",))
    for _ in range(1900):
        desk.sample()
    assert desk.forecast.level == Level.OK
    desk.others = 6.0
    for _ in range(4):
        desk.sample(("python train.py", 0.2))
    assert (desk.forecast.level, desk.forecast.cause) == (Level.WARNING, "expected")


def alarms_of_a_rise_to_71_percent(desk):
    desk.levels.clear()
    desk.run("python dataset.py", 0.71 * TOTAL + 1.3 - desk.others, seconds=7)
    return [level for level in desk.levels if level >= Level.WARNING]


def test_a_fast_rise_that_always_ended_well_is_not_warned_of():
    first, again = Desk(), Desk()
    assert alarms_of_a_rise_to_71_percent(first)  # it cannot be told from a leak
    # The same machine's memory of it, and none of the peaks of RAM itself: another daemon's life.
    for _ in range(2):
        alarms_of_a_rise_to_71_percent(first)
    again.engine.recall(COMMANDS, first.engine.lessons()[COMMANDS], 3600.0)
    assert not alarms_of_a_rise_to_71_percent(again)


def test_what_commands_took_survives_a_restart():
    desk, later = Desk(), Desk()
    desk.run("python train.py", 14.0)
    desk.run("python train.py", 14.0)
    kept = json.loads(json.dumps(desk.engine.lessons()[COMMANDS]))
    later.engine.recall(COMMANDS, kept, 60.0)
    later.others = 12.0
    for _ in range(4):
        later.sample(("python train.py", 0.2))
    assert (later.forecast.level, later.forecast.cause) == (Level.WARNING, "expected")


PEAKS = st.fixed_dictionaries({"ram": st.integers(0, 1 << 50), "gpu0": st.integers(0, 1 << 50)})
RUNS = st.lists(st.tuples(PEAKS, st.booleans()), max_size=5)


@given(RUNS, st.integers(0, 1 << 50), st.integers(1, 1 << 40), st.integers(0, 1 << 40), st.integers(1, 1 << 38))
def test_no_peak_is_believed_that_the_machine_cannot_hold(runs, announced, ram, swap, vram):
    commands, holders = CommandPeaks(), Holders(known=False)
    commands.recall(9.0, {"runs": [[None, "python train.py", 60.0, 600.0, *run] for run in runs]}, 0.0)
    train = ProcessSample(7, 1, "python", 1, 0, command="python train.py")
    card = GpuSample(0, "", "a card", vram, 0, processes=(GpuProcess(7, "python", 1),))
    claim = Expected("ram", "make (guard 9)", announced, 0)
    seen = Observation(
        9.0, RamState(ram, ram), SwapState(swap, swap), gpus=(card,), processes=(train,), expected=(claim,)
    )
    rooms = [Room("ram", "ram", ram, ram + swap), Room("gpu0", "gpu0", vram, vram)]
    holders.push(seen)
    commands.push(seen, rooms, (), holders)

    for room in rooms:
        wish = commands.wish(9.0, room, seen.expected)
        assert wish is None or wish.peak_bytes <= room.capacity


def test_a_peak_inflated_by_memory_shared_by_forks_is_not_kept():
    desk = Desk()
    for _ in range(2):
        for _ in range(20):
            desk.sample(*[("python train.py", 1.0)] * 3)
        desk.pid += 10
        desk.others = -20.0  # of what the three hold, most is the same
        for _ in range(20):
            desk.sample(*[("python train.py", 12.0)] * 3)  # 36 of 24 GiB
        desk.others = 4.0
        desk.pid += 10
        for _ in range(100):
            desk.sample()

    assert "python train.py" not in str(desk.engine.lessons().get(COMMANDS, {}))


def test_what_is_older_than_a_month_is_forgotten():
    desk, later = Desk(), Desk()
    desk.run("python train.py", 14.0)
    desk.run("python train.py", 14.0)
    later.engine.recall(COMMANDS, desk.engine.lessons()[COMMANDS], 31 * 24 * 3600.0)
    later.others = 12.0
    for _ in range(4):
        later.sample(("python train.py", 0.2))
    assert later.forecast.level == Level.OK


def announced(peak, used=0.5, pids=()):
    return (Expected("ram", "make (pid 7)", int(peak * GIB), int(used * GIB), pids),)


@pytest.mark.parametrize(("peak", "level"), [(10.0, Level.OK), (19.0, Level.INFO), (22.0, Level.WARNING)])
def test_what_guard_announces_is_compared_with_what_is_left(peak, level):
    desk = Desk()
    for _ in range(4):
        desk.sample(expected=announced(peak))
    assert desk.forecast.level == level
    assert desk.forecast.who == ("make (pid 7)" if level else "")


def test_a_process_that_guard_speaks_for_is_not_counted_twice():
    desk = Desk()
    desk.run("python train.py", 11.0)
    desk.run("python train.py", 11.0)
    for _ in range(4):
        desk.sample(("python train.py", 0.5), expected=announced(11.0, pids=(desk.pid,)))
    assert desk.forecast.level == Level.OK


def test_vram_is_expected_of_the_card_it_was_on():
    engine, forecasts = RiskEngine(), {}

    def sample(t, held, others):
        process = ProcessSample(7, 1, "python", GIB, 0, command="python serve.py")
        gpus = tuple(
            GpuSample(
                i,
                f"GPU-{i}",
                "card",
                24 * GIB,
                int((others + (held if i else 0)) * GIB),
                processes=(GpuProcess(7, "python", int(held * GIB)),) if i and held else (),
            )
            for i in range(2)
        )
        seen = engine.observe(Observation(t, gpus=gpus, processes=(SHELL, process) if held else (SHELL,)))
        forecasts.update({f.resource: f for f in seen.forecasts})

    for start in (0.0, 400.0):
        for i in range(20):
            sample(start + i, 1.0 + 15.0 * i / 19, 2.0)
        for i in range(20, 200):
            sample(start + i, 0.0, 2.0)
    for i in range(4):
        sample(1000.0 + i, 1.0, 12.0)
    assert (forecasts["gpu1"].level, forecasts["gpu1"].cause) == (Level.WARNING, "expected")
    assert forecasts["gpu0"].level == Level.OK


def test_a_recording_keeps_what_was_announced():
    seen = Observation(1.0, expected=announced(9.0, pids=(7, 8)))
    assert observation_from_row(json.loads(json.dumps(row_from_observation(seen)))) == seen


def running(peak: float, held: float, headroom: float = 20.0) -> tuple[CommandPeaks, Room]:
    """Return a command that took ``peak`` GiB in 100 s twice and holds ``held`` now, and what is left for it."""
    peaks, holders = CommandPeaks(), Holders(known=False)
    run = [None, "python train.py", 0.0, 100.0, {"ram": int(peak * GIB)}, False]
    peaks.recall(0.0, {"runs": [run, run]}, 60.0)
    for t, (taken, left) in enumerate([(0.1, 20.0), (held, headroom)]):
        train = ProcessSample(7, 1, "python", int(taken * GIB), 0, command="python train.py")
        room = Room("ram", "ram", int(left * GIB), TOTAL * GIB)
        seen = Observation(2.0 * t, RamState(TOTAL * GIB, room.headroom), processes=(train,))
        holders.push(seen)
        peaks.push(seen, [room], (), holders)
    return peaks, room


def test_a_command_that_runs_far_longer_than_before_is_new_work():
    peaks, room = running(8.0, 2.0)

    assert peaks.wish(260.0, room, ()) == (6 * GIB, "python train.py (pid 7)", 8 * GIB)
    assert peaks.wish(260.1, room, ()) is None


@pytest.mark.parametrize(
    ("peak", "held", "headroom", "calm"),
    [
        *[(20.0, 2.1, 20.0, True), (20.0, 2.0, 20.0, False)],  # what is missing takes nine tenths of what is left
        *[(2.0, 2.03, 20.0, True), (2.0, 2.05, 20.0, False)],  # never as much as now
        *[(8.0, 1.21, 20.0, True), (8.0, 1.19, 20.0, False)],  # hardly any memory
        *[(8.0, 2.1, 16.0, True), (8.0, 1.9, 16.0, False)],  # others have taken more
    ],
)
def test_growth_is_doubted_where_a_command_came_this_far_before(
    peak: float, held: float, headroom: float, *, calm: bool
):
    peaks, room = running(peak, held, headroom)

    assert [*peaks.calm(room).values()] == ([2] if calm else [])


def test_a_command_that_holds_nothing_of_a_card_yet_is_expected():
    """Found under WSL2, where a program that has only opened the card is listed with 0 bytes."""
    engine, wants = RiskEngine(users_known=True), []
    for second in range(180):
        life, second_of_life = divmod(second, 60)
        runs, held = second_of_life < 40, GIB * min(8, second_of_life if life == 2 else second_of_life + 1)
        train = ProcessSample(100 + life, 1, "python", 4 * GIB, 0, uid=1000, command="python train.py")
        card = GpuSample(0, "GPU-1", "card", 16 * GIB, held if runs else 0)
        card = replace(card, processes=(GpuProcess(train.pid, "python", held),) if runs else ())
        ram = RamState(TOTAL * GIB, (16 if runs else 20) * GIB)
        engine.observe(Observation(float(second), ram, processes=(train, SHELL) if runs else (SHELL,), gpus=(card,)))
        room = Room("gpu0", "GPU-1", 16 * GIB - held, 16 * GIB, gpu=card)
        wish = engine._commands.wish(float(second), room, ())
        wants.append(wish and wish.rest_bytes // GIB)

    assert wants[118:124] == [None, None, 8, 8, 6, 6]
