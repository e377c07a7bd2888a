"""The JSON API's present: the last sample, the doctor's findings, the daemon itself; and how queries are read.

It is described in ``openapi.json``.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import platform
import re
import secrets
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from wslgpud import __version__
from wslgpud.advise.checkups import Findings
from wslgpud.model import Reading, Snapshot
from wslgpud.series.curves import name_of
from wslgpud.serve.publisher import Publisher
from wslgpud.serve.router import CachedDocument, Problem, Request, Response, Route, dumps, packed
from wslgpud.store import StoreStats
from wslgpud.store.records import shell_pattern
from wslgpud.words import LANGUAGES, translator
from wslgpud.words.units import nearest

OPENAPI = Path(__file__).with_name("static") / "openapi.json"
#: more parameters than any request needs
_MAX_PARAMETERS = 100
#: longer than any metric name with a label or two
MAX_PATTERN = 256
#: seconds since the epoch up to the year 5138: larger numbers are milliseconds by mistake
_LAST_WALL = 1e11
#: int() alone would take "1_000", " 7" and digits of other scripts
_UINT = re.compile("[0-9]{1,18}")


def language_of(request: Request) -> str:
    """Return the language requested by ``lang``; English by default.

    Raises Problem: that language is not available.
    """
    return Query(request.query, ("lang",)).language()


def number_of(request: Request) -> int:
    """Return the number at the end of a path. Raises Problem: there is no number."""
    last = request.path.rpartition("/")[2]
    if not _UINT.fullmatch(last):
        raise Problem(400, "the last part of the path must be a number")
    return int(last)


class Query:
    def __init__(self, text: str, known: Sequence[str]) -> None:
        """Parse a query. Raises Problem: it is malformed, or has a parameter that is not ``known``."""
        try:
            self._values = parse_qs(text, keep_blank_values=True, max_num_fields=_MAX_PARAMETERS, errors="strict")
        except ValueError as error:
            raise Problem(400, f"the query cannot be read: {error}") from error
        for name in self._values:
            if name not in known:
                near = nearest(name, known)
                hint = f"did you mean {near}?" if near else f"known are: {', '.join(known) or 'none'}"
                raise Problem(400, f"unknown parameter {name[:40]!r}; {hint}")

    def all(self, name: str) -> list[str]:
        return self._values.get(name, [])

    def text(self, name: str) -> str | None:
        """Return a parameter; None when it is absent. Raises Problem: it was given twice."""
        values = self.all(name)
        if len(values) > 1:
            raise Problem(400, f"{name} may be given only once")
        return values[0] if values else None

    def pattern(self, name: str) -> Callable[[str], bool]:
        """Return a predicate that matches series names against a shell pattern, by full or metric name.

        Without the parameter every name matches.

        Raises Problem: it is longer than ``MAX_PATTERN``, or was given twice.
        """
        given = self.text(name)
        if given is None:
            return lambda _: True
        if len(given) > MAX_PATTERN:
            raise Problem(400, f"{name} may have at most {MAX_PATTERN} characters")
        matches = shell_pattern(given)
        return lambda series: bool(matches(series) or matches(series.partition("{")[0]))

    def choice(self, name: str, choices: Sequence[str], default: str) -> str:
        given = self.text(name)
        if given is not None and given not in choices:
            raise Problem(400, f"{name} must be one of: {', '.join(choices)}")
        return default if given is None else given

    def language(self) -> str:
        return self.choice("lang", LANGUAGES, "en")

    def integer(self, name: str, low: int, high: int) -> int | None:
        """Return a whole number within bounds (both included); None when it is absent."""
        given = self.text(name)
        if given is None:
            return None
        if not _UINT.fullmatch(given) or not low <= int(given) <= high:
            raise Problem(400, f"{name} must be a whole number from {low} to {high}")
        return int(given)

    def moment(self, name: str) -> float | None:
        """Return a moment in seconds since the epoch, given as such or in RFC 3339 format."""
        given = self.text(name)
        if given is None:
            return None
        with suppress(ValueError, OverflowError):
            wall = _moment(given)
            if 0 <= wall <= _LAST_WALL:
                return wall
        raise Problem(400, f"{name} must be seconds since 1970, or a time such as 2026-11-21T03:30:00Z")


def _moment(given: str) -> float:
    try:
        return float(given)
    except ValueError:
        # An unescaped "+" has become a space; Python before 3.11 does not know Z.
        parsed = datetime.fromisoformat(given.strip().replace(" ", "+").replace("Z", "+00:00"))
        return (parsed if parsed.tzinfo else parsed.replace(tzinfo=timezone.utc)).timestamp()


def routes(
    publisher: Publisher,
    now: Callable[[str], Mapping[str, Any]],
    store: Callable[[], StoreStats],
    doctor: Callable[[], tuple[float, Findings] | None],
) -> list[Route]:
    """Return the routes of the current state; ``now``, which takes a language, must not block.

    ``doctor``, which may take seconds, is ``Checkups.last``.
    """

    def checked(request: Request) -> Response:
        words = translator(language_of(request))
        try:
            known = doctor()
        except TimeoutError as error:
            raise Problem(503, "the doctor is looking at the machine; try again in a moment") from error
        if known is None:
            raise Problem(503, "the doctor could not look at the machine; the daemon's log says why")
        findings = [{name: words.text(message) for name, message in finding.items()} for finding in known[1]]
        return packed(request, dumps({"wall": known[0], "findings": findings}))

    return [
        Route("/api/v1/live", live(publisher, now)),
        Route("/api/v1/latest", lambda request: _latest(request, publisher)),
        Route("/api/v1/doctor", checked, waits=True),
        Route("/api/v1/self", lambda request: _own(request, publisher, store()), waits=True),
        Route("/api/v1/openapi.json", lambda request: packed(request, OPENAPI.read_bytes()), waits=True),
    ]


def live(publisher: Publisher, now: Callable[[str], Mapping[str, Any]]) -> Callable[[Request], Response]:
    """Return the handler of ``/api/v1/live``: the status in a language (must not block), and the last values.

    It runs on the server's thread, like a scrape.
    """
    #: id of this run of the daemon, by which the page detects a restart
    instance = secrets.token_hex(8)

    @functools.lru_cache(len(LANGUAGES))
    def rendered(language: str, sequence: int | None) -> CachedDocument:
        document: dict[str, Any] = {"instance": instance, "host": socket.gethostname(), "status": now(language)}
        if sequence is not None and (latest := publisher.latest) is not None:
            document |= {"sequence": latest.sequence, **_times(latest), "values": values(latest.readings())}
        return CachedDocument(dumps(document), "application/json")

    def answer(request: Request) -> Response:
        # The age is in a header, so that one text serves all; by the monotonic clock, because WSL's wall clock drifts
        # from that of the browser on Windows.
        age = {"Wslgpud-Age": f"{publisher.seconds_since_tick():.3f}"}
        sequence = publisher.latest.sequence if publisher.latest else None
        return rendered(language_of(request), sequence).answer(request, age)

    return answer


def _times(latest: Snapshot) -> dict[str, float]:
    return {"wall": round(latest.wall, 3), "interval_seconds": round(latest.interval_seconds, 3)}


def values(readings: Iterable[Reading]) -> dict[str, float]:
    """Return series and their values; identities (info) and non-finite numbers are omitted."""
    return {
        name_of(spec.exposed_name, zip(spec.labels, labels, strict=True)): value
        for spec, value, labels in readings
        if spec.kind != "info" and math.isfinite(value)
    }


def _latest(request: Request, publisher: Publisher) -> Response:
    matches = Query(request.query, ("match",)).pattern("match")
    snapshot = publisher.latest
    if snapshot is None:
        raise Problem(503, "there is no sample yet; try again in a second")
    known = values(snapshot.readings())
    document = {
        **_times(snapshot),
        "age_seconds": round(publisher.seconds_since_tick(), 3),
        "values": {name: known[name] for name in sorted(known) if matches(name)},
    }
    return packed(request, dumps(document))


def _own(request: Request, publisher: Publisher, store: StoreStats) -> Response:
    """Answer with the daemon's own resource use."""
    Query(request.query, ())
    document = {
        "version": __version__,
        "python": platform.python_version(),
        "uptime_seconds": round(publisher.uptime_seconds(), 1),
        "processes": _processes(),
        "store": {k: v for k, v in dataclasses.asdict(store).items() if v not in (None, "")},
    }
    return packed(request, dumps(document))


def _processes() -> list[dict[str, Any]]:
    """Return pid, name, CPU seconds and memory (proportional set size) of us and our children."""
    import psutil  # imported only on request

    processes: list[dict[str, Any]] = []
    own = psutil.Process()
    for process in (own, *own.children()):
        with suppress(psutil.Error), process.oneshot():  # children that end meanwhile are omitted
            used = process.cpu_times()
            seconds = round(used.user + used.system, 2)
            processes.append({"pid": process.pid, "name": process.name(), "cpu_seconds": seconds})
            processes[-1]["pss_bytes"] = process.memory_full_info().pss  # omitted where the kernel does not report it
    return processes
