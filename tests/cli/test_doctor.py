"""``wslgpud doctor``: when Python is started for torch, and what is checked and shown of it."""

from __future__ import annotations

from typing import Any

import pytest
from click.testing import CliRunner

from tests.page.stage import TRACES
from wslgpud.advise import doctor as doctors
from wslgpud.advise.doctor import checking
from wslgpud.advise.doctor.checking import CheckResult, State
from wslgpud.cli import app
from wslgpud.host import Host

RECORDED = ("--host-root", str(TRACES.parent / "hosts" / "no-gpu"))


def checked(*states: State) -> list[CheckResult]:
    return [CheckResult(f"id.{state}", f"title of {state}", state, "found", "why", "fix") for state in states]


class Checks:
    """In place of the checks: what they were given, and what they find."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *states: State) -> None:
        self.pythons: list[str] = []
        self.states: list[str | None] = []
        self.found = checked(*states)
        monkeypatch.setattr(doctors, "run", self.run)
        monkeypatch.setattr(checking, "ask", lambda python, *_: self.pythons.append(python))

    def run(self, _: Host, __: Any, ___: Any = None, state: str | None = None, **____: Any) -> list[CheckResult]:
        self.states.append(state)
        return self.found

    def typed(self, *words: str) -> tuple[int, list[str]]:
        done = CliRunner().invoke(app, ["doctor", *words], env={"COLUMNS": "100"})
        return done.exit_code, [line.rstrip() for line in done.output.splitlines()]


def test_torch_is_checked_only_on_this_machine_and_if_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    checks = Checks(monkeypatch)
    checks.typed("--python", "/a/python", "--state", "/s")
    checks.typed("--python", "/a/python", "--no-torch")
    checks.typed("--python", "/a/python", *RECORDED)

    checks.typed("--state", "/s")

    assert checks.pythons == ["/a/python", ""]
    assert checks.states == ["/s", None, None, "/s"]


def test_problems_and_notes_are_shown_in_full_the_rest_by_title(monkeypatch: pytest.MonkeyPatch) -> None:
    checks = Checks(monkeypatch, "not applicable", "could not tell", "good", "good", "note", "problem")
    problem = ["✗ title of problem: found", "  why", "  → fix", ""]
    note = ["! title of note: found", "  why", "  → fix", ""]

    assert checks.typed("--no-torch") == (
        1,
        [
            *problem,
            *note,
            "✓ good: title of good, title of good",
            "? could not tell: title of could not tell",
            "",
            "1 problem, 1 note. --all shows everything.",
        ],
    )
    assert checks.typed("--no-torch", "--all") == (
        1,
        [
            *problem,
            *note,
            "✓ title of good: found",
            "✓ title of good: found",
            "? title of could not tell: found",
            "· title of not applicable: found",
            "1 problem, 1 note.",
        ],
    )


@pytest.mark.parametrize(
    ("states", "status", "brief"),
    [
        (["good"], 0, []),
        (["note", "note"], 0, ["2 notes: "]),
        (["problem"], 1, ["✗ title of problem: found", "1 problem: "]),
    ],
)
def test_brief_output_has_a_line_per_problem_and_how_to_see_more(
    states: list[State], status: int, brief: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, lines = Checks(monkeypatch, *states).typed("--no-torch", "--brief")

    assert code == status
    assert [line.startswith(start) for line, start in zip(lines, brief, strict=True)] == [True] * len(brief)
    whole = Checks(monkeypatch, "good").typed("--no-torch")
    assert whole == (0, ["✓ good: title of good", "", "Nothing to fix. --all shows everything."])
