"""Sizes count what has to be read as code."""

from __future__ import annotations

from tests.docs import sizes

MODULE = '''"""A docstring
of two lines."""

# a comment
LIST = (
    1,  # counted, with its comment
)
TEXT = """
counted, as it is a value"""


def double(x):
    """Return it twice."""
    return x * 2
'''


def test_blank_lines_comments_and_docstrings_do_not_count() -> None:
    assert sizes.code_lines(MODULE) == 3 + 2 + 2


def test_a_folder_is_summed_by_its_parts(tmp_path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a/one.py").write_text("x = 1\n")
    (tmp_path / "a/two.py").write_text("y = 1\nz = 2\n")
    (tmp_path / "b.py").write_text(MODULE)

    assert [line.split()[:4] for line in sizes.report(tmp_path)] == [
        ["7", "lines", "1", "files"],
        ["3", "lines", "2", "files"],
        ["10", "lines", "3", "files"],
    ]
