"""What alerts say: one line that fits, in the reader's language, whatever programs are called."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.alerts.ticks import START, oom_kill, transition
from wslgpud.alerts.jobs_that_fit import jobs_that_fit
from wslgpud.alerts.rules import RULES
from wslgpud.alerts.texts import HEADLINE_CHARACTERS, LANGUAGES, compose, language
from wslgpud.model import Forecast, Level, ProcessSample, Transition
from wslgpud.risk.wording import headline
from wslgpud.units import one_line

WARNING = Forecast(
    "ram", Level.WARNING, int(3.1 * 2**30), 24 << 30, 310 * 2**20 / 60, 120.0, 240.0, 420.0, {300: 0.7},
    "python train.py (pid 4121)", "", "growth", "process", 90.0,
)  # fmt: skip


def memory(forecast: Forecast, headline: str = "RAM full in ~4 min") -> Transition:
    return Transition(START, 1, "ram", "memory_exhaustion", Level.OK, forecast.level, headline, forecast)


def killed(victim: str) -> Transition:
    fields = oom_kill(victim).fields
    return Transition(
        START,
        1,
        "ram",
        "oom_kill",
        Level.OK,
        Level.CRITICAL,
        "",
        facts={**fields, "text": victim, "who": f"{victim} (pid 7)"},
    )


def test_a_memory_warning_in_chinese_says_what_when_and_who() -> None:
    text = compose(memory(WARNING), "zh")

    assert (
        text.headline
        == "内存 约 4 分钟后耗尽 (2-7)：python train.py (pid 4121) +310 MiB/分钟，剩 3.1 GiB / 24 GiB"
    )
    assert "正在增长：python train.py (pid 4121)" in text.evidence
    assert "5 分钟内耗尽的概率：70 %" in text.evidence


def test_the_english_first_line_is_the_risk_engines_own() -> None:
    text = compose(memory(WARNING))

    assert text.headline == "RAM full in ~4 min"
    assert text.evidence == (
        "Use of RAM has grown for 2 min. Growing: python train.py (pid 4121). "
        "Probability that it runs out within 5 min: 70 %."
    )


def test_a_command_that_came_to_more_before_is_told_of_by_its_peak_and_not_by_what_grows_now() -> None:
    forecast = replace(WARNING, cause="expected", eta_seconds=None, expected_peak_bytes=41 << 30)

    line = headline(forecast)
    assert line == "RAM may not suffice: python train.py (pid 4121) came to 41 GiB before, 3.1 GiB left of 24"
    assert (
        "python train.py (pid 4121) 以前曾达 41 GiB，剩 3.1 GiB" in compose(memory(forecast), "zh").headline
    )
    assert compose(memory(forecast)).advice.startswith("Free memory first, or start it smaller")


def test_the_end_of_an_incident_says_what_is_over() -> None:
    over = transition(9, Level.WARNING, Level.OK)

    assert compose(over).headline == "Over: memory running out (RAM)"
    assert compose(over, "zh").headline == "已结束：内存将耗尽 (内存)"


@pytest.mark.parametrize("tongue", LANGUAGES)
@given(victim=st.text(max_size=5000))
def test_the_first_line_is_one_line_of_at_most_90_characters(tongue: str, victim: str) -> None:
    for row in (
        killed(victim),
        memory(Forecast("cgroup:" + victim, Level.WARNING, 1, 2, who=victim), victim),
    ):
        text = compose(row, tongue)

        assert len(text.headline) <= HEADLINE_CHARACTERS
        assert len((text.headline + text.evidence).splitlines()) <= 1
        (text.headline + text.evidence + text.advice).encode()


@given(st.text())
def test_foreign_text_cannot_turn_the_line_or_the_terminal(text: str) -> None:
    assert not re.search(
        r"[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\u2028\u2029]", one_line(text)
    )


def compilers(*gigabytes: float) -> list[ProcessSample]:
    return [
        ProcessSample(n, 1, "cc1plus", int(size * 2**30), 0, command="/usr/lib/gcc/cc1plus -quiet x.cc")
        for n, size in enumerate(gigabytes)
    ]


def group(left: float, who: str = "8 x cc1plus") -> Forecast:
    return Forecast("ram", Level.WARNING, int(left * 2**30), 24 << 30, who=who, who_kind="group")


@pytest.mark.parametrize(
    ("forecast", "sizes", "fit"),
    [
        (group(1), (1.2, *(0.7,) * 7), 5),
        (group(0), (2.0, 2.0), 1),
        (group(0, "probably 3 x cc1plus"), (4.0, 1.0, 1.0), 1),
        (group(20), (1.0,) * 8, None),
        (group(1, "several: ld 40 %, cc1plus 30 %"), (1.0,) * 8, None),
        (group(1, "8 x ninja"), (1.0,) * 8, None),
        (WARNING, (1.0,) * 8, None),
    ],
    ids=["builds", "at least one", "probably", "all fit", "several", "others", "one process"],
)
def test_a_group_that_is_too_many_is_told_how_many_fit(
    forecast: Forecast, sizes: tuple[float, ...], fit: int | None
) -> None:
    assert jobs_that_fit(forecast, compilers(*sizes)) == fit


def test_the_number_stands_in_the_advice_in_every_language() -> None:
    row = replace(memory(group(1)), facts={"jobs": 5})

    assert compose(row).advice.startswith("Run fewer of them at once: about 5 fit here (MAX_JOBS=5 or -j5")
    assert "MAX_JOBS=5" in compose(row, "zh").advice
    assert "MAX_JOBS or -j" in compose(memory(group(1))).advice


def test_braces_in_a_name_are_only_braces() -> None:
    assert "{pid} {0}" in compose(killed("{pid} {0} {x.__class__}")).headline


def test_all_languages_have_the_same_rules_with_the_same_blanks() -> None:
    def blanks(sentences: tuple[str, ...]) -> list[set[str]]:
        return [set(re.findall(r"\{(\w+)\}", s)) for s in sentences]

    english, *others = LANGUAGES.values()
    assert set(english.rules) >= {rule.name for rule in RULES}
    for other in others:
        assert other.rules.keys() == english.rules.keys()
        assert other.memory.causes.keys() == english.memory.causes.keys()
        assert other.memory.advice.keys() == english.memory.advice.keys()
        for name, texts in other.rules.items():
            assert blanks(texts.headlines) == blanks(english.rules[name].headlines), name


@pytest.mark.parametrize(
    ("setting", "environ", "expected"),
    [
        ("zh", {}, "zh"),
        ("", {"LANG": "zh_CN.UTF-8"}, "zh"),
        ("", {"LC_ALL": "C", "LANG": "zh_CN.UTF-8"}, "en"),
        ("", {"LANG": "de_DE.UTF-8"}, "en"),
        ("en", {"LANG": "zh_CN.UTF-8"}, "en"),
    ],
)
def test_the_language_is_the_configurations_else_the_locales(
    setting: str, environ: dict[str, str], expected: str
) -> None:
    assert language(setting, environ) == expected
