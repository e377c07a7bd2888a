"""The runbook: RUNBOOK.md, by the rule's name."""

from __future__ import annotations

import re
from pathlib import Path

from wslgpud.words import ENGLISH, Translator

PATH = Path(__file__).with_name("RUNBOOK.md")


def sections(translator: Translator = ENGLISH, page: Path = PATH) -> dict[str, str]:
    """Return the advice by rule, in order: Markdown, one line per paragraph, each a template of the catalogues."""
    _, *parts = re.split(r"^## (\w+)\n", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {
        name: "\n\n".join(translator.template(" ".join(part.split())) for part in text.strip().split("\n\n"))
        for name, text in zip(parts[::2], parts[1::2], strict=True)
    }
