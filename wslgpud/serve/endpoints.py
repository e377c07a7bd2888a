"""Endpoints besides the API: metrics, health, the page and its texts.

The page's files are few and small, read once, sent gzipped, and revalidated by browsers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from wslgpud.colors import INKS, LEVELS
from wslgpud.model import Level, Snapshot
from wslgpud.serve.api import language_of
from wslgpud.serve.negotiation import accepts_gzip, negotiate
from wslgpud.serve.pages import RUNBOOK_PATH, plain_page, runbook_page
from wslgpud.serve.publisher import Publisher
from wslgpud.serve.router import CachedDocument, Problem, Request, Response, Route, dumps, packed, text
from wslgpud.words import TEMPLATES, MessageLike, say, translations, translator

FOLDER = Path(__file__).with_name("static")
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


def routes(
    publisher: Publisher, status: Callable[[str], Mapping[str, Any]], now: Callable[[str], Mapping[str, Any]]
) -> list[Route]:
    """Return the routes every daemon has.

    ``status`` is the output of ``wslgpud status --json``, in a language; ``now`` the same without reading the database,
    so it never blocks.
    """

    def trouble() -> MessageLike:
        return unhealthy(publisher.latest, publisher.seconds_since_tick())

    def metrics(request: Request) -> Response:
        text_format = negotiate(request.headers.get("accept", ""))
        zipped = accepts_gzip(request.headers.get("accept-encoding", ""))
        headers = {"Vary": "Accept, Accept-Encoding"} | ({"Content-Encoding": "gzip"} if zipped else {})
        return Response(200, publisher.text(text_format, zipped=zipped), text_format.content_type, headers)

    def plain(request: Request) -> Response:
        language = language_of(request)
        return plain_page(now(language), trouble(), translator(language))

    return [
        Route("/", lambda request: _files()["index.html"].answer(request, _HEADERS)),
        Route("/static/{name}", _static),
        Route("/plain", plain),
        Route(RUNBOOK_PATH, lambda request: runbook_page(language_of(request)), waits=True),
        Route("/metrics", metrics),
        Route("/-/healthy", lambda _: probe_response(trouble())),
        Route("/-/ready", lambda _: probe_response("" if publisher.latest else "waiting for the first sample")),
        Route("/api/v1/status", lambda r: packed(r, dumps(status(language_of(r)))), waits=True),
        Route("/api/v1/words", _words, heavy=True),
    ]


def probe_response(reason: MessageLike) -> Response:
    """Answer a probe: 200 without a ``reason``, else 503."""
    return text(503, str(reason)) if reason else text(200, "ok")


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
