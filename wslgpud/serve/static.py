"""The page's files and texts: few, small, read once, sent gzipped, asked for again only to hear that none changed."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path

from wslgpud.serve.api_query import language_of
from wslgpud.serve.http import Document, Problem, Request, Response, Route, dumps
from wslgpud.words import TEMPLATES, translations, translator

FOLDER = Path(__file__).with_name("static")
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
#: Nothing inline, nothing from elsewhere, and no text of ours or of a program's name ever becomes markup:
#: browsers that know trusted types refuse to parse any.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
_HEADERS = {
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    # A new version of the daemon must not meet scripts of the old one; asking again costs one small answer.
    "Cache-Control": "no-cache",
}


def routes() -> list[Route]:
    """Return where the files are; each is read when it is first asked for."""
    return [Route("/", lambda request: _file("index.html").answer(request, _HEADERS)), Route("/static/{name}", _static)]


def words(request: Request) -> Response:
    """Answer with each template of the page and its translation, and with labels by ``kind.name``."""
    return _words(language_of(request)).answer(request, {"Cache-Control": "no-cache"})


def _static(request: Request) -> Response:
    name = request.path.rpartition("/")[2]
    if name not in _names():
        raise Problem(404, "there is no such file")
    return _file(name).answer(request, _HEADERS)


@functools.cache
def _names() -> frozenset[str]:
    return frozenset(path.name for path in FOLDER.iterdir() if path.suffix in TYPES)


@functools.cache
def _file(name: str) -> Document:
    content = (FOLDER / name).read_bytes()
    return Document(content, TYPES[Path(name).suffix], hashlib.sha256(content).hexdigest()[:20], level=9)


@functools.cache
def _words(language: str) -> Document:
    spoken = translator(language)  # on a thread that may wait: the next answers are worded on the server's own
    said = translations(language, "serve/static/")  # where a template stands, as the catalogue has it
    labels = {f"{kind}.{name}": spoken.label(kind, name) for kind, of in TEMPLATES["label"].items() for name in of}
    body = dumps(said | labels)
    return Document(body, "application/json", hashlib.sha256(body).hexdigest()[:20])
