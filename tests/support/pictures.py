"""Terminal screens as pictures."""

from __future__ import annotations

import io
import re
from typing import Any

from rich.console import Console

from wslgpud.cli.screen import print_status

WIDTH = 100


def status_svg(document: dict[str, Any]) -> str:
    """Draw the status screen of a document (see ``wslgpud.status``) as SVG."""
    console = Console(record=True, width=WIDTH, highlight=False, file=io.StringIO(), force_terminal=True)
    print_status(document, console)
    svg = console.export_svg(title="wslgpud status", unique_id="wslgpud")
    # Rich fetches its font from elsewhere; a picture should not.
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)
    return re.sub(r"font-family: [^;]*;", "font-family: Fira Code, DejaVu Sans Mono, monospace;", svg)
