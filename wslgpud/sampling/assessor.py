"""A sample and what the risk engine makes of it: the part of a tick that needs neither database nor port.

It chooses when to sample, and at which of the two speeds.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from wslgpud.active_runs import AnnouncedRuns, CardsUnderTest, Noted
from wslgpud.config import Config, Sampling
from wslgpud.host import Host
from wslgpud.model import EMPTY, Event, Forecast, Level, Observation, Sample, Snapshot, SourceReport, Transition
from wslgpud.risk import risk_metrics
from wslgpud.risk.engine import Assessment, RiskEngine
from wslgpud.sampling import noted_runs
from wslgpud.sampling.cardinality import CardinalityLimiter
from wslgpud.sampling.observation import observation_of
from wslgpud.sampling.sampler import SOURCES, Sampler
from wslgpud.words import TEMPLATES, MessageLike, say

log = logging.getLogger(__name__)

#: The engine's lessons are stored at most this often, unless a ceiling has moved.
LESSON_SECONDS = 600.0
#: window for the fall of headroom, long enough to see past a single large allocation
TREND_SECONDS = 5.0
#: aim at this many samples before the memory is gone at the present rate
SAMPLES_BEFORE_END = 20
#: while all is calm, only what can end a training within seconds is read at every tick, the rest this often
CALM_SECONDS = 5.0
#: calm ends once a resource's headroom has moved by this share of its capacity since everything was read
MOVED_RATIO = 0.01
#: nothing is calm with less than this share of a resource left: stalls may come without a movement
CALM_HEADROOM_RATIO = 0.15


@dataclass(frozen=True)
class Scene:
    """What must stay as it is for calm to last: headroom by resource, and the programs on the cards."""

    headroom_bytes: Mapping[str, int]
    programs: frozenset[tuple[int, int]]

    @classmethod
    def of(cls, observation: Observation, forecasts: Iterable[Forecast]) -> Scene:
        programs = frozenset((gpu.index, process.pid) for gpu in observation.gpus for process in gpu.processes)
        return cls({forecast.resource: forecast.headroom_bytes for forecast in forecasts}, programs)


def is_calm(scene: Scene, before: Scene, forecasts: Sequence[Forecast]) -> bool:
    """Return whether nothing has happened since ``before`` that could lead to a warning."""
    return (
        scene.programs == before.programs
        and bool(forecasts)
        and all(
            forecast.level == Level.OK
            and forecast.eta_seconds is None
            and forecast.headroom_bytes >= CALM_HEADROOM_RATIO * forecast.capacity_bytes
            and forecast.resource in before.headroom_bytes
            and abs(forecast.headroom_bytes - before.headroom_bytes[forecast.resource])
            < MOVED_RATIO * forecast.capacity_bytes
            for forecast in forecasts
        )
    )


class SamplingPace:
    """Chooses the time to the next tick: shorter while memory shrinks fast.

    The idea is earlyoom's (sleep = headroom / fill rate), with the measured rate instead of the maximum, so that a full
    but quiet machine costs no more than an empty one.
    """

    def __init__(self, settings: Sampling) -> None:
        self._settings = settings
        self._history: deque[tuple[float, Mapping[str, int]]] = deque()

    def next_delay(self, mono: float, headroom_bytes: Mapping[str, int]) -> float:
        """Return the seconds until the next tick, given each resource's headroom now."""
        while self._history and self._history[0][0] < mono - TREND_SECONDS:
            self._history.popleft()
        delay = self._settings.interval_seconds
        if self._history:
            then, before = self._history[0]
            for resource, left in headroom_bytes.items():
                fallen = before.get(resource, left) - left
                if fallen > 0:
                    delay = min(delay, left / fallen * (mono - then) / SAMPLES_BEFORE_END)
        self._history.append((mono, headroom_bytes))
        return max(delay, self._settings.fastest_seconds)


class Assessor:
    """Samples and assesses; ticked by the daemon, or by ``status`` and ``record`` without a daemon."""

    def __init__(self, config: Config, host: Host) -> None:
        """Build the sources and the engine; nothing is read before the first tick."""
        self.host = host
        self._sampler = Sampler(
            [source(host, config) for source in SOURCES],
            host.clock,
            config.sampling.interval_seconds,
            patient=host.recorded,
        )
        self._engine = RiskEngine(users_known=True)
        self.runs = AnnouncedRuns(host)
        self._noted: Sequence[Noted] = ()
        self._trained = EMPTY
        self._tests = CardsUnderTest(host, config.stress, self.runs.trust)
        self._limiter = CardinalityLimiter()
        self._engine_error: MessageLike = ""
        self._engine_failures = 0
        self._engine_success_wall: float | None = None
        self._lessons: dict[str, dict[str, Any]] = {}
        self._lessons_mono = host.clock.mono()
        self._pace = SamplingPace(config.sampling)
        self._settings = config.sampling
        self._last_full_mono = -math.inf
        #: events that others add to the next tick
        self.own_events: list[Event] = []
        self._full_scene = Scene({}, frozenset())
        #: whether the next tick may read less
        self._calm = False
        #: nothing has moved since the last tick that read everything, and the last one did not
        self.calm = False
        self.delay_seconds = config.sampling.interval_seconds

    def tick(self, *, watched: bool = True) -> tuple[Snapshot, Sequence[Transition]]:
        """Take one sample and assess it; ``watched``: somebody wants every value, however calm the machine is."""
        now = self.host.clock.mono()
        # The tick nearest to its time is a full one: at 0.8 s, expensive sources would otherwise be read every 1.6 s.
        calm = self._calm and not watched
        every = max(CALM_SECONDS, self._settings.interval_seconds) if calm else self._settings.interval_seconds
        fast = now - self._last_full_mono + self.delay_seconds / 2 < every
        calm = calm and fast
        if not fast:
            self._last_full_mono = now
        sampled = self._sampler.tick(fast=fast, planned_seconds=self.delay_seconds)
        if not calm:
            self._noted = self.runs.read()
        notes = self._noted
        observation = observation_of(sampled)
        cards = noted_runs.claimed(notes, observation.gpus)
        observation = replace(observation, expected=noted_runs.expected(notes, sampled.processes), gpus=cards)
        assessment, report = self._assess(self._tests.untested(observation, notes), sampled.wall)
        self.delay_seconds = self._pace.next_delay(
            sampled.mono, {f.resource: f.headroom_bytes for f in assessment.forecasts}
        )
        scene = Scene.of(observation, assessment.forecasts)
        self._full_scene = self._full_scene if fast else scene
        news = bool(assessment.changes or sampled.events or report.sample.events)
        self._calm = is_calm(scene, self._full_scene, assessment.forecasts) and not news
        self.calm = calm and self._calm
        began = self.host.clock.mono()
        trained = self._trained = Sample(tuple(noted_runs.readings(notes, sampled, assessment.forecasts)))
        reports = (*sampled.reports, report)
        if trained.readings:
            seconds = self.host.clock.mono() - began
            training = SourceReport("training", "ok", trained, began, seconds, last_success_wall=sampled.wall)
            reports = (*reports, training)
        snapshot = replace(
            sampled,
            reports=reports,
            interval_seconds=self.delay_seconds,
            observation=observation,
            forecasts=assessment.forecasts,
        )
        return self._limiter.limited(snapshot), assessment.changes

    def running(self) -> list[dict[str, Any]]:
        """Return the active runs of the last tick, for ``status``."""
        details = noted_runs.shown(self._trained)
        return noted_runs.running(self._noted, self.runs.trust, self.host.clock.mono(), details)

    def hurry(self) -> None:
        """Take the next sample as soon as possible: the remaining memory can be gone at any moment."""
        self.delay_seconds = self._settings.fastest_seconds

    def _assess(self, observation: Observation, wall: float) -> tuple[Assessment, SourceReport]:
        """Run the engine. A bug in it costs its memory, never the samples, the metrics or the page."""
        clock = self.host.clock
        began = clock.mono()
        error: MessageLike = ""
        try:
            assessment = self._engine.observe(observation, wall)
            self._engine_success_wall = clock.wall()
        except Exception as bug:
            error = say("internal error: {error}", error=f"{type(bug).__name__}: {bug}")
            if error != self._engine_error:
                log.exception("the risk engine failed and is restarted; please report this")
            assessment, self._engine = Assessment((), ()), RiskEngine(users_known=True)
            self._engine_failures += 1
        self._engine_error = error
        readings = tuple(risk_metrics.readings(assessment.forecasts))
        for failure in assessment.failures:  # no run has reported them
            text = TEMPLATES["exhausted"]["ended" if failure.program else "freed"]
            self.own_events.append(Event("vram_exhausted", clock.wall(), text, failure._asdict()))
        events, self.own_events = tuple(self.own_events), []
        for event in events:
            log.info("%s", event.message)
        return assessment, SourceReport(
            risk_metrics.REPORT,
            "failed" if error else "ok",
            Sample(readings, events=events),
            began,
            clock.mono() - began,
            error,
            self._engine_success_wall,
            self._engine_failures,
        )

    def recall(self, key: str, document: Mapping[str, Any], age_seconds: float) -> None:
        """Give the engine the lessons of an earlier run, and their age."""
        self._engine.recall(key, document, age_seconds)
        self._lessons[key] = dict(document)

    def lessons(self, *, last: bool = False) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield new lessons worth storing; all of them at the end of a run."""
        now = self.host.clock.mono()
        due = last or now - self._lessons_mono >= LESSON_SECONDS
        for key, document in self._engine.lessons().items():
            before = self._lessons.get(key, {})
            moved = document.get("ceiling_bytes") != before.get("ceiling_bytes")
            if moved or (due and document != before):
                self._lessons[key] = document
                yield key, document
        if due:
            self._lessons_mono = now

    def close(self) -> None:
        self._sampler.close()
