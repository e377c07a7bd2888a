"""Pages without scripts, from data. Text only ever becomes text: nothing here makes markup of a string."""

from __future__ import annotations

import html

from wslgpud.serve.http import Response

#: no scripts, no frames, nothing inline, nothing from elsewhere
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; img-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
}


class Html(str):
    """An element, as markup."""

    __slots__ = ()


def h(tag: str, *content: str, **attributes: object) -> Html:
    """Build an element; ``class_`` and ``aria_label`` are attributes, None is left out."""
    known = {name.strip("_").replace("_", "-"): value for name, value in attributes.items() if value is not None}
    written = "".join(f' {name}="{html.escape(str(value))}"' for name, value in known.items())
    inside = "".join(part if isinstance(part, Html) else html.escape(part) for part in content)
    return Html(f"<{tag}{written}>{inside}</{tag}>")


def page(title: str, language: str, *body: Html) -> Response:
    """Answer with a page that looks like the one with scripts, in the system's theme."""
    text = f"""<!doctype html>
<html lang="{language}">
<head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{html.escape(title)}</title><link rel="icon" href="/static/icon.svg" type="image/svg+xml">
<link rel="stylesheet" href="/static/page.css">
<link rel="stylesheet" href="/static/dark.css" media="(prefers-color-scheme: dark)"></head>
<body class="plain">{"".join(body)}</body></html>
"""
    return Response(200, text.encode(), "text/html; charset=utf-8", _HEADERS)
