"""The status document as a terminal screen."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from wslgpud.cli.console import Console
from wslgpud.palette import TERMINAL_LEVELS
from wslgpud.units import duration, resource_name, size

VERDICT_COLOURS = {
    "passed": "green", "findings": "bold red", "left": "yellow", "skipped": "yellow", "failed": "red"
}  # fmt: skip
_BAR_WIDTH = 24
#: a process below this, with no role, is not worth a line
_SMALL_BYTES = 32 << 20
#: less than this left is called full; it is no alarm while nothing grows
_FULL_SHARE = 0.03
#: more open incidents than that are only counted
_MOST_INCIDENTS = 6
_EIGHTHS = " ▏▎▍▌▋▊▉█"


def print_status(document: dict[str, Any], console: Console | None = None) -> None:
    """Print the document of ``wslgpud.status.status``."""
    (console or Console()).print(Group(*_parts(document)))


def _parts(document: dict[str, Any]) -> Iterator[RenderableType]:
    yield _verdict(document)
    if document.get("incidents"):
        yield _incidents(document["incidents"], document["at"])
    yield _resources(document)
    if document["gpus"]:
        yield _gpus(document["gpus"])
    if document.get("windows"):
        yield _windows(document["windows"])
    if document.get("running") or document.get("stress"):
        yield _work(document)
    for lock in document.get("locks", ()):
        yield Text(f" ! {lock['note']}", style="yellow")
    if document["processes"]:
        yield _processes(document["processes"])
    if document.get("recent"):
        yield _recent(document["recent"], document["at"])
    for source in document["sources"]:
        if source["health"] in ("failed", "late"):
            yield Text(f" ! {source['name']}: {source.get('error', source['health'])}", style="yellow")
    seen = {
        "daemon": f"daemon at {document.get('url')}",
        "own look": "no daemon answers here, a look of its own",
        "recording": "a recorded machine",
    }[document["seen_by"]]
    yield Text(f"\n {_clock(document['at'])} UTC · {seen}", "dim")


def _verdict(document: dict[str, Any]) -> RenderableType:
    level = _worst(document)
    other = "; other trouble is open, see below" if level != document["level"] else ""
    text = Text(document.get("headline", calm(document) + other), style="bold")
    if document.get("verdict"):
        text.append(f"\n{document['verdict']}", style="not bold")
    return Panel(
        text, title=level.upper(), title_align="left", border_style=TERMINAL_LEVELS[level], expand=True
    )


def _worst(document: dict[str, Any]) -> str:
    """Return the level of the memory forecast or of an open incident that nobody has acknowledged."""
    levels = list(TERMINAL_LEVELS)
    known = [i["level"] for i in document.get("incidents", ()) if not i.get("acknowledged")]
    return max((str(document["level"]), *map(str, known)), key=levels.index)


def calm(document: Mapping[str, Any]) -> str:
    """Say how things are when there is nothing to warn of."""
    full = [resource_name(f["resource"]) for f in document["forecasts"] if _is_full(f)]
    return f"nothing is growing that we can see, but full: {', '.join(full)}" if full else "memory is fine"


def _resources(document: dict[str, Any]) -> RenderableType:
    table = _table(show_header=False)
    table.add_column(style="bold", no_wrap=True, min_width=5)
    table.add_column(no_wrap=True, min_width=_BAR_WIDTH)
    table.add_column(no_wrap=True, justify="right", min_width=4)
    table.add_column(no_wrap=True, min_width=20)
    table.add_column(overflow="ellipsis", no_wrap=True)
    swap = document.get("swap")
    for forecast in document["forecasts"]:
        left, capacity = forecast["headroom_bytes"], forecast["capacity_bytes"]
        name = resource_name(forecast["resource"])
        if name == "RAM" and swap and swap["total"]:
            name = "RAM + swap"
        eta = forecast.get("eta_seconds", {}).get("middle")
        # One look shows no rate, and so not that anything is steady.
        looks = ["full"] * _is_full(forecast) + ["steady"] * ("rate_bytes_per_second" in forecast)
        outlook = Text(", and ".join(looks), "dim") if eta is None else Text(f"~{duration(eta)} left", "bold")
        if forecast.get("who"):
            outlook.append(f" · {forecast['who']}", "not bold")
        if forecast.get("age_seconds"):
            outlook.append(f" · {duration(forecast['age_seconds'])} old", "not bold")
        table.add_row(name, *_meter(left, capacity, TERMINAL_LEVELS[forecast["level"]]), outlook)
    if swap and swap["total"]:
        table.add_row("swap", *_meter(swap["free"], swap["total"], "cyan"), "")
    return table


def _is_full(forecast: Mapping[str, Any]) -> bool:
    return bool(forecast["headroom_bytes"] < _FULL_SHARE * forecast["capacity_bytes"])


def _meter(left: int, capacity: int, colour: str) -> tuple[Text, Text, Text]:
    used = min(1.0, max(0.0, 1 - left / capacity)) if capacity else 0.0
    return (
        Text(bar(used), colour),
        Text(f"{used:.0%}", colour),
        Text(f"{size(left)} left of {size(capacity)}"),
    )


def _table(*, show_header: bool = True) -> Table:
    return Table(box=None, show_header=show_header, header_style="dim", padding=(0, 2, 0, 1), title=" ")


def _clock(at: str) -> str:
    return at[:19].replace("T", " ")


def bar(ratio: float, width: int = _BAR_WIDTH) -> str:
    """Draw a ratio from 0 to 1 as a bar with eighths of a character."""
    eighths = round(ratio * width * 8)
    full, rest = divmod(eighths, 8)
    drawn = "█" * full + (_EIGHTHS[rest] if rest else "")
    return drawn + "░" * (width - len(drawn))


def _gpus(gpus: list[dict[str, Any]]) -> RenderableType:
    table = _table()
    table.add_column("GPU", no_wrap=True)
    for heading in ("VRAM used", "of", "busy", "power", "temp"):
        table.add_column(heading, justify="right", no_wrap=True)
    for gpu in gpus:
        table.add_row(
            f"{gpu['index']}  {gpu['name']}",
            _shown(gpu.get("used_bytes"), size),
            _shown(gpu.get("total_bytes"), size),
            _shown(gpu.get("utilization_ratio"), lambda r: f"{r:.0%}"),
            _shown(gpu.get("power_watts"), lambda w: f"{w:.0f} W"),
            _shown(gpu.get("temperature_celsius"), lambda c: f"{c:.0f} °C"),
        )
    return table


def _processes(processes: list[dict[str, Any]]) -> RenderableType:
    table = _table()
    table.add_column("pid", justify="right")
    table.add_column("RAM", justify="right", no_wrap=True)
    table.add_column("swapped", justify="right", no_wrap=True)
    table.add_column("does", no_wrap=True)
    table.add_column("program", overflow="ellipsis", no_wrap=True)
    worth_a_line = [p for p in processes if p["roles"] or p["rss_bytes"] + p["swap_bytes"] >= _SMALL_BYTES]
    for process in worth_a_line[:8]:
        table.add_row(
            str(process["pid"]),
            size(process["rss_bytes"]),
            size(process["swap_bytes"]) if process["swap_bytes"] else "",
            ", ".join(process["roles"]),
            process["command"] or process["name"],
        )
    return table


def _incidents(incidents: list[dict[str, Any]], now: str) -> RenderableType:
    table = _table()
    table.add_column("open", no_wrap=True)
    table.add_column("since (UTC)", no_wrap=True, style="dim")
    table.add_column()
    for item in incidents[:_MOST_INCIDENTS]:
        notes = ["acknowledged"] * bool(item.get("acknowledged"))
        if "silenced_until" in item:
            notes.append(f"silenced until {_since(item['silenced_until'], now)}")
        what = Text(item["headline"])
        what.append(f"  ({', '.join([*notes, 'incident ' + str(item['id'])])})", "dim")
        table.add_row(Text(item["level"], TERMINAL_LEVELS[item["level"]]), _since(item["since"], now), what)
    if (more := len(incidents) - _MOST_INCIDENTS) > 0:
        table.add_row("", "", Text(f"and {more} more: wslgpud alerts list", "dim"))
    return table


def _windows(facts: Mapping[str, Any]) -> RenderableType:
    """Say what Windows has left, what WSL holds of it, and what of each card lies in RAM."""
    parts = []
    if "memory_available_bytes" in facts and "memory_total_bytes" in facts:
        left, total = facts["memory_available_bytes"], facts["memory_total_bytes"]
        parts.append(f"{size(left)} RAM left of {size(total)}")
    if "committed_bytes" in facts and "commit_limit_bytes" in facts:
        parts.append(f"{size(facts['committed_bytes'])} promised of {size(facts['commit_limit_bytes'])}")
    if "vm_bytes" in facts:
        unreturned = facts.get("vm_unreturned_bytes")
        unused = f", {size(unreturned)} of it free in here" if unreturned is not None else ""
        parts.append(f"WSL holds {size(facts['vm_bytes'])}{unused}")
    parts += [  # an integrated GPU lives in shared memory: nothing to tell
        f"{gpu['adapter']}: {size(gpu['shared_bytes'])} in shared memory"
        for gpu in facts.get("gpus", ())
        if "shared_bytes" in gpu and "NVIDIA" in gpu["adapter"]
    ]
    table = _table(show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    table.add_row("Windows", "\n".join(parts))
    return table


def _work(document: Mapping[str, Any]) -> RenderableType:
    """Say what runs now, and how the last test of each card's memory ended."""
    table = _table(show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for one in document.get("running", ()):
        table.add_row("runs now", one["headline"])
    for run in document.get("stress", ()):
        table.add_row("stress run", Text(run["headline"], VERDICT_COLOURS[run["verdict"]]))
    return table


def _since(at: str, now: str) -> str:
    return _clock(at).removeprefix(f"{now[:10]} ")


def _recent(recent: list[dict[str, Any]], now: str) -> RenderableType:
    table = _table()
    table.add_column("lately (UTC)", no_wrap=True, style="dim")
    table.add_column(no_wrap=True)
    table.add_column()
    for item in recent[:5]:
        table.add_row(
            _since(item["at"], now), Text(item["level"], TERMINAL_LEVELS[item["level"]]), item["headline"]
        )
    return table


def _shown(value: Any, form: Any) -> str:
    return "n/a" if value is None else form(value)
