"""What the server answers by itself: metrics, health, status, the page, and a plain one without scripts."""

from __future__ import annotations

import base64
import hashlib
import html
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple

from wslgpud import __version__
from wslgpud.model import Snapshot
from wslgpud.palette import stylesheet
from wslgpud.serve.api_query import language_of
from wslgpud.serve.exposition import accepts_gzip, negotiate
from wslgpud.serve.http import Request, Response, Route, text, to_json
from wslgpud.serve.publisher import Publisher
from wslgpud.serve.static import Files
from wslgpud.words import Said, Tongue, say, tongue
from wslgpud.words.names import HEALTHS, LEVELS


def _inks(theme: str) -> str:
    known = stylesheet(theme)
    return " ".join(f"--{name}: {known[f'--{name}']};" for name in _INKS)


_INKS = ("ink", "dim", "back", "card", "rule", "link", "good", "bad", "warn")
_COLOURS = f"""
:root {{ color-scheme: light dark; {_inks("light")} }}
@media (prefers-color-scheme: dark) {{ :root {{ {_inks("dark")} }} }}
"""
_RULES = """
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 46rem; padding: 2rem 1rem; background: var(--back); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; margin: 0; } h2 { font-size: 1rem; margin: 0 0 .5rem; }
p { margin: .25rem 0; } .dim { color: var(--dim); }
section { background: var(--card); border: 1px solid var(--rule); border-radius: .6rem; padding: 1rem;
  margin-top: 1rem; }
a { color: var(--link); } ul { margin: 0; padding-left: 1.2rem; }
table { width: 100%; border-collapse: collapse; } td, th { padding: .2rem .5rem .2rem 0; text-align: left;
  vertical-align: top; overflow-wrap: anywhere; } th { font-weight: 600; }
meter { width: 100%; height: 1rem; } .number { font-variant-numeric: tabular-nums; text-align: right;
  white-space: nowrap; } td:last-child { padding-right: 0; width: 99%; }
  th, td.ok, td.late, td.failed, td.absent { white-space: nowrap; }
.trouble { color: var(--bad); font-weight: 600; }
.ok { color: var(--good); } .failed, .late, .critical, .emergency { color: var(--bad); }
.absent, .info { color: var(--dim); } .warning { color: var(--warn); }
"""
STYLE = _COLOURS + _RULES


def policy(style: str) -> str:
    """Return the Content-Security-Policy of a page whose only style is inline.

    The style is named by its digest; scripts, frames and other hosts are shut out.
    """
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return (
        f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


PAGE_POLICY = policy(STYLE)


def routes(
    publisher: Publisher,
    status: Callable[[str], Mapping[str, Any]],
    now: Callable[[str], Mapping[str, Any]],
) -> list[Route]:
    """Return the paths every daemon has.

    Args:
        publisher: where the last snapshot lies.
        status: what ``wslgpud status --json`` prints, in a language.
        now: the same without a look into the database, hence at once.
    """

    def trouble() -> Said:
        return unhealthy(publisher.latest, publisher.seconds_since_tick())

    def metrics(request: Request) -> Response:
        text_format = negotiate(request.headers.get("accept", ""))
        zipped = accepts_gzip(request.headers.get("accept-encoding", ""))
        headers = {"Vary": "Accept, Accept-Encoding"} | ({"Content-Encoding": "gzip"} if zipped else {})
        return Response(200, publisher.text(text_format, zipped=zipped), text_format.content_type, headers)

    def healthy(_: Request) -> Response:
        return verdict(trouble())

    def ready(_: Request) -> Response:
        return verdict("" if publisher.latest else "waiting for the first sample")

    def plain(request: Request) -> Response:
        language = language_of(request)
        page = plain_page(now(language), trouble(), tongue(language))
        return Response(
            200, page.encode(), "text/html; charset=utf-8", {"Content-Security-Policy": PAGE_POLICY}
        )

    return [
        *Files().routes(),
        Route("/plain", plain),
        Route("/metrics", metrics),
        Route("/-/healthy", healthy),
        Route("/-/ready", ready),
        Route("/api/v1/status", lambda request: to_json(status(language_of(request))), waits=True),
    ]


def verdict(reason: Said) -> Response:
    """Answer a probe: 200 when there is no ``reason`` against it, else 503."""
    return text(503, str(reason)) if reason else text(200, "ok")


def unhealthy(latest: Snapshot | None, seconds_since_tick: float) -> Said:
    """Say why sampling is not healthy; empty when it is.

    Five intervals of patience, at least 10 s: a machine that swaps stalls for seconds, and is not ill.
    """
    interval = latest.interval_seconds if latest else 1.0
    patience = max(10.0, 5 * interval)
    if seconds_since_tick <= patience:
        return ""
    return say(
        "No sample for {silent_seconds} (one every {interval} s was planned).",
        silent_seconds=seconds_since_tick, interval=interval,
    )  # fmt: skip


def plain_page(document: Mapping[str, Any], trouble: Said, tongue: Tongue) -> str:
    """Write the page at ``/plain``: the status document as it stands, and where there is more.

    Args:
        document: what ``wslgpud status --json`` prints, worded in ``tongue``.
        trouble: why sampling is not healthy; empty when it is.
        tongue: the language of the page's own words.
    """
    t = tongue.t
    machine = html.escape(socket.gethostname())
    if "at" in document:
        taken = _local(document["at"])
        state = t(
            "Last sample {taken}, one every {interval_seconds}.",
            taken=taken, interval_seconds=document["interval_seconds"],
        )  # fmt: skip
    else:
        state = t("Waiting for the first sample.")
    links = [
        ("/metrics", t("metrics for Prometheus")),
        ("/-/healthy", t("is sampling alive?")),
        ("/-/ready", t("is there data?")),
        ("/api/v1/status", t("all that is known now, as JSON")),
    ]
    version = t("Version {version}.", version=__version__)
    open_now, further = t("Open incidents"), t("Look further")
    return f"""<!doctype html>
<html lang="{tongue.code}">
<head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>wslgpud: {machine}</title><link rel="icon" href="data:,"><style>{STYLE}</style></head>
<body>
<header><h1>wslgpud <span class="dim">{machine}</span></h1>
<p class="dim">{version} {html.escape(state)}</p>
{f'<p class="trouble" role="alert">{html.escape(tongue.text(trouble))}</p>' * bool(trouble)}</header>
<main>
{_verdict_section(document["verdict"], t)}
{_section(open_now, map(partial(_incident_row, t), document.get("incidents", ())), "incidents")}
{_section(t("Memory"), map(_meter_rows, memory_meters(document, t)))}
<section><h2>{further}</h2><ul>
{"".join(f'<li><a href="{path}">{path}</a>: {what}</li>' for path, what in links)}
</ul></section>
{_section(t("Sources"), map(partial(_source_row, t), document.get("sources", ())))}
</main></body></html>
"""


class Meter(NamedTuple):
    """A memory on the plain page: its name, and what is used of it in bytes."""

    label: str
    used_bytes: int
    total_bytes: int
    said: str


def memory_meters(document: Mapping[str, Any], t: Callable[..., str]) -> Iterator[Meter]:
    """Yield RAM, swap and the memory of each GPU, as far as they are known."""

    def meter(label: str, used: int, total: int) -> Meter:
        return Meter(label, used, total, t("{room_bytes} used", room_bytes=(used, total)))

    if ram := document.get("ram"):
        yield meter(t("RAM"), ram["total"] - ram["available"], ram["total"])
    if (swap := document.get("swap")) and swap["total"]:
        yield meter(t("Swap"), swap["total"] - swap["free"], swap["total"])
    for gpu in document.get("gpus", ()):
        if gpu.get("total_bytes") and "used_bytes" in gpu:
            yield meter(f"GPU {gpu['index']}: {gpu['name']}", gpu["used_bytes"], gpu["total_bytes"])


def _section(title: str, rows: Iterable[str], kind: str = "") -> str:
    found = "".join(rows)
    return f'<section class="{kind}"><h2>{title}</h2><table>{found}</table></section>' if found else ""


def _verdict_section(verdict: Mapping[str, Any], t: Callable[..., str]) -> str:
    level = verdict["level"]
    who = verdict.get("who", "")
    culprit = f"<p><strong>{html.escape(who)}</strong></p>" if who not in verdict["headline"] else ""
    advice = f"<p>{html.escape(verdict['advice'])}</p>" if "advice" in verdict else ""
    also = t("and {n} more open", n=verdict.get("also", 0))
    more = f'<p class="dim">{also}</p>' if "also" in verdict else ""
    badge = f'<span class="{level}">{t(LEVELS[level])}</span>'
    headline = html.escape(verdict["headline"])
    return f'<section class="verdict"><h2>{badge} {headline}</h2>{culprit}{advice}{more}</section>'


def _incident_row(t: Callable[..., str], item: Mapping[str, Any]) -> str:
    notes = [t("since {time}", time=_local(item["since"]))]
    notes += [t("acknowledged")] * bool(item.get("acknowledged"))
    if "silenced_until" in item:
        notes.append(t("silenced until {time}", time=_local(item["silenced_until"])))
    notes.append(f"wslgpud incidents {item['id']}")
    level = item["level"]
    return (
        f'<tr><th scope="row" class="{level}">{t(LEVELS[level])}</th>'
        f'<td>{html.escape(item["headline"])}<br><span class="dim">{" · ".join(notes)}</span></td></tr>'
    )


def _local(at: str) -> str:
    return f"{datetime.fromisoformat(at).astimezone():%Y-%m-%d %H:%M:%S}"


def _meter_rows(meter: Meter) -> str:
    label, used, total = html.escape(meter.label), meter.used_bytes, meter.total_bytes
    return (
        f'<tr><th scope="row">{label}</th><td class="number">{meter.said}</td></tr>'
        f'<tr><td colspan="2"><meter value="{used}" max="{total}" low="{total * 3 // 4}" '
        f'high="{total * 9 // 10}" optimum="0" aria-label="{label}"></meter></td></tr>'
    )


def _source_row(t: Callable[..., str], source: Mapping[str, Any]) -> str:
    health = source["health"]
    detail = source.get("error", "")
    if health == "ok":
        detail = t(
            "{milliseconds} ms, {age_seconds} old",
            milliseconds=f"{source['duration_seconds'] * 1e3:.1f}", age_seconds=source["age_seconds"],
        )  # fmt: skip
    name = html.escape(source["name"])
    return (
        f'<tr><th scope="row">{name}</th><td class="{health}">{t(HEALTHS[health])}</td>'
        f'<td class="dim">{html.escape(detail)}</td></tr>'
    )
