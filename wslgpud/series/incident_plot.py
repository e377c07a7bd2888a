"""The plot of an incident: its subject over time, the forecast of the warning, and the outcome."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from wslgpud.alerts.report import HeadroomCurve, Report
from wslgpud.colors import INKS
from wslgpud.model import Transition
from wslgpud.series import plots
from wslgpud.words import say, t

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_DASHES = (0, (4, 2))


class IncidentMarks(NamedTuple):
    """Marks on the curves of an incident, all from ``start`` to ``end``.

    ``marks`` are (time, name), ``warned`` is the row of the warning with its forecast.
    """

    start: float
    end: float
    marks: Sequence[tuple[float, str]]
    warned: Transition | None


def marks(shown: Report) -> list[tuple[float, str]]:
    """Return the moments marked on the curves, with their names."""
    # for other rules the row itself is the warning
    incident, foretold = shown.incident, shown.incident.rule == "memory_exhaustion"
    moments = [(incident.warned_wall if foretold else None, t("Warned"))]
    if incident.killed_wall is not None:
        moments.append((incident.killed_wall, t("Killed")))
    else:
        moments.append((incident.closed_wall, t("Over")) if foretold else (shown.moment, t("Here")))
    return [(wall, name) for wall, name in moments if wall is not None and shown.start <= wall <= shown.end]


def foretold(shown: Report) -> list[tuple[float, float]]:
    """Return (moment, bytes left) as predicted by the warning."""
    row = shown.warned
    if row is None or row.forecast is None or not row.forecast.eta_seconds:
        return []
    left, eta = row.forecast.headroom_bytes, row.forecast.eta_seconds
    return [(row.wall + n / 60 * eta, left * (1 - n / 60)) for n in range(61) if row.wall + n / 60 * eta < shown.end]


def plot_incident(panels: Sequence[HeadroomCurve], story: IncidentMarks, path: Path, title: str, text: str) -> None:
    """Plot the use of the subject, large, and of other resources below it, on a common time axis.

    ``panels`` has the subject first; ``path`` is a PNG, SVG or self-contained HTML file, with the report ``text``
    below; the outcome is the second line of ``title``.
    """
    if not panels:
        raise plots.PlotError(say("nothing to draw: no headroom was recorded around it"))
    figure = plots.figure_of(10, 4.325 + 1.3 * max(1, len(panels) - 1))
    ratios = [3.0] + [1.0] * (len(panels) - 1)
    grid = figure.subplots(len(panels), squeeze=False, sharex=True, height_ratios=ratios)
    for number, (axes, panel) in enumerate(zip(grid[:, 0], panels, strict=True)):
        unit, scale = ("GiB", 2.0**30) if panel.capacity_bytes >= 1 << 30 else ("MiB", 2.0**20)
        capacity = max(panel.capacity_bytes / scale, 1e-3)
        times = [plots.days(wall) for wall, _, _ in panel.points]
        if number == 0:
            plots.shade_levels(axes, [(plots.days(wall), level) for wall, _, level in panel.points])
            _fan(axes, story, scale, capacity)
        plots.draw_area(
            axes, times, [max(0.0, capacity - max(0.0, p[1]) / scale) for p in panel.points], fill=number > 0
        )
        axes.set_xlim(plots.days(story.start), plots.days(story.end))
        for row, (wall, name) in enumerate(story.marks):
            named = f"{name} {datetime.fromtimestamp(wall).astimezone():%H:%M:%S}" if number == 0 else ""
            plots.draw_moment(axes, wall, named, height=0.97 - 0.07 * row, fontsize=9)
        used = t("{resource}: used of {capacity_bytes}", resource=panel.resource, capacity_bytes=panel.capacity_bytes)
        axes.set_title(used, fontsize=10, loc="left")
        axes.set_ylim(0, 1.02 * capacity)
        axes.set_ylabel(unit)
        plots.clock_below(axes, "%H:%M:%S")
    figure.suptitle(title, fontsize=11, x=0.01, ha="left")
    has_forecast = story.warned is not None and story.warned.forecast is not None
    dashes = {"color": INKS["eta"].light, "linestyle": _DASHES, "label": t("forecast at the time of the warning")}
    plots.legend_of_levels(figure, {point[2] for point in panels[0].points}, [dashes] if has_forecast else [])
    plots.save(figure, path, (title.partition("\n")[0], text))


def _fan(axes: Axes, story: IncidentMarks, scale: float, capacity: float) -> None:
    """Draw the forecast of the warning: its median, from the earliest to the latest."""
    row = story.warned
    if row is None or row.forecast is None or row.forecast.eta_seconds is None:
        return
    used, middle = capacity - row.forecast.headroom_bytes / scale, row.forecast.eta_seconds
    early, late = row.forecast.eta_early_seconds or middle, row.forecast.eta_late_seconds or middle
    now, ink = plots.days(row.wall), INKS["eta"].light
    corners = [(now, used), (plots.days(row.wall + early), capacity), (plots.days(row.wall + late), capacity)]
    axes.fill([x for x, _ in corners], [y for _, y in corners], color=ink, alpha=0.14, linewidth=0)
    axes.plot([now, plots.days(row.wall + middle)], [used, capacity], color=ink, linewidth=1.6, linestyle=_DASHES)
