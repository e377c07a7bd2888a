"""The live view's samples: a running daemon's, or our own where none runs."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, Union

from wslgpud.app.process import host_at
from wslgpud.cli.common import complain, daemon_folders, loaded
from wslgpud.cli.live.drive_watch import DriveWatch
from wslgpud.cli.live_sample import OWN_LOOK, LiveSample, RecentSeries, Values
from wslgpud.client import DaemonClient, Unanswered, answering
from wslgpud.host import Host
from wslgpud.words import say

if TYPE_CHECKING:
    from wslgpud.cli.live.own_feed import OwnFeed
    from wslgpud.cli.live.series_source import Past

#: time between the two samples needed for rates
SETTLE_SECONDS = 1.0
_ESCAPE = re.compile(r"\\(.)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class NotYet(Unanswered):
    """The daemon runs, but has no sample yet; ``document`` is its answer."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        url = document["url"]
        super().__init__(say("the daemon at {url} has just started and waits for its first sample", url=url))
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

    def past(self, _: RecentSeries) -> Past:
        """Return the source of history: a daemon has more than the view."""
        from wslgpud.cli.live.series_source import api_past  # the database only on request

        return api_past(self._daemon)

    def close(self) -> None:
        """Do nothing: there are no resources to close."""


Feed: TypeAlias = Union[DaemonFeed, "OwnFeed"]


def feed_of(
    config: Path | None, state: Path | None, host_root: Path | None, complain: Callable[[str], None] = complain
) -> Feed:
    """Return the feed of this machine's daemon, or of a recorded machine; else our own, which needs a configuration."""
    folders = daemon_folders(state)
    if host_root is None and (running := answering(folders, complain)):
        return DaemonFeed(running[0], here=True)
    settings = loaded(config).config
    from wslgpud.cli.live.own_feed import OwnFeed  # the sources and the engine only without a daemon

    if host_root is not None:
        return OwnFeed(settings, host_at(host_root), "recording")
    # The history of a stopped daemon is useful as well.
    databases = (folder / "wslgpud.db" for folder in folders)
    return OwnFeed(settings, Host(), database=next(filter(Path.exists, databases), None))


def looked(feed: Feed, trail: RecentSeries) -> LiveSample:
    """Take a sample through a daemon; without one take two, as rates need two. It may raise ``Unanswered``."""
    first, look = not trail.known(), feed.look()
    trail.add(look)
    if first and look.seen_by == OWN_LOOK:
        time.sleep(SETTLE_SECONDS)
        look = feed.look()
        trail.add(look)
    return look


def read_values(known: Mapping[str, float]) -> Values:
    """Parse the values of ``/api/v1/latest``, whose names are in Prometheus' notation."""
    values: dict[str, list[tuple[Mapping[str, str], float]]] = {}
    for name, value in known.items():
        sample, _, inside = name.partition("{")
        labels = {
            key: _ESCAPE.sub(lambda e: "\n" if e[1] == "n" else e[1], text) for key, text in _LABEL.findall(inside)
        }
        values.setdefault(sample, []).append((labels, float(value)))
    return values
