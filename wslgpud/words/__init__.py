"""Messages: templates with facts, rendered at the edge in the reader's language.

``say`` makes a message. The engine, the rules, the doctor and the stress test emit messages; rows, the API and
recordings keep template and facts. A ``Translator`` renders them. A command prints in one language: ``use`` sets it,
``t`` renders in it. The daemon renders each answer in the requested language.

The template is the English text, as in gettext, and the key of its translations. A placeholder is the name of a fact,
and its suffix gives the unit (``left_bytes``, ``eta_seconds``, ``used_ratio``), see ``Translator.fact``. A part in
brackets is rendered only if its facts are known: ``full in {eta_seconds}[ ({range})]``. Of alternatives separated by
bars, the first with known facts is used: ``[{who}|A process] was killed``. Brackets around a single placeholder, or
around none, are literal: ``[{section}]``, ``[wsl2]``.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import cache, partial
from pathlib import Path
from typing import Any, Final, Union

from wslgpud.toml import tomllib
from wslgpud.words.units import one_line, printable, resource_path, size

#: templates of forecasts and rules, by subject
TEMPLATES: Final[dict[str, Any]] = tomllib.loads(Path(__file__).with_name("templates.toml").read_text(encoding="utf-8"))

Fact = Union[str, int, float, "Message", tuple["Fact", ...]]

BLANK = re.compile(r"\{(\w+)\}")
#: nesting depth of optional parts, as each level scans the whole template, which may come from a foreign database
_DEEPEST = 4
_OPTIONAL = re.compile(r"\[(?!\{\w+\}\])([^][]*\{[^][]*)\]")


@dataclass(frozen=True)
class Message:
    """A template and its facts. ``plural`` is the template for any ``count`` other than 1."""

    template: str
    facts: Mapping[str, Fact] = field(default_factory=dict)
    plural: str = ""

    def __str__(self) -> str:
        return ENGLISH.text(self)

    def __bool__(self) -> bool:
        return bool(self.template)


_NOTHING = ("", Message(""), None)
#: names are the same in every language
MessageLike = str | Message


def say(template: str, /, **facts: Fact) -> Message:
    """Return a message; extraction tools find its template by this function's name."""
    return Message(template, facts)


def says(one: str, many: str, /, *, count: int, **facts: Fact) -> Message:
    """Return a message with a plural: ``one`` is the template for a ``count`` of 1."""
    return Message(one, {"count": count, **facts}, many)


def filled(template: str, facts: Mapping[str, Fact | None]) -> Message:
    """Return a message with its known facts; an empty one where a required fact is unknown."""
    known = {name: fact for name in BLANK.findall(template) if (fact := facts.get(name)) not in _NOTHING}
    text = without_unknown(template, known)
    return Message(template, known) if text and known.keys() >= {*BLANK.findall(text)} else Message("")


def without_unknown(template: str, known: Container[str]) -> str:
    """Return a template with only the optional parts whose facts are known, without brackets."""

    def first_known(part: re.Match[str]) -> str:
        return next((one for one in part[1].split("|") if all(name in known for name in BLANK.findall(one))), "")

    for _ in range(_DEEPEST):  # from innermost to outermost
        template, replaced = _OPTIONAL.subn(first_known, template)
        if not replaced:
            break
    return template


def _several(how: str, parts: Iterable[MessageLike]) -> MessageLike:
    messages = tuple(part for part in parts if part)
    return Message(f"{{{how}}}", {how: messages}) if len(messages) > 1 else messages[0] if messages else ""


#: clauses, sentences, and lists, each combined into one message
clauses, sentences, all_of = (partial(_several, how) for how in ("clauses", "sentences", "all"))


def template(text: str) -> str:
    """Mark a template in a table for extraction tools; returned unchanged."""
    return text


def to_json(value: Any) -> Any:
    """Return a message in JSON types: a name as a string, else template and facts; or facts alone."""
    if isinstance(value, Message):
        document = {"template": value.template, "facts": to_json(value.facts)}
        return document | ({"plural": value.plural} if value.plural else {})
    if isinstance(value, Mapping):
        return {name: to_json(fact) for name, fact in value.items()}
    return list(map(to_json, value)) if isinstance(value, tuple) else value


def to_text(message: MessageLike) -> str:
    """Return a message encoded for a text column; anything else unchanged."""
    return message if isinstance(message, str) else json.dumps(to_json(message), ensure_ascii=False)


def from_text(text: str) -> MessageLike:
    """Return a message encoded by ``to_text``, or else the plain text."""
    if not text.startswith('{"template": '):
        return text
    try:
        return from_json(json.loads(text))
    except (ValueError, RecursionError):
        return text


def from_json(document: Any) -> MessageLike:
    """Return a message from ``to_json``; ValueError for anything else."""
    if isinstance(document, str):
        return document
    if not isinstance(document, Mapping) or not isinstance(document.get("template"), str):
        raise ValueError("not a message")
    facts = facts_from_json(document.get("facts", {}))
    return Message(document["template"], facts, str(document.get("plural", "")))


def facts_from_json(document: Mapping[str, Any]) -> dict[str, Fact]:
    """Return facts from ``to_json``; ValueError for anything else."""
    return {str(name): _fact(value) for name, value in document.items()}


def _fact(value: Any) -> Fact:
    if isinstance(value, list):
        return tuple(map(_fact, value))
    known = isinstance(value, (int, float)) and abs(value) <= _LARGEST  # False for NaN
    return value if known else from_json(value)


#: larger than any figure of ours: a foreign row may say more, which could not be shown
_LARGEST = 1e18
#: in the year 5138: the C library cannot format every later time
_LAST_WALL = 1e11
_MAX_CHARACTERS = 500
#: the most frequent errors of the C library, of SQLite, and of ``wslgpud.security.safe_files``, which cannot import
#: this module
FAILURES = frozenset(TEMPLATES["failures"])


class MessageError(Exception):  # mostly a condition, not a bug
    """An error with a message, or with a template and its facts, rendered only where it is shown."""

    def __init__(self, message: MessageLike, /, **facts: Fact) -> None:
        if facts and isinstance(message, str):
            message = Message(message, facts)
        super().__init__(message)
        # A part of the text may come from a foreign server or program.
        self.message = one_line(message, _MAX_CHARACTERS) if isinstance(message, str) else message

    def __str__(self) -> str:
        return one_line(str(self.message), _MAX_CHARACTERS)


def known(text: str) -> MessageLike:
    """Return the message of a frequent foreign error, else its text."""
    return Message(text) if text in FAILURES else text


def cause(error: BaseException) -> MessageLike:
    """Return an error's message, the system's reason, or else its text in one line."""
    first = error.args[0] if error.args else ""
    if isinstance(error, OSError) and error.strerror:  # rare reasons stay in English
        return Message(error.strerror)
    return first if isinstance(first, Message) else known(one_line(str(error)))


#: languages other than English, the language of the templates; their catalogues lie beside this file
TRANSLATIONS = ("zh",)
LANGUAGES = ("en", *TRANSLATIONS)

#: length that a lock screen, a toast's first line and a mail's subject show untruncated
HEADLINE_CHARACTERS = 100
#: no channel shows more, and nobody reads a mail of a megabyte
MAX_CHARACTERS = 3000

_WIDE = r"[\u3000-\u9fff\uff00-\uffef]"
_GAP = re.compile(rf"(?<={_WIDE}) (?={_WIDE})")
#: (limit in seconds, unit in seconds) of durations
_SPANS: Final = (
    (90, 1, template("{number} s")),
    (90 * 60, 60, template("{number} min")),
    (36 * 3600, 3600, template("{number} h")),
    (math.inf, 86400, template("{number} d")),
)


@dataclass(frozen=True, eq=False)
class Translator:
    """A language: its code (``en``, ``zh``) and its translations of the English templates."""

    code: str
    _translations: Mapping[str, str]

    def text(self, message: MessageLike) -> str:
        if isinstance(message, str):
            return message
        plural = bool(message.plural) and message.facts.get("count") != 1
        chosen = message.plural if plural and not self._translations else message.template
        facts, blanks = message.facts, without_unknown(self.template(chosen), message.facts)
        return _fill(blanks, lambda name: self.fact(name, facts[name]) if name in facts else None)

    def t(self, text: str, /, **facts: Fact) -> str:
        """Return a rendered template: ``text`` for one not needed as a message."""
        return self.text(Message(text, facts))

    def template(self, text: str) -> str:
        """Return a template in this language, in English where there is no translation."""
        return self._translations.get(text, text)

    def document(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        """Return the known facts for JSON, with messages rendered; headlines are shortened to fit."""
        known = {k: v for k, v in facts.items() if v is not None and v != Message("")}
        return {name: self._worded(name, value) for name, value in known.items()}

    def listed(self, parts: Iterable[MessageLike]) -> str:
        return self.text(all_of(parts))

    def fact(self, name: str, value: Fact) -> str:
        """Format a fact for people; its name gives the unit.

        ``_bytes`` (a pair is a part of a whole), ``_bytes_per_second`` (with its sign; ``urgent_``: never per minute),
        ``_seconds``, ``_ratio``, ``_wall`` (seconds since the epoch, as date and time), ``_clock`` (the same as time of
        day), ``resource``, ``source``.
        """
        if isinstance(value, Message):
            return self.text(value)
        if isinstance(value, tuple):
            return self._several(name, value)
        if isinstance(value, str):
            if name == "source":
                return self.label(name, value)
            return self.resource(value) if name.endswith("resource") else one_line(value)
        for ending, write in _UNITS.items():
            if name.endswith(ending):
                return write(self, value)
        return f"{value:g}" if isinstance(value, float) else str(value)

    def duration(self, seconds: float) -> str:
        """Format a duration: ``8 s``, ``4 min``, ``2 h``, ``3 d``."""
        seconds = abs(seconds)
        unit, text = next((unit, text) for limit, unit, text in _SPANS if seconds < limit)
        return self.t(text, number=max(1, round(seconds / unit)))

    def rate(self, value: float, *, urgent: bool = False) -> str:
        """Format a rate with a few digits before the point: ``+310 MiB/min``; + means growing use."""
        sign, value = ("\N{MINUS SIGN}" if value < 0 else "+"), abs(value)
        if urgent and 1 << 20 <= value < 9.95 * (1 << 20):  # whole MiB would be a third off
            return self.t("{amount}/s", amount=f"{sign}{value / (1 << 20):.1f} MiB")
        if urgent or value >= 50 << 20:
            return self.t("{amount}/s", amount=sign + size(value))
        return self.t("{amount}/min", amount=sign + size(60 * value))

    def resource(self, resource: str) -> str:
        """Format a resource for people: ``RAM``, ``GPU 0``, ``cgroup /build``."""
        kind, _, rest = resource.partition(":")
        if resource.startswith("gpu"):  # an index, or a name where the index is unknown
            return f"GPU {printable(resource[3:].strip())}".strip()
        named = TEMPLATES["resource"].get(kind)
        return self.t(named, name=printable(rest), path=resource_path(rest)).strip() if named else printable(resource)

    def label(self, kind: str, name: str) -> str:
        """Return the label of a level, a state or a figure (``label`` in ``templates.toml``)."""
        return self.template(TEMPLATES["label"][kind].get(name, name))

    def _worded(self, name: str, value: Any) -> Any:
        if isinstance(value, Message):
            return one_line(self.text(value), HEADLINE_CHARACTERS if name == "headline" else MAX_CHARACTERS)
        if isinstance(value, Mapping):
            return self.document(value)
        return [self._worded("", one) for one in value] if isinstance(value, (list, tuple)) else value

    def _several(self, name: str, values: tuple[Fact, ...]) -> str:
        numbers = [value for value in values if isinstance(value, (int, float))]
        if name.endswith("bytes") and len(numbers) == len(values) == 2:
            part, total = map(size, numbers)
            if part.split()[-1] == total.split()[-1]:
                part = part.split()[0]
            return self.t("{part} of {whole}", part=part, whole=total)
        between = self.template(TEMPLATES["between"].get(name, TEMPLATES["between"]["all"]))
        return between.replace("{first}", "").replace("{rest}", "").join(self.fact(name, v) for v in values)


def _moment(wall: float, form: str) -> str:
    return datetime.fromtimestamp(min(max(0.0, wall), _LAST_WALL), timezone.utc).astimezone().strftime(form)


#: format of a fact, by the suffix of its name
_UNITS: Final[Mapping[str, Callable[[Translator, float], str]]] = {
    "urgent_bytes_per_second": lambda translator, value: translator.rate(value, urgent=True),
    "bytes_per_second": Translator.rate,
    "bytes": lambda _, value: size(value),
    "seconds": Translator.duration,
    "ratio": lambda _, value: f"{100 * value:.0f} %",
    "_wall": lambda _, value: _moment(value, "%Y-%m-%d %H:%M:%S"),
    "_clock": lambda _, value: _moment(value, "%H:%M:%S"),
}


def _fill(text: str, value: Callable[[str], str | None]) -> str:
    """Fill in the placeholders that have a value; the page does the same in ``i18n.js``.

    Chinese text has a space next to Latin text only: templates have one around each placeholder, which is removed where
    the value is Chinese.
    """
    joined = ""
    for number, piece in enumerate(BLANK.split(text)):
        filled = piece if number % 2 == 0 else value(piece)
        filled = f"{{{piece}}}" if filled is None else filled
        joined = joined[:-2] + _GAP.sub("", joined[-2:] + filled[:2]) + filled[2:]
    return joined


ENGLISH = Translator("en", {})


@cache
def translator(code: str) -> Translator:
    """Return a language by its code, one of ``LANGUAGES``."""
    return ENGLISH if code == ENGLISH.code else Translator(code, translations(code))


def translations(code: str, said_in: str = "") -> dict[str, str]:
    """Return a language's translation of each template used in files below ``said_in``."""
    if code == ENGLISH.code:
        return {}
    if code not in TRANSLATIONS:
        raise KeyError(code)
    import polib  # needed only for translations

    entries = polib.pofile(str(Path(__file__).with_name(f"{code}.po")), encoding="utf-8")
    return {
        e.msgid: e.msgstr or e.msgstr_plural.get(0, "") or e.msgid
        for e in entries
        if not e.obsolete and any(file.startswith(said_in) for file, _ in e.occurrences)
    }


def chosen(setting: str, environ: Mapping[str, str]) -> str:
    """Return the code of the configured language, else the locale's, else English."""
    if setting in LANGUAGES:
        return setting
    locale = environ.get("LC_ALL") or environ.get("LC_MESSAGES") or environ.get("LANG") or ""
    return next((code for code in TRANSLATIONS if locale.startswith(code)), ENGLISH.code)


_current = ENGLISH


def use(code: str) -> None:
    """Choose the language of this command's output."""
    global _current  # noqa: PLW0603 - a process that prints has one reader
    _current = translator(code)


def current() -> Translator:
    return _current


def t(text: str, /, **facts: Fact) -> str:
    """Return a template rendered in the language of this command."""
    return _current.t(text, **facts)
