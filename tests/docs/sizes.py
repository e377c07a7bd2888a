"""How large the code is: files and lines of code by folder, without blanks, comments and docstrings.

    python -m tests.docs.sizes [FOLDER]...

Default: each folder of the package, then the whole of it, of the tests, and of what generates the dashboards.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
WHOLE = ("wslgpud", "tests", "grafana")
_NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def code_lines(source: str) -> int:
    """Return the lines of a module that hold code; SyntaxError where it is not Python."""
    documented: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            documented.update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    lines = (range(t.start[0], t.end[0] + 1) for t in tokens if t.type not in _NO_CODE)
    return len({line for span in lines for line in span} - documented)


def sizes(folder: Path) -> Iterator[tuple[str, int]]:
    """Yield each module below a folder, by its path in it, and its lines of code."""
    for path in sorted(folder.rglob("*.py")):
        yield path.relative_to(folder).as_posix(), code_lines(path.read_text())


def report(folder: Path) -> Iterator[str]:
    """Yield a line for each part of a folder, the largest first, and one for all."""
    lines, files = Counter[str](), Counter[str]()
    for name, number in sizes(folder):
        part = name.split("/")[0]
        lines[part] += number
        files[part] += 1
    yield from (f"{count:7,} lines {files[part]:5,} files  {folder.name}/{part}" for part, count in lines.most_common())
    yield f"{lines.total():7,} lines {files.total():5,} files  {folder.name}"


if __name__ == "__main__":
    if named := sys.argv[1:]:
        print(*(line for name in named for line in report(Path(name))), sep="\n")
    else:
        print(*report(ROOT / "wslgpud"), *(list(report(ROOT / name))[-1] for name in WHOLE[1:]), sep="\n")
