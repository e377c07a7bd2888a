"""One look at the machine, from the running daemon or by ourselves: the same record either way."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from wslgpud import status as summary
from wslgpud.advise.drives import READERS, open_there, windows_points
from wslgpud.catalogue import catalogue
from wslgpud.client import Daemon, Unanswered, answering
from wslgpud.config import Config
from wslgpud.host import Host
from wslgpud.monitor import Monitor
from wslgpud.verdict import blindness, decide
from wslgpud.words import current, t

if TYPE_CHECKING:
    from wslgpud.cli.live.past import Past
    from wslgpud.cli.live.trail import Trail

#: a data set stays where it is
DRIVES_SECONDS = 10.0
#: between the two looks that it takes to know rates
SETTLE_SECONDS = 1.0
#: without a sample for so long, or for so many intervals, how things stand is not known; as in /-/healthy
STALE_SECONDS, STALE_INTERVALS = 10.0, 5
_CATALOGUE = catalogue()
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')

#: name of the samples as Prometheus has it -> (labels, value) of each series
Values = Mapping[str, Sequence[tuple[Mapping[str, str], float]]]


@dataclass(frozen=True)
class Look:
    """What was seen at ``mono``: the document of ``wslgpud.status`` and every metric.

    ``seen_by`` is "daemon", "own look" or "recording"; ``where`` the daemon's address.
    """

    mono: float
    document: Mapping[str, Any]
    values: Values
    seen_by: str
    where: str = ""
    #: name of a training that reads from a drive of Windows, and what it has open there
    on_windows: tuple[str, str] | None = None
    #: how old the sample was, and how often one is taken
    age_seconds: float = 0.0
    interval_seconds: float = 0.0

    def series(self, name: str, **labels: str) -> Iterator[tuple[Mapping[str, str], float]]:
        """Yield the series of a metric (no prefix, no suffix) that have these labels among theirs."""
        for found, value in self.values.get(_CATALOGUE[name].sample, ()):
            if labels.items() <= found.items():
                yield found, value

    def value(self, name: str, **labels: str) -> float | None:
        """Return the sum of those series, or None where there is none."""
        values = [value for _, value in self.series(name, **labels)]
        return sum(values) if values else None

    @property
    def stale(self) -> bool:
        """Tell whether the daemon answers and does not sample."""
        return self.age_seconds > max(STALE_SECONDS, STALE_INTERVALS * self.interval_seconds)


class NotYet(Unanswered):
    """The daemon is there, and has taken no sample yet; ``document`` is what it says."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        """Say so."""
        why = t("the daemon at {url} has just started and waits for its first sample", url=document["url"])
        super().__init__(why)
        self.document = document


class Feed(Protocol):
    """Something that can be looked through."""

    def look(self) -> Look:
        """Look once; it may take seconds.

        Raises:
            Unanswered: nobody answers just now.
        """

    def past(self, trail: Trail) -> Past:
        """Return where history comes from; ``trail`` is what was seen so far."""

    def close(self) -> None:
        """Give back what it holds."""


class DaemonFeed:
    """Asks a running daemon, ours or that of another machine."""

    def __init__(self, daemon: Daemon, *, here: bool = False) -> None:
        """Take the daemon; ``here`` tells that it is this machine's."""
        self._daemon = daemon
        self._watch = DriveWatch(Host()) if here else None

    def look(self) -> Look:
        """See ``Feed.look``."""
        document = self._daemon.status()
        if "at" not in document:
            raise NotYet(document)
        latest = self._daemon.ask("/api/v1/latest")
        try:
            values = read_values(latest["values"])
            age, interval = float(latest["age_seconds"]), float(latest["interval_seconds"])
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise self._daemon.stranger(error) from error
        found = self._watch.found(document) if self._watch else None
        return Look(time.monotonic(), document, values, "daemon", self._daemon.url, found, age, interval)

    def past(self, trail: Trail) -> Past:  # noqa: ARG002 - a daemon remembers more
        """See ``Feed.past``."""
        from wslgpud.cli.live.past import ApiPast  # noqa: PLC0415 - only when somebody asks

        return ApiPast(self._daemon)

    def close(self) -> None:
        """See ``Feed.close``."""


class OwnFeed:
    """Looks at the machine itself: no daemon is needed, but nothing is remembered and nobody is warned."""

    def __init__(
        self, config: Config, host: Host, seen_by: str = "own look", folder: Path | None = None
    ) -> None:
        """Prepare the sources; nothing is read before the first look.

        ``folder`` is where a daemon's data may lie.
        """
        self._monitor = Monitor(config, host)
        self._seen_by = seen_by
        self._host, self._folder = host, folder
        self._watch = DriveWatch(host)

    def look(self) -> Look:
        """See ``Feed.look``."""
        state, _ = self._monitor.tick()
        values: dict[str, list[tuple[Mapping[str, str], float]]] = {}
        for spec, value, labels in state.snapshot.readings():
            series = values.setdefault(spec.sample, [])
            series.append((dict(zip(spec.labels, labels, strict=True)), float(value)))
        verdict = decide(state.forecasts, (), blind=blindness(state.snapshot))
        document = {"seen_by": self._seen_by} | summary.status(state, verdict, current())
        return Look(
            state.snapshot.mono, document, values, self._seen_by, on_windows=self._watch.found(document)
        )

    def past(self, trail: Trail) -> Past:
        """See ``Feed.past``."""
        from wslgpud.cli.live.past import past_of  # noqa: PLC0415 - only when somebody asks

        return past_of(str(self._folder / "wslgpud.db") if self._folder else "", trail)

    def close(self) -> None:
        """See ``Feed.close``."""
        self._monitor.close()


def feed_of(
    settings: Config, folders: Sequence[Path], recorded: Host | None, complain: Callable[[str], None]
) -> Feed:
    """Return the feed of this machine's daemon, or of a recorded machine; else looks of our own."""
    if recorded is not None:
        return OwnFeed(settings, recorded, "recording")
    if found := answering(folders, complain):
        return DaemonFeed(found[0], here=True)
    # What a daemon kept that does not run now is history all the same.
    with_history = next((folder for folder in folders if (folder / "wslgpud.db").exists()), folders[0])
    return OwnFeed(settings, Host(), folder=with_history)


def looked(feed: Feed, trail: Trail) -> Look:
    """Look once, through a daemon; by ourselves twice, as rates need two looks.

    Raises:
        Unanswered: nobody answers just now.
    """
    first, look = not trail.known(), feed.look()
    trail.add(look)
    if first and look.seen_by == "own look":
        time.sleep(SETTLE_SECONDS)
        look = feed.look()
        trail.add(look)
    return look


def read_values(known: Mapping[str, float]) -> Values:
    """Read the values of ``/api/v1/latest``, whose names are as Prometheus writes them.

    Raises:
        ValueError: they are no figures. AttributeError and TypeError: they are no values at all.
    """
    values: dict[str, list[tuple[Mapping[str, str], float]]] = {}
    for name, value in known.items():
        sample, _, inside = name.partition("{")
        labels = {key: _unescaped(text) for key, text in _LABEL.findall(inside)}
        values.setdefault(sample, []).append((labels, float(value)))
    return values


def _unescaped(text: str) -> str:
    return re.sub(r"\\(.)", lambda found: "\n" if found[1] == "n" else found[1], text)


class DriveWatch:
    """Looks now and then whether a training has files of a Windows drive open; see the doctor's check."""

    def __init__(self, host: Host) -> None:
        """Nothing is looked at yet."""
        self._host = host
        self._looked = -math.inf
        self._found: tuple[str, str] | None = None

    def found(self, document: Mapping[str, Any]) -> tuple[str, str] | None:
        """Return the name of such a process of a document, and the path; None where there is none."""
        now = time.monotonic()
        if now - self._looked >= DRIVES_SECONDS:
            self._looked = now
            points = windows_points(self._host)
            names = {p["pid"]: p["name"] for p in document.get("processes", ()) if READERS & set(p["roles"])}
            seen = next(open_there(self._host, names, points), None) if points else None
            self._found = None if seen is None else (f"{names[seen[0]]} (pid {seen[0]})", seen[1])
        return self._found
