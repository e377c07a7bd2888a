"""The search for faults that no test sees finds one, and none where a test looks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.__main__ import main
from tests.faults.hunt import tests_of as files_of  # pytest takes what is called test for one
from tests.faults.plant import places, planted

MODULE = '''
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    UNUSED = 1

LIMIT: "list[3]" = 60


def level(value: float, calm: bool = True) -> str:
    """Return how bad 5 of 7 is."""
    if not calm:
        return "unknown"
    return "bad" if value > LIMIT else "good"


def untested(value):
    return [one for one in value if one]
'''
TESTS = """
from tiny.watch import level

def test_it_is_bad_above_the_limit():
    assert (level(59), level(61), level(1, calm=False)) == ("good", "bad", "unknown")

def test_that_fails_without_any_fault_sees_none():
    assert level(0) == "worse"
"""


def test_only_comparisons_numbers_and_conditions_are_mutated() -> None:
    changes = [planted(MODULE, number) for number in range(len(places(MODULE)))]

    assert [(one.line, one.change) for one in changes] == [
        (7, "60  ->  120"),
        (12, "not calm  ->  not not calm"),
        (14, "value > LIMIT  ->  value < LIMIT"),
        (18, "one  ->  not one"),
    ]
    assert "LIMIT: 'list[3]' = 120" in changes[0].source
    assert "if value > LIMIT" in changes[0].source


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # the house's take two seconds each time
    for name, text in {"tiny/__init__.py": "", "tiny/watch.py": MODULE, "tests/test_watch.py": TESTS}.items():
        file = tmp_path / "repository" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    (tmp_path / "repository/pytest.ini").write_text("[pytest]\nmarkers =\n    vm\n")
    return tmp_path / "repository"


@pytest.mark.slow
def test_a_fault_that_no_test_notices_is_named(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["--root", str(repository), "--package", "tiny", "--jobs", "2", "--share", "76"])
    *lines, sum_ = capsys.readouterr().out.splitlines()

    assert [" ".join(line.split()[:-2]) for line in lines] == [
        "seen tiny/watch.py:7 60 -> 120 tests/test_watch.py::test_it_is_bad_above_the_limit",
        "seen tiny/watch.py:12 not calm -> not not calm tests/test_watch.py::test_it_is_bad_above_the_limit",
        "seen tiny/watch.py:14 value > LIMIT -> value < LIMIT tests/test_watch.py::test_it_is_bad_above_the_limit",
        "NOT SEEN tiny/watch.py:18 one -> not one",
    ]
    assert sum_ == "3 of 4 faults were seen: 75 %"
    assert status == 1
    assert (repository / "tiny/watch.py").read_text() == MODULE


def test_the_same_seed_draws_the_same_faults(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    there = ("--root", str(repository), "--package", "tiny", "--minutes", "0")
    assert main([*there, "--sample", "2"]) == 0  # no time: none judged, none missed
    main([*there, "--minutes", "1", "--modules", "watch.py:14"])

    assert [line.split()[1] for line in capsys.readouterr().out.splitlines()] == ["of", "tiny/watch.py:14", "of"]


def test_a_modules_tests_are_in_its_folder_or_name_it() -> None:
    found = files_of(Path(__file__).parents[2], "wslgpud/risk/levels.py")

    assert found[0].startswith("tests/risk/")
    assert {"tests/test_verdict.py", "tests/risk/test_parts.py", "tests/stories/test_stories.py"} <= {*found}


def test_tests_naming_a_module_run_before_a_large_folder() -> None:
    found = files_of(Path(__file__).parents[2], "wslgpud/cli/stress.py")

    assert found.index("tests/stress/test_progress.py") < found.index("tests/live/test_app.py")


def test_what_is_called_like_a_module_comes_first() -> None:
    assert files_of(Path(__file__).parents[2], "wslgpud/cli/alerts.py")[0] == "tests/cli/test_alerts.py"
