"""A program's input, output and end, seen without root's rights."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from wslgpud.security.run_as import Command, run


def shell(script: str) -> Command:
    return Command(["/bin/sh", "-c", script], dict(os.environ))


def test_a_program_gets_its_input_and_is_heard_on_both_outputs() -> None:
    assert run(shell("cat; echo no >&2; exit 3"), 120, text="in") == (3, "in", "no\n")
    assert run(shell("cat; pwd"), 120) == (0, "/\n", "")


def test_of_a_long_output_the_last_64_kib_are_kept() -> None:
    status, output, _ = run(shell("head -c 100000 /dev/zero | tr '\\0' y; echo end"), 120)

    assert (status, len(output), output[-5:]) == (0, 1 << 16, "yend\n")


def test_a_program_that_does_not_end_in_time_is_killed() -> None:
    with pytest.raises(TimeoutError, match="/bin/sh did not end within 0 s"):
        run(shell("sleep 600"), 0.1)


def test_a_script_is_handed_over_before_the_arguments(tmp_path: Path) -> None:
    script = tmp_path / "told.py"
    script.write_text("import sys; print(sys.argv[1:])")

    status, output, _ = run(Command([sys.executable, "a", "b"], dict(os.environ)), 120, script=script)
    assert (status, output) == (0, f"{[str(script), 'a', 'b']}\n")


def test_a_package_is_handed_over_with_its_modules(tmp_path: Path) -> None:
    package = tmp_path / "told"
    package.mkdir()
    (package / "words.py").write_text("WORDS = 'of another module'")
    (package / "__init__.py").write_text("from told.words import WORDS\ndef main():\n    print(WORDS)\n")

    assert run(Command([sys.executable], dict(os.environ)), 120, script=package)[:2] == (0, "of another module\n")
