"""The terminal's rendering of a status document."""

from __future__ import annotations

from typing import Any

from wslgpud.advise.live_sample import LiveSample
from wslgpud.cli.console import Console
from wslgpud.cli.live.screen import once


def print_status(document: dict[str, Any], console: Console | None = None) -> None:
    """Print all rows of a document of ``wslgpud.serve.status``."""
    look = LiveSample(0.0, document, {}, document["seen_by"], document.get("url", ""))
    (console or Console()).print(once(look))
