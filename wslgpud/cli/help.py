"""Help of commands in the reader's language: usage, meaning, arguments, options, examples.

A command's docstring is its help. After ``Examples:`` each line is a command and, behind two spaces and #,
what it does. Texts are templates; ``texts`` returns those of a command for translators.
"""

from __future__ import annotations

import inspect
import re
import shutil
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from wslgpud.words import Message, current, say, t

_MOST_COLUMNS, _LEAST_COLUMNS = 80, 40
#: names wider than this stand on a line of their own
_NAME_COLUMNS = 28
_WIDE = r"\u2e80-\u9fff\uff00-\uffef"
_OPENING, _CLOSING = "（《“「【", r"，。：；！？、）》”」】…)\]"
#: what is not parted: a word, or one Chinese character, with the punctuation that clings to it
_PIECE = re.compile(rf"\s+|[{_OPENING}]*(?:[{_WIDE}]|[^\s{_WIDE}]+)[{_CLOSING}]*|.")
#: between columns of a table, and before the first
_GAP = re.compile(r"(?:^| ) +(?=\S)")
#: columns of the last one below which it has lines of its own, and how far in these begin
_LEAST_BODY, _BODY_MARGIN = 24, 8
_FIRST_SENTENCE = re.compile(r".*?(?:\.(?=\s|$)|。|$)")


class Doc(NamedTuple):
    """What a docstring says: paragraphs, and examples with what each does."""

    paragraphs: list[str]
    examples: list[tuple[str, str]]


def doc_of(command: Any) -> Doc:
    """Return what is written of a command."""
    text, _, shown = inspect.cleandoc(command.help or "").partition("Examples:\n")
    paragraphs = [" ".join(part.split()) for part in text.split("\n\n") if part.strip()]
    parted = (line.partition("  # ") for line in shown.splitlines() if line.strip())
    return Doc(paragraphs, [(line.strip(), what.strip()) for line, _, what in parted])


def short(command: Any) -> str:
    """Return the first sentence of what a command does, in the language of this one."""
    paragraphs = doc_of(command).paragraphs
    found = _FIRST_SENTENCE.match(t(paragraphs[0])) if paragraphs else None
    return found[0] if found else ""


def texts(command: Any) -> Iterator[str]:
    """Yield the templates in the help of a command, without those of the commands below it."""
    doc = doc_of(command)
    yield from doc.paragraphs
    yield from (what for _, what in doc.examples if what)
    for param in command.params:
        yield from filter(None, (param.help, _placeholder(param)))


def full(context: Any) -> str:
    """Return the help of the command that a context is of."""
    columns = max(_LEAST_COLUMNS, min(_MOST_COLUMNS, shutil.get_terminal_size().columns)) - 1
    command, doc = context.command, doc_of(context.command)
    head = t("Usage: {command}", command=context.command_path) + " "
    lines = [head + (wrapped(_usage(context), columns - cells(head), " " * cells(head))).lstrip()]
    lines += [f"\n{wrapped(t(paragraph), columns - 2, '  ')}" for paragraph in doc.paragraphs]
    params = [param for param in command.get_params(context) if not getattr(param, "hidden", False)]
    groups = {kind: [p for p in params if p.param_type_name == kind] for kind in ("argument", "option")}
    below = {name: one for name, one in getattr(command, "commands", {}).items() if not one.hidden}
    for title, rows in (
        (t("Arguments:"), [(t(placeholder(p)), _said(p.help)) for p in groups["argument"]]),
        (t("Options:"), [(_names(p), _meaning(p)) for p in groups["option"]]),
        (t("Commands:"), [(name, short(one)) for name, one in below.items()]),
    ):
        lines += ["", title, *_table(rows, columns)] if rows else []
    if doc.examples:
        lines += ["", t("Examples:"), *_examples(doc.examples, columns)]
    return "\n".join(lines)


def wrapped(text: str, columns: int, margin: str = "") -> str:
    """Return text in lines of at most so many columns; a word is never parted, Chinese is between any two.

    What is wider than a line by itself has one of its own.
    """
    lines, line, space = [], "", ""
    for piece in _PIECE.findall(text):
        if piece.isspace():
            space = " "
        elif line and cells(line + space + piece) > columns:
            lines.append(line)
            line, space = piece, ""
        else:
            line, space = line + (space if line else "") + piece, ""
    return "\n".join(margin + one for one in [*lines, line])


def hanging(line: str, columns: int) -> str:
    """Return a line of a table in lines of so many columns: its last column goes on below itself."""
    if cells(line) <= columns:
        return line
    ends = [0, *(gap.end() for gap in _GAP.finditer(line) if cells(line[: gap.end()]) < columns)]
    head, body = line[: ends[-1]], line[ends[-1] :]
    margin = margin_of(cells(head), columns)
    below = wrapped(body, columns - margin, " " * margin)
    if margin == cells(head):
        return head + below[margin:]
    return f"{head.rstrip()}\n{below}" if head.strip() else below


def margin_of(head: int, columns: int) -> int:
    """Return where the last column begins: behind ``head``, or near the edge where that leaves too little."""
    return head if columns - head >= _LEAST_BODY else _BODY_MARGIN


def cells(text: str) -> int:
    """Return how many columns a terminal takes for a text."""
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def padded(text: str, columns: int) -> str:
    """Return a text with spaces behind it up to so many columns."""
    return text + " " * max(0, columns - cells(text))


def flush(text: str, columns: int) -> str:
    """Return a text with spaces before it up to so many columns."""
    return " " * max(0, columns - cells(text)) + text


def brief(subject: str, columns: int) -> str:
    """Return a subject in so many columns: of a group's path the end tells most, and that it is one."""
    path = subject if cells(subject) <= columns else subject[max(0, subject.find("/")) :]
    while cells(path) > columns and len(path) > 1:
        path = f"…{path[1 + path.startswith('…') :]}"
    return path


def _table(rows: Sequence[tuple[str, str]], columns: int) -> Iterator[str]:
    left = min(max(cells(name) for name, _ in rows), _NAME_COLUMNS) + 4
    for name, meaning in rows:
        body = wrapped(meaning, columns - left, " " * left) if meaning else ""
        if cells(name) + 4 > left or not body:
            yield f"  {name}"
            yield from [body] * bool(body)
        else:
            yield f"  {name}{body[cells(name) + 2 :]}"


def _examples(examples: Sequence[tuple[str, str]], columns: int) -> Iterator[str]:
    """Yield commands with what each does beside it, or above it where that is too wide."""
    beside = [cells(line) for line, what in examples if cells(line) + cells(t(what)) + 6 <= columns]
    left = max((one for one in beside if one + 30 <= columns), default=0)
    for line, what in examples:
        if not what:
            yield f"  {line}"
        elif max(left, cells(line)) + cells(t(what)) + 6 <= columns:
            yield f"  {padded(line, left)}  # {t(what)}"
        else:
            yield wrapped(f"# {t(what)}", columns - 2, "  ")
            yield f"  {line}"


def _usage(context: Any) -> str:
    words, command = [t("[OPTIONS]")], context.command
    if not context.allow_interspersed_args and not hasattr(command, "commands"):
        words.append("--")  # what follows is another program's
    for param in command.params:
        if param.param_type_name == "argument":
            name = t(placeholder(param))
            words.append((name if param.required else f"[{name}]") + "..." * (param.nargs == -1))
    if hasattr(command, "commands"):
        words += [t("COMMAND") if command.no_args_is_help else t("[COMMAND]"), "..."]
    return " ".join(words)


def _names(param: Any) -> str:
    """Return how an option is written: ``-c, --config FILE``."""
    names = ", ".join(sorted(param.opts, key=len))
    if param.secondary_opts:
        names += f", {', '.join(param.secondary_opts)}"
    return names if getattr(param, "is_flag", False) else f"{names} {t(placeholder(param))}"


def _meaning(param: Any) -> str:
    if param.name == "help":
        return t("show this and end")
    text, default = param.help, param.default
    if isinstance(default, bool) or default in (None, "", (), []) or callable(default):
        return _said(text)
    said = say("default: {value}", value=str(default))
    return t("{meaning} [{default}]", meaning=Message(text or ""), default=said)


def _said(text: str | None) -> str:
    return t(text) if text else ""


def placeholder(param: Any) -> str:
    """Return what stands for the value of an option or argument."""
    return param.metavar or str(param.name).upper()


def _placeholder(param: Any) -> str:
    """Return the same if there are words in it: names of choices are the same in every language."""
    flag = getattr(param, "is_flag", False)
    return "" if flag or "|" in placeholder(param) else placeholder(param)


def listed(names: Iterable[str]) -> str:
    """Return names as an enumeration."""
    return current().listed(list(names))
