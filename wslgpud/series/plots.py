"""Plots as PNG or SVG, by matplotlib, which is imported only when needed.

Each ``plot_...`` writes a plot to ``path`` and raises PlotError: there is nothing to draw, matplotlib is missing, or
the file cannot be written.
"""

from __future__ import annotations

import contextlib
import functools
import html
import io
import logging
import math
import os
import pwd
import re
import warnings
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wslgpud import optional_packages
from wslgpud.colors import INKS, LEVELS, LINES
from wslgpud.model import Level
from wslgpud.security import safe_files
from wslgpud.words import MessageError, cause, current, say, t, template

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: suffixes of image files
ENDINGS = (".png", ".svg")
#: two values this many steps apart have a gap between them
_GAP_STEPS = 5.0

#: fonts with Chinese characters, the best first
_CHINESE = (
    *("Noto Sans CJK SC", "Noto Sans SC", "Source Han Sans SC", "Source Han Sans CN", "Microsoft YaHei"),
    *("WenQuanYi Micro Hei", "WenQuanYi Zen Hei", "SimHei", "SimSun", "Droid Sans Fallback", "Noto Sans CJK JP"),
)
_NO_FONT = template("{path}: no font with Chinese characters was found; apt install fonts-noto-cjk, or choose .svg")

#: keyword arguments of a line
Line = Mapping[str, Any]
RiskPoint = tuple[float, float, float | None, Level]
#: seconds since the epoch, minimum, mean, maximum
Point = tuple[float, float, float, float]


#: a picture ten inches wide has 1600 pixels, of one panel 900 in height
DPI = 160
#: curves named in the title of a panel
MAX_NAMES = 3


class PlotError(MessageError):
    """A plot cannot be drawn; the message names the remedy."""


def plot_replays(replays: Sequence[tuple[str, Mapping[str, Sequence[RiskPoint]]]], path: Path) -> None:
    """Plot use, forecast and levels over time, one panel per trace and resource.

    ``replays`` are (name of the trace, points of each resource: seconds, share of headroom, seconds to exhaustion or
    None, level).
    """
    panels = [(name, resource, series) for name, by in replays for resource, series in by.items() if series]
    if not panels:
        raise PlotError(say("nothing to draw: the traces hold no resource with a known size"))
    columns = 1 if len(panels) < 4 else 3
    rows = -(-len(panels) // columns)
    figure = figure_of(max(10.0, 7.5 * columns), max(5.625, 2.9 * rows + 0.3))
    for position, (name, resource, series) in enumerate(panels, start=1):
        axes = figure.add_subplot(rows, columns, position)
        unit, name_of_unit = _time_unit(series[-1][0] - series[0][0])
        points = [(t / unit, share, eta, level) for t, share, eta, level in series]
        draw_area(axes, [point[0] for point in points], [100 * (1 - point[1]) for point in points], fill=False)
        shade_levels(axes, [(at, level) for at, _, _, level in points])
        if etas := [(at, eta) for at, _, eta, _ in points if eta is not None and eta < 3600]:
            right = axes.twinx()
            right.plot(*zip(*etas, strict=True), ".", color=INKS["eta"].light, markersize=2)
            right.set_yscale("log")
            right.set_ylabel(t("seconds left (forecast)"), color=INKS["eta"].light)
        axes.set_title(t("{title}: {text}", title=name, text=current().resource(resource)), fontsize=10)
        axes.set_ylim(0, 100)
        axes.set_ylabel(t("used (%)"))
        axes.set_xlabel(name_of_unit)
    legend_of_levels(figure, LEVELS, [])
    save(figure, path)


def plot_curves(
    curves: Sequence[tuple[str, str, Sequence[Point]]],
    step_seconds: float,
    path: Path,
    moments: Sequence[tuple[float, str]] = (),
) -> None:
    """Plot series over time, one panel per unit; a band spans minimum to maximum, gaps stay visible.

    ``curves`` are (name, unit, (seconds since the epoch, minimum, mean, maximum) of each step with values), ``moments``
    (seconds since the epoch, name) of each line across all panels. Steps without end have no gaps, but a dot each.
    """
    units = list(dict.fromkeys(unit for _, unit, _ in curves))
    figure = figure_of(10, max(5.625, 1.2 + 3 * len(units)))
    panels = figure.subplots(len(units), 1, sharex=True, squeeze=False)[:, 0]
    for axes, unit in zip(panels, units, strict=True):
        same_unit = [(name, points) for name, its_unit, points in curves if its_unit == unit]
        scale, shown = _scale(unit, (point[3] for _, points in same_unit for point in points))
        for name, points in same_unit:
            drawn_points = _with_gaps(points, step_seconds)
            times = [days(point[0]) for point in drawn_points]
            lows, means, highs = ([point[place] / scale for point in drawn_points] for place in (1, 2, 3))
            dots: Line = {"marker": "o", "markersize": 4} if math.isinf(step_seconds) else {}
            (line,) = axes.plot(times, means, linewidth=1.2, label=name, **dots)
            axes.fill_between(times, lows, highs, color=line.get_color(), alpha=0.2, linewidth=0)
        axes.set_ylabel(shown)
        names = [name for name, _ in same_unit]
        axes.set_title(current().listed([*names[:MAX_NAMES], "…"][: len(names)]), fontsize=10, loc="left")
        if all(point[1] >= 0 for _, points in same_unit for point in points):
            # Matplotlib's margin is a share of the range, which steady figures have none of: room for dots and names.
            axes.set_ylim(0, axes.get_ylim()[1] * (1.08 if math.isinf(step_seconds) else 1.0))
        for wall, name in moments:
            draw_moment(axes, wall, name)
        _finish(axes)
        clock_below(axes)
    save(figure, path)


def plot_sweep(title: str, steps: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Plot the ``steps`` that ``wslgpud sweep --json`` prints: memory above, time below; a line marks failures.

    Numbers are to scale, words equally spaced. HTML is possible, too.
    """
    if not steps:
        raise PlotError(say("nothing to draw: no value was tried"))
    try:
        places = [float(step["value"]) for step in steps]
    except ValueError:
        places = [float(number) for number in range(len(steps))]
    figure = figure_of(10, 5.625)
    memory, time = figure.subplots(2, 1, sharex=True, height_ratios=(2, 1))
    for label, which in ((t("peak RAM"), "ram_bytes"), (t("peak VRAM"), "vram_bytes")):
        held = zip(places, (step[which] for step in steps), strict=True)
        if known := [(x, size / 2**30) for x, size in held if size is not None]:
            memory.plot(*zip(*known, strict=True), "o-", label=label)
    time.plot(places, [step["seconds"] for step in steps], "o-", color=LINES[5].light)
    for x, step in zip(places, steps, strict=True):
        if step["code"]:
            for axes in (memory, time):
                axes.axvline(x, color=LEVELS[Level.EMERGENCY].fill, linestyle="--", linewidth=1)
    memory.set_ylabel("GiB")
    time.set_ylabel(t("time (s)"))
    time.set_xticks(places, [step["value"] for step in steps])
    for axes in (memory, time):
        axes.set_ylim(bottom=0)
        _finish(axes)
    memory.set_title(title, fontsize=10, loc="left")
    save(figure, path, (title, ""))


def figure_of(width: float, height: float) -> Figure:
    """Return an empty figure of this size in inches, with our colour cycle."""
    try:
        with _without_settings():
            import matplotlib as mpl  # 60 MB, needed only for plots
            from cycler import cycler  # a part of it
            from matplotlib.figure import Figure
    except ImportError as error:
        raise PlotError("a plot needs matplotlib: {remedy}", remedy=optional_packages.remedy("plots")) from error
    mpl.rcParams["axes.prop_cycle"] = cycler(color=[ink.light for ink in LINES])
    # A fixed salt, so that the same data give the same file.
    mpl.rcParams.update({"svg.hashsalt": "wslgpud", **_font_settings()})
    return Figure(figsize=(width, height), layout="constrained")


@contextlib.contextmanager
def _without_settings() -> Iterator[None]:
    """Keep matplotlib from reading settings files.

    It reads ``matplotlibrc`` from the current folder, which may be another user's and could make root run TeX on their
    text. Besides, plots look the same for every user and folder.
    """
    here = os.open(".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.environ["MATPLOTLIBRC"] = os.devnull  # nor from the home folder, which sudo may have kept
        if os.geteuid() == 0:  # there it would read and write its list of fonts, whatever links lie in its place
            os.environ["MPLCONFIGDIR"] = f"{pwd.getpwuid(0).pw_dir}/.cache/matplotlib"
        os.chdir("/")
        yield
    finally:
        os.fchdir(here)
        os.close(here)


def days(wall: float) -> float:
    """Return a time in matplotlib's unit: days since the epoch."""
    return wall / 86400.0


def clock_below(axes: Axes, form: str = "") -> None:
    """Label an axis with local times, as short as their span allows."""
    from matplotlib import dates  # see figure_of

    zone = datetime.now().astimezone().tzinfo
    axes.xaxis_date(zone)
    concise: Any = functools.partial(dates.ConciseDateFormatter, axes.xaxis.get_major_locator())
    exact: Any = functools.partial(dates.DateFormatter, form)
    axes.xaxis.set_major_formatter((exact if form else concise)(tz=zone))


def draw_moment(axes: Axes, wall: float, name: str, height: float = 0.99, fontsize: int = 8) -> None:
    """Draw a line at a moment, its name beside it where there is more room; events are black, whatever the level."""
    axes.axvline(days(wall), color=INKS["ink"].light, linestyle="--", linewidth=1)
    side = "left" if days(wall) < sum(axes.get_xlim()) / 2 else "right"
    place: Any = {"xycoords": ("data", "axes fraction"), "ha": side, "va": "top"}
    if name:
        axes.annotate(f" {name} ", (days(wall), height), fontsize=fontsize, **place)


def draw_area(axes: Axes, times: Sequence[float], used: Sequence[float], *, fill: bool) -> None:
    """Draw what is used as a line or an area."""
    axes.plot(times, used, color=INKS["headroom"].light, linewidth=1.6)
    if fill:
        axes.fill_between(times, used, color=INKS["headroom"].light, alpha=0.12, linewidth=0)


def _finish(axes: Axes) -> None:
    axes.set_axisbelow(True)
    axes.grid(alpha=0.3)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=7)


def _scale(unit: str, values: Iterable[float]) -> tuple[float, str]:
    """Return the divisor that keeps values of a unit short, and their label."""
    highest = max(values, default=0.0)
    for base, names in (
        ("bytes", {"GiB": 2.0**30, "MiB": 2.0**20, "KiB": 2.0**10}),
        ("hertz", {"GHz": 1e9, "MHz": 1e6}),
        ("ratio", {"%": 0.01}),
    ):
        if unit.startswith(base):
            shown, scale = next(((n, s) for n, s in names.items() if highest >= s), (base, 1.0))
            per = unit.removeprefix(base).replace("_per_second", "/s")
            return scale, shown + per
    return 1.0, {"celsius": "°C", "watts": "W"}.get(unit, unit)


def _with_gaps(points: Sequence[Point], step_seconds: float) -> list[Point]:
    """Return the points with a blank one in each gap, so that no line is drawn across it."""
    with_gaps = list(points[:1])
    for before, point in pairwise(points):
        if point[0] - before[0] > _GAP_STEPS * step_seconds:
            with_gaps.append((before[0], math.nan, math.nan, math.nan))
        with_gaps.append(point)
    return with_gaps


def _time_unit(seconds: float) -> tuple[float, str]:
    """Return the length in seconds, and the name, of the unit that suits a span."""
    if seconds <= 600.0:
        return 1.0, t("time (s)")
    return (60.0, t("time (min)")) if seconds <= 4 * 3600.0 else (3600.0, t("time (h)"))


def shade_levels(axes: Axes, series: Sequence[tuple[float, Level]]) -> None:
    """Colour the time spent at each level."""
    start, level = series[0]
    for at, now in [*series, (series[-1][0], Level.OK)]:
        if now != level:
            if fill := LEVELS[level].fill:
                axes.axvspan(start, at, color=fill, linewidth=0)
            start, level = at, now


def legend_of_levels(figure: Figure, levels: Container[Level], lines: Iterable[Line]) -> None:
    """Add a legend of level colours and lines below the panels."""
    from matplotlib.lines import Line2D  # see figure_of
    from matplotlib.patches import Patch

    shades = [(shade.fill, level) for level, shade in LEVELS.items() if shade.fill and level in levels]
    marks: list[Patch | Line2D] = [Patch(color=fill, label=t(level.label)) for fill, level in shades]
    marks += [Line2D([], [], **line) for line in lines]
    if marks:
        figure.legend(handles=marks, loc="outside lower center", ncols=len(marks), frameon=False, fontsize=9)


def save(figure: Figure, path: Path, report: tuple[str, str] | None = None) -> None:
    """Write a figure in the format of the file's suffix; with a ``report`` (title, text) also HTML."""
    kind = path.suffix.lower()
    known = (*ENDINGS, ".html") if report else ENDINGS
    if kind not in known:
        raise PlotError("{path}: the name of a plot must end in one of {names}", path=str(path), names=tuple(known))
    if kind == ".png" and _families() is None:
        raise PlotError(_NO_FONT, path=str(path))
    try:
        with safe_files.draft(path) as draft, warnings.catch_warnings():
            # About characters that the reader's browser can render.
            warnings.filterwarnings("ignore", "Glyph .* missing")
            if report is None or kind != ".html":
                undated = {"Date": None} if kind == ".svg" else {}
                figure.savefig(draft, format=kind[1:], dpi=DPI, metadata=undated)
                return
            out = io.StringIO()
            # Without this, matplotlib adds metadata with web addresses.
            nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
            figure.savefig(out, format="svg", metadata=nothing)
            # An <svg> inside a page needs no XML header.
            drawing = re.sub(r"^.*?(?=<svg)", "", out.getvalue(), count=1, flags=re.DOTALL)
            draft.write_text(_page(report[0], drawing, report[1]), encoding="utf-8")
    except (OSError, ValueError) as error:
        raise PlotError("cannot write {file}: {reason}", file=str(path), reason=cause(error)) from error


def _font_settings() -> dict[Any, Any]:
    """Return matplotlib's settings for the language: text in an SVG stays text, rendered by the browser."""
    # A font lacks a weight: nothing a user could fix.
    logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)
    return {
        "font.family": ["sans-serif", *(_families() or ())],
        "svg.fonttype": "path" if current().code == "en" else "none",
    }


def _families() -> list[str] | None:
    """Return the fonts that the language needs besides the default; None where none is installed."""
    if current().code == "en":
        return []
    from matplotlib.font_manager import findSystemFonts, fontManager  # see figure_of

    # Fonts installed after matplotlib built its cache. None of Windows': under WSL2 every user may write there, and
    # could plant a malicious font.
    known_paths = {Path(font.fname) for font in fontManager.ttflist}
    for path in map(Path, findSystemFonts()):
        if path not in known_paths and path.is_file():
            with contextlib.suppress(OSError, RuntimeError):
                fontManager.addfont(path)
    names = {font.name for font in fontManager.ttflist}
    return [name for name in _CHINESE if name in names][:1] or None


def _page(title: str, drawing: str, text: str) -> str:
    ink, back, rule = (INKS[name].light for name in ("ink", "back", "rule"))
    return f"""<!doctype html>
<html lang="{current().code}"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{html.escape(title)}</title>
<style>
body {{ margin: 1.5rem auto; max-width: 62rem; padding: 0 1rem; font: 15px/1.5 system-ui, sans-serif;
  color: {ink}; background: {back}; }}
h1 {{ font-size: 1.25rem; }}
svg {{ width: 100%; height: auto; background: #fff; border: 1px solid {rule}; border-radius: .5rem; }}
pre {{ white-space: pre-wrap; overflow-wrap: anywhere; font: 13px/1.45 ui-monospace, monospace; }}
</style></head>
<body><h1>{html.escape(title)}</h1>
{drawing}
<pre>{html.escape(text)}</pre>
</body></html>
"""
