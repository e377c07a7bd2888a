"""The nightly stress run, scheduled by APScheduler.

The scheduler is imported and started only once there is a GPU to test: it takes memory and a thread.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import random
import re
import warnings
from collections.abc import Container, Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta, timezone, tzinfo
from pathlib import Path
from typing import Any

from wslgpud.alerts.rules import VRAM_STRESS
from wslgpud.config import ConfigError, Stress
from wslgpud.host import Host
from wslgpud.model import Reading, Snapshot, StressResult, Transition
from wslgpud.security.run_as import account_of
from wslgpud.sources import gpu, windows
from wslgpud.store import Store, StoreError
from wslgpud.stress import stress_metrics, telemetry
from wslgpud.stress.comparison import level_of
from wslgpud.stress.conditions import Recent
from wslgpud.stress.find_python import Training, remember
from wslgpud.stress.stress_run import Runner
from wslgpud.stress.unit import AROUND_SECONDS, Asker
from wslgpud.words import cause

log = logging.getLogger(__name__)

OFF = "off"
#: Delay after a start when nights were missed, to let the machine settle.
CATCH_UP_SECONDS = 900.0
#: a numeric part of a crontab's fifth field
_DAYS = re.compile(r"(?<![^,])(?:\*|([0-7])(?:-([0-7]))?)(?:/([1-7]))?(?![^,])")
_NAMES = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_NIGHTLY, _AGAIN = "vram-stress", "vram-stress-again"
#: metrics for judging a run, besides samples of cards
_OF_CARDS = tuple(
    spec
    for spec in (*gpu.GpuSource.metrics, *windows.WindowsSource.metrics)
    if spec is gpu.INFO or spec.name in (*telemetry.FOLLOWED, telemetry.SHARED)
)


def trigger(settings: Stress) -> Any:
    """Return APScheduler's trigger for the schedule. Raises ConfigError: it is not a crontab line."""
    from apscheduler.triggers.cron import CronTrigger  # see the module's head

    *words, weekdays = settings.schedule.split() or [""]
    try:
        return CronTrigger.from_crontab(" ".join([*words, _DAYS.sub(_named, weekdays)]), _zone())
    except ValueError as error:
        raise ConfigError(
            'stress.schedule: {schedule} is neither "off" nor minute hour day month weekday: {error}',
            schedule=repr(settings.schedule),
            error=cause(error),
        ) from error


def _named(part: re.Match[str]) -> str:
    """Return days of the week by name: cron counts from Sunday, APScheduler from Monday."""
    first, last, step = part.groups()
    end = last or ("6" if step or first is None else first)
    return ",".join(_NAMES[day % 7] for day in range(int(first or 0), int(end) + 1, int(step or 1))) or part[0]


def _zone() -> tzinfo:
    """Return the time zone of a schedule: the C library's, as everywhere here.

    APScheduler uses tzlocal, which does not know rules in TZ (``CST-8``) or zones missing from its data, and trusts
    /etc/timezone even if /etc/localtime differs. In these cases, it is today's offset.
    """
    from apscheduler.triggers.cron import CronTrigger  # see the module's head

    now = datetime.now().astimezone()
    try:
        with warnings.catch_warnings():
            # that it takes UTC where none is configured, as the C library does, or that both differ, as seen below
            warnings.simplefilter("ignore")
            named: tzinfo = CronTrigger().timezone
    except (LookupError, ValueError, OSError) as error:
        log.warning("the time zone has no name; without one, summer time begins with a restart: %s", error)
    else:
        if now.astimezone(named).utcoffset() == now.utcoffset():
            return named
    return now.tzinfo or timezone.utc


class Nightly:
    """The daemon's stress runs. ``observe`` and ``news`` are called in its tick; a run has its own thread."""

    def __init__(
        self, settings: Stress, host: Host, state_folder: Path, history: Store, *, unit_socket: str = ""
    ) -> None:
        """Start nothing yet. With ``unit_socket``, ``unit.py`` does it. Raises ConfigError: invalid schedule."""
        self._settings, self._host, self._folder, self._history = settings, host, state_folder, history
        self._recent = Recent()
        self._runs = tuple(self._kept(full=True).values())  # replaced as a whole: other threads read it
        self._news: queue.SimpleQueue[StressResult] = queue.SimpleQueue()
        self._runner: Runner | Asker = Runner(host, settings, state_folder, self._recent, self.runs)
        if unit_socket:
            longest = settings.settle_seconds + settings.deadline_seconds + AROUND_SECONDS
            self._runner = Asker(host.clock, unit_socket, longest)
        self._scheduler: Any = None
        self._last_training: Training | None = None
        self._nobody = account_of(None).uid
        if settings.schedule not in (OFF, Stress.schedule):
            trigger(settings)

    def runs(self) -> Sequence[StressResult]:
        """Return all runs, oldest first."""
        return self._runs

    def _kept(self, *, full: bool = False) -> dict[int, StressResult]:
        """Return the stored runs; an unreadable database must not keep the daemon from warning.

        With ``full``, the last complete one of each card has the rows behind its figures: only it is shown with them,
        and those of a thousand nights take a hundred megabytes.
        """
        try:
            runs = dict(self._history.reader.stress_runs(brief=True))
            for number in {run.uuid: number for number, run in runs.items() if run.complete and full}.values():
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
        """Take a tick; start the scheduler when there is something to test."""
        if snapshot.gpus or snapshot.events:
            of_cards = (Reading(s, value, labels) for s in _OF_CARDS for labels, value in snapshot.family(s).items())
            self._recent.add(snapshot.mono, snapshot.gpus, of_cards, snapshot.events)
        if snapshot.gpus and self._scheduler is None and self._settings.schedule != OFF and self._host.live:
            self._start()
        if self._scheduler is not None and any(event.kind == "clock_jump" for event in snapshot.events):
            self._scheduler.wakeup()  # it sleeps by the monotonic clock, which was stopped meanwhile
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
        if self._scheduler is not None:
            self._scheduler.shutdown(wait=False)

    def _start(self) -> None:
        from apscheduler.executors.pool import ThreadPoolExecutor
        from apscheduler.schedulers.background import BackgroundScheduler

        when = trigger(self._settings)
        # One at a time; once, however many nights were missed; and late rather than never: the gates decide whether the
        # moment is right.
        self._scheduler = BackgroundScheduler(
            timezone=when.timezone,
            executors={"default": ThreadPoolExecutor(1)},
            job_defaults={"coalesce": True, "max_instances": 1, "misfire_grace_time": None},
        )
        self._scheduler.add_job(self._begin, when, id=_NIGHTLY)
        now = datetime.now().astimezone()
        runs = self.runs()
        last = datetime.fromtimestamp(runs[-1].wall if runs else self._planned_since(), tz=now.tzinfo)
        due = when.get_next_fire_time(last, last)
        if due is not None and due + timedelta(minutes=self._settings.jitter_minutes) < now:
            self._later(CATCH_UP_SECONDS, 0)
        self._scheduler.start()

    def _planned_since(self) -> float:
        """Return since when nights are planned: a machine that is off at night would otherwise never have its first."""
        file = self._folder / "stress-since"
        try:
            with contextlib.suppress(FileExistsError):
                file.touch(exist_ok=False)
            return file.stat().st_mtime
        except OSError:
            return self._host.clock.wall()

    def _later(self, seconds: float, attempt: int, cards: Container[str] | None = None) -> None:
        when = datetime.now().astimezone() + timedelta(seconds=seconds)
        self._scheduler.add_job(
            self._night, "date", run_date=when, args=[attempt, cards], id=_AGAIN, replace_existing=True
        )

    def _begin(self) -> None:
        """Plan the night's test with a random delay, so that not all machines of a site start at once.

        APScheduler's own jitter adds to local time, where an hour comes twice in autumn: then it finds the next run in
        the past, over and over.
        """
        self._later(random.uniform(0, 60 * self._settings.jitter_minutes), 0)

    def _night(self, attempt: int = 0, cards: Container[str] | None = None) -> None:
        """Test each GPU, or only these; retry busy ones once later in the night."""
        busy = []
        for sample in self._recent.gpus():
            if cards is not None and sample.uuid not in cards:
                continue
            result = self._runner.run(sample, "nightly")
            last_try = attempt >= self._settings.retries
            if result.verdict in ("skipped", "left") and not last_try:
                busy.append(sample.uuid)
                log.info("stress run of gpu%d put off: %s", sample.index, result.reason)
            if result.verdict != "skipped" or last_try:
                self.keep(result)
        if busy and not self._runner.stop.is_set():
            self._later(self._settings.retry_minutes * 60, attempt + 1, busy)
