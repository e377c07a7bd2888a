"""The page's files: few, small, read once, sent gzipped, asked for again only to hear that none changed."""

from __future__ import annotations

import gzip
import hashlib
from pathlib import Path
from typing import NamedTuple

from wslgpud.serve.exposition import accepts_gzip
from wslgpud.serve.http import Problem, Request, Response, Route

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
    "Vary": "Accept-Encoding",
    # A new version of the daemon must not meet scripts of the old one; asking again costs one small answer.
    "Cache-Control": "no-cache",
}


class _File(NamedTuple):
    tag: str
    zipped: bytes


class Files:
    """Answers for the page's files."""

    def __init__(self) -> None:
        """Know their names; a file is read when it is first asked for."""
        self._names = {path.name for path in FOLDER.iterdir() if path.suffix in TYPES}
        self._known: dict[str, _File] = {}

    def routes(self) -> list[Route]:
        """Return where the files are."""
        return [
            Route("/", lambda request: self._answer(request, "index.html")),
            Route("/static/{name}", lambda request: self._answer(request, request.path.rpartition("/")[2])),
        ]

    def _answer(self, request: Request, name: str) -> Response:
        if name not in self._names:
            raise Problem(404, "there is no such file")
        if name not in self._known:
            content = (FOLDER / name).read_bytes()
            tag = f'"{hashlib.sha256(content).hexdigest()[:20]}"'
            self._known[name] = _File(tag, gzip.compress(content, 9, mtime=0))
        known = self._known[name]
        headers = {**_HEADERS, "ETag": known.tag}
        if request.headers.get("if-none-match") == known.tag:
            return Response(304, b"", "", headers)
        kind = TYPES[Path(name).suffix]
        if accepts_gzip(request.headers.get("accept-encoding", "")):
            return Response(200, known.zipped, kind, {**headers, "Content-Encoding": "gzip"})
        return Response(200, gzip.decompress(known.zipped), kind, headers)
