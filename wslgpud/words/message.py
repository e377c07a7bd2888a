"""A message: a template with facts, worded only where somebody reads it.

The engine, the rules, the doctor and the stress test emit messages; rows, the API and recordings keep
template and facts. The template is the English text, as in gettext, and the key of every translation. A
blank is the name of a fact, and its ending tells the unit (``left_bytes``, ``eta_seconds``,
``used_ratio``), see ``Tongue.fact``.

A part in brackets is said only where its facts are known: ``full in {eta_seconds}[ ({range})]``. Of several,
between bars, the first that is known is said: ``[{who}|A process] was killed``. Brackets around one blank
alone, or around none, are brackets: ``[{section}]``, ``[wsl2]``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Union

Fact = Union[str, int, float, "Message", tuple["Fact", ...]]

BLANK = re.compile(r"\{(\w+)\}")
#: parts within parts; a stranger's database may have rows with very many, each a walk through all of it
_DEEPEST = 4
_OPTIONAL = re.compile(r"\[(?!\{\w+\}\])([^][]*\{[^][]*)\]")
_NO_FACTS: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True)
class Message:
    """A template and its facts. ``plural`` is the template for any ``count`` but one."""

    template: str
    facts: Mapping[str, Fact] = field(default_factory=lambda: _NO_FACTS)
    plural: str = ""

    def __str__(self) -> str:
        """Return the message in English, as logs have it."""
        from wslgpud.words.tongue import ENGLISH  # noqa: PLC0415 - wording needs messages, too

        return ENGLISH.text(self)

    def __bool__(self) -> bool:
        """Tell whether it says anything."""
        return bool(self.template)


_NOTHING = ("", Message(""))
#: a name is the same in every language
Said = str | Message


def say(template: str, /, **facts: Fact) -> Message:
    """Return a message; translators' tools find its template by this function's name."""
    return Message(template, facts)


def says(one: str, many: str, /, *, count: int, **facts: Fact) -> Message:
    """Return a message that counts: ``one`` is the template for a ``count`` of 1."""
    return Message(one, {"count": count, **facts}, many)


def filled(template: str, facts: Mapping[str, Fact]) -> Message:
    """Return a message with what is known of its facts; an empty one where it needs one that is not."""
    known = {name: facts[name] for name in BLANK.findall(template) if facts.get(name, "") not in _NOTHING}
    said = without_unknown(template, known)
    return Message(template, known) if said and known.keys() >= {*BLANK.findall(said)} else Message("")


def without_unknown(template: str, known: Container[str]) -> str:
    """Return a template with those of its optional parts whose facts are known, and no brackets."""
    for _ in range(_DEEPEST):  # from the inmost to the outmost
        template, found = _OPTIONAL.subn(lambda part: _first_known(part[1], known), template)
        if not found:
            break
    return template


def _first_known(part: str, known: Container[str]) -> str:
    choices = part.split("|")
    return next((one for one in choices if all(name in known for name in BLANK.findall(one))), "")


def clauses(parts: Iterable[Said]) -> Said:
    """Return several things that are said of one matter as one message."""
    return _several("clauses", parts)


def sentences(parts: Iterable[Said]) -> Said:
    """Return sentences one after another as one message."""
    return _several("sentences", parts)


def all_of(parts: Iterable[Said]) -> Said:
    """Return an enumeration as one message."""
    return _several("all", parts)


def template(text: str) -> str:
    """Mark a template that stands in a table, for translators' tools; it is returned as it is."""
    return text


def to_json(value: Any) -> Any:
    """Return a message as JSON can hold it, a name as a string, else template and facts; or facts alone."""
    if isinstance(value, Message):
        found = {"template": value.template, "facts": to_json(value.facts)}
        return found | ({"plural": value.plural} if value.plural else {})
    if isinstance(value, Mapping):
        return {name: to_json(fact) for name, fact in value.items()}
    return list(map(to_json, value)) if isinstance(value, tuple) else value


def to_text(said: Said) -> str:
    """Return a message as a column of text can hold it; what is no message stays as it is."""
    return said if isinstance(said, str) else json.dumps(to_json(said), ensure_ascii=False)


def from_text(text: str) -> Said:
    """Return what ``to_text`` has written, or else the text, such as an earlier version's."""
    if not text.startswith('{"template": '):
        return text
    try:
        return from_json(json.loads(text))
    except (ValueError, RecursionError):
        return text


def from_json(document: Any) -> Said:
    """Return what ``to_json`` has made of a message.

    Raises:
        ValueError: it is something else.
    """
    if isinstance(document, str):
        return document
    if not isinstance(document, Mapping) or not isinstance(document.get("template"), str):
        raise ValueError("not a message")  # noqa: TRY004 - of the document, as any other fault in it
    facts = facts_from_json(document.get("facts", {}))
    return Message(document["template"], facts, str(document.get("plural", "")))


def facts_from_json(document: Mapping[str, Any]) -> dict[str, Fact]:
    """Return what ``to_json`` has made of facts.

    Raises:
        ValueError: it is something else.
    """
    return {str(name): _fact(value) for name, value in document.items()}


def _fact(value: Any) -> Fact:
    if isinstance(value, list):
        return tuple(map(_fact, value))
    return value if isinstance(value, (int, float)) else from_json(value)


def _several(how: str, parts: Iterable[Said]) -> Said:
    found = tuple(part for part in parts if part)
    return Message(f"{{{how}}}", {how: found}) if len(found) > 1 else found[0] if found else ""
