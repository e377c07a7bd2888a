"""What to do at length about each rule: RUNBOOK.md, by the rule's name."""

from __future__ import annotations

import re
from pathlib import Path

PATH = Path(__file__).with_name("RUNBOOK.md")


def sections(page: Path = PATH) -> dict[str, str]:
    """Return the paragraphs of a runbook by rule, in their order."""
    _, *parts = re.split(r"^## (\w+)\n", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {name: text.strip() for name, text in zip(parts[::2], parts[1::2], strict=True)}


def command(rule: str) -> str:
    """Return what shows a rule's paragraph, for messages: it works offline and fits the version."""
    return f"wslgpud alerts explain {rule}"
