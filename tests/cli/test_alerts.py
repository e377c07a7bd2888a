"""``wslgpud alerts``: open incidents, silences and how long they last, acknowledgements, and a trial of channels."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.page.stage import Stage, trace
from tests.support.daemons import saying
from wslgpud.alerts.manager import FILE, ControlFile
from wslgpud.alerts.rules import RULES
from wslgpud.cli import app
from wslgpud.model import Level, Transition
from wslgpud.serve.commands import alert_routes
from wslgpud.store import Store
from wslgpud.words import Message


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """A stopped daemon's state with one open incident, and its number."""
    state = tmp_path_factory.mktemp("state")
    stage = Stage(state, database=state / "wslgpud.db", name="here")
    stage.play(trace("h200/h200-slow_leak-1"), 110)
    (incident,) = stage.ledger.open.values()
    stage.close()
    return state, incident.id


@pytest.fixture
def state(played: tuple[Path, int]) -> Iterator[Path]:
    """The folder of a daemon that runs."""
    with daemon(played[0]):
        yield played[0]
    (played[0] / FILE).unlink(missing_ok=True)


@pytest.fixture
def number(played: tuple[Path, int]) -> int:
    return played[1]


class Now:
    """The time that a test may have changed."""

    def wall(self) -> float:
        return time.time()

    def mono(self) -> float:
        return time.monotonic()


@contextmanager
def daemon(state: Path, *incidents: dict[str, Any]) -> Iterator[None]:
    """A running daemon with these open incidents."""
    document = {"at": "2026-11-20T14:00:01+00:00", "incidents": incidents}
    with saying(state, document, *alert_routes(ControlFile(state), Now())):
        yield


def run(*words: str, columns: int = 200) -> Result:
    return CliRunner().invoke(app, ["alerts", *words], env={"COLUMNS": str(columns), "TZ": "UTC"})


def listed(state: Path) -> Any:
    return json.loads(run("list", "--json", "--state", str(state)).output)


def recorded(state: Path) -> Any:
    """Return the open incidents that only the history knows."""
    with daemon(state):
        return listed(state)["open"]


def silence(state: Path, *words: str) -> str:
    return run("silence", *words, "--state", str(state)).output


def test_an_open_incident_is_listed_and_can_be_acknowledged(state: Path, number: int) -> None:
    line = rf" *{number}  \w+  since \S.*  \S.*"
    assert re.fullmatch(line, run("list", "--state", str(state)).output.rstrip("\n"))
    assert [(i["id"], i["acknowledged"]) for i in listed(state)["open"]] == [(number, False)]

    done = run("ack", str(number), "--state", str(state))
    assert done.output.startswith(f"incident {number} is acknowledged: ")
    run("ack", str(number), "--state", str(state))
    assert run("list", "--state", str(state)).output.rstrip("\n").endswith("  (acknowledged)")
    assert [(i["id"], i["acknowledged"]) for i in listed(state)["open"]] == [(number, True)]
    assert ControlFile(state).now.acknowledged == (number,)


def test_an_unknown_incident_cannot_be_acknowledged(state: Path, number: int) -> None:
    done = run("ack", str(number + 1), "--state", str(state))

    assert done.exit_code == 2
    assert f"there is no incident {number + 1}" in str(done.exception) + done.output


def test_a_closed_incident_can_be_acknowledged(tmp_path: Path) -> None:
    with Store(tmp_path / "wslgpud.db") as store:
        steps = (Level.OK, Level.CRITICAL), (Level.CRITICAL, Level.OK)
        opened, closed = (
            store.outbox.record(Transition(time.time(), 2.0, "ram", "oom_kill", *step, Message("x")), {})
            for step in steps
        )

    with daemon(tmp_path):
        assert run("ack", str(opened), "--state", str(tmp_path)).exit_code == 0
    assert ControlFile(tmp_path).now.seen_id == closed


def test_without_a_daemon_a_silence_fails_and_says_the_remedy(tmp_path: Path) -> None:
    done = run("silence", "swap_thrash", "--state", str(tmp_path))

    assert done.exit_code == 2
    assert "no daemon runs in" in str(done.exception) + done.output
    assert "start it: wslgpud run" in str(done.exception) + done.output
    assert not any(tmp_path.iterdir())


def test_an_incident_a_full_disk_kept_out_of_history_is_listed(played: tuple[Path, int]) -> None:
    state, number = played
    (one,) = recorded(state)
    told = {"level": "warning", "headline": "told now"}
    with daemon(state, {**told, "id": number, "since": one["opened"]}, {**told, "id": 999, "since": one["opened"]}):
        both = listed(state)["open"]

    assert both[0] == one
    assert [(i["id"], i["opened"], i["headline"]) for i in both[1:]] == [(999, one["opened"], "told now")]


def test_people_see_incidents_live_and_programs_as_recorded(played: tuple[Path, int]) -> None:
    state, number = played
    (one,) = recorded(state)
    with daemon(state, {"id": number, "since": one["opened"], "headline": "told now"}):
        shown = run("show", str(number), "--state", str(state)).output
        listing = run("list", "--state", str(state)).output
        document = json.loads(run("show", str(number), "--json", "--state", str(state)).output)

    assert shown.startswith(f"Incident {number}: told now\n")
    assert listing.endswith("  told now\n")
    assert document["headline"] == one["headline"]


def test_nothing_open_is_said(tmp_path: Path) -> None:
    stage = Stage(tmp_path, database=tmp_path / "wslgpud.db", name="here")
    stage.close()

    with daemon(tmp_path):
        assert run("list", "--state", str(tmp_path)).output == "no open incidents\n"
    assert run("list", "--state", str(tmp_path)).stderr == "wslgpud: no daemon answers here: no warnings are sent\n"


def test_a_silence_lasts_as_long_as_asked_or_until_replaced(state: Path) -> None:
    assert silence(state, "swap_thrash") == "swap_thrash of *: silent for 60 min\n"
    assert silence(state, "*", "--for", "30min", "--resource", "gpu0") == "* of gpu0: silent for 30 min\n"
    assert silence(state, "swap_thrash", "--for", "2h") == "swap_thrash of *: silent for 2 h\n"
    found = {(s["rule"], s["resource"]): s["until_seconds"] for s in listed(state)["silences"]}

    assert found == {("*", "gpu0"): pytest.approx(1800, abs=60), ("swap_thrash", "*"): pytest.approx(7200, abs=60)}
    assert re.search(r"silenced until .*: swap_thrash of \*\n", run("list", "--state", str(state)).output)

    assert silence(state, "swap_thrash", "--for", "0") == "swap_thrash of *: no longer silenced\n"
    assert [s["rule"] for s in listed(state)["silences"]] == ["*"]


def test_a_silence_that_is_over_is_neither_listed_nor_kept(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    silence(state, "oom_kill", "--for", "1h")
    later = time.time() + 3601
    monkeypatch.setattr(time, "time", lambda: later)

    assert listed(state)["silences"] == []
    silence(state, "swap_thrash")
    assert [s.rule for s in ControlFile(state).now.silences] == ["swap_thrash"]


@pytest.mark.parametrize("words", [("silence", "no_rule"), ("explain", "no_rule")])
def test_an_unknown_rule_is_refused_with_those_there_are(words: tuple[str, ...]) -> None:
    done = run(*words)

    assert done.exit_code == 2
    assert "there is no rule no_rule; there are: " in str(done.exception) + done.output
    assert RULES[0].name in str(done.exception) + done.output


def test_one_rule_or_all_are_explained_in_lines_easy_to_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    one, every = run("explain", "oom_kill").output, run("explain").output

    assert one.splitlines()[0] == "oom_kill"
    assert not set(one.splitlines()) & {rule.name for rule in RULES if rule.name != "oom_kill"}
    assert {rule.name for rule in RULES} <= set(every.splitlines())
    assert 90 < max(map(len, every.splitlines())) <= 100
    assert max(map(len, run("explain", "oom_kill", columns=60).output.splitlines())) <= 60


def test_each_channel_is_tried_and_a_failure_sets_exit_status_1(tmp_path: Path) -> None:
    def tried(*command: str) -> Result:
        file = tmp_path / "wslgpud.toml"
        file.write_text(f'[alerts]\ncommand = {json.dumps(command)}\ndesktop = "off"\nwindows_toast = "off"\n')
        file.chmod(0o600)
        return run("test", "--config", str(file))

    good, bad = tried("/bin/cp", "/dev/stdin", str(tmp_path / "told")), tried("/bin/false")

    assert good.exit_code == 0
    assert re.search(r"^command +accepted it \(gets \w+ and worse\)$", good.output, re.MULTILINE)
    assert (tmp_path / "told").read_text()
    assert bad.exit_code == 1
    assert re.search(r"^command +failed: ", bad.output, re.MULTILINE)
