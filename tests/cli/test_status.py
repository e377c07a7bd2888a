"""``wslgpud status`` for scripts and for people: one line and an exit status, one screen, or one line each time."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.support.daemons import saying
from tests.support.documents import calm
from wslgpud.advise.live_sample import LiveSample
from wslgpud.cli import app, status
from wslgpud.cli.live import feed as live_feed
from wslgpud.cli.live.feed import DaemonFeed, NotYet, feed_of
from wslgpud.client import SOCKET, DaemonClient, Unanswered

NOT_YET = {"url": "http://127.0.0.1:9655", "version": "1"}


class Answers:
    """A feed that gives one answer each time, and the pauses between them; Ctrl-C ends them."""

    def __init__(self, answer: LiveSample | Unanswered, times: int = 1) -> None:
        self.answer, self.left = answer, times
        self.pauses: list[float] = []
        self.closed = False

    def look(self) -> LiveSample:
        if isinstance(self.answer, Unanswered):
            raise self.answer
        return self.answer

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.left -= 1
        if not self.left:
            raise KeyboardInterrupt

    def past(self) -> Any:
        raise NotImplementedError

    def close(self) -> None:
        self.closed = True


def at_level(level: str, age_seconds: float = 0.0, **more: str) -> LiveSample:
    document = calm(verdict={"level": level, "headline": "RAM full in 43 s", **more})
    return LiveSample(0.0, document, {}, "daemon", "http://127.0.0.1:9655", None, age_seconds, 1.0)


def run(monkeypatch: pytest.MonkeyPatch, feed: Answers, *words: str) -> Result:
    monkeypatch.setattr(status, "feed_of", lambda *_: feed)
    monkeypatch.setattr(status.time, "sleep", feed.sleep)
    return CliRunner().invoke(app, ["status", *words], env={"COLUMNS": "120"})


@pytest.mark.parametrize(
    ("level", "exit_status"),
    [("ok", 0), ("info", 0), ("warning", 1), ("critical", 2), ("emergency", 2), ("unknown", 3)],
)
def test_check_prints_one_line_and_exits_by_the_level(
    monkeypatch: pytest.MonkeyPatch, level: str, exit_status: int
) -> None:
    done = run(monkeypatch, Answers(at_level(level, byline="train.py (pid 7)")), "--check")

    assert (done.exit_code, done.output) == (exit_status, f"{level.upper()} RAM full in 43 s · train.py (pid 7)\n")


@pytest.mark.parametrize(("age_seconds", "exit_status"), [(10.0, 1), (10.1, 3)])
def test_the_state_is_unknown_ten_seconds_after_the_last_sample(
    monkeypatch: pytest.MonkeyPatch, age_seconds: float, exit_status: int
) -> None:
    done = run(monkeypatch, Answers(at_level("warning", age_seconds)), "--check")

    assert done.exit_code == exit_status
    assert (done.output == "UNKNOWN the daemon answers but takes no samples\n") is (exit_status == 3)


def test_a_daemon_that_does_not_answer_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    done = run(monkeypatch, Answers(Unanswered("no answer from {url}", url="http://pc:9655")), "--check")

    assert (done.exit_code, done.output) == (3, "UNKNOWN no answer from http://pc:9655\n")


def test_a_bad_config_is_unknown_in_scripts_but_a_users_error(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text("[nonsense]\n")
    words = ["status", "--state", str(tmp_path), "--config", str(file)]
    reason = f"{file}: unknown section [nonsense]; see 'wslgpud config show' for all keys"
    told, asked = CliRunner().invoke(app, words), CliRunner().invoke(app, [*words, "--check"])

    assert (told.exit_code, reason in str(told.exception) + told.output) == (2, True)
    assert (asked.exit_code, asked.output) == (3, f"UNKNOWN {reason}\n")


def test_a_dead_daemons_socket_does_not_hide_the_services(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    own, service = tmp_path / "own", tmp_path / "service"
    own.mkdir()
    service.mkdir()
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(own / SOCKET))
    monkeypatch.setattr(live_feed, "daemon_folders", lambda _: [own, service])
    monkeypatch.setattr(DaemonFeed, "look", lambda _: at_level("ok"))
    with saying(service, {"url": "http://127.0.0.1:9655"}):
        answered = CliRunner().invoke(app, ["status", "--check"])
    silent = CliRunner().invoke(app, ["status", "--check"])

    assert (answered.exit_code, answered.stdout, answered.stderr) == (0, "OK RAM full in 43 s\n", "")
    assert (silent.exit_code, "UNKNOWN the daemon at" in silent.output) == (3, True)


def test_the_configuration_of_a_daemon_that_answers_is_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text("[nonsense]\n")
    daemon = DaemonClient("http://127.0.0.1:9655")
    monkeypatch.setattr(live_feed, "answering", lambda *_: (daemon, {}))

    with contextlib.closing(feed_of(file, None, None)) as found:
        assert isinstance(found, DaemonFeed)


def test_before_the_first_sample_people_and_programs_are_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    told = run(monkeypatch, Answers(NotYet(NOT_YET)))
    asked = run(monkeypatch, Answers(NotYet(NOT_YET)), "--json")
    silent = run(monkeypatch, Answers(Unanswered("silence")), "--json")

    assert told.output == "the daemon at http://127.0.0.1:9655 has just started and waits for its first sample\n"
    assert json.loads(asked.output) == NOT_YET
    assert json.loads(silent.output) == {}


def test_one_line_is_no_document(monkeypatch: pytest.MonkeyPatch) -> None:
    done = run(monkeypatch, Answers(at_level("ok")), "--check", "--json")

    assert done.exit_code == 2
    assert "--check prints one line: leave out --json" in str(done.exception) + done.output


@pytest.mark.parametrize(
    ("words", "terminals", "live"),
    [((), {0, 1}, True), ((), {0}, False), ((), {1}, False), (("--once",), {0, 1}, False)],
)
def test_monitor_is_live_only_with_a_keyboard_and_a_screen(
    words: tuple[str, ...], terminals: set[int], live: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[float] = []

    class Live:
        def __init__(self, _: Any, interval: float) -> None:
            begun.append(interval)

        def run(self) -> None:
            pass

    class Feed(Answers):
        def past(self) -> Any:
            return None

    feed = Feed(at_level("ok"))
    monkeypatch.setattr(status, "feed_of", lambda *_: feed)
    monkeypatch.setattr("wslgpud.cli.live.app.LiveApp", Live)
    monkeypatch.setattr(os, "isatty", lambda number: number in terminals)
    done = CliRunner().invoke(app, ["monitor", "--interval", "0.1s", *words], env={"COLUMNS": "100"})

    assert (begun, feed.closed) == ([0.2] * live, True), done.output
    assert ("RAM full in 43 s" in done.output) is not live
