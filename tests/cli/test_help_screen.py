"""The help of a command, character by character, and the folding of lines that it shares with other screens."""

from __future__ import annotations

from typing import Annotated

import pytest
from click.testing import CliRunner

from tests.words.catalogue import in_help
from wslgpud.cli.commands import CommandGroup
from wslgpud.cli.common import argument, flag, option
from wslgpud.cli.help import brief, wrapped

app = CommandGroup()


@app.command()
def draw(
    file: Annotated[str, argument("FILE", "file to draw into")],
    series: Annotated[list[str] | None, argument("SERIES", "series to draw")] = None,
    with_a_long_name: Annotated[str, option("--with-a-long-name -w", "VALUE", "a value; its name is wide")] = "ten",
    quick: Annotated[bool, flag("--quick", "draw fewer dots than usual, which takes less time on large files")] = False,
) -> None:
    """Draw a file. All of it is drawn at once, however large it is, and nothing is left out.

    The second paragraph.

    Examples:
        draw a.png  # the usual one
        draw a.png ram vram gpu --quick --with-a-long-name x  # more
        draw b.png
    """


@app.command()
def other() -> None:
    """Do something else. Nobody needs it.

    A paragraph that is exactly as wide as the seventy-seven columns it may take.

    A paragraph that is exactly one column wider than those seventy-seven columns.
    """


def helped(columns: int, *arguments: str) -> list[str]:
    return CliRunner().invoke(app, [*arguments, "--help"], env={"COLUMNS": str(columns)}).stdout.splitlines()


def test_a_command_explains_itself_in_80_columns_at_most() -> None:
    assert helped(80, "draw") == [
        "Usage: root draw [OPTIONS] FILE [SERIES]...",
        "",
        "  Draw a file. All of it is drawn at once, however large it is, and nothing is",
        "  left out.",
        "",
        "  The second paragraph.",
        "",
        "Arguments:",
        "  FILE    file to draw into",
        "  SERIES  series to draw",
        "",
        "Options:",
        "  -w, --with-a-long-name VALUE  a value; its name is wide [default: ten]",
        "  --quick                       draw fewer dots than usual, which takes less",
        "                                time on large files",
        "  -h, --help                    show this and exit",
        "",
        "Examples:",
        "  draw a.png                    # the usual one",
        "  draw a.png ram vram gpu --quick --with-a-long-name x",
        "                                # more",
        "  draw b.png",
    ]
    assert helped(300, "draw") == helped(80, "draw")


def test_on_a_narrow_terminal_it_is_folded_down_to_40_columns() -> None:
    assert helped(40, "draw") == [
        "Usage: root draw [OPTIONS] FILE",
        "                 [SERIES]...",
        "",
        "  Draw a file. All of it is drawn at",
        "  once, however large it is, and",
        "  nothing is left out.",
        "",
        "  The second paragraph.",
        "",
        "Arguments:",
        "  FILE    file to draw into",
        "  SERIES  series to draw",
        "",
        "Options:",
        "  -w, --with-a-long-name VALUE  a",
        "                                value;",
        "                                its",
        "                                name is",
        "                                wide",
        "                                [default:",
        "                                ten]",
        "  --quick                       draw",
        "                                fewer",
        "                                dots",
        "                                than",
        "                                usual,",
        "                                which",
        "                                takes",
        "                                less",
        "                                time on",
        "                                large",
        "                                files",
        "  -h, --help                    show",
        "                                this",
        "                                and",
        "                                exit",
        "",
        "Examples:",
        "  draw a.png                    # the",
        "                                usual",
        "                                one",
        "  draw a.png ram vram gpu --quick --with-a-long-name x",
        "                                # more",
        "  draw b.png",
    ]
    assert helped(10, "draw") == helped(40, "draw")


def test_a_group_lists_its_commands_with_their_first_sentence() -> None:
    assert helped(80)[-3:] == ["Commands:", "  draw   Draw a file.", "  other  Do something else."]


@pytest.mark.parametrize(
    ("text", "columns", "lines"),
    [
        ("one two", 7, ["one two"]),
        ("one two", 6, ["one", "two"]),
        ("overlong a", 4, ["overlong", "a"]),
        ("a   b", 3, ["a b"]),
        ("", 5, [""]),
    ],
)
def test_words_are_wrapped_at_the_last_column_and_never_split(text: str, columns: int, lines: list[str]) -> None:
    assert wrapped(text, columns) == "\n".join(lines)
    assert wrapped(text, columns, "> ") == "\n".join(f"> {line}" for line in lines)


@pytest.mark.parametrize(
    ("subject", "columns", "short"),
    [
        ("cgroup /a/b", 11, "cgroup /a/b"),
        ("cgroup /a/b", 10, "/a/b"),
        ("cgroup /abc/def", 7, "…bc/def"),
        ("plain text", 5, "…text"),
        ("abc", 0, "…"),
    ],
)
def test_a_path_is_shortened_from_its_left(subject: str, columns: int, short: str) -> None:
    assert brief(subject, columns) == short


def test_a_paragraph_wraps_only_when_wider_than_its_line() -> None:
    assert helped(80, "other")[4:8] == [
        "  A paragraph that is exactly as wide as the seventy-seven columns it may take.",
        "",
        "  A paragraph that is exactly one column wider than those seventy-seven",
        "  columns.",
    ]


def test_all_help_of_a_command_is_translated_except_choice_names() -> None:
    (draw, _) = app.commands.values()

    assert list(in_help(draw)) == [
        "Draw a file. All of it is drawn at once, however large it is, and nothing is left out.",
        "The second paragraph.",
        "the usual one",
        "more",
        "file to draw into",
        "FILE",
        "series to draw",
        "SERIES",
        "a value; its name is wide",
        "VALUE",
        "draw fewer dots than usual, which takes less time on large files",
    ]
