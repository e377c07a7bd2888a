"""One look at the machine, from the running daemon or by ourselves: the same record either way."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from wslgpud import documents, outgoing
from wslgpud import status as summary
from wslgpud.advise.drives import READERS, open_there, windows_points
from wslgpud.catalogue import catalogue
from wslgpud.config import Config
from wslgpud.host import Host
from wslgpud.monitor import Monitor

if TYPE_CHECKING:
    from wslgpud.cli.live.past import Past
    from wslgpud.cli.live.trail import Trail

TIMEOUT_SECONDS = 3.0
#: of an answer; a year of a hundred series has 10 MB
_MOST_BYTES = 64 << 20
#: a data set stays where it is
DRIVES_SECONDS = 10.0
_CATALOGUE = catalogue()

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

    def series(self, name: str, **labels: str) -> Iterator[tuple[Mapping[str, str], float]]:
        """Yield the series of a metric (no prefix, no suffix) that have these labels among theirs."""
        for found, value in self.values.get(_CATALOGUE[name].sample, ()):
            if labels.items() <= found.items():
                yield found, value

    def value(self, name: str, **labels: str) -> float | None:
        """Return the sum of those series, or None where there is none."""
        values = [value for _, value in self.series(name, **labels)]
        return sum(values) if values else None


class NoLookError(Exception):
    """The daemon gave no answer; the text says why."""


class NotYetError(NoLookError):
    """The daemon is there, and has taken no sample yet."""


class Feed(Protocol):
    """Something that can be looked through."""

    def look(self) -> Look:
        """Look once; it may take seconds.

        Raises:
            NoLookError: nobody answers just now.
        """

    def past(self, trail: Trail) -> Past:
        """Return where history comes from; ``trail`` is what was seen so far."""

    def close(self) -> None:
        """Give back what it holds."""


class DaemonFeed:
    """Asks a running daemon, ours or that of another machine."""

    def __init__(self, url: str, watch: DriveWatch | None = None) -> None:
        """Take its address, such as ``http://127.0.0.1:9655``; ``watch`` if it is this machine's."""
        self._url = url.rstrip("/")
        self._watch = watch

    def look(self) -> Look:
        """See ``Feed.look``."""
        try:
            document = _begun(documents.parsed(self._get("/api/v1/status")))
            values = read_exposition(self._get("/metrics"))
        except ValueError as error:
            raise NoLookError(f"what answers at {self._url} is no wslgpud: {error}") from error
        found = self._watch.found(document) if self._watch else None
        return Look(time.monotonic(), document, values, "daemon", self._url, found)

    def past(self, trail: Trail) -> Past:  # noqa: ARG002 - a daemon remembers more
        """See ``Feed.past``."""
        from wslgpud.cli.live.past import ApiPast  # noqa: PLC0415 - only when somebody asks

        return ApiPast(self._get, self._url)

    def close(self) -> None:
        """See ``Feed.close``."""

    def _get(self, path: str) -> str:
        try:
            address = outgoing.parsed(self._url + path)
            answer = outgoing.exchange(address, deadline_seconds=TIMEOUT_SECONDS, most_bytes=_MOST_BYTES)
            return answer.decode()
        except (ValueError, outgoing.Refused, outgoing.Unreachable) as error:
            raise NoLookError(f"{self._url} does not answer: {error}") from error


class SocketFeed:
    """Asks a daemon of this machine whose HTTP server wants a password or TLS."""

    def __init__(self, url: str, path: Path, watch: DriveWatch, database: str) -> None:
        """Take the address to show, the daemon's own socket, and where its history is."""
        self._url = url
        self._path = path
        self._watch = watch
        self._database = database

    def look(self) -> Look:
        """See ``Feed.look``."""
        from wslgpud.serve.local import ask  # noqa: PLC0415 - only then

        try:
            document = _begun(ask(self._path))
            values = read_exposition(document.pop("metrics", ""))
            found = self._watch.found(document)
            return Look(time.monotonic(), document, values, "daemon", self._url, found)
        except PermissionError as error:
            raise NoLookError(f"the daemon at {self._url} is another user's; ask it with sudo") from error
        except (OSError, ValueError) as error:
            raise NoLookError(f"the daemon at {self._url} does not answer: {error}") from error

    def past(self, trail: Trail) -> Past:
        """See ``Feed.past``."""
        from wslgpud.cli.live.past import past_of  # noqa: PLC0415 - only when somebody asks

        return past_of(self._database, trail)

    def close(self) -> None:
        """See ``Feed.close``."""


def _begun(document: dict[str, Any]) -> dict[str, Any]:
    """Return a document that holds a sample.

    Raises:
        NotYetError: the daemon has taken none yet.
    """
    if "at" not in document:
        raise NotYetError("the daemon has just started and waits for its first sample")
    return document


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
        document = summary.status(
            state.snapshot, state.observation, state.forecasts, running=state.running, locks=state.locks
        )
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


def read_exposition(text: str) -> Values:
    """Read what ``/metrics`` serves in the classic text format.

    Raises:
        ValueError: it is not that format.
    """
    from prometheus_client.parser import text_string_to_metric_families  # noqa: PLC0415 - 30 ms

    values: dict[str, list[tuple[Mapping[str, str], float]]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            values.setdefault(sample.name, []).append((sample.labels, sample.value))
    return values


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


def daemon_feed(folders: list[Path], database: str = "") -> Feed | None:
    """Return a feed of the daemon that keeps its data in one of ``folders``; None where none left a note.

    ``database`` is where its history lies, if not in that folder.
    """
    for folder in folders:
        try:
            note = documents.parsed(documents.read(folder / "daemon.json"))
            url = str(note["url"])
        except (OSError, ValueError, KeyError):
            continue
        watch = DriveWatch(Host())
        if "socket" not in note:
            return DaemonFeed(url, watch)
        history = database or str(folder / "wslgpud.db")
        return SocketFeed(url, folder / str(note["socket"]), watch, history)
    return None
