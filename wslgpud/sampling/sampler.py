"""One tick: reads every source that is due, under a deadline; data and health stay separate."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from queue import SimpleQueue

from wslgpud.host import Clock, NoData, SourceError
from wslgpud.metrics import gauge
from wslgpud.model import EMPTY, Health, Reading, Sample, Snapshot, SourceReport
from wslgpud.sources import Source
from wslgpud.sources.cgroups import CgroupSource
from wslgpud.sources.cpu import ClockSource, CpuSource
from wslgpud.sources.disk import DiskSource, FilesystemSource, WindowsDriveSource
from wslgpud.sources.gpu import GpuSource
from wslgpud.sources.logs import KernelLogSource, OomDaemonSource
from wslgpud.sources.memory import MemorySource, PressureSource
from wslgpud.sources.model_servers import ModelServerSource
from wslgpud.sources.network import NetworkSource
from wslgpud.sources.processes import ProcessSource
from wslgpud.sources.windows import WindowsSource
from wslgpud.sources.wsl import WslSource
from wslgpud.words import MessageLike, say

log = logging.getLogger(__name__)

#: all sources, in the order in which a tick reads them
SOURCES: tuple[type[Source], ...] = (
    MemorySource,
    PressureSource,
    GpuSource,
    CpuSource,
    ClockSource,
    DiskSource,
    NetworkSource,
    KernelLogSource,
    OomDaemonSource,
    CgroupSource,
    ProcessSource,
    ModelServerSource,
    WslSource,
    WindowsSource,
    FilesystemSource,
    WindowsDriveSource,
)

#: a tick waits no longer than this for any source, from the second one on: a slow Windows drive, or /proc of processes
#: that are being swapped, must not delay the next reading of RAM
PATIENCE_SECONDS = 0.5
#: what waits behind a source for longer is read by another thread
TURN_SECONDS = 0.05


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
    """Reads the sources and puts their reports into a Snapshot.

    One thread reads all lanes; while it takes long with one, another goes on, so that a hung one holds up none.
    """

    def __init__(
        self, sources: Iterable[Source], clock: Clock, interval_seconds: float, *, patient: bool = False
    ) -> None:
        """Prepare; with ``patient`` (a recorded machine) a tick waits for every source."""
        self._clock = clock
        self._patient = patient
        self._interval = interval_seconds
        all_sources = tuple(sources)
        self._lanes = {source.lane: _Lane() for source in all_sources}
        self._slots = [_Slot(source, self._lanes[source.lane]) for source in all_sources]
        self._waiting: deque[_Lane] = deque()
        #: queues of the threads that have nothing to do; the last is taken first, as its memory is in the caches
        self._idle: list[SimpleQueue[None]] = []
        self._closed = False
        self._sequence = 0
        self._started = math.inf  # the first tick is not late

    def tick(self, *, fast: bool = False, planned_seconds: float | None = None) -> Snapshot:
        """Read what is due (on a fast tick only the cheap, needed sources) and return all that is known.

        ``planned_seconds`` is the planned time since the last tick (the interval by default); a delay shows in
        ``lateness_seconds``, evidence of a stalled machine.
        """
        started, wall, began = self._clock.mono(), self._clock.wall(), time.monotonic()
        step = planned_seconds or self._interval
        lateness = max(0.0, started - self._started - step)
        self._started = started
        due = [s for s in self._slots if s.is_due(started, self._interval) and (s.source.fast or not fast)]
        for slot in due:
            slot.source.brief = fast
        lanes = [lane for lane in self._lanes.values() if lane.begin([s for s in due if s.lane is lane], started)]
        self._waiting.extend(lanes)
        self._go_on()
        # `wslgpud status` and READY rely on the first snapshot: it must be complete.
        most = PATIENCE_SECONDS if self._sequence else math.inf
        for lane in reversed(lanes):  # they are read in this order, so that mostly one wait does
            until = math.inf if self._patient else began + min(lane.deadline_seconds, most)
            while not lane.done.wait(max(0.0, min(until - time.monotonic(), TURN_SECONDS))):
                if time.monotonic() >= until:
                    break
                self._go_on()
        self._sequence += 1
        ended = self._clock.mono()
        # Readings of the sources' own state matter most when they fail, and then their reports are empty.
        own = (reading for slot in self._slots for reading in slot.source.own())
        sample = Sample((Reading(INTERVAL, step), Reading(LATENESS, lateness), *own))
        tick = SourceReport("sampler", "ok", sample, started, ended - started, last_success_wall=wall)
        reports = (*(slot.report(ended) for slot in self._slots), tick)
        return Snapshot(wall, started, self._sequence, reports, lateness)

    def close(self) -> None:
        """Close the sources and end the threads; a hung one lasts until the process ends."""
        for slot in self._slots:
            slot.source.close()
        self._closed = True
        for wake in tuple(self._idle):
            wake.put(None)

    def _go_on(self) -> None:
        """Have one more thread read what waits, if anything does."""
        if self._waiting and self._idle:
            self._idle.pop().put(None)
        elif self._waiting:
            # A daemon thread, because a read that never returns must not keep the program from exiting. Where none can
            # be started now, the next turn tries again.
            with suppress(RuntimeError):
                threading.Thread(target=self._work, name="sources", daemon=True).start()

    def _work(self) -> None:
        wake: SimpleQueue[None] = SimpleQueue()
        while not self._closed:
            with suppress(IndexError):
                while True:
                    self._waiting.popleft().read(self._clock)
            self._idle.append(wake)
            if not self._closed:
                wake.get()


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
        """Read the source and leave a report."""
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
        if since is not None and now - since >= self.lane.deadline_seconds:
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
    """Sources that are read one after another; all of them before any is read again."""

    def __init__(self) -> None:
        self.deadline_seconds = 0.0
        self.done = threading.Event()
        self.done.set()
        self._slots: list[_Slot] = []

    def begin(self, slots: list[_Slot], now: float) -> bool:
        """Have these sources read next; False where there are none, or the lane is still busy."""
        if not slots or not self.done.is_set():
            return False
        self.deadline_seconds = max(slot.source.deadline_seconds for slot in slots)
        self.done.clear()
        self._slots = slots
        for slot in slots:
            slot.started = slot.running_since = now
        return True

    def read(self, clock: Clock) -> None:
        for slot in self._slots:
            slot.run(clock)
        self.done.set()
