"""Pictures show the values that were measured, in units that suit them, where and when they were measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from wslgpud import colors
from wslgpud.alerts.report import HeadroomCurve
from wslgpud.model import Forecast, Level, Transition
from wslgpud.series import plots
from wslgpud.series.incident_plot import IncidentMarks, plot_incident
from wslgpud.words import Message

pytest.importorskip("matplotlib")
PATH = Path("picture.svg")
GIB = 1 << 30
DAY = 86400.0


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return the figures that are drawn, in place of files."""
    drawn: list[Any] = []
    monkeypatch.setattr(plots, "save", lambda figure, *_: drawn.append(figure))
    return drawn


def curves(axes: Any) -> Any:
    """Return the values of each line but those that mark a moment."""
    lines = [line for line in axes.lines if line.get_linestyle() != "--"]
    return [([*map(float, line.get_xdata())], [*map(float, line.get_ydata())]) for line in lines]


def moments(axes: Any) -> list[float]:
    return [float(line.get_xdata()[0]) for line in axes.lines if line.get_linestyle() == "--"]


def legend(figure: Any) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


@pytest.mark.parametrize(
    ("unit", "highest", "label", "shown"),
    [
        ("bytes", 2**30, "GiB", 1),
        ("bytes", 2**30 - 2**20, "MiB", 1023),
        ("bytes", 2**20, "MiB", 1),
        ("bytes", 2**20 - 2**10, "KiB", 1023),
        ("bytes", 2**10, "KiB", 1),
        ("bytes", 1023, "bytes", 1023),
        ("bytes_per_second", 3 * 2**20, "MiB/s", 3),
        ("hertz", 1e9, "GHz", 1),
        ("hertz", 999e6, "MHz", 999),
        ("hertz", 1e6, "MHz", 1),
        ("hertz", 999_999, "hertz", 999_999),
        ("ratio", 0.5, "%", 50),
        ("ratio", 0.01, "%", 1),
        ("ratio", 0.009, "ratio", 0.009),
        ("celsius", 70, "°C", 70),
        ("watts", 100, "W", 100),
        ("seconds", 5000, "seconds", 5000),
    ],
)
def test_a_curve_uses_the_largest_unit_that_fits(
    figures: list[Any], unit: str, highest: float, label: str, shown: float
) -> None:
    plots.plot_curves([("a", unit, [(0.0, 0.0, highest / 2, highest)])], 1.0, PATH)

    (axes,) = figures[0].axes
    (band,) = axes.collections
    assert axes.get_ylabel() == label
    assert curves(axes) == [([0.0], [pytest.approx(shown / 2)])]
    assert band.get_paths()[0].get_extents().intervaly == pytest.approx((0, shown))


def test_a_picture_is_large_enough_to_send_titled_and_from_zero(figures: list[Any]) -> None:
    plots.plot_curves([(name, "bytes", [(0.0, GIB, GIB, GIB), (9.0, GIB, GIB, GIB)]) for name in "abcd"], 9.0, PATH)
    plot_incident([HeadroomCurve("ram", GIB, [(0.0, 0.0, Level.OK)])], IncidentMarks(0, 1, [], None), PATH, "RAM", "")

    for figure in figures:
        assert tuple(plots.DPI * figure.get_size_inches()) == (1600, 900)
        assert figure.axes[0].get_ylim()[0] == 0
    assert figures[0].axes[0].get_title(loc="left") == "a, b, c, …"
    assert figures[1].axes[0].get_title(loc="left") == "RAM: used of 1.0 GiB"


def test_curves_of_one_unit_share_a_panel_and_gaps_stay(figures: list[Any]) -> None:
    steady: list[plots.Point] = [(DAY + at, 1, 2, 3) for at in (0.0, 10.0, 60.0)]
    broken: list[plots.Point] = [(DAY + at, 1, 2, 3) for at in (0.0, 10.0, 61.0)]
    plots.plot_curves([("a", "watts", steady), ("b", "celsius", broken), ("c", "watts", [])], 10.0, PATH)

    watts, celsius = figures[0].axes
    ((times, means), nothing), ((begins, with_gap),) = curves(watts), curves(celsius)
    assert (times, means, nothing) == (pytest.approx([1, 1 + 10 / DAY, 1 + 60 / DAY]), [2, 2, 2], ([], []))
    assert [math.isnan(value) for value in with_gap] == [False, False, True, False]
    assert begins == pytest.approx([1, 1 + 10 / DAY, 1 + 10 / DAY, 1 + 61 / DAY])
    assert [text.get_text() for text in watts.get_legend().get_texts()] == ["a", "c"]


@pytest.mark.parametrize(
    ("seconds", "unit", "end"),
    [
        (600.0, "time (s)", 600),
        (601.0, "time (min)", 601 / 60),
        (14400.0, "time (min)", 240),
        (14401.0, "time (h)", 14401 / 3600),
    ],
)
def test_a_replay_is_drawn_in_percent_over_time(figures: list[Any], seconds: float, unit: str, end: float) -> None:
    series: list[plots.RiskPoint] = [
        (0.0, 1.0, None, Level.OK),
        (seconds / 4, 0.5, 3599.0, Level.WARNING),
        (seconds / 2, 0.25, 3600.0, Level.CRITICAL),
        (seconds, 0.0, 5.0, Level.CRITICAL),
    ]
    plots.plot_replays([("leak", {"ram": series, "gpu0": []})], PATH)

    left, forecast = figures[0].axes
    assert left.get_xlabel() == unit
    assert curves(left) == [(pytest.approx([0, end / 4, end / 2, end]), [0, 50, 75, 100])]
    assert curves(forecast) == [(pytest.approx([end / 4, end]), [3599, 5])]
    shades = [(shade.get_x(), shade.get_x() + shade.get_width()) for shade in left.patches]
    assert shades == [pytest.approx((end / 4, end / 2)), pytest.approx((end / 2, end))]
    assert left.get_ylim() == (0, 100)
    assert legend(figures[0]) == ["info", "warning", "critical", "emergency"]


@pytest.mark.parametrize(("panels", "columns", "rows"), [(1, 1, 1), (3, 1, 3), (4, 3, 2), (6, 3, 2), (7, 3, 3)])
def test_more_than_three_replays_stand_in_three_columns(
    figures: list[Any], panels: int, columns: int, rows: int
) -> None:
    series: list[plots.RiskPoint] = [(0.0, 1.0, None, Level.OK)]
    plots.plot_replays([(str(number), {"ram": series}) for number in range(panels)], PATH)

    places = [axes.get_subplotspec() for axes in figures[0].axes]
    assert (places[0].get_gridspec().ncols, places[0].get_gridspec().nrows) == (columns, rows)
    assert [place.num1 for place in places] == list(range(panels))


def test_what_holds_nothing_to_draw_is_refused() -> None:
    with pytest.raises(plots.PlotError, match="nothing to draw"):
        plots.plot_replays([("leak", {"ram": []})], PATH)
    with pytest.raises(plots.PlotError, match="nothing to draw"):
        plots.plot_sweep("x", [], PATH)


def test_a_moment_is_named_where_there_is_more_room(figures: list[Any]) -> None:
    steady: list[plots.Point] = [(n * DAY, 1, 2, 3) for n in range(4)]
    changes = [(DAY, "570 → 575"), (2 * DAY, "575 → 580")]
    plots.plot_curves([("a", "watts", steady), ("b", "celsius", steady)], math.inf, PATH, changes)

    for axes in figures[0].axes:
        assert moments(axes) == [1, 2]
        named = [(text.get_text(), text.xy[0], text.get_ha()) for text in axes.texts]
        assert named == [(" 570 → 575 ", 1, "left"), (" 575 → 580 ", 2, "right")]


def test_one_measurement_is_seen(figures: list[Any]) -> None:
    plots.plot_curves([("a", "GiB", [(DAY, 14, 14, 14)])], math.inf, PATH)

    assert [line.get_marker() for line in figures[0].axes[0].lines] == ["o"]


@pytest.mark.parametrize(("values", "places"), [(["1", "2", "8"], [1, 2, 8]), (["a", "b", "8"], [0, 1, 2])])
def test_a_sweep_is_drawn_to_scale_with_failures_marked(
    figures: list[Any], values: Sequence[str], places: list[float]
) -> None:
    steps = [
        {"value": value, "ram_bytes": GIB * (n + 1), "vram_bytes": None, "seconds": n + 1.5, "code": int(n == 1)}
        for n, value in enumerate(values)
    ]
    plots.plot_sweep("make {}", steps, PATH)

    memory, time = figures[0].axes
    assert curves(memory) == [(places, [1, 2, 3])]
    assert curves(time) == [(places, [1.5, 2.5, 3.5])]
    assert moments(memory) == moments(time) == [places[1]]
    assert (memory.get_ylim()[0], time.get_ylim()[0]) == (0, 0)
    assert [text.get_text() for text in time.get_xticklabels()] == values
    assert [text.get_text() for text in memory.get_legend().get_texts()] == ["peak RAM"]


def drawn_incident(figures: list[Any], marks: Sequence[int], forecast: Forecast | None = None) -> Any:
    """Draw a hundred seconds with marks at these; return the panel of the subject."""
    points = [(float(second), float((100 - second) * GIB), Level.OK) for second in range(-10, 101)]
    warned = Transition(20.0, 20.0, "ram", "r", Level.OK, Level.WARNING, Message("RAM full"), forecast)
    story = IncidentMarks(0.0, 100.0, [(float(at), "Warned") for at in marks], warned)
    panels = [HeadroomCurve("ram", 64.0 * GIB, points), HeadroomCurve("gpu0", 0.0, points[:0] or points[-1:])]
    plot_incident(panels, story, PATH, "RAM", "")
    return figures[-1].axes[0]


@pytest.mark.parametrize(
    ("marks", "sides"), [([49], ["left"]), ([50], ["right"]), ([10, 40, 60], ["left", "left", "right"])]
)
def test_names_of_marks_lean_to_where_there_is_room(figures: list[Any], marks: list[int], sides: list[str]) -> None:
    names = drawn_incident(figures, marks).texts

    assert [name.get_ha() for name in names] == sides
    assert [name.xy for name in names] == [(at / DAY, pytest.approx(0.97 - 0.07 * row)) for row, at in enumerate(marks)]


@pytest.mark.parametrize(
    ("early", "late", "corners"), [(20.0, 70.0, (40, 90)), (None, 70.0, (60, 90)), (20.0, None, (40, 60))]
)
def test_a_forecast_is_drawn_from_earliest_to_latest_end(
    figures: list[Any], early: float | None, late: float | None, corners: tuple[float, float]
) -> None:
    axes = drawn_incident(figures, [20], Forecast("ram", Level.WARNING, 40 * GIB, 64 * GIB, 1e9, early, 40.0, late))

    (fan,) = axes.patches
    middle = next(line for line in axes.lines if line.get_color() == colors.INKS["eta"].light)
    ends = [(20 / DAY, 24.0), *((end / DAY, 64.0) for end in corners)]
    assert [tuple(map(float, corner)) for corner in fan.get_xy()[:3]] == [pytest.approx(end) for end in ends]
    assert (list(middle.get_xdata()), list(middle.get_ydata())) == ([20 / DAY, 60 / DAY], [24.0, 64.0])
    assert legend(figures[-1]) == ["forecast at the time of the warning"]


@pytest.mark.parametrize(("capacity", "unit", "whole"), [(GIB, "GiB", 1), (GIB - 1, "MiB", 1024), (0, "MiB", 0.001)])
def test_what_is_used_is_drawn_in_gib_from_the_first_on(
    figures: list[Any], capacity: int, unit: str, whole: float
) -> None:
    panel = HeadroomCurve("ram", float(capacity), [(0.0, 0.0, Level.OK)])
    plot_incident([panel], IncidentMarks(0.0, 1.0, [], None), PATH, "RAM", "")

    (axes,) = figures[0].axes
    assert axes.get_ylabel() == unit
    assert axes.get_ylim() == pytest.approx((0, 1.02 * whole))


def test_a_page_is_called_by_the_first_line_of_its_title(tmp_path: Path) -> None:
    panel = HeadroomCurve("ram", float(GIB), [(0.0, 0.0, Level.OK)])
    plot_incident([panel], IncidentMarks(0.0, 1.0, [], None), tmp_path / "x.html", "RAM full\nresolved", "all of it")
    page = (tmp_path / "x.html").read_text()

    assert page.startswith('<!doctype html>\n<html lang="en">')
    assert "<title>RAM full</title>" in page
    assert "<pre>all of it</pre>" in page
    assert page.count("<svg") == 1
    assert "<?xml" not in page


def test_an_incident_spans_its_time_and_resource(figures: list[Any]) -> None:
    axes = drawn_incident(figures, [])

    assert axes.get_xlim() == pytest.approx((0, 100 / DAY))
    assert axes.xaxis.get_major_formatter()(20 / DAY) == f"{datetime.fromtimestamp(20).astimezone():%H:%M:%S}"
    assert axes.get_ylim() == pytest.approx((0, 1.02 * 64))
    assert (len(axes.patches), figures[-1].legends) == (0, [])
    assert [len(panel.collections) for panel in figures[-1].axes] == [0, 1]
    drawn_incident(figures, [], Forecast("ram", Level.WARNING, 40 * GIB, 64 * GIB))
    assert len(figures[-1].axes[0].patches) == 0
