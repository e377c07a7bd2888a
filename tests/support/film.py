"""A terminal's story as one animated picture: scenes that follow each other, without a script."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from typing import Any
from xml.sax.saxutils import escape

from rich.console import Console
from rich.text import Text

COLUMNS = 100
#: how long a scene stays: a moment to look up, and the time to read its lines
FIRST_SECONDS, LINE_SECONDS = 2.0, 0.28
# Rich's own measures of a character.
_WIDTH, _LINE = 12.2, 24.4
_MARGIN, _HEAD = 24, 64
#: of a whole export only what is inside the window
_INSIDE = "<style>{styles}</style>{backgrounds}{matrix}"
_FRAME = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" role="img">
<title>{title}</title>
<style>
.lines {{ font: 20px Fira Code, DejaVu Sans Mono, monospace }}
.scene {{ opacity: 0; animation: {seconds:g}s step-end infinite }}
.caption {{ font: 600 22px system-ui, sans-serif; fill: #f4f4f4 }}
.count {{ font: 18px system-ui, sans-serif; fill: #9aa0a6; text-anchor: end }}
{timing}
@media (prefers-reduced-motion: reduce) {{ .scene {{ animation: none }} .s0 {{ opacity: 1 }} }}
</style>
<rect width="{width:g}" height="{height:g}" rx="10" fill="#1e2227"/>
<rect y="44" width="{width:g}" height="{below:g}" rx="10" fill="#14171a"/>
{scenes}
</svg>
"""


def film_svg(scenes: Sequence[Mapping[str, Any]], title: str) -> str:
    """Draw scenes: each has a ``caption`` and, as ``shown``, commands with their ``output`` (ANSI)."""
    screens = [_screen(scene["shown"]) for scene in scenes]
    lasts = [FIRST_SECONDS + LINE_SECONDS * len(lines) for lines in screens]
    rows = max(len(lines) for lines in screens)
    width, height = COLUMNS * _WIDTH + 2 * _MARGIN, _HEAD + rows * _LINE + _MARGIN
    timing, drawn, begin = [], [], 0.0
    for number, (scene, lines, seconds) in enumerate(zip(scenes, screens, lasts, strict=True)):
        end = begin + seconds
        timing.append(_timing(number, begin / sum(lasts) * 100, end / sum(lasts) * 100))
        drawn.append(
            f'<g class="scene s{number}">'
            f'<text class="caption" x="{_MARGIN}" y="30">{escape(scene["caption"])}</text>'
            f'<text class="count" x="{width - _MARGIN:g}" y="30">{number + 1} of {len(scenes)}</text>'
            f'<g class="lines" transform="translate({_MARGIN},{_HEAD})">{_draw(lines, f"s{number}")}</g></g>'
        )
        begin = end
    return _FRAME.format(
        width=width,
        height=height,
        below=height - 44,
        seconds=sum(lasts),
        title=escape(title),
        timing="\n".join(timing),
        scenes="\n".join(drawn),
    )


def _timing(number: int, begin: float, end: float) -> str:
    shown = f"{begin:.2f}% {{ opacity: 1 }} {end:.2f}% {{ opacity: 0 }}"
    before = "0% { opacity: 0 } " if begin else ""
    return f".s{number} {{ animation-name: k{number} }} @keyframes k{number} {{ {before}{shown} }}"


def _screen(shown: Sequence[Mapping[str, str]]) -> list[Text]:
    lines: list[Text] = []
    for one in shown:
        if lines:
            lines.append(Text())
        lines.append(Text.assemble(("# ", "green"), (one["command"], "bold")))
        lines += Text.from_ansi(one["output"]).split("\n", allow_blank=True)
    return lines


def _draw(lines: Sequence[Text], name: str) -> str:
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    for line in lines:
        console.print(line, overflow="ellipsis", no_wrap=True, highlight=False)
    drawn = console.export_svg(code_format=_INSIDE, unique_id=name)
    # Each line is cut to its own height, for characters that do not occur here: half of the bytes.
    return re.sub(r' clip-path="[^"]*"', "", drawn)
