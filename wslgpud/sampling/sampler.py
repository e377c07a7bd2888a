"""One tick: reads every source that is due, under a deadline; data and health stay separate."""

from __future__ import annotations

import logging
import math
import threading
from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from queue import SimpleQueue

from wslgpud.host import Clock, NoData, SourceError
from wslgpud.metrics import gauge
from wslgpud.model import EMPTY, Health, Reading, Sample, Snapshot, SourceReport
from wslgpud.sources import Source
from wslgpud.words import MessageLike, say

log = logging.getLogger(__name__)

#: a tick waits no longer than this for any source, from the second one on: a slow Windows drive, or /proc of processes
#: that are being swapped, must not delay the next reading of RAM
PATIENCE_SECONDS = 0.5


INTERVAL = gauge(
    "tick_interval_seconds",
    "Planned time between the last two samples; shorter while memory shrinks fast.",
    stored=False,
)
LATENESS = gauge(
    "tick_lateness_seconds", "Delay of the sample relative to its planned time: the machine stalls.", decimals=3
)
METRICS = (INTERVAL, LATENESS)


class Sampler:
    """Reads the sources, each in the thread of its lane, and puts their reports into a Snapshot."""

    def __init__(
        self, sources: Iterable[Source], clock: Clock, interval_seconds: float, *, patient: bool = False
    ) -> None:
        """Start the lanes; with ``patient`` (a recorded machine) a tick waits for every source."""
        self._clock = clock
        self._patient = patient
        self._interval = interval_seconds
        all_sources = tuple(sources)
        self._lanes = {name: _Lane(name, clock) for name in dict.fromkeys(source.lane for source in all_sources)}
        self._slots = [_Slot(source, self._lanes[source.lane]) for source in all_sources]
        self._sequence = 0
        self._started = math.inf  # the first tick is not late

    def tick(self, *, fast: bool = False, planned_seconds: float | None = None) -> Snapshot:
        """Read what is due (on a fast tick only the cheap, needed sources) and return all that is known.

        ``planned_seconds`` is the planned time since the last tick (the interval by default); a delay shows in
        ``lateness_seconds``, evidence of a stalled machine.
        """
        started, wall = self._clock.mono(), self._clock.wall()
        step = planned_seconds or self._interval
        lateness = max(0.0, started - self._started - step)
        self._started = started
        due = [s for s in self._slots if s.is_due(started, self._interval) and (s.source.fast or not fast)]
        lanes = self._lanes.values()
        for lane in [lane for lane in lanes if lane.start([slot for slot in due if slot.lane is lane])]:
            # `wslgpud status` and READY rely on the first snapshot: it must be complete.
            patience = min(lane.deadline_seconds, PATIENCE_SECONDS if self._sequence else math.inf)
            left = None if self._patient else started + patience - self._clock.mono()
            done = lane.done.wait(left)
            lane.overdue = not done and patience == lane.deadline_seconds
        self._sequence += 1
        ended = self._clock.mono()
        # Readings of the sources' own state matter most when they fail, and then their reports are empty.
        own = (reading for slot in self._slots for reading in slot.source.own())
        sample = Sample((Reading(INTERVAL, step), Reading(LATENESS, lateness), *own))
        tick = SourceReport("sampler", "ok", sample, started, ended - started, last_success_wall=wall)
        reports = (*(slot.report(ended) for slot in self._slots), tick)
        return Snapshot(wall, started, self._sequence, reports, lateness)

    def close(self) -> None:
        """End the lanes and close the sources; a hung lane lasts until the process ends."""
        for slot in self._slots:
            slot.source.close()
        for lane in self._lanes.values():
            lane.close()


class _Slot:
    """A source and its state."""

    def __init__(self, source: Source, lane: _Lane) -> None:
        self.source, self.lane = source, lane
        self.last: SourceReport | None = None
        # Filled by the lane, emptied by the tick; a deque because its ends are safe across threads.
        self.arrived: deque[SourceReport] = deque()
        self.running_since: float | None = None
        self.started = -math.inf
        self.failures = 0
        self.last_success_wall: float | None = None
        self._last_error: MessageLike = ""

    def is_due(self, now: float, interval: float) -> bool:
        """Return whether to read now; not while a late answer is waiting, or its events would be lost."""
        # Half an interval of slack: a slightly early tick must not skip a whole period.
        period = self.source.period_seconds - interval / 2
        return not self.arrived and now - self.started >= period

    def run(self, clock: Clock) -> None:
        """Read the source (in its lane's thread) and leave a report."""
        began = clock.mono()
        health: Health = "ok"
        sample = EMPTY
        error: MessageLike = ""
        try:
            sample = self.source.read()
            self.last_success_wall = clock.wall()
            if self._last_error:
                log.info("source %s answers again", self.source.name)
        except NoData as absence:
            health, error = "absent", absence.message
            log.debug("source %s: %s", self.source.name, error)
        except SourceError as failure:
            health, error = "failed", failure.message
        except Exception as bug:
            # A bug in one source must not stop the others, and so the alerts.
            health, error = "failed", say("internal error: {error}", error=f"{type(bug).__name__}: {bug}")
            if error != self._last_error:
                log.exception("source %s failed; please report this", self.source.name)
        if health == "failed":
            self.failures += 1
            if error != self._last_error:  # each change once, not a line per second
                log.warning("source %s: %s", self.source.name, error)
        self._last_error = error if health == "failed" else ""
        self.arrived.append(self._report(health, began, clock.mono() - began, error, sample))
        self.running_since = None

    def report(self, now: float) -> SourceReport:
        """Return the newest report; a source that missed its deadline reports only that."""
        if self.arrived:
            self.last = self.arrived.popleft()
            return self.last
        since = self.running_since
        if since is not None and (self.lane.overdue or now - since >= self.lane.deadline_seconds):
            waited = now - since
            if self.last is None or self.last.health != "late":
                self.failures += 1
                log.warning("source %s has not answered for %.1f s; continuing without it", self.source.name, waited)
            self.last = self._report(
                "late", since, waited, say("no answer for {waited_seconds}", waited_seconds=waited)
            )
        elif self.last is None:
            return replace(self._report("absent", now, 0.0, say("not read yet")), fresh=False)
        if self.last.fresh:
            self.last = replace(self.last, fresh=False)
        return self.last

    def _report(
        self, health: Health, began: float, seconds: float, error: MessageLike, sample: Sample = EMPTY
    ) -> SourceReport:
        state = (self.last_success_wall, self.failures)
        return SourceReport(self.source.name, health, sample, began, seconds, error, *state)


class _Lane:
    """A thread that reads the sources of one lane; it finishes a batch before it takes the next."""

    def __init__(self, name: str, clock: Clock) -> None:
        self.deadline_seconds, self.overdue = 0.0, False
        self.done = threading.Event()
        self.done.set()
        self._clock = clock
        self._due: SimpleQueue[list[_Slot] | None] = SimpleQueue()
        # A daemon thread, because a read that never returns must not keep the program from exiting.
        threading.Thread(target=self._work, name=f"lane-{name}", daemon=True).start()

    def start(self, slots: list[_Slot]) -> bool:
        """Start reading these sources; False where there are none, or the lane is still busy."""
        if not slots or not self.done.is_set():
            return False
        now = self._clock.mono()
        self.deadline_seconds, self.overdue = max(slot.source.deadline_seconds for slot in slots), False
        self.done.clear()
        for slot in slots:
            slot.started = slot.running_since = now
        self._due.put(slots)
        return True

    def close(self) -> None:
        """Let the thread end after its current work."""
        self._due.put(None)

    def _work(self) -> None:
        for slots in iter(self._due.get, None):
            for slot in slots:
                slot.run(self._clock)
            self.done.set()
