"""A message: a template with facts, worded only where somebody reads it.

The engine, the rules, the doctor and the stress test emit messages; rows, the API and recordings keep
template and facts. The template is the English text, as in gettext, and the key of every translation. A
blank is the name of a fact, and its ending tells the unit (``left_bytes``, ``eta_seconds``,
``used_ratio``), see ``Tongue.fact``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Union

Fact = Union[str, int, float, "Message", tuple["Fact", ...]]

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


#: a name is the same in every language
Said = str | Message


def say(template: str, /, **facts: Fact) -> Message:
    """Return a message; translators' tools find its template by this function's name."""
    return Message(template, facts)


def says(one: str, many: str, /, *, count: int, **facts: Fact) -> Message:
    """Return a message that counts: ``one`` is the template for a ``count`` of 1."""
    return Message(one, {"count": count, **facts}, many)


def clauses(parts: Iterable[Said]) -> Said:
    """Return several things that are said of one matter as one message."""
    found = [part for part in parts if part]
    whole: Said = found.pop() if found else ""
    while found:
        whole = say("{first}; {rest}", first=found.pop(), rest=whole)
    return whole


def all_of(parts: Iterable[Said]) -> Message:
    """Return an enumeration as one message."""
    return say("{all}", all=tuple(parts))


def template(text: str) -> str:
    """Mark a template that stands in a table, for translators' tools; it is returned as it is."""
    return text


def to_json(said: Said) -> Any:
    """Return a message as JSON can hold it: a name as a string, else template and facts."""
    if isinstance(said, str):
        return said
    found: dict[str, Any] = {"template": said.template, "facts": facts_to_json(said.facts)}
    return found | ({"plural": said.plural} if said.plural else {})


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


def facts_to_json(facts: Mapping[str, Fact]) -> dict[str, Any]:
    """Return facts as JSON can hold them."""
    return {name: _plain(value) for name, value in facts.items()}


def from_json(document: Any) -> Said:
    """Return what ``to_json`` has written.

    Raises:
        ValueError: it is something else.
    """
    if isinstance(document, str):
        return document
    if not isinstance(document, Mapping) or not isinstance(document.get("template"), str):
        raise ValueError("not a message")  # noqa: TRY004 - of the document, as any other fault in it
    return Message(
        document["template"], facts_from_json(document.get("facts", {})), str(document.get("plural", ""))
    )


def facts_from_json(document: Mapping[str, Any]) -> dict[str, Fact]:
    """Return what ``facts_to_json`` has written.

    Raises:
        ValueError: it is something else.
    """
    return {str(name): _fact(value) for name, value in document.items()}


def _plain(value: Fact) -> Any:
    if isinstance(value, Message):
        return to_json(value)
    return [_plain(one) for one in value] if isinstance(value, tuple) else value


def _fact(value: Any) -> Fact:
    if isinstance(value, (str, int, float)):
        return value
    if isinstance(value, list):
        return tuple(map(_fact, value))
    return from_json(value)
