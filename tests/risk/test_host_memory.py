"""A Windows host takes memory back from WSL, writes it to its page file, or has none left."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.bench.scoring import Score, read_truth
from tests.risk.wording import headline_of
from wslgpud.model import Forecast, Level, Observation, RamState
from wslgpud.risk.attribution import Attribution
from wslgpud.risk.engine import RiskEngine
from wslgpud.risk.forecast_messages import advice
from wslgpud.risk.headroom import BalloonedMemory
from wslgpud.risk.levels import shown_level
from wslgpud.risk.trace import observation_from_row, read_trace, replay, row_from_observation
from wslgpud.sources.windows import next_period

GIB, MIB = 1 << 30, 1 << 20
FOLDER = Path(__file__).parents[1] / "traces" / "host"
#: steps of which the fourth does not fit; half of Windows' memory within 20 s; what it has left within 4 s; and where
#: Windows has little left from the start, of which three answers in half a minute tell too little
LATE = {"host-small_host-steps", "host-small_host-page_cache", "host-paged_out-works", "host-paged_out-slow"}
RECORDINGS = sorted(path.name.split(".")[0] for path in FOLDER.glob("*.jsonl.gz"))
HARMLESS = ["host-drop_cache", "host-small_host-build"]


def played(name: str):
    return replay(name, read_trace(FOLDER / f"{name}.jsonl.gz")), read_truth(FOLDER / f"{name}.truth.json")


@pytest.mark.parametrize("name", [name for name in RECORDINGS if name not in LATE])
def test_what_a_host_does_to_its_machine_is_warned_of_in_time(name):
    result, truth = played(name)
    score = Score()
    changes = {r: [(c.mono, c.new) for c in result.changes if c.resource == r] for r in result.forecasts}
    score.add(truth, changes, Level.WARNING)
    assert score.late == []


@pytest.mark.parametrize("name", HARMLESS)
def test_dropped_page_cache_and_a_fitting_build_cause_no_warning(name):
    result, _ = played(name)
    assert max((change.new for change in result.changes), default=Level.OK) < Level.WARNING


@pytest.mark.parametrize(
    ("name", "resource", "who"),
    [
        ("host-balloon-steps", "ram", "the host, which is taking memory back"),
        ("host-balloon-given_back", "ram", "the host, which is taking memory back"),
        ("host-neighbour", "windows", "programs of Windows"),
        ("host-small_host-leak", "windows", "Linux, including its page cache"),
    ],
)
def test_who_takes_the_memory_is_named(name, resource, who):
    result, _ = played(name)
    blamed = {str(f.who) for _, f in result.forecasts[resource] if f.level >= Level.CRITICAL}
    assert who in blamed


def leaking(windows_every: float = 10.0, until: float = 300.0) -> list[Observation]:
    """Return an idle machine on a Windows that loses 50 MiB per second."""
    ram = RamState(8 * GIB, 6 * GIB, free=6 * GIB)
    seen, due = [], 0.0
    for t in range(int(until)):
        windows = None
        if t >= due:
            windows, due = RamState(16 * GIB, max(0, 16 * GIB - 50 * MIB * t)), t + windows_every
        seen.append(Observation(t=float(t), ram=ram, windows=windows))
    return seen


def test_windows_is_warned_of_though_linux_has_plenty():
    result = replay("leak", leaking())
    warning = next(c for c in result.changes if c.new == Level.WARNING)
    assert warning.resource == "windows"
    assert headline_of(warning).startswith("Windows' memory full in about ")
    assert "programs of Windows" in headline_of(warning)
    assert not any(c.resource == "ram" for c in result.changes)


def test_between_two_answers_of_windows_the_countdown_goes_on():
    engine, etas = RiskEngine(), []
    for seen in leaking():
        (forecast,) = [f for f in engine.observe(seen).forecasts if f.resource == "windows"]
        etas.append((forecast.level, forecast.eta_seconds, forecast.age_seconds))
    assert all(age == i % 10 for i, (_, _, age) in enumerate(etas))
    last = [eta for level, eta, _ in etas[-9:] if eta is not None]
    assert last == sorted(last, reverse=True)


def test_an_alarm_about_a_silent_windows_ends():
    engine, changes = RiskEngine(), []
    for seen in leaking(until=290.0):
        changes += engine.observe(seen).changes
    assert changes[-1].new >= Level.WARNING
    for t in range(290, 420):
        changes += engine.observe(Observation(t=float(t), ram=RamState(8 * GIB, 6 * GIB))).changes
    assert (changes[-1].resource, changes[-1].new) == ("windows", Level.OK)


def test_an_alarm_about_a_windows_that_fails_to_answer_stays():
    engine, changes = RiskEngine(), []
    for seen in leaking(until=290.0):
        changes += engine.observe(seen).changes
    raised = changes[-1].new
    for t in range(290, 600):
        seen = Observation(t=float(t), ram=RamState(8 * GIB, 6 * GIB), late=("windows",))
        found = engine.observe(seen)
        changes += found.changes
    _, windows = found.forecasts
    assert changes[-1].new == raised
    assert (windows.level, windows.cause, windows.age_seconds) == (raised, "blind", 319.0)


def test_without_an_alarm_a_silent_windows_is_not_missed():
    engine = RiskEngine()
    calm = [replace(one, windows=one.windows and RamState(16 * GIB, 12 * GIB)) for one in leaking()]
    silent = [Observation(t=300.0 + t, ram=RamState(8 * GIB, 6 * GIB), late=("windows",)) for t in range(200)]
    seen = [engine.observe(one) for one in (*calm, *silent)]
    assert not any(one.changes for one in seen)
    assert [forecast.resource for forecast in seen[-1].forecasts] == ["ram"]


def test_a_mere_note_about_a_silent_windows_becomes_no_warning():
    engine, noted = RiskEngine(), []
    for seen in leaking():
        noted = [f for f in engine.observe(seen).forecasts if (f.resource, f.level) == ("windows", Level.INFO)]
        if noted:
            break
    assert noted
    ram = RamState(8 * GIB, 6 * GIB)
    silent = [engine.observe(Observation(t=seen.t + 1 + t, ram=ram, late=("windows",))) for t in range(200)]
    assert max(shown_level(forecast) for one in silent for forecast in one.forecasts) == Level.INFO
    assert [forecast.resource for forecast in silent[-1].forecasts] == ["ram"]


def test_memory_taken_back_counts_as_gone_for_a_while():
    taken = BalloonedMemory()

    def total(t: float, gib: int) -> int:
        return taken.total(Observation(t=t, ram=RamState(gib * GIB, GIB))) // GIB

    assert [total(float(t), gib) for t, gib in enumerate([8, 7, 6, 6])] == [8, 8, 8, 8]
    assert total(500.0, 6) == 8
    assert total(700.0, 6) == 6
    assert total(710.0, 8) == 8
    assert taken.total(Observation(t=711.0)) // GIB == 8


@pytest.mark.parametrize(
    ("before", "now", "seconds"),
    [
        (None, (0.0, 0.3), 10.0),
        ((0.0, 0.3), (10.0, 0.3), 10.0),
        ((0.0, 0.8), (10.0, 0.6), 10.0),
        ((0.0, 0.5), (10.0, 0.4), 5.0),
        ((0.0, 0.3), (10.0, 0.1), 2.0),
    ],
    ids=["first answer", "nothing shrinks", "plenty left", "40 s left", "5 s left"],
)
def test_a_windows_that_runs_out_is_asked_more_often(before, now, seconds):
    assert next_period(10.0, before, now) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("before", "now", "who"),
    [
        ({"wslc-cli-me": 1}, {"wslc-cli-me": 3}, "WSL's containers (wslc-cli-me)"),
        ({}, {"wslc-cli-me": 2}, "WSL's containers (wslc-cli-me)"),
        ({"wslc-cli-me": 1, "wslc-app": 5}, {"wslc-cli-me": 1.5, "wslc-app": 5}, "programs of Windows"),
        ({"wslc-cli-me": 9}, {"wslc-cli-me": 9}, "programs of Windows"),
        (None, {"wslc-cli-me": 9}, "programs of Windows"),
    ],
    ids=["grew", "is new", "grew less", "did not grow", "was not known before"],
)
def test_containers_that_take_windows_memory_are_named(before, now, who):
    attribution, ram = Attribution(), RamState(8 * GIB, 6 * GIB, free=6 * GIB)

    def sizes(session):
        return None if session is None else {name: int(size * GIB) for name, size in session.items()}

    attribution.push(Observation(t=0.0, ram=ram, containers=sizes(before)))
    last = Observation(t=20.0, ram=ram, containers=sizes(now))
    attribution.push(last)

    assert str(attribution.windows_culprit(last, 20.0, 0.1 * GIB).who) == who


def test_a_recording_keeps_what_containers_hold():
    seen = Observation(t=1.0, containers={"wslc-cli-me": GIB})

    assert observation_from_row(row_from_observation(seen)).containers == {"wslc-cli-me": GIB}
    assert observation_from_row(row_from_observation(Observation(t=1.0))).containers is None


def test_the_advice_for_containers_is_to_stop_them():
    full = Forecast("windows", Level.WARNING, GIB, 16 * GIB, who_kind="containers", cause="growth")

    assert str(advice(full)).startswith("Stop containers that you do not need (wslc stop)")
