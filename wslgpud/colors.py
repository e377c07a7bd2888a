"""The colours of plots, page, terminal and Grafana.

The page's stylesheets (``page.css`` and ``dark.css`` in ``serve/static``) repeat them; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from wslgpud.model import Level


class Shade(NamedTuple):
    """One meaning in each medium: a fill under dark text, Rich's name, Grafana's name."""

    fill: str
    terminal: str
    grafana: str


#: The same hue everywhere. Grafana's own names, because they suit its light and its dark theme.
LEVELS: Mapping[Level, Shade] = {
    Level.OK: Shade("", "green", "green"),
    Level.INFO: Shade("#dbe9f6", "blue", "blue"),
    Level.WARNING: Shade("#ffd97a", "yellow", "yellow"),
    Level.CRITICAL: Shade("#ff9d6e", "orange_red1", "orange"),
    Level.EMERGENCY: Shade("#e0524d", "bold white on red", "red"),
}
#: by the names that commands, API and page use
TERMINAL_LEVELS: Mapping[str, str] = {level.label: shade.terminal for level, shade in LEVELS.items()}
#: a job that was lost, until somebody has seen it: a greyer red than danger's, as it is over
TERMINAL_KILLED = "bold reverse indian_red"

#: how a stress run ended
TERMINAL_VERDICTS: Mapping[str, str] = {
    "passed": "green",
    "findings": "bold red",
    "left": "yellow",
    "skipped": "yellow",
    "failed": "red",
}


class Ink(NamedTuple):
    """Colour of a line or text on white, and on the dark page's background."""

    light: str
    dark: str


INKS: Mapping[str, Ink] = {
    "headroom": Ink("#1f3a5f", "#8fb7e8"),
    "eta": Ink("#8a2f8a", "#d98fd9"),
    "ink": Ink("#17202c", "#e4e9f1"),
    "dim": Ink("#566275", "#9aa7ba"),
    "link": Ink("#0f57a8", "#7fb8f8"),
    "good": Ink("#1d7148", "#5cc492"),
    "bad": Ink("#b3261e", "#ff8a80"),
    "killed": Ink("#8c3a3a", "#d79a94"),
    "warn": Ink("#8a5a00", "#e3b341"),
    "back": Ink("#f5f6f8", "#0f141b"),
    "card": Ink("#ffffff", "#171e28"),
    "rule": Ink("#dfe4eb", "#2a3443"),
}
#: lines of a chart, in order; distinguishable with red-green colour blindness
LINES: tuple[Ink, ...] = (
    Ink("#1f5a96", "#7ab0ec"),
    Ink("#c05f00", "#f0a04b"),
    Ink("#2c7a4b", "#6cc593"),
    Ink("#8a2f8a", "#d98fd9"),
    Ink("#b0323a", "#f28b8b"),
    Ink("#55708f", "#a6b8cf"),
    Ink("#7a6200", "#d8c25c"),
    Ink("#00797f", "#5fcdd2"),
)
#: the same order on a terminal, whose background is unknown
TERMINAL_LINES = ("bright_blue", "yellow", "green", "magenta", "red", "white", "bright_black", "cyan")
