"""Pictures, by matplotlib, imported only when one is asked for."""

from __future__ import annotations

import html
import io
import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from wslgpud.model import Level, StressResult

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LEVEL_COLOURS = {
    Level.INFO: "#dbe9f6",
    Level.WARNING: "#ffd97a",
    Level.CRITICAL: "#ff9d6e",
    Level.EMERGENCY: "#e0524d",
}

RiskPoint = tuple[float, float, float | None, Level]


class PlotError(RuntimeError):
    """A picture that cannot be drawn; the text says what to do."""


class Panel(NamedTuple):
    """Headroom of one resource: (seconds since the epoch, bytes left, level), of so many bytes."""

    name: str
    capacity_bytes: float
    points: Sequence[tuple[float, float, Level]]


def plot_incident(panels: Sequence[Panel], moment: float, path: Path, title: str, text: str) -> None:
    """Draw what was left before and after a moment, one panel a resource.

    Args:
        panels: what to draw.
        moment: what it was about, in seconds since the epoch; a line marks it.
        path: PNG, SVG or HTML to write; HTML is one file that needs nothing else, with the report below.
        title: its first line.
        text: the report, for HTML.

    Raises:
        PlotError: there is nothing to draw, matplotlib is missing, or the file cannot be written.
    """
    if not panels:
        raise PlotError("nothing to draw: no headroom was recorded around it")
    try:
        from matplotlib import dates  # noqa: PLC0415 - 60 MB that only a picture needs
        from matplotlib.figure import Figure  # noqa: PLC0415 - same
    except ImportError as error:
        raise PlotError("a plot needs matplotlib: pip install matplotlib") from error
    zone = datetime.now().astimezone().tzinfo
    figure = Figure(figsize=(10, 2.7 * len(panels)), layout="constrained")
    clock = dates.DateFormatter("%H:%M:%S", tz=zone)  # type: ignore[no-untyped-call]
    grid = figure.subplots(len(panels), squeeze=False, sharex=True)
    for axes, panel in zip(grid[:, 0], panels, strict=True):
        unit, scale = ("GiB", 2.0**30) if panel.capacity_bytes >= 1 << 30 else ("MiB", 2.0**20)
        size = max(panel.capacity_bytes / scale, 1e-3)
        times = [wall / 86400 for wall, _, _ in panel.points]  # as matplotlib counts: days since the epoch
        left = [max(0.0, value) / scale for _, value, _ in panel.points]
        axes.xaxis_date(zone)
        _shade_levels(axes, [(t, 0.0, None, p[2]) for t, p in zip(times, panel.points, strict=True)])
        axes.plot(times, left, color="#1f3a5f", linewidth=1.6)
        axes.fill_between(times, left, color="#1f3a5f", alpha=0.12, linewidth=0)
        axes.axvline(moment / 86400, color="black", linestyle="--", linewidth=1)
        axes.set_title(f"{panel.name}: left of {size:.3g} {unit}", fontsize=10, loc="left")
        axes.set_ylim(0, 1.02 * size)
        axes.set_ylabel(f"{unit} left")
        axes.margins(x=0)
        axes.xaxis.set_major_formatter(clock)
    _save(figure, path, title, text)


def _save(figure: Figure, path: Path, title: str, text: str) -> None:
    """Write a figure by the ending of the file's name.

    Raises:
        PlotError: the ending is none that we know, or the file cannot be written.
    """
    kind = path.suffix.lower()
    if kind not in (".png", ".svg", ".html"):
        raise PlotError(f"{path}: a plot ends in .png, .svg or .html")
    try:
        if kind != ".html":
            figure.savefig(path, dpi=80)
            return
        out = io.StringIO()
        # Without this matplotlib's own description names places in the net.
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(out, format="svg", metadata=nothing)
        # An <svg> inside a page has no use for the head of a document.
        drawing = re.sub(r"^.*?(?=<svg)", "", out.getvalue(), count=1, flags=re.DOTALL)
        path.write_text(_page(title, drawing, text), encoding="utf-8")
    except (OSError, ValueError) as error:
        raise PlotError(f"cannot write {path}: {error}") from error


def _page(title: str, drawing: str, text: str) -> str:
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{html.escape(title)}</title>
<style>
body {{ margin: 1.5rem auto; max-width: 62rem; padding: 0 1rem; font: 15px/1.5 system-ui, sans-serif;
  color: #1c2330; background: #f6f7f9; }}
h1 {{ font-size: 1.25rem; }}
svg {{ width: 100%; height: auto; background: #fff; border: 1px solid #dde2ea; border-radius: .5rem; }}
pre {{ white-space: pre-wrap; overflow-wrap: anywhere; font: 13px/1.45 ui-monospace, monospace; }}
</style></head>
<body><h1>{html.escape(title)}</h1>
{drawing}
<pre>{html.escape(text)}</pre>
</body></html>
"""


def plot_replays(
    replays: Sequence[tuple[str, Mapping[str, Sequence[RiskPoint]]]],
    events: Mapping[str, Mapping[str, float]],
    path: Path,
) -> None:
    """Draw headroom, forecast and levels over time, one panel a trace and resource.

    Args:
        replays: (name of the trace, points of each resource: seconds, share of headroom, seconds to
            exhaustion or None, level).
        events: per trace and resource the second at which memory ran out, where known.
        path: PNG to write.

    Raises:
        PlotError: matplotlib is missing or the file cannot be written.
    """
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415 - 60 MB that only a picture needs
        from matplotlib.lines import Line2D  # noqa: PLC0415
        from matplotlib.patches import Patch  # noqa: PLC0415
    except ImportError as error:
        raise PlotError("a plot needs matplotlib: pip install matplotlib") from error
    panels = [
        (name, resource, series)
        for name, resources in replays
        for resource, series in resources.items()
        if series
    ]
    if not panels:
        raise PlotError("nothing to draw: the traces hold no resource with a known size")
    columns = 1 if len(panels) < 4 else 3
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(7.5 * columns, 2.9 * rows + 0.3), layout="constrained")
    for position, (name, resource, series) in enumerate(panels, start=1):
        axes = figure.add_subplot(rows, columns, position)
        unit, name_of_unit = _time_unit(series[-1][0] - series[0][0])
        points = [(t / unit, share, eta, level) for t, share, eta, level in series]
        times = [point[0] for point in points]
        axes.plot(
            times, [100 * point[1] for point in points], color="#1f3a5f", linewidth=1.4, label="headroom"
        )
        _shade_levels(axes, points)
        etas = [(t, eta) for t, _, eta, _ in points if eta is not None and eta < 3600]
        if etas:
            right = axes.twinx()
            right.plot(*zip(*etas, strict=True), ".", color="#8a2f8a", markersize=2, label="time left")
            right.set_yscale("log")
            right.set_ylabel("seconds left (forecast)", color="#8a2f8a")
        event = events.get(name, {}).get(resource)
        if event is not None:
            axes.axvline(event / unit, color="black", linestyle="--", linewidth=1.2)
        axes.set_title(f"{name}: {resource}", fontsize=10)
        axes.set_ylim(0, 100)
        axes.set_ylabel("headroom (%)")
        axes.set_xlabel(name_of_unit)
    marks: list[Patch | Line2D] = [
        Patch(color=colour, label=level.label) for level, colour in LEVEL_COLOURS.items()
    ]
    marks.append(Line2D([], [], color="black", linestyle="--", label="out of memory"))
    figure.legend(handles=marks, loc="outside lower center", ncols=len(marks), frameon=False, fontsize=9)
    try:
        figure.savefig(path, dpi=80)
    except (OSError, ValueError) as error:
        raise PlotError(f"cannot write {path}: {error}") from error


def _time_unit(seconds: float) -> tuple[float, str]:
    """Return the length in seconds, and the name, of the unit that suits a span."""
    if seconds <= 600.0:
        return 1.0, "seconds"
    return (60.0, "minutes") if seconds <= 4 * 3600.0 else (3600.0, "hours")


def _shade_levels(axes: object, series: Sequence[RiskPoint]) -> None:
    """Colour the time spent at each level."""
    start, level = series[0][0], series[0][3]
    for t, _, _, now in [*series, (series[-1][0], 0.0, None, Level.OK)]:
        if now != level:
            if level in LEVEL_COLOURS:
                axes.axvspan(start, t, color=LEVEL_COLOURS[level], linewidth=0)  # type: ignore[attr-defined]
            start, level = t, now


def plot_stress(runs: Sequence[StressResult], path: Path) -> None:
    """Draw usable VRAM, bandwidth and errors of stress runs over time; a line marks each new driver.

    Raises:
        PlotError: there is nothing to draw, matplotlib is missing, or the file cannot be written.
    """
    runs = [run for run in runs if run.complete]
    if not runs:
        raise PlotError("nothing to draw: no stress run has been completed yet")
    try:
        from matplotlib.dates import ConciseDateFormatter  # noqa: PLC0415 - 60 MB that only a picture needs
        from matplotlib.figure import Figure  # noqa: PLC0415
        from matplotlib.ticker import MaxNLocator  # noqa: PLC0415
    except ImportError as error:
        raise PlotError("a plot needs matplotlib: pip install matplotlib") from error
    figure = Figure(figsize=(9, 7), layout="constrained")
    size, speed, errors = figure.subplots(3, 1, sharex=True)
    cards = list(dict.fromkeys(run.uuid for run in runs))
    for uuid in cards:
        mine = [run for run in runs if run.uuid == uuid]
        times = [datetime.fromtimestamp(run.wall, timezone.utc) for run in mine]
        name = f"gpu{mine[0].gpu} {mine[0].name}"
        size.plot(
            times, [run.values.get("usable_bytes", float("nan")) / 2**30 for run in mine], "o-", label=name
        )
        for kind in ("write", "change", "read"):
            rates = [run.values.get(f"{kind}_median", float("nan")) / 1e9 for run in mine]
            speed.plot(times, rates, "o-", label=kind if len(cards) == 1 else f"{name} {kind}")
        errors.plot(times, [run.values.get("errors", 0) for run in mine], "o-", label=name)
        drivers = [run.key.get("driver", "") for run in mine]
        for number in range(1, len(mine)):
            if drivers[number] != drivers[number - 1]:
                for axes in (size, speed, errors):
                    axes.axvline(times[number], color="black", linestyle="--", linewidth=1)
                change = f" {drivers[number - 1]} → {drivers[number]}"
                size.annotate(
                    change, (times[number], 1), xycoords=("data", "axes fraction"), fontsize=8, va="bottom"
                )
    for axes, label in ((size, "usable VRAM (GiB)"), (speed, "GB/s"), (errors, "wrong words")):
        axes.set_ylabel(label)
        axes.legend(fontsize=7)
        axes.grid(alpha=0.3)
    errors.yaxis.set_major_locator(MaxNLocator(integer=True))
    dates = ConciseDateFormatter(errors.xaxis.get_major_locator())  # type: ignore[no-untyped-call]
    errors.xaxis.set_major_formatter(dates)
    try:
        figure.savefig(path, dpi=80)
    except (OSError, ValueError) as error:
        raise PlotError(f"cannot write {path}: {error}") from error


def plot_curves(
    curves: Sequence[tuple[str, str, Sequence[tuple[float, float, float, float]]]],
    step_seconds: float,
    path: Path,
) -> None:
    """Draw series over time, one panel a unit; a band reaches from least to greatest, a gap stays a gap.

    Args:
        curves: (name, unit, (seconds since the epoch, least, mean, greatest) of each step with values).
        step_seconds: length of a step.
        path: PNG to write.

    Raises:
        PlotError: matplotlib is missing or the file cannot be written.
    """
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415 - 60 MB that only a picture needs
    except ImportError as error:
        raise PlotError("a plot needs matplotlib: pip install matplotlib") from error
    units = list(dict.fromkeys(unit for _, unit, _ in curves))
    figure = Figure(figsize=(10, 1.2 + 3 * len(units)), layout="constrained")
    panels = figure.subplots(len(units), 1, sharex=True, squeeze=False)[:, 0]
    for axes, unit in zip(panels, units, strict=True):
        scale, shown = (2**30, "GiB") if unit.startswith("bytes") else (1, unit)
        for name, its_unit, points in curves:
            if its_unit != unit:
                continue
            times: list[datetime] = []
            lows: list[float] = []
            means: list[float] = []
            highs: list[float] = []
            for wall, *values in points:
                if times and wall - times[-1].timestamp() > 5 * step_seconds:
                    times.append(times[-1])
                    for column in (lows, means, highs):
                        column.append(float("nan"))
                times.append(datetime.fromtimestamp(wall).astimezone())
                for column, value in zip((lows, means, highs), values, strict=True):
                    column.append(value / scale)
            (line,) = axes.plot(times, means, linewidth=1.2, label=name)
            axes.fill_between(times, lows, highs, color=line.get_color(), alpha=0.2, linewidth=0)
        axes.set_ylabel(unit.replace("bytes", shown) if scale != 1 else shown)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=7)
    try:
        figure.savefig(path, dpi=80)
    except (OSError, ValueError) as error:
        raise PlotError(f"cannot write {path}: {error}") from error


class Trial(NamedTuple):
    """What a command took with one value: bytes, None where not known, and seconds."""

    value: str
    ram_bytes: int
    vram_bytes: int | None
    seconds: float
    failed: bool


def plot_sweep(title: str, trials: Sequence[Trial], path: Path) -> None:
    """Draw what a command took with each value: memory above, time below; a line marks what failed.

    Numbers keep their distances, words are set side by side.

    Args:
        title: the command.
        trials: what was measured.
        path: PNG, SVG or HTML to write.

    Raises:
        PlotError: there is nothing to draw, matplotlib is missing, or the file cannot be written.
    """
    if not trials:
        raise PlotError("nothing to draw: no value was tried")
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415 - 60 MB that only a picture needs
    except ImportError as error:
        raise PlotError("a plot needs matplotlib: pip install matplotlib") from error
    try:
        places = [float(trial.value) for trial in trials]
    except ValueError:
        places = [float(number) for number in range(len(trials))]
    figure = Figure(figsize=(8, 5.6), layout="constrained")
    memory, time = figure.subplots(2, 1, sharex=True, height_ratios=(2, 1))
    memory.plot(places, [trial.ram_bytes / 2**30 for trial in trials], "o-", label="peak RAM")
    on_card = [
        (x, trial.vram_bytes / 2**30)
        for x, trial in zip(places, trials, strict=True)
        if trial.vram_bytes is not None
    ]
    if on_card:
        memory.plot(*zip(*on_card, strict=True), "o-", label="peak VRAM")
    time.plot(places, [trial.seconds for trial in trials], "o-", color="#1f3a5f")
    for x, trial in zip(places, trials, strict=True):
        if trial.failed:
            for axes in (memory, time):
                axes.axvline(x, color=LEVEL_COLOURS[Level.EMERGENCY], linestyle="--", linewidth=1)
    memory.set_ylabel("GiB")
    memory.legend(fontsize=8)
    time.set_ylabel("seconds")
    time.set_xticks(places, [trial.value for trial in trials])
    for axes in (memory, time):
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
    memory.set_title(title, fontsize=10, loc="left")
    _save(figure, path, title, "")
