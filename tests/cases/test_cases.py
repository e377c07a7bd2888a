"""Inputs from public bug reports get the answer that their threads ended with."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cases.__main__ import main
from tests.cases.answers import answer
from tests.cases.known import HERE, judged, known

CASES = known(HERE)
#: kinds whose answer takes a command a second or more, of which the quick tests have their own
SLOW = frozenset({"proc", "nvml", "wslconfig", "wslconf", "prometheus", "fit"})


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name.partition("/")[0] in SLOW)) for name in CASES]
)
def test_a_public_case_gets_its_right_answer(name: str, tmp_path: Path) -> None:
    said = answer(name.partition("/")[0], HERE / name, tmp_path)

    assert judged(said, CASES[name]) == "right", said


def test_every_case_has_a_source_and_every_file_a_case() -> None:
    files = {f"{path.parent.name}/{path.name}" for path in HERE.glob("*/*") if path.parent.name != "__pycache__"}

    assert files - {f"proc/{path.name}" for path in HERE.glob("proc/*.proc_*")} == {*CASES}
    assert all("/" in case["source"] for case in CASES.values())


def test_a_folder_of_unseen_cases_is_run_with_one_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "oom").mkdir()
    (tmp_path / "oom/u1").write_text("RuntimeError: CUDA out of memory.\n")
    (tmp_path / "oom/u2").write_text("RuntimeError: CUDA out of memory.\n")
    (tmp_path / "cases.toml").write_text('[oom]\nu1 = { source = "a/b#1", says = ["a disk is full"] }\n')
    (tmp_path / "README.md").write_text(
        "| case | public source | right |\n|---|---|---|\n| u2 | a/b#2 | VRAM ran out |\n"
    )

    assert main(tmp_path) == 1
    assert capsys.readouterr().out.splitlines() == [
        "wrong  oom/u1",
        "       says:  by its last lines: VRAM ran out: a smaller batch or a shorter context",
        "read   oom/u2",
        "       right: VRAM ran out",
        "       says:  by its last lines: VRAM ran out: a smaller batch or a shorter context",
        "2 cases, 1 wrong",
    ]
