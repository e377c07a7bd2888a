"""A paused job belongs to the incident of the memory that was about to run out, and is no all-clear."""

from __future__ import annotations

from pathlib import Path

from tests.alerts.test_manager import Life
from wslgpud.alerts.messages import outcome, text_now
from wslgpud.alerts.rules import BRAKE
from wslgpud.brake.paused_job import OUTCOMES
from wslgpud.brake.paused_job import row as brake_row
from wslgpud.model import Forecast, Level, Transition
from wslgpud.verdict import Verdict, decide
from wslgpud.words import say

WHO = "python train.py (pid 7)"


def row(life: Life, old: Level, new: Level, **facts: object) -> Transition:
    forecast = Forecast("ram", Level.CRITICAL, 4, 100, cause="growth") if new > Level.OK else None
    at = life.clock.wall(), life.clock.mono()
    return Transition(*at, "ram", BRAKE, old, new, forecast=forecast, facts=facts)  # type: ignore[arg-type]


def paused(life: Life, number: int = 1, **more: object) -> None:
    facts = {"job": number, "who": WHO, "paused_clock": life.clock.wall(), "left_bytes": 4, **more}
    life.manager.report(row(life, Level.OK, Level.CRITICAL, **facts))


def verdict(life: Life, *forecasts: Forecast) -> Verdict:
    return decide(forecasts, life.manager.standing())


def headlines(life: Life) -> list[str]:
    return [message["headline"] for message in life.waiting()]


def story(folder: Path) -> Life:
    """Memory is about to run out, and the job responsible is paused."""
    life = Life(folder)
    life.memory(1, Level.OK, Level.WARNING, eta=30.0, left=20)
    paused(life)
    life.memory(2, Level.WARNING, Level.CRITICAL, eta=3.0, left=4)
    return life


def test_pause_and_exhaustion_are_one_incident_with_commands(tmp_path: Path) -> None:
    life = story(tmp_path)
    (one,) = life.manager.standing()
    told = life.waiting()[-1]

    assert {rule: row.new for rule, row in one.incident.held.items()} == {
        "memory_exhaustion": Level.CRITICAL,
        BRAKE: Level.CRITICAL,
    }
    assert f"{WHO} paused at " in told["headline"]
    assert "'sudo wslgpud brake resume 1' resumes it, 'sudo wslgpud brake stop 1' stops it" in told["advice"]
    life.end()


def test_there_is_no_all_clear_before_the_job_is_resumed(tmp_path: Path) -> None:
    life = story(tmp_path)
    told = len(life.waiting())
    life.memory(120, Level.CRITICAL, Level.WARNING, left=4)
    life.memory(300, Level.WARNING, Level.OK, left=4)
    calm = Forecast("ram", Level.OK, 4, 100)

    assert len(life.waiting()) == told
    assert [one.incident.level for one in life.manager.standing()] == [Level.CRITICAL]
    assert (verdict(life, calm).level, verdict(life, calm).cause) == (Level.CRITICAL, BRAKE)

    facts = {"end": "held", "who": WHO, "outcome": say("resumed when memory was free again"), "held_seconds": 600.0}
    life.manager.report(row(life, Level.CRITICAL, Level.OK, **facts))
    life.memory(600, Level.OK, Level.OK, left=60)
    assert life.manager.standing() == []
    assert headlines(life)[-1] == f"{WHO} resumed when memory was free again (paused for 10 min)"
    life.end()


def test_the_end_of_the_pause_is_the_outcome_of_the_incident(tmp_path: Path) -> None:
    life = story(tmp_path)
    (one,) = life.manager.standing()
    life.memory(300, Level.CRITICAL, Level.OK, left=4)
    facts = {"end": "held", "who": WHO, "outcome": say("stopped on request"), "held_seconds": 600.0}
    life.manager.report(row(life, Level.CRITICAL, Level.OK, **facts))
    life.memory(600, Level.OK, Level.OK, left=60)
    closed = next(i for i in life.manager._past if i.id == one.incident.id)

    assert str(outcome(closed)) == "paused for 10 min, then stopped on request"
    life.end()


def test_the_pause_stays_the_headline_when_another_alarm_comes(tmp_path: Path) -> None:
    life = story(tmp_path)
    (one,) = life.manager.standing()
    saved = {"outcome": say("resumed when memory was free again"), "held_seconds": 60.0, "saved_seconds": 180.0}
    life.manager.report(row(life, Level.CRITICAL, Level.OK, end="held", who=WHO, **saved))
    life.memory(60, Level.CRITICAL, Level.CRITICAL, left=30)
    assert str(text_now(life.manager.standing()[0].incident, Forecast("ram", Level.WARNING, 4, 100)).headline) == (
        f"{WHO} resumed when memory was free again (paused for 60 s)"
    )
    life.memory(70, Level.CRITICAL, Level.WARNING, left=30)
    life.memory(72, Level.WARNING, Level.CRITICAL, eta=9.0, left=10)
    life.memory(300, Level.CRITICAL, Level.OK, left=60)
    closed = next(i for i in life.manager._past if i.id == one.incident.id)

    assert " paused at " in str(closed.message)
    told = "paused for 60 s, then resumed when memory was free again; 3 min of work kept"
    assert str(outcome(closed)).startswith(told)
    life.end()


def test_the_pause_is_the_verdict_while_the_forecast_counts_down(tmp_path: Path) -> None:
    life = story(tmp_path)
    counts = Forecast("ram", Level.CRITICAL, 4, 100, eta_seconds=2.0, cause="growth", who=WHO, who_kind="process")

    assert verdict(life, counts).cause == BRAKE
    life.end()


def test_another_process_that_uses_up_the_rest_takes_precedence(tmp_path: Path) -> None:
    life = story(tmp_path)
    other = Forecast("ram", Level.CRITICAL, 2, 100, eta_seconds=2.0, cause="growth", who="julia (pid 8)")

    assert verdict(life, other).cause == "growth"
    life.end()


def test_a_second_paused_job_is_announced_too(tmp_path: Path) -> None:
    life = story(tmp_path)
    told = len(life.waiting())
    paused(life, 2, more=1)
    life.memory(60, Level.CRITICAL, Level.CRITICAL, left=4)

    assert len(life.waiting()) == told + 1
    assert headlines(life)[-1].endswith("; other paused jobs: 1")
    life.end()


def test_after_a_restart_the_resumption_is_announced(tmp_path: Path) -> None:
    story(tmp_path).end()
    life = Life(tmp_path)
    (left,) = life.manager.left_open
    assert left.paused is not None

    outcome = {"outcome": OUTCOMES["restart"]}
    life.manager.report(brake_row(left.resource, life.clock.wall(), life.clock.mono(), (), outcome))
    life.memory(3, Level.OK, Level.OK, left=60)
    (one,) = life.manager.standing()
    assert one.incident.paused is None
    assert headlines(life)[-1] == "A paused job resumed because wslgpud stopped"
    life.end()
