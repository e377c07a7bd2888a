"""Looks at the machine and judges what it sees: one tick of everything that needs no database and no port."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

from wslgpud.config import Config
from wslgpud.host import Host
from wslgpud.model import Forecast, Health, Observation, Sample, Snapshot, SourceReport, Transition
from wslgpud.observe import observe
from wslgpud.risk import metrics as risk_metrics
from wslgpud.risk.engine import Assessment, RiskEngine
from wslgpud.sampler import Pace, Sampler
from wslgpud.sources.registry import SOURCES

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class State:
    """What the last tick left for those who ask."""

    snapshot: Snapshot
    observation: Observation
    forecasts: tuple[Forecast, ...]


class Monitor:
    """Samples and assesses; the daemon ticks it, and ``status`` and ``record`` without a daemon do, too."""

    def __init__(self, config: Config, host: Host) -> None:
        """Build the sources and the engine; nothing is read before the first tick."""
        self.host = host
        self._sampler = Sampler(
            [source(host, config) for source in SOURCES], host.clock, config.sampling.interval_seconds
        )
        self._engine = RiskEngine()
        self._engine_error = ""
        self._engine_failures = 0
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
        observation = observe(snapshot)
        assessment, report = self._assess(observation)
        snapshot = snapshot.plus(report)
        transitions = [
            Transition(
                snapshot.wall, snapshot.mono, change.resource, "memory_exhaustion",
                change.old, change.new, change.headline, change.forecast,
            )
            for change in assessment.changes
        ]  # fmt: skip
        self.delay_seconds = self._pace.next_delay(
            snapshot.mono, {f.resource: f.headroom_bytes for f in assessment.forecasts}
        )
        snapshot = replace(snapshot, interval_seconds=self.delay_seconds)
        return State(snapshot, observation, assessment.forecasts), transitions

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
            self._engine_failures += 1
        self._engine_error = error
        report = SourceReport(
            "risk",
            health,
            Sample(tuple(risk_metrics.readings(assessment.forecasts))),
            began,
            self.host.clock.mono() - began,
            error,
            None if error else self.host.clock.wall(),
            self._engine_failures,
        )
        return assessment, report

    def close(self) -> None:
        """Give back what the sources hold."""
        self._sampler.close()
