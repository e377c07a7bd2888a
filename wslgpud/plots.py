"""Pictures, by matplotlib, imported only when one is asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path

from wslgpud.model import Level, StressResult

LEVEL_COLOURS = {
    Level.INFO: "#dbe9f6",
    Level.WARNING: "#ffd97a",
    Level.CRITICAL: "#ff9d6e",
    Level.EMERGENCY: "#e0524d",
}

RiskPoint = tuple[float, float, float | None, Level]


class PlotError(RuntimeError):
    """A picture that cannot be drawn; the text says what to do."""


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
    figure = Figure(figsize=(7.5 * columns, 2.9 * rows), layout="constrained")
    for position, (name, resource, series) in enumerate(panels, start=1):
        axes = figure.add_subplot(rows, columns, position)
        times = [point[0] for point in series]
        axes.plot(
            times, [100 * point[1] for point in series], color="#1f3a5f", linewidth=1.4, label="headroom"
        )
        _shade_levels(axes, series)
        etas = [(t, eta) for t, _, eta, _ in series if eta is not None and eta < 3600]
        if etas:
            right = axes.twinx()
            right.plot(*zip(*etas, strict=True), ".", color="#8a2f8a", markersize=2, label="time left")
            right.set_yscale("log")
            right.set_ylabel("seconds left (forecast)", color="#8a2f8a")
        event = events.get(name, {}).get(resource)
        if event is not None:
            axes.axvline(event, color="black", linestyle="--", linewidth=1.2)
        axes.set_title(f"{name}: {resource}", fontsize=10)
        axes.set_ylim(0, 100)
        axes.set_ylabel("headroom (%)")
        axes.set_xlabel("seconds")
    try:
        figure.savefig(path, dpi=80)
    except (OSError, ValueError) as error:
        raise PlotError(f"cannot write {path}: {error}") from error


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
