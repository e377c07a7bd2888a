"""Words: what the program says, worded at the edge in the reader's language.

``say`` makes a message, a ``Tongue`` words it. A command has one language for all that it prints: ``use``
sets it once, ``t`` words in it. The daemon words each answer in the language that was asked for.
"""

from __future__ import annotations

from wslgpud.words.failure import Told, cause, failure, known
from wslgpud.words.message import (
    Fact,
    Message,
    Said,
    all_of,
    clauses,
    facts_from_json,
    filled,
    from_json,
    from_text,
    say,
    says,
    sentences,
    template,
    to_json,
    to_text,
)
from wslgpud.words.tongue import (
    ENGLISH,
    HEADLINE_CHARACTERS,
    LANGUAGES,
    MOST_CHARACTERS,
    Tongue,
    chosen,
    tongue,
)

__all__ = [
    "ENGLISH", "HEADLINE_CHARACTERS", "LANGUAGES", "MOST_CHARACTERS", "Fact", "Message", "Said", "Told",
    "Tongue", "all_of", "cause", "chosen", "clauses", "current", "facts_from_json", "failure", "filled",
    "from_json", "from_text", "known", "say", "says", "sentences", "t", "template", "to_json", "to_text",
    "tongue", "use",
]  # fmt: skip

_current = ENGLISH


def use(code: str) -> None:
    """Choose the language of all that this command prints."""
    global _current  # noqa: PLW0603 - a process that prints has one reader
    _current = tongue(code)


def current() -> Tongue:
    """Return the language of this command."""
    return _current


def t(text: str, /, **facts: Fact) -> str:
    """Return a template with its facts in the language of this command."""
    return _current.t(text, **facts)
