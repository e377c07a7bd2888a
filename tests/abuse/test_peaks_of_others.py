"""What came to nothing before makes a warning later only for whoever it was that came this far."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import pytest

from wslgpud.model import CgroupState, GpuProcess, GpuSample, Level, Observation, ProcessSample, RamState
from wslgpud.risk.engine import COMMANDS, RiskEngine

GIB = 1 << 30
TOTAL = 24 * GIB
BASE = 2 * GIB
VICTIM, STRANGER = 1002, 1001
TRAIN = "python3 train.py"
#: How a stranger may call the programs that are to be taken for the victim's.
NAMES = pytest.mark.parametrize("name", [TRAIN, "python3 other.py"], ids=["same name", "another name"])
RATES = pytest.mark.parametrize("rate", [0.05, 0.2])


@dataclass
class Machine:
    """One sample per second of RAM, a card, or a limited cgroup that programs fill; its engine's warnings."""

    kind: str = "ram"
    wsl: bool = False
    engine: RiskEngine = field(default_factory=RiskEngine)
    t: float = 0.0
    first: dict[Level, float] = field(default_factory=dict)

    def sample(self, *programs: ProcessSample, hidden: float = 0.0, list_: tuple[ProcessSample, ...] = ()) -> None:
        """Observe programs that hold so much of the resource; ``hidden`` GiB belong to nobody."""
        self.t += 1.0
        used = BASE + sum(program.rss_bytes for program in programs) + int(hidden * GIB)
        shown = (list_ or programs, (ProcessSample(1, 1, "systemd", GIB // 10, 0, 0, command="systemd"),))
        listed = tuple(one for part in shown for one in part)
        ram = RamState(TOTAL, TOTAL - used)
        cards: tuple[GpuSample, ...] = ()
        groups: tuple[CgroupState, ...] = ()
        if self.kind != "ram":
            ram = RamState(64 * TOTAL, 64 * TOTAL - used)
        if self.kind == "card":
            held = (GpuProcess(p.pid, p.name, None if self.wsl else p.rss_bytes) for p in programs)
            cards = (GpuSample(0, "GPU-0", "card", TOTAL, used, processes=() if self.wsl else tuple(held)),)
        if self.kind == "cgroup":
            groups = (CgroupState("/shared", TOTAL, used),)
        seen = self.engine.observe(
            Observation(self.t, ram, gpus=cards, cgroups=groups, processes=listed, wsl=self.wsl), wall=self.t
        )
        name = {"ram": "ram", "card": "gpu0", "cgroup": "cgroup:/shared"}[self.kind]
        for forecast in seen.forecasts:
            for level in (Level.INFO, Level.WARNING, Level.CRITICAL, Level.EMERGENCY):
                if forecast.resource == name and forecast.level >= level:
                    self.first.setdefault(level, self.t)

    def rest(self, seconds: int) -> None:
        for _ in range(seconds):
            self.sample()

    def runs(self, uid: int | None, command: str, peak: float, count: int = 5) -> None:
        """Let harmless runs come to this share of what is there, one after another."""
        for number in range(count):
            for i in range(120):
                self.sample(program(1000 + number, uid, peak * (TOTAL - BASE) * (i + 1) / 120, command))
            self.rest(60)

    def leak(self, uid: int | None, command: str, gib_per_second: float) -> dict[str, float]:
        """Let a program take everything; return how many seconds before the end each level came."""
        self.first.clear()
        held = 1.0 * GIB
        while held < TOTAL - BASE:
            held = min(TOTAL - BASE, held + gib_per_second * GIB)
            self.sample(program(5000, uid, held, command))
        return {level.name: round(self.t - t) for level, t in self.first.items() if level >= Level.WARNING}


def program(pid: int, uid: int | None, size: float, command: str = TRAIN) -> ProcessSample:
    return ProcessSample(pid, 10 * pid, "python3", int(size), 0, uid, frozenset({"gpu"}), command, "/shared")


def quiet(machine: Machine, rate: float) -> dict[str, float]:
    """Return the leads of a leak on a machine on which nothing ran before, for as long as five runs take."""
    machine.rest(300 + 5 * 180)
    return machine.leak(VICTIM, TRAIN, rate)


def earlier_or_equal(leads: dict[str, float], than: dict[str, float]) -> bool:
    return leads.keys() == than.keys() and all(lead >= than[level] for level, lead in leads.items())


KINDS = pytest.mark.parametrize(
    ("kind", "wsl"), [("ram", False), ("cgroup", False), ("card", False), ("card", True)], ids=str
)


@KINDS
@RATES
@NAMES
@pytest.mark.parametrize("peak", [0.85, 0.95])
def test_no_run_of_another_user_makes_a_warning_later(
    kind: str, wsl: bool, rate: float, name: str, peak: float
) -> None:
    attacked = Machine(kind, wsl)
    attacked.rest(300)
    attacked.runs(STRANGER, name, peak)

    # A card that was nearly full and fell has perhaps refused memory: then its end is assumed there, and comes earlier.
    assert earlier_or_equal(attacked.leak(VICTIM, TRAIN, rate), quiet(Machine(kind, wsl), rate))


@KINDS
def test_own_harmless_runs_hardly_delay_a_critical(kind: str, wsl: bool) -> None:
    own, first = Machine(kind, wsl), quiet(Machine(kind, wsl), 0.05)
    own.rest(300)
    own.runs(VICTIM, TRAIN, 0.85)
    again = own.leak(VICTIM, TRAIN, 0.05)

    assert again["WARNING"] < 0.7 * first["WARNING"]
    assert again["CRITICAL"] >= 0.85 * first["CRITICAL"]


@KINDS
@pytest.mark.parametrize("rate", [0.2, 0.4, 0.7, 1.2])
def test_own_peaks_delay_a_critical_by_at_most_a_tenth(kind: str, wsl: bool, rate: float) -> None:
    """A fast growth is critical with a quarter left: it must not wait there for the last few per cent."""
    own, first = Machine(kind, wsl), quiet(Machine(kind, wsl), rate)
    own.rest(300)
    own.runs(VICTIM, TRAIN, 0.85)
    again = own.leak(VICTIM, TRAIN, rate)

    assert first["CRITICAL"] >= 3
    assert again["CRITICAL"] >= 0.9 * first["CRITICAL"] - 1  # and until the next sample


@pytest.mark.parametrize("kind", ["ram", "card"])
def test_peaks_of_another_program_earn_no_leniency(kind: str) -> None:
    other = Machine(kind)
    other.rest(300)
    other.runs(VICTIM, "python3 build.py", 0.85)

    assert other.leak(VICTIM, TRAIN, 0.05) == quiet(Machine(kind), 0.05)


def test_a_run_without_a_known_user_earns_nothing() -> None:
    unknown, fresh = Machine(), Machine()
    for machine in (unknown, fresh):
        machine.rest(300)
    unknown.runs(None, TRAIN, 0.85)

    assert unknown.leak(None, TRAIN, 0.05) == fresh.leak(None, TRAIN, 0.05)


def test_memory_that_belongs_to_nobody_earns_nothing() -> None:
    """A file in memory that is not mapped, filled and removed by a stranger."""
    attacked = Machine()
    attacked.rest(300)
    for _ in range(5):
        for i in range(120):
            attacked.sample(hidden=18.7 * (i + 1) / 120)
        attacked.rest(60)

    assert attacked.leak(VICTIM, TRAIN, 0.05) == quiet(Machine(), 0.05)


def test_a_spike_beside_a_job_that_holds_much_is_not_the_jobs() -> None:
    attacked, calm = Machine(), Machine()
    for machine in (attacked, calm):
        for i in range(1500):
            spike = [program(1000 + i // 100, STRANGER, 8.5 * GIB, "x")] if machine is attacked and i % 100 < 50 else []
            machine.sample(program(5000, VICTIM, 10 * GIB), *spike)

    def leads(machine: Machine) -> dict[Level, float]:
        machine.first.clear()
        for i in range(240):
            machine.sample(program(5000, VICTIM, (10 + 0.05 * i) * GIB))
        return {level: machine.t - t for level, t in machine.first.items() if level >= Level.WARNING}

    assert leads(attacked) == leads(calm)


def test_a_program_pushed_off_the_list_has_not_ended_well() -> None:
    """A stranger's processes that share one large file look bigger than the leak."""
    big = tuple(program(100 + i, STRANGER, 23 * GIB, "x") for i in range(6))

    def leads(*, attack: bool) -> dict[Level, float]:
        machine = Machine()
        machine.rest(300)
        for i in range(440):
            hides = attack and i % 40 < 10
            machine.sample(program(5000, VICTIM, (1 + 0.05 * i) * GIB), list_=big if hides else ())
        return {level: machine.t - t for level, t in machine.first.items() if level >= Level.WARNING}

    assert leads(attack=True)[Level.WARNING] >= leads(attack=False)[Level.WARNING]


@NAMES
def test_a_job_is_not_judged_by_another_users_job_of_its_name(name: str) -> None:
    def levels(uid: int) -> set[str]:
        machine = Machine()
        machine.rest(300)
        machine.runs(uid, name, 0.8, count=2)
        machine.first.clear()
        for _ in range(60):
            machine.sample(program(5000, VICTIM, GIB // 5), hidden=6.0)
        return {level.name for level in machine.first}

    assert not levels(STRANGER)
    assert ("WARNING" in levels(VICTIM)) is (name == TRAIN)  # the control


def test_a_strangers_commands_push_out_none_of_the_users_own() -> None:
    machine = Machine()
    machine.rest(300)
    machine.runs(VICTIM, TRAIN, 0.8, count=2)
    for number in range(300):
        for size in (0, 2, 2, 0, 0):
            machine.sample(*[program(6000 + number, STRANGER, size * GIB, f"python3 {number}.py")] * (size > 0))
    kept = {(uid, program) for uid, program, *_ in machine.engine.lessons()[COMMANDS]["runs"]}

    assert (VICTIM, TRAIN) in kept
    assert 10 <= sum(uid == STRANGER for uid, _ in kept) <= 50


def test_after_a_restart_a_peak_still_belongs_to_whoever_made_it() -> None:
    def leads(uid: int) -> dict[str, float]:
        before, after = Machine(), Machine()
        before.rest(300)
        before.runs(uid, TRAIN, 0.85)
        for key, document in json.loads(json.dumps(before.engine.lessons())).items():
            after.engine.recall(key, document, 60.0)
        return quiet(after, 0.05)

    assert leads(STRANGER) == quiet(Machine(), 0.05)
    assert leads(VICTIM)["WARNING"] < quiet(Machine(), 0.05)["WARNING"]
