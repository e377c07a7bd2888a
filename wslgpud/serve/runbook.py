"""The page at ``/runbook``, where links in alerts lead: what to do about each rule, offline."""

from __future__ import annotations

import functools
import html
import re
from collections.abc import Callable, Mapping

from wslgpud import __version__
from wslgpud.serve.http import Request, Response, Route
from wslgpud.serve.pages import STYLE, policy

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


def routes(texts: Callable[[], Mapping[str, str]]) -> list[Route]:
    """Return the page.

    Args:
        texts: what to do by rule, in Markdown; asked for once, when somebody first wants it.
    """
    body = functools.cache(lambda: page(texts()).encode())

    def answer(_: Request) -> Response:
        return Response(200, body(), "text/html; charset=utf-8", {"Content-Security-Policy": _POLICY})

    return [Route(PATH, answer)]


def page(texts: Mapping[str, str]) -> str:
    """Write the page; each rule is an anchor by its name."""
    contents = "".join(f'<li><a href="#{name}">{name}</a></li>' for name in texts)
    sections = "\n".join(
        f'<section id="{name}"><h2>{name}</h2>{paragraphs(text)}</section>' for name, text in texts.items()
    )
    return f"""<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>wslgpud: runbook</title><link rel="icon" href="data:,"><style>{_STYLE}</style></head>
<body>
<header><h1>What to do when wslgpud says ...</h1>
<p class="dim">Version {__version__}. <code>wslgpud alerts explain RULE</code> says the same in a terminal;
<a href="/">this machine now</a>.</p></header>
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
