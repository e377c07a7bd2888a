"""The page at ``/runbook``, where links in alerts lead: what to do about each rule, offline."""

from __future__ import annotations

import functools
import html
import re
from collections.abc import Callable, Mapping

from wslgpud import __version__
from wslgpud.serve.api_query import language_of
from wslgpud.serve.http import Request, Response, Route
from wslgpud.serve.pages import STYLE, policy
from wslgpud.words import Tongue, tongue

PATH = "/runbook"

_STYLE = (
    STYLE
    + """
h2, code { font-family: ui-monospace, monospace; } code { font-size: .9em; } p { margin: .5rem 0 0; }
nav ul { columns: 13rem; } section { scroll-margin-top: 1rem; }
section:target { border-color: var(--link); outline: 1px solid var(--link); }
"""
)
_POLICY = policy(_STYLE)
#: the Markdown that the runbook keeps to: `code` and [words](address)
_SPAN = re.compile(r"`(?P<code>[^`]+)`|\[(?P<words>[^]]+)\]\((?P<address>[^)]+)\)")


def routes(texts: Callable[[Tongue], Mapping[str, str]]) -> list[Route]:
    """Return the page.

    Args:
        texts: what to do by rule in a language, in Markdown; asked for once, when somebody first wants it.
    """

    @functools.cache
    def body(language: str) -> bytes:
        spoken = tongue(language)
        return page(texts(spoken), spoken).encode()

    def answer(request: Request) -> Response:
        policy = {"Content-Security-Policy": _POLICY}
        return Response(200, body(language_of(request)), "text/html; charset=utf-8", policy)

    return [Route(PATH, answer, waits=True)]


def page(texts: Mapping[str, str], tongue: Tongue) -> str:
    """Write the page; each rule is an anchor by its name."""
    t = tongue.t
    version = html.escape(t("Version {version}.", version=__version__))
    same = _spans(t("{command} says the same in a terminal.", command="`wslgpud alerts explain RULE`"))
    contents = "".join(f'<li><a href="#{name}">{name}</a></li>' for name in texts)
    sections = "\n".join(
        f'<section id="{name}"><h2>{name}</h2>{paragraphs(text)}</section>' for name, text in texts.items()
    )
    return f"""<!doctype html>
<html lang="{tongue.code}">
<head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>wslgpud: {t("runbook")}</title><link rel="icon" href="data:,"><style>{_STYLE}</style></head>
<body>
<header><h1>{t("What to do when wslgpud says ...")}</h1>
<p class="dim">{version} {same} <a href="/">{t("this machine now")}</a></p></header>
<main>
<nav><section><ul>{contents}</ul></section></nav>
{sections}
</main></body></html>
"""


def paragraphs(text: str) -> str:
    """Write Markdown as HTML; a link to a file of the repository leads nowhere here: its words stay."""
    return "".join(f"<p>{_spans(part.strip())}</p>" for part in re.split(r"\n{2,}", text.strip()))


def _spans(text: str) -> str:
    written, end = [], 0
    for span in _SPAN.finditer(text):
        written += [html.escape(text[end : span.start()]), _span(span)]
        end = span.end()
    return "".join(written) + html.escape(text[end:])


def _span(span: re.Match[str]) -> str:
    if span["code"]:
        return f"<code>{html.escape(span['code'])}</code>"
    words, address = html.escape(span["words"]), html.escape(span["address"])
    return f'<a href="{address}">{words}</a>' if address.startswith("https://") else words
