"""An edge case of the outermost output: a terminal that lacks characters."""

from __future__ import annotations

import subprocess
import sys


def test_a_character_the_terminal_lacks_becomes_a_question_mark() -> None:
    program = "from wslgpud.security import redaction; redaction.install_boundary(); print('━ ok')"
    done = subprocess.run(
        [sys.executable, "-c", program], env={"PYTHONIOENCODING": "ascii"}, capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stdout, done.stderr) == (0, "? ok\n", "")
