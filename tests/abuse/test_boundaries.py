"""Edge cases of the outermost error handlers: the fitting remedy, and a terminal that lacks characters."""

from __future__ import annotations

import stat
import subprocess
import sys

import pytest
from wslgpud.security.provenance import Component, UntrustedProgram, owner


@pytest.mark.parametrize(("mode", "remedy"), [(0o757, "chmod o-w"), (0o775, "chmod g-w")])
def test_who_may_replace_a_program_is_named_with_the_bits_to_take_away(mode: int, remedy: str) -> None:
    with pytest.raises(UntrustedProgram, match=remedy):
        owner([Component("/opt/python", 1000, 1001, stat.S_IFREG | mode)], {})


def test_a_terminal_that_lacks_a_character_gets_a_question_mark_and_no_traceback() -> None:
    program = "from wslgpud.security import terminal; terminal.install(); print('━ ok')"
    done = subprocess.run(
        [sys.executable, "-c", program], env={"PYTHONIOENCODING": "ascii"}, capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stdout, done.stderr) == (0, "? ok\n", "")
