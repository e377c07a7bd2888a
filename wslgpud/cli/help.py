"""Help of commands in the reader's language: usage, meaning, arguments, options, examples.

A command's docstring is its help. After ``Examples:`` each line is a command and, after two spaces and #, its purpose.
Texts are templates. Click's own formatter breaks lines at spaces and counts a Chinese character as one column, so lines
are broken here.
"""

from __future__ import annotations

import inspect
import re
import shutil
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

from wslgpud.words import Message, say, t

_MAX_COLUMNS, _MIN_COLUMNS = 80, 40
#: names wider than this get their own line
_NAME_COLUMNS = 28
_WIDE = r"\u2e80-\u9fff\uff00-\uffef"
_OPENING, _CLOSING = "（《“「【", r"，。：；！？、）》”」】…)\]"
#: never broken across lines: a word, or one Chinese character, with the punctuation that clings to it
_PIECE = rf"\s+|[{_OPENING}]*(?:[{_WIDE}]|[^\s{_WIDE}]+)[{_CLOSING}]*|."


class Doc(NamedTuple):
    """A parsed docstring: paragraphs, and examples with the purpose of each."""

    paragraphs: list[str]
    examples: list[tuple[str, str]]


class Parameter(NamedTuple):
    """An argument or option: its names, the placeholder of its value (if any), its meaning."""

    names: str
    takes: str
    meaning: str

    @property
    def form(self) -> str:
        """Names and value: ``-c, --config FILE``."""
        return f"{self.names} {self.takes}".strip()


def cells(text: str) -> int:
    """Return how many columns a terminal takes for a text."""
    if text.isascii() and text.isprintable():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def doc_of(command: Any) -> Doc:
    """Return the parsed docstring of a command."""
    text, _, shown = inspect.cleandoc(command.help or "").partition("Examples:\n")
    paragraphs = [" ".join(part.split()) for part in text.split("\n\n") if part.strip()]
    parted = (line.partition("  # ") for line in shown.splitlines() if line.strip())
    return Doc(paragraphs, [(line.strip(), what.strip()) for line, _, what in parted])


def short(command: Any) -> str:
    """Return the first sentence of a command's help, in the output language."""
    return re.split(r"(?<=\.)\s|(?<=。)", t("".join(doc_of(command).paragraphs[:1])), maxsplit=1)[0]


def full(context: Any) -> str:
    """Return the help of a context's command."""
    columns = max(_MIN_COLUMNS, min(_MAX_COLUMNS, shutil.get_terminal_size().columns)) - 1
    command, doc = context.command, doc_of(context.command)
    head = t("Usage: {command}", command=context.command_path) + " "
    lines = [head + wrapped(usage(context), columns - cells(head), " " * cells(head)).lstrip()]
    lines += [f"\n{wrapped(t(paragraph), columns - 2, '  ')}" for paragraph in doc.paragraphs]
    below = command.sections() if hasattr(command, "sections") else {}
    for title, rows in (
        (t("Arguments:"), [(one.form, one.meaning) for one in parameters(context, "argument")]),
        (t("Options:"), [(one.form, one.meaning) for one in parameters(context, "option")]),
        *((title, [(one.name, short(one)) for one in commands]) for title, commands in below.items()),
        (t("Examples:"), [(line, f"# {t(what)}" if what else "") for line, what in doc.examples]),
    ):
        lines += ["", title, *_table(rows, columns)] if rows else []
    return "\n".join(lines)


def wrapped(text: str, columns: int, margin: str = "") -> str:
    """Wrap text to a number of columns; words are never split, Chinese is split anywhere.

    A word wider than a line gets its own.
    """
    lines, line, space = [], "", ""
    # In English each word is a piece; the pattern takes 3 ms to compile, and tables of widths 2 to import.
    for piece in re.findall(r"\s+|\S+" if text.isascii() else _PIECE, text):
        if piece.isspace():
            space = " "
        elif line and cells(line + space + piece) > columns:
            lines.append(line)
            line, space = piece, ""
        else:
            line, space = line + (space if line else "") + piece, ""
    return "\n".join(margin + one for one in [*lines, line])


def brief(subject: str, columns: int) -> str:
    """Shorten a subject to a number of columns: for a cgroup's path, keep the prefix and the end."""
    path = subject if cells(subject) <= columns else subject[max(0, subject.find("/")) :]
    while cells(path) > columns and len(path) > 1:
        path = f"…{path[1 + path.startswith('…') :]}"
    return path


def _table(rows: Sequence[tuple[str, str]], columns: int) -> Iterator[str]:
    """Yield names, each with its meaning beside it, or below it where the name is too wide."""
    left = min(max(cells(name) for name, _ in rows), _NAME_COLUMNS) + 4
    for name, meaning in rows:
        body, beside = wrapped(meaning, columns - left, " " * left), cells(name) + 4 <= left
        yield f"  {name}{body[cells(name) + 2 :] if beside else ''}".rstrip()
        yield from [body] * (not beside and bool(meaning))


def usage(context: Any) -> str:
    """Return the usage after a command's name: ``[OPTIONS] MODEL``."""
    words, command = [t("[OPTIONS]")], context.command
    group = hasattr(command, "commands")
    if not context.allow_interspersed_args and not group:
        words.append("--")  # followed by another program's arguments
    for param in (param for param in command.params if param.param_type_name == "argument"):
        name = t(placeholder(param))
        words.append((name if param.required else f"[{name}]") + "..." * (param.nargs == -1))
    if group:
        words += [t("COMMAND") if command.no_args_is_help else t("[COMMAND]"), "..."]
    return " ".join(words)


def parameters(context: Any, kind: Literal["argument", "option"]) -> list[Parameter]:
    """Return the arguments or options of a context's command."""
    return [_parameter(param) for param in context.command.get_params(context) if param.param_type_name == kind]


def _parameter(param: Any) -> Parameter:
    names = [*sorted(param.opts, key=len), *param.secondary_opts] if param.param_type_name == "option" else []
    takes = "" if getattr(param, "is_flag", False) else t(placeholder(param))
    return Parameter(", ".join(names), takes, _meaning(param))


def _meaning(param: Any) -> str:
    if "--help" in param.opts:
        return t("show this and exit")
    text, default = param.help or "", param.default
    if isinstance(default, bool) or default == "" or not isinstance(default, (str, int, float)):
        return t(text)
    return t("{meaning} [{default}]", meaning=Message(text), default=say("default: {value}", value=str(default)))


def placeholder(param: Any) -> str:
    """Return the placeholder for the value of an option or argument."""
    return param.metavar or str(param.name).upper()
