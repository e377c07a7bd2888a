"""The nightly stress run: when it is due, by APScheduler's trigger, and what becomes of it."""

from __future__ import annotations

import logging
import math
import queue
import random
import re
import threading
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from wslgpud.alerts.rules import VRAM_STRESS
from wslgpud.config import ConfigError, Stress
from wslgpud.host import Host
from wslgpud.model import Reading, Snapshot, StressResult, Transition
from wslgpud.security.run_as import account_of
from wslgpud.store import Store, StoreError
from wslgpud.stress import stress_metrics
from wslgpud.stress.comparison import level_of
from wslgpud.stress.find_python import Training, remember
from wslgpud.stress.separate import AROUND_SECONDS, Asker
from wslgpud.stress.stress_run import Runner
from wslgpud.stress.telemetry import Recent

log = logging.getLogger(__name__)

OFF = "off"
#: Delay after a start when nights were missed, to let the machine settle.
CATCH_UP_SECONDS = 900.0
#: a numeric part of a crontab's fifth field
_DAYS = re.compile(r"(?<![^,])(?:\*|([0-7])(?:-([0-7]))?)(?:/([1-7]))?(?![^,])")
_NAMES = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")


def crontab(line: str) -> Any:
    """Return APScheduler's trigger for a crontab line. Raises ConfigError: it is not one."""
    from apscheduler.triggers.cron import CronTrigger  # late: without a card nobody needs its megabytes

    *fields, weekdays = line.split() or [""]
    try:
        return CronTrigger.from_crontab(" ".join([*fields, _DAYS.sub(_named, weekdays)]), timezone.utc)
    except ValueError as error:
        raise ConfigError(
            'stress.schedule: {schedule} is neither "off" nor minute hour day month weekday', schedule=repr(line)
        ) from error


def _named(part: re.Match[str]) -> str:
    """Return days of the week by name: cron counts from Sunday, APScheduler from Monday."""
    first, last, step = part.groups()
    end = last or ("6" if step or first is None else first)
    return ",".join(_NAMES[day % 7] for day in range(int(first or 0), int(end) + 1, int(step or 1))) or part[0]


def next_time(when: Any, after_wall: float) -> float:
    """Return when a trigger is next due, in the C library's time zone; infinity where it never is.

    Of an hour that summer time repeats, the first counts. The trigger takes local times for UTC: APScheduler's own zone
    is tzlocal's, which does not know rules in TZ (``CST-8``) or zones missing from its data.
    """
    local, wall = datetime.fromtimestamp(after_wall).astimezone().replace(tzinfo=timezone.utc), -math.inf
    while wall <= after_wall:
        local = when.get_next_fire_time(None, local + timedelta(microseconds=1))
        if local is None:
            return math.inf
        wall = local.replace(tzinfo=None).timestamp()
    return wall


class Nightly:
    """The daemon's stress runs. ``observe`` and ``news`` are called in its tick; a run has its own thread."""

    def __init__(
        self, settings: Stress, host: Host, state_folder: Path, history: Store, *, unit_socket: str = ""
    ) -> None:
        """Start nothing yet; with ``unit_socket`` a unit tests. Raises ConfigError: invalid schedule."""
        self._settings, self._host, self._folder, self._history = settings, host, state_folder, history
        self._recent = Recent(settings.settle_seconds)
        self._runs = tuple(self._kept().values())  # replaced as a whole: other threads read it
        self._news: queue.SimpleQueue[StressResult] = queue.SimpleQueue()
        self._runner: Runner | Asker = Runner(host, settings, state_folder, self._recent, self.runs)
        if unit_socket:
            longest = settings.settle_seconds + settings.deadline_seconds + AROUND_SECONDS
            self._runner = Asker(host.clock, unit_socket, longest, self._recent)
        if settings.schedule not in (OFF, Stress.schedule):
            crontab(settings.schedule)
        self._when: Any = None
        self._due_wall: float | None = None
        self._testing: threading.Thread | None = None
        self._last_training: Training | None = None
        self._nobody = account_of(None).uid

    def runs(self) -> Sequence[StressResult]:
        """Return all runs, oldest first."""
        return self._runs

    def _kept(self) -> dict[int, StressResult]:
        """Return the stored runs; an unreadable database must not keep the daemon from warning.

        The last complete one of each card has the rows behind its figures: only it is shown with them, and those of a
        thousand nights take a hundred megabytes.
        """
        try:
            runs = dict(self._history.reader.stress_runs(brief=True))
            for number in {run.uuid: number for number, run in runs.items() if run.complete}.values():
                runs[number] = self._history.reader.stress_run(number) or runs[number]
        except StoreError as error:
            log.warning("earlier stress runs are unknown: %s", error)
            return {}
        return runs

    def keep(self, result: StressResult) -> None:
        """Take a run that was started by hand; from any thread."""
        self._news.put(result)

    def readings(self) -> Iterable[Reading]:
        return stress_metrics.readings(self.runs())

    def observe(self, snapshot: Snapshot) -> None:
        """Take a tick; start a test when one is due and there is something to test."""
        if snapshot.gpus or snapshot.events:
            self._recent.add(snapshot.mono, snapshot.gpus, snapshot.readings, snapshot.events)
        if snapshot.gpus and self._settings.schedule != OFF and self._host.live:
            self._start_if_due(snapshot.wall)
        if self._host.live:
            self._remember(snapshot)

    def _remember(self, snapshot: Snapshot) -> None:
        """Remember the newest training, see ``find_python``; our own worker may look like one."""
        seen = [(p.start_ticks, p.uid, *p.torch) for p in snapshot.processes if p.torch and p.uid is not None]
        seen = [one for one in seen if one[1] != self._nobody]
        if not seen or (training := Training(*max(seen)[1:])) == self._last_training:
            return
        self._last_training = training
        try:
            remember(self._folder, training)
        except OSError as error:
            log.warning("the Python of the last training is not remembered: %s", error)

    def news(self) -> list[Transition]:
        """Store the runs that have ended since, and return the resulting changes of level."""
        changes = []
        while not self._news.empty():
            result = self._news.get()
            runs = self.runs()
            earlier = [run for run in runs if run.uuid == result.uuid]
            # The level last reported for this slot, by the previous card if it has been replaced.
            card = next((run.uuid for run in reversed(runs) if run.gpu == result.gpu), result.uuid)
            reported_runs = [run for run in runs if run.uuid == card]
            # A complete run replaces the detail rows of earlier runs of its card.
            outdone = result.uuid if result.complete else None
            self._runs = (*(replace(run, detail={}) if run.uuid == outdone else run for run in runs), result)
            self._history.record_stress(result)
            log.info("stress run of gpu%d: %s %s", result.gpu, result.verdict, result.reason)
            for finding in result.findings:
                log.warning("stress run of gpu%d: %s", result.gpu, finding.text)
            (old, _), (new, why) = level_of(reported_runs), level_of([*earlier, result])
            if old != new:
                wall, mono = self._host.clock.wall(), self._host.clock.mono()
                changes.append(Transition(wall, mono, f"gpu{result.gpu}", VRAM_STRESS, old, new, facts={"text": why}))
        return changes

    def close(self) -> None:
        self._runner.stop.set()

    def _start_if_due(self, now_wall: float) -> None:
        """Start the night's test with a random delay, so that not all machines of a site start at once.

        Once, however many nights were missed, and late rather than never: the gates decide whether the moment is right.
        """
        when = self._when = self._when or crontab(self._settings.schedule)
        jitter_seconds = 60 * random.uniform(0, self._settings.jitter_minutes)
        if self._due_wall is None:
            # A machine that is off at night would otherwise never have its first.
            before = self._history.previous_run
            last = self._runs[-1].wall if self._runs else before.started_wall if before else now_wall
            # A run may lie in the future: the clock was wrong then.
            due = next_time(when, min(last, now_wall)) + jitter_seconds
            self._due_wall = due if due >= now_wall else now_wall + CATCH_UP_SECONDS
        if now_wall >= self._due_wall and not (self._testing and self._testing.is_alive()):
            self._due_wall = next_time(when, now_wall) + jitter_seconds
            self._testing = threading.Thread(target=self._night, name="stress")
            self._testing.start()

    def _night(self) -> None:
        """Test each GPU; retry busy ones later in the night."""
        waiting = {sample.uuid for sample in self._recent.gpus()}
        for retries_left in range(self._settings.retries, -1, -1):
            for sample in [card for card in self._recent.gpus() if card.uuid in waiting]:
                result = self._runner.run(sample, "nightly")
                if result.verdict in ("skipped", "left") and retries_left:
                    log.info("stress run of gpu%d put off: %s", sample.index, result.reason)
                else:
                    waiting.remove(sample.uuid)
                if result.verdict != "skipped" or not retries_left:
                    self.keep(result)
            if not waiting or self._runner.stop.wait(60 * self._settings.retry_minutes):
                return
