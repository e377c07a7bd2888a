"""The runbook that alerts link to: one panel per rule, with the text of the runbooks in the repository."""

from __future__ import annotations

import re
import zlib
from pathlib import Path

from grafana_foundation_sdk.builders import text
from grafana_foundation_sdk.models.text import TextMode

from grafana.source.frame import dashboard
from wslgpud.alerts import rules

ROOT = Path(__file__).parent.parent.parent
PAGES = (rules.RUNBOOK, ROOT / "deploy/prometheus/RUNBOOK.md")


def sections() -> dict[str, str]:
    """Return the section of each rule, in Markdown, by its name."""
    # A link to a neighbouring file leads nowhere from here.
    return {
        rule: re.sub(r"\[([^]]+)\]\((?!http)[^)]+\)", r"\1", words)
        for page in PAGES
        for rule, words in rules.runbook(page=page).items()
    }


def runbook() -> str:
    """Return the dashboard."""
    panels = [
        text.Panel()
        .title(rule)
        .description(f"What to do about {rule}.")
        .mode(TextMode.MARKDOWN)
        .content(words)
        .id(zlib.crc32(rule.encode()) % 1_000_000)
        .span(12)
        .height(7)
        for rule, words in sections().items()
    ]
    return dashboard(
        "wslgpud-runbook",
        "wslgpud / Runbook",
        "What to do about each alert; alerts link here.",
        (("", panels),),
        chosen=[],
        refresh="",
        notes=False,
    )
