"""``wslgpud alerts`` and ``wslgpud incidents``: incidents as a list or one in full; test messages, silences."""

from __future__ import annotations

import io
import math
import os
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from wslgpud import config as configuration
from wslgpud.alerts import dispatcher
from wslgpud.alerts.incidents import Incident, grouped
from wslgpud.alerts.manager import ControlFile
from wslgpud.alerts.report import Report, report, summaries
from wslgpud.alerts.rules import OTHERS, RULES, runbook
from wslgpud.cli import common
from wslgpud.cli.chart import used_of
from wslgpud.cli.commands import CommandGroup
from wslgpud.cli.common import (
    Fault,
    argument,
    complain,
    daemon_folders,
    database_of,
    flag,
    loaded,
    option,
    own_config,
    picture,
    warn,
)
from wslgpud.cli.console import Console, table_of
from wslgpud.cli.help import brief, wrapped
from wslgpud.client import DaemonClient, answering
from wslgpud.model import Level
from wslgpud.series.incident_plot import IncidentMarks, foretold, marks, plot_incident
from wslgpud.store import Reader
from wslgpud.words import cause, current, t
from wslgpud.words.moments import local_time, seconds, span

#: panels of a plot: the resource itself, RAM, the first cards
_MAX_PANELS = 4
#: columns of the text below a picture
_PICTURE_COLUMNS = 160
#: characters of a subject in the list
_SUBJECT = 28
#: longest comfortable line
_MAX_COLUMNS = 100

app = CommandGroup()


def incidents(
    number: Annotated[int | None, argument("ID", "number of the incident to show", common.complete_incident)] = None,
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
            documents = summaries(chosen, current())
            if as_json:
                common.print_json(documents)
            else:
                _print_list(_as_of_now(documents, state))
            return
        shown = report(reader, number, current())
    if shown is None:
        raise Fault("there is no incident {number}; 'wslgpud incidents' lists them", number=number)
    if not as_json:
        shown = shown._replace(document=_as_of_now([shown.document], state)[0])
    if (file := picture(plot)) is not None:
        _draw(shown, file)
    if as_json:
        common.print_json(shown.document)
    else:
        Console().print(*_readable(shown), sep="\n")


def _as_of_now(documents: Sequence[dict[str, Any]], state: Path | None) -> list[dict[str, Any]]:
    """Return incidents with the running daemon's headline for those still open.

    Their rows describe the state when they were written; one with a kill keeps its own story.
    """
    going_on = {d["id"] for d in documents if "closed" not in d and "killed" not in d}
    _, status = (answering(daemon_folders(state), lambda _: None) if going_on else None) or (None, {})
    # Another daemon's incident of the same number began at another time; rows keep fewer digits of a second.
    now = {(i["id"], i["since"][:19]): i["headline"] for i in status.get("incidents", ()) if i["id"] in going_on}
    return [{**d, "headline": now.get((d["id"], d["opened"][:19]), d["headline"])} for d in documents]


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
    columns = (">" + t("ID"), *("<" + one for one in (t("when"), t("level"), t("subject"))), "~" + t("story"))
    rows = []
    for i in documents:
        subject, story = brief(i["name"], _SUBJECT), f"{i['headline']}\n{i.get('outcome', '')}".rstrip()
        rows.append((str(i["id"]), local_time(i["opened"])[:16], t(i["worst_level"]), subject, story))
    Console().print(table_of(*columns, rows=rows))


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
        yield "\n" + t("{title}:", title=title)
        yield Padding.indent(table_of(*"<" * (len(rows[0]) - 1), "~", rows=rows), 2)


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


@app.command("list")
def list_(config: common.Config = None, as_json: common.Json = False, state: common.State = None) -> None:
    """List open incidents and active silences.

    Examples:
        wslgpud alerts list
    """
    control = ControlFile(common.data_folder(state), warn).now
    going_on = _open(config, state)
    if DaemonClient.of(common.data_folder(state)) is None:
        warn("no daemon answers here: no warnings are sent")
    silences = [s for s in control.silences if s.until_wall > time.time()]
    if as_json:
        quiet = [
            {"rule": s.rule, "resource": s.resource, "until_seconds": round(s.until_wall - time.time())}
            for s in silences
        ]
        known = [{**i, "acknowledged": i["id"] in control.acknowledged} for i in going_on]
        common.print_json({"open": known, "silences": quiet})
        return
    rows = []
    for i in _as_of_now(going_on, state):
        note = f"  ({t('acknowledged')})" if i["id"] in control.acknowledged else ""
        since = t("since {time}", time=local_time(i["opened"]))
        rows.append((str(i["id"]), t(i["level"]), since, f"{i['headline']}{note}"))
    if rows:
        Console().print(table_of(">", "<", "<", "~", rows=rows))
    for s in silences:
        until, rule, name = s.until_wall, s.rule, s.resource
        print(t("silenced until {until_wall}: {rule} of {name}", until_wall=until, rule=rule, name=name))
    if not rows:
        print(t("no open incidents"))


def _open(config: Path | None, state: Path | None) -> list[dict[str, Any]]:
    """Return the open incidents, from the database and from the daemon itself: rows may be missing on a full disk."""
    with Reader(database_of(config, state)) as reader:
        known = summaries([i for i in recent(reader, math.inf) if i.closed_wall is None], current())
    _, now = answering([common.data_folder(state)], complain) or (None, {})
    written = {i["id"] for i in known}
    return known + [{**i, "opened": i["since"]} for i in now.get("incidents", ()) if i["id"] not in written]


@app.command()
def show(
    number: Annotated[int, argument("ID", "number of the incident", common.complete_incident)],
    config: common.Config = None,
    as_json: common.Json = False,
    state: common.State = None,
) -> None:
    """Show one incident, like 'wslgpud incidents' with its number.

    Examples:
        wslgpud alerts show 12
    """
    incidents(number, config=config, as_json=as_json, plot=None, state=state)


@app.command()
def explain(
    rule: Annotated[
        str, argument("RULE", "rule, as in 'alerts show'; all rules by default", common.complete_rule)
    ] = "",
) -> None:
    """Explain a rule in detail, and what to do about it.

    Examples:
        wslgpud alerts explain oom_kill
    """
    known = runbook(current())
    _reject_unknown(rule, ("", *known))
    columns = min(_MAX_COLUMNS, shutil.get_terminal_size().columns)
    print("\n\n".join(f"{name}\n{wrapped(text, columns)}" for name, text in known.items() if rule in ("", name)))


def _reject_unknown(rule: str, known: Sequence[str]) -> None:
    """Refuse a rule that is not known; the first one that is known stands for all."""
    if rule not in known:
        raise Fault("there is no rule {rule}; there are: {names}", rule=rule, names=tuple(known[1:]))


@app.command("test")
def try_channels(config: common.Config = None) -> None:
    """Send a test message through every channel now, and report which accepted it.

    Examples:
        wslgpud alerts test
    """
    from wslgpud.alerts.channels import DeliveryError
    from wslgpud.host import Host

    settings = loaded(config).config.alerts
    channels = dispatcher.build_channels(settings, Host(), os.environ)
    levels = dispatcher.lowest_levels(settings)
    if not channels:
        file = str(config or configuration.find_file(os.environ) or own_config())
        raise Fault(
            "no channel is configured and none was found here: add one below [alerts] in {file} and restart the daemon,"
            " such as {example}; 'wslgpud config show' explains each key",
            file=file,
            example='urls = ["ntfy://your-topic"]',
        )
    message = dispatcher.trial(time.time(), "wslgpud alerts test")
    status = 0
    for channel in channels:
        try:
            channel.send(message)
            outcome = t("accepted it (gets {level} and worse)", level=t(levels[channel.name].label))
        except DeliveryError as error:
            status, outcome = 1, t("failed: {reason}", reason=cause(error))
        print(f"{channel.name:<28}  {outcome}")
    raise SystemExit(status)


@app.command()
def silence(
    rule: Annotated[str, argument("RULE", "rule, or * for all", common.complete_rule)],
    lasting: Annotated[str, option("--for", "TIME", "how long: 30min, 2h, 1d; 0 ends it")] = "1h",
    resource: Annotated[str, option("--resource", "NAME", "only for this resource (ram, gpu0, ...)")] = "*",
    state: common.State = None,
) -> None:
    """Send no messages of a rule for a while; its incidents are still recorded.

    Examples:
        wslgpud alerts silence swap_thrash --for 2h
        wslgpud alerts silence swap_thrash --for 0  # end it
    """
    _reject_unknown(rule, ("*", *OTHERS, *(r.name for r in RULES)))
    length = seconds(lasting, zero=True)
    common.order(state, "silence", rule=rule, resource=resource, seconds=length)
    quiet = t("{rule} of {name}: silent for {span_seconds}", rule=rule, name=resource, span_seconds=length)
    print(quiet if length else t("{rule} of {name}: no longer silenced", rule=rule, name=resource))


@app.command()
def ack(
    number: Annotated[int, argument("ID", "number of the incident", common.complete_incident)],
    config: common.Config = None,
    state: common.State = None,
) -> None:
    """Acknowledge an incident: it is not repeated unless it gets worse, and a lost job counts as seen.

    Examples:
        wslgpud alerts ack 12
    """
    with Reader(database_of(config, state)) as reader:
        known = next((i for i in recent(reader, 0.0) if i.id == number), None)
        told = [] if known is None else summaries([known], current())
    told += [i for i in _open(config, state) if i["id"] == number and not told]
    if not told:
        raise Fault("there is no incident {number}; 'wslgpud incidents' lists them", number=number)
    # A warning that is acknowledged does not say that the kill after it was seen: that is another row.
    common.order(state, "acknowledge", incident=number, seen_id=-1 if known is None else known.last_id)
    print(t("incident {number} is acknowledged: {what}", number=number, what=told[0]["headline"]))
