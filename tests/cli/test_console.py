"""The console of every command: its width, its tables, its progress bar, and what it lets through."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.panel import Panel
from rich.segment import Segment
from rich.style import Style

from wslgpud.cli.console import ENDLESS, Console, bar, harmless, table_of


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def printed(what: Any, **options: Any) -> list[str]:
    file = io.StringIO()
    Console(file=file, **options).print(what)
    return file.getvalue().splitlines()


def test_piped_lines_are_not_wrapped_and_charts_are_100_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    words = "word " * 100

    assert len(printed(words)) == 1
    assert (Console(file=io.StringIO()).width, Console(file=io.StringIO()).picture_width) == (ENDLESS, 100)
    assert printed(Panel("text"))[1] == "│ text │"


def test_a_given_width_applies_to_lines_charts_and_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert Console(file=io.StringIO(), width=40).picture_width == 40
    assert printed(Panel("text"), width=12)[1] == "│ text     │"
    assert len(printed("word " * 20, width=50)) == 2

    monkeypatch.setenv("COLUMNS", "60")
    assert Console(file=io.StringIO()).picture_width == 60


def test_foreign_control_characters_are_made_visible() -> None:
    cursor = Segment("\x1b[2K", None, [])
    red = Style(color="red")

    assert list(harmless([Segment("fine", red), cursor, Segment("a\x1b[31mb\tc\n", red)])) == [
        Segment("fine", red),
        cursor,
        Segment("a\N{REPLACEMENT CHARACTER}[31mb\tc\n", red),
    ]


def test_table_columns_are_aligned_with_two_spaces_between() -> None:
    table = table_of("<name", ">size", "~told")
    table.add_row("a", "1", "x")
    table.add_row("longer", "1000", "y")

    assert [line.rstrip() for line in printed(table, width=40)] == [
        "name    size  told",
        "a          1  x",
        "longer  1000  y",
    ]


def test_a_table_without_headings_has_no_heading_row() -> None:
    table = table_of("<", "~", gap=1, first=1)
    table.add_row("left", "several words of text")

    assert [line.rstrip() for line in printed(table, width=18)] == [" left  several", "       words of", "       text"]
    cut = table_of("<", gap=0)
    cut.add_row("a line too long")
    assert printed(cut, width=8) == ["a line …"]
    headed = table_of("~name", gap=0)
    headed.add_row("unbreakable")
    assert printed(headed, width=6) == ["name  ", "unbrea", "kable "]


@pytest.mark.parametrize("silent", [False, True])
def test_progress_is_shown_on_a_terminal_unless_silent(silent: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    file = Terminal()
    monkeypatch.setattr(sys, "stderr", file)
    with bar("copying", silent=silent) as shown:
        shown(1, 4)
        shown(4, 4)

    assert ("copying" in file.getvalue() and "100%" in file.getvalue()) is not silent


def test_progress_is_not_shown_in_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    file = io.StringIO()
    monkeypatch.setattr(sys, "stderr", file)
    with bar("copying") as shown:
        shown(1, 1)

    assert file.getvalue() == ""


def test_a_command_exits_with_status_1_once_its_reader_is_gone() -> None:
    kept = os.dup(1)
    try:
        with pytest.raises(SystemExit) as ended:
            Console(file=io.StringIO()).on_broken_pipe()
        assert Path("/proc/self/fd/1").readlink() == Path(os.devnull)
    finally:
        os.dup2(kept, 1)
        os.close(kept)

    assert ended.value.code == 1
