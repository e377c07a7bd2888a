"""The screen: the rows about the machine and its programs below those of ``rows``, as many as a terminal has lines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from rich.console import ConsoleOptions, RenderableType, RenderResult
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from wslgpud.advise.live_sample import CurveKey, LiveSample, RecentSeries, vram
from wslgpud.cli.console import ENDLESS, RichConsole, table_of
from wslgpud.cli.live import rows
from wslgpud.cli.live.rows import BARS, SORTS, RowContext, Shown, ink, known, words
from wslgpud.words import TEMPLATES, current, say, says, t, template
from wslgpud.words.units import size

#: widest rule and bar, also where lines have no limit
_WIDEST, _USUAL = 200, 120
#: programs on an unlimited screen; and the fewest before other rows are omitted
_MAX_PROGRAMS, _MIN_PROGRAMS = 8, 3
#: lines of the curve of a forecast
_CURVE_LINES = (7, 13)
#: samples from which on a curve says more than its last point
_MIN_POINTS = 5
#: a process below this, without role or growth, is not shown
SMALL_BYTES = 32 << 20
#: columns for a program's role
_DOES = 18
#: growth below this, a MiB per minute, is noise
_NOISE_BYTES_PER_SECOND = (1 << 20) / 60
#: throttle reasons to show
_BRAKES = {"sw_power_cap", "hw_slowdown", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown"}
#: state of a GPU, of Windows' memory, and WSL's part of it, as far as known
_CARD = ("{watts}[/{limit}] W", "{celsius} °C", template("fan {speed_ratio}"), "{clock} GHz", "P{state}")
_WINDOWS = (
    template("{room_bytes} RAM left"),
    template("{promised_bytes} committed"),
    template("WSL holds {held_bytes}"),
    template("{free_bytes} of it free in Linux"),
)
_FLOWS = (
    template("disk read {read_bytes}/s, written {written_bytes}/s"),
    template("network in {received_bytes}/s, out {sent_bytes}/s"),
)
_PROCESSOR = template("[{busy_ratio} of {cores}|{cores}|{busy_ratio}]")


@dataclass(frozen=True)
class Screen:
    """The sample at ``mono`` as lines of text, with display options; ``height`` None means unlimited."""

    look: LiveSample
    trail: RecentSeries
    shown: Shown | None = None
    mono: float | None = None
    height: int | None = None

    def __rich_console__(self, console: RichConsole, options: ConsoleOptions) -> RenderResult:
        width = min(options.max_width, _WIDEST) if options.max_width < ENDLESS else _USUAL
        mono = self.look.mono if self.mono is None else self.mono
        view = RowContext(self.look, self.trail, self.shown or Shown(), width, mono)

        def lines(parts: Iterable[RenderableType]) -> list[list[Segment]]:
            free = options.update(height=None)
            return [line for part in parts for line in console.render_lines(part, free, pad=False)]

        drawn, rest = lines(_above(view)), lines(rows.below(view))
        room = self.height - len(drawn) if self.height else len(rest) + _MAX_PROGRAMS + 2
        min_lines, max_lines = _CURVE_LINES
        programs, order = processes(view)
        wanted = max(_MIN_PROGRAMS, sum(map(worth_a_line, programs)))
        # A small terminal shows the curve of a memory that runs out rather than earlier announcements.
        fits = bool(self.height and view.growing) and room - 2 - wanted >= min_lines
        rest = rest[: max(0, room - 2 - (wanted + min_lines if fits else _MIN_PROGRAMS))]
        room -= len(rest) + 2
        if room > 0:
            spare = room - wanted
            tall = min(max_lines, max(spare, room // 2) if view.growing else spare) if self.height else 0
            tall -= (tall + 1) % 2  # an odd number has a middle line, at half the scale
            if tall >= min_lines and (curve := list(_curve(view, tall))):
                drawn += lines(curve)
                room -= tall
            elif not self.height:
                programs = [row for row in programs if worth_a_line(row)]
            if programs:
                title = rows.rule(t("processes"), view.width, order)
                drawn += lines([title, process_table(view, programs[:room])])
        for line in (drawn + rest)[: self.height]:
            yield from line
            yield Segment.line()


def once(look: LiveSample) -> Screen:
    """Return all rows of one sample."""
    return Screen(look, RecentSeries(), Shown(span_seconds=0.0))


def _above(view: RowContext) -> Iterator[RenderableType]:
    yield from rows.verdict(view)
    yield from rows.running(view)
    yield from rows.incidents(view)
    yield rows.rule(t("memory"), view.width, rows.seen(view))
    yield rows.memory(view)
    yield from filter(None, (processor(view),))
    if view.document["gpus"] or lost(view):
        yield rows.rule(t("GPUs"), view.width)
        yield gpus(view)
    if about_machine := list(machine(view)):
        yield rows.rule(t("machine"), view.width)
        yield from about_machine


def _curve(view: RowContext, height: int) -> Iterator[RenderableType]:
    """Draw the use of the memory that runs out, with its forecast until it is full, else of the verdict's subject."""
    from wslgpud.cli.chart import chart
    from wslgpud.series.curves import of_use  # imports the database

    shown = view.growing or view.subject
    if shown is None:
        return
    now, mono = datetime.fromisoformat(view.document["at"]).timestamp(), view.look.mono
    points = view.trail.points(CurveKey("used", shown["resource"]))
    seen = [(now + at - mono, share) for at, share in points]
    if not view.growing and len(seen) < _MIN_POINTS:
        return
    span, ahead = view.shown.span_seconds, view.growing is not None
    curves, start, end, step = of_use(shown, seen, now, span, view.width, ahead=ahead)
    title = template("{resource} used, and its forecast") if view.growing else template("{resource} used")
    yield rows.rule(t(title, resource=shown["resource"]), view.width)
    total = float(shown["capacity_bytes"])
    yield chart(curves, start, end, step, size, width=view.width, height=height - 2, top=total)


def gpus(view: RowContext) -> Table:
    """The state of each GPU."""
    table, look = table_of("<", ">", "<", "~", gap=1), view.look
    for card in view.document["gpus"]:
        gpu = str(card["index"])
        busy = known(template("busy {busy_ratio}"), busy_ratio=card.get("utilization_ratio"))
        hertz = look.value("gpu_clock_hertz", gpu=gpu, clock="sm")
        rounded = {
            "watts": card.get("power_watts"),
            "limit": look.value("gpu_power_limit_watts", gpu=gpu),
            "celsius": card.get("temperature_celsius"),
            "state": look.value("gpu_performance_state", gpu=gpu),
        }
        facts = known(
            *_CARD,
            speed_ratio=look.value("gpu_fan_speed_ratio", gpu=gpu),
            clock=None if hertz is None else f"{hertz / 1e9:.2f}",
            **{name: None if value is None else round(value) for name, value in rounded.items()},
        )
        active = (labels["reason"] for labels, on in look.series("gpu_throttle_reason", gpu=gpu) if on)
        brakes = current().listed(current().label("throttle", reason) for reason in active if reason in _BRAKES)
        name = card["name"].removeprefix("NVIDIA ").removeprefix("GeForce ")
        curve = view.curve("busy", gpu, min(24, view.width // 10), "green")
        details = words("  ".join(facts), (f"  {card['unread']}" if "unread" in card else f"  {brakes}", "yellow"))
        table.add_row(words((f"GPU {gpu} ", "bold"), name), *busy or [t("busy n/a")], curve, details)
        if programs := card.get("windows"):
            table.add_row("", "", "", words((programs, "bright_black")))
    for labels in lost(view):
        told = words((t("lost: it does not answer"), "bold red"))
        table.add_row(words((f"GPU {labels['gpu']} ", "bold"), labels["uuid"]), "", "", told)
    return table


def lost(view: RowContext) -> list[Mapping[str, str]]:
    """Return the labels of each card that does not answer."""
    return [labels for labels, up in view.look.series("gpu_up") if not up]


def machine(view: RowContext) -> Iterator[RenderableType]:
    """Disks and network, and Windows below them."""
    yield from filter(None, (_flows(view),))
    if facts := view.document.get("windows"):
        table = table_of("<", "~", gap=1)
        table.add_row(Text(t("Windows"), "bold"), words(" · ".join(_windows(facts))))
        yield table


def processor(view: RowContext) -> Text:
    """The processors, beside memory."""
    busy, cpus = view.trail.last(CurveKey("cpu")), view.look.value("cpus")
    cores = None if cpus is None else says("{count} core", "{count} cores", count=round(cpus))
    if not (texts := known(_PROCESSOR, busy_ratio=busy, cores=cores)):
        return Text("")
    line = words((t("CPU"), "bold"), f" {texts[0]} ", view.curve("cpu", "", 20, "blue"))
    if (load := view.look.value("load1")) is not None:
        line.append(" " + t("load {load}", load=f"{load:.1f}"))
    parts = {name: view.trail.last(CurveKey("waiting", name)) or 0.0 for name in TEMPLATES["label"]["waits"]}
    waits = {current().label("waits", name): part for name, part in parts.items() if part >= 0.01}
    if shares := [say("{what} {share_ratio}", what=name, share_ratio=part) for name, part in waits.items()]:
        line.append("  " + t("waits for") + " ", "bold").append(current().listed(shares))
    return line


def _flows(view: RowContext) -> Text:
    keys = {"read": "disk read", "written": "disk write", "received": "received", "sent": "sent"}
    rates = {f"{name}_bytes": view.trail.last(CurveKey(what)) for name, what in keys.items()}
    texts = known(*_FLOWS, **rates)
    room = sorted((labels["mountpoint"], left) for labels, left in view.look.series("filesystem_avail_bytes"))
    texts += [t("{place} {left_bytes} free", place=place, left_bytes=left) for place, left in room]
    return words(" · ".join(texts))


def _windows(facts: Mapping[str, Any]) -> list[str]:
    parts = {
        "room_bytes": ("memory_available_bytes", "memory_total_bytes"),
        "promised_bytes": ("committed_bytes", "commit_limit_bytes"),
    }
    pairs = {name: tuple(facts[one] for one in pair) for name, pair in parts.items() if facts.keys() >= {*pair}}
    texts = known(
        *_WINDOWS, held_bytes=facts.get("vm_bytes"), free_bytes=facts.get("vm_unreturned_bytes") or None, **pairs
    )
    for session, held in facts.get("containers_bytes", {}).items():
        texts.append(t("containers {session} hold {held_bytes}", session=session, held_bytes=held))
    for gpu in facts.get("gpus", ()):
        if "NVIDIA" in gpu["adapter"]:  # an integrated GPU always uses shared memory
            texts += known(template("{adapter}: {shared_bytes} in shared memory, pinned or spilled"), **gpu)
    return texts


def processes(view: RowContext) -> tuple[list[dict[str, Any]], str]:
    """Return the selected programs in their order, and the order."""
    held = vram(view.document)
    wanted, growth = view.shown.filter.lower(), view.trail.growth
    rows = [
        {
            **p,
            "vram": held.get(p["pid"]),
            "holds": p["pid"] in held or "gpu" in p["roles"],
            "role": current().listed(current().label("role", role) for role in p["roles"]),
            "growth": growth(CurveKey("rss", str(p["pid"]))),
            "vram growth": growth(CurveKey("vram", str(p["pid"]))),
            "program": p["command"] or p["name"],
        }
        for p in view.document["processes"]
    ]
    sort = view.shown.sort or (template("RAM") if view.growing is None else template("growth"))
    matching = [r for r in rows if wanted in f"{r['pid']} {r['role']} {r['program']}".lower()]
    # The verdict's culprit comes first, unless the user has chosen another order.
    first = None if view.shown.sort else view.document["verdict"].get("pid")
    matching.sort(key=lambda r: (r["pid"] == first, SORTS[sort](r), SORTS["RAM"](r)), reverse=True)
    order = t("by {order}", order=t(sort))
    return matching, order + (t(', with "{word}"', word=view.shown.filter) if wanted else "")


def worth_a_line(row: Mapping[str, Any]) -> bool:
    """Return whether a program has a role, grows, or is large."""
    return bool(row["role"]) or row["rss_bytes"] + row["swap_bytes"] >= SMALL_BYTES or SORTS["growth"](row) > 1 << 20


def process_table(view: RowContext, rows: Sequence[Mapping[str, Any]]) -> Table:
    """The table of programs; the verdict's culprit is marked."""
    # Only the program's name is truncated to fit, and no column is empty.
    wide = view.width >= BARS
    columns: list[tuple[str, Callable[[Mapping[str, Any]], str]]] = [
        (">" + t("pid"), lambda row: str(row["pid"])),
        (">" + t("RAM"), lambda row: size(row["rss_bytes"])),
        (">" + t("growth"), lambda row: _growth(row["growth"])),
        (">" + t("swapped"), lambda row: size(row["swap_bytes"]) if row["swap_bytes"] and wide else ""),
        (">" + t("VRAM"), lambda row: size(row["vram"]) if row["vram"] is not None else t("n/a") * row["holds"]),
        (">" + t("VRAM grows"), lambda row: _growth(row["vram growth"])),
        ("<" + t("role"), lambda row: row["role"] if wide else ""),
    ]
    shown = [(heading, cell) for heading, cell in columns if any(map(cell, rows))]
    table = table_of("<", *(heading for heading, _ in shown), "~" + t("program"), gap=1, style="bright_black")
    for row in rows:
        named = row["pid"] == view.document["verdict"].get("pid")
        program = Text(row["program"], no_wrap=True, overflow="ellipsis")
        cells = [Text(cell(row)) for _, cell in shown]
        for text in cells:
            text.truncate(_DOES, overflow="ellipsis")
        style = f"bold {ink(view.document['verdict']['level'])}" if named else ""
        table.add_row("▶" if named else " ", *cells, program, style=style)
    return table


def _growth(rate: float | None) -> str:
    return current().rate(rate) if rate is not None and rate > _NOISE_BYTES_PER_SECOND else ""
