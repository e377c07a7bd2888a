"""A section of ``web.config.file``: its values by type; every error names the file, the section and the remedy."""

from __future__ import annotations

import difflib
from collections.abc import Collection
from pathlib import Path
from typing import Any

from wslgpud.config.key import ConfigError
from wslgpud.security import safe_files
from wslgpud.words import Fact, Message, MessageLike, failure, say

#: A bundle of certificates or a key: all public authorities together have a fifth of it.
FILE_BYTES = 1 << 20


class Section:
    """The keys and values of a section; the files it names are relative to the folder of ``path``."""

    def __init__(self, path: Path, value: Any, known: Collection[str], name: str = "") -> None:
        """Check the keys. Raises ConfigError for one that is not ``known``."""
        self.path = path
        self.where: MessageLike = say("{title}: {text}", title=str(path), text=name) if name else str(path)
        self.values = {} if value is None else value
        if not isinstance(self.values, dict):
            raise self.say("must be keys and values")
        for key in self.values:
            if key not in known:
                raise self.say("unknown key {name}; {hint}", name=key, hint=hint(key, known))

    def say(self, template: str, /, **facts: Fact) -> ConfigError:
        """Return what to raise for a mistake in this section: a message with its place."""
        return ConfigError("{path}: {why}", path=self.where, why=Message(template, facts))

    def text(self, name: str) -> str:
        """Return a text, empty by default."""
        return str(self._typed(name, str, say("text")) or "")

    def flag(self, name: str, *, default: bool) -> bool:
        """Return true or false."""
        value = self._typed(name, bool, say("true or false"))
        return default if value is None else bool(value)

    def texts(self, name: str, known: Collection[str] = ()) -> list[str]:
        """Return a list of texts, each one of ``known`` if there are any."""
        found: list[str] = self._typed(name, list, form := say("a list of strings")) or []
        for value in found:
            if not isinstance(value, str):
                raise self.say("{name} must be {form}", name=name, form=form)
            if known:
                self.known(name, value, known)
        return found

    def known(self, name: str, value: str, known: Collection[str]) -> str:
        """Return ``value``, which must be one of ``known``."""
        if value not in known:
            choices = tuple(filter(None, known))
            raise self.say("{name}: {value} is unknown; it may be {known}", name=name, value=value, known=choices)
        return value

    def pem(self, name: str) -> tuple[str, Path | None]:
        """Return what stands there as ``name`` or in the file ``name_file``, and that file; empty without either."""
        inline, file_key = self.text(name), f"{name}_file"
        file = self.path.parent / self.text(file_key) if self.text(file_key) else None
        if inline and file:
            raise self.say("give either {file} or {name}", file=file_key, name=name)
        if file is None:
            return inline, None
        try:
            return safe_files.contents(file, FILE_BYTES, follow=True).decode("ascii", "replace"), file
        except OSError as error:
            why = failure(error)
            raise self.say("{name}: {path}: {why}", name=file_key, path=str(file), why=why) from error

    def _typed(self, name: str, kind: type, form: MessageLike) -> Any:
        value = self.values.get(name)
        if value not in (None, "") and not isinstance(value, kind):
            raise self.say("{name} must be {form}", name=name, form=form)
        return value if isinstance(value, kind) else None


def hint(name: object, known: Collection[str]) -> Message:
    """Say which of the known names was probably meant."""
    if close := difflib.get_close_matches(str(name), known, n=1):
        return say("did you mean {name}?", name=close[0])
    return say("known are {names}", names=tuple(known))
