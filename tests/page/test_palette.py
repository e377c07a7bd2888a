"""The same meaning has the same colour wherever somebody looks."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from wslgpud import colors
from wslgpud.model import Level
from wslgpud.serve import routes

PACKAGE = Path(colors.__file__).parent
THEMES = {"light": "page.css", "dark": "dark.css"}


def written(theme: str) -> dict[str, str]:
    (block,) = re.findall(r":root \{(.*?)\}", (routes.FOLDER / THEMES[theme]).read_text(), re.DOTALL)
    return dict(re.findall(r"(--[\w-]+): (#[0-9a-f]{6})", block))


def colours(theme: str) -> dict[str, str]:
    inks = {name: getattr(ink, theme) for name, ink in colors.INKS.items()}
    lines = {f"line-{number}": getattr(ink, theme) for number, ink in enumerate(colors.LINES, 1)}
    fills = {level.label: shade.fill for level, shade in colors.LEVELS.items() if shade.fill}
    return {f"--{name}": value for name, value in (inks | lines | fills).items()}


@pytest.mark.parametrize("theme", THEMES)
def test_the_page_has_the_colours_of_the_palette(theme: str) -> None:
    # What both themes share stands in the first alone.
    found = written("light") | written(theme)

    assert {name: found.get(name) for name in colours(theme)} == colours(theme)


@pytest.mark.parametrize(
    "path", [f for part in ("plots", "cli") for f in sorted((PACKAGE / part).rglob("*.py"))], ids=str
)
def test_pictures_and_terminal_have_no_colours_of_their_own(path: Path) -> None:
    assert set(re.findall(r"#[0-9a-fA-F]{6}\b", path.read_text())) == set()


def test_every_level_has_a_colour_and_no_two_look_alike() -> None:
    assert set(colors.LEVELS) == set(Level)
    for column in zip(*colors.LEVELS.values(), strict=True):
        assert len(set(column)) == len(Level)


def test_dashboards_take_the_colours_of_levels_from_here() -> None:
    kit = pytest.importorskip("grafana.source.kit", reason="Grafana's SDK needs Python 3.11", exc_type=ImportError)

    assert {level: shade.grafana for level, shade in colors.LEVELS.items()} == kit.LEVEL_COLOURS


def test_a_terminal_has_as_many_lines_and_no_two_alike() -> None:
    assert len(colors.TERMINAL_LINES) == len(colors.LINES) == len(set(colors.TERMINAL_LINES))
