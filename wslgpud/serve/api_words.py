"""What the page says in a language other than English, by the English it stands for."""

from __future__ import annotations

import hashlib
from functools import cache
from typing import NamedTuple

from wslgpud.serve.api_live import packed
from wslgpud.serve.api_query import language_of
from wslgpud.serve.http import Request, Response, dumps
from wslgpud.words.tongue import tongue, translations

#: where a template must stand to be the page's, see the references in the catalogue
PAGE = "serve/static/"


class _Words(NamedTuple):
    tag: str
    body: bytes


def answer(request: Request) -> Response:
    """Answer with each template of the page and its translation; it only changes with the program."""
    known = _words(language_of(request))
    headers = {"ETag": known.tag, "Cache-Control": "no-cache"}
    if request.headers.get("if-none-match") == known.tag:
        return Response(304, b"", "", {**headers, "Vary": "Accept-Encoding"})
    response = packed(request, known.body)
    return Response(200, response.body, response.content_type, {**response.headers, **headers})


@cache
def _words(language: str) -> _Words:
    tongue(language)  # on a thread that may wait: the next answers are worded on the server's own
    body = dumps(translations(language, PAGE))
    return _Words(f'"{hashlib.sha256(body).hexdigest()[:20]}"', body)
