"""Manual pages, generated from ``--help`` and the configuration's keys, in every language; and completion scripts.

``python -m tests.docs.man FOLDER`` writes them as they lie below ``share``, next to the program; ./tests/renew does so
for the wheel, which includes them. The program itself never needs them.
"""

from __future__ import annotations

import inspect
import itertools
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

from wslgpud import __version__, config, words
from wslgpud.cli import app, completion_script
from wslgpud.cli import help as helps
from wslgpud.cli.config import to_toml
from wslgpud.words import t

#: folder below ``share`` for the pages of a language
FOLDERS = {"en": "man", "zh": "man/zh_CN"}
#: where each shell looks by default
_COMPLETIONS = {
    "bash": "bash-completion/completions/wslgpud",
    "fish": "fish/vendor_completions.d/wslgpud.fish",
    "zsh": "zsh/site-functions/_wslgpud",
}
CONFIGURATION = "wslgpud.toml"
#: characters to escape in troff: its own, and those that it replaces by typographic ones
_ESCAPES = str.maketrans(
    {"\\": r"\(rs", "-": r"\-", "'": r"\(aq", "`": r"\(ga", "^": r"\(ha", "~": r"\(ti", '"': r"\(dq"}
)
#: no justification and no hyphenation, so that commands can be copied
_LAYOUT = (".ad l", ".nh")
#: allow a line break between Chinese characters; mandoc and older groffs break only at spaces
_BREAKABLE = re.compile(r"(?<=[\u3001\u3002\u3400-\u9fff\uff00-\uffef])(?=[\u3400-\u9fff“（])")


class Section(NamedTuple):
    """Paragraphs and definitions below a heading; ``within`` another as a subsection."""

    title: str
    lines: list[str]
    within: bool = False


def files() -> dict[str, str]:
    """Return the text of each file by its path below ``share``."""
    return pages() | {path: f"{completion_script(shell)}\n" for shell, path in _COMPLETIONS.items()}


def write(folder: Path) -> None:
    """Write all of them below a folder."""
    for name, text in files().items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def pages() -> dict[str, str]:
    """Return every page by its path below ``share``."""
    before, found = words.current(), {}
    try:
        for code, folder in FOLDERS.items():
            words.use(code)
            for name, number, text in _in_this_language():
                found[f"{folder}/man{number}/{name}.{number}"] = text
    finally:
        words.use(before.code)
    return found


def _in_this_language() -> Iterator[tuple[str, int, str]]:
    root = _context(app)
    yield "wslgpud", 1, _page("wslgpud", 1, helps.short(root.command), _of_all(root))
    for command in root.command.commands.values():
        context = _context(command, root)
        name = context.command_path.replace(" ", "-")
        yield name, 1, _page(name, 1, helps.short(command), _of_one(context))
    yield CONFIGURATION, 5, _page(CONFIGURATION, 5, t("configuration of wslgpud"), _of_the_configuration())


def _of_all(root: Any) -> Iterator[Section]:
    command = root.command
    yield Section(t("SYNOPSIS"), _synopsis([root]))
    told = t(
        "The daemon ('wslgpud run', or the service) takes a sample every second, keeps the history, warns on the"
        " channels of its configuration, and has a page at {url}. The other commands query it; without one they sample "
        "the machine themselves.",
        url=f"http://{config.Server.address}:{config.Server.port}",
    )
    yield Section(t("DESCRIPTION"), [*_paragraphs(command), *_paragraph(told)])
    yield from _options(root)
    listed = (
        (rf"\fBwslgpud\-{one.name}\fR(1)", helps.short(one))
        for section in command.sections().values()
        for one in section
    )
    yield Section(t("COMMANDS"), _definitions(listed))
    yield Section(t("EXAMPLES"), _examples([command]))
    variable = t("a key of the configuration; {name} is that of {key}", name="WSLGPUD_SERVER__PORT", key="server.port")
    yield Section(t("ENVIRONMENT"), _definitions([(_bold("WSLGPUD_SECTION__KEY"), variable)]))
    yield Section(
        t("FILES"),
        _definitions(
            [
                (_bold(str(config.SYSTEM_FILE)), t("configuration of the service")),
                (_bold("~/.config/wslgpud/wslgpud.toml"), t("your own, which applies where you may not read that one")),
                (_bold(f"{config.SYSTEM_STATE}/wslgpud.db"), t("history of the service")),
                (_bold("~/.local/state/wslgpud/wslgpud.db"), t("history of 'wslgpud run' without root")),
            ]
        ),
    )
    yield Section(
        t("EXIT STATUS"),
        _definitions(
            [
                ("0", t("all is well")),
                ("1", t("a check has found something")),
                ("2", t("the command line, the configuration or a file is invalid; one line says why")),
            ]
        )
        + _paragraph(t("Further exit statuses are documented on the commands' own pages.")),
    )
    yield _see_also(*(f"wslgpud-{name}" for name in command.commands), CONFIGURATION)


def _of_one(context: Any) -> Iterator[Section]:
    command = context.command
    below = [_context(one, context) for one in getattr(command, "commands", {}).values()]
    yield Section(t("SYNOPSIS"), _synopsis([*([] if below and command.no_args_is_help else [context]), *below]))
    yield Section(t("DESCRIPTION"), _paragraphs(command))
    yield from _options(context)
    if below:
        yield Section(t("COMMANDS"), [])
    for one in below:
        yield Section(_escaped(one.info_name), _of_a_part(one), within=True)
    if shown := _examples([command, *(one.command for one in below)]):
        yield Section(t("EXAMPLES"), shown)
    yield _see_also("wslgpud", CONFIGURATION)


def _of_a_part(context: Any) -> list[str]:
    return [*_paragraphs(context.command), *_parameters(context, "argument"), *_parameters(context, "option")]


def _of_the_configuration() -> Iterator[Section]:
    yield Section(
        t("DESCRIPTION"),
        [
            *_paragraph(
                t(
                    "The service reads {file}, 'wslgpud run' of an ordinary user {own}. No file is needed, as every"
                    " key has a default. 'wslgpud config init' writes one with all keys, commented out; 'sudo wslgpud"
                    " config check' checks it; 'wslgpud config show' says where each value comes from.",
                    file=str(config.SYSTEM_FILE),
                    own="~/.config/wslgpud/wslgpud.toml",
                )
            ),
            *_paragraph(
                t(
                    "The format is TOML: a section's name in brackets, its keys below it; each section may appear only"
                    " once. An unknown key is an error. The environment variable {name} overrides {key}, and so on;"
                    " items of a list are separated by commas there. Changes take effect when wslgpud is restarted.",
                    name="WSLGPUD_SERVER__PORT",
                    key="server.port",
                )
            ),
        ],
    )
    yield Section(t("KEYS"), [])
    owners = config.sections()
    for name, keys in itertools.groupby(config.declared_keys(), lambda key: key.section):
        rows = ((f"{_bold(key.name)} = {_escaped(to_toml(key.default))}", _meaning(key)) for key in keys)
        yield Section(
            f"[{name}]", [*_paragraph(t(inspect.getdoc(owners[name]) or "")), *_definitions(rows)], within=True
        )
    yield _see_also("wslgpud", "wslgpud-config")


def _meaning(key: config.ConfigKey) -> str:
    """Return the meaning and valid values of a key."""
    listed = words.current().listed(config.allowed(key))
    return t("{meaning} ({allowed})", meaning=words.Message(key.help), allowed=listed)


def _page(name: str, number: int, purpose: str, sections: Iterable[Section]) -> str:
    # No date: a page depends only on the version, for reproducible builds.
    lines = [f'.TH {name.upper()} {number} "" "wslgpud {__version__}" wslgpud', *_LAYOUT, f'.SH "{t("NAME")}"']
    # Programs that list pages parse this line, and know little of troff.
    lines.append(rf"{_escaped(name)} \- {purpose.rstrip('.。').translate(_ESCAPES)}")
    for section in sections:
        body = section.lines[1:] if section.lines[:1] == [".PP"] else section.lines  # a heading starts a paragraph
        lines += [f'.{"SS" if section.within else "SH"} "{section.title}"', *body]
    return "\n".join(lines) + "\n"


def _context(command: Any, parent: Any = None) -> Any:
    return command.context_class(command, info_name=command.name, parent=parent, **command.context_settings)


def _synopsis(contexts: Iterable[Any]) -> list[str]:
    lines = [f"{_bold(one.command_path)} {_escaped(helps.usage(one))}" for one in contexts]
    return [line for number, text in enumerate(lines) for line in ([".br"] * bool(number) + [text])]


def _options(context: Any) -> Iterator[Section]:
    for title, rows in (
        (t("ARGUMENTS"), _parameters(context, "argument")),
        (t("OPTIONS"), _parameters(context, "option")),
    ):
        if rows:
            yield Section(title, rows)


def _parameters(context: Any, kind: Literal["argument", "option"]) -> list[str]:
    return _definitions((_term(one), one.meaning) for one in helps.parameters(context, kind))


def _term(one: helps.Parameter) -> str:
    names = [", ".join(map(_bold, one.names.split(", ")))] if one.names else []
    return " ".join([*names, *([rf"\fI{_escaped(one.takes)}\fR"] if one.takes else [])])


def _paragraphs(command: Any) -> list[str]:
    return [line for text in helps.doc_of(command).paragraphs for line in _paragraph(t(text))]


def _paragraph(text: str) -> list[str]:
    return [".PP", _escaped(text)]


def _definitions(rows: Iterable[tuple[str, str]]) -> list[str]:
    """Return a definition list of terms, which are already escaped for troff."""
    return [line for term, text in rows for line in (".TP", term, _escaped(text))]


def _examples(commands: Iterable[Any]) -> list[str]:
    lines: list[str] = []
    for typed, what in (example for command in commands for example in helps.doc_of(command).examples):
        lines += [".TP", _bold(typed), _escaped(t(what))] if what else [".PP", _bold(typed)]
    return lines


def _see_also(*names: str) -> Section:
    numbered = (f"{_bold(name)}({5 if name == CONFIGURATION else 1})" for name in names)
    return Section(t("SEE ALSO"), [", ".join(numbered)])


def _bold(text: str) -> str:
    return rf"\fB{_escaped(text)}\fR"


def _escaped(text: str) -> str:
    kept = _BREAKABLE.sub(r"\:", text.translate(_ESCAPES))
    return rf"\&{kept}" if kept.startswith(".") else kept


if __name__ == "__main__":
    write(Path(sys.argv[1]))
