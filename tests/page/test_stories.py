"""Three groups that run out of memory, told by API and commands: one story each, in its own place."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from click.testing import CliRunner

from tests.page.stage import Stage
from tests.page.stories import CACHE, LOAD, TRAIN, three_groups
from tests.page.test_api import ask
from wslgpud.cli import app


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("stories")
    stage = Stage(folder, database=folder / "wslgpud.db")
    manager = three_groups(stage, folder)
    yield stage, folder
    manager.close(1)
    stage.close()


def listed(stage: Stage, **question: str) -> dict[str, dict[str, Any]]:
    found = ask(stage, "incidents", **question)[2]["incidents"]
    assert len({i["resource"] for i in found}) == len(found)
    return {i["resource"].removeprefix("cgroup:"): i for i in found}


def test_each_group_has_exactly_one_story_with_its_end(told: Any) -> None:
    found = listed(told[0])

    assert set(found) == {TRAIN, LOAD, CACHE}
    assert {group for group, one in found.items() if "killed" in one} == {LOAD, TRAIN}
    assert re.fullmatch(r"killed \d\d:\d\d:\d\d, warned \d+ s before", found[TRAIN]["outcome"])
    assert re.fullmatch(r"killed \d\d:\d\d:\d\d, not warned", found[LOAD]["outcome"])
    assert found[TRAIN]["headline"] == "Killed for lack of memory: python3 train.py (pid 8932), 2.9 GiB"
    assert found[TRAIN]["worst_level"] in {"critical", "emergency"}
    assert found[CACHE]["outcome"] == "still open" or "stopped by itself" in found[CACHE]["outcome"]


def test_a_report_covers_only_its_subject_and_its_forecast(told: Any) -> None:
    stage, _ = told
    number = listed(stage)[TRAIN]["id"]
    report = ask(stage, f"incidents/{number}")[2]

    assert report["headroom"][0]["resource"] == f"cgroup:{TRAIN}"
    assert {step["resource"] for step in report["levels"]} == {f"cgroup:{TRAIN}"}
    assert [(g["who"], g["pid"]) for g in report["growing"]] == [("python3 train.py (pid 8932)", 8932)]
    assert not any("9120" in event["text"] for event in report["events"]), "another group's kill"
    assert report["forecast"]["at"] == report["warned"] < report["killed"] == report["moment"]
    assert 0 < report["forecast"]["eta_seconds"]["middle"] < 4 * report["warned_seconds_before"]
    assert report["start"] < report["warned"]
    assert report["killed"] < report["end"]


def test_the_command_lists_incidents_and_draws_their_subject(told: Any) -> None:
    def run(*words: str) -> str:
        done = CliRunner().invoke(app, ["incidents", *words, "--state", str(told[1])], env={"COLUMNS": "120"})
        assert done.exit_code == 0, done.output
        return done.stdout

    head, *rows = run().splitlines()
    number = next(i["id"] for i in json.loads(run("--json")) if i["resource"] == f"cgroup:{TRAIN}")
    story = run(str(number))

    assert head.split() == ["ID", "when", "level", "subject", "story"]
    assert any(re.search(r"^ +killed \S+, warned \d+ s before *$", row) for row in rows)
    assert f"cgroup {TRAIN}: used of 3.0 GiB" in story
    assert re.search(r"Warned \d\d:\d\d:\d\d \^", story)
    assert re.search(r"Killed \d\d:\d\d:\d\d \^", story)
    assert "RAM: at least" in story
    assert LOAD not in story


def test_the_end_of_the_story_is_in_the_message_that_closes_it(told: Any) -> None:
    stage, _ = told
    rows = [t for _, t in stage.store.reader.transitions() if t.resource == f"cgroup:{TRAIN}"]
    over = next(row for row in rows if row.rule == "memory_exhaustion" and not row.new)

    assert re.fullmatch(
        r"python3 train\.py \(pid 8932\) was killed \d s ago; 2\.\d of 3\.0 GiB free again", str(over.message)
    )
