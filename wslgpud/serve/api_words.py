"""What the page says in a language other than English, by the English it stands for."""

from __future__ import annotations

import hashlib
from functools import cache

from wslgpud.serve.api_query import language_of
from wslgpud.serve.documents import Document
from wslgpud.serve.http import Request, Response, dumps
from wslgpud.words import tongue, translations

#: where a template must stand to be the page's, see the references in the catalogue
PAGE = "serve/static/"


def answer(request: Request) -> Response:
    """Answer with each template of the page and its translation; it only changes with the program."""
    return _words(language_of(request)).answer(request, {"Cache-Control": "no-cache"})


@cache
def _words(language: str) -> Document:
    tongue(language)  # on a thread that may wait: the next answers are worded on the server's own
    body = dumps(translations(language, PAGE))
    return Document(body, "application/json", hashlib.sha256(body).hexdigest()[:20])
