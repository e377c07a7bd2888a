"""A lost job stays said until somebody has seen it: who, when, and how early that was warned of."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.alerts.test_manager import Life
from tests.alerts.ticks import START, fold
from wslgpud.alerts.messages import lost
from wslgpud.model import Event, Forecast, Level, Transition
from wslgpud.words import translator

OK, WARNING, CRITICAL = Level.OK, Level.WARNING, Level.CRITICAL
DAY = 86400.0


@pytest.fixture
def life(tmp_path: Path) -> Iterator[Life]:
    one = Life(tmp_path)
    yield one
    one.end()


def said(life: Life, code: str = "en") -> str:
    unseen = life.manager.unseen()
    return "" if unseen is None else translator(code).text(lost(unseen.incident, life.clock.wall()))


def leak_and_kill(life: Life, t: float) -> None:
    life.memory(t, OK, WARNING)
    life.memory(t + 36, WARNING, CRITICAL)
    life.kill(t + 40)
    life.memory(t + 41, CRITICAL, OK, left=90)


def clock(t: float) -> str:
    return translator("en").fact("_clock", START + t)


def test_it_says_who_when_and_how_early_it_was_warned_of(life: Life) -> None:
    leak_and_kill(life, 1)

    assert said(life) == f"python (pid 7) was killed for lack of memory at {clock(41)}, warned 40 s before"
    assert said(life, "zh") == f"python (pid 7) 因内存不足被终止，时间 {clock(41)}，提前 40 秒告警"


def test_a_kill_without_a_warning_says_so(life: Life) -> None:
    life.kill(5)

    assert said(life) == f"python (pid 7) was killed for lack of memory at {clock(5)}, not warned"


def test_after_a_day_it_has_a_date(life: Life) -> None:
    life.kill(5)
    life.clock.t += DAY

    assert f" on {translator('en').fact('_wall', START + 5)}, " in said(life)


def test_it_stays_for_days_and_over_a_restart(tmp_path: Path) -> None:
    first = Life(tmp_path)
    leak_and_kill(first, 1)
    first.end()
    first.clock.t = 3 * DAY
    second = Life(tmp_path, clock=first.clock)

    assert said(second).startswith("python (pid 7) was killed for lack of memory on ")
    second.end()


@pytest.mark.parametrize("restarted", [False, True])
def test_once_seen_it_is_gone_for_good(tmp_path: Path, restarted: bool) -> None:
    life = Life(tmp_path)
    leak_and_kill(life, 1)
    (incident,) = fold(life.rows())
    assert life.manager.see(incident.id)
    if restarted:
        life.end()
        life = Life(tmp_path, clock=life.clock)

    assert life.manager.unseen() is None
    assert not life.manager.see(incident.id), "it waits for nobody"
    life.end()


def test_of_several_the_newest_is_told_and_seen_with_all(life: Life) -> None:
    leak_and_kill(life, 1)
    leak_and_kill(life, 1000)
    unseen = life.manager.unseen()

    assert unseen is not None
    assert (unseen.incident.opened_wall, unseen.others) == (START + 1000, 1)
    assert life.manager.see(unseen.incident.id)
    assert life.manager.unseen() is None
    life.kill(5000)
    assert said(life), "another kill of the same incident"


def test_only_what_waits_can_be_marked_as_seen(life: Life) -> None:
    life.memory(1, OK, CRITICAL)
    (standing,) = life.manager.standing()

    assert not life.manager.see(standing.incident.id)
    assert life.manager.control.now.seen_id == -1


def test_who_acknowledged_a_warning_has_not_seen_the_kill(life: Life) -> None:
    life.memory(1, OK, WARNING)
    (standing,) = life.manager.standing()
    life.manager.control.acknowledge(standing.incident.id)
    life.kill(30)

    assert said(life)


@pytest.mark.parametrize(("worst", "told"), [(CRITICAL, True), (Level.INFO, False)])
def test_a_card_without_room_is_a_loss_if_it_was_warned_of(life: Life, worst: Level, told: bool) -> None:
    card = Forecast("gpu0", worst, 5, 100, who="train.py (pid 9)", who_pid=9)
    ended = replace(card, level=OK, headroom_bytes=90, cause="refused", who="", window_seconds=1.0)
    for t, old, forecast in ((1, OK, card), (31, worst, ended)):
        life.clock.t = t
        facts = {"ended_wall": START + 30.0} if forecast is ended else {}
        now = life.clock.wall(), life.clock.mono()
        row = Transition(*now, "gpu0", "memory_exhaustion", old, forecast.level, forecast=forecast, facts=facts)
        life.manager.tick(life.tick(), [forecast], [row])

    assert said(life) == (
        f"train.py (pid 9) ran out of memory on GPU 0 at {clock(30)}, warned 29 s before" if told else ""
    )


def test_a_kill_by_an_oom_daemon_is_a_loss_too(life: Life) -> None:
    life.clock.t = 3
    killed = Event("oom_daemon_kill", life.clock.wall(), "x", {"daemon": "earlyoom", "victim": "cc1plus", "pid": 3})
    life.manager.tick(life.tick(events=(killed,)), [], [])

    assert said(life) == f"earlyoom killed cc1plus at {clock(3)}"


def test_a_job_that_ends_by_itself_is_no_loss(life: Life) -> None:
    life.memory(1, OK, CRITICAL)
    life.memory(9, CRITICAL, OK, left=90)

    assert said(life) == ""
