"""One tick of the daemon, and the state it leaves for ``status``.

A tick samples the machine, warns, publishes and stores the sample, and notifies systemd's watchdog.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from wslgpud.alerts.incidents import OpenIncident
from wslgpud.alerts.manager import AlertManager
from wslgpud.app import return_cache, systemd
from wslgpud.client import in_one_line
from wslgpud.model import MEMORY, Forecast, Level, Snapshot, Transition
from wslgpud.risk import training_metrics
from wslgpud.sampling.assessor import Assessor
from wslgpud.serve import Publisher
from wslgpud.serve.status import TickState, judged, status
from wslgpud.store import Store
from wslgpud.stress.schedule import Nightly
from wslgpud.verdict import NEWS_SECONDS, VerdictMetrics, blindness, decide
from wslgpud.words import Translator, translator

if TYPE_CHECKING:
    from wslgpud.app.return_cache import CacheReturner
    from wslgpud.brake.brake import Brake

log = logging.getLogger(__name__)

#: a page asks every second, `wslgpud monitor` likewise; this long after the last question nobody is watching
WATCHED_SECONDS = 10.0
#: rules of which trainings are warned
_TOLD_TRAININGS = frozenset({MEMORY, "training_leak", "training_retries"})


@dataclass
class Tick:
    """Moves one sample after another from the sensors to everything that uses it.

    The server's threads are answered from ``latest``, which each tick replaces unless all is calm.
    """

    assessor: Assessor
    alerts: AlertManager
    brake: Brake | None
    returner: CacheReturner | None
    nightly: Nightly
    store: Store
    publisher: Publisher
    service: systemd.Notifier
    translator: Translator
    verdicts: VerdictMetrics = field(default_factory=VerdictMetrics, init=False)
    latest: TickState | None = field(default=None, init=False)
    #: the page's address
    url: str = field(default="", init=False)
    _asked_mono: float = field(default=-math.inf, init=False)
    _bugs: dict[str, str] = field(default_factory=dict, init=False)

    def now(self, language: str) -> dict[str, Any]:
        """Return the current state as JSON, in a language; never blocks."""
        self._asked_mono = time.monotonic()
        return {**status(self.latest, translator(language)), "url": self.url}

    def run(self) -> None:
        """Take one sample; ``assessor.delay_seconds`` says when the next is due."""
        before = self.latest
        first = before is None
        asked = time.monotonic() - self._asked_mono < WATCHED_SECONDS  # by a page or a monitor
        watched = before is None or bool(before.incidents or before.paused_jobs) or asked
        snapshot, transitions = self.assessor.tick(watched=watched)
        if not self.assessor.calm:
            self._act(snapshot, transitions)
        self.publisher.publish(snapshot)
        worst = max((f.level for f in snapshot.forecasts), default=Level.OK)
        self.store.append(snapshot, urgent=worst >= Level.WARNING)
        self._notify(snapshot, first=first)

    def _act(self, snapshot: Snapshot, transitions: Sequence[Transition]) -> None:
        """Pause, warn and judge: all that can only change when something has moved, or some seconds have passed."""
        # Pause the culprit first, then send the warning: under memory pressure any later step may take seconds.
        if self.brake is not None:
            with self._survived("the brake"):
                for transition in self.brake.tick(snapshot, snapshot.forecasts, snapshot.observation.gpus):
                    self.alerts.report(transition)
                self.alerts.paused = self.brake.held_processes()
                if self.brake.is_ending():
                    self.assessor.hurry()
        with self._survived("alerts"):
            stats = self.store.stats()
            self.alerts.tick(snapshot, snapshot.forecasts, transitions, stats.error, stats.damage)
        with self._survived("the nightly test"):
            self.nightly.observe(snapshot)
            for transition in self.nightly.news():
                self.alerts.report(transition)
        self.keep_lessons()
        # Here and not on request: it reads a file, and the server's threads must not wait for a disk.
        standing, lately = self.alerts.standing(), self.alerts.lately(NEWS_SECONDS)
        unread, lost = blindness(snapshot), self.alerts.unseen()
        verdict = decide(snapshot.forecasts, standing, lately, blind=unread, lost=lost)
        self.verdicts.observe(verdict)
        paused_jobs = () if self.brake is None else self.brake.document()
        runs, tally, recent = self.nightly.runs(), self.alerts.tally(), self.alerts.recent()
        running = self.assessor.running()
        self.latest = TickState(snapshot, verdict, standing, runs, tally, paused_jobs, running, recent)
        self.assessor.runs.warned = training_warnings(standing, snapshot, snapshot.forecasts)
        if self.returner is not None:
            with self._survived("giving page cache back"):
                short = return_cache.is_short(snapshot.forecasts, standing)
                self.assessor.own_events += self.returner.tick(snapshot, short=short)

    def recall_lessons(self, now_wall: float) -> None:
        """Give the engine the lessons of earlier runs.

        After a crash only the ceilings: a peak remembered as harmless may have caused the crash.
        """
        run = self.store.previous_run
        forgotten = () if run is not None and run.clean else ("peaks", "owned_peaks")
        for subject, lesson in self.store.learned.items():
            document = {name: value for name, value in lesson.document.items() if name not in forgotten}
            with self._survived("reading earlier lessons about memory"):
                self.assessor.recall(subject, document, max(0.0, now_wall - lesson.wall))

    def keep_lessons(self, *, last: bool = False) -> None:
        """Store the engine's lessons if they are due; at the end, all of them."""
        for subject, document in self.assessor.lessons(last=last):
            self.store.learn(subject, document)

    @contextmanager
    def _survived(self, part: str) -> Iterator[None]:
        """Log a bug of a part, which must not end the others; not again at each tick while it is the same."""
        try:
            yield
        except Exception as bug:
            if repr(bug) != self._bugs.get(part):
                log.exception("%s failed at this tick; please report this", part)
            self._bugs[part] = repr(bug)

    def _notify(self, snapshot: Snapshot, *, first: bool) -> None:
        if not self.service.enabled or self.latest is None:
            return
        verdict = self.latest.verdict
        if first:
            self.service.ready()
        # Only a tick that could read memory counts as alive: without that we cannot warn.
        alive = ("WATCHDOG=1",) if snapshot.observation.ram is not None else ()
        if not self.assessor.calm:  # else the verdict is the last one, and systemd keeps what it was told
            line = in_one_line(judged(verdict, self.translator, snapshot.wall))
            alive = (*alive, f"STATUS={self.translator.label('level', verdict.state)}: {line}")
        self.service.send(*alive)


def training_warnings(
    standing: Iterable[OpenIncident], snapshot: Snapshot, forecasts: Iterable[Forecast]
) -> dict[int, tuple[str, float | None]]:
    """Return, by pid, the worst level of all resources that a training uses, and the seconds left.

    So that its companion (``wslgpud.training``) can save in time, also where other programs cause it: a checkpoint
    helps whoever is at fault.
    """
    levels: dict[str, Level] = {}
    for incident in (one.incident for one in standing):
        if incident.rule in _TOLD_TRAININGS and incident.level >= Level.WARNING:
            levels[incident.resource] = max(incident.level, levels.get(incident.resource, Level.OK))
    left = {forecast.resource: forecast.eta_seconds for forecast in forecasts if forecast.resource in levels}
    warnings_by_pid: dict[int, tuple[Level, float | None]] = {}
    for labels in snapshot.family(training_metrics.KEPT):
        pid, _, resource = labels
        if (level := levels.get(resource, Level.OK)) > warnings_by_pid.get(int(pid), (Level.OK, None))[0]:
            own = snapshot.value(training_metrics.TIME_LEFT, *labels)
            soonest = min((s for s in (left.get(resource), own) if s is not None), default=None)
            warnings_by_pid[int(pid)] = (level, soonest)
    return {pid: (level.label, seconds) for pid, (level, seconds) in warnings_by_pid.items()}
