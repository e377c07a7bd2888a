"""What the server answers by itself: metrics, health, status, the page, and a plain one without scripts."""

from __future__ import annotations

import base64
import hashlib
import html
import socket
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timezone
from typing import Any, NamedTuple, Protocol

from wslgpud import __version__
from wslgpud.model import Level, Snapshot, SourceReport
from wslgpud.palette import stylesheet
from wslgpud.serve.exposition import accepts_gzip, negotiate
from wslgpud.serve.http import Request, Response, Route, text, to_json
from wslgpud.serve.publisher import Publisher
from wslgpud.serve.static import Files
from wslgpud.sources.memory import MEMINFO
from wslgpud.units import one_line
from wslgpud.words import Message

_GIB = 1 << 30


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


class Incident(Protocol):
    """What the page shows of an incident, see ``wslgpud.alerts.incidents``."""

    @property
    def id(self) -> int:
        """Its number."""

    @property
    def level(self) -> Level:
        """How bad it is."""

    @property
    def opened_wall(self) -> float:
        """Since when."""

    @property
    def message(self) -> Message:
        """What, when, who."""


class OpenIncident(Protocol):
    """An open incident and what people have said to it."""

    @property
    def incident(self) -> Incident:
        """The incident."""

    @property
    def acknowledged(self) -> bool:
        """Whether somebody knows of it."""

    @property
    def silenced_until_wall(self) -> float | None:
        """Until when no messages go out."""


class Meter(NamedTuple):
    """A memory on the plain page, in bytes."""

    label: str
    used_bytes: int
    total_bytes: int


def memory_meters(snapshot: Snapshot) -> list[Meter]:
    """Return RAM, swap and the memory of each GPU, as far as they are known."""
    found = []
    for label, total_spec, left_spec in (
        ("RAM", MEMINFO["MemTotal"], MEMINFO["MemAvailable"]),
        ("Swap", MEMINFO["SwapTotal"], MEMINFO["SwapFree"]),
    ):
        total, left = snapshot.value(total_spec), snapshot.value(left_spec)
        if total and left is not None:
            found.append(Meter(label, int(total - left), int(total)))
    return found + [
        Meter(f"GPU {g.index}: {g.name}", g.used_bytes, g.total_bytes)
        for g in snapshot.gpus
        if g.total_bytes and g.used_bytes is not None
    ]


def routes(
    publisher: Publisher,
    status: Callable[[], Mapping[str, Any]] = dict,
    incidents: Callable[[], Iterable[OpenIncident]] = tuple,
) -> list[Route]:
    """Return the paths every daemon has.

    Args:
        publisher: where the last snapshot lies.
        status: what ``wslgpud status --json`` prints.
        incidents: what is open now; quick, and it does not wait.
    """

    def trouble() -> str:
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

    def plain(_: Request) -> Response:
        page = plain_page(publisher.latest, trouble(), incidents())
        return Response(
            200, page.encode(), "text/html; charset=utf-8", {"Content-Security-Policy": PAGE_POLICY}
        )

    return [
        *Files().routes(),
        Route("/plain", plain),
        Route("/metrics", metrics),
        Route("/-/healthy", healthy),
        Route("/-/ready", ready),
        Route("/api/v1/status", lambda _: to_json(status()), waits=True),
    ]


def verdict(reason: str) -> Response:
    """Answer a probe: 200 when there is no ``reason`` against it, else 503."""
    return text(503, reason) if reason else text(200, "ok")


def unhealthy(latest: Snapshot | None, seconds_since_tick: float) -> str:
    """Say why sampling is not healthy; empty when it is.

    Five intervals of patience, at least 10 s: a machine that swaps stalls for seconds, and is not ill.
    """
    interval = latest.interval_seconds if latest else 1.0
    patience = max(10.0, 5 * interval)
    if seconds_since_tick <= patience:
        return ""
    return f"no sample for {seconds_since_tick:.0f} s (one every {interval:g} s was planned)"


def plain_page(latest: Snapshot | None, trouble: str, incidents: Iterable[OpenIncident] = ()) -> str:
    """Write the page at ``/plain``: what is known at this moment, and where there is more."""
    machine = html.escape(socket.gethostname())
    if latest is None:
        state = "Waiting for the first sample."
    else:
        taken = datetime.fromtimestamp(latest.wall, timezone.utc).astimezone()
        state = f"Last sample {taken:%Y-%m-%d %H:%M:%S %Z}, one every {latest.interval_seconds:g} s."
    links = [
        ("/metrics", "metrics for Prometheus"),
        ("/-/healthy", "is sampling alive?"),
        ("/-/ready", "is there data?"),
        ("/api/v1/status", "all that is known now, as JSON"),
    ]
    return f"""<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>wslgpud on {machine}</title><link rel="icon" href="data:,"><style>{STYLE}</style></head>
<body>
<header><h1>wslgpud <span class="dim">on {machine}</span></h1>
<p class="dim">Version {__version__}. {html.escape(state)}</p>
{f'<p class="trouble" role="alert">{html.escape(trouble.capitalize())}.</p>' * bool(trouble)}</header>
<main>
{_incidents_section(incidents)}
{_meters_section(memory_meters(latest) if latest else [])}
<section><h2>Look further</h2><ul>
{"".join(f'<li><a href="{path}">{path}</a>: {what}</li>' for path, what in links)}
</ul></section>
{_sources_section(latest)}
</main></body></html>
"""


def _incidents_section(incidents: Iterable[OpenIncident]) -> str:
    rows = "".join(map(_incident_row, incidents))
    return (
        f'<section class="incidents"><h2>Open incidents</h2><table>{rows}</table></section>' if rows else ""
    )


def _incident_row(open_one: OpenIncident) -> str:
    incident, until = open_one.incident, open_one.silenced_until_wall
    notes = [f"since {_local(incident.opened_wall)}"]
    notes += ["acknowledged"] * open_one.acknowledged
    notes += [] if until is None else [f"silenced until {_local(until)}"]
    notes.append(f"wslgpud incidents {incident.id}")
    what = html.escape(one_line(str(incident.message)))
    return (
        f'<tr><th scope="row" class="{incident.level.label}">{incident.level.label}</th>'
        f'<td>{what}<br><span class="dim">{", ".join(notes)}</span></td></tr>'
    )


def _local(wall: float) -> str:
    return f"{datetime.fromtimestamp(wall, timezone.utc).astimezone():%Y-%m-%d %H:%M:%S}"


def _meters_section(meters: Iterable[Meter]) -> str:
    rows = "".join(map(_meter_rows, meters))
    return f"<section><h2>Memory</h2><table>{rows}</table></section>" if rows else ""


def _meter_rows(meter: Meter) -> str:
    label, used, total = html.escape(meter.label), meter.used_bytes, meter.total_bytes
    return (
        f'<tr><th scope="row">{label}</th>'
        f'<td class="number">{used / _GIB:.1f} of {total / _GIB:.1f} GiB used</td></tr>'
        f'<tr><td colspan="2"><meter value="{used}" max="{total}" low="{total * 3 // 4}" '
        f'high="{total * 9 // 10}" optimum="0" aria-label="{label}"></meter></td></tr>'
    )


def _sources_section(latest: Snapshot | None) -> str:
    if latest is None:
        return ""
    rows = "".join(
        f'<tr><th scope="row">{html.escape(r.name)}</th><td class="{r.health}">{r.health}</td>'
        f'<td class="dim">{html.escape(_detail(r, latest.mono))}</td></tr>'
        for r in latest.reports
    )
    return f"<section><h2>Sources</h2><table>{rows}</table></section>"


def _detail(report: SourceReport, now_mono: float) -> str:
    if report.health != "ok":
        return report.error
    return f"{report.duration_seconds * 1e3:.1f} ms, {max(0.0, now_mono - report.mono):.1f} s old"
