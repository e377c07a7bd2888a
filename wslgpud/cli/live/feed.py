"""The live view's samples: a running daemon's, or our own where none runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wslgpud.advise.live_sample import OWN_LOOK, DriveWatch, LiveSample, RecentSeries
from wslgpud.app.process import host_at
from wslgpud.cli.common import complain, daemon_folders, loaded
from wslgpud.client import DaemonClient, Unanswered, answering, read_values
from wslgpud.config import Config
from wslgpud.host import Host
from wslgpud.words import current

if TYPE_CHECKING:
    from wslgpud.cli.live.past import Past

#: time between the two samples needed for rates
SETTLE_SECONDS = 1.0


class NotYet(Unanswered):
    """The daemon runs, but has no sample yet; ``document`` is its answer."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        super().__init__("the daemon at {url} has just started and waits for its first sample", url=document["url"])
        self.document = document


class DaemonFeed:
    """Queries a running daemon, ours or another machine's."""

    def __init__(self, daemon: DaemonClient, *, here: bool = False) -> None:
        self._daemon = daemon
        self._watch = DriveWatch(Host()) if here else None

    def look(self) -> LiveSample:
        """Take a sample, which may take seconds, or raise ``Unanswered``."""
        document = self._daemon.status()
        if "at" not in document:
            raise NotYet(document)
        latest = self._daemon.ask("/api/v1/latest")
        try:
            values = read_values(latest["values"])
            age, interval = float(latest["age_seconds"]), float(latest["interval_seconds"])
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise self._daemon.stranger(error) from error
        on_windows = self._watch.slow_reader(document) if self._watch else None
        return LiveSample(time.monotonic(), document, values, "daemon", self._daemon.url, on_windows, age, interval)

    def past(self) -> Past | None:
        """Return the source of history, None without one."""
        from wslgpud.cli.live.past import api_past  # the database only on request

        return api_past(self._daemon)

    def close(self) -> None:
        """Do nothing: there are no resources to close."""


class OwnFeed:
    """Samples the machine itself: needs no daemon, but stores nothing and sends no warnings."""

    def __init__(self, config: Config, host: Host, seen_by: str = OWN_LOOK) -> None:
        """Prepare the sources; nothing is read yet."""
        from wslgpud.sampling.assessor import Assessor  # the sources and the engine only without a daemon

        self._monitor = Assessor(config, host)
        self._seen_by, self._watch = seen_by, DriveWatch(host)

    def look(self) -> LiveSample:
        from wslgpud.serve import status as summary
        from wslgpud.verdict import blindness, decide, unwatched

        snapshot, _ = self._monitor.tick()
        values: dict[str, list[tuple[Mapping[str, str], float]]] = {}
        for spec, value, labels in snapshot.readings():
            series = values.setdefault(spec.exposed_name, [])
            series.append((dict(zip(spec.labels, labels, strict=True)), float(value)))
        verdict = decide(snapshot.forecasts, (), blind=blindness(snapshot))
        if self._seen_by == OWN_LOOK:
            verdict = unwatched(verdict)
        state = summary.TickState(snapshot, verdict, running=self._monitor.running())
        document = {"seen_by": self._seen_by} | summary.status(state, current())
        on_windows = self._watch.slow_reader(document)
        return LiveSample(snapshot.mono, document, values, self._seen_by, on_windows=on_windows)

    def past(self) -> None:
        """Return None: only a daemon keeps a history."""

    def close(self) -> None:
        self._monitor.close()


Feed = DaemonFeed | OwnFeed


def feed_of(
    config: Path | None, state: Path | None, host_root: Path | None, complain: Callable[[str], None] = complain
) -> Feed:
    """Return the feed of this machine's daemon, or of a recorded machine; else our own, which needs a configuration."""
    if host_root is None:
        silent: list[str] = []
        if running := answering(daemon_folders(state), silent.append):
            return DaemonFeed(running[0], here=True)  # one that was killed earlier has only left its socket
        for text in silent:
            complain(text)
    return OwnFeed(loaded(config).config, host_at(host_root), OWN_LOOK if host_root is None else "recording")


def looked(feed: Feed, trail: RecentSeries) -> LiveSample:
    """Take a sample through a daemon; without one take two, as rates need two. It may raise ``Unanswered``."""
    first, look = not trail.known(), feed.look()
    trail.add(look)
    if first and look.seen_by == OWN_LOOK:
        time.sleep(SETTLE_SECONDS)
        look = feed.look()
        trail.add(look)
    return look
