"""``wslgpud incidents``: what happened, as a list or as the report of one."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wslgpud import words
from wslgpud.cli.common import (
    ConfigOption,
    Fault,
    JsonOption,
    PlotOption,
    SinceOption,
    StateOption,
    UntilOption,
    daemon_folders,
    open_reader,
    picture,
)
from wslgpud.cli.help import brief, cells, flush, hanging, margin_of, padded
from wslgpud.cli.moments import span
from wslgpud.model import Level
from wslgpud.words import cause, t
from wslgpud.words.names import LEVELS

if TYPE_CHECKING:
    from wslgpud.alerts.incidents import Incident
    from wslgpud.alerts.report import Report
    from wslgpud.store import Reader

#: panels of a picture: the resource itself, RAM, the first cards
_MOST_PANELS = 4
#: characters of a subject in the list
_SUBJECT = 28


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
    """List incidents, or show one: its subject over time, who grew, how it ended.

    Examples:
        wslgpud incidents --since yesterday
        wslgpud incidents 12 --plot crash.html  # the report with its picture, to be sent
    """
    from wslgpud.alerts.report import in_words, report, rows_told  # noqa: PLC0415 - only when asked for

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
            chosen = [i for i in recent(reader, *walls) if all_ or _notable(i)]
            found = [in_words(i, reader.changes_numbered(rows_told(i)), words.current()) for i in chosen]
            found = found if as_json else _as_of_now(found, chosen, state)
            print(json.dumps(found, indent=2) if as_json else _fitted(_list(found)))
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
    told: Sequence[dict[str, Any]], chosen: Sequence[Incident], state: Path | None
) -> list[dict[str, Any]]:
    """Return incidents with the headline that the running daemon has for those that go on.

    Their rows tell how it was when they were written; one that has killed is told to its end, whatever comes.
    """
    from wslgpud import client  # noqa: PLC0415 - only while something is open

    going_on = {i.id for i in chosen if i.closed_wall is None and i.kill is None}
    found = client.answering(daemon_folders(state), lambda _: None) if going_on else None
    known = {(one["id"], one["resource"]): one for one in (found[1].get("incidents", ()) if found else ())}

    def headline(told: dict[str, Any]) -> str:
        one = known.get((told["id"], told["resource"]))
        # A row keeps fewer digits of a second; another daemon's of the same number began at another time.
        same = one is not None and abs(_wall(one["since"]) - _wall(told["opened"])) < 1.0
        return str(one["headline"] if one is not None and same else told["headline"])

    return [{**d, "headline": headline(d)} if d["id"] in going_on else d for d in told]


def _wall(at: str) -> float:
    return datetime.fromisoformat(at).timestamp()


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
    """Return a table: when, how bad, where, and below the first line of the story how it ended."""
    if not found:
        return t("nothing went wrong")
    subjects = [brief(i["name"], _SUBJECT) for i in found]
    wide = max(cells(t("subject")), *map(cells, subjects))
    head = _row(flush(t("ID"), 6), padded(t("when"), 16), t("level"), padded(t("subject"), wide))
    lines = [head + t("story")]
    for i, subject in zip(found, subjects, strict=True):
        row = _row(f"{i['id']:>6}", local(i["opened"], 16), t(i["worst_level"]), padded(subject, wide))
        lines.append(row + i["headline"])
        lines += [" " * margin_of(cells(head), _columns()) + i["outcome"]] if "outcome" in i else []
    return "\n".join(lines)


def _row(number: str, when: str, level: str, subject: str) -> str:
    return f"{number}  {when}  {padded(level, 9)}  {subject}  "


def _fitted(text: str) -> str:
    """Fold lines between words where they are wider than the terminal."""
    columns = _columns()
    return "\n".join(hanging(line, columns) for line in text.splitlines())


def _columns() -> int:
    from wslgpud.cli.console import Console  # noqa: PLC0415 - rich only when somebody looks

    return Console().width


def _readable(shown: Report, *, charts: bool = True) -> str:
    d = shown.document
    about = t(
        "{subject}, at worst {level}; began {began}",
        subject=d["name"],
        level=t(LEVELS[d["worst_level"]]),
        began=local(d["opened"]),
    )
    lines = [t("Incident {id}: {headline}", id=d["id"], headline=d["headline"])]
    lines.append(t("{first}; {rest}", first=about, rest=d["outcome"]) if "outcome" in d else about)
    if d["rule"] == "unclean_end":
        lines.append(t("Last sample before the end: {when}", when=local(d["moment"])))
    if "trouble" in d:
        lines.append(t("Probable cause: {trouble}", trouble=d["trouble"]))
    elif "evidence" in d:
        # Of one that goes on it is of its last change: the figures of now are in the headline.
        going_on = shown.incident.closed_wall is None and shown.incident.kill is None
        lines.append(f"{local(d['levels'][-1]['at'])}  " * going_on + d["evidence"])
    if d.get("false_alarm"):
        lines.append(t("Looks like a false alarm: nothing was killed and memory was never short."))
    lines += _curves(shown) if charts else []
    lines += _section(t("Growing"), (_grown(g) for g in d["growing"]))
    lines += _section(
        t("Levels"),
        (f"{local(s['at'])}  {padded(t(s['level']), 9)}  {s['headline']}" for s in d["levels"]),
    )
    lines += _section(t("Messages"), (_message(m) for m in d["messages"]))
    lines += _section(t("Events"), (f"{local(e['at'])}  {e['text']}" for e in d["events"]))
    lines += _section(t("Kernel, previous boot"), d.get("kernel", ()))
    lines += _section(t("Crash dumps of Windows"), d.get("crash_dumps", ()))
    if "advice" in d:
        lines += ["", t("What to do: {advice}", advice=d["advice"])]
    return "\n".join(lines)


def _curves(shown: Report) -> list[str]:
    """Draw the subject's own curve, or RAM where it has none; of others say only how low they came."""
    from wslgpud.cli.chart import headroom  # noqa: PLC0415 - rich only when somebody looks

    if not shown.curves:
        return []
    own, *others = shown.curves
    marks = [
        (wall, f"{name} {datetime.fromtimestamp(wall).astimezone():%H:%M:%S}") for wall, name in _marks(shown)
    ]
    lines = ["", *headroom(own, shown.start, shown.end, marks, _foretold(shown), _columns())]
    lowest = [
        t(
            "{resource}: at least {room_bytes} left", resource=c.resource,
            room_bytes=(min(left for _, left, _ in c.points), c.capacity_bytes),
        )
        for c in others if not c.resource.startswith("cgroup:")
    ]  # fmt: skip
    return lines + _section(t("Others meanwhile"), lowest[:_MOST_PANELS])


def _marks(shown: Report) -> list[tuple[float, str]]:
    """Return the moments that are marked on the curves, and their names."""
    incident = shown.incident
    found = []
    if (
        incident.warned_wall is not None and incident.rule == "memory_exhaustion"
    ):  # else the row is the warning
        found.append((incident.warned_wall, t("Warned")))
    if incident.killed_wall is not None:
        found.append((incident.killed_wall, t("Killed")))
    elif incident.closed_wall is not None and incident.rule == "memory_exhaustion":
        found.append((incident.closed_wall, t("Over")))
    elif incident.rule != "memory_exhaustion":
        found.append((shown.moment, t("Here")))
    return [(wall, name) for wall, name in found if shown.start <= wall <= shown.end]


def _foretold(shown: Report) -> list[tuple[float, float]]:
    """Return (moment, bytes left) as they were foretold when the warning left."""
    row = shown.warned
    if row is None or row.forecast is None or not row.forecast.eta_seconds:
        return []
    left, eta = row.forecast.headroom_bytes, row.forecast.eta_seconds
    return [
        (row.wall + n / 60 * eta, left * (1 - n / 60))
        for n in range(61)
        if row.wall + n / 60 * eta < shown.end
    ]


def _section(title: str, entries: Iterable[str]) -> list[str]:
    found = list(entries)
    return ["", t("{title}:", title=title), *(f"  {entry}" for entry in found)] if found else []


def _grown(growth: dict[str, Any]) -> str:
    over = t(
        "+{grown_bytes} in {over_seconds}", grown_bytes=growth["grown_bytes"], over_seconds=growth["seconds"]
    )
    return f"{growth['who']}  {over}"


def _message(message: dict[str, Any]) -> str:
    if "sent" in message:
        waited = (
            datetime.fromisoformat(message["sent"]) - datetime.fromisoformat(message["at"])
        ).total_seconds()
        fate = t("sent after {waited_seconds}", waited_seconds=waited) if waited >= 1.5 else t("sent at once")
    elif "error" in message:
        fate = t("not sent: {error}", error=message["error"])
    else:
        fate = t("not sent yet")
    return f"{local(message['at'])}  {message['channel']:<20}  {fate}"


def _draw(shown: Report, path: Path) -> None:
    from wslgpud.plots import PlotError  # noqa: PLC0415 - only for a picture
    from wslgpud.plots.incident import Panel, Story, plot_incident  # noqa: PLC0415

    d, own = shown.document, shown.incident.resource
    # Other groups say nothing about this one.
    told = [c for c in shown.curves if c.resource == own or not c.resource.startswith("cgroup:")]
    panels = [
        Panel(words.current().resource(c.resource), c.capacity_bytes, c.points) for c in told[:_MOST_PANELS]
    ]
    title = t("Incident {id}: {headline}", id=d["id"], headline=d["headline"])
    title += f"\n{d['outcome']}" if "outcome" in d else ""
    drawn = Story(shown.start, shown.end, _marks(shown), shown.warned)
    try:
        plot_incident(panels, drawn, path, title, _readable(shown, charts=False))
    except PlotError as error:
        raise Fault(cause(error)) from error


def local(at: str, characters: int = 19) -> str:
    """Return a moment as the clock on the wall of this machine shows it."""
    return datetime.fromisoformat(at).astimezone().strftime("%Y-%m-%d %H:%M:%S")[:characters]
