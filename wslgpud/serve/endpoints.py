"""What the server answers by itself: metrics, health, status, the page, and a plain one without scripts."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from wslgpud import __version__
from wslgpud.alerts.messages import local_time
from wslgpud.model import Snapshot
from wslgpud.serve import static
from wslgpud.serve.api_query import language_of
from wslgpud.serve.exposition import Publisher, accepts_gzip, negotiate
from wslgpud.serve.html import Html, h, page
from wslgpud.serve.http import Request, Response, Route, text, to_json
from wslgpud.words import MessageLike, Translator, say, translator

#: a machine may have hundreds of groups; its own memories come first
_MOST_MEMORIES = 12


def routes(
    publisher: Publisher, status: Callable[[str], Mapping[str, Any]], now: Callable[[str], Mapping[str, Any]]
) -> list[Route]:
    """Return the paths every daemon has.

    ``status`` is what ``wslgpud status --json`` prints, in a language; ``now`` the same without a look into the
    database, hence at once.
    """

    def trouble() -> MessageLike:
        return unhealthy(publisher.latest, publisher.seconds_since_tick())

    def metrics(request: Request) -> Response:
        text_format = negotiate(request.headers.get("accept", ""))
        zipped = accepts_gzip(request.headers.get("accept-encoding", ""))
        headers = {"Vary": "Accept, Accept-Encoding"} | ({"Content-Encoding": "gzip"} if zipped else {})
        return Response(200, publisher.text(text_format, zipped=zipped), text_format.content_type, headers)

    def plain(request: Request) -> Response:
        language = language_of(request)
        return plain_page(now(language), trouble(), translator(language))

    return [
        *static.routes(),
        Route("/plain", plain),
        Route("/metrics", metrics),
        Route("/-/healthy", lambda _: probe_response(trouble())),
        Route("/-/ready", lambda _: probe_response("" if publisher.latest else "waiting for the first sample")),
        Route("/api/v1/status", lambda request: to_json(status(language_of(request))), waits=True),
    ]


def probe_response(reason: MessageLike) -> Response:
    """Answer a probe: 200 when there is no ``reason`` against it, else 503."""
    return text(503, str(reason)) if reason else text(200, "ok")


def unhealthy(latest: Snapshot | None, seconds_since_tick: float) -> MessageLike:
    """Say why sampling is not healthy; empty when it is.

    Five intervals of patience, at least 10 s: a machine that swaps stalls for seconds, and is not ill.
    """
    interval = latest.interval_seconds if latest else 1.0
    if seconds_since_tick <= max(10.0, 5 * interval):
        return ""
    silent = {"silent_seconds": seconds_since_tick, "interval": interval}
    return say("No sample for {silent_seconds} (one every {interval} s was planned).", **silent)


def plain_page(document: Mapping[str, Any], trouble: MessageLike, translator: Translator) -> Response:
    """Answer with the page at ``/plain``: the status document as it stands, worded in ``translator``.

    ``trouble`` is why sampling is not healthy; empty when it is.
    """
    t, machine = translator.t, socket.gethostname()
    state = t("Waiting for the first sample.")
    if "at" in document:
        taken, each = local_time(document["at"]), document["interval_seconds"]
        state = t("Last sample {taken}, one every {interval_seconds}.", taken=taken, interval_seconds=each)
    links = {
        "/metrics": t("metrics for Prometheus"),
        "/-/healthy": t("is sampling alive?"),
        "/-/ready": t("is there data?"),
        "/api/v1/status": t("all that is known now, as JSON"),
    }
    where = [h("li", h("a", path, href=path), f": {what}") for path, what in links.items()]
    return page(
        f"wslgpud: {machine}",
        translator.code,
        h("h1", "wslgpud ", h("span", machine, class_="dim")),
        h("p", t("Version {version}.", version=__version__), " ", state, class_="dim"),
        *[h("p", translator.text(trouble), class_="bad", role="alert")] * bool(trouble),
        _verdict(document["verdict"], translator),
        *_table(t("Open incidents"), (_incident(item, translator) for item in document.get("incidents", ()))),
        *_table(t("Memory"), (_memory(one, t) for one in document.get("forecasts", ())[:_MOST_MEMORIES])),
        h("section", h("h2", t("Look further")), h("ul", *where, class_="plain-list"), class_="card"),
        *_table(t("Sources"), (_source(source, translator) for source in document.get("sources", ()))),
    )


def _table(title: str, rows: Iterable[Html]) -> list[Html]:
    found = list(rows)
    return [h("section", h("h2", title), h("table", *found), class_="card")] * bool(found)


def _verdict(verdict: Mapping[str, Any], translator: Translator) -> Html:
    told = [h("p", verdict[name]) for name in ("byline", "advice", "more") if name in verdict]
    level = verdict["level"]
    said = h("div", h("h1", verdict["headline"]), *told)
    return h("section", _chip(level, translator), said, class_=f"card verdict {level}")


def _chip(level: str, translator: Translator) -> Html:
    return h("span", translator.label("level", level), class_=f"chip {level}")


def _incident(item: Mapping[str, Any], translator: Translator) -> Html:
    since = translator.t("since {time}", time=local_time(item["since"]))
    notes = h("div", " · ".join((since, *item.get("notes", ()), f"wslgpud incidents {item['id']}")), class_="dim")
    return h("tr", h("th", _chip(item["level"], translator), scope="row"), h("td", item["headline"], notes))


def _memory(forecast: Mapping[str, Any], t: Callable[..., str]) -> Html:
    left, whole, name = forecast["headroom_bytes"], forecast["capacity_bytes"], forecast["name"]
    drawn = h(
        "meter", value=whole - left, max=whole, low=whole * 3 // 4, high=whole * 9 // 10, optimum=0, aria_label=name
    )
    outlook = " · ".join(filter(None, (forecast.get("outlook"), forecast.get("who"))))
    room = h("td", t("{room_bytes} left", room_bytes=(left, whole)), h("div", outlook, class_="dim"))
    return h("tr", h("th", name, scope="row"), h("td", drawn, class_="cut"), room)


def _source(source: Mapping[str, Any], translator: Translator) -> Html:
    health, detail = source["health"], source.get("error", "")
    if health == "ok":
        took, age = f"{source['duration_seconds'] * 1e3:.1f}", source["age_seconds"]
        detail = translator.t("{milliseconds} ms, {age_seconds} old", milliseconds=took, age_seconds=age)
    state = h("td", translator.label("health", health), class_=health)
    return h("tr", h("th", source["name"], scope="row"), state, h("td", detail, class_="dim"))
