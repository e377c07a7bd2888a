"""``wslgpud incidents``: incidents as a list, or the report of one."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

from wslgpud import client, words
from wslgpud.alerts.incidents import Incident, grouped
from wslgpud.alerts.messages import local_time
from wslgpud.alerts.report import Report, report, summaries
from wslgpud.cli import common, completion
from wslgpud.cli.chart import headroom
from wslgpud.cli.common import Fault, argument, daemon_folders, database_of, flag, picture, span
from wslgpud.cli.console import Console
from wslgpud.cli.help import brief, cells, flush, hanging, margin_of, padded
from wslgpud.model import Level
from wslgpud.series.incident_plot import IncidentMarks, plot_incident
from wslgpud.store import Reader
from wslgpud.words import current, t

#: panels of a plot: the resource itself, RAM, the first cards
_MAX_PANELS = 4
#: characters of a subject in the list
_SUBJECT = 28


def incidents(
    number: Annotated[int | None, argument("ID", "number of the incident to show", completion.incident)] = None,
    config: common.Config = None,
    as_json: common.Json = False,
    plot: common.Plot = None,
    since: common.Since = "30d",
    until: common.Until = "now",
    all_: Annotated[bool, flag("--all", "include incidents of level info")] = False,
    state: common.State = None,
) -> None:
    """List incidents, or show one: its subject over time, who grew, how it ended.

    Examples:
        wslgpud incidents --since yesterday
        wslgpud incidents 12 --plot crash.html  # the report with its plot, to share
    """
    if number is None and plot is not None:
        raise Fault("--plot draws one incident: name its number; 'wslgpud incidents' lists them")
    if number is not None and ((since, until) != ("30d", "now") or all_):
        raise Fault(
            "--since, --until and --all choose what is listed: leave them out, or the number {number}", number=number
        )
    with Reader(database_of(config, state)) as reader:
        if number is None:
            walls = span(since, until, time.time())
            # Without --all no informational incidents of every day: a model that loads, a clock that was set.
            recent_incidents = recent(reader, *walls)
            chosen = [i for i in recent_incidents if all_ or i.worst > Level.INFO or i.rule == "unclean_end"]
            documents = list(summaries(reader, chosen, words.current()))
            print(json.dumps(documents, indent=2) if as_json else _fitted(_list(_as_of_now(documents, chosen, state))))
            return
        shown = report(reader, number, words.current())
    if shown is None:
        raise Fault("there is no incident {number}; 'wslgpud incidents' lists them", number=number)
    if not as_json:
        shown = shown._replace(document=_as_of_now([shown.document], [shown.incident], state)[0])
    if (file := picture(plot)) is not None:
        _draw(shown, file)
    print(json.dumps(shown.document, indent=2) if as_json else _fitted(_readable(shown)))


def _as_of_now(
    documents: Sequence[dict[str, Any]], chosen: Sequence[Incident], state: Path | None
) -> list[dict[str, Any]]:
    """Return incidents with the running daemon's headline for those still open.

    Their rows describe the state when they were written; one with a kill keeps its own story.
    """
    going_on = {i.id for i in chosen if i.closed_wall is None and i.kill is None}
    answer = client.answering(daemon_folders(state), lambda _: None) if going_on else None
    # Another daemon's incident of the same number began at another time; rows keep fewer digits of a second.
    now = {
        (i["id"], i["since"][:19]): i for i in (answer[1].get("incidents", ()) if answer else ()) if i["id"] in going_on
    }
    return [
        {**document, "headline": now.get((document["id"], document["opened"][:19]), document)["headline"]}
        for document in documents
    ]


def recent(reader: Reader, since_wall: float, until_wall: float = math.inf) -> list[Incident]:
    """Return the incidents between two moments and those still open, newest first."""
    changed = grouped(reader.changes(brief=True))
    candidates = (i for i in changed if i.closed_wall is None or i.changed_wall > since_wall)
    return sorted(
        (i for i in candidates if i.opened_wall <= until_wall), key=lambda incident: incident.id, reverse=True
    )


def _list(documents: list[dict[str, Any]]) -> str:
    """Return a table of time, level and subject; below the headline, how it ended."""
    if not documents:
        return t("no incidents recorded")
    subjects = [brief(i["name"], _SUBJECT) for i in documents]
    wide = max(cells(t("subject")), *map(cells, subjects))
    rows = [(t("ID"), t("when"), t("level"), t("subject"), t("story"), "")]
    for i, subject in zip(documents, subjects, strict=True):
        facts = str(i["id"]), local_time(i["opened"])[:16], t(i["worst_level"]), subject
        rows.append((*facts, i["headline"], i.get("outcome", "")))
    lines = []
    for number, when, level, subject, story, outcome in rows:
        head = f"{flush(number, 6)}  {padded(when, 16)}  {padded(level, 9)}  {padded(subject, wide)}  "
        lines += [head + story, *[" " * margin_of(cells(head), Console().width) + outcome] * bool(outcome)]
    return "\n".join(lines)


def _fitted(text: str) -> str:
    """Wrap lines between words where they are wider than the terminal."""
    columns = Console().width
    return "\n".join(hanging(line, columns) for line in text.splitlines())


def _readable(shown: Report, *, charts: bool = True) -> str:
    d = shown.document
    level, began = current().label("level", d["worst_level"]), local_time(d["opened"])
    about = t("{subject}, at worst {level}; began {began}", subject=d["name"], level=level, began=began)
    lines = [t("Incident {id}: {headline}", id=d["id"], headline=d["headline"])]
    lines.append(t("{first}; {rest}", first=about, rest=d["outcome"]) if "outcome" in d else about)
    if d["rule"] == "unclean_end":
        lines.append(t("Last sample before the end: {when}", when=local_time(d["moment"])))
    if "trouble" in d:
        lines.append(t("Probable cause: {trouble}", trouble=d["trouble"]))
    elif "evidence" in d:
        # For an open one it describes the last change: the current figures are in the headline.
        going_on = shown.incident.closed_wall is None and shown.incident.kill is None
        lines.append(f"{local_time(d['levels'][-1]['at'])}  " * going_on + d["evidence"])
    if d.get("false_alarm"):
        lines.append(t("Looks like a false alarm: nothing was killed and memory was never short."))
    lines += _curves(shown) if charts else []
    for title, entries in (
        (t("Growing"), map(_grown, d["growing"])),
        (t("Levels"), (f"{local_time(s['at'])}  {padded(t(s['level']), 9)}  {s['headline']}" for s in d["levels"])),
        (t("Messages"), map(_message, d["messages"])),
        (t("Events"), (f"{local_time(e['at'])}  {e['text']}" for e in d["events"])),
        (t("Kernel, previous boot"), d.get("kernel", ())),
        (t("Crash dumps of Windows"), d.get("crash_dumps", ())),
    ):
        lines += _section(title, entries)
    if "advice" in d:
        lines += ["", t("What to do: {advice}", advice=d["advice"])]
    return "\n".join(lines)


def _curves(shown: Report) -> list[str]:
    """Draw the subject's own curve, or RAM where it has none; for others print only their minimum."""
    if not shown.curves:
        return []
    own, *others = shown.curves
    marks = [(wall, f"{name} {datetime.fromtimestamp(wall).astimezone():%H:%M:%S}") for wall, name in _marks(shown)]
    lines = ["", *headroom(own, shown.start, shown.end, marks, _foretold(shown), Console().width)]
    lowest = {c.resource: (min(left for _, left, _ in c.points), c.capacity_bytes) for c in others}
    minimums = [
        t("{resource}: at least {room_bytes} left", resource=resource, room_bytes=room)
        for resource, room in lowest.items()
        if not resource.startswith("cgroup:")
    ]
    return lines + _section(t("Others meanwhile"), minimums[:_MAX_PANELS])


def _marks(shown: Report) -> list[tuple[float, str]]:
    """Return the moments marked on the curves, with their names."""
    # for other rules the row itself is the warning
    incident, foretold = shown.incident, shown.incident.rule == "memory_exhaustion"
    marks = [(incident.warned_wall if foretold else None, t("Warned"))]
    if incident.killed_wall is not None:
        marks.append((incident.killed_wall, t("Killed")))
    else:
        marks.append((incident.closed_wall, t("Over")) if foretold else (shown.moment, t("Here")))
    return [(wall, name) for wall, name in marks if wall is not None and shown.start <= wall <= shown.end]


def _foretold(shown: Report) -> list[tuple[float, float]]:
    """Return (moment, bytes left) as predicted by the warning."""
    row = shown.warned
    if row is None or row.forecast is None or not row.forecast.eta_seconds:
        return []
    left, eta = row.forecast.headroom_bytes, row.forecast.eta_seconds
    return [(row.wall + n / 60 * eta, left * (1 - n / 60)) for n in range(61) if row.wall + n / 60 * eta < shown.end]


def _section(title: str, entries: Iterable[str]) -> list[str]:
    lines = list(entries)
    return ["", t("{title}:", title=title), *(f"  {entry}" for entry in lines)] if lines else []


def _grown(growth: dict[str, Any]) -> str:
    grown = t("+{grown_bytes} in {over_seconds}", grown_bytes=growth["grown_bytes"], over_seconds=growth["seconds"])
    return f"{growth['who']}  {grown}"


def _message(message: dict[str, Any]) -> str:
    fate = t("not sent: {error}", error=message["error"]) if "error" in message else t("not sent yet")
    if "sent" in message:
        waited = (datetime.fromisoformat(message["sent"]) - datetime.fromisoformat(message["at"])).total_seconds()
        fate = t("sent after {waited_seconds}", waited_seconds=waited) if waited >= 1.5 else t("sent at once")
    return f"{local_time(message['at'])}  {message['channel']:<20}  {fate}"


def _draw(shown: Report, path: Path) -> None:
    d, own = shown.document, shown.incident.resource
    # Other cgroups are unrelated to this one.
    panels = [c for c in shown.curves if c.resource == own or not c.resource.startswith("cgroup:")]
    title = t("Incident {id}: {headline}", id=d["id"], headline=d["headline"])
    title += f"\n{d['outcome']}" if "outcome" in d else ""
    story = IncidentMarks(shown.start, shown.end, _marks(shown), shown.warned)
    plot_incident(panels[:_MAX_PANELS], story, path, title, _readable(shown, charts=False))
