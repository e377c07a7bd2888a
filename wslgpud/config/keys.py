"""Configuration keys: type and bounds of each, and validation of values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from wslgpud.security.redaction import MaskedError, Shown
from wslgpud.words import Message, say

ENVIRONMENT_PREFIX = "WSLGPUD_"


class ConfigError(MaskedError):
    """The configuration is invalid; the message says where, why, and what to do."""


def key(default: Any, meaning: str, **limits: Any) -> Any:
    """Declare a key: its default, what it means, and ``limits``, which are the last fields of ``ConfigKey``."""
    return field(default=default, metadata={"help": meaning, **limits})


@dataclass(frozen=True)
class ConfigKey:
    """A declared key: its valid values, and how much of the value may be shown."""

    section: str
    name: str
    type: Any
    default: Any
    help: str
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    shows: Shown = "all"

    @property
    def path(self) -> str:
        """Name in messages: ``section.name``."""
        return f"{self.section}.{self.name}"

    @property
    def environment(self) -> str:
        """Name of the environment variable that overrides it."""
        return f"{ENVIRONMENT_PREFIX}{self.section}__{self.name}".upper()


def checked(declared: ConfigKey, value: Any, origin: str) -> Any:
    """Return a value in the key's own type; it comes from TOML, or as text from an environment variable.

    Raises:
        ConfigError: the value is invalid; ``origin`` says where it was given.
    """
    kind = declared.type
    if isinstance(value, str) and kind is not str:
        value = _from_text(kind, value)
    if kind is float and type(value) is int:
        value = float(value)
    if kind == tuple[str, ...] and isinstance(value, list):
        value = tuple(value)
    if expected := _expected(declared, value):
        shown = repr(value) if declared.shows == "all" else say("the value given")
        problem = say("{key} must be {expected}, not {value}", key=declared.path, expected=expected, value=shown)
        raise ConfigError("{path}: {why}", path=origin, why=problem)
    return value


_KINDS = {int: say("a whole number"), float: say("a number"), bool: say("true or false")}


def allowed(declared: ConfigKey) -> tuple[Message, ...]:
    """Return a key's valid values: its type and limits, or its choices."""
    return tuple(part for part in (None if declared.choices else _kind(declared), _limits(declared)) if part)


def _kind(declared: ConfigKey) -> Message:
    return say("a list of strings") if declared.type == tuple[str, ...] else _KINDS.get(declared.type, say("text"))


def _limits(declared: ConfigKey) -> Message | None:
    if declared.choices:
        return say("one of {names}", names=tuple(one or '""' for one in declared.choices))
    if declared.low is None and declared.high is None:
        return None
    if declared.high is None:
        return say("at least {least}", least=declared.low or 0)
    return say("between {least} and {most}", least=declared.low or 0, most=declared.high)


def _expected(declared: ConfigKey, value: Any) -> Message | None:
    """Return the requirement that ``value`` violates; None if it is valid."""
    if declared.type == tuple[str, ...]:
        good = isinstance(value, tuple) and all(isinstance(one, str) for one in value)
        return None if good else _kind(declared)
    if type(value) is not declared.type:
        return _kind(declared)
    if declared.choices:
        return None if value in declared.choices else _limits(declared)
    low, high = declared.low, declared.high
    # Written as conditions that must hold, so that NaN, which fails every comparison, is rejected.
    return None if (low is None or value >= low) and (high is None or value <= high) else _limits(declared)


def _from_text(kind: Any, text: str) -> Any:
    """Parse an environment variable as ``kind``; invalid text is returned unchanged, to be rejected later."""
    try:
        if kind is bool:
            return {"true": True, "1": True, "false": False, "0": False}.get(text.lower(), text)
        if kind in (int, float):
            return kind(text)
    except ValueError:
        return text
    return [part for part in text.split(",") if part]
