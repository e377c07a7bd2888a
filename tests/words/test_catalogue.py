"""Each catalogue is complete, and says nothing that the program does not say."""

from __future__ import annotations

import re

import polib
import pytest

from tests.words.catalogue import path_of, renewed, templates
from tests.words.latin import latin_words
from wslgpud.words import TRANSLATIONS

BLANK = re.compile(r"\{(\w+)\}")
#: what is typed as it is: values of options and settings, resources, commands named by their last word
VALUES = (
    "auto",
    "off",
    "ram",
    "vram",
    "gpu",
    "temperature",
    "info",
    "warning",
    "critical",
    "history",
    "alerts",
    "fit",
    "otlp",
    "job",
    "process",
    "name",
    "truth",
    "lora",
    "mixed",
    "yesterday",
    "now",
    "show",
)
#: terms and commands of several words
QUOTED = (
    "device not ready",
    "batch size",
    "gradient checkpointing",
    "JSON Lines",
    "kill -STOP",
    "sync;",
    "ulimit -n",
    "ulimit -u",
    "ulimit -v",
    "tr -d",
    "compact vdisk",
    "promtool tsdb create-blocks-from openmetrics",
    "CREATE SCHEMA AUTHORIZATION role",
)

pytestmark = pytest.mark.parametrize("language", TRANSLATIONS)


def test_everything_that_is_said_has_a_translation(language):
    catalogue = polib.pofile(str(path_of(language)))

    assert sorted(templates().keys() - {e.msgid for e in catalogue}) == []
    assert [e.msgid for e in catalogue.untranslated_entries()] == []


def test_the_catalogue_is_in_order_and_has_no_unused_entries(language):
    assert path_of(language).read_text() == str(renewed(language))


def test_a_translation_leaves_nothing_in_english_but_names(language):
    left = {
        entry.msgid: words
        for entry in polib.pofile(str(path_of(language)))
        if (words := latin_words(entry.msgstr or entry.msgstr_plural.get(0, ""), (*VALUES, *QUOTED)))
    }

    assert left == {}


def test_a_translation_quotes_what_its_template_quotes(language):
    """Commands, settings and links of the runbook."""
    quoted = re.compile(r"`[^`]+`|\]\([^)]+\)")

    assert [
        entry.msgid
        for entry in polib.pofile(str(path_of(language)))
        if sorted(quoted.findall(entry.msgid)) != sorted(quoted.findall(entry.msgstr))
    ] == []


def test_a_translation_has_the_blanks_of_its_template(language):
    wrong = [
        entry.msgid
        for entry in polib.pofile(str(path_of(language)))
        for text in (entry.msgstr, *entry.msgstr_plural.values())
        if text and set(BLANK.findall(text)) - set(BLANK.findall(entry.msgid))
    ]

    assert wrong == []
