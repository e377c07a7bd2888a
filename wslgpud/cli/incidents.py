"""``wslgpud incidents``: what happened, as a list or as the report of one."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wslgpud.cli.common import (
    ConfigOption,
    Fault,
    JsonOption,
    PlotOption,
    SinceOption,
    StateOption,
    UntilOption,
    loaded,
    open_reader,
    picture,
)
from wslgpud.cli.moments import span
from wslgpud.model import Level
from wslgpud.units import duration, resource_name, size
from wslgpud.words import of

if TYPE_CHECKING:
    from wslgpud.alerts.incidents import Incident
    from wslgpud.alerts.report import Report
    from wslgpud.store import Reader

#: panels of a picture: the resource itself, RAM, the first cards
_MOST_PANELS = 4


def incidents(
    number: Annotated[int | None, typer.Argument(metavar="ID", help="number of the incident to show")] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
    plot: PlotOption = None,
    since: SinceOption = "30d",
    until: UntilOption = "now",
    all_: Annotated[bool, typer.Option("--all", help="list notes of level info as well")] = False,
    state: StateOption = None,
) -> None:
    """List incidents, or show one: the minutes before it, who grew, which messages were sent.

    Examples:
        wslgpud incidents --since yesterday
        wslgpud incidents 12 --plot crash.html  # the report with its picture, to be sent
    """
    from wslgpud.alerts.report import report, summary  # noqa: PLC0415 - the database only when asked for
    from wslgpud.alerts.texts import language  # noqa: PLC0415

    if number is None and plot is not None:
        raise Fault("--plot draws one incident: name its number; 'wslgpud incidents' lists them")
    if number is not None and ((since, until) != ("30d", "now") or all_):
        raise Fault(
            "--since, --until and --all choose what is listed: leave them out, or the number {number}",
            number=number,
        )
    with open_reader(config, state) as reader:
        if number is None:
            walls = span(since, until, time.time())
            found = [summary(i) for i in recent(reader, *walls) if all_ or _notable(i)]
            print(json.dumps(found, indent=2) if as_json else _list(found))
            return
        tongue = language(loaded(config).config.alerts.language, os.environ)
        shown = report(reader, number, tongue)
    if shown is None:
        raise Fault("there is no incident {number}; 'wslgpud incidents' lists them", number=number)
    if (file := picture(plot)) is not None:
        _draw(shown, file)
    print(json.dumps(shown.document, indent=2) if as_json else _readable(shown))


def recent(reader: Reader, since_wall: float, until_wall: float = math.inf) -> list[Incident]:
    """Return the incidents between two moments and those still open, the newest first."""
    from wslgpud.alerts.incidents import grouped  # noqa: PLC0415 - see above

    found = (
        i for i in grouped(reader.changes(brief=True))
        if i.opened_wall <= until_wall and (i.closed_wall is None or i.changed_wall > since_wall)
    )  # fmt: skip
    return sorted(found, key=lambda incident: incident.id, reverse=True)


def _notable(incident: Incident) -> bool:
    """Leave out what happens every day: a model that loads, a clock that was set."""
    return incident.worst > Level.INFO or incident.rule == "unclean_end"


def _list(found: list[dict[str, Any]]) -> str:
    lines = [f"{'ID':>8}  {'began':<16}  {'lasted':>7}  {'worst':<9}  what"]
    for i in found:
        lasted = _seconds(i["opened"], i["closed"]) if "closed" in i else "open"
        lines.append(
            f"{i['id']:>8}  {local(i['opened'], 16)}  {lasted:>7}  {i['worst_level']:<9}  {i['headline']}"
        )
    return "\n".join(lines) if found else "nothing went wrong"


def _readable(shown: Report, *, charts: bool = True) -> str:
    d = shown.document
    lasted = f"lasted {_seconds(d['opened'], d['closed'])}" if "closed" in d else "still open"
    what = f"{d['rule']} of {resource_name(d['resource'])}, at worst {d['worst_level']}"
    lines = [f"Incident {d['id']}: {d['headline']}", f"{what}; began {local(d['opened'])}, {lasted}"]
    if d["rule"] == "unclean_end":
        lines.append(f"Last sample before the end: {local(d['moment'])}")
    if "trouble" in d:
        lines.append(f"What it looks like: {d['trouble']}")
    elif "evidence" in d:
        lines.append(d["evidence"])
    if d["rule"] == "oom_kill":
        lead = d.get("warned_seconds_before")
        lines.append(
            "Not warned before it." if lead is None else f"First warning {duration(lead)} before it."
        )
    if d.get("false_alarm"):
        lines.append("Looks like a false alarm: nothing was killed and memory was never short.")
    from wslgpud.cli.chart import headroom  # noqa: PLC0415 - rich only when somebody looks

    for curve in shown.curves[: 2 * charts]:
        lines += ["", *headroom(curve, shown.moment)]
    lines += _section("Growing", (_grown(g) for g in d["growing"]))
    lines += _section("Levels", (f"{local(s['at'])}  {s['level']:<9}  {s['headline']}" for s in d["levels"]))
    lines += _section("Messages", (_message(m) for m in d["messages"]))
    lines += _section("Events", (f"{local(e['at'])}  {e['text']}" for e in d["events"]))
    lines += _section("Kernel, previous boot", d.get("kernel", ()))
    lines += _section("Crash dumps of Windows", d.get("crash_dumps", ()))
    if "advice" in d:
        lines += ["", f"What to do: {d['advice']}"]
    return "\n".join(lines)


def _section(title: str, entries: Iterable[str]) -> list[str]:
    found = list(entries)
    return ["", f"{title}:", *(f"  {entry}" for entry in found)] if found else []


def _grown(growth: dict[str, Any]) -> str:
    over = f"+{size(growth['grown_bytes'])} in {duration(growth['seconds'])}"
    return f"{growth['name']} (pid {growth['pid']})  {over}"


def _message(message: dict[str, Any]) -> str:
    if "sent" in message:
        fate = f"sent {_delay(message['at'], message['sent'])}"
    else:
        fate = f"not sent: {message['error']}" if "error" in message else "not sent yet"
    return f"{local(message['at'])}  {message['channel']:<20}  {fate}"


def _draw(shown: Report, path: Path) -> None:
    from wslgpud.plots import Panel, PlotError, plot_incident  # noqa: PLC0415 - only for a picture

    title = f"Incident {shown.incident.id}: {shown.incident.headline}"
    # Other groups say nothing about this one.
    own = shown.incident.resource
    told = [c for c in shown.curves if c.resource == own or not c.resource.startswith("cgroup:")]
    panels = [Panel(resource_name(c.resource), c.capacity_bytes, c.points) for c in told[:_MOST_PANELS]]
    try:
        plot_incident(panels, shown.moment, path, title, _readable(shown, charts=False))
    except PlotError as error:
        raise Fault(of(error)) from error


def local(at: str, characters: int = 19) -> str:
    """Return a moment as the clock on the wall of this machine shows it."""
    return datetime.fromisoformat(at).astimezone().strftime("%Y-%m-%d %H:%M:%S")[:characters]


def _seconds(start: str, end: str) -> str:
    return duration((datetime.fromisoformat(end) - datetime.fromisoformat(start)).total_seconds())


def _delay(start: str, end: str) -> str:
    waited = (datetime.fromisoformat(end) - datetime.fromisoformat(start)).total_seconds()
    return f"after {duration(waited)}" if waited >= 1.5 else "at once"
