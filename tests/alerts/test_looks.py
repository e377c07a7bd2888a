"""What somebody looks at: the status screen's open incidents and Windows, and the pictures of an incident."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.alerts.ticks import START, tick, transition
from tests.support.screens import print_status
from wslgpud.alerts.report import HeadroomCurve
from wslgpud.cli.chart import used_of
from wslgpud.cli.console import Console
from wslgpud.cli.help import cells
from wslgpud.model import Forecast, Level, Reading, Snapshot
from wslgpud.sampling.observation import observation_of
from wslgpud.series import plots
from wslgpud.series.incident_plot import IncidentMarks, plot_incident
from wslgpud.series.plots import PlotError
from wslgpud.serve.status import TickState, status
from wslgpud.sources import windows
from wslgpud.verdict import decide
from wslgpud.words import ENGLISH, use

ROOT = Path(__file__).parents[2]
GIB = 1 << 30


def screen(**more: Any) -> str:
    document = json.loads((ROOT / "tests/gpu/status-warning.json").read_text())
    console = Console(file=io.StringIO(), width=120)
    print_status({**document, "at": "2026-11-21T07:45:00.000+00:00", **more}, console)
    return console.file.getvalue()


def incident(number: int, **more: Any) -> dict[str, Any]:
    return {
        "id": number,
        "level": "critical",
        "since": "2026-11-21T07:40:01.000+00:00",
        "acknowledged": False,
        "headline": "GPU 0 is full",
        **more,
    }


def test_the_screen_shows_open_alerts_and_acknowledgements() -> None:
    shown = screen(incidents=[incident(12), incident(13, notes=["acknowledged", "silenced until 09:00:00"])])

    assert re.search(r"critical +07:40:01 +GPU 0 is full  \(incident 12\)", shown)
    assert "(acknowledged, silenced until 09:00:00, incident 13)" in shown


def test_many_open_incidents_do_not_fill_the_screen() -> None:
    shown = screen(incidents=[incident(n) for n in range(40)])

    assert shown.count("GPU 0 is full") == 4
    assert "and 36 more: wslgpud alerts list" in shown


def snapshot() -> Snapshot:
    found = (
        (windows.TOTAL, 64),
        (windows.AVAILABLE, 5),
        (windows.COMMITTED, 60),
        (windows.COMMIT_LIMIT, 72),
        (windows.VM, 48),
        (windows.VM_UNRETURNED, 21),
    )
    return tick(
        1, *(Reading(spec, value * GIB) for spec, value in found), Reading(windows.GPU_SHARED, 3 * GIB, ("NVIDIA RTX",))
    )


def document_of(seen: Snapshot) -> dict[str, Any]:
    return status(TickState(replace(seen, observation=observation_of(seen)), decide((), ())), ENGLISH)


def test_status_tells_what_windows_tells() -> None:
    document = document_of(snapshot())["windows"]

    assert document["vm_unreturned_bytes"] == 21 * GIB
    assert document["gpus"] == [{"adapter": "NVIDIA RTX", "shared_bytes": 3 * GIB}]
    shown = " ".join(screen(windows=document).split())
    for line in (
        "5.0 of 64 GiB RAM left",
        "60 of 72 GiB committed",
        "WSL holds 48 GiB",
        "21 GiB of it free in Linux",
        "NVIDIA RTX: 3.0 GiB in shared memory",
    ):
        assert line in shown


def test_where_windows_is_not_asked_nothing_is_said_of_it() -> None:
    assert "windows" not in document_of(tick(1))
    assert "Windows" not in screen()


WARNED = transition(20, Level.OK, Level.WARNING)
FORECAST = Forecast("ram", Level.WARNING, 40 * GIB, 64 * GIB, 1e9, 20.0, 40.0, 70.0)
STORY = IncidentMarks(
    START, START + 60, [(START + 20, "warned"), (START + 55, "killed")], replace(WARNED, forecast=FORECAST)
)


@pytest.fixture
def panels() -> list[HeadroomCurve]:
    points = [(START + n, float((60 - n) * GIB), Level(min(4, n // 12))) for n in range(60)]
    return [HeadroomCurve("ram", 64.0 * GIB, points), HeadroomCurve("gpu0", 16.0 * GIB, points[:20])]


@pytest.mark.parametrize(
    ("name", "begins"), [("i.png", b"\x89PNG"), ("i.SVG", b"<?xml"), ("i.html", b"<!doctype html>")]
)
def test_the_ending_of_the_name_says_what_is_drawn(
    tmp_path: Path, panels: list[HeadroomCurve], name: str, begins: bytes
) -> None:
    plot_incident(panels, STORY, tmp_path / name, "Incident 12", "all of it")

    assert (tmp_path / name).read_bytes().startswith(begins)


@pytest.mark.parametrize(("size", "unit"), [(1 << 30, "GiB"), (1 << 20, "MiB")])
def test_what_was_used_stands_on_an_axis_of_its_unit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, unit: str
) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr("wslgpud.series.plots.save", lambda figure, *_: drawn.append(figure))
    points = [(START + n, float((60 - n) * size), Level.OK) for n in range(60)]
    plot_incident([HeadroomCurve("ram", 100.0 * size, points)], STORY, tmp_path / "i.svg", "t", "")

    (axes,) = drawn[0].axes
    curve = max(axes.lines, key=lambda line: len(line.get_ydata()))
    assert unit in axes.get_ylabel()
    assert list(curve.get_ydata()) == list(range(40, 100))


def test_the_page_is_self_contained_and_carries_no_markup(tmp_path: Path, panels: list[HeadroomCurve]) -> None:
    plot_incident(panels, STORY, tmp_path / "i.html", "RAM full: <img src=x>", "by </pre><script>alert(1)</script>")
    page = (tmp_path / "i.html").read_text()

    assert page.count("<svg") == 1
    assert not re.search(r"<script|<img|<link|<iframe|@import|url\((?!#)", page)
    # Names of XML's vocabularies look like addresses; nothing fetches them.
    assert set(re.findall(r"https?://[^\s\"'<]+", page)) <= {
        "http://www.w3.org/2000/svg",
        "http://www.w3.org/1999/xlink",
    }
    assert not re.search(r'(?:src|href)="(?!#)', page)
    assert "&lt;/pre&gt;&lt;script&gt;" in page


@pytest.mark.parametrize(
    ("name", "count", "said"),
    [
        ("i.doc", 2, "the name of a plot must end in one of .png, .svg, .html"),
        ("no/i.html", 2, "cannot write"),
        ("i.png", 0, "nothing to draw"),
    ],
)
def test_what_cannot_be_drawn_is_said_in_one_line(
    tmp_path: Path, panels: list[HeadroomCurve], name: str, count: int, said: str
) -> None:
    with pytest.raises(PlotError, match=said):
        plot_incident(panels[:count], STORY, tmp_path / name, "t", "")


def test_the_picture_fits_the_terminal_in_chinese_too() -> None:
    curve = HeadroomCurve("ram", 64.0 * GIB, [(START + n, float((60 - n) * GIB), Level.WARNING) for n in range(60)])
    marks = [(START + 20, "Warned 18:13:52"), (START + 55, "Killed 18:14:28")]
    use("zh")
    try:
        lines = used_of(curve, START, START + 60, marks, [(START + 50, 60.0 * GIB)], width=60)
    finally:
        use("en")

    assert max(map(cells, lines)) <= 60
    assert len({cells(line.partition("┤")[0]) for line in lines if "┤" in line}) == 1


@pytest.mark.parametrize("known", [True, False])
def test_a_chinese_picture_has_a_font_or_says_what_to_install(
    tmp_path: Path, panels: list[HeadroomCurve], monkeypatch: pytest.MonkeyPatch, *, known: bool
) -> None:
    monkeypatch.setattr(plots, "_CHINESE", ("DejaVu Serif" if known else "no such font",))
    monkeypatch.setattr("matplotlib.font_manager.findSystemFonts", list)
    use("zh")
    try:
        plot_incident(panels, STORY, tmp_path / "i.svg", "事件 12", "")
        drawn_text = (tmp_path / "i.svg").read_text()
        assert "事件 12</text>" in drawn_text, "letters for the browser"
        if known:
            plot_incident(panels, STORY, tmp_path / "i.png", "事件 12", "")
        else:
            with pytest.raises(PlotError, match="fonts-noto-cjk"):
                plot_incident(panels, STORY, tmp_path / "i.png", "事件 12", "")
    finally:
        use("en")


def test_names_of_marks_do_not_lie_on_each_other(tmp_path: Path, panels: list[HeadroomCurve]) -> None:
    for close in (0.5, 5.0):
        story = STORY._replace(marks=[(START + 50 - close, "Warned"), (START + 50, "Killed")])
        plot_incident(panels, story, tmp_path / "i.svg", "t", "")
        places = figure_texts(tmp_path / "i.svg")
        assert places["Warned"] != places["Killed"], "each in a row of its own"


def test_names_of_marks_stay_on_the_plot(monkeypatch: pytest.MonkeyPatch, panels: list[HeadroomCurve]) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr("wslgpud.series.plots.save", lambda figure, *_: drawn.append(figure))
    for places in ((1, 5, 59), (9, 30, 58), (40, 51)):
        story = STORY._replace(marks=[(START + place, "Warned") for place in places])
        plot_incident(panels, story, Path("i.svg"), "t", "")
        axes = drawn[-1].axes[0]
        left, right = (axes.get_window_extent().x0, axes.get_window_extent().x1)
        names = [text.get_window_extent() for text in axes.texts]
        assert len(names) == len(places)
        assert all(left <= name.x0 and name.x1 <= right for name in names), places


def figure_texts(path: Path) -> dict[str, str]:
    """Return the height at which each name of a mark stands, by matplotlib's comments."""
    found = re.findall(r"<!--\s+(Warned|Killed) [\d:]+\s+-->\s*<g [^>]*translate\([\d.]+ ([\d.]+)", path.read_text())
    return dict(found)
