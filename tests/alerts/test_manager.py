"""From a tick to rows, messages and the score, over restarts, with the real store."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.alerts.test_before_start import BOOT, Machine
from tests.alerts.ticks import START, fold, oom_kill, tick
from wslgpud.alerts import incidents, look_back
from wslgpud.alerts.channels import Channel, DeliveryError
from wslgpud.alerts.dispatcher import rendered
from wslgpud.alerts.manager import HISTORY_SECONDS, AlertManager, Control, ControlFile, Installation, Silence
from wslgpud.alerts.messages import compose
from wslgpud.alerts.report import report
from wslgpud.alerts.rules import KILLED_BEFORE, LASTING
from wslgpud.config import Alerts
from wslgpud.host import Host
from wslgpud.model import Forecast, Level, Reading, Transition
from wslgpud.risk.risk_metrics import CAPACITY, HEADROOM
from wslgpud.store import Reader, Store
from wslgpud.words import ENGLISH, Message

ROOT = Path(__file__).parents[2]
OK, WARNING, CRITICAL = Level.OK, Level.WARNING, Level.CRITICAL


class Clock:
    """Time as the test says."""

    def __init__(self) -> None:
        self.t = 0.0
        self.jump = 0.0

    def wall(self) -> float:
        return START + self.t + self.jump

    def mono(self) -> float:
        return 1000.0 + self.t


class Recorder(Channel):
    """A channel that records its messages, and is down on request."""

    def __init__(self, name: str = "people", *, human: bool = True) -> None:
        self.name = name
        self.human = human
        self.down = False
        self.got: list[Mapping[str, Any]] = []
        self.changed = threading.Condition()

    def send(self, message: Mapping[str, Any]) -> None:
        if self.down:
            raise DeliveryError("down")
        with self.changed:
            self.got.append(message)
            self.changed.notify()

    def wait_for(self, count: int) -> list[Mapping[str, Any]]:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.got) >= count, timeout=180), self.got
        return self.got

    @property
    def kinds(self) -> list[str]:
        return [m["kind"] for m in self.got]


class Life:
    """One run of the daemon's alerting half: a store, a manager, and channels that do not run by themselves."""

    def __init__(
        self, folder: Path, *channels: Recorder, clock: Clock | None = None, language: str = "en", **settings: Any
    ) -> None:
        self.clock, self.folder = clock or Clock(), folder
        self.channels = channels or (Recorder(),)
        self.store = Store(folder / "wslgpud.db", boot_id="boot", clock=self.clock)
        run = self.store.previous_run
        self.manager = AlertManager(
            Alerts(**settings),
            self.channels,
            self.store,
            self.clock,
            Installation("pc", folder, folder, language),
            rows=self.store.reader.transitions(),
            unseen_since_wall=float("inf") if run is None else run.stopped_wall or run.started_wall,
        )

    def memory(self, t: float, old: Level, new: Level, *, eta: float | None = None, left: int = 50) -> None:
        self.clock.t = t
        forecast = Forecast("ram", new, left, 100, eta_seconds=eta, who="python (pid 7)", who_kind="process")
        row = Transition(self.clock.wall(), self.clock.mono(), "ram", "memory_exhaustion", old, new, forecast=forecast)
        self.manager.tick(self.tick(), [forecast], [row] if old != new else [])

    def tick(self, *readings: Reading, **more: Any) -> Any:
        snapshot = tick(self.clock.t, *readings, **more)
        return replace(snapshot, wall=self.clock.wall(), mono=self.clock.mono())

    def kill(self, t: float, victim: str = "python") -> None:
        self.clock.t = t
        self.manager.tick(self.tick(events=(oom_kill(victim, wall=self.clock.wall()),)), [], [])

    def waiting(self, channel: str = "people") -> list[Mapping[str, Any]]:
        return [rendered(d.payload, ENGLISH) for d in self.store.outbox.unsent(channel)]

    def rows(self) -> list[tuple[int, Transition]]:
        assert self.store.flush()
        return self.store.reader.transitions()

    def end(self) -> None:
        self.manager.close(5)
        self.store.close()


def die(how: Callable[[Path], None], folder: Path) -> None:
    """Do that in a separate process, which is then killed without a chance to clean up."""
    code = f"from pathlib import Path; from {__name__} import {how.__name__} as end; end(Path({str(folder)!r}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False)
    assert done.returncode == -signal.SIGKILL


def warn_and_die(folder: Path) -> None:
    """Write the row and its messages, and die before any channel was asked."""
    Life(folder).memory(1, OK, CRITICAL)
    os.kill(os.getpid(), signal.SIGKILL)


def grow_and_die(folder: Path) -> None:
    """Grow for a minute, warn, and die."""
    life = Life(folder)
    for t in range(60):
        life.memory(t, OK if t < 50 else WARNING, OK if t < 49 else WARNING)
        left = Reading(HEADROOM, (60 - t) << 30, ("ram",)), Reading(CAPACITY, 64 << 30, ("ram",))
        life.store.append(life.tick(*left), urgent=True)
    life.store.flush()
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture
def life(tmp_path: Path) -> Iterator[Life]:
    one = Life(tmp_path)
    yield one
    one.end()


def test_an_incident_is_told_from_its_opening_to_its_end(life: Life) -> None:
    life.memory(1, OK, WARNING)
    life.memory(2, WARNING, CRITICAL)
    life.memory(3, CRITICAL, WARNING)
    life.memory(4, WARNING, OK)
    life.manager.dispatcher.start()
    (message,) = life.channels[0].wait_for(1)
    (incident,) = fold(life.rows())

    assert message["headline"].startswith("3 alerts: RAM is running low: python (pid 7)")
    assert message["count"] == 3
    assert message["incident"] == incident.id
    assert (incident.worst, incident.closed_wall) == (CRITICAL, START + 4)


def test_each_channel_gets_its_own_levels(tmp_path: Path) -> None:
    calm, all_ = Recorder("calm"), Recorder("all", human=False)
    life = Life(tmp_path, calm, all_, channel_levels=("calm=critical",), minimum_level="warning")
    life.memory(1, OK, Level.INFO)
    life.memory(2, Level.INFO, WARNING)
    life.memory(3, WARNING, OK)
    life.memory(4, OK, CRITICAL)
    life.memory(5, CRITICAL, OK)

    assert [m["kind"] for m in life.waiting("all")] == ["escalated", "closed", "opened", "closed"]
    assert [m["kind"] for m in life.waiting("calm")] == ["opened", "closed"]
    life.end()


def test_an_all_clear_reaches_everyone_who_was_told_of_the_worst(tmp_path: Path) -> None:
    people, system = Recorder("people"), Recorder("system", human=False)
    life = Life(tmp_path, people, Recorder("pager"), system, channel_levels=("pager=critical",))
    life.memory(1, OK, WARNING, left=5)
    life.memory(2, WARNING, OK, left=90)  # the pager has heard of nothing
    life.memory(100, OK, CRITICAL, left=5)
    life.memory(101, CRITICAL, WARNING, left=40)
    life.memory(102, WARNING, OK, left=90)

    def got(channel: str) -> list[tuple[str, str]]:
        return [(m["kind"], m["level"]) for m in life.waiting(channel)]

    both = [("opened", "critical"), ("eased", "warning"), ("closed", "ok")]
    assert got("pager") == both
    assert got("people") == got("system") == [("opened", "warning"), ("closed", "ok"), *both]
    assert life.waiting("pager")[-1]["evidence"].startswith("memory given back")
    assert life.manager.standing() == life.manager.reminders("system") == []
    life.end()


def test_people_can_opt_out_of_all_clears_but_systems_cannot(tmp_path: Path) -> None:
    life = Life(tmp_path, Recorder("people"), Recorder("system", human=False), resolved=False)
    life.memory(1, OK, WARNING)
    life.memory(2, WARNING, OK)

    assert [m["kind"] for m in life.waiting("people")] == ["opened"]
    assert [m["kind"] for m in life.waiting("system")] == ["opened", "closed"]
    life.end()


def test_an_alert_repeats_each_time_half_the_time_left_is_gone(life: Life) -> None:
    life.memory(1, OK, WARNING, eta=40000)
    for t in range(2, 5900, 100):
        life.memory(t, WARNING, WARNING, eta=40000 - 6.7 * t)

    repeated = [m for m in life.waiting() if m["kind"] == "repeated"]
    times = [40000.0, *(m["eta_seconds"]["middle"] for m in repeated)]
    assert len(times) == 4
    assert all(later <= earlier / 2 for earlier, later in pairwise(times))
    assert repeated[0]["headline"].startswith("RAM full in about ")
    assert [row.old for _, row in life.rows()] == [OK, *[WARNING] * 3], "each is part of the incident's story"
    assert len(fold(life.rows())) == 1


def test_each_incident_starts_its_own_countdown_to_a_repeat(life: Life) -> None:
    life.memory(1, OK, CRITICAL, eta=10)
    life.memory(2, CRITICAL, OK)
    life.memory(100, OK, WARNING)
    life.memory(101, WARNING, WARNING, eta=300)
    life.memory(730, WARNING, WARNING, eta=100)

    assert life.waiting()[-1]["kind"] == "repeated"


def test_the_end_of_a_kill_goes_to_alerting_systems_not_people(tmp_path: Path) -> None:
    people, system = Recorder(), Recorder("system", human=False)
    life = Life(tmp_path, people, system)
    life.kill(1)
    for t in range(2, 700):
        life.clock.t = t
        life.manager.tick(life.tick(), [], [])

    assert [m["kind"] for m in life.waiting("people")] == ["opened"]
    assert [m["kind"] for m in life.waiting("system")] == ["opened", "closed"]
    life.end()


def test_silences_and_acknowledgements_apply_without_a_restart(life: Life, tmp_path: Path) -> None:
    control = life.manager.control
    control.silence(Silence("oom_kill", "*", START + 1000), START)
    life.kill(1)
    life.memory(2, OK, WARNING, eta=1000)
    (incident,) = [one.incident for one in life.manager.standing()]
    control.acknowledge(incident.id)
    life.memory(700, WARNING, WARNING, eta=100)
    life.memory(710, WARNING, CRITICAL)

    assert [(m["rule"], m["kind"]) for m in life.waiting()] == [
        ("memory_exhaustion", "opened"),
        ("memory_exhaustion", "escalated"),
    ]
    assert len(life.rows()) == 4


def test_commands_at_the_same_moment_undo_nothing_of_each_other(tmp_path: Path) -> None:
    control = ControlFile(tmp_path)
    with ThreadPoolExecutor(8) as pool:
        for number in range(100):
            pool.submit(control.acknowledge, number)
            pool.submit(control.silence, Silence(f"rule{number}", "*", START + 60), START)
        pool.submit(control.see, 7)

    assert set(control.now.acknowledged) == set(range(100))
    assert len(control.now.silences) == 100
    assert ControlFile(tmp_path).now == control.now
    assert control.now.seen_id == 7


def test_a_broken_control_file_silences_nothing_and_is_told(tmp_path: Path) -> None:
    said: list[str] = []
    (tmp_path / "alerts.json").write_text('{"silences": [{"rule": 1')

    assert ControlFile(tmp_path, said.append).now == Control()
    assert len(said) == 1


def test_an_alert_killed_before_delivery_is_sent_by_the_next_run(tmp_path: Path) -> None:
    die(warn_and_die, tmp_path)
    life = Life(tmp_path)
    (incident,) = [one.incident for one in life.manager.standing()]
    life.manager.dispatcher.start()
    (message,) = life.channels[0].wait_for(1)

    assert (message["level"], message["incident"]) == ("critical", incident.id)
    life.end()


def test_open_incidents_continue_after_a_restart_until_they_end(tmp_path: Path) -> None:
    clock = Clock()
    first = Life(tmp_path, clock=clock)
    first.memory(1, OK, CRITICAL)
    first.end()
    second = Life(tmp_path, clock=clock)
    second.memory(10, OK, WARNING)  # its engine began anew
    second.memory(11, WARNING, OK)
    second.end()

    third = Life(tmp_path, clock=clock)
    rows = third.rows()
    third.end()
    (incident,) = fold(rows)

    assert [t.new for _, t in rows] == [CRITICAL, WARNING, OK]
    assert incident.closed_wall == START + 11


def test_an_incident_open_for_months_survives_a_restart(tmp_path: Path) -> None:
    first = Life(tmp_path)
    first.memory(1, OK, WARNING)
    first.memory(2, WARNING, OK)
    row = Transition(START, 3.0, "gpu0", "vram_stress", OK, CRITICAL, "x", facts={"text": "wrong data"})
    first.manager.report(row)
    first.manager.tick(first.tick(), [], [])
    first.end()
    first.clock.t = 3 * HISTORY_SECONDS
    store = Store(tmp_path / "wslgpud.db", boot_id="boot", clock=first.clock)
    rows = [*store.reader.changes(first.clock.wall() - HISTORY_SECONDS, LASTING)]
    place = Installation("pc", tmp_path, tmp_path, "en")
    manager = AlertManager(Alerts(), first.channels, store, first.clock, place, rows=rows)

    assert [one.incident.rule for one in manager.standing()] == [t.rule for _, t in rows] == ["vram_stress"]
    manager.report(replace(row, wall=first.clock.wall(), old=CRITICAL, new=OK))
    manager.tick(first.tick(), [], [])
    assert store.flush()
    assert [i.closed_wall is None for i in fold(store.reader.transitions())] == [False, False]
    manager.close(5)
    store.close()


def test_an_unchanged_open_alert_is_renewed_after_a_restart(tmp_path: Path) -> None:
    first = Life(tmp_path)
    first.memory(1, OK, CRITICAL)
    first.end()

    second = Life(tmp_path, clock=first.clock)
    second.memory(10, OK, CRITICAL)  # its engine began anew, and finds what is known

    assert len(second.rows()) == 1
    (renewed,) = second.manager.reminders("people")
    assert (renewed["level"], renewed["incident"]) == ("critical", second.rows()[0][0])
    second.end()


def test_last_nights_kill_is_closed_when_the_daemon_starts(tmp_path: Path) -> None:
    first = Life(tmp_path)
    first.kill(1, "cc1plus")
    first.end()
    first.clock.t = 8 * 3600.0

    second = Life(tmp_path, clock=first.clock)

    second.manager.tick(second.tick(), [], [])
    assert second.manager.standing() == []
    assert second.manager.reminders("people") == []
    assert [m["kind"] for m in second.waiting()] == ["opened"], "its end is worth no message"
    second.end()


@pytest.mark.parametrize("hours", [0.1, 8])
def test_a_kill_while_the_daemon_was_down_is_alerted(tmp_path: Path, hours: float) -> None:
    first = Life(tmp_path)
    first.kill(1, "cc1plus")
    first.end()
    first.clock.t = hours * 3600

    second = Life(tmp_path, clock=first.clock)
    second.kill(hours * 3600 + 1, "python")

    said = [m["headline"] for m in second.waiting()]
    assert len(said) == 2
    assert "python" in said[1]
    second.end()


def test_a_silence_suspends_renewals_of_an_open_alert(tmp_path: Path) -> None:
    life = Life(tmp_path)

    def renewed(t: float) -> int:
        life.memory(t, CRITICAL, CRITICAL)
        return len(life.manager.reminders("people"))

    life.memory(1, OK, CRITICAL)
    assert renewed(2) == 1
    life.manager.control.silence(Silence("memory_exhaustion", "*", START + 100), START)
    assert renewed(70) == 0
    assert renewed(200) == 1
    life.end()


def test_a_channel_gets_no_renewals_of_alerts_below_its_level(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Renewed(Recorder):
        refresh_seconds = 0.01

        def refresh(self, messages: Sequence[Mapping[str, Any]]) -> None:
            with self.changed:
                self.got += messages
                self.changed.notify()

    monkeypatch.setattr(Clock, "mono", lambda self: time.monotonic())
    system = Renewed("system", human=False)
    life = Life(tmp_path, Recorder(), system, channel_levels=("system=critical",))
    life.memory(1, OK, WARNING)
    life.manager.tick(life.tick(events=(oom_kill(wall=life.clock.wall()),)), [], [])
    life.manager.dispatcher.start()

    assert {m["rule"] for m in system.wait_for(4)} == {"oom_kill"}
    life.end()


def test_an_alert_that_outlasts_its_silence_is_sent_once_it_ends(life: Life) -> None:
    for place, seconds in (("*", 1000), ("ram", 2000)):
        life.manager.control.silence(Silence("*", place, START + seconds), START)
    life.kill(1)
    life.memory(2, OK, WARNING, eta=1000)
    told = []
    for t in range(900, 3000, 100):
        life.memory(t, WARNING, WARNING, eta=700)
        told.append((t, [(m["rule"], m["kind"]) for m in life.waiting()]))

    warned = [("memory_exhaustion", "opened")]
    assert told == [(t, warned if t >= 2000 else []) for t in range(900, 3000, 100)]
    assert life.waiting()[0]["eta_seconds"] == {"middle": 700.0}, "what is so now, not what was so then"


@pytest.mark.parametrize("restarts", [False, True])
def test_an_alert_told_before_its_silence_is_told_once_after(tmp_path: Path, restarts: bool) -> None:
    life = Life(tmp_path)
    life.memory(1, OK, WARNING)
    life.manager.control.silence(Silence("memory_exhaustion", "*", START + 100), START)
    life.memory(2, WARNING, WARNING)
    if restarts:
        life.end()
        life = Life(tmp_path, clock=life.clock)
    told = []
    for t in (50, 99, 101, 102, 200):
        life.memory(t, WARNING, WARNING)
        told.append(len(life.waiting()))
    shown = report(life.store.reader, life.rows()[0][0], ENGLISH)
    life.end()

    assert told == [1, 1, 2, 2, 2]
    assert shown is not None
    assert len(shown.document["messages"]) == 2


@pytest.mark.parametrize("then", [WARNING, CRITICAL])
def test_news_at_the_end_of_a_silence_is_told_once(life: Life, then: Level) -> None:
    life.memory(1, OK, WARNING, eta=4000)
    life.manager.control.silence(Silence("*", "*", START + 1200), START)
    life.memory(1199, WARNING, WARNING, eta=4000)
    life.memory(1201, WARNING, then, eta=1000)
    life.memory(1202, then, then, eta=1000)

    assert [m["kind"] for m in life.waiting()] == ["opened", "repeated" if then == WARNING else "escalated"]


@pytest.mark.parametrize(("goes_on", "told"), [(True, ["opened", "escalated"]), (False, ["opened", "closed"])])
def test_a_silence_that_ends_while_no_daemon_runs_hides_nothing(
    tmp_path: Path, goes_on: bool, told: Sequence[str]
) -> None:
    first = Life(tmp_path)
    first.memory(1, OK, WARNING)
    first.manager.control.silence(Silence("*", "*", START + 100), START)
    first.memory(50, WARNING, CRITICAL)
    first.end()
    first.clock.t = 150
    life = Life(tmp_path, clock=first.clock)
    for t in (151, 180, 211, 212):
        life.memory(t, CRITICAL, CRITICAL if goes_on else OK, left=50 if goes_on else 90)
    kinds = [m["kind"] for m in life.waiting()]
    life.end()

    assert kinds == told


@pytest.mark.parametrize(("then", "told"), [(WARNING, 1), (CRITICAL, 2)])
def test_an_acknowledged_alert_is_told_after_a_silence_if_worse(life: Life, then: Level, told: int) -> None:
    life.memory(1, OK, WARNING)
    life.manager.control.acknowledge(life.manager.standing()[0].incident.id)
    life.manager.control.silence(Silence("*", "*", START + 100), START)
    life.memory(50, WARNING, then)
    life.memory(101, then, then)

    assert len(life.waiting()) == told


def test_a_report_after_a_restart_is_as_good_as_before(tmp_path: Path) -> None:
    first = Life(tmp_path)
    first.kill(1, "cc1plus")
    (incident,) = fold(first.rows())
    reader = Reader(str(tmp_path / "wslgpud.db"))
    before = report(reader, incident.id, ENGLISH)
    first.end()
    second = Life(tmp_path)
    after = report(reader, incident.id, ENGLISH)
    again = second.manager.standing()[0].incident.last
    second.end()
    reader.close()

    assert before is not None
    assert after is not None
    assert (before.document, after.document["facts"]["victim"]) == (after.document, "cc1plus")
    assert after.document["evidence"] == ("It held 5.0 GiB of its own and 0 KiB of shared memory; RAM was used up.")
    assert compose(again).headline == compose(incident.first).headline


def test_a_clock_jump_in_an_incident_loses_and_repeats_nothing(tmp_path: Path) -> None:
    life = Life(tmp_path, Recorder("system", human=False))
    life.memory(1, OK, WARNING)
    life.clock.jump = -7200.0
    life.memory(2, WARNING, CRITICAL)
    life.clock.jump = 7200.0
    life.memory(3, CRITICAL, OK)
    life.manager.dispatcher.start()
    life.channels[0].wait_for(3)
    assert len(fold(life.rows())) == 1

    assert life.channels[0].kinds == ["opened", "escalated", "closed"]
    assert [t.new for _, t in sorted(life.rows(), key=lambda row: row[0])] == [WARNING, CRITICAL, OK]
    life.end()


def test_a_report_on_a_day_long_incident_shows_its_last_hours(life: Life) -> None:
    begun, hour = life.clock.wall(), 3600
    life.memory(0, OK, WARNING)
    for t in range(0, 24 * hour, 600):
        life.clock.t = t
        left = Reading(HEADROOM, 50, ("ram",)), Reading(CAPACITY, 100, ("ram",))
        life.store.append(life.tick(*left))
    life.rows()

    found = report(life.store.reader, life.manager.standing()[0].incident.id, ENGLISH)

    assert found is not None
    assert found.end - begun == pytest.approx(24 * hour - 600, abs=60)
    assert found.end - found.start == pytest.approx(6 * hour, abs=700)


def test_an_incident_has_a_report_even_if_the_clock_went_back(life: Life) -> None:
    life.memory(1, OK, WARNING)
    life.store.append(life.tick(Reading(HEADROOM, 5, ("ram",)), Reading(CAPACITY, 9, ("ram",))))
    life.clock.jump = -7200.0
    life.memory(2, WARNING, OK)
    (incident,) = fold(life.rows())

    found = report(life.store.reader, incident.id, ENGLISH)

    assert found is not None
    assert {step["level"] for step in found.document["levels"]} == {"warning", "ok"}
    assert found.curves


def test_a_channel_that_was_down_catches_up_and_delays_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wslgpud.alerts.dispatcher.BACK_OFF_SECONDS", (0.01,))
    monkeypatch.setattr(Clock, "mono", lambda self: time.monotonic())
    down, up = Recorder("down", human=False), Recorder("up", human=False)
    down.down = True
    life = Life(tmp_path, down, up)
    life.manager.dispatcher.start()
    for n in range(10):
        life.memory(n, *((OK, WARNING) if n % 2 == 0 else (WARNING, OK)))
    up.wait_for(10)
    assert down.got == []
    down.down = False
    life.manager.dispatcher.wake()
    down.wait_for(10)

    assert down.kinds == up.kinds == ["opened", "closed"] * 5
    assert life.manager.dispatcher.counts["up", "sent"] == 10
    assert life.manager.dispatcher.counts["down", "failed"] >= 1
    life.end()


def test_the_score_counts_kills_warned_in_time_and_false_alarms(life: Life) -> None:
    life.memory(1, OK, WARNING)
    life.kill(31)
    life.memory(32, WARNING, OK)
    for t in range(40, 700, 2):
        life.clock.t = t
        life.manager.tick(life.tick(), [], [])
    life.kill(1500, "unseen")
    life.memory(3000, OK, WARNING, left=60)
    life.memory(3001, WARNING, OK, left=70)
    life.memory(4000, OK, WARNING, left=60)
    life.memory(4001, WARNING, CRITICAL, left=5)
    life.memory(4002, CRITICAL, OK, left=70)

    found = {(r.spec.name, *r.labels): r.value for r in life.manager.readings()}
    assert found[incidents.EXHAUSTIONS.name, "yes"] == 1
    assert found[incidents.EXHAUSTIONS.name, "no"] == 1
    assert found[incidents.FALSE_ALARMS.name,] == 1


def test_a_warning_before_the_machine_died_is_no_false_alarm(tmp_path: Path) -> None:
    life = Life(tmp_path)
    life.memory(1, OK, WARNING, left=60)
    life.end()
    clock = life.clock
    clock.t = 100
    life = Life(tmp_path, clock=clock)
    row = Transition(clock.wall(), clock.mono(), "machine", "unclean_end", OK, WARNING)
    life.manager.report(row)
    for t in (101, 170):
        clock.t = t
        life.manager.tick(life.tick(), [], [])

    assert [one.incident.rule for one in life.manager.standing()] == ["unclean_end"]
    assert [r.value for r in life.manager.readings() if r.spec is incidents.FALSE_ALARMS] == [0]
    life.end()


def test_a_kill_before_the_first_start_is_stored_not_sent(life: Life, tmp_path: Path) -> None:
    assert look_back.record_earlier_kills(Machine(tmp_path, [], counted=2), life.store, BOOT)
    life.manager.tick(life.tick(), [], [])

    assert [(row.rule, row.old, row.new) for _, row in life.rows()] == [
        (KILLED_BEFORE, OK, WARNING),
        (KILLED_BEFORE, WARNING, OK),
    ]
    assert life.waiting() == []
    assert list(life.manager.standing()) == []


class TestBlackBox:
    def test_a_machine_that_died_is_reported_with_what_was_going_on(self, tmp_path: Path) -> None:
        clock = Clock()
        die(grow_and_die, tmp_path)
        clock.t = 300
        life = Life(tmp_path, clock=clock)
        run = life.store.previous_run
        assert run is not None
        row, kept = look_back.examine(Host("/nowhere"), life.store, run, "another boot", life.manager.left_open)

        assert (row.rule, row.resource, row.new) == ("unclean_end", "machine", WARNING)
        assert "RAM is running low" in str(compose(row).evidence[0])
        assert abs(float(row.facts["ended_wall"]) - (START + 59)) < 2
        assert kept.events[0].kind == look_back.EVENT
        life.end()

    def test_the_kill_before_the_machine_died_is_named_after_restart(self, tmp_path: Path) -> None:
        first = Life(tmp_path)
        first.kill(1, "cc1plus")
        first.end()
        first.clock.t = 8 * 3600.0
        life = Life(tmp_path, clock=first.clock)
        run = type("Run", (), {"stopped_wall": START + 5, "started_wall": START, "boot_id": "boot"})
        row, _ = look_back.examine(Host("/nowhere"), life.store, run, "another boot", life.manager.left_open)

        assert row.new == WARNING
        assert "cc1plus" in str(row.facts["trouble"])
        life.end()

    def test_each_unclean_end_is_alerted_with_its_own_report(self, tmp_path: Path) -> None:
        clock = Clock()
        for t in (1, 300):
            clock.t = t
            life = Life(tmp_path, clock=clock)
            run = type("Run", (), {"stopped_wall": START + t - 1, "started_wall": START, "boot_id": "boot"})
            row, kept = look_back.examine(Host("/nowhere"), life.store, run, f"boot {t}", life.manager.left_open)
            life.store.append(kept, urgent=True)
            life.manager.report(replace(row, wall=clock.wall(), mono=clock.mono(), new=WARNING))
            life.manager.tick(life.tick(), [], [])
            said, rows = life.waiting(), life.rows()
            life.end()

        assert [m["kind"] for m in said] == ["opened", "opened"]
        assert [(i.opened_wall, i.closed_wall) for i in fold(rows)] == [(START + 1, START + 1), (START + 300, None)]

    @pytest.mark.parametrize("rule", ["unclean_end", "vram_stress", "source_stale"])
    def test_what_ends_no_machine_makes_no_warning_of_its_end(self, tmp_path: Path, rule: str) -> None:
        life = Life(tmp_path)
        row = Transition(
            life.clock.wall(), life.clock.mono(), "x", rule, OK, WARNING, Message("told"), facts={"last": "x"}
        )
        life.manager.report(row)
        life.manager.tick(life.tick(), [], [])
        life.end()
        life.clock.t = 300
        life = Life(tmp_path, clock=life.clock)
        run = type("Run", (), {"stopped_wall": START, "started_wall": START, "boot_id": "boot"})

        end, _ = look_back.examine(Host("/nowhere"), life.store, run, "another boot", life.manager.left_open)

        assert [i.rule for i in life.manager.left_open] == [rule]
        assert (end.new, "trouble" in end.facts) == (Level.INFO, False)
        life.end()

    def test_a_daemon_killed_on_a_calm_machine_is_worth_a_note(self, tmp_path: Path) -> None:
        clock = Clock()
        life = Life(tmp_path, clock=clock)
        run = type("Run", (), {"stopped_wall": START, "started_wall": START, "boot_id": "boot"})
        row, _ = look_back.examine(Host("/nowhere"), life.store, run, "boot", [])

        assert (row.resource, row.new) == ("daemon", Level.INFO)
        life.end()

    def test_only_crash_dumps_made_since_the_last_run_are_found(self, tmp_path: Path) -> None:
        folder = tmp_path / "mnt/c/Users/me/AppData/Local/Temp/wsl-crashes"
        folder.mkdir(parents=True)
        (folder / "kernel-panic-1-vm.txt").write_text("")
        (folder / "old.dmp").write_text("")
        os.utime(folder / "old.dmp", (1, 1))

        (found,) = look_back.crash_dumps(Host(tmp_path), time.time() - 3600)
        assert found.endswith("kernel-panic-1-vm.txt")

    @pytest.mark.parametrize("link", ["AppData", "AppData/Local/Temp", "AppData/Local/Temp/wsl-crashes"])
    def test_a_link_in_a_windows_users_folder_leads_to_no_names(self, tmp_path: Path, link: str) -> None:
        (tmp_path / "private/Local/Temp/wsl-crashes/wsl-crashes").mkdir(parents=True)
        for secret in (tmp_path / "private").rglob("wsl-crashes"):
            (secret / "secret").touch()
        place = tmp_path / "mnt/c/Users/me" / link
        place.parent.mkdir(parents=True)
        place.symlink_to(
            next(iter((tmp_path / "private").rglob("wsl-crashes"))) if "/" in link else tmp_path / "private"
        )

        assert look_back.crash_dumps(Host(tmp_path), 0.0) == []


def test_messages_for_a_channel_no_longer_configured_are_dropped(tmp_path: Path) -> None:
    clock = Clock()
    first = Life(tmp_path, Recorder("old"), clock=clock)
    first.memory(1, OK, WARNING)
    first.end()
    second = Life(tmp_path, Recorder("new"), clock=clock)

    assert second.store.outbox.unsent() == []
    second.end()


@pytest.mark.parametrize(("hours", "waiting"), [(0.0, ["windows_toast"]), (23.9, ["windows_toast"]), (24.1, [])])
def test_toasts_wait_up_to_a_day_while_windows_is_unreachable(tmp_path: Path, hours: float, waiting: list[str]) -> None:
    first = Life(tmp_path, Recorder("windows_toast"))
    first.memory(1, OK, WARNING)
    first.end()
    first.clock.jump = hours * 3600.0
    without = Life(tmp_path, Recorder("other"), clock=first.clock)

    assert [d.channel for d in without.store.outbox.unsent()] == waiting
    without.end()


class Slow(Recorder):
    """A channel that takes a while to be ready to send."""

    def __init__(self) -> None:
        super().__init__()
        self.needed: list[bool] = []

    def keep_warm(self, *, needed: bool) -> None:
        self.needed.append(needed)


def test_a_slow_channel_is_warmed_up_before_a_warning_is_due(tmp_path: Path) -> None:
    slow = Slow()
    life = Life(tmp_path, slow)
    for t, (old, new) in enumerate([(OK, OK), (OK, Level.INFO), (Level.INFO, WARNING), (WARNING, OK)]):
        life.memory(t, old, new)
    life.end()

    assert slow.needed == [False, True, True, False]


def test_the_log_shows_alerts_in_the_chosen_language(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    life = Life(tmp_path, language="zh")
    life.kill(1)
    life.end()

    assert "严重：内存不足，内核终止了 python (pid 7)" in caplog.text


DAY = 86400.0


def test_counts_of_warnings_and_false_alarms_survive_restarts(tmp_path: Path) -> None:
    life = Life(tmp_path)
    life.memory(0, Level.OK, Level.WARNING, eta=60, left=50)
    life.memory(60, Level.WARNING, Level.OK, left=90)  # there was never less than half
    assert life.manager.tally() is None  # of a minute nothing can be said
    life.memory(3600, Level.OK, Level.WARNING, eta=20, left=5)
    life.memory(3700, Level.WARNING, Level.OK, left=90)
    life.clock.t = 3 * DAY
    told = life.manager.tally()
    life.store.close()

    clock = Clock()
    clock.t = 4 * DAY
    again = Life(tmp_path, clock=clock)
    clock.t = 5 * DAY
    after = again.manager.tally()
    again.store.close()

    assert str(told) == "3 d watched: 2 memory warnings, 1 needless"
    # A day in which nobody watched is no day without a warning.
    assert str(after) == "4 d watched: 2 memory warnings, 1 needless"


def test_what_was_warned_of_a_month_ago_is_no_longer_counted(tmp_path: Path) -> None:
    life = Life(tmp_path)
    life.memory(0, Level.OK, Level.WARNING, eta=60, left=50)
    life.memory(60, Level.WARNING, Level.OK, left=90)
    life.clock.t = 31 * DAY

    assert str(life.manager.tally()) == "30 d watched: 0 memory warnings, 0 needless"
    life.store.close()


def test_the_number_of_warnings_is_told_after_the_first_full_day(tmp_path: Path) -> None:
    life = Life(tmp_path)
    life.clock.t = DAY - 1
    early = life.manager.tally()
    life.clock.t = DAY

    assert (early, str(life.manager.tally())) == (None, "24 h watched: 0 memory warnings, 0 needless")
    life.store.close()
