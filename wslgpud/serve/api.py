"""The read-only JSON API below ``/api/v1/``; ``static/openapi.json`` documents it."""

from __future__ import annotations

import dataclasses
import difflib
import heapq
import platform
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from wslgpud import __version__
from wslgpud.alerts.blackbox import by_process
from wslgpud.metrics import MetricSpec
from wslgpud.series.curves import name_of, step_for
from wslgpud.serve import api_series, static
from wslgpud.serve.api_live import Live, values
from wslgpud.serve.api_query import PATTERN_MAX, Query, language_of
from wslgpud.serve.archive import Archive
from wslgpud.serve.exposition import Publisher
from wslgpud.serve.http import Problem, Request, Response, Route, dumps, packed
from wslgpud.store import ProcessPoint, SeriesRef, StoreStats
from wslgpud.words import MessageLike, Translator, translator

LEVELS = ("info", "warning", "critical", "emergency")
#: entries of one answer by default, and at most
PAGE, MOST = 50, 500
MOST_SERIES_LISTED = 2000
#: recorded processes are read in full, so a week of them takes about a second
PROCESSES_SECONDS = 7 * 86400.0
#: a check of the whole machine takes a second or more; a failed one is not repeated at once
CHECKUP_SECONDS, CHECKUP_RETRY_SECONDS = 300.0, 30.0
#: requests during a check wait for its result, but no longer than this
CHECKUP_PATIENCE_SECONDS = 3.0
#: series of the nearest metric that a wrong name is compared with; each comparison costs up to a millisecond
MOST_COMPARED = 50
#: time span of a request that names none
HOUR = 3600.0
OPENAPI = Path(__file__).with_name("static") / "openapi.json"

_Findings = list[dict[str, MessageLike]]


def routes(  # noqa: PLR0913, PLR0917 - its sources
    publisher: Publisher,
    catalogue: Iterable[MetricSpec],
    past: Archive,
    status: Callable[[str], Mapping[str, Any]],
    store: Callable[[], StoreStats],
    doctor: Callable[[], _Findings],
) -> list[Route]:
    """Return the paths of the API but ``status``.

    ``past`` may wait for the disk, ``doctor`` take seconds; ``status``, worded in a language, must not wait.
    """
    api = _Api(publisher, {spec.name: spec for spec in catalogue}, past, Checkup(doctor, publisher), store)
    heavy = {
        "series": api.series,
        "range": api.range,
        "processes": api.processes,
        "incidents": api.incidents,
        "incidents/{id}": lambda request: _numbered(request, past.incident),
        "stress": api.stress_runs,
        "stress/{id}": lambda request: _numbered(request, past.stress_run),
        "words": static.words,
    }
    return [
        Route("/api/v1/live", Live(publisher, status).answer),
        Route("/api/v1/latest", api.latest),
        *(Route(f"/api/v1/{name}", handler, heavy=True) for name, handler in heavy.items()),
        Route("/api/v1/doctor", api.doctor, waits=True),
        Route("/api/v1/self", api.own, waits=True),
        Route("/api/v1/openapi.json", lambda request: packed(request, OPENAPI.read_bytes())),
    ]


class Checkup:
    """Runs the doctor on request and caches what it finds."""

    def __init__(self, doctor: Callable[[], _Findings], publisher: Publisher) -> None:
        self._doctor, self._publisher = doctor, publisher
        self._lock = threading.Lock()
        self._known: tuple[float, _Findings] | None = None
        #: when it may run again
        self._due_seconds = 0.0

    def last(self, words: Translator) -> dict[str, Any]:
        """Return when the machine was checked, and what was found, in a language."""
        # A doctor blocked by a driver must not block every thread.
        if not self._lock.acquire(timeout=CHECKUP_PATIENCE_SECONDS):
            raise Problem(503, "the doctor is looking at the machine; try again in a moment")
        try:
            now = self._publisher.uptime_seconds()
            if now >= self._due_seconds:
                # Set first: one that fails must not run again at each request.
                self._due_seconds, self._known = now + CHECKUP_RETRY_SECONDS, None
                self._known = round(self._publisher.wall(), 3), self._doctor()
                self._due_seconds = now + CHECKUP_SECONDS
        finally:
            self._lock.release()
        if self._known is None:
            raise Problem(503, "the doctor could not look at the machine; the daemon's log says why")
        wall, findings = self._known
        return {"wall": wall, "findings": [{name: words.text(said) for name, said in one.items()} for one in findings]}


@dataclass(frozen=True)
class _Api:
    """The handlers."""

    publisher: Publisher
    catalogue: Mapping[str, MetricSpec]
    past: Archive
    checkup: Checkup
    store: Callable[[], StoreStats]

    def latest(self, request: Request) -> Response:
        """Every value of the last sample."""
        matches = Query(request.query, ("match",)).pattern("match")
        snapshot = self.publisher.latest
        if snapshot is None:
            raise Problem(503, "there is no sample yet; try again in a second")
        known = values(snapshot.readings())
        document = {
            "wall": round(snapshot.wall, 3),
            "age_seconds": round(self.publisher.seconds_since_tick(), 3),
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
            "series": [api_series.described(known[name], self.catalogue) for name in names[:limit]]
        }
        if len(names) > limit:
            document["next"] = names[limit - 1]
        if len(hosts := self.past.reader().hosts()) > 1:
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
        step = query.whole("step", 0, 30 * 86400)
        if step is None:
            step = step_for(end - start, min(points, api_series.MOST_POINTS_IN_ALL // len(asked)))
        api_series.check_size(end - start, step, len(asked))
        host = query.text("host")
        known = {name: ref for name, ref in self._named(host) if name in asked}
        found = []
        for name in asked:
            if name not in known:
                near = self._nearest(name, host)
                hint = f"; did you mean {near}?" if near else ""
                raise Problem(404, f"there is no series {name[:200]}{hint} /api/v1/series lists them all")
            about = api_series.described(known[name], self.catalogue)
            found.append({**about, **self._values(known[name], start, end, step, about["kind"])})
        document = {"start": start, "end": end, "step": step, "tier": api_series.tier_of(step), "series": found}
        return packed(request, dumps(document))

    def _values(self, ref: SeriesRef, start: float, end: float, step: int, kind: str) -> dict[str, Any]:
        if step == 0:
            return dict(zip(("time", "value"), self.past.reader().columns(ref, start, end), strict=True))
        return api_series.columns(self.past.reader().summaries(ref, start, end, step), counter=kind == "counter")

    def processes(self, request: Request) -> Response:
        """Processes that were recorded, and how they grew."""
        query = Query(request.query, ("start", "end", "limit"))
        start, end = self._span(query)
        if end - start > PROCESSES_SECONDS:
            raise Problem(400, f"at most {PROCESSES_SECONDS:g} s (a week) at a time")
        limit = query.whole("limit", 1, MOST) or PAGE
        found = grown(self.past.reader().processes(start, end))
        document = {"start": start, "end": end, "total": len(found), "processes": found[:limit]}
        return packed(request, dumps(document))

    def incidents(self, request: Request) -> Response:
        """What went wrong, the newest first."""
        query = Query(request.query, ("limit", "before", "least", "lang"))
        least, language = query.choice("least", LEVELS, "info"), query.language()
        return _page(request, query, "incidents", lambda *page: self.past.incidents(least, language, *page))

    def stress_runs(self, request: Request) -> Response:
        """Stress runs, the newest first, without the rows behind their figures."""
        query = Query(request.query, ("limit", "before", "lang"))
        language = query.language()
        return _page(request, query, "runs", lambda *page: self.past.stress_runs(language, *page))

    def doctor(self, request: Request) -> Response:
        """What the doctor finds, for some minutes the same."""
        return packed(request, dumps(self.checkup.last(translator(language_of(request)))))

    def own(self, request: Request) -> Response:
        """What the daemon itself costs."""
        Query(request.query, ())
        document = {
            "version": __version__,
            "python": platform.python_version(),
            "uptime_seconds": round(self.publisher.uptime_seconds(), 1),
            "processes": _processes(),
            "store": {k: v for k, v in dataclasses.asdict(self.store()).items() if v not in (None, "")},
        }
        return packed(request, dumps(document))

    def _named(self, host: str | None) -> Iterator[tuple[str, SeriesRef]]:
        """Yield the series with their names: those of now that are about to be recorded, then those that are."""
        # The latest sample is only of this machine.
        latest = self.publisher.latest if host is None else None
        for spec, _, its_labels in latest.readings() if latest else ():
            if spec.stored and spec.kind != "info":
                labels = tuple(zip(spec.labels, its_labels, strict=True))
                yield name_of(spec.exposed_name, labels), SeriesRef(spec.name, labels)
        recorded = self.past.series(host)
        if host is not None and not recorded:
            raise Problem(404, f"no history of {host[:200]!r}; known are: {', '.join(self.past.reader().hosts())}")
        for ref in recorded:
            yield api_series.full_name(ref, self.catalogue), ref

    def _nearest(self, name: str, host: str | None) -> str:
        # Only within the most similar metric: comparing with every series would take seconds.
        samples = [spec.exposed_name for spec in self.catalogue.values()]
        metric = difflib.get_close_matches(name[:PATTERN_MAX].partition("{")[0], samples, n=1)
        its_own = (known for known, _ in self._named(host) if [known.partition("{")[0]] == metric)
        close = difflib.get_close_matches(name[:PATTERN_MAX], islice(its_own, MOST_COMPARED), n=1, cutoff=0)
        return close[0] if close else ""

    def _span(self, query: Query) -> tuple[float, float]:
        start, end = query.moment("start"), query.moment("end")
        end = self.publisher.wall() if end is None else end
        start = end - HOUR if start is None else start
        if start >= end:
            raise Problem(400, "start must lie before end")
        return start, end


def grown(points: Iterable[ProcessPoint]) -> list[dict[str, Any]]:
    """Return each process of recorded points once, the one that was largest first."""
    found = []
    for of_it in by_process(points):
        held, last = [p.rss_bytes + p.swap_bytes for p in of_it], of_it[-1]
        facts = {"pid": last.pid, "name": last.name, "rss_bytes": last.rss_bytes, "swap_bytes": last.swap_bytes}
        when = {"first_seen": round(of_it[0].wall, 3), "last_seen": round(last.wall, 3)}
        found.append({**facts, **when, "peak_bytes": max(held), "grown_bytes": held[-1] - held[0]})
    return sorted(found, key=lambda p: -p["peak_bytes"])


def _processes() -> list[dict[str, Any]]:
    """Return pid, name, processor seconds and memory (its share of what it shares) of us and our children."""
    import psutil  # only who asks pays for it

    found: list[dict[str, Any]] = []
    own = psutil.Process()
    for process in (own, *own.children()):
        with suppress(psutil.Error), process.oneshot():  # a child that ends meanwhile is omitted
            used = process.cpu_times()
            seconds = round(used.user + used.system, 2)
            found.append({"pid": process.pid, "name": process.name(), "cpu_seconds": seconds})
            found[-1]["pss_bytes"] = process.memory_full_info().pss  # omitted where the kernel does not say
    return found


def _numbered(request: Request, one: Callable[[int, str], dict[str, Any] | None]) -> Response:
    """Answer with all that is known of one incident, or of one stress run with all its rows."""
    folder, _, last = request.path.rpartition("/")
    if not (last.isascii() and last.isdigit() and len(last) < 20):
        raise Problem(400, "the last part of the path must be a number")
    found = one(int(last), language_of(request))
    if found is None:
        what = "stress run" if folder.endswith("stress") else "incident"
        raise Problem(404, f"there is no such {what}; {folder} lists them")
    return packed(request, dumps(found))


def _page(
    request: Request, query: Query, name: str, newest: Callable[[int | None, int], tuple[list[dict[str, Any]], int]]
) -> Response:
    """Answer with the newest of what is numbered; ``before`` goes on from there."""
    limit = query.whole("limit", 1, MOST) or PAGE
    found, total = newest(query.whole("before", 0, 1 << 62), limit + 1)
    document: dict[str, Any] = {name: found[:limit], "total": total}
    if len(found) > limit:
        document["next"] = found[limit - 1]["id"]
    return packed(request, dumps(document))
