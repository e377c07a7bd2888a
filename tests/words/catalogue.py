"""Every template in the source, as Babel collects them, and the catalogues that translate them.

Help of commands and of the configuration's keys are templates, too: docstrings and options say them; so are
why the doctor checks something, what a key of .wslconfig means, the paragraphs of the runbook, guard's advice, and
``words/templates.toml``.

``python -m tests.words.catalogue`` brings the catalogues up to date: a new template waits for its
translation, one that nobody says any more goes.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

import polib
from babel.messages.extract import extract_from_dir, extract_from_file

from wslgpud.advise.doctor.checking import CHECKS
from wslgpud.advise.guard.summary import failures
from wslgpud.alerts.rules import runbook
from wslgpud.cli import app
from wslgpud.cli import help as helps
from wslgpud.config import declared_keys, sections
from wslgpud.probes.wsl_config import FILES
from wslgpud.words import TEMPLATES, TRANSLATIONS

PRODUCT = Path(__file__).parents[2] / "wslgpud"
#: makes the manual pages, whose headings and descriptions are templates, too
MANUAL = Path(__file__).parents[1] / "docs/man.py"
#: of a check of the doctor: a template, and a remedy that may be a command
OUTCOMES = ("good", "note", "problem", "skipped", "unknown")
KEYWORDS = {
    "say": None,
    "says": (1, 2),
    "t": None,
    "template": None,
    "Fault": None,
    "warn": None,
    "_say": None,
    "refused": None,
    **dict.fromkeys(OUTCOMES),
}
OPTIONS = {"**.js": {"parse_template_string": True}}


def in_python(
    file: BinaryIO, keywords: Collection[str], *_: Any, **__: Any
) -> Iterator[tuple[int, str, tuple[str, ...], list[str]]]:
    """Yield the calls that say something, as Babel wants them; its own method overlooks f-strings.

    So does an error that is made of a template and its facts, see ``words.MessageError``.
    """
    for call in ast.walk(ast.parse(file.read())):
        if isinstance(call, ast.Call):
            name = getattr(call.func, "id", "") or getattr(call.func, "attr", "")
            texts = [a.value for a in call.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
            if name in OUTCOMES and not isinstance(call.args[0], ast.Constant):  # the text is the remedy
                continue
            facts = {keyword.arg for keyword in call.keywords}
            blanks = {*re.findall(r"{(\w+)", texts[0])} if texts else set()
            if name not in keywords and blanks and (blanks & facts or None in facts):  # None: of ``**facts``
                name = "say"
            if name in keywords and texts:
                yield call.lineno, name, tuple(texts), []


METHODS = [("**.py", in_python), ("**.min.js", "ignore"), ("**.js", "javascript")]


@cache
def templates() -> dict[str, tuple[str, set[str]]]:
    """Return each template with its plural form (empty for most) and the files that say it."""
    found: dict[str, tuple[str, set[str]]] = {}
    for file, words in in_source():
        one, many = (words, "") if isinstance(words, str) else (words[0], words[1])
        _, files = found.setdefault(one, (many, set()))
        files.add(file)
    for text in (*map(inspect.getdoc, sections().values()), *(key.help for key in declared_keys())):
        found.setdefault(text or "", ("", set()))[1].add("config.py")
    for check in CHECKS:
        for text in (check.title, check.why):
            found.setdefault(text, ("", set()))[1].add(
                f"{check.look.__module__.removeprefix('wslgpud.').replace('.', '/')}.py"
            )
    for text, name in ((text, file.name) for file in FILES for text in file.texts):
        found.setdefault(text, ("", set()))[1].add(f"probes/{name.replace('.', '')}.toml")
    for text in "\n\n".join(runbook().values()).split("\n\n"):
        found.setdefault(text, ("", set()))[1].add("alerts/RUNBOOK.md")
    tables = {"words/templates.toml": TEMPLATES, "advise/guard/failures.toml": failures()["advice"]}
    for text, name in ((text, name) for name, table in tables.items() for text in sentences(table)):
        found.setdefault(text, ("", set()))[1].add(name)
    for command in commands():
        file = Path(inspect.getfile(inspect.unwrap(command.callback))).name if command.callback else "__init__.py"
        for text in in_help(command):
            found.setdefault(text, ("", set()))[1].add(f"cli/{file}")
    return found


def in_help(command: Any) -> Iterator[str]:
    """Yield the templates in the help of a command, without those of its subcommands."""
    doc = helps.doc_of(command)
    yield from doc.paragraphs
    yield from (what for _, what in doc.examples if what)
    for param in command.params:
        yield from [param.help] * bool(param.help)
        if not getattr(param, "is_flag", False) and "|" not in helps.placeholder(param):
            yield helps.placeholder(param)  # names of choices are not translated


def in_source() -> Iterator[tuple[str, str | tuple[str, ...]]]:
    """Yield the file and the texts of each call that says something."""
    for file, _, words, _, _ in extract_from_dir(PRODUCT, METHODS, OPTIONS, keywords=KEYWORDS, comment_tags=()):
        yield file, words
    for _, words, _, _ in extract_from_file(in_python, MANUAL, keywords=KEYWORDS, comment_tags=()):
        yield "docs/man.py", words


def sentences(table: Mapping[str, Any]) -> Iterator[str]:
    """Yield the templates of a table of tables; an advice may be the name of one."""
    for text in table.values():
        if isinstance(text, Mapping):
            yield from sentences(text)
        elif isinstance(text, list):
            yield from text
        elif text not in TEMPLATES["advice"]:
            yield text


def commands(command: Any = None) -> Iterator[Any]:
    """Yield all commands and groups of them, the whole first."""
    command = command or app
    yield command
    for below in getattr(command, "commands", {}).values():
        yield from commands(below)


def path_of(language: str) -> Path:
    """Return where a language's catalogue lies."""
    return PRODUCT / "words" / f"{language}.po"


def renewed(language: str) -> polib.POFile:
    """Return a catalogue with an entry for each template, in order, keeping existing translations."""
    path = path_of(language)
    known = {entry.msgid: entry for entry in polib.pofile(str(path))} if path.exists() else {}
    catalogue = polib.POFile(wrapwidth=110)
    catalogue.metadata = {
        "Language": language,
        "MIME-Version": "1.0",
        "Content-Type": "text/plain; charset=UTF-8",
        "Content-Transfer-Encoding": "8bit",
        "Plural-Forms": "nplurals=1; plural=0;",
    }
    for one, (many, files) in sorted(templates().items()):
        before = known.get(one)
        text = (before.msgstr or before.msgstr_plural.get(0, "")) if before else ""
        catalogue.append(
            polib.POEntry(
                msgid=one,
                msgid_plural=many,
                msgstr="" if many else text,
                msgstr_plural={0: text} if many else {},
                occurrences=[(file, "") for file in sorted(files)],
            )
        )
    return catalogue


if __name__ == "__main__":
    for code in TRANSLATIONS:
        made = renewed(code)
        made.save(str(path_of(code)))
        missing = len(made.untranslated_entries())
        print(f"{code}: {len(made)} templates, {missing} without a translation")
