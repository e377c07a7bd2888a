"""The screen of the live view: what was seen and remembered in, lines of text out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from textwrap import wrap
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from wslgpud.cli.live.hints import hints
from wslgpud.cli.live.looks import Look
from wslgpud.cli.live.trail import Key, Trail
from wslgpud.cli.screen import calm, last_night, told
from wslgpud.palette import TERMINAL_LEVELS
from wslgpud.units import duration, resource_name, size, speed
from wslgpud.words import current

SPARKS = "▁▂▃▄▅▆▇█"
#: how far the bars look ahead
AHEAD_SECONDS = 300.0
MOST_CGROUPS = 3
#: without a new sample for so long, how things stand is not known
STALE_SECONDS = 10.0
MOST_INCIDENTS = 3
#: from this age on, in seconds, what is shown is called old
_OLD = 5.0

SORTS: Mapping[str, Callable[[Mapping[str, Any]], float]] = {
    "RAM": lambda row: float(row["ram"]),
    "VRAM": lambda row: float(row["vram"] or -1),
    "growth": lambda row: float(row["growth"] if row["growth"] is not None else -1e18),
    "pid": lambda row: -float(row["pid"]),
}


@dataclass(frozen=True)
class Shown:
    """How somebody wants to see it: the order and choice of processes, how far back sparklines go."""

    sort: str = "RAM"
    filter: str = ""
    span_seconds: float = 300.0
    paused: bool = False
    trouble: str = ""


def screen(look: Look, trail: Trail, shown: Shown, width: int, height: int, now: float) -> RenderableType:
    """Draw a look into so many columns and lines; ``now`` is the wall clock, to tell how old it is."""
    parts: list[Table | Text] = [
        *_verdict(look, trail, shown, width, now),
        *_work(look),
        _rule("memory", width, _span(shown)),
        _memory(look, trail, shown, width),
    ]
    if look.document["gpus"]:
        parts += [_rule("gpu", width), _gpus(look, trail, shown, width)]
    if look.values:
        parts += [_rule("machine", width), *_machine(look, trail, shown, width)]
    below = [*_advice(look, trail), *_open(look), *_lately(look), *_nights(look)]
    room = height - sum(map(_lines, parts)) - 2
    below = below[: max(0, room - 4)]
    if room - len(below) >= 2:
        rows = _rows(look, trail, shown)
        order = f"by {shown.sort}" + (f', with "{shown.filter}"' if shown.filter else "")
        parts += [_rule("processes", width, order), _processes(rows, room - len(below) - 1)]
    return Group(*parts, *below)


def _lines(part: Table | Text) -> int:
    return part.row_count + part.show_header if isinstance(part, Table) else part.plain.count("\n") + 1


def _text(*parts: str | Text | tuple[str, str]) -> Text:
    return Text.assemble(*parts, no_wrap=True, overflow="ellipsis")


def _rule(title: str, width: int, note: str = "") -> Text:
    tail = f" {note} ─" if note else ""
    line = "─" * max(0, width - len(title) - len(tail) - 4)
    return _text(("── ", "bright_black"), (title, "bold cyan"), (f" {line}{tail}", "bright_black"))


def _span(shown: Shown) -> str:
    return f"last {duration(shown.span_seconds)}"


_SEEN_BY = {
    "own look": "no daemon runs here: looks of our own, nobody is warned",
    "recording": "a recorded machine",
}


def _ink(level: str) -> str:
    """Return the colour of a level for lines: a background would fill what is around them."""
    return TERMINAL_LEVELS[level].removeprefix("bold white on ")


def _verdict(look: Look, trail: Trail, shown: Shown, width: int, now: float) -> Iterator[Text]:
    document = look.document
    taken = datetime.fromisoformat(document["at"])
    age = max(0.0, now - taken.timestamp())
    level = document["level"]
    badge = (f" {level.upper()} ", f"bold reverse {_ink(level)}")
    says = document.get("headline") or calm(document)
    clock = taken.astimezone().strftime("%H:%M:%S")
    marks = " paused" if shown.paused else ""
    silent = trail.still(look.mono) if look.seen_by == "daemon" else 0.0
    planned = look.value("tick_interval_seconds") or 0.0
    if shown.trouble or silent > max(STALE_SECONDS, 5 * planned):  # as /-/healthy and the page have it
        if shown.trouble:
            yield _text((" NO ANSWER ", "bold reverse red"), f" for {duration(age)}: {shown.trouble}")
        else:
            why = "the daemon answers but does not sample"
            yield _text((" STALE ", "bold reverse yellow"), f" no sample for {duration(silent)}: {why}")
        yield _text(("what follows is old: ", "yellow"), badge, f" {says}")
        return
    old = age > _OLD and look.seen_by != "recording"
    yield _text(badge, " ", (says, "bold"), ("  " + clock + marks, "bright_black"),
                (f"  {duration(age)} old" if old else "", "yellow"))  # fmt: skip
    seen = look.where if look.seen_by == "daemon" else _SEEN_BY[look.seen_by]
    if verdict := document.get("verdict"):
        yield from map(_text, wrap(verdict, width)[:2])
    else:
        yield _text((seen, "bright_black"))


def spark(points: Sequence[tuple[float, float]], end: float, span: float, width: int, top: float) -> str:
    """Draw a curve's last ``span`` seconds; each character is the greatest of its time, a gap a blank."""
    cells: list[float | None] = [None] * width
    for mono, value in points:
        place = width - 1 - int((end - mono) / span * width)
        if 0 <= place < width:
            cells[place] = max(value, cells[place] if cells[place] is not None else value)  # type: ignore[type-var]
    top = top or max((c for c in cells if c is not None), default=0.0) or 1.0
    steps = len(SPARKS) - 1
    return "".join(" " if c is None else SPARKS[round(min(1.0, max(0.0, c / top)) * steps)] for c in cells)


def bar(used: float, ahead: float, width: int, colour: str) -> Text:
    """Draw a share from 0 to 1, and behind it, broken, what it is going to be."""
    full = round(min(1.0, max(0.0, used)) * width)
    soon = max(full, round(min(1.0, max(0.0, ahead)) * width))
    return _text(("━" * full, colour), ("╍" * (soon - full), f"dim {colour}"),
                 ("─" * (width - soon), "bright_black"))  # fmt: skip


def _grid(*justify: str) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 1, 0, 0), pad_edge=False)
    for side in justify:
        table.add_column(no_wrap=True, overflow="ellipsis", justify=side)  # type: ignore[arg-type]
    return table


def _memory(look: Look, trail: Trail, shown: Shown, width: int) -> Table:
    table = _grid("left", "left", "right", "right", "left", "left")
    names = max(8, width // 6)
    swap = look.document.get("swap")
    has_swap = bool(swap and swap["total"])
    narrow = width < 100
    bars = max(10, min(30, width // 6))
    sparks = 8 if narrow else min(30, width // 6)
    # What does not fit is cut from the outlook, and nothing else.
    for column, least in zip(table.columns, (8, bars, 4, 11 if narrow else 21, sparks, 6), strict=True):
        column.min_width = least

    def row(name: str, key: str, left: int, capacity: int, colour: str, outlook: Text, rate: float) -> None:
        used = 1 - left / capacity if capacity else 0.0
        ahead = used + rate * AHEAD_SECONDS / capacity if capacity else 0.0
        curve = spark(trail.points(Key("used", key)), look.mono, shown.span_seconds, sparks, 1.0)
        name = name if len(name) <= names else f"…{name[1 - names :]}"
        table.add_row(_text((name, "bold")), bar(used, ahead, bars, colour), f"{used:.0%}",
                      f"{size(left)} left" if narrow else f"{size(left)} of {size(capacity)} left",
                      _text((curve, colour)), outlook)  # fmt: skip

    for forecast in _worth_a_line(look.document["forecasts"]):
        resource = forecast["resource"]
        name = "RAM+swap" if resource == "ram" and has_swap else resource_name(resource)
        row(name, resource, forecast["headroom_bytes"], forecast["capacity_bytes"],
            _ink(forecast["level"]), _outlook(forecast),
            forecast.get("rate_bytes_per_second", 0.0) if forecast.get("eta_seconds") else 0.0)  # fmt: skip
    for card in _not_forecast(look.document):
        gpu, total = card["index"], card["total_bytes"]
        why = _text(("no forecast during a stress run", "bright_black"))
        row(f"GPU {gpu}", f"gpu{gpu}", total - card["used_bytes"], total, "cyan", why, 0.0)
    if swap and has_swap:
        back = trail.mean(Key("swap in"), 10)
        busy = _text((f"reads back {size(back)}/s", "yellow")) if back and back > 1 << 20 else _text("")
        row("swap", "swap", swap["free"], swap["total"], "cyan", busy, 0.0)
    return table


def _not_forecast(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the cards that a stress run fills: what it takes it gives back, so nobody forecasts them."""
    forecast = {f["resource"] for f in document["forecasts"]}
    return [
        card for card in document["gpus"]
        if f"gpu{card['index']}" not in forecast and {"used_bytes", "total_bytes"} <= card.keys()
        and any(work["kind"] == "stress" for work in document.get("running", ()))
    ]  # fmt: skip


def _worth_a_line(forecasts: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return all but the many cgroups of which nothing is to be said: only the fullest few of them."""
    cgroups = [f for f in forecasts if f["resource"].startswith("cgroup:")]
    fullest = sorted(cgroups, key=lambda f: (f["level"] == "ok", f["headroom_bytes"] / f["capacity_bytes"]))
    return [f for f in forecasts if f not in cgroups] + fullest[:MOST_CGROUPS]


def _outlook(forecast: Mapping[str, Any]) -> Text:
    eta = forecast.get("eta_seconds") or {}
    who = f" {forecast['who']}" if forecast.get("who") else ""
    age = forecast.get("age_seconds", 0.0)
    old = f" {duration(age)} old" if age > _OLD else ""
    if "middle" not in eta:
        return _text((old.strip(), "yellow") if old else
                     ("steady" if "rate_bytes_per_second" in forecast else "", "bright_black"))  # fmt: skip
    span = f" ({duration(eta['early'])}-{duration(eta['late'])})" if {"early", "late"} <= eta.keys() else ""
    return _text((f"~{duration(eta['middle'])}", "bold"), (span, "bright_black"), (old, "yellow"), who)


def _gpus(look: Look, trail: Trail, shown: Shown, width: int) -> Table:
    table = _grid("left", "right", "left", "left", "left")
    sparks = 10 if width < 90 else min(30, width // 6)
    for card in look.document["gpus"]:
        gpu = str(card["index"])
        busy = card.get("utilization_ratio")
        curve = spark(trail.points(Key("busy", gpu)), look.mono, shown.span_seconds, sparks, 1.0)
        table.add_row(
            _text((f"GPU {gpu} ", "bold"), card["name"].removeprefix("NVIDIA ").removeprefix("GeForce ")),
            "busy n/a" if busy is None else f"busy {busy:.0%}",
            _text((curve, "green")),
            "  ".join(_card_facts(look, card, gpu)),
            _text((", ".join(_brakes(look, gpu)), "yellow")),
        )
    return table


def _card_facts(look: Look, card: Mapping[str, Any], gpu: str) -> Iterator[str]:
    limit = look.value("gpu_power_limit_watts", gpu=gpu)
    if (watts := card.get("power_watts")) is not None:
        yield f"{watts:.0f}/{limit:.0f} W" if limit else f"{watts:.0f} W"
    if (celsius := card.get("temperature_celsius")) is not None:
        yield f"{celsius:.0f} °C"
    if (fan := look.value("gpu_fan_speed_ratio", gpu=gpu)) is not None:
        yield f"fan {fan:.0%}"
    if (clock := look.value("gpu_clock_hertz", gpu=gpu, clock="sm")) is not None:
        yield f"{clock / 1e9:.2f} GHz"
    if (state := look.value("gpu_performance_state", gpu=gpu)) is not None:
        yield f"P{state:.0f}"


#: what holds the clocks down for a reason worth a word
_BRAKES = {
    "sw_power_cap": "power cap", "hw_slowdown": "slowed by hardware", "sw_thermal_slowdown": "too hot",
    "hw_thermal_slowdown": "far too hot", "hw_power_brake_slowdown": "power brake",
}  # fmt: skip


def _brakes(look: Look, gpu: str) -> list[str]:
    active = (labels["reason"] for labels, on in look.series("gpu_throttle_reason", gpu=gpu) if on)
    return [_BRAKES[reason] for reason in active if reason in _BRAKES]


def _machine(look: Look, trail: Trail, shown: Shown, width: int) -> Iterator[Text]:
    busy, load, cpus = trail.last(Key("cpu")), look.value("load1"), look.value("cpus")
    curve = spark(trail.points(Key("cpu")), look.mono, shown.span_seconds, 10 if width < 90 else 20, 1.0)
    waits = ", ".join(
        f"{what} {share:.0%}"
        for what in ("memory", "cpu", "io")
        if (share := trail.last(Key("waiting", what))) is not None
    )
    cores = f" of {cpus:.0f} cores" if cpus else ""
    yield _text(("CPU ", "bold"), _share(busy), cores, " ", (curve, "blue"),
                f"  load {load:.1f}" if load is not None else "",
                ("  waits for ", "bold") if waits else "", waits)  # fmt: skip
    pairs = (("disk r/w", "disk read", "disk write"), ("net in/out", "received", "sent"))
    flows = [f"{name} {_rate(trail.last(Key(a)))} {_rate(trail.last(Key(b)))}" for name, a, b in pairs]
    places = [
        f"{labels['mountpoint']} {size(left)} free"
        for labels, left in sorted(look.series("filesystem_avail_bytes"), key=lambda s: s[0]["mountpoint"])
    ]
    yield _text("  ".join(flows), ("  · " * bool(places), "bright_black"), "  ".join(places))


def _share(ratio: float | None) -> str:
    return "n/a" if ratio is None else f"{ratio:.0%}"


def _rate(value: float | None) -> str:
    return "n/a" if value is None else f"{size(value)}/s"


def _rows(look: Look, trail: Trail, shown: Shown) -> list[dict[str, Any]]:
    vram: dict[int, int | None] = {}
    for card in look.document["gpus"]:
        for process in card["processes"]:
            used, before = process.get("used_bytes"), vram.get(process["pid"])
            vram[process["pid"]] = used if before is None or used is None else before + used
    rows = [
        {
            "pid": p["pid"],
            "ram": p["rss_bytes"],
            "swap": p["swap_bytes"],
            "vram": vram.get(p["pid"]),
            "holds": p["pid"] in vram or "gpu" in p["roles"],
            "growth": trail.growth(Key("rss", str(p["pid"]))),
            "does": ", ".join(p["roles"]),
            "program": p["command"] or p["name"],
        }
        for p in look.document["processes"]
    ]
    wanted = shown.filter.lower()
    found = [r for r in rows if wanted in f"{r['pid']} {r['does']} {r['program']}".lower()]
    return sorted(found, key=SORTS[shown.sort], reverse=True)


def _processes(rows: Iterable[Mapping[str, Any]], lines: int) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bright_black", expand=True)
    for heading in ("pid", "RAM", "swapped", "VRAM", "grows"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("does", no_wrap=True, max_width=18, overflow="ellipsis")
    table.add_column("program", no_wrap=True, overflow="ellipsis", ratio=1)
    for row in list(rows)[: max(0, lines - 1)]:
        growth = row["growth"]
        grows = growth is not None and growth > (1 << 20) / 60
        table.add_row(
            str(row["pid"]),
            size(row["ram"]),
            size(row["swap"]) if row["swap"] else "",
            size(row["vram"]) if row["vram"] is not None else "n/a" if row["holds"] else "",
            _text((speed(growth), "yellow")) if grows else "",
            row["does"],
            _text(row["program"]),
        )
    return table


def _advice(look: Look, trail: Trail) -> Iterator[Text]:
    for hint in hints(look, trail):
        mark = (" ➜ ", "bold yellow") if hint.act else (" ✓ ", "green")
        text, evidence = map(current().text, (hint.text, hint.evidence))
        yield _text(mark, text, (f"  ({evidence})", "bright_black"))
    for source in look.document["sources"]:
        if source["health"] in ("failed", "late"):
            yield _text((f" ! {source['name']}: {source.get('error', source['health'])}", "yellow"))


def _open(look: Look) -> Iterator[Text]:
    """Say what else is wrong; the verdict has said it of memory."""
    others = [i for i in look.document.get("incidents", ()) if i["rule"] != "memory_exhaustion"]
    for item in others[:MOST_INCIDENTS]:
        yield _text((" open  ", "bright_black"), (f"{item['level']:9} ", TERMINAL_LEVELS[item["level"]]),
                    item["headline"], (f"  (incident {item['id']})", "bright_black"))  # fmt: skip
    if len(others) > MOST_INCIDENTS:
        yield _text((f" and {len(others) - MOST_INCIDENTS} more: wslgpud alerts list", "bright_black"))


def _lately(look: Look) -> Iterator[Text]:
    """Say what became worse lately, the newest first."""
    levels = list(TERMINAL_LEVELS)
    worse = [
        item
        for item in look.document.get("recent", ())
        if levels.index(item["level"]) > levels.index(item["previous_level"])
    ]
    for item in worse[:3]:
        yield _text((f" {_when(item['at'], look.document['at'])} ", "bright_black"),
                    (f"{item['level']:9} ", TERMINAL_LEVELS[item["level"]]), item["headline"])  # fmt: skip


def _when(at: str, now: str) -> str:
    """Return a moment on this machine's clock, with the day if it is another one."""
    then, today = (datetime.fromisoformat(moment).astimezone() for moment in (at, now))
    return then.strftime("%H:%M" if then.date() == today.date() else "%b %d %H:%M")


def _work(look: Look) -> Iterator[Text]:
    """Say what runs, with a bar for what has an end."""
    for one in look.document.get("running", ()):
        elapsed, left = one["elapsed_seconds"], one.get("left_seconds")
        share = one.get("done_ratio")
        if share is None and left is not None:
            share = elapsed / max(elapsed + left, 1e-9)
        yield _text((" ▶ ", "bold cyan"), bar(share, share, 12, "cyan") if share is not None else "",
                    " " * (share is not None), told(one))  # fmt: skip


def _nights(look: Look) -> Iterator[Text]:
    for run in look.document.get("stress", ()):
        yield _text((" stress run: ", "bright_black"), last_night(run, look.document["at"]))


def cycled(shown: Shown) -> Shown:
    """Return the next order of processes."""
    names = list(SORTS)
    return replace(shown, sort=names[(names.index(shown.sort) + 1) % len(names)])
