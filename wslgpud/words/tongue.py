"""A language: its translations, and the one way in which it writes sizes, times, rates and resources."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timezone
from functools import cache
from pathlib import Path
from typing import Any, Final

from wslgpud.units import one_line, printable, resource_path, size
from wslgpud.words.message import BLANK, Fact, Message, Said, all_of, template, without_unknown

#: other than English, which templates are written in: the catalogue of each lies beside this file
TRANSLATIONS = ("zh",)
LANGUAGES = ("en", *TRANSLATIONS)

#: what a lock screen, a toast's first line and a mail's subject show without cutting
HEADLINE_CHARACTERS = 100
#: no channel shows more, and a mail of a megabyte helps nobody
MOST_CHARACTERS = 3000

#: what stands between the parts of a fact of several, by its name, and of any other
_BETWEEN: Final[Mapping[str, str]] = {
    "clauses": template("{first}; {rest}"),
    "sentences": template("{first} {rest}"),
    "": template("{first}, {rest}"),
}
_WIDE = r"[\u3000-\u9fff\uff00-\uffef]"
_GAP = re.compile(rf"(?<={_WIDE}) (?={_WIDE})")
#: what a resource other than a memory is called; the rest of its name follows
_KINDS: Final[Mapping[str, str]] = {
    "disk": template("disk {name}"),
    "source": template("source {name}"),
    "clock": template("clock"),
    "store": template("history"),
    "machine": template("machine"),
    "daemon": template("daemon"),
    "windows": template("Windows"),
}


class Tongue:
    """One language. Words come from a catalogue by their English template, figures from the rules below."""

    def __init__(self, code: str, translations: Mapping[str, str]) -> None:
        """Take the language's code (``en``, ``zh``) and what each template is in it."""
        self.code = code
        self._translations = translations

    def text(self, said: Said) -> str:
        """Return what people read."""
        if isinstance(said, str):
            return said
        plural = bool(said.plural) and said.facts.get("count") != 1
        chosen = said.plural if plural and not self._translations else said.template
        facts, blanks = said.facts, without_unknown(self.template(chosen), said.facts)
        return _fill(blanks, lambda name: self.fact(name, facts[name]) if name in facts else None)

    def t(self, text: str, /, **facts: Fact) -> str:
        """Return a template with its facts: ``text`` of what has no other use as a message."""
        return self.text(Message(text, facts))

    def template(self, text: str) -> str:
        """Return a template in this language, or as it is where nobody has translated it."""
        return self._translations.get(text, text)

    def document(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        """Return what is known of facts as JSON, its messages in words; a headline is one that fits."""
        known = {k: v for k, v in facts.items() if v is not None and v != Message("")}
        return {name: self._worded(name, value) for name, value in known.items()}

    def listed(self, parts: Iterable[Said]) -> str:
        """Return an enumeration."""
        return self.text(all_of(parts))

    def fact(self, name: str, value: Fact) -> str:  # noqa: PLR0911 - a line for each unit
        """Write a fact the way people do; its name tells the unit.

        ``_bytes`` (a pair is a part of a whole), ``_bytes_per_second`` (with its sign), ``_seconds``,
        ``_ratio``, ``_wall`` (seconds since the epoch, as date and time), ``_clock`` (the same as time of
        day), ``resource``.
        """
        if isinstance(value, Message):
            return self.text(value)
        if isinstance(value, tuple):
            return self._several(name, value)
        if isinstance(value, str):
            return self.resource(value) if name.endswith("resource") else one_line(value)
        if name.endswith("bytes_per_second"):
            return self.rate(value)
        if name.endswith("bytes"):
            return size(value)
        if name.endswith("seconds"):
            return self.duration(value)
        if name.endswith("ratio"):
            return f"{100 * value:.0f} %"
        if name.endswith(("_wall", "_clock")):
            moment = datetime.fromtimestamp(value, timezone.utc).astimezone()
            return f"{moment:%Y-%m-%d %H:%M:%S}" if name.endswith("_wall") else f"{moment:%H:%M:%S}"
        return f"{value:g}" if isinstance(value, float) else str(value)

    def duration(self, seconds: float) -> str:
        """Write a span of time: ``8 s``, ``4 min``, ``2 h``, ``3 d``."""
        seconds = abs(seconds)
        if seconds < 90:
            return self.t("{number} s", number=max(1, round(seconds)))
        if seconds < 90 * 60:
            return self.t("{number} min", number=round(seconds / 60))
        if seconds < 36 * 3600:
            return self.t("{number} h", number=round(seconds / 3600))
        return self.t("{number} d", number=round(seconds / 86400))

    def rate(self, value: float) -> str:
        """Write a rate so that it has a few digits before the point: ``+310 MiB/min``; + is growth of use."""
        sign, value = ("\N{MINUS SIGN}" if value < 0 else "+"), abs(value)
        if value >= 50 << 20:
            return self.t("{amount}/s", amount=sign + size(value))
        return self.t("{amount}/min", amount=sign + size(60 * value))

    def resource(self, resource: str) -> str:
        """Write a resource the way people do: ``RAM``, ``GPU 0``, ``cgroup /build``."""
        kind, _, rest = resource.partition(":")
        if resource == "ram":
            return self.t("RAM")
        if resource.startswith("gpu"):  # a number, or a name where the number is not known
            return f"GPU {printable(resource[3:].strip())}".strip()
        if kind == "cgroup":
            return self.t("cgroup {path}", path=resource_path(rest))
        known = _KINDS.get(kind)
        return printable(resource) if known is None else self.t(known, name=printable(rest)).strip()

    def _worded(self, name: str, value: Any) -> Any:
        if isinstance(value, Message):
            return one_line(self.text(value), HEADLINE_CHARACTERS if name == "headline" else MOST_CHARACTERS)
        if isinstance(value, Mapping):
            return self.document(value)
        return [self._worded("", one) for one in value] if isinstance(value, (list, tuple)) else value

    def _several(self, name: str, values: tuple[Fact, ...]) -> str:
        numbers = [value for value in values if isinstance(value, (int, float))]
        if name.endswith("bytes") and len(numbers) == len(values) == 2:
            part, whole = map(size, numbers)
            if part.split()[-1] == whole.split()[-1]:
                part = part.split()[0]
            return self.t("{part} of {whole}", part=part, whole=whole)
        between = self.template(_BETWEEN.get(name, _BETWEEN[""]))
        return between.replace("{first}", "").replace("{rest}", "").join(self.fact(name, v) for v in values)


def _fill(text: str, value: Callable[[str], str | None]) -> str:
    """Fill the blanks that have a value; the page does the same in ``i18n.js``.

    Chinese has a space beside Latin and none beside Chinese: templates have it around each blank, and it
    goes where what was filled in is Chinese.
    """
    whole = ""
    for number, piece in enumerate(BLANK.split(text)):
        filled = piece if number % 2 == 0 else value(piece)
        filled = f"{{{piece}}}" if filled is None else filled
        whole = whole[:-2] + _GAP.sub("", whole[-2:] + filled[:2]) + filled[2:]
    return whole


ENGLISH = Tongue("en", {})


@cache
def tongue(code: str) -> Tongue:
    """Return a language by its code.

    Raises:
        KeyError: there is none of that code.
    """
    if code == ENGLISH.code:
        return ENGLISH
    if code not in TRANSLATIONS:
        raise KeyError(code)
    return Tongue(code, translations(code))


def translations(code: str, said_in: str = "") -> dict[str, str]:
    """Return a language's translation of each template that is said in files below ``said_in``."""
    if code == ENGLISH.code:
        return {}
    import polib  # noqa: PLC0415 - only who reads a translation pays for it

    entries = polib.pofile(str(Path(__file__).with_name(f"{code}.po")), encoding="utf-8")
    return {
        e.msgid: e.msgstr or e.msgstr_plural.get(0, "") or e.msgid
        for e in entries
        if not e.obsolete and any(file.startswith(said_in) for file, _ in e.occurrences)
    }


def chosen(setting: str, environ: Mapping[str, str]) -> str:
    """Return the code of the configured language, else of the locale's, else English."""
    if setting in LANGUAGES:
        return setting
    locale = environ.get("LC_ALL") or environ.get("LC_MESSAGES") or environ.get("LANG") or ""
    return next((code for code in TRANSLATIONS if locale.startswith(code)), ENGLISH.code)
