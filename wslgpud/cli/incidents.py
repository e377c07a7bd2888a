"""``wslgpud incidents``: incidents as a list, or the report of one."""

from __future__ import annotations

import io
import json
import math
import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from wslgpud import client, words
from wslgpud.alerts.incidents import Incident, grouped
from wslgpud.alerts.messages import local_time
from wslgpud.alerts.report import Report, report, summaries
from wslgpud.cli import common, completion
from wslgpud.cli.chart import used_of
from wslgpud.cli.common import Fault, argument, daemon_folders, database_of, flag, picture
from wslgpud.cli.console import Console, table_of
from wslgpud.cli.help import brief
from wslgpud.model import Level
from wslgpud.series.incident_plot import IncidentMarks, foretold, marks, plot_incident
from wslgpud.store import Reader
from wslgpud.words import current, t
from wslgpud.words.moments import span

#: panels of a plot: the resource itself, RAM, the first cards
_MAX_PANELS = 4
#: columns of the text below a picture
_PICTURE_COLUMNS = 160
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
            documents = summaries(chosen, words.current())
            if as_json:
                print(json.dumps(documents, indent=2))
            else:
                _print_list(_as_of_now(documents, chosen, state))
            return
        shown = report(reader, number, words.current())
    if shown is None:
        raise Fault("there is no incident {number}; 'wslgpud incidents' lists them", number=number)
    if not as_json:
        shown = shown._replace(document=_as_of_now([shown.document], [shown.incident], state)[0])
    if (file := picture(plot)) is not None:
        _draw(shown, file)
    if as_json:
        print(json.dumps(shown.document, indent=2))
    else:
        Console().print(*_readable(shown), sep="\n")


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
    return sorted((i for i in candidates if i.opened_wall <= until_wall), key=lambda i: i.id, reverse=True)


def _print_list(documents: Sequence[dict[str, Any]]) -> None:
    """Print a table of time, level and subject; below the headline, how it ended."""
    if not documents:
        print(t("No incidents recorded"))
        return
    table = table_of(">" + t("ID"), *("<" + one for one in (t("when"), t("level"), t("subject"))), "~" + t("story"))
    for i in documents:
        subject, story = brief(i["name"], _SUBJECT), f"{i['headline']}\n{i.get('outcome', '')}".rstrip()
        table.add_row(str(i["id"]), local_time(i["opened"])[:16], t(i["worst_level"]), subject, story)
    Console().print(table)


def _readable(shown: Report, *, charts: bool = True) -> Iterator[RenderableType]:
    d = shown.document
    level, began = current().label("level", d["worst_level"]), local_time(d["opened"])
    about = t("{subject}, at worst {level}; began {began}", subject=d["name"], level=level, began=began)
    yield t("Incident {id}: {headline}", id=d["id"], headline=d["headline"])
    yield t("{first}; {rest}", first=about, rest=d["outcome"]) if "outcome" in d else about
    if d["rule"] == "unclean_end":
        yield t("Last sample before the end: {when}", when=local_time(d["moment"]))
    if "trouble" in d:
        yield t("Probable cause: {trouble}", trouble=d["trouble"])
    elif "evidence" in d:
        # For an open one it describes the last change: the current figures are in the headline.
        going_on = shown.incident.closed_wall is None and shown.incident.kill is None
        yield f"{local_time(d['levels'][-1]['at'])}  " * going_on + d["evidence"]
    if d.get("false_alarm"):
        yield t("Looks like a false alarm: nothing was killed and memory was never short.")
    yield from _curves(shown) if charts else ()
    sections: tuple[tuple[str, Iterable[Sequence[str]]], ...] = (
        (t("Growing"), ((one["who"], _grown(one)) for one in d["growing"])),
        (t("Levels"), ((local_time(one["at"]), t(one["level"]), one["headline"]) for one in d["levels"])),
        (t("Messages"), ((local_time(one["at"]), one["channel"], _fate(one)) for one in d["messages"])),
        (t("Events"), ((local_time(one["at"]), one["text"]) for one in d["events"])),
        (t("Kernel, previous boot"), ([line] for line in d.get("kernel", ()))),
        (t("Crash dumps of Windows"), ([line] for line in d.get("crash_dumps", ()))),
    )
    for title, rows in sections:
        yield from _section(title, [*rows])
    if "advice" in d:
        yield "\n" + t("What to do: {advice}", advice=d["advice"])


def _curves(shown: Report) -> Iterator[RenderableType]:
    """Draw the subject's own curve, or RAM where it has none; for others print only their minimum."""
    if not shown.curves:
        return
    own, *others = shown.curves
    named = [(wall, f"{name} {datetime.fromtimestamp(wall).astimezone():%H:%M:%S}") for wall, name in marks(shown)]
    lines = used_of(own, shown.start, shown.end, named, foretold(shown), Console().width)
    yield Text("\n".join(["", *lines]), no_wrap=True)
    lowest = {c.resource: (min(left for _, left, _ in c.points), c.capacity_bytes) for c in others}
    minimums = [
        [t("{resource}: at least {room_bytes} left", resource=resource, room_bytes=room)]
        for resource, room in lowest.items()
        if not resource.startswith("cgroup:")
    ]
    yield from _section(t("Others meanwhile"), minimums[:_MAX_PANELS])


def _section(title: str, rows: Sequence[Sequence[str]]) -> Iterator[RenderableType]:
    if rows:
        table = table_of(*"<" * (len(rows[0]) - 1), "~")
        for row in rows:
            table.add_row(*row)
        yield "\n" + t("{title}:", title=title)
        yield Padding.indent(table, 2)


def _grown(growth: dict[str, Any]) -> str:
    return t("+{grown_bytes} in {over_seconds}", grown_bytes=growth["grown_bytes"], over_seconds=growth["seconds"])


def _fate(message: dict[str, Any]) -> str:
    if "sent" not in message:
        return t("not sent: {error}", error=message["error"]) if "error" in message else t("not sent yet")
    waited = (datetime.fromisoformat(message["sent"]) - datetime.fromisoformat(message["at"])).total_seconds()
    return t("sent after {waited_seconds}", waited_seconds=waited) if waited >= 1.5 else t("sent at once")


def _draw(shown: Report, path: Path) -> None:
    d, own = shown.document, shown.incident.resource
    # Other cgroups are unrelated to this one.
    panels = [c for c in shown.curves if c.resource == own or not c.resource.startswith("cgroup:")]
    title = t("Incident {id}: {headline}", id=d["id"], headline=d["headline"])
    title += f"\n{d['outcome']}" if "outcome" in d else ""
    story = IncidentMarks(shown.start, shown.end, marks(shown), shown.warned)
    text = io.StringIO()
    Console(file=text, width=_PICTURE_COLUMNS).print(*_readable(shown, charts=False), sep="\n")
    plot_incident(panels[:_MAX_PANELS], story, path, title, text.getvalue())
