"""What is asked of the present: the page and its texts, metrics, health, the runbook, and the JSON API's current state.

The API is described in ``openapi.json``. The page's files are few and small, read once, sent gzipped, and revalidated
by browsers.
"""

from __future__ import annotations

import dataclasses
import functools
import html
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
from urllib.parse import parse_qsl

from wslgpud import __version__
from wslgpud.advise.checkups import Findings
from wslgpud.alerts.rules import runbook
from wslgpud.colors import INKS, LEVELS
from wslgpud.model import Level, Reading, Snapshot
from wslgpud.series.curves import name_of
from wslgpud.serve.publisher import CLASSIC, OPENMETRICS, Publisher
from wslgpud.serve.router import CachedDocument, Problem, Request, Response, Route, dumps, packed, text
from wslgpud.store import StoreStats
from wslgpud.store.records import shell_pattern
from wslgpud.words import LANGUAGES, TEMPLATES, MessageLike, Translator, say, translations, translator
from wslgpud.words.units import nearest

FOLDER = Path(__file__).with_name("static")
OPENAPI = FOLDER / "openapi.json"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
    ".webmanifest": "application/manifest+json",
}
#: the tab's icon says how things stand: the ground's colour, by level
ICONS = {level.label: LEVELS[level].fill for level in Level if level >= Level.WARNING} | {"unknown": INKS["dim"].light}
#: Nothing inline, nothing from other origins, and no text, such as a program's name, can become markup: browsers that
#: know trusted types refuse to parse any.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; manifest-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
_HEADERS = {
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    # Scripts of an old version must not talk to a new daemon; revalidating costs one small answer.
    "Cache-Control": "no-cache",
}
#: target of links in alerts
RUNBOOK_PATH = "/runbook"
#: no scripts, no frames, nothing inline, nothing from other origins
_RUNBOOK_POLICY = (
    "default-src 'none'; style-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
#: the Markdown that the runbook uses: `code` and [text](address)
_SPAN = re.compile(r"`([^`]+)`|\[([^]]+)\]\((https://[^)]+)?[^)]*\)")
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
            pairs = parse_qsl(text, keep_blank_values=True, max_num_fields=_MAX_PARAMETERS, errors="strict")
        except ValueError as error:
            raise Problem(400, f"the query cannot be read: {error}") from error
        self._values: dict[str, list[str]] = {}
        for name, value in pairs:
            if name not in known:
                near = nearest(name, known)
                hint = f"did you mean {near}?" if near else f"known are: {', '.join(known) or 'none'}"
                raise Problem(400, f"unknown parameter {name[:40]!r}; {hint}")
            self._values.setdefault(name, []).append(value)

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
        Route("/api/v1/openapi.json", lambda request: packed(request, OPENAPI.read_bytes())),
    ]


def base_routes(publisher: Publisher, status: Callable[[str], Mapping[str, Any]]) -> list[Route]:
    """Return the routes every daemon has; ``status`` is the output of ``wslgpud status --json``, in a language."""

    def trouble() -> MessageLike:
        return unhealthy(publisher.latest, publisher.seconds_since_tick())

    def metrics(request: Request) -> Response:
        # Whoever takes OpenMetrics prefers it, and all take the classic format.
        takes_openmetrics = "application/openmetrics-text" in request.headers.get("accept", "").lower()
        text_format, zipped = OPENMETRICS if takes_openmetrics else CLASSIC, request.accepts_gzip
        headers = {"Vary": "Accept, Accept-Encoding"} | ({"Content-Encoding": "gzip"} if zipped else {})
        return Response(200, publisher.text(text_format, zipped=zipped), text_format, headers)

    return [
        Route("/", lambda request: _files()["index.html"].answer(request, _HEADERS)),
        Route("/static/{name}", _static),
        Route(RUNBOOK_PATH, lambda request: runbook_page(translator(language_of(request))), waits=True),
        Route("/metrics", metrics),
        Route("/-/healthy", lambda _: _probe(trouble())),
        Route("/-/ready", lambda _: _probe("" if publisher.latest else "waiting for the first sample")),
        Route("/api/v1/status", lambda r: packed(r, dumps(status(language_of(r)))), waits=True),
        Route("/api/v1/words", _words, heavy=True),
    ]


def _probe(reason: MessageLike) -> Response:
    """Answer a probe: 200 without a ``reason``, else 503."""
    return text(503, str(reason)) if reason else text(200, "ok")


def live(publisher: Publisher, now: Callable[[str], Mapping[str, Any]]) -> Callable[[Request], Response]:
    """Return the handler of ``/api/v1/live``: the status in a language (must not block), and the last values.

    It runs on the server's thread, like a scrape.
    """
    #: id of this run of the daemon, by which the page detects a restart
    instance = secrets.token_hex(8)
    #: by language, with the sequence of its sample; languages not requested cost nothing
    rendered: dict[str, tuple[int | None, CachedDocument]] = {}

    def answer(request: Request) -> Response:
        language, latest = language_of(request), publisher.latest
        sequence = latest.sequence if latest else None
        if language not in rendered or rendered[language][0] != sequence:
            document: dict[str, Any] = {"instance": instance, "host": socket.gethostname(), "status": now(language)}
            if latest is not None:
                document |= {"sequence": latest.sequence, **_times(latest), "values": values(latest.readings())}
            rendered[language] = (sequence, CachedDocument(dumps(document), "application/json"))
        # The age is in a header, so that one text serves all; by the monotonic clock, because WSL's wall clock drifts
        # from that of the browser on Windows.
        age = {"Wslgpud-Age": f"{publisher.seconds_since_tick():.3f}"}
        return rendered[language][1].answer(request, age)

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


def unhealthy(latest: Snapshot | None, seconds_since_tick: float) -> MessageLike:
    """Return why sampling is unhealthy; empty when it is healthy.

    Tolerates five intervals, at least 10 s: a machine that swaps stalls for seconds.
    """
    interval = latest.interval_seconds if latest else 1.0
    if seconds_since_tick <= max(10.0, 5 * interval):
        return ""
    silent = {"silent_seconds": seconds_since_tick, "interval": interval}
    return say("No sample for {silent_seconds} (one every {interval} s was planned).", **silent)


def _words(request: Request) -> Response:
    """Answer with each template of the page and its translation, and labels by ``kind.name``."""
    return _worded(language_of(request)).answer(request, {"Cache-Control": "no-cache"})


def _static(request: Request) -> Response:
    document = _files().get(request.path.rpartition("/")[2])
    if document is None:
        raise Problem(404, "there is no such file")
    return document.answer(request, _HEADERS)


@functools.cache
def _files() -> Mapping[str, CachedDocument]:
    paths = [path for path in FOLDER.iterdir() if path.suffix in TYPES]
    texts = {path.name: path.read_bytes() for path in paths}
    for level, fill in ICONS.items():
        texts[f"icon-{level}.svg"] = texts["icon.svg"].replace(INKS["headroom"].light.encode(), fill.encode())
    return {name: CachedDocument(body, TYPES[Path(name).suffix], level=9) for name, body in texts.items()}


@functools.cache
def _worded(language: str) -> CachedDocument:
    spoken = translator(language)  # loaded on a thread that may block: later answers are rendered on the server's own
    texts = translations(language, "serve/static/")  # by location of the template in the catalogue
    labels = {f"{kind}.{name}": spoken.label(kind, name) for kind, of in TEMPLATES["label"].items() for name in of}
    return CachedDocument(dumps(texts | labels), "application/json")


def runbook_page(translator: Translator) -> Response:
    """Answer with the runbook, offline: links in alerts lead here, to the anchor of a rule."""
    t, texts = translator.t, runbook(translator)
    contents = "".join(f'<li><a href="#{name}">{name}</a></li>' for name in texts)
    rules = "".join(
        f'<section id="{name}" class="card"><h2>{name}</h2>{paragraphs(text)}</section>' for name, text in texts.items()
    )
    version = t("Version {version}.", version=__version__)
    same = _spans(t("{command} shows the same in a terminal.", command="`wslgpud alerts explain RULE`"))
    body = f"""<!doctype html>
<html lang="{translator.code}">
<head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>wslgpud: {t("runbook")}</title><link rel="icon" href="/static/icon.svg" type="image/svg+xml">
<link rel="stylesheet" href="/static/page.css">
<link rel="stylesheet" href="/static/dark.css" media="(prefers-color-scheme: dark)"></head>
<body class="plain"><h1>{t("Runbook")}</h1><p class="dim">{version} {same} <a href="/">{t("this machine now")}</a></p>
<nav><ul class="plain-list columns">{contents}</ul></nav>{rules}</body></html>
"""
    headers = {"Content-Security-Policy": _RUNBOOK_POLICY}
    return Response(200, body.encode(), TYPES[".html"], headers)


def paragraphs(text: str) -> str:
    """Render Markdown as HTML; a link to a file of the repository becomes plain text."""
    return "".join(f"<p>{_spans(part.strip())}</p>" for part in re.split(r"\n{2,}", text.strip()))


def _spans(text: str) -> str:
    def rendered(span: re.Match[str]) -> str:
        code, words, address = span.groups()
        if code:
            return f"<code>{code}</code>"
        return f'<a href="{address}">{words}</a>' if address else str(words)

    return _SPAN.sub(rendered, html.escape(text))
