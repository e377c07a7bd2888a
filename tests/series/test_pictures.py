"""Each picture whole, as its parts: sizes, panels, lines, areas, marks, names and legends."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.series.test_drawings import DAY, GIB
from wslgpud.alerts.report import HeadroomCurve
from wslgpud.model import Forecast, Level, Transition
from wslgpud.series import plots
from wslgpud.series.incident_plot import IncidentMarks, plot_incident
from wslgpud.words import Message

pytest.importorskip("matplotlib")
np = pytest.importorskip("numpy")
GOLDEN = Path(__file__).parent / "golden"


def parts(figure: Any) -> Iterator[str]:
    """Yield a figure's parts as text, without what depends on the fonts that are installed."""
    from matplotlib.text import Text  # it may be missing

    width, height = figure.get_size_inches()
    yield f"{width:g} x {height:g} inches"
    yield from map(_name, figure.texts)
    for axes in figure.axes:
        grid = axes.get_subplotspec().get_gridspec()
        heights = ":".join(f"{ratio:g}" for ratio in grid.get_height_ratios())
        yield f"\npanel {axes.get_subplotspec().num1} of {grid.nrows} x {grid.ncols}, heights {heights}"
        for name, side in (("x", axes.xaxis), ("y", axes.yaxis)):
            low, high = side.get_view_interval()
            yield f"{name} {side.get_scale()} from {low:.6g} to {high:.6g} {side.get_label_text()}".rstrip()
        yield from (_name(part) for part in axes.get_children() if isinstance(part, Text) and part.get_text())
        yield from map(_line, axes.lines)
        yield from (_area(part, part.get_paths()[0]) for part in axes.collections)
        yield from (_area(part, part.get_patch_transform().transform_path(part.get_path())) for part in axes.patches)
        yield from map(_legend, filter(None, [axes.get_legend()]))
    yield from map(_legend, figure.legends)


def _name(text: Any) -> str:
    place = ", ".join(f"{part:.6g}" for part in getattr(text, "xy", text.get_position()))
    return f"text {text.get_text()!r} at {place}: {text.get_fontsize():g} {text.get_ha()} {text.get_va()}"


def _line(line: Any) -> str:
    look = f"{line.get_color()} {line.get_linewidth():g} {line._unscaled_dash_pattern[1]} {line.get_marker()}"
    points = zip(line.get_xdata(), line.get_ydata(), strict=True)
    said = " ".join(f"({x:.6g}, {y:.6g})" for x, y in points)
    return f"line {look} {line.get_markersize():g} {line.get_label().partition('_')[0]}: {said}"


def _area(part: Any, path: Any) -> str:
    from matplotlib.colors import to_hex

    (colour, *_), (width, *_) = np.atleast_2d(part.get_facecolor()), np.atleast_1d(part.get_linewidth())
    within = " ".join(f"{bound:.6g}" for bound in path.get_extents().extents)
    return f"area {to_hex(colour, keep_alpha=True)} {width:g}: {within}"


def _legend(legend: Any) -> str:
    texts = legend.get_texts()
    names = ", ".join(text.get_text() for text in texts)
    return f"legend {texts[0].get_fontsize():g} in {legend._ncols} columns, frame {legend.get_frame_on()}: {names}"


def replay() -> None:
    series: list[plots.RiskPoint] = [
        (0.0, 1.0, None, Level.OK),
        (100.0, 0.5, 300.0, Level.WARNING),
        (200.0, 0.1, 20.0, Level.CRITICAL),
        (300.0, 0.0, None, Level.OK),
    ]
    plots.plot_replays([("leak", {"ram": series})], Path("x.svg"))


def curves() -> None:
    held: list[plots.Point] = [(DAY + second, 1 * GIB, 2 * GIB, 4 * GIB) for second in range(0, 50, 10)]
    warm: list[plots.Point] = [(DAY, 40.0, 50.0, 70.0), (DAY + 40, 41.0, 51.0, 71.0)]
    plots.plot_curves([("held", "bytes", held), ("warm", "celsius", warm)], 10.0, Path("x.svg"))


def sweep() -> None:
    steps = [
        {"value": str(n), "ram_bytes": n * GIB, "vram_bytes": n * GIB // 2, "seconds": n + 0.5, "code": int(n == 4)}
        for n in (1, 2, 4)
    ]
    plots.plot_sweep("make -j {}", steps, Path("x.svg"))


def incident() -> None:
    points = [(float(second), float((100 - second) * GIB), Level(min(4, second // 20))) for second in range(0, 100, 10)]
    small = [(float(second), float((1000 - second) << 10), Level.OK) for second in range(0, 100, 50)]
    forecast = Forecast("ram", Level.WARNING, 40 * GIB, 64 * GIB, 1e9, 20.0, 40.0, 70.0)
    warned = Transition(20.0, 20.0, "ram", "r", Level.OK, Level.WARNING, Message("RAM full"), forecast)
    story = IncidentMarks(0.0, 100.0, [(20.0, "Warned"), (95.0, "Killed")], warned)
    panels = [
        HeadroomCurve("ram", 64.0 * GIB, points),
        HeadroomCurve("gpu0", float(GIB - 1), small),
        HeadroomCurve("cgroup:/a", 1024.0, [*small[:1], (50.0, -5.0, Level.OK)]),
    ]
    plot_incident(panels, story, Path("x.svg"), "RAM full\nresolved", "")


@pytest.fixture
def greenwich(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as environment:
        environment.setenv("TZ", "UTC")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("greenwich")
@pytest.mark.parametrize("draw", [replay, curves, sweep, incident], ids=lambda draw: draw.__name__)
def test_a_picture_is_drawn_as_before(draw: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare a picture's parts; with WSLGPUD_RENEW (./tests/renew), write them first."""
    drawn: list[Any] = []
    monkeypatch.setattr(plots, "save", lambda figure, *_: drawn.append(figure))
    draw()
    file, found = GOLDEN / f"{draw.__name__}.txt", "\n".join(parts(drawn[0])) + "\n"
    if os.environ.get("WSLGPUD_RENEW"):
        file.write_text(found)

    assert found == file.read_text()
