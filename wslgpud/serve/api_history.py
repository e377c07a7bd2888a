"""The JSON API's history: series over time, processes, incidents and stress runs. Every answer reads the disk."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from wslgpud.alerts.incidents import Incident, grouped
from wslgpud.alerts.look_back import by_process
from wslgpud.alerts.report import report, summaries
from wslgpud.metrics import PREFIX, MetricSpec
from wslgpud.model import Level, Number, StressResult
from wslgpud.series.curves import MAX_SERIES, name_of, step_for
from wslgpud.serve.api import Query, language_of, number_of
from wslgpud.serve.publisher import Publisher
from wslgpud.serve.router import Problem, Request, Response, Route, dumps, packed
from wslgpud.store import Bucket, ProcessPoint, Reader, SeriesRef
from wslgpud.words import translator
from wslgpud.words.moments import iso

LEVELS = ("info", "warning", "critical", "emergency")
#: entries per answer: default and maximum
PAGE, MAX_PAGE = 50, 500
MAX_SERIES_LISTED = 2000
#: longest span of processes: they are read in full, a week takes about a second
PROCESSES_SECONDS = 7 * 86400.0
#: default time span of a request
HOUR = 3600.0
#: points per series, and per answer; a screen has fewer columns
MAX_POINTS = 4000
MAX_POINTS_IN_ALL = 40_000
#: samples (or minutes) per point on average: a coarser step must be a multiple of minutes (or hours)
MAX_PIECES_PER_POINT = 60
#: longest span of raw samples (up to ten per second)
RAW_SECONDS = 300.0
_TIER_SECONDS = {"samples": 1.0, "minutes": 60.0, "hours": math.inf}


def routes(
    publisher: Publisher, catalogue: Iterable[MetricSpec], reader: Callable[[], Reader], host: str
) -> list[Route]:
    """Return the routes of the history in ``reader``; ``host`` is this machine in it."""
    history = _History(publisher, {spec.name: spec for spec in catalogue}, reader, host)
    handlers = {
        "series": history.series,
        "range": history.range,
        "processes": history.processes,
        "incidents": history.incidents,
        "incidents/{id}": history.incident,
        "stress": history.stress_runs,
        "stress/{id}": history.stress_run,
    }
    return [Route(f"/api/v1/{name}", handler, heavy=True) for name, handler in handlers.items()]


@dataclass(frozen=True)
class _History:
    publisher: Publisher
    catalogue: Mapping[str, MetricSpec]
    reader: Callable[[], Reader]
    host: str

    def series(self, request: Request) -> Response:
        query = Query(request.query, ("match", "limit", "after", "host"))
        limit = query.integer("limit", 1, MAX_SERIES_LISTED) or MAX_SERIES_LISTED
        matches, after = query.pattern("match"), query.text("after") or ""
        named = self._named(query.text("host"))
        known = {name: ref for name, ref in named if name > after and matches(name)}
        names = heapq.nsmallest(limit + 1, known)
        document: dict[str, Any] = {"series": [described(known[name], self.catalogue) for name in names[:limit]]}
        if len(names) > limit:
            document["next"] = names[limit - 1]
        if len(hosts := self.reader().hosts()) > 1:
            document["hosts"] = hosts
        return packed(request, dumps(document))

    def range(self, request: Request) -> Response:
        query = Query(request.query, ("series", "start", "end", "step", "points", "host"))
        start, end = self._span(query)
        asked = list(dict.fromkeys(query.all("series")))
        if not 1 <= len(asked) <= MAX_SERIES:
            raise Problem(400, f"series must be given 1 to {MAX_SERIES} times")
        points = query.integer("points", 10, MAX_POINTS) or 600
        step = query.integer("step", 0, 30 * 86400)
        if step is None:
            step = step_for(end - start, min(points, MAX_POINTS_IN_ALL // len(asked)))
        check_size(end - start, step, len(asked))
        host = query.text("host")
        known = {name: ref for name, ref in self._named(host) if name in asked}
        series = []
        for name in asked:
            if name not in known:
                raise Problem(404, f"there is no series {name[:200]}; /api/v1/series lists them all")
            about = described(known[name], self.catalogue)
            series.append({**about, **self._values(known[name], start, end, step, about["kind"])})
        document = {"start": start, "end": end, "step": step, "tier": tier_of(step), "series": series}
        return packed(request, dumps(document))

    def _values(self, ref: SeriesRef, start: float, end: float, step: int, kind: str) -> dict[str, Any]:
        if step == 0:
            return dict(zip(("time", "value"), self.reader().columns(ref, start, end), strict=True))
        return columns(self.reader().summaries(ref, start, end, step), counter=kind == "counter")

    def processes(self, request: Request) -> Response:
        """Processes that were recorded, and how they grew."""
        query = Query(request.query, ("start", "end", "limit"))
        start, end = self._span(query)
        if end - start > PROCESSES_SECONDS:
            raise Problem(400, f"at most {PROCESSES_SECONDS:g} s (a week) at a time")
        limit = query.integer("limit", 1, MAX_PAGE) or PAGE
        processes = grown(self.reader().processes(start, end))
        document = {"start": start, "end": end, "total": len(processes), "processes": processes[:limit]}
        return packed(request, dumps(document))

    def incidents(self, request: Request) -> Response:
        """Return the incidents that reached level ``least``, newest first."""
        query = Query(request.query, ("limit", "before", "least", "lang"))
        min_level, words = Level[query.choice("least", LEVELS, "info").upper()], translator(query.language())
        limit, before = _page_of(query)
        total = 0

        def earlier() -> Iterator[Incident]:  # one at a time: those of ten years would take hundreds of MB
            nonlocal total
            for incident in grouped(self.reader().changes(brief=True)):
                total += incident.worst >= min_level
                if incident.worst >= min_level and (before is None or incident.id < before):
                    yield incident

        newest = heapq.nlargest(limit + 1, earlier(), key=lambda incident: incident.id)
        return _page(request, "incidents", summaries(newest, words), limit, total)

    def incident(self, request: Request) -> Response:
        """All that is known of one incident."""
        number, language = number_of(request), language_of(request)
        incident_report = report(self.reader(), number, translator(language))
        if incident_report is None:
            raise Problem(404, "there is no such incident; /api/v1/incidents lists them")
        levels = {c.resource: [int(level) for _, _, level in c.points] for c in incident_report.curves}
        curves = [{**c, "levels": levels[c["resource"]]} for c in incident_report.document.get("headroom", ())]
        return packed(request, dumps({**incident_report.document, "headroom": curves}))

    def stress_runs(self, request: Request) -> Response:
        """Stress runs, newest first, without the rows behind their figures."""
        query = Query(request.query, ("limit", "before", "lang"))
        language, (limit, before), reader = query.language(), _page_of(query), self.reader()
        newest = reader.stress_runs(brief=True, before=before, newest=limit + 1)
        runs = [_run(number, result, language) for number, result in reversed(newest)]
        for run in runs:
            del run["detail"]
        return _page(request, "runs", runs, limit, reader.count_stress_runs())

    def stress_run(self, request: Request) -> Response:
        """One stress run with all its rows."""
        number, language = number_of(request), language_of(request)
        result = self.reader().stress_run(number)
        if result is None:
            raise Problem(404, "there is no such stress run; /api/v1/stress lists them")
        return packed(request, dumps(_run(number, result, language)))

    def _named(self, host: str | None) -> Iterator[tuple[str, SeriesRef]]:
        """Yield the series with their names: current ones not recorded yet, then the recorded ones."""
        # The latest sample is of this machine only.
        latest = self.publisher.latest if host is None else None
        for spec, _, its_labels in latest.readings() if latest else ():
            if spec.stored and spec.kind != "info":
                labels = tuple(zip(spec.labels, its_labels, strict=True))
                yield name_of(spec.exposed_name, labels), SeriesRef(spec.name, labels)
        recorded = self.reader().series(host=host or self.host)
        if host is not None and not recorded:
            raise Problem(404, f"no history of {host[:200]!r}; known are: {', '.join(self.reader().hosts())}")
        for ref in recorded:
            yield described(ref, self.catalogue)["name"], ref

    def _span(self, query: Query) -> tuple[float, float]:
        start, end = query.moment("start"), query.moment("end")
        end = self.publisher.wall() if end is None else end
        start = end - HOUR if start is None else start
        if start >= end:
            raise Problem(400, "start must lie before end")
        return start, end


def grown(points: Iterable[ProcessPoint]) -> list[dict[str, Any]]:
    """Return each process of recorded points once, the largest first."""
    processes = []
    for of_it in by_process(points):
        held, last = [p.rss_bytes + p.swap_bytes for p in of_it], of_it[-1]
        facts = {"pid": last.pid, "name": last.name, "rss_bytes": last.rss_bytes, "swap_bytes": last.swap_bytes}
        when = {"first_seen": round(of_it[0].wall, 3), "last_seen": round(last.wall, 3)}
        processes.append({**facts, **when, "peak_bytes": max(held), "grown_bytes": held[-1] - held[0]})
    return sorted(processes, key=lambda p: -p["peak_bytes"])


def described(ref: SeriesRef, catalogue: Mapping[str, MetricSpec]) -> dict[str, Any]:
    """Return the API's description of a series; a metric of another version has neither suffix, unit nor help."""
    metric, about = PREFIX + ref.metric, {"kind": "unknown"}
    if spec := catalogue.get(ref.metric):
        metric, about = spec.exposed_name, {"kind": spec.kind, "unit": spec.unit, "help": spec.help}
    return {"name": name_of(metric, ref.labels), "metric": metric, "labels": dict(ref.labels), **about}


def tier_of(step: int) -> str:
    return "hours" if step and step % 3600 == 0 else "minutes" if step and step % 60 == 0 else "samples"


def check_size(span_seconds: float, step: int, series: int) -> None:
    """Refuse an answer that is too long to view, or needs far more reading than it shows.

    A step of 2,591,999 s is no multiple of hours or minutes: a few points of it would need every sample.

    Raises Problem: says what would be short enough.
    """
    max_points = min(MAX_POINTS, MAX_POINTS_IN_ALL // series)
    if step == 0:
        is_too_long = span_seconds > RAW_SECONDS
    else:
        max_pieces = max_points * MAX_PIECES_PER_POINT
        is_too_long = span_seconds > max_points * step or span_seconds > max_pieces * _TIER_SECONDS[tier_of(step)]
    if is_too_long:
        fitting = step_for(span_seconds, max_points)
        raise Problem(400, f"too many values; leave step out, or ask for {fitting} s or a shorter time")


def columns(summaries: Sequence[Bucket], *, counter: bool) -> dict[str, list[Number]]:
    """Return rollups as columns: the last value of a counter, else mean, minimum and maximum."""
    time = [round(s.wall, 3) for s in summaries]
    if counter:
        return {"time": time, "value": [s.last for s in summaries]}
    return {
        "time": time,
        "value": [short(s.mean) for s in summaries],
        "min": [s.low for s in summaries],
        "max": [s.high for s in summaries],
    }


def short(value: Number) -> Number:
    """Return a mean without meaningless digits: 7 significant ones, and no decimals for a large value."""
    return round(value) if abs(value) >= 1e6 else float(f"{value:.7g}")


def _page_of(query: Query) -> tuple[int, int | None]:
    """Return the requested number of entries, and the number to continue below."""
    return query.integer("limit", 1, MAX_PAGE) or PAGE, query.integer("before", 0, 10**18 - 1)


def _page(request: Request, name: str, entries: list[dict[str, Any]], limit: int, total: int) -> Response:
    """Answer with ``limit`` of the entries; if there are more, with the number at which to continue."""
    document: dict[str, Any] = {name: entries[:limit], "total": total}
    if len(entries) > limit:
        document["next"] = entries[limit - 1]["id"]
    return packed(request, dumps(document))


def _run(number: int, result: StressResult, language: str) -> dict[str, Any]:
    word = translator(language).text
    findings = [{**finding._asdict(), "text": word(finding.text)} for finding in result.findings]
    plain = {**asdict(result), "findings": findings, "reason": word(result.reason)}
    return {"id": number, "at": iso(plain.pop("wall")), **plain}
