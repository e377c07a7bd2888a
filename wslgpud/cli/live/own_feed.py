"""Samples the machine in this process, where no daemon runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from wslgpud.cli.live.drive_watch import DriveWatch
from wslgpud.cli.live_sample import OWN_LOOK, LiveSample, RecentSeries
from wslgpud.config import Config
from wslgpud.host import Host
from wslgpud.sampling.pipeline import SamplingPipeline
from wslgpud.serve import status as summary
from wslgpud.verdict import blindness, decide, unwatched
from wslgpud.words import current

if TYPE_CHECKING:
    from wslgpud.cli.live.series_source import Past


class OwnFeed:
    """Samples the machine itself: needs no daemon, but stores nothing and sends no warnings."""

    def __init__(self, config: Config, host: Host, seen_by: str = OWN_LOOK, database: Path | None = None) -> None:
        """Prepare the sources; nothing is read yet. ``database`` is that of a daemon, if there is one."""
        self._monitor = SamplingPipeline(config, host)
        self._seen_by, self._database = seen_by, database
        self._watch = DriveWatch(host)

    def look(self) -> LiveSample:
        state, _ = self._monitor.tick()
        values: dict[str, list[tuple[Mapping[str, str], float]]] = {}
        for spec, value, labels in state.snapshot.readings():
            series = values.setdefault(spec.exposed_name, [])
            series.append((dict(zip(spec.labels, labels, strict=True)), float(value)))
        verdict = decide(state.forecasts, (), blind=blindness(state.snapshot))
        if self._seen_by == OWN_LOOK:
            verdict = unwatched(verdict)
        document = {"seen_by": self._seen_by} | summary.status(summary.TickState(state, verdict), current())
        return LiveSample(
            state.snapshot.mono, document, values, self._seen_by, on_windows=self._watch.slow_reader(document)
        )

    def past(self, trail: RecentSeries) -> Past:
        """Return the source of history: a database, else ``trail``."""
        from wslgpud.cli.live.series_source import past_of  # the database only on request

        return past_of(self._database, trail)

    def close(self) -> None:
        self._monitor.close()
