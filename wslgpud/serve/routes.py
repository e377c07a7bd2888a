"""The routes of every daemon: the page with its files and texts, ``/metrics``, health, the runbook, and the status.

The page's files are few and small, read once, sent gzipped, and revalidated by browsers.
"""

from __future__ import annotations

import functools
import html
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from wslgpud import __version__
from wslgpud.alerts.rules import runbook
from wslgpud.colors import INKS, LEVELS
from wslgpud.model import Level, Snapshot
from wslgpud.serve.api import language_of
from wslgpud.serve.publisher import CLASSIC, OPENMETRICS, Publisher
from wslgpud.serve.router import CachedDocument, Problem, Request, Response, Route, dumps, packed, text
from wslgpud.words import TEMPLATES, MessageLike, Translator, say, translations, translator

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
#: target of links in alerts
RUNBOOK_PATH = "/runbook"
#: no scripts, no frames, nothing inline, nothing from other origins
_RUNBOOK_POLICY = (
    "default-src 'none'; style-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
#: the Markdown that the runbook uses: `code` and [text](address)
_SPAN = re.compile(r"`([^`]+)`|\[([^]]+)\]\((https://[^)]+)?[^)]*\)")


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
