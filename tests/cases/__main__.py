"""Print what the product says of each case in a folder: ``python -m tests.cases [FOLDER]``.

The folder has one folder for each kind (``oom``, ``kernel``, ``proc``, ``nvml``, ``wslconfig``, ``wslconf``,
``prometheus``, ``fit``) with a file for each case. What is right is taken from ``cases.toml`` or, where there is none,
from the table of its ``README.md``; cases of ``cases.toml`` are judged, others are to be read.
"""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path

from tests.cases.answers import answer, kinds
from tests.cases.known import HERE, judged, known

_ROW = re.compile(r"^\| *([\w.-]+) *\|[^|]*\| *([^|]*?) *\|", re.MULTILINE)


def main(folder: Path) -> int:
    """Print the table; return how many cases that can be judged are wrong."""
    expected = known(folder)
    table = folder / "README.md"
    right = dict(_ROW.findall(table.read_text())) if table.exists() else {}
    wrong = total = 0
    for kind in kinds(folder):
        for case in sorted(path for path in (folder / kind).iterdir() if path.is_file()):
            name = case.name.partition(".")[0]
            with tempfile.TemporaryDirectory() as machine:
                said = answer(kind, case, Path(machine))
            verdict = judged(said, expected.get(f"{kind}/{case.name}"))
            total, wrong = total + 1, wrong + (verdict == "wrong")
            print(f"{verdict or 'read':5}  {kind}/{case.name}")
            if name in right or case.name in right:
                print(f"       right: {right.get(case.name, right.get(name))}")
            if verdict != "right":
                print("".join(f"       says:  {line}\n" for line in said.splitlines()), end="")
    print(f"{total} cases, {wrong} wrong")
    return wrong


if __name__ == "__main__":
    sys.exit(min(1, main(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE)))
