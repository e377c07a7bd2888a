"""Where links in alerts lead: the daemon's own runbook, offline and of its own version."""

from __future__ import annotations

import re

import pytest
from markdown_it import MarkdownIt

from tests.support.daemons import daemon
from tests.words.latin import latin_words
from wslgpud.alerts.rules import runbook
from wslgpud.serve.routes import paragraphs, runbook_page
from wslgpud.words import ENGLISH, LANGUAGES, Translator, translator


def page(translator: Translator) -> str:
    return runbook_page(translator).body.decode()


def test_every_rule_is_an_anchor_on_the_daemons_page(tmp_path) -> None:
    with daemon(tmp_path) as running:
        served = running.get("/runbook")
        chinese = running.get("/runbook?lang=zh")

    assert chinese == page(translator("zh"))
    for rule, text in runbook().items():
        assert f'<section id="{rule}" class="card"><h2>{rule}</h2><p>' in served
        assert f'href="#{rule}"' in served
        assert paragraphs(text) in served


def test_the_page_needs_no_script_and_fetches_nothing_outside() -> None:
    served = page(ENGLISH)

    assert not re.search(r'<script|style="|src=|<img|@import|url\(', served)
    assert set(re.findall(r'href="([a-z]+:)', served)) <= {"https:"}


def test_in_chinese_it_has_no_english_but_names_and_code() -> None:
    served = page(translator("zh"))
    text = re.sub(r"(?s)<code>.*?</code>|<[^>]+>", " ", served)

    assert 'lang="zh"' in served
    assert latin_words(text, (*runbook(), "device not ready", "batch size")) == []


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("rule", runbook())
def test_the_texts_come_out_as_markdown_means_them(rule: str, language: str) -> None:
    """What the page does not know of Markdown (lists, emphasis) must not be in the runbook."""
    text = runbook(translator(language))[rule]
    meant = MarkdownIt().render(text)
    here = re.sub(r'<a href="(?!https)[^"]*">(.*?)</a>', r"\1", meant).replace("</p>\n<p>", "</p><p>")

    assert paragraphs(text).replace("&#x27;", "'") == here.strip()


def test_a_text_cannot_smuggle_markup_into_the_page() -> None:
    evil = paragraphs('<script>x</script> `<b>` [<i>](https://x.example/"><u>) [no](javascript:alert)')

    assert not re.search(r"<(script|b|i|u)>", evil)
    assert "javascript" not in evil
