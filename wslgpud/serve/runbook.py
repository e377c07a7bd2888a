"""The page at ``/runbook``, where links in alerts lead: what to do about each rule, offline."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Mapping

from wslgpud import __version__
from wslgpud.serve.api_query import language_of
from wslgpud.serve.html import Html, h, page
from wslgpud.serve.http import Response, Route
from wslgpud.words import Translator, translator

PATH = "/runbook"
#: the Markdown that the runbook keeps to: `code` and [words](address)
_SPAN = re.compile(r"`(?P<code>[^`]+)`|\[(?P<words>[^]]+)\]\((?P<address>[^)]+)\)")


def routes(texts: Callable[[Translator], Mapping[str, str]]) -> list[Route]:
    """Return the page; ``texts``, Markdown by rule in a language, are asked for when somebody first wants them."""

    @functools.cache
    def answer(language: str) -> Response:
        spoken = translator(language)
        return runbook(texts(spoken), spoken)

    return [Route(PATH, lambda request: answer(language_of(request)), waits=True)]


def runbook(texts: Mapping[str, str], translator: Translator) -> Response:
    """Answer with the page; each rule is an anchor by its name."""
    t = translator.t
    contents = [h("li", h("a", name, href=f"#{name}")) for name in texts]
    sections = [h("section", h("h2", name), *paragraphs(text), id=name, class_="card") for name, text in texts.items()]
    same = _spans(t("{command} says the same in a terminal.", command="`wslgpud alerts explain RULE`"))
    here = h("a", t("this machine now"), href="/")
    return page(
        f"wslgpud: {t('runbook')}",
        translator.code,
        h("h1", t("Runbook")),
        h("p", t("Version {version}.", version=__version__), " ", *same, " ", here, class_="dim"),
        h("nav", h("ul", *contents, class_="plain-list columns")),
        *sections,
    )


def paragraphs(text: str) -> list[Html]:
    """Write Markdown as HTML; a link to a file of the repository leads nowhere here: its words stay."""
    return [h("p", *_spans(part.strip())) for part in re.split(r"\n{2,}", text.strip())]


def _spans(text: str) -> Iterator[str]:
    end = 0
    for span in _SPAN.finditer(text):
        yield text[end : span.start()]
        code, words, address = span.group("code", "words", "address")
        if code:
            yield h("code", code)
        else:
            yield h("a", words, href=address) if address.startswith("https://") else words
        end = span.end()
    yield text[end:]
