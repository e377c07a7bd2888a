"""The status document as a terminal screen."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from wslgpud.cli.units import duration, size

COLOURS = {
    "ok": "green", "info": "blue", "warning": "yellow", "critical": "red", "emergency": "bold white on red",
}  # fmt: skip
_BAR_WIDTH = 28
_EIGHTHS = " ▏▎▍▌▋▊▉█"


def print_status(document: dict[str, Any], console: Console | None = None) -> None:
    """Print the document of ``wslgpud.status.status``."""
    (console or Console(highlight=False)).print(Group(*_parts(document)))


def _parts(document: dict[str, Any]) -> Iterator[RenderableType]:
    yield _verdict(document)
    yield _resources(document)
    if document["gpus"]:
        yield _gpus(document["gpus"])
    if document["processes"]:
        yield _processes(document["processes"])
    if document.get("recent"):
        yield _recent(document["recent"])
    troubles = [s for s in document["sources"] if s["health"] in ("failed", "late")]
    for trouble in troubles:
        yield Text(f"! {trouble['name']}: {trouble.get('error', trouble['health'])}", style="yellow")
    seen = {
        "daemon": f"daemon at {document.get('url')}",
        "own look": "no daemon runs here, a look of its own",
        "recording": "a recorded machine",
    }[document["seen_by"]]
    yield Text(f"{document['at'][:19].replace('T', ' ')} UTC · {seen}", "dim")


def _verdict(document: dict[str, Any]) -> RenderableType:
    level = document["level"]
    text = document.get("verdict") or "memory is fine"
    return Panel(
        Text(text), title=level.upper(), title_align="left", border_style=COLOURS[level], expand=True
    )


def _resources(document: dict[str, Any]) -> RenderableType:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold")
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(overflow="fold")
    for forecast in document["forecasts"]:
        left, capacity = forecast["headroom_bytes"], forecast["capacity_bytes"]
        used = min(1.0, max(0.0, 1 - left / capacity)) if capacity else 0.0
        eta = forecast.get("eta_seconds", {})
        outlook = "steady"
        if "middle" in eta:
            early, late = eta.get("early", eta["middle"]), eta.get("late", eta["middle"])
            outlook = f"full in ~{duration(eta['middle'])} ({duration(early)} to {duration(late)})"
        if forecast.get("who"):
            outlook += f" · {forecast['who']}"
        colour = COLOURS[forecast["level"]]
        table.add_row(
            _title(forecast["resource"]),
            Text(bar(used), style=colour) + Text(f" {used:4.0%}"),
            f"{size(left)} left of {size(capacity)}",
            Text(outlook, style="" if "middle" in eta else "dim"),
        )
    swap = document.get("swap")
    if swap and swap["total"]:
        used = 1 - swap["free"] / swap["total"]
        table.add_row(
            "swap", Text(bar(used), style="cyan") + Text(f" {used:4.0%}"),
            f"{size(swap['free'])} left of {size(swap['total'])}", "",
        )  # fmt: skip
    return table


def _title(resource: str) -> str:
    if resource == "ram":
        return "RAM + swap"
    return resource.upper() if resource.startswith("gpu") else resource


def bar(ratio: float, width: int = _BAR_WIDTH) -> str:
    """Draw a ratio from 0 to 1 as a bar with eighths of a character."""
    eighths = round(ratio * width * 8)
    full, rest = divmod(eighths, 8)
    drawn = "█" * full + (_EIGHTHS[rest] if rest else "")
    return drawn + "░" * (width - len(drawn))


def _gpus(gpus: list[dict[str, Any]]) -> RenderableType:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for heading in ("gpu", "name", "VRAM used", "of", "busy", "power", "temperature"):
        table.add_column(heading, justify="left" if heading == "name" else "right")
    for gpu in gpus:
        table.add_row(
            str(gpu["index"]),
            gpu["name"],
            _shown(gpu.get("used_bytes"), size),
            _shown(gpu.get("total_bytes"), size),
            _shown(gpu.get("utilization_ratio"), lambda r: f"{r:.0%}"),
            _shown(gpu.get("power_watts"), lambda w: f"{w:.0f} W"),
            _shown(gpu.get("temperature_celsius"), lambda c: f"{c:.0f} °C"),
        )
    return table


def _processes(processes: list[dict[str, Any]]) -> RenderableType:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("pid", justify="right")
    table.add_column("RAM", justify="right")
    table.add_column("swapped", justify="right")
    table.add_column("does")
    table.add_column("program", overflow="ellipsis", no_wrap=True)
    for process in processes[:8]:
        table.add_row(
            str(process["pid"]),
            size(process["rss_bytes"]),
            size(process["swap_bytes"]) if process["swap_bytes"] else "",
            ", ".join(process["roles"]),
            process["command"] or process["name"],
        )
    return table


def _recent(recent: list[dict[str, Any]]) -> RenderableType:
    lines = Text("lately\n", style="dim")
    for item in recent[:5]:
        lines.append(f"{item['at'][:19].replace('T', ' ')}  ", style="dim")
        lines.append(f"{item['level']:<9} ", style=COLOURS[item["level"]])
        lines.append(f"{item['headline']}\n")
    lines.rstrip()
    return lines


def _shown(value: Any, form: Any) -> str:
    return "n/a" if value is None else form(value)
