"""A message is a template with facts; a language words both."""

from __future__ import annotations

import json
import re
from datetime import datetime

import pytest

from wslgpud.model import Event
from wslgpud.words import (
    BLANK,
    ENGLISH,
    TEMPLATES,
    Message,
    all_of,
    chosen,
    clauses,
    filled,
    from_json,
    from_text,
    say,
    says,
    sentences,
    to_json,
    to_text,
    translations,
    translator,
    without_unknown,
)
from wslgpud.words.units import one_line

CHINESE = translator("zh")


@pytest.mark.parametrize(
    ("name", "value", "english", "chinese"),
    [
        ("left_bytes", 3 << 30, "3.0 GiB", "3.0 GiB"),
        ("left_bytes", 512 << 10, "512 KiB", "512 KiB"),
        ("left_bytes", (1 << 20) - 513, "1023 KiB", "1023 KiB"),
        ("left_bytes", (1 << 20) - 512, "1 MiB", "1 MiB"),
        ("left_bytes", 1 << 40, "1.0 TiB", "1.0 TiB"),
        ("room_bytes", (3 << 30, 24 << 30), "3.0 of 24 GiB", "3.0 / 24 GiB"),
        ("room_bytes", (724 << 20, 24 << 30), "724 MiB of 24 GiB", "724 MiB / 24 GiB"),
        ("urgent_bytes_per_second", (310 << 20) / 60, "+5.2 MiB/s", "+5.2 MiB/秒"),
        ("urgent_bytes_per_second", 20 << 20, "+20 MiB/s", "+20 MiB/秒"),
        ("urgent_bytes_per_second", 20 << 10, "+20 KiB/s", "+20 KiB/秒"),
        ("rate_bytes_per_second", (310 << 20) / 60, "+310 MiB/min", "+310 MiB/分钟"),
        ("rate_bytes_per_second", -(1 << 30), "\N{MINUS SIGN}1.0 GiB/s", "\N{MINUS SIGN}1.0 GiB/秒"),
        ("rate_bytes_per_second", 0.5, "+0 KiB/min", "+0 KiB/分钟"),
        ("rate_bytes_per_second", (50 << 20) - 1, "+2.9 GiB/min", "+2.9 GiB/分钟"),
        ("rate_bytes_per_second", 50 << 20, "+50 MiB/s", "+50 MiB/秒"),
        ("eta_seconds", 0.2, "1 s", "1 秒"),
        ("eta_seconds", 43.2, "43 s", "43 秒"),
        ("eta_seconds", 240, "4 min", "4 分钟"),
        ("eta_seconds", 7200, "2 h", "2 小时"),
        ("eta_seconds", 129_599, "36 h", "36 小时"),
        ("eta_seconds", 129_600, "2 d", "2 天"),
        ("eta_seconds", 5 * 86400, "5 d", "5 天"),
        ("used_ratio", 0.984, "98 %", "98 %"),
        ("count", 3, "3", "3"),
        ("pid", 4_194_304, "4194304", "4194304"),
        ("level", 2.0, "2", "2"),
        ("resource", "ram", "RAM", "内存"),
        ("resource", "gpu0", "GPU 0", "GPU 0"),
        ("resource", "gpu", "GPU", "GPU"),
        ("resource", "gpu 0000:01:00", "GPU 0000:01:00", "GPU 0000:01:00"),
        ("resource", "daemon", "daemon", "守护进程"),
        ("resource", "cgroup:/build", "cgroup /build", "cgroup /build"),
        ("resource", f"cgroup:/{'a' * 23}", f"cgroup /{'a' * 23}", f"cgroup /{'a' * 23}"),
        ("resource", f"cgroup:/{'a' * 24}", f"cgroup …{'a' * 23}", f"cgroup …{'a' * 23}"),
        ("resource", "disk:/mnt/c", "disk /mnt/c", "磁盘 /mnt/c"),
        ("name", "train\x1b[2J.py\n", "train [2J.py", "train [2J.py"),
        ("name", "x" * 200, "x" * 200, "x" * 200),
        ("name", "x" * 201, f"{'x' * 199}…", f"{'x' * 199}…"),
        ("names", ("a", "b", "c"), "a, b, c", "a、b、c"),
        ("who", say("cgroup {path}", path="/x"), "cgroup /x", "cgroup /x"),
    ],
)
def test_a_fact_is_written_by_the_unit_in_its_name(name, value, english, chinese):
    assert (ENGLISH.fact(name, value), CHINESE.fact(name, value)) == (english, chinese)


def test_a_message_reads_in_each_language_and_as_a_log_line():
    message = say("{amount}/min", amount="3 GiB")

    assert str(message) == ENGLISH.text(message) == "3 GiB/min"
    assert CHINESE.text(message) == "3 GiB/分钟"


def test_a_count_of_one_has_words_of_its_own():
    assert [str(says("{count} kill", "{count} kills", count=n)) for n in (0, 1, 2)] == ["0 kills", "1 kill", "2 kills"]


def test_a_fact_that_looks_like_a_template_is_no_template():
    message = say("{first} {rest}", first="{rest}", rest="{first}")

    assert str(message) == "{rest} {first}"


@pytest.mark.parametrize(
    "said", ["train.py", say("RAM"), says("a", "b", count=2), say("x {y} {z}", y=say("{n}", n=1.5), z=("a", say("b")))]
)
def test_messages_pass_through_json_as_they_are(said):
    assert from_json(json.loads(json.dumps(to_json(said)))) == said


@pytest.mark.parametrize(
    "said", ["no route", '{"template": 3}', '{"template": ', say("cannot be reached: {why}", why=say("RAM"))]
)
def test_messages_pass_through_a_column_of_text(said):
    assert from_text(to_text(said)) == said


@pytest.mark.parametrize("document", [None, 3, [], {"facts": {}}, {"template": 1}])
def test_what_is_no_message_is_refused(document):
    with pytest.raises(ValueError, match="not a message"):
        from_json(document)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1.1e18", "-1.1e18", "1" + "0" * 400])
def test_a_number_that_no_machine_has_is_no_fact(number):
    text = f'{{"template": "{{eta_seconds}}", "facts": {{"eta_seconds": {number}}}}}'

    assert from_text(text) == text


@pytest.mark.parametrize("name", ["x_bytes", "x_bytes_per_second", "x_seconds", "x_ratio", "x_wall", "x_clock", "x"])
@pytest.mark.parametrize("number", [1e18, -1e18, 10**18])
def test_every_number_that_is_a_fact_can_be_shown(name, number):
    said = from_json({"template": f"{{{name}}}", "facts": {name: number}})

    assert CHINESE.text(said)


@pytest.mark.parametrize(("wall", "shown"), [(-5.0, 0.0), (0.0, 0.0), (1e11, 1e11), (2e11, 1e11)])
def test_a_moment_is_shown_from_1970_to_the_year_5138(wall, shown):
    date = datetime.fromtimestamp(shown).astimezone()

    assert (
        ENGLISH.text(say("{x_wall}, {x_clock}", x_wall=wall, x_clock=wall))
        == f"{date:%Y-%m-%d %H:%M:%S}, {date:%H:%M:%S}"
    )


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0.0, "1 s"),
        (-89.9, "90 s"),
        (90.0, "2 min"),
        (5399.0, "90 min"),
        (5400.0, "2 h"),
        (129_599.0, "36 h"),
        (129_600.0, "2 d"),
        (1e18, "11574074074074 d"),
    ],
)
def test_a_duration_is_told_in_the_unit_that_suits_it(seconds, shown):
    assert ENGLISH.duration(seconds) == shown


def test_translations_are_those_of_the_files_that_are_asked_for():
    whole, of_the_page = translations("zh"), translations("zh", "serve/static/")

    assert (translations("en"), translator("en")) == ({}, ENGLISH)
    assert whole["and {count} more is open"] == "另有 {count} 个未结束的事件"
    assert of_the_page["Overview"] == whole["Overview"] == "总览"
    assert "and {count} more is open" not in of_the_page
    with pytest.raises(KeyError):
        translations("fr")


@pytest.mark.parametrize(("blanks", "line"), [(7, "x"), (8, "")])
def test_of_a_long_text_no_more_than_four_times_a_line_is_read(blanks, line):
    assert one_line(" " * blanks + "x", 2) == line


def test_a_name_in_a_list_is_no_template():
    assert CHINESE.listed(["clock", "machine"]) == "clock、machine"


def test_sentences_and_lists_are_joined_as_the_language_does():
    parts = [say("RAM"), "", Message("clock")]

    joined = [join(parts) for join in (sentences, all_of, clauses)]
    assert list(map(ENGLISH.text, joined)) == ["RAM clock", "RAM, clock", "RAM; clock"]
    assert list(map(CHINESE.text, joined)) == ["内存时钟", "内存、时钟", "内存；时钟"]
    assert (sentences([""]), clauses(["", "x"])) == ("", "x")


@pytest.mark.parametrize(
    ("facts", "text"),
    [
        ({"who": "train.py", "at_clock": 0, "lead_seconds": 37.0}, "train.py was killed, warned 37 s before"),
        ({"who": "train.py", "count": 3}, "train.py (3 in all) was killed, not warned"),
        ({"count": 3}, "A process was killed, not warned"),
    ],
)
def test_what_is_not_known_is_left_out_or_said_otherwise(facts, text):
    template = "[{who}[ ({count} in all)]|A process] was killed, [warned {lead_seconds} before|not warned]"

    assert str(Message(template, facts)) == str(filled(template, facts)) == text


def test_brackets_around_no_placeholder_or_just_one_are_kept():
    assert str(say("memory= under [wsl2] or [{section}]", section="x")) == "memory= under [wsl2] or [x]"


@pytest.mark.parametrize("name", TEMPLATES["rule"])
def test_a_rule_is_worded_with_and_without_its_optional_facts(name: str) -> None:
    for part in ("headline", "evidence", "advice", "over"):
        text = TEMPLATES["rule"][name].get(part, "")
        whole, least = (without_unknown(text, known) for known in ({*BLANK.findall(text)}, ()))
        for worded in (whole, least):
            assert not re.search(r"\[[^\]]*\{|\}[^\[]*\]", worded), (part, worded)


def test_brackets_in_a_name_are_only_brackets():
    assert str(say("[{who}|nobody]", who="[a|{b}]")) == "[a|{b}]"


def test_deeply_nested_brackets_of_a_stranger_are_not_followed():
    deep = Message("[" * 50 + "{a}!" + "]" * 50, {"a": "x"})

    assert str(deep) == "[" * 46 + "x!" + "]" * 46


@pytest.mark.parametrize("kind", ["nvidia_xid", "dxg_error"])
def test_a_kernel_line_is_no_template_whatever_a_program_put_in(kind):
    line = "NVRM: Xid (PCI:0000:01:00): 79, pid=7, name=[{pid}|evil]"

    assert translator("zh").text(Event(kind, 0.0, line, {"pid": 7}).message) == line


def test_a_message_that_needs_an_unknown_fact_says_nothing():
    assert filled("{who} was killed[ at {place}]", {"who": ""}) == Message("")
    assert filled("[at {place}]", {}) == Message("")
    assert filled("{who} was killed[ at {place}]", {"who": "x", "other": 1}).facts == {"who": "x"}


def test_a_document_has_its_messages_in_words_and_omits_unknowns():
    long = say("{word}" * 800, word="word")
    document = {"headline": long, "text": long, "who": say("RAM"), "none": None, "no": Message("")}

    assert CHINESE.document({"a": [document], "b": (1, "c")}) == {
        "a": [{"headline": f"{'word' * 40:.99}…", "text": f"{'word' * 800:.2999}…", "who": "内存"}],
        "b": [1, "c"],
    }


@pytest.mark.parametrize(
    ("setting", "environ", "language"),
    [
        ("zh", {"LANG": "en_US.UTF-8"}, "zh"),
        ("auto", {"LANG": "zh_CN.UTF-8"}, "zh"),
        ("auto", {"LANG": "zh_CN.UTF-8", "LC_ALL": "C.UTF-8"}, "en"),
        ("auto", {}, "en"),
    ],
)
def test_the_language_is_the_configured_one_else_the_locales(setting, environ, language):
    assert chosen(setting, environ) == language
