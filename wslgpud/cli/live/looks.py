"""One look at the machine, from the running daemon or by ourselves: the same record either way."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from wslgpud import documents
from wslgpud import status as summary
from wslgpud.catalogue import catalogue
from wslgpud.config import Config
from wslgpud.host import Host
from wslgpud.monitor import Monitor

TIMEOUT_SECONDS = 3.0
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


class Feed(Protocol):
    """Something that can be looked through."""

    def look(self) -> Look:
        """Look once; it may take seconds.

        Raises:
            NoLookError: nobody answers just now.
        """

    def close(self) -> None:
        """Give back what it holds."""


class DaemonFeed:
    """Asks a running daemon, ours or that of another machine."""

    def __init__(self, url: str) -> None:
        """Take its address, such as ``http://127.0.0.1:9655``."""
        self._url = url.rstrip("/")

    def look(self) -> Look:
        """See ``Feed.look``."""
        document = json.loads(self._get("/api/v1/status"))
        values = read_exposition(self._get("/metrics"))
        return Look(time.monotonic(), document, values, "daemon", self._url)

    def close(self) -> None:
        """See ``Feed.close``."""

    def _get(self, path: str) -> str:
        try:
            # The address comes from our own daemon or from who runs us; a proxy knows nothing of it.
            direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            with direct.open(self._url + path, timeout=TIMEOUT_SECONDS) as answer:
                return str(answer.read().decode())
        except (OSError, ValueError) as error:
            raise NoLookError(f"{self._url} does not answer: {error}") from error


class SocketFeed:
    """Asks a daemon of this machine whose HTTP server wants a password or TLS: the state, but no metrics."""

    def __init__(self, url: str, path: Path) -> None:
        """Take the address to show, and the daemon's own socket."""
        self._url = url
        self._path = path

    def look(self) -> Look:
        """See ``Feed.look``."""
        from wslgpud.serve.local import ask  # noqa: PLC0415 - only then

        try:
            return Look(time.monotonic(), ask(self._path), {}, "daemon", self._url)
        except PermissionError as error:
            raise NoLookError(f"the daemon at {self._url} is another user's; ask it with sudo") from error
        except (OSError, ValueError) as error:
            raise NoLookError(f"the daemon at {self._url} does not answer: {error}") from error

    def close(self) -> None:
        """See ``Feed.close``."""


class OwnFeed:
    """Looks at the machine itself: no daemon is needed, but nothing is remembered and nobody is warned."""

    def __init__(self, config: Config, host: Host, seen_by: str = "own look") -> None:
        """Prepare the sources; nothing is read before the first look."""
        self._monitor = Monitor(config, host)
        self._seen_by = seen_by

    def look(self) -> Look:
        """See ``Feed.look``."""
        state, _ = self._monitor.tick()
        values: dict[str, list[tuple[Mapping[str, str], float]]] = {}
        for spec, value, labels in state.snapshot.readings():
            series = values.setdefault(spec.sample, [])
            series.append((dict(zip(spec.labels, labels, strict=True)), float(value)))
        document = summary.status(state.snapshot, state.observation, state.forecasts)
        return Look(state.snapshot.mono, document, values, self._seen_by)

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


def daemon_feed(folders: list[Path]) -> Feed | None:
    """Return a feed of the daemon that keeps its data in one of ``folders``; None where none left a note."""
    for folder in folders:
        try:
            note = documents.parsed((folder / "daemon.json").read_text())
            url = str(note["url"])
        except (OSError, ValueError, KeyError):
            continue
        return SocketFeed(url, folder / str(note["socket"])) if "socket" in note else DaemonFeed(url)
    return None
