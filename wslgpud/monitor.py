"""Looks at the machine and judges what it sees: one tick of everything that needs no database and no port."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from wslgpud.admission import Admission
from wslgpud.config import Config
from wslgpud.event import Event
from wslgpud.host import Host
from wslgpud.model import Health, Observation, Sample, SourceReport, StressResult, Transition
from wslgpud.observe import observe
from wslgpud.risk import metrics as risk_metrics
from wslgpud.risk.ceilings import Failure
from wslgpud.risk.engine import Assessment, RiskEngine
from wslgpud.risk.spill import card_ends
from wslgpud.risk.suspects import ending_facts
from wslgpud.running.read import Notes, expected, running
from wslgpud.sampler import Pace, Sampler
from wslgpud.sources.registry import SOURCES
from wslgpud.status import State
from wslgpud.stress.tested import CardsUnderTest
from wslgpud.words import template

log = logging.getLogger(__name__)

_PROGRAM_ENDED = template(
    "an allocation on {resource} has probably failed at {used_bytes}: {program} ended right after use had "
    "grown so far"
)
_FREE_AGAIN = template(
    "an allocation on {resource} has probably failed at {used_bytes}: much of it was free again right after "
    "use had grown so far"
)

LESSON_SECONDS = 600.0
"""What the engine has learned is handed out to be kept at most this often, unless a ceiling has moved."""


class Monitor:
    """Samples and assesses; the daemon ticks it, and ``status`` and ``record`` without a daemon do, too."""

    def __init__(self, config: Config, host: Host) -> None:
        """Build the sources and the engine; nothing is read before the first tick."""
        self.host = host
        self._sampler = Sampler(
            [source(host, config) for source in SOURCES], host.clock, config.sampling.interval_seconds,
            patient=host.recorded,
        )  # fmt: skip
        self._engine = RiskEngine()
        self._notes = Notes(host)
        self._tests = CardsUnderTest(host, config.stress, self._notes)
        self._admission = Admission()
        self._engine_error = ""
        self._engine_failures = 0
        self._lessons: dict[str, dict[str, Any]] = {}
        self._lessons_mono = host.clock.mono()
        self._card_ends: Mapping[str, float] = {}
        self._pace = Pace(config.sampling)
        self._interval = config.sampling.interval_seconds
        self._last_full: float | None = None
        self.delay_seconds = self._interval

    def tick(self) -> tuple[State, list[Transition]]:
        """Look once at the machine."""
        now = self.host.clock.mono()
        # Whichever tick is nearest to the ordinary interval is a full one: at 0.8 s, the dear sources would
        # otherwise be read every 1.6 s, more rarely than on a calm machine.
        fast = self._last_full is not None and now - self._last_full + self.delay_seconds / 2 < self._interval
        if not fast:
            self._last_full = now
        snapshot = self._sampler.tick(fast=fast, planned_seconds=self.delay_seconds)
        notes = self._notes.read()
        observation = replace(observe(snapshot), expected=expected(notes, snapshot.processes))
        assessment, report = self._assess(self._tests.untested(observation))
        snapshot = self._admission(snapshot.plus(report))
        transitions = [
            Transition(
                snapshot.wall, snapshot.mono, change.resource, "memory_exhaustion",
                change.old, change.new, change.message, change.forecast,
                facts=ending_facts(change.forecast, snapshot.wall),
            )
            for change in assessment.changes
        ]  # fmt: skip
        self.delay_seconds = self._pace.next_delay(
            snapshot.mono, {f.resource: f.headroom_bytes for f in assessment.forecasts}
        )
        snapshot = replace(snapshot, interval_seconds=self.delay_seconds)
        runs = running(notes, self._notes.trust, self.host.clock.mono())
        return State(snapshot, observation, assessment.forecasts, runs, self._tests.held), transitions

    def _assess(self, observation: Observation) -> tuple[Assessment, SourceReport]:
        """Ask the engine. A bug in it costs what it remembers, never the samples, the metrics or the page."""
        began = self.host.clock.mono()
        health: Health = "ok"
        error = ""
        try:
            assessment = self._engine.observe(observation)
        except Exception as bug:
            error = f"internal error: {type(bug).__name__}: {bug}"
            if error != self._engine_error:
                log.exception("the risk engine failed and starts anew; please report this")
            health, assessment, self._engine = "failed", Assessment((), ()), RiskEngine()
            self._engine.card_ends = self._card_ends
            self._engine_failures += 1
        self._engine_error = error
        report = SourceReport(
            "risk",
            health,
            Sample(
                tuple(risk_metrics.readings(assessment.forecasts)),
                events=tuple(_event(failure, self.host.clock.wall()) for failure in assessment.failures),
            ),
            began,
            self.host.clock.mono() - began,
            error,
            None if error else self.host.clock.wall(),
            self._engine_failures,
        )
        return assessment, report

    def learn(self, runs: Iterable[StressResult]) -> None:
        """Take note of what stress runs have measured of the cards; all of them, oldest first."""
        self._card_ends = self._engine.card_ends = card_ends(runs)

    def recall(self, lessons: Mapping[str, tuple[Mapping[str, Any], float]]) -> None:
        """Give the engine what earlier runs have learned: by key, and how many seconds ago."""
        for key, (document, age_seconds) in lessons.items():
            self._engine.recall(key, document, age_seconds)
            self._lessons[key] = dict(document)

    def lessons(self, *, last: bool = False) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield what was learned since the last time and is worth keeping; all of it at the end of a run."""
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
        """Give back what the sources hold."""
        self._sampler.close()


def _event(failure: Failure, wall: float) -> Event:
    """Put a failure that nobody told of on record."""
    text = _PROGRAM_ENDED if failure.program else _FREE_AGAIN
    event = Event("vram_exhausted", wall, text, failure._asdict())
    log.info("%s", event.message)
    return event
