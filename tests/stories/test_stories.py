"""Whole stories with a real daemon: every surface says the same, and the truth of that moment."""

from __future__ import annotations

import json
import re
import socket
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest

from tests.stories import surfaces
from tests.stories.machine import MIB, START_WALL, Played, played
from tests.stories.scripts import STORIES, burst, leak_and_kill
from tests.words.latin import latin_words
from wslgpud.model import Level
from wslgpud.words import translator

TRAIN = "python3 train.py (pid 8932)"
#: what these machines call their own, sources as the configuration and metrics call them, terms of PyTorch
NAMES = (
    socket.gethostname(),
    "train.py",
    "cc1plus",
    "RTX 5070 Ti",
    "cgroups",
    "gpu",
    "kernel_log",
    "memory",
    "processes",
    "risk",
    "windows",
    "batch size",
    "gradient checkpointing",
    "gradient",
    "checkpointing",
    "kill",
    "command",
)

LEAK, THREE, STOPS, SPILL, LOST, SILENT, NO_LOG = STORIES
Teller = Callable[[str], Played]
each_story = pytest.mark.parametrize("story", STORIES)
in_each_language = pytest.mark.parametrize("code", ["en", "zh"])


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Played]]:
    """Return a story that has been told to its end, in English."""
    told: dict[str, Played] = {}
    with ExitStack() as stack:

        def tell(story: str) -> Played:
            if story not in told:
                tale = STORIES[story]()
                told[story] = stack.enter_context(played(tale.script, tmp_path_factory.mktemp("story")))
                told[story].until(tale.end)
            return told[story]

        yield tell


@in_each_language
@each_story
def test_every_surface_shows_the_same_level_message_and_culprit(story: str, code: str, tmp_path: Path) -> None:
    tale = STORIES[story]()
    with played(tale.script, tmp_path, language=code) as telling:
        for name, moment in tale.moments.items():
            telling.until(moment.second)
            said = surfaces.verdict(telling, code)
            assert said["level"] == moment.level, name
            for surface in surfaces.SURFACES:
                told = surface(telling, code)
                assert told.state == said["state"], f"{name}: {surface.__name__}"
                assert said.get("calm", said["headline"]) in told.text, f"{name}: {surface.__name__}"
                assert said.get("lost", {}).get("headline", "") in told.text, f"{name}: {surface.__name__}"
                assert said.get("who", "") in told.text, f"{name}: {surface.__name__}"
                assert code == "en" or latin_words(told.text, NAMES) == [], f"{name}: {surface.__name__}"
                assert_numbers_agree(told.text, code)
            if code == "en":
                assert_metrics_agree(telling)
            else:
                assert [text for text in surfaces.texts(telling) if latin_words(text, NAMES)] == [], name
        assert_messages_agree(telling)


#: time, rate and what is left in one sentence
_NUMBERS = {
    "en": r"in about (\d+) (s|min)\b[^;\n]*? \+([\d.]+) (.iB)/(s|min), ([\d.]+)(?: (.iB))? of [\d.]+ (.iB) left",
    "zh": r"约 (\d+) (秒|分钟)后耗尽[^；\n]*? \+([\d.]+) (.iB)/(秒|分钟)，剩 ([\d.]+)(?: (.iB))? / [\d.]+ (.iB)",
}
_SCALES = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "s": 1, "秒": 1, "min": 60, "分钟": 60}


def assert_numbers_agree(text: str, code: str) -> int:
    """What is left, divided by the rate, is the time within a tenth and half of what was rounded away."""
    found = re.findall(_NUMBERS[code], text)
    for time, of_time, rate, of_rate, per, left, of_left, of_whole in found:
        seconds, unit = int(time) * _SCALES[of_time], _SCALES[of_time]
        rest, speed = float(left) * _SCALES[of_left or of_whole], float(rate) * _SCALES[of_rate] / _SCALES[per]
        assert abs(rest / speed - seconds) <= 0.1 * seconds + 0.5 * unit, (time, of_time, rate, per, left)
        assert per in ("s", "秒") or seconds >= 120
    return len(found)


@in_each_language
def test_the_numbers_of_a_countdown_agree_each_second(code: str, tmp_path: Path) -> None:
    tale = leak_and_kill()
    with played(tale.script, tmp_path, language=code) as telling:
        telling.until(tale.end)
    told = [assert_numbers_agree(document["headline"], code) for document in telling.documents]

    assert sum(told) > 30


def assert_metrics_agree(telling: Played) -> None:
    """Metrics have the verdict, with the sentence of its last change."""
    level, labels = surfaces.metrics(telling)
    newest_first = [document["verdict"] for document in reversed(telling.documents)]

    def known(said: dict[str, Any]) -> dict[str, str]:
        return {key: said.get(key, "") for key in ("level", "subject", "cause", "who")}

    same = list(takewhile(lambda said: known(said) == known(newest_first[0]), newest_first))
    assert Level(level).label == newest_first[0]["level"]
    assert labels == {**known(newest_first[0]), "headline": same[-1]["headline"]}


def assert_messages_agree(telling: Played) -> None:
    """Sent messages agree with the change they report."""
    verdicts = {document["at"]: document["verdict"] for document in telling.documents}
    sent = telling.messages()
    assert sent
    for message in sent:
        said = verdicts[message["at"]]
        if said.get("subject") != message["resource"]:
            continue  # another trouble was worse at that moment
        kill = message["rule"] == "oom_kill"
        if not kill:  # how a kill left things is a message of its own, of the same moment
            assert message["level"] == said["level"]
            assert message["headline"].endswith(said["headline"]), "a reminder begins with 'Again'"
        if not kill or message["kind"] != "closed":  # that one has no further kill to tell of
            assert said.get("who", "") in f"{message['headline']} {message.get('who', '')}"
        if telling.language == "zh":
            told = " ".join(str(message.get(key, "")) for key in ("headline", "evidence", "advice", "who"))
            assert latin_words(told, NAMES) == []


@in_each_language
def test_the_live_screen_begins_with_verdict_and_culprit(code: str, tmp_path: Path) -> None:
    tale = leak_and_kill()
    with played(tale.script, tmp_path, language=code) as telling:
        telling.until(tale.moments["emergency"].second)
        said = surfaces.verdict(telling, code)
        first, *rest = surfaces.live(telling, code).splitlines()

    assert said["headline"] in first
    assert TRAIN in first
    assert [line.split()[1] for line in rest if line.startswith("▶")] == ["8932"]
    if code == "zh":
        assert latin_words("\n".join([first, *rest]), NAMES) == []


def test_a_live_countdown_outranks_a_kill_that_is_over(ended: Teller) -> None:
    document = ended(THREE).documents[65]

    assert document["verdict"]["subject"] == "cgroup:/build-b"
    assert "full in about 5 s" in document["headline"]
    over = next(i for i in document["incidents"] if i["resource"] == "cgroup:/build-a")
    assert over["level"] == "ok"
    assert over["headline"] == "cc1plus kernel101.cpp (pid 101) was killed 1 s ago; 2.0 of 2.0 GiB free again"


def test_after_a_kill_the_alarm_ends_and_names_the_victim(ended: Teller) -> None:
    documents = ended(LEAK).documents

    assert [document["level"] for document in documents[147:149]] == ["emergency", "ok"]
    assert {document["level"] for document in documents[148:]} == {"ok"}
    assert documents[171]["headline"] == f"{TRAIN} was killed 23 s ago; 3.0 of 3.0 GiB free again"
    assert {i["level"] for document in documents[148:] for i in document["incidents"]} == {"ok"}
    (killed,) = documents[171]["incidents"]
    assert killed["id"] == documents[171]["verdict"]["incident"]
    assert killed["headline"] == documents[171]["headline"]


def test_a_lost_job_comes_first_until_somebody_has_seen_it(tmp_path: Path) -> None:
    tale = leak_and_kill()
    with played(tale.script, tmp_path) as telling:
        telling.until(tale.end + 600)
        said = surfaces.verdict(telling, "en")
        at = translator("en").fact("_clock", START_WALL + tale.moments["killed"].second + 1)
        assert (said["level"], said["state"]) == ("ok", "killed")
        assert said["headline"].startswith("Memory is fine: ")
        assert said["lost"]["headline"] == f"{TRAIN} was killed for lack of memory at {at}, warned 34 s before"
        number = said["lost"]["incident"]
        done = surfaces.command(telling, "en", "alerts", "ack", str(number), "--state", str(telling.state))
        assert done.exit_code == 0, done.output
        telling.until(tale.end + 601)
        said = surfaces.verdict(telling, "en")

    assert (said["state"], "lost" in said) == ("ok", False)


def test_a_lost_job_is_seen_on_the_page(tmp_path: Path) -> None:
    tale = burst()
    with played(tale.script, tmp_path) as telling:
        telling.until(tale.end)
        number = surfaces.verdict(telling, "en")["lost"]["incident"]
        asked = urllib.request.Request(f"{telling.daemon.url}/api/v1/seen/{number}", method="POST")
        with urllib.request.urlopen(asked) as answer:
            assert json.load(answer) == {"seen": number}
        telling.until(tale.end + 1)
        said = surfaces.verdict(telling, "en")
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(asked)

    assert (said["state"], "lost" in said) == ("ok", False)


def test_a_kill_without_a_warning_is_reported_as_well(tmp_path: Path) -> None:
    with played(burst().script, tmp_path) as telling:
        telling.until(burst().end)
        said = surfaces.verdict(telling, "en")

    assert {document["level"] for document in telling.documents} == {"ok"}
    assert said["headline"] == f"{TRAIN} was killed 10 s ago; 3.0 of 3.0 GiB free again"


def test_kills_in_three_groups_are_three_incidents(ended: Teller) -> None:
    found = surfaces.ask(ended(THREE), "incidents")["incidents"]

    assert sorted(i["resource"] for i in found) == ["cgroup:/build-a", "cgroup:/build-b", "cgroup:/build-c"]
    for incident in found:
        assert re.fullmatch(r"killed \d\d:\d\d:\d\d, warned \d+ s before", incident["outcome"])
        assert incident["headline"].startswith("Killed for lack of memory: cc1plus kernel10")


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_groups_can_be_told_apart_on_a_narrow_terminal(columns: int, ended: Teller) -> None:
    telling = ended(THREE)
    screen = surfaces.command(telling, "en", "status", "--state", str(telling.state), columns=columns).stdout

    assert re.findall(r"^(?:cgroup )?(/build-\w) ", screen, re.MULTILINE) == ["/build-a", "/build-b", "/build-c"]


def test_without_the_kernel_log_the_victim_is_inferred(ended: Teller) -> None:
    telling = ended(NO_LOG)
    (incident,) = surfaces.ask(telling, "incidents")["incidents"]

    assert telling.documents[-1]["headline"].startswith(f"probably {TRAIN} was killed")
    assert incident["headline"] == f"Killed for lack of memory: probably {TRAIN}, 3.0 GiB"


def test_a_leak_that_stops_is_never_red_over_free_memory(ended: Teller) -> None:
    documents = ended(STOPS).documents
    (incident,) = surfaces.ask(ended(STOPS), "incidents")["incidents"]
    (group,) = (f for f in documents[165]["forecasts"] if f["resource"] == "cgroup:/train")

    assert {document["level"] for document in documents} == {"ok", "info", "warning"}
    assert documents[165]["headline"] == "cgroup /train has not grown for 38 s: 410 MiB of 3.0 GiB left"
    assert group["outlook"] == "steady"
    assert documents[250]["headline"] == "cgroup /train is no longer running out: 410 MiB of 3.0 GiB left"
    assert incident["outcome"] == "stopped by itself, 410 MiB of 3.0 GiB left"


def test_a_full_card_with_spill_names_the_spilled_bytes(ended: Teller) -> None:
    documents = ended(SPILL).documents
    full = next(n for n, document in enumerate(documents) if document["verdict"].get("cause") == "full")

    assert full <= 95, "as soon as Windows counts them"
    assert re.fullmatch(r"GPU 0 is full; \d+ MiB has spilled into Windows RAM: slow", documents[full]["headline"])
    assert {document["level"] for document in documents[full:150]} == {"warning"}
    assert documents[150]["headline"] == "GPU 0 is full; 3.0 GiB has spilled into Windows RAM: slow"
    assert documents[-1]["level"] == "critical", "so much of it for long is crawling"


def test_a_lost_card_is_named(ended: Teller) -> None:
    said = ended(LOST).documents[-1]["verdict"]

    assert (said["subject"], said["headline"]) == ("gpu0", "GPU 0 does not answer")


def test_a_silent_source_is_named_once_with_its_last_figures(ended: Teller) -> None:
    document = ended(SILENT).documents[100]
    (card,) = (f for f in document["forecasts"] if f["resource"] == "gpu0")
    (source,) = (s for s in document["sources"] if s["health"] != "ok")

    assert document["headline"] == "GPU 0: no reading for 71 s; 12 of 16 GiB were left"
    assert (source["name"], source["error"]) == ("gpu", "NVML did not answer within 9 s and was killed")
    assert card["age_seconds"] == 71
    (gone, incident) = surfaces.ask(ended(SILENT), "incidents")["incidents"]
    assert [one["rule"] for one in (gone, incident)] == ["gpu_driver_gone", "blind"]
    curves = surfaces.ask(ended(SILENT), f"incidents/{incident['id']}")["headroom"]
    assert [curve["resource"] for curve in curves] == ["gpu0", "ram"], "the cards are what a driver is about"


@each_story
def test_below_a_warning_no_time_to_full_is_given(story: str, ended: Teller) -> None:
    documents = ended(story).documents
    for earlier, document in zip(documents, documents[10:], strict=False):
        if document["level"] in {"ok", "info"}:
            assert "full in" not in document["headline"] or "At this rate" in document["headline"]
        left = {forecast["resource"]: forecast["headroom_bytes"] for forecast in earlier["forecasts"]}
        for now in document["forecasts"]:
            grown = left.get(now["resource"], now["headroom_bytes"]) - now["headroom_bytes"]
            assert now.get("outlook") != "steady" or grown < 190 * MIB, (document["at"], now)


def test_the_culprit_has_the_same_name_everywhere(ended: Teller) -> None:
    said = [document["verdict"] for document in ended(LEAK).documents]

    assert {verdict["who"] for verdict in said[73:]} == {TRAIN}
    assert {verdict["pid"] for verdict in said[73:148]} == {8932}


@in_each_language
def test_the_report_of_an_incident_tells_it_from_start_to_end(code: str, ended: Teller) -> None:
    telling = ended(LEAK)
    number = surfaces.ask(telling, "incidents", code)["incidents"][0]["id"]
    report = surfaces.ask(telling, f"incidents/{number}", code)
    state = ("--state", str(telling.state))
    screen = surfaces.command(telling, code, "incidents", str(number), *state, columns=100).output

    outcome = {"en": r"killed {}, warned 34 s before", "zh": r"{} 被终止，提前 34 秒告警"}[code]
    assert re.fullmatch(outcome.format(r"\d\d:\d\d:\d\d"), report["outcome"])
    assert report["outcome"] in screen
    assert report["headline"] in screen
    assert TRAIN in report["headline"]
    assert [growing["who"] for growing in report["growing"]] == [TRAIN]
    assert {step["resource"] for step in report["levels"]} == {"cgroup:/train"}
    steps = [step["level"] for step in report["levels"]]
    assert steps == ["info", "warning", "critical", "emergency", "critical", "ok"]
    if code == "zh":
        assert latin_words(screen, NAMES) == []


@in_each_language
def test_an_open_incident_is_shown_as_it_is_now(code: str, tmp_path: Path) -> None:
    with played(STORIES[STOPS]().script, tmp_path) as telling:
        state = "--state", str(telling.state)
        telling.until(170)
        said = surfaces.verdict(telling, code)
        number = said["incident"]
        for words in ("incidents",), ("incidents", str(number)):
            told = surfaces.command(telling, code, *words, *state).output
            assert said["headline"] in told
        assert re.search(r"(?m)^\d{4}-\d\d-\d\d [\d:]{8}  \S.*train\.py", told), "why, as of its last change"

        telling.until(300)
        report = surfaces.ask(telling, f"incidents/{number}", code)
        told = surfaces.command(telling, code, "incidents", str(number), *state).output
    assert report["false_alarm"]
    assert "advice" not in report
    assert said["headline"] not in told
