"""What alerts say: one line that fits, true of this very moment, in the reader's language."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.alerts.ticks import START, fold, oom_kill, transition
from wslgpud.alerts.dispatcher import rendered
from wslgpud.alerts.messages import RULES as TEXTS
from wslgpud.alerts.messages import (
    Text,
    announcement,
    compose,
    end_facts,
    forecast_facts,
    jobs_that_fit,
    payload,
    text_now,
    with_victim,
)
from wslgpud.alerts.rules import KILLED_BEFORE, OTHERS, RULES
from wslgpud.model import Forecast, Level, ProcessSample, Transition
from wslgpud.risk import forecast_messages as of_risk
from wslgpud.risk.attribution import GROUP
from wslgpud.words import ENGLISH, HEADLINE_CHARACTERS, LANGUAGES, Message, MessageLike, say, translator
from wslgpud.words.units import one_line

CHINESE = translator("zh")
GIB = 1 << 30
WARNING = Forecast(
    "ram",
    Level.WARNING,
    int(3.1 * GIB),
    24 * GIB,
    310 * 2**20 / 60,
    120.0,
    240.0,
    420.0,
    {300: 0.7},
    "python train.py (pid 4121)",
    "growth",
    "process",
    4121,
    window_seconds=90.0,
)


def memory(forecast: Forecast, old: Level = Level.OK) -> Transition:
    return Transition(START, 1, "ram", "memory_exhaustion", old, forecast.level, forecast=forecast)


def killed(victim: str) -> Transition:
    fields = oom_kill(victim).fields
    return Transition(
        START, 1, "ram", "oom_kill", Level.OK, Level.CRITICAL, facts={**fields, "who": f"{victim} (pid 7)"}
    )


def said(row: Transition, text: Text | None = None, code: str = "en") -> dict[str, Any]:
    """Return the messages of a channel."""
    return rendered(payload(row, text or compose(row)), translator(code))


def test_a_memory_warning_is_complete_in_either_language() -> None:
    english, chinese = said(memory(WARNING)), said(memory(WARNING), code="zh")

    assert english["headline"] == (
        "RAM full in about 4 min (2-7): python train.py (pid 4121) +310 MiB/min, 3.1 of 24 GiB left"
    )
    assert english["evidence"] == (
        "RAM use has grown for 2 min. Growing: python train.py (pid 4121). "
        "Probability that it runs out within 5 min: 70 %."
    )
    assert chinese["headline"] == (
        "内存约 4 分钟后耗尽 (2-7)：python train.py (pid 4121) +310 MiB/分钟，剩 3.1 / 24 GiB"
    )
    assert chinese["evidence"] == (
        "内存的用量已持续增长 2 分钟。正在增长：python train.py (pid 4121)。5 分钟内耗尽的概率：70 %。"
    )


def test_an_open_incident_describes_the_present_not_its_start() -> None:
    row = memory(replace(WARNING, level=Level.CRITICAL))
    (incident,) = fold([(1, replace(row, message=compose(row).headline))])
    now = replace(WARNING, cause="paused", eta_seconds=None, window_seconds=96.0)

    assert str(text_now(incident, now).headline) == "RAM has not grown for 2 min: 3.1 of 24 GiB left"
    assert str(text_now(incident, now).advice).startswith("If it grows again, save your work")
    assert text_now(incident, None) == compose(row)


@pytest.mark.parametrize("first", ["memory_exhaustion", "oom_kill"])
def test_growth_that_goes_on_is_not_over_with_the_kill_before(first: str) -> None:
    rows = {"memory_exhaustion": memory(WARNING), "oom_kill": transition(5, Level.OK, Level.CRITICAL, rule="oom_kill")}
    begun = [rows.pop(first), *rows.values()]
    ended = transition(40, Level.CRITICAL, Level.OK, rule="oom_kill")
    (incident,) = fold(enumerate([*begun, ended], start=1))

    assert incident.closed_wall is None
    assert text_now(incident, WARNING) == compose(memory(WARNING))
    assert text_now(incident, None) == compose(memory(WARNING))


@pytest.mark.parametrize(
    ("left", "headline"),
    [(14 * GIB, "RAM is fine again: 14 of 24 GiB free"), (GIB, "RAM is no longer running out: 1.0 of 24 GiB left")],
)
def test_an_all_clear_says_what_is_true_now_and_advises_nothing(left: int, headline: str) -> None:
    text = compose(memory(replace(WARNING, level=Level.OK, headroom_bytes=left), Level.CRITICAL))

    assert (str(text.headline), text.evidence, str(text.advice)) == (headline, (), "")


def test_a_resolved_rule_says_what_works_again_or_is_over() -> None:
    def over(rule: str, resource: str = "gpu0", **facts: Any) -> str:
        row = Transition(START, 9, resource, rule, Level.WARNING, Level.OK, facts=facts)
        return str(compose(row).headline)

    assert over("gpu_driver_gone") == "The NVIDIA driver answers again"
    assert over("source_stale", "source:disk", error="late") == "Disk data is read again"
    assert over("vram_spill", unseen_seconds=3700.0) == (
        "Taken as over: VRAM spilling into RAM (GPU 0), not measured for 62 min"
    )
    assert over("oom_kill", "ram") == "Over: out-of-memory kill (RAM)"
    assert str(compose(transition(9, Level.WARNING, Level.OK)).headline) == "Over: memory running out (RAM)"


def test_every_rule_is_put_into_words() -> None:
    assert TEXTS.keys() == {rule.name for rule in RULES} | {*OTHERS, KILLED_BEFORE}
    for rule in RULES:
        text = TEXTS[rule.name]
        assert text["headline"]
        assert text["advice"]
        assert "over" in text or rule.momentary or rule.name == "store_damaged", rule.name


@pytest.mark.parametrize("code", LANGUAGES)
@given(victim=st.text(max_size=5000))
def test_the_first_line_is_one_line_of_at_most_90_characters(code: str, victim: str) -> None:
    for row in (killed(victim), memory(Forecast("cgroup:" + victim, Level.WARNING, 1, 2, who=victim))):
        text = said(row, code=code)

        assert len(text["headline"]) <= HEADLINE_CHARACTERS
        everything = "".join(text.get(name, "") for name in ("headline", "evidence", "advice"))
        assert len(everything.splitlines()) <= 1
        everything.encode()


def test_a_killed_programs_long_name_is_cut_but_figures_stay() -> None:
    who = "python3 a_training_run_with_a_name.py (pid 8932)"
    facts = {**oom_kill("python3", 8932).fields, "who": who, "died_wall": START}
    row = Transition(START, 1, "ram", "oom_kill", Level.OK, Level.CRITICAL, facts=facts)

    headline = said(row)["headline"]

    assert headline.startswith("Killed for lack of memory: python3 a_training_run_with_a_name.py, 5.0 GiB, at 20")
    assert len(headline) <= HEADLINE_CHARACTERS


@pytest.mark.parametrize(
    ("resource", "remedy"), [("cgroup:/train", "Raise the group's limit"), ("ram", "memory= and swap=")]
)
def test_a_kill_advises_on_what_was_used_up(resource: str, remedy: str) -> None:
    kill = oom_kill("python3", 8932)
    row = Transition(START, 1, resource, "oom_kill", Level.OK, Level.CRITICAL, facts=kill.fields)

    assert remedy in said(row)["advice"]


@given(st.text())
def test_foreign_text_cannot_turn_the_line_or_the_terminal(text: str) -> None:
    assert not re.search(r"[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\u2028\u2029]", one_line(text))


def compilers(*gigabytes: float) -> list[ProcessSample]:
    return [
        ProcessSample(n, 1, "cc1plus", int(size * 2**30), 0, command="/usr/lib/gcc/cc1plus -quiet x.cc")
        for n, size in enumerate(gigabytes)
    ]


def many(count: int, name: str) -> Message:
    return Message(GROUP, {"count": count, "name": name})


def group(left: float, who: MessageLike | None = None) -> Forecast:
    who = many(8, "cc1plus") if who is None else who
    return Forecast("ram", Level.WARNING, int(left * 2**30), 24 << 30, who=who, who_kind="group")


@pytest.mark.parametrize(
    ("forecast", "sizes", "fit"),
    [
        (group(1), (1.2, *(0.7,) * 7), 5),
        (group(0), (2.0, 2.0), 1),
        (group(0, say("probably {who}", who=many(3, "cc1plus"))), (4.0, 1.0, 1.0), 1),
        (group(20), (1.0,) * 8, None),
        (group(1, say("several: {parts}", parts=("ld 40 %", "cc1plus 30 %"))), (1.0,) * 8, None),
        (group(1, many(8, "ninja")), (1.0,) * 8, None),
        (WARNING, (1.0,) * 8, None),
    ],
    ids=["builds", "at least one", "probably", "all fit", "several", "others", "one process"],
)
def test_a_group_that_is_too_many_is_told_how_many_fit(
    forecast: Forecast, sizes: tuple[float, ...], fit: int | None
) -> None:
    assert jobs_that_fit(forecast, compilers(*sizes)) == fit


def test_the_number_stands_in_the_advice_in_every_language() -> None:
    advice = compose(replace(memory(group(1)), facts={"jobs": 5})).advice

    assert str(advice).startswith("Run fewer of them at once: about 5 fit here (MAX_JOBS=5 or -j5")
    assert "MAX_JOBS=5" in CHINESE.text(advice)
    assert "MAX_JOBS or -j" in str(compose(memory(group(1))).advice)


def test_braces_in_a_name_are_only_braces() -> None:
    assert "{pid} {0}" in ENGLISH.text(compose(killed("{pid} {0} {x.__class__}")).headline)


def test_forecast_facts_are_rounded_and_unknown_ones_are_none() -> None:
    forecast = replace(WARNING, probabilities={300: 0.70049}, eta_late_seconds=420.04, age_seconds=2.04)

    assert forecast_facts(forecast) == {
        "headroom_bytes": int(3.1 * GIB),
        "capacity_bytes": 24 * GIB,
        "capacity_learned": None,
        "rate_bytes_per_second": 310 * 2**20 / 60,
        "eta_seconds": {"early": 120.0, "middle": 240.0, "late": 420.0},
        "probability_within_seconds": {"300": 0.7},
        "who": "python train.py (pid 4121)",
        "expected_peak_bytes": None,
        "spilled_bytes": None,
        "reason": of_risk.reason(forecast),
        "age_seconds": 2.0,
    }
    bare = forecast_facts(Forecast("ram", Level.OK, 1, 2))
    assert {name for name, value in bare.items() if value is not None} == {"headroom_bytes", "capacity_bytes"}


def test_a_kill_forecast_names_the_victim_as_far_as_known() -> None:
    forecast = replace(WARNING, cause="killed")

    def named(**facts: Any) -> str:
        row = Transition(START, 1, "ram", "oom_kill", Level.OK, Level.CRITICAL, facts=facts)
        return str(with_victim(forecast, row).who)

    assert named(who="ld (pid 9)") == "ld (pid 9)"
    assert named(likely="ld (pid 9)") == "probably ld (pid 9)"
    assert named() == str(with_victim(forecast, None).who) == "python train.py (pid 4121)"
    assert with_victim(WARNING, killed("ld")) == WARNING


@pytest.mark.parametrize(("left", "end"), [(13, "freed"), (12, "stopped")])
def test_memory_is_given_back_once_8_percent_more_are_free(left: int, end: str) -> None:
    rows = [
        Transition(START + t, t, "ram", "memory_exhaustion", old, new, forecast=Forecast("ram", new, gib, 100))
        for t, (old, new, gib) in enumerate(
            [(Level.OK, Level.WARNING, 20), (Level.WARNING, Level.CRITICAL, 5), (Level.CRITICAL, Level.OK, left)]
        )
    ]
    (incident,) = fold(enumerate(rows[:2]))

    assert end_facts(incident, rows[2], []) == {"end": end, "room_bytes": (left, 100)}
    assert end_facts(incident, replace(rows[2], forecast=None), []) == {}
    (killed_of,) = fold(enumerate([*rows[:2], killed("ld")]))
    assert end_facts(killed_of, rows[2], []) == {}


def test_a_resolved_exhaustion_says_over_despite_the_forecast() -> None:
    row = replace(memory(WARNING, Level.WARNING), new=Level.OK)

    assert str(compose(row).headline) == "Over: memory running out (RAM)"
    assert str(compose(row).advice) == ""


def test_a_warning_that_returns_begins_with_again_if_it_fits() -> None:
    def headline(name: str) -> str:
        row = memory(replace(WARNING, who=f"{name} (pid 4121)"))
        return str(rendered(announcement(row, None, (), returns=True, host="")[1], ENGLISH)["headline"])

    most = HEADLINE_CHARACTERS - len(headline("")) - 1
    assert headline(" " + "x" * most).startswith("Again: RAM full in about 4 min (2-7): ")
    assert len(headline(" " + "x" * most)) == HEADLINE_CHARACTERS
    assert headline(" " + "x" * (most + 1)).startswith("RAM full in about 4 min (2-7): ")
