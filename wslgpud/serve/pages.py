"""Pages without scripts, from data: ``/plain`` and ``/runbook``.

Strings only ever become text, never markup.
"""

from __future__ import annotations

import functools
import html
import re
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from wslgpud import __version__
from wslgpud.alerts import rules
from wslgpud.alerts.messages import local_time
from wslgpud.client import besides
from wslgpud.serve.router import Response
from wslgpud.words import MessageLike, Translator, translator

#: no scripts, no frames, nothing inline, nothing from other origins
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; img-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
}


class Html(str):
    __slots__ = ()


def h(tag: str, *content: str, **attributes: object) -> Html:
    """Build an element, with attributes such as ``class_`` and ``aria_label``."""
    known = {name.strip("_").replace("_", "-"): html.escape(str(value)) for name, value in attributes.items()}
    written = "".join(f' {name}="{value}"' for name, value in known.items())
    inside = "".join(part if isinstance(part, Html) else html.escape(part) for part in content)
    return Html(f"<{tag}{written}>{inside}</{tag}>")


def page(title: str, language: str, *body: Html, refresh_seconds: int = 0) -> Response:
    """Answer with a page styled like the one with scripts, in the system's theme; 0 means that it stays as it is."""
    again = f'<meta http-equiv="refresh" content="{refresh_seconds}">' if refresh_seconds else ""
    text = f"""<!doctype html>
<html lang="{language}">
<head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">{again}
<title>{html.escape(title)}</title><link rel="icon" href="/static/icon.svg" type="image/svg+xml">
<link rel="stylesheet" href="/static/page.css">
<link rel="stylesheet" href="/static/dark.css" media="(prefers-color-scheme: dark)"></head>
<body class="plain">{"".join(body)}</body></html>
"""
    return Response(200, text.encode(), "text/html; charset=utf-8", _HEADERS)


#: a machine may have hundreds of cgroups; its own resources come first
_MAX_MEMORIES = 12
_REFRESH_SECONDS = 10


def plain_page(document: Mapping[str, Any], trouble: MessageLike, translator: Translator) -> Response:
    """Answer with the page at ``/plain``: the current status document, rendered by ``translator``.

    ``trouble`` is why sampling is unhealthy; empty when it is healthy.
    """
    t, machine, verdict = translator.t, socket.gethostname(), document["verdict"]
    level = verdict.get("state", verdict["level"])
    mark = "" if level == "ok" else f"{translator.label('level', level)} \N{EN DASH} "
    state = t("Waiting for the first sample.")
    if "at" in document:
        taken, each = local_time(document["at"]), document["interval_seconds"]
        state = t("Last sample {taken}, one every {interval_seconds}.", taken=taken, interval_seconds=each)
    links = {
        "/metrics": t("metrics for Prometheus"),
        "/-/healthy": t("is sampling alive?"),
        "/-/ready": t("is there data?"),
        "/api/v1/status": t("the current state, as JSON"),
    }
    where = [h("li", h("a", path, href=path), f": {what}") for path, what in links.items()]
    return page(
        f"{mark}wslgpud: {machine}",
        translator.code,
        h("h1", "wslgpud ", h("span", machine, class_="dim")),
        h("p", t("Version {version}.", version=__version__), " ", state, class_="dim"),
        *[h("p", translator.text(trouble), class_="bad", role="alert")] * bool(trouble),
        _verdict(document["verdict"], translator),
        *_table(t("Open incidents"), (_incident(item, translator) for item in document.get("incidents", ()))),
        *_table(t("Memory"), (_memory(forecast, t) for forecast in document.get("forecasts", ())[:_MAX_MEMORIES])),
        h("section", h("h2", t("More")), h("ul", *where, class_="plain-list"), class_="card"),
        *_table(t("Sources"), (_source(source, translator) for source in document.get("sources", ()))),
        refresh_seconds=_REFRESH_SECONDS,
    )


def _table(title: str, rows: Iterable[Html]) -> list[Html]:
    table_rows = list(rows)
    return [h("section", h("h2", title), h("table", *table_rows), class_="card")] * bool(table_rows)


def _verdict(verdict: Mapping[str, Any], translator: Translator) -> Html:
    verdict = besides(verdict)
    lost, state, headline = verdict.get("lost"), verdict.get("state", verdict["level"]), verdict["headline"]
    paragraphs = [h("p", verdict[name]) for name in ("byline", "advice", "more") if verdict.get(name)]
    if "command" in verdict:
        paragraphs.append(h("p", h("code", verdict["command"])))
    incident = []
    if lost:
        link = h("a", translator.t("Incident {id}", id=lost["incident"]), href=f"/#/incidents/{lost['incident']}")
        incident = [h("p", link, " · ", *[f"{lost.get('more')} · "] * ("more" in lost), h("code", lost["seen"]))]
    if lost and state == "killed":
        now = h("p", _chip(verdict["level"], translator), " ", headline)
        body = h("div", h("h1", lost["headline"]), *incident, now, *paragraphs)
    else:
        told = [h("p", lost["headline"])] if lost else []
        body = h("div", h("h1", headline), *paragraphs, *told, *incident)
    return h("section", _chip(state, translator), body, class_=f"card verdict {state}")


def _chip(level: str, translator: Translator) -> Html:
    return h("span", translator.label("level", level), class_=f"chip {level}")


def _incident(item: Mapping[str, Any], translator: Translator) -> Html:
    since = translator.t("since {time}", time=local_time(item["since"]))
    notes = h("div", " · ".join((since, *item.get("notes", ()), f"wslgpud incidents {item['id']}")), class_="dim")
    return h("tr", h("th", _chip(item["level"], translator), scope="row"), h("td", item["headline"], notes))


def _memory(forecast: Mapping[str, Any], t: Callable[..., str]) -> Html:
    left, total, name = forecast["headroom_bytes"], forecast["capacity_bytes"], forecast["name"]
    drawn = h(
        "meter", value=total - left, max=total, low=total * 3 // 4, high=total * 9 // 10, optimum=0, aria_label=name
    )
    outlook = " · ".join(filter(None, (forecast.get("outlook"), forecast.get("who"))))
    room = h("td", t("{room_bytes} left", room_bytes=(left, total)), h("div", outlook, class_="dim"))
    return h("tr", h("th", name, scope="row"), h("td", drawn, class_="cut"), room)


def _source(source: Mapping[str, Any], translator: Translator) -> Html:
    health, detail = source["health"], source.get("error", "")
    if health == "ok":
        took, age = f"{source['duration_seconds'] * 1e3:.1f}", source["age_seconds"]
        detail = translator.t("{milliseconds} ms, {age_seconds} old", milliseconds=took, age_seconds=age)
    state = h("td", translator.label("health", health), class_=health)
    return h("tr", h("th", source["name"], scope="row"), state, h("td", detail, class_="dim"))


#: target of links in alerts
RUNBOOK_PATH = "/runbook"
#: the Markdown that the runbook uses: `code` and [text](address)
_SPAN = re.compile(r"`(?P<code>[^`]+)`|\[(?P<words>[^]]+)\]\((?P<address>[^)]+)\)")


@functools.cache
def runbook_page(language: str) -> Response:
    """Answer with the runbook, offline: links in alerts lead here."""
    return runbook(rules.runbook(translator(language)), translator(language))


def runbook(texts: Mapping[str, str], translator: Translator) -> Response:
    """Answer with the page; each rule has an anchor by its name."""
    t = translator.t
    contents = [h("li", h("a", name, href=f"#{name}")) for name in texts]
    sections = [h("section", h("h2", name), *paragraphs(text), id=name, class_="card") for name, text in texts.items()]
    same = _spans(t("{command} shows the same in a terminal.", command="`wslgpud alerts explain RULE`"))
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
    """Render Markdown as HTML; a link to a file of the repository becomes plain text."""
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
