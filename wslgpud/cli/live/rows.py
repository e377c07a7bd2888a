"""The rows of every terminal screen, from the status document, without any decisions.

``status``, ``monitor -o`` and the live view arrange the same rows (``wslgpud.cli.live.screen``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from wslgpud.advise.live_sample import CurveKey, LiveSample, RecentSeries, hints
from wslgpud.cli.chart import bar, spark
from wslgpud.cli.console import table_of
from wslgpud.cli.help import brief
from wslgpud.client import besides
from wslgpud.colors import TERMINAL_KILLED, TERMINAL_LEVELS, TERMINAL_VERDICTS
from wslgpud.risk.levels import BLIND
from wslgpud.words import TEMPLATES, Fact, current, filled, t, template

#: how far the bars look ahead
AHEAD_SECONDS = 300.0
MAX_CGROUPS, MAX_INCIDENTS, MAX_RECENT = 3, 4, 3
#: selectable lengths of sparklines
SPANS_SECONDS = (60.0, 300.0, 900.0, 3600.0)
#: age from which a sample is marked as old
OLD_SECONDS = 5.0
#: columns from which on bars, and sparklines, are shown
BARS, WIDE = 76, 110
#: columns of a resource's name on narrower terminals
_NAME = 16
_CHINESE = re.compile("[\u2e80-\u9fff]")
#: matches the first sentence of advice in which others follow on the same line
_FIRST_SENTENCE = re.compile(r"(.*?(?:\.(?= )|。))(?=.+$)")

_SEEN_BY = {
    "own look": template("no daemon answers here: no warnings are sent"),
    "recording": template("a recorded machine"),
}
SORTS: Mapping[str, Callable[[Mapping[str, Any]], float]] = {
    template("RAM"): lambda row: float(row["rss_bytes"]),
    template("VRAM"): lambda row: float(row["vram"] or -1),
    template("growth"): lambda row: float((row["growth"] or 0.0) + (row["vram growth"] or 0.0)),
    template("pid"): lambda row: -float(row["pid"]),
}


@dataclass(frozen=True)
class Shown:
    """Display options: which processes in which order, and the length of sparklines.

    Without ``sort``, growing processes come first while something grows, else the largest.
    """

    sort: str = ""
    filter: str = ""
    span_seconds: float = 300.0
    paused: bool = False
    trouble: str = ""

    def cycled(self) -> Shown:
        """Return the next order of processes."""
        names = list(SORTS)
        return replace(self, sort=names[(names.index(self.sort or names[0]) + 1) % len(names)])

    def toggled(self) -> Shown:
        """Pause or resume."""
        return replace(self, paused=not self.paused)

    def longer(self, way: int) -> Shown:
        """Make sparklines longer or shorter."""
        place = max(0, min(SPANS_SECONDS.index(self.span_seconds) + way, len(SPANS_SECONDS) - 1))
        return replace(self, span_seconds=SPANS_SECONDS[place])


@dataclass(frozen=True)
class RowContext:
    """The current sample, earlier ones, and the width in columns; ``mono`` is the current time."""

    look: LiveSample
    trail: RecentSeries
    shown: Shown
    width: int
    mono: float

    @property
    def document(self) -> Mapping[str, Any]:
        """The status document."""
        return self.look.document

    @property
    def growing(self) -> Mapping[str, Any] | None:
        """The verdict's forecast if it has a time to exhaustion, else the earliest one."""
        ending = [f for f in self.document["forecasts"] if "middle" in (f.get("eta_seconds") or {})]
        subject = self.document["verdict"].get("subject")
        return min(ending, key=lambda f: (f["resource"] != subject, f["eta_seconds"]["middle"]), default=None)

    @property
    def subject(self) -> Mapping[str, Any] | None:
        """The forecast of the memory that the verdict is about or where a job was lost, else of the fullest."""
        verdict = self.document["verdict"]
        meant = (verdict.get("lost", {}).get("resource"), verdict.get("subject"))
        return max(
            self.document["forecasts"],
            key=lambda f: (f["resource"] in meant, -f["headroom_bytes"] / f["capacity_bytes"]),
            default=None,
        )

    @property
    def sparks(self) -> bool:
        """Whether there is room for sparklines."""
        return self.width >= WIDE and self.shown.span_seconds > 0

    def curve(self, what: str, which: str, width: int, colour: str) -> Text:
        """Draw the sparkline of a share; nothing where there is no room."""
        if not self.sparks:
            return Text("")
        points = self.trail.points(CurveKey(what, which))
        return Text(spark(points, self.mono, self.shown.span_seconds, width), colour)


def words(*parts: str | Text | tuple[str, str]) -> Text:
    """Return a text that wraps only between words; Chinese wraps anywhere."""
    text = Text.assemble(*parts)
    text.overflow = "fold" if _CHINESE.search(text.plain) else "ellipsis"
    return text


def rule(title: str, width: int, note: str = "") -> Text:
    """Draw a line with a title, and a note at its end."""
    text = words(("── ", "bright_black"), (title, "bold cyan"), " ")
    tail = Text(f" {note} ─" if note else "", "bright_black")
    text.append("─" * max(0, width - text.cell_len - tail.cell_len), "bright_black").append_text(tail)
    text.truncate(width, overflow="ellipsis")
    return text


def ink(level: str) -> str:
    """Return the colour of a level for lines: a background would fill their surroundings."""
    return TERMINAL_LEVELS.get(level, "yellow").removeprefix("bold white on ")


def known(*templates: str, **facts: Fact | None) -> list[str]:
    """Return the rendered templates whose facts are known."""
    return [text for one in templates if (text := current().text(filled(one, facts)))]


def moment(at: str, now: str) -> str:
    """Return a moment in local time, with the date if it is not today."""
    then, today = (datetime.fromisoformat(moment).astimezone() for moment in (at, now))
    return then.strftime("%H:%M:%S" if then.date() == today.date() else "%Y-%m-%d %H:%M")


def verdict(view: RowContext) -> Iterator[Text]:
    """The verdict, the first sentence of its advice, and the command; the incident has the rest."""
    verdict, look = besides(view.document["verdict"]), view.look
    age = look.age_seconds + max(0.0, view.mono - look.mono)
    level = current().label("level", verdict["level"]).upper()
    line = words((f" {level} ", f"bold reverse {ink(verdict['level'])}"), " ", (verdict["headline"], "bold"))
    if view.shown.trouble or look.stale:
        badge = t("no answer") if view.shown.trouble else t("stale")
        why = view.shown.trouble or t("the daemon answers but takes no samples")
        text = t("{title}: {text}", title=current().duration(age), text=why)
        yield words((f" {badge.upper()} ", "bold reverse yellow"), " ", text)
        yield words((t("the data below is old:"), "yellow"), " ", line)
        return
    line.append(f" · {verdict['byline']}" if verdict.get("byline") else "")
    if more := verdict.get("more") or (view.document.get("tally") if verdict["level"] == "ok" else None):
        line.append(f"  {more}", "bright_black")
    if age > OLD_SECONDS and look.seen_by == "daemon":
        line.append("  " + t("{age_seconds} old", age_seconds=age), "yellow")
    lost = [_lost(one) for one in (verdict.get("lost"),) if one]
    yield from (*lost, line) if verdict.get("state") == "killed" else (line, *lost)
    if advice := verdict.get("advice"):
        said, number = _FIRST_SENTENCE.match(advice), verdict.get("incident")
        if said is None or number is None:
            yield words(advice)
        else:
            yield words(said[1], "  ", (t("more in incident {number}", number=number), "bright_black"))
    if command := verdict.get("command"):
        asks = "  " + t("asks it to stop, as Ctrl-C does") if command.startswith("kill") else ""
        yield words((command, "bold"), (asks, "bright_black"))


def _lost(job: Mapping[str, Any]) -> Text:
    """The job that was lost, until somebody has seen it."""
    seen = t("incident {number}, seen: {command}", number=job["incident"], command=job["seen"])
    badge = (f" {current().label('level', 'killed').upper()} ", TERMINAL_KILLED)
    more = [f"  {job['more']}"] if "more" in job else []
    return words(badge, " ", (job["headline"], "bold"), *more, (f"  {seen}", "bright_black"))


def seen(view: RowContext) -> str:
    """Time and source of the sample."""
    look = view.look
    by = look.where if look.seen_by == "daemon" else t(_SEEN_BY[look.seen_by])
    at = current().fact("at_wall", datetime.fromisoformat(view.document["at"]).timestamp())
    span = t("last {span_seconds}", span_seconds=view.shown.span_seconds)
    return " · ".join([at, by, *[t("paused")] * view.shown.paused, *[span] * view.sparks])


def running(view: RowContext) -> Iterator[Text]:
    """Active runs, with a progress bar where the end is known."""
    for run in view.document.get("running", ()):
        share, elapsed = run.get("done_ratio"), run["elapsed_seconds"]
        if share is None and (left := run.get("left_seconds")) is not None:
            share = elapsed / max(elapsed + left, 1e-9)
        drawn = Text("") if share is None else bar(share, 12, "cyan").append(" ")
        yield words((" ▶ ", "bold cyan"), drawn, run["headline"])


def incidents(view: RowContext) -> Iterator[RenderableType]:
    """Other open incidents besides the verdict's."""
    shown_id = view.document["verdict"].get("incident")
    others = [i for i in view.document.get("incidents", ()) if i["id"] != shown_id]
    table = table_of("<", "<", "~", gap=1)
    for item in others[:MAX_INCIDENTS]:
        notes = current().listed([*item.get("notes", ()), t("incident {number}", number=item["id"])])
        level, since = item["level"], moment(item["since"], view.document["at"])
        line = words(item["headline"], (f"  ({notes})", "bright_black"))
        table.add_row(Text(f" {current().label('level', level)}", TERMINAL_LEVELS[level]), _dim(since), line)
    if others:
        yield table
    if more := len(others[MAX_INCIDENTS:]):
        yield words((" " + t("and {number} more: wslgpud alerts list", number=more), "bright_black"))


def memory(view: RowContext) -> Table:
    """Use of each memory, the time until it is full, and the culprit."""
    bars, sparks = min(24, view.width // 9), min(24, view.width // 10)
    # A narrow terminal omits the used amount: the headroom is enough.
    broad = view.width >= BARS
    table = table_of("<", *["<", ">"] * broad, ">", *["<"] * view.sparks, "~", gap=1)
    name_width = _NAME if view.width < WIDE else view.width // 5

    def row(
        name: str, key: str, left: int, total: int, colour: str, outlook: Text, rate: float = 0, *, blind: bool = False
    ) -> None:
        used, ahead = (1 - (left - more) / total if total else 0.0 for more in (0, rate * AHEAD_SECONDS))
        taken: list[str | Text] = [bar(used, bars, colour, ahead), t("{used_ratio} used", used_ratio=used)]
        curve = [view.curve("used", key, sparks, colour)] * view.sparks
        room = t("{room_bytes} left", room_bytes=(left, total))
        room = t("{room_bytes} were left", room_bytes=(left, total)) if blind else room
        table.add_row(Text(brief(name, name_width), "bold"), *taken * broad, room, *curve, outlook)

    swap = view.document.get("swap") or {"total": 0}
    for forecast in _worth_a_line(view.document["forecasts"]):
        resource, end = forecast["resource"], forecast.get("eta_seconds")
        outlook = words((forecast.get("outlook", ""), "bold" if end else "bright_black"))
        blind = forecast.get("cause") == BLIND
        if blind:
            outlook.stylize("yellow")
        if forecast.get("who"):
            outlook.append(f" · {forecast['who']}")
        rate = forecast.get("rate_bytes_per_second", 0.0) if end else 0.0
        left, total = forecast["headroom_bytes"], forecast["capacity_bytes"]
        row(forecast["name"], resource, left, total, ink(forecast["level"]), outlook, rate, blind=blind)
    for card in _not_forecast(view.document):
        why = words((t("no forecast during a stress run"), "bright_black"))
        gpu, total = f"gpu{card['index']}", card["total_bytes"]
        row(current().resource(gpu), gpu, total - card["used_bytes"], total, "cyan", why)
    if swap["total"]:
        back = view.trail.mean(CurveKey("swap in"), 10) or 0.0
        reads = t("reads back {back_bytes}/s", back_bytes=back) if back > 1 << 20 else ""
        row(t("swap"), "swap", swap["free"], swap["total"], "cyan", words((reads, "yellow")))
    return table


def _worth_a_line(forecasts: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return all resources, but of many inconspicuous cgroups only the fullest few."""
    cgroups = [f for f in forecasts if f["resource"].startswith("cgroup:")]
    fullest = sorted(cgroups, key=lambda f: (f["level"] == "ok", f["headroom_bytes"] / f["capacity_bytes"]))
    return [f for f in forecasts if f not in cgroups] + fullest[:MAX_CGROUPS]


def _not_forecast(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the cards under a stress run, which have no forecast, as it frees its memory."""
    if not any(work["kind"] == "stress" for work in document.get("running", ())):
        return []
    forecast = {f["resource"] for f in document["forecasts"]}
    known = (card for card in document["gpus"] if {"used_bytes", "total_bytes"} <= card.keys())
    return [card for card in known if f"gpu{card['index']}" not in forecast]


def below(view: RowContext) -> Iterator[RenderableType]:
    """Hints, recent changes, results of stress runs, and missing sources."""
    document, text = view.document, current().text
    table = table_of("<", "~", gap=1)
    for hint in hints(view.look, view.trail):
        mark = Text(" ➜", "bold yellow") if hint.act else Text(" ✓", "green")
        evidence = f"  ({text(hint.evidence)})" * bool(hint.evidence)
        table.add_row(mark, words(text(hint.text), (evidence, "bright_black")))
    for source in document["sources"]:
        if source["health"] in ("failed", "late"):
            why = source.get("error") or current().label("health", source["health"])
            table.add_row(" !", t("{title}: {text}", title=source["name"], text=why), style="yellow")
        # That there is no card is no news where nobody expects one; a driver without any is.
        elif source["name"] == "gpu" and t(TEMPLATES["no_card"]["meaning"]) in source.get("error", ""):
            table.add_row(" !", t("{title}: {text}", title="GPU", text=source["error"]))
    order, recent = list(TERMINAL_LEVELS), document.get("recent", ())
    worse = [i for i in recent if order.index(i["level"]) > order.index(i["previous_level"])]
    for item in worse[:MAX_RECENT]:
        # No background: it is over, and the current state must stand out.
        level = (f"{current().label('level', item['level'])}  ", ink(item["level"]))
        table.add_row(_dim(moment(item["at"], document["at"])), words(level, item["headline"]))
    for run in document.get("stress", ()):
        table.add_row("", words((run["headline"], TERMINAL_VERDICTS[run["verdict"]])))
    if table.row_count:
        yield table


def _dim(text: str) -> Text:
    return Text(f" {text}", "bright_black")
