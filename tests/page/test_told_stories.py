"""Whole stories on the page of a real daemon: the banner is the verdict, in both languages and widths."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.page.conftest import Look
from tests.stories import surfaces
from tests.stories.machine import played
from tests.stories.scripts import STORIES
from tests.words.latin import latin_words
from wslgpud.words import translator

pytestmark = pytest.mark.xdist_group("browser")
NARROW = 390
NAMES = ("train.py", "kill", "python3", "NVIDIA GeForce RTX 5070 Ti", "batch size", "gradient checkpointing")
#: name of the button that is there while the page speaks the other language
BUTTONS = {"en": "English", "zh": "中文"}


def shows(page: Page, said: dict[str, Any], code: str) -> None:
    """See that the banner is the verdict, and that nothing stands out of the page."""
    level = translator(code).label("level", said["level"])
    lost = page.locator(".verdict.killed")
    if "lost" in said:
        expect(lost.locator("h1")).to_have_text(
            f"{translator(code).label('level', 'killed')}: {said['lost']['headline']}"
        )
        expect(lost.get_by_role("link").first).to_have_attribute("href", f"#/incidents/{said['lost']['incident']}")
    else:
        expect(lost).to_have_count(0)
    assert page.locator(".verdict").first.evaluate("e => e.classList.contains('killed')") == (said["state"] == "killed")
    verdict = page.locator(".verdict:not(.killed)")
    expect(verdict.locator("h1")).to_have_text(f"{level}: {said.get('calm', said['headline'])}")
    expect(verdict).to_have_class(re.compile(rf"\b{said['level']}\b"))
    expect(lost if "calm" in said else verdict).to_contain_text(said.get("who", ""))
    for sentence in re.split(r"(?<=[.]) |(?<=。)", said.get("advice", "")):  # the first alone is not folded
        expect(verdict).to_contain_text(sentence)
    if code == "zh":
        assert latin_words(page.locator("main").inner_text(), NAMES) == []
    width = page.viewport_size["width"] if page.viewport_size else 0
    assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("story", STORIES)
def test_the_banner_matches_the_daemons_verdict_at_every_moment(chromium: Browser, story: str, tmp_path: Path) -> None:
    tale = STORIES[story]()
    with played(tale.script, tmp_path) as telling:
        at = SimpleNamespace(url=telling.daemon.url)
        telling.until(0)
        looks = []
        for width in (1280, NARROW):
            context = chromium.new_context(viewport={"width": width, "height": 900}, locale="en-US")
            looks.append(Look(context.new_page(), at))
            looks[-1].go()
        for moment in tale.moments.values():
            telling.until(moment.second)
            for code in ("zh", "en"):
                for look in looks:
                    if look.page.locator("html").get_attribute("lang")[:2] != code:
                        look.page.get_by_role("button", name=BUTTONS[code]).click()
                    shows(look.page, surfaces.verdict(telling, code), code)
        for look in looks:
            assert look.complaints == []
            look.page.context.close()
