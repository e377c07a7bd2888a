"""The read-only JSON API below ``/api/v1/``; ``static/openapi.json`` documents it."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import heapq
import platform
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from wslgpud import __version__
from wslgpud.metrics import MetricSpec
from wslgpud.model import Number
from wslgpud.serve import api_series, api_words, own
from wslgpud.serve.api_live import Live, packed, values
from wslgpud.serve.api_query import PATTERN_MAX, Query, language_of
from wslgpud.serve.http import Problem, Request, Response, Route, dumps
from wslgpud.serve.publisher import Publisher
from wslgpud.steps import step_for
from wslgpud.words import Said, Tongue, tongue

LEVELS = ("info", "warning", "critical", "emergency")
#: entries of one answer by default, and at most
PAGE, MOST = 50, 500
MOST_SERIES_LISTED = 2000
#: recorded processes are read in full, so a week of them takes about a second
PROCESSES_SECONDS = 7 * 86400.0
#: the doctor looks at the whole machine, which takes a second or more
CHECKUP_SECONDS = 300.0
#: who asks while he looks waits for the same answer, but no longer than this
CHECKUP_PATIENCE_SECONDS = 3.0
#: a doctor who failed is not sent for again before this
CHECKUP_RETRY_SECONDS = 30.0
#: series of the nearest metric that a wrong name is compared with; each comparison costs up to a millisecond
MOST_COMPARED = 50
#: what a question means that names no time
HOUR = 3600.0
OPENAPI = Path(__file__).with_name("static") / "openapi.json"


class Past(Protocol):
    """What is needed of history; every method may wait for the disk."""

    def series(self, host: str | None = None) -> Sequence[Any]:
        """Return the series of a machine, this one if none is named."""

    def hosts(self) -> Sequence[str]:
        """Return the machines whose history there is."""

    def columns(self, ref: Any, start: float, end: float) -> tuple[list[float], list[Number]]:
        """Return times and values of a series as sampled."""

    def summaries(self, ref: Any, start: float, end: float, step: float) -> Sequence[Any]:
        """Return what is known of a series over each step."""

    def processes(self, start: float, end: float) -> Sequence[Any]:
        """Return the recorded processes."""

    def incidents(
        self, least: str, language: str | None, before: int | None, limit: int
    ) -> tuple[list[dict[str, Any]], int]:
        """Return the newest ``limit`` incidents numbered lower than ``before``, and how many there are."""

    def incident(self, number: int, language: str | None) -> dict[str, Any] | None:
        """Return the report of an incident."""

    def stress_runs(self, language: str, before: int | None, limit: int) -> tuple[list[dict[str, Any]], int]:
        """Return the newest ``limit`` stress runs numbered lower than ``before``, and how many there are."""

    def stress_run(self, number: int, language: str) -> dict[str, Any] | None:
        """Return one stress run with all its rows."""


class Present(NamedTuple):
    """Whom to ask how things are now.

    ``status`` words how things stand in a language and must not wait for anything; ``store`` gives a
    dataclass of the store's figures about itself; ``doctor`` gives what the doctor finds, and may take
    seconds.
    """

    status: Callable[[str], Mapping[str, Any]]
    store: Callable[[], Any]
    doctor: Callable[[], list[dict[str, Said]]]


def routes(
    publisher: Publisher, catalogue: Iterable[MetricSpec], past: Past, present: Present
) -> list[Route]:
    """Return the paths of the API but ``status``.

    Args:
        publisher: where the last snapshot is.
        catalogue: all metrics.
        past: history.
        present: how things are now.
    """
    api = _Api(publisher, {spec.name: spec for spec in catalogue}, past, present)
    return [
        Route("/api/v1/live", Live(publisher, present.status).answer),
        Route("/api/v1/latest", api.latest),
        Route("/api/v1/series", api.series, heavy=True),
        Route("/api/v1/range", api.range, heavy=True),
        Route("/api/v1/processes", api.processes, heavy=True),
        Route("/api/v1/incidents", api.incidents, heavy=True),
        Route("/api/v1/incidents/{id}", api.incident, heavy=True),
        Route("/api/v1/stress", api.stress_runs, heavy=True),
        Route("/api/v1/stress/{id}", api.stress_run, heavy=True),
        Route("/api/v1/doctor", api.doctor, waits=True),
        Route("/api/v1/self", api.own, waits=True),
        Route("/api/v1/words", api_words.answer, heavy=True),
        Route("/api/v1/openapi.json", lambda request: packed(request, OPENAPI.read_bytes())),
    ]


class Checkup:
    """Sends for the doctor when somebody asks, and no more often than he has anything new to say."""

    def __init__(self, doctor: Callable[[], list[dict[str, Said]]], publisher: Publisher) -> None:
        """Nothing is looked at before the first question."""
        self._doctor = doctor
        self._publisher = publisher
        self._lock = threading.Lock()
        self._known: tuple[float, list[dict[str, Said]]] | None = None
        #: when he may be sent for again
        self._due_seconds = 0.0

    def last(self, words: Tongue) -> dict[str, Any]:
        """Return when the machine was checked, and what was found, in a language."""
        wall, findings = self._last()
        worded = [{name: words.text(said) for name, said in one.items()} for one in findings]
        return {"wall": wall, "findings": worded}

    def _last(self) -> tuple[float, list[dict[str, Said]]]:
        # A doctor whom a driver keeps waiting must not keep all threads waiting with him.
        if not self._lock.acquire(timeout=CHECKUP_PATIENCE_SECONDS):
            raise Problem(503, "the doctor is looking at the machine; try again in a moment")
        try:
            now = self._publisher.uptime_seconds()
            if now >= self._due_seconds:
                # Set first: who makes him fail must not have him sent for at each request.
                self._due_seconds, self._known = now + CHECKUP_RETRY_SECONDS, None
                self._known = round(self._publisher.wall(), 3), self._doctor()
                self._due_seconds = now + CHECKUP_SECONDS
            if self._known is None:
                raise Problem(503, "the doctor could not look at the machine; the daemon's log says why")
            return self._known
        finally:
            self._lock.release()


class _Unwritten(NamedTuple):
    """A series that has been read and not yet written: no machine has a history of it."""

    metric: str
    labels: tuple[tuple[str, str], ...]
    host: str = ""


class _Api:
    """The handlers."""

    def __init__(
        self,
        publisher: Publisher,
        catalogue: Mapping[str, MetricSpec],
        past: Past,
        present: Present,
    ) -> None:
        self._publisher = publisher
        self._checkup = Checkup(present.doctor, publisher)
        self._store = present.store
        self._catalogue = catalogue
        self._past = past

    def latest(self, request: Request) -> Response:
        """Every value of the last sample."""
        matches = Query(request.query, ("match",)).pattern("match")
        snapshot = self._publisher.latest
        if snapshot is None:
            raise Problem(503, "there is no sample yet; try again in a second")
        known = values(snapshot.readings())
        document = {
            "wall": round(snapshot.wall, 3),
            "age_seconds": round(self._publisher.seconds_since_tick(), 3),
            "interval_seconds": round(snapshot.interval_seconds, 3),
            "values": {name: known[name] for name in sorted(known) if matches(name)},
        }
        return packed(request, dumps(document))

    def series(self, request: Request) -> Response:
        """The series that have a history."""
        query = Query(request.query, ("match", "limit", "after", "host"))
        limit = query.whole("limit", 1, MOST_SERIES_LISTED) or MOST_SERIES_LISTED
        matches, after = query.pattern("match"), query.text("after") or ""
        named = self._named(query.text("host"))
        known = {name: ref for name, ref in named if name > after and matches(name)}
        names = heapq.nsmallest(limit + 1, known)
        document: dict[str, Any] = {
            "series": [api_series.described(known[name], self._catalogue) for name in names[:limit]]
        }
        if len(names) > limit:
            document["next"] = names[limit - 1]
        if len(hosts := self._past.hosts()) > 1:
            document["hosts"] = hosts
        return packed(request, dumps(document))

    def range(self, request: Request) -> Response:
        """Series over time."""
        query = Query(request.query, ("series", "start", "end", "step", "points", "host"))
        start, end = self._span(query)
        asked = list(dict.fromkeys(query.all("series")))
        if not 1 <= len(asked) <= api_series.MOST_SERIES:
            raise Problem(400, f"series must be given 1 to {api_series.MOST_SERIES} times")
        points = query.whole("points", 10, api_series.MOST_POINTS) or 600
        points = min(points, api_series.MOST_POINTS_IN_ALL // len(asked))
        step = query.whole("step", 0, 30 * 86400)
        step = step_for(end - start, points) if step is None else step
        api_series.check_size(end - start, step, len(asked))
        host = query.text("host")
        known = {name: ref for name, ref in self._named(host) if name in asked}
        found = []
        for name in asked:
            if name not in known:
                near = self._nearest(name, host)
                hint = f"; did you mean {near}?" if near else ""
                raise Problem(404, f"there is no series {name[:200]}{hint} /api/v1/series lists them all")
            about = api_series.described(known[name], self._catalogue)
            found.append({**about, **self._values(known[name], start, end, step, about["kind"])})
        document = {
            "start": start,
            "end": end,
            "step": step,
            "tier": api_series.tier_of(step),
            "series": found,
        }
        return packed(request, dumps(document))

    def _values(self, ref: Any, start: float, end: float, step: int, kind: str) -> dict[str, Any]:
        if step == 0:
            times, kept = self._past.columns(ref, start, end)
            return {"time": times, "value": kept}
        return api_series.columns(self._past.summaries(ref, start, end, step), counter=kind == "counter")

    def processes(self, request: Request) -> Response:
        """Processes that were recorded, and how they grew."""
        query = Query(request.query, ("start", "end", "limit"))
        start, end = self._span(query)
        if end - start > PROCESSES_SECONDS:
            raise Problem(400, f"at most {PROCESSES_SECONDS:g} s (a week) at a time")
        limit = query.whole("limit", 1, MOST) or PAGE
        found = grown(self._past.processes(start, end))
        document = {"start": start, "end": end, "total": len(found), "processes": found[:limit]}
        return packed(request, dumps(document))

    def incidents(self, request: Request) -> Response:
        """What went wrong, the newest first."""
        query = Query(request.query, ("limit", "before", "least", "lang"))
        least = query.choice("least", LEVELS, "info")
        language = query.language()
        return _page(
            request, query, "incidents",
            lambda before, limit: self._past.incidents(least, language, before, limit),
        )  # fmt: skip

    def incident(self, request: Request) -> Response:
        """All that is known of one incident."""
        found = self._past.incident(_number(request), language_of(request))
        if found is None:
            raise Problem(404, "there is no such incident; /api/v1/incidents lists them")
        return packed(request, dumps(found))

    def stress_runs(self, request: Request) -> Response:
        """Stress runs, the newest first, without the rows behind their figures."""
        query = Query(request.query, ("limit", "before", "lang"))
        return _page(request, query, "runs", functools.partial(self._past.stress_runs, query.language()))

    def stress_run(self, request: Request) -> Response:
        """One stress run with all its rows."""
        found = self._past.stress_run(_number(request), language_of(request))
        if found is None:
            raise Problem(404, "there is no such stress run; /api/v1/stress lists them")
        return packed(request, dumps(found))

    def doctor(self, request: Request) -> Response:
        """What the doctor finds, for some minutes the same."""
        language = Query(request.query, ("lang",)).language()
        return packed(request, dumps(self._checkup.last(tongue(language))))

    def own(self, request: Request) -> Response:
        """What the daemon itself costs."""
        Query(request.query, ())
        store = {k: v for k, v in dataclasses.asdict(self._store()).items() if v not in (None, "")}
        document = {
            "version": __version__,
            "python": platform.python_version(),
            "uptime_seconds": round(self._publisher.uptime_seconds(), 1),
            "processes": own.processes(),
            "store": store,
        }
        return packed(request, dumps(document))

    def _named(self, host: str | None) -> Iterator[tuple[str, Any]]:
        """Yield the series with their names: those of now that are about to be recorded, then those that are.

        Raises:
            Problem: there is no history of a machine called ``host``.
        """
        # Another machine's present is not ours to tell.
        latest = self._publisher.latest if host is None else None
        for reading in latest.readings() if latest else ():
            if reading.spec.stored and reading.spec.kind != "info":
                labels = tuple(zip(reading.spec.labels, reading.labels, strict=True))
                yield api_series.name_of(reading.spec.sample, labels), _Unwritten(reading.spec.name, labels)
        recorded = self._past.series(host)
        if host is not None and not recorded:
            raise Problem(404, f"no history of {host[:200]!r}; known are: {', '.join(self._past.hosts())}")
        for ref in recorded:
            yield api_series.full_name(ref, self._catalogue), ref

    def _nearest(self, name: str, host: str | None) -> str:
        """Return the series whose name is most like ``name``; empty when none is like it.

        Of the metric that is most like it only: comparing with every series would take seconds.
        """
        samples = [spec.sample for spec in self._catalogue.values()]
        metric = difflib.get_close_matches(name[:PATTERN_MAX].partition("{")[0], samples, n=1)
        its_own = (known for known, _ in self._named(host) if [known.partition("{")[0]] == metric)
        close = difflib.get_close_matches(name[:PATTERN_MAX], islice(its_own, MOST_COMPARED), n=1, cutoff=0)
        return close[0] if close else ""

    def _span(self, query: Query) -> tuple[float, float]:
        end = query.moment("end")
        start = query.moment("start")
        end = self._publisher.wall() if end is None else end
        start = end - HOUR if start is None else start
        if start >= end:
            raise Problem(400, "start must lie before end")
        return start, end


def grown(points: Iterable[Any]) -> list[dict[str, Any]]:
    """Return each process of recorded points once, the one that was largest first."""
    seen: dict[tuple[int, int], dict[str, Any]] = {}
    first_held: dict[tuple[int, int], int] = {}
    for point in points:
        which, held = (point.pid, point.start_ticks), point.rss_bytes + point.swap_bytes
        known = seen.setdefault(
            which, {"pid": point.pid, "first_seen": round(point.wall, 3), "peak_bytes": 0}
        )
        known |= {
            "name": point.name,
            "last_seen": round(point.wall, 3),
            "rss_bytes": point.rss_bytes,
            "swap_bytes": point.swap_bytes,
            "peak_bytes": max(known["peak_bytes"], held),
            "grown_bytes": held - first_held.setdefault(which, held),
        }
    return sorted(seen.values(), key=lambda p: -p["peak_bytes"])


def _number(request: Request) -> int:
    last = request.path.rpartition("/")[2]
    if not (last.isascii() and last.isdigit() and len(last) < 20):
        raise Problem(400, "the last part of the path must be a number")
    return int(last)


def _page(
    request: Request, query: Query, name: str,
    newest: Callable[[int | None, int], tuple[list[dict[str, Any]], int]],
) -> Response:  # fmt: skip
    """Answer with the newest of what is numbered; ``before`` goes on from there."""
    limit = query.whole("limit", 1, MOST) or PAGE
    found, total = newest(query.whole("before", 0, 1 << 62), limit + 1)
    document: dict[str, Any] = {name: found[:limit], "total": total}
    if len(found) > limit:
        document["next"] = found[limit - 1]["id"]
    return packed(request, dumps(document))
