"""Terminal screens as pictures."""

from __future__ import annotations

import io
import re
from typing import Any

from tests.support.screens import print_status
from wslgpud.advise.live_sample import CurveKey, LiveSample, RecentSeries
from wslgpud.cli.console import Console
from wslgpud.cli.live.screen import Screen

WIDTH = 100
MONITOR_SIZE = (116, 30)


def status_svg(document: dict[str, Any]) -> str:
    """Draw the status screen of a document (see ``wslgpud.serve.status``) as SVG."""
    console = _console(WIDTH)
    print_status(document, console)
    return svg_of(console, "wslgpud status")


def monitor_svg(saved: dict[str, Any]) -> str:
    """Draw the live view of what ``saved_monitor`` kept as SVG."""
    look = LiveSample(saved["mono"], saved["document"], saved["values"], "daemon", saved["where"])
    trail = RecentSeries()
    for what, which, points in saved["curves"]:
        trail.seed(CurveKey(what, which), points)
    console = _console(MONITOR_SIZE[0])
    console.print(Screen(look, trail, height=MONITOR_SIZE[1]))
    return svg_of(console, "wslgpud monitor")


def saved_monitor(look: LiveSample, trail: RecentSeries) -> dict[str, Any]:
    """Return the contents of the live view in a JSON-compatible form."""
    return {
        "mono": look.mono,
        "document": look.document,
        "values": look.values,
        "where": look.where,
        "curves": [[*key, [(round(t, 2), round(v, 4)) for t, v in trail.points(key)]] for key in trail.known()],
    }


def _console(width: int) -> Console:
    return Console(record=True, width=width, file=io.StringIO(), force_terminal=True)


def svg_of(console: Console, title: str) -> str:
    """Return a recording console's contents as SVG, without external fonts."""
    svg = console.export_svg(title=title, unique_id="wslgpud")
    # Rich fetches its font from elsewhere; a picture should not.
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)
    return re.sub(r"font-family: [^;]*;", "font-family: Fira Code, DejaVu Sans Mono, monospace;", svg)
