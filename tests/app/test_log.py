"""Each line of the log has the priority in the journal that its level promises."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator

import pytest

from wslgpud.app import process

#: syslog(3), as sd-daemon(3) has it in front of a line
PRIORITIES = {"debug": 7, "info": 6, "warning": 4, "error": 3, "critical": 2}


@pytest.fixture(autouse=True)
def _the_log_stays_as_it_was() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.mark.parametrize(("level", "priority"), PRIORITIES.items())
def test_a_journal_line_begins_with_the_priority_of_its_level(
    level: str, priority: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(process, "is_in_journal", lambda _: True)
    process.log_from("debug")
    getattr(logging.getLogger("wslgpud"), level)("the disk is full")

    assert capsys.readouterr().err == f"<{priority}>the disk is full\n"
    assert process.journal_prefix(logging.getLevelName(level.upper())) == f"<{priority}>"


def test_a_level_only_another_library_knows_counts_as_info(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(process, "is_in_journal", lambda _: True)
    process.log_from("info")
    logging.getLogger("theirs").log(25, "progress")

    assert capsys.readouterr().err == "<6>progress\n"


def test_every_line_of_a_traceback_carries_its_priority(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(process, "is_in_journal", lambda _: True)
    process.log_from("info")
    try:
        int("no number")
    except ValueError:
        logging.getLogger("wslgpud").exception("a bug")

    lines = capsys.readouterr().err.splitlines()
    assert len(lines) > 3
    assert all(line.startswith("<3>") for line in lines)


def test_on_a_terminal_a_line_has_its_time_and_level(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(process, "is_in_journal", lambda _: False)
    process.log_from("warning")
    ours = logging.getLogger("wslgpud")
    ours.info("calm")
    ours.warning("a line\nand another")

    (line,) = capsys.readouterr().err.splitlines()
    assert line[8:].startswith(" WARNING ")
    assert process.journal_prefix(logging.WARNING) == ""


def test_a_daemon_in_a_terminal_prints_its_warnings_there() -> None:
    stream = os.fstat(2)

    assert process.is_in_journal({"JOURNAL_STREAM": f"{stream.st_dev}:{stream.st_ino}"})
    assert not process.is_in_journal({"JOURNAL_STREAM": "1:2"})
    assert not process.is_in_journal({})
