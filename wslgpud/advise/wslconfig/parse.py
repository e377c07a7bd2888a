r"""A parser that takes .wslconfig exactly as WSL does, and says what WSL says.

Follows src/shared/configfile/configfile.cpp and ParseBool, ParseMemorySize in src/shared/inc/stringshared.h
of https://github.com/microsoft/WSL. Surprising: only ``#`` begins a comment; ``\`` must be doubled;
sizes take upper-case units without a fraction; the first of two equal keys counts, even when its value is
nonsense; a line that cannot be read is skipped. Warnings have the words of
localization/strings/en-US/Resources.resw.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from ipaddress import AddressValueError, IPv4Address
from typing import Literal, NamedTuple

from wslgpud.advise.wslconfig.keys import BY_PATH, Key

Value = bool | int | str
State = Literal["used", "unknown", "duplicate", "refused"]

_UNITS = {"": 1, "B": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SIZE = re.compile(r"\s*([+-]?)([0-9]+)(|B|KB?|MB?|GB?|TB?)")
_ESCAPES = {"\\": "\\", '"': '"', "b": "\b", "n": "\n", "t": "\t"}
_WRAP = 1 << 64
_REFUSALS = {
    "bool": "Invalid boolean value '{value}' for key '{written}' in {where}",
    "integer": "Invalid integer value '{value}' for key '{written}' in {where}",
    "size": "Invalid memory string '{value}' for .wslconfig entry '{written}' in {where}",
    "address": "Invalid IP value '{value}' for key '{written}' in {where}",
    "choice": "Invalid value '{value}' for config key '{written}' in {where} (Valid values: {choices})",
}


class Warned(NamedTuple):
    """What WSL would print on the Windows console, and of which line."""

    line: int
    text: str


@dataclass(frozen=True, slots=True)
class Entry:
    """One ``key = value`` that could be read.

    ``written`` is section and name as WSL would show them, ``name`` the key's name as it stands there,
    ``value`` what WSL makes of the text between ``span`` (start and end in the file's text), ``begin`` where
    the name begins; ``result`` is None unless the entry counts.
    """

    written: str
    name: str
    value: str
    line: int
    span: tuple[int, int]
    begin: int
    end: int
    state: State
    key: Key | None = None
    result: Value | None = None


class Skipped(NamedTuple):
    """A setting's line that could not be read: the key's name, and where the line begins and ends."""

    name: str
    begin: int
    end: int


@dataclass(slots=True)
class Parsed:
    """A whole file. ``headers`` maps sections (lower case) to the end of their first header's line."""

    entries: list[Entry] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    warnings: list[Warned] = field(default_factory=list)
    headers: dict[str, int] = field(default_factory=dict)

    def get(self, path: str) -> Value | None:
        """Return the value that counts for ``section.name``, or None where WSL takes its default."""
        key = BY_PATH[path.lower()]
        return next((e.result for e in self.entries if e.key is key and e.state == "used"), None)

    def first(self, path: str) -> Entry | None:
        """Return the entry that decides about ``section.name``: the first, even a refused one."""
        key = BY_PATH[path.lower()]
        return next((e for e in self.entries if e.key is key), None)


def parse(text: str, path: str = ".wslconfig") -> Parsed:
    """Parse the text of a .wslconfig.

    Args:
        text: the file, decoded, with whatever line ends it has.
        path: how warnings are to name the file.
    """
    return _Parser(text, path).run()


def size(text: str) -> int | None:
    """Return a size in bytes as WSL reads it, or None where WSL refuses it."""
    match = _SIZE.fullmatch(text)
    if not match:
        return None
    # strtoull stops there; Python itself refuses to read thousands of digits.
    number = min(int(match[2].lstrip("0")[:21] or "0"), _WRAP - 1)
    if number == 0 and text[: match.end(2)] != "0":  # 00GB, -0
        return None
    return (-number if match[1] == "-" else number) * _UNITS[match[3][:1]] % _WRAP


def integer(text: str) -> int | None:
    """Return a number as C's ``strtol(value, &end, 0)`` reads it, or None where WSL refuses it."""
    match = re.fullmatch(r"\s*([+-]?)(0[xX][0-9a-fA-F]+|[0-9]+)", text)
    if not match:
        return None
    digits = match[2]
    base = 16 if digits[:2].lower() == "0x" else 8 if digits.startswith("0") else 10
    try:
        number = int(digits, base)
    except ValueError:  # 08: strtol stops before the 8
        return None
    number = -number if match[1] == "-" else number
    return number if -(1 << 31) <= number < 1 << 31 else None


def boolean(text: str) -> bool | None:
    """Return true or false, or None where WSL refuses it (yes, on)."""
    return {"true": True, "1": True, "false": False, "0": False}.get(text.lower())


class _BadLine(Exception):  # noqa: N818 - the line is skipped, nothing more
    """The line cannot be read; WSL skips it."""


class _Parser:
    """The state machine. ``key`` outlives lines on purpose: WSL's does, see ``_key_value``."""

    def __init__(self, text: str, path: str) -> None:
        self.text, self.path = text, path
        self.at, self.line = 0, 1
        self.key, self.section_length = "", 0
        self.name = ""
        self.parsed = Parsed()

    def run(self) -> Parsed:
        while self.at < len(self.text):
            char = self._peek()
            if char == "\n":
                self._step()
                self.line += 1
            elif char in " \t\r\ufeff" and (char != "\ufeff" or self.at == 0):
                self._step()
            elif char == "#":
                self._skip_line()
            else:
                begin, self.name = self.at, ""
                try:
                    self._section() if char == "[" else self._key_value()
                except _BadLine:
                    self._skip_line()
                    self.parsed.skipped.append(Skipped(self.name, begin, self.at))
        return self.parsed

    def _peek(self) -> str:
        r"""Return the next character: \r\n counts as one \n, the end as nothing."""
        if self.text.startswith("\r\n", self.at):
            return "\n"
        return self.text[self.at : self.at + 1]

    def _step(self) -> None:
        self.at += 2 if self.text.startswith("\r\n", self.at) else 1

    def _skip_line(self) -> None:
        while self._peek() not in ("", "\n"):
            self._step()

    def _skip_spaces(self) -> None:
        while self._peek() in (" ", "\t"):
            self._step()

    def _warn(self, text: str) -> None:
        self.parsed.warnings.append(Warned(self.line, text))

    def _bad(self, text: str) -> _BadLine:
        self._warn(f"{text} in {self.path}:{self.line}")
        return _BadLine()

    def _word(self) -> str:
        start = self.at
        while _letter_or_digit(self._peek()):
            self._step()
        return self.text[start : self.at]

    def _section(self) -> None:
        self._step()
        if not _letter(self._peek()):
            raise self._bad("Invalid section name")
        self.key = self._word()
        if self._peek() != "]":
            raise self._bad("Expected ']'")
        self._step()
        self._skip_spaces()
        if self._peek() not in ("", "\n", "\r", "#"):
            raise self._bad(r"Expected ' ' or '\n'")
        self.section_length = len(self.key)
        name = self.key.lower()
        if self._peek() == "#":
            self._skip_line()
        self.parsed.headers.setdefault(name, self.at)

    def _key_value(self) -> None:
        if not _letter(self._peek()):
            raise self._bad("Invalid key name")
        # WSL cuts what it read last to the length of the last good section: behind a header that it refused,
        # keys get a section of nonsense. C strings end at the first NUL that the cut pads with.
        self.key = self.key[: self.section_length].ljust(self.section_length, "\0")
        begin, self.name = self.at, self._word()
        self.key += "." * bool(self.key) + self.name
        written = self.key.partition("\0")[0]
        self._skip_spaces()
        if self._peek() != "=":
            raise self._bad("Expected '='")
        self._step()
        self._skip_spaces()
        value, span = self._value()
        self.parsed.entries.append(self._entry(written, value, span, begin))

    def _value(self) -> tuple[str, tuple[int, int]]:
        start = trimmed_at = self.at
        value, trimmed, quoted = "", 0, False
        while (char := self._peek()) not in ("", "\n", "\r"):
            if char == "#" and not quoted:
                break
            self._step()
            if char == '"':
                quoted = not quoted
            elif char == "\\":
                value += self._escape()
            else:
                value += char
            if char not in " \t":
                trimmed, trimmed_at = len(value), self.at
        if quoted:
            raise self._bad('Expected "')
        end = self.at
        if char == "#":
            self._skip_line()
        return value[:trimmed], (start, min(trimmed_at, end))

    def _escape(self) -> str:
        char = self._peek()
        if char in _ESCAPES:
            self._step()
            return _ESCAPES[char]
        if char == "\n":
            self._step()
            self.line += 1
            return ""
        raise self._bad(f"Invalid escaped character: '{char}'")

    def _entry(self, written: str, value: str, span: tuple[int, int], begin: int) -> Entry:
        where = f"{self.path}:{self.line}"
        key = BY_PATH.get(written.lower())
        state: State = "used"
        result: Value | None = None
        earlier = next((e for e in self.parsed.entries if e.key is key), None) if key else None
        if key is None:
            state = "unknown"
            self._warn(f"Unknown key '{written}' in {where}")
        elif earlier:
            state = "duplicate"
            self._warn(
                f"Duplicated config key '{written}' in {where}"
                f" (Conflicting key: '{earlier.written}' in {self.path}:{earlier.line})"
            )
        else:
            result = _convert(key, value)
            for text in _complaints(key, written, value, where):
                self._warn(text)
            if result is None:
                state = "refused"
        return Entry(written, self.name, value, self.line, span, begin, self.at, state, key, result)


def _convert(key: Key, value: str) -> Value | None:
    if key.kind == "bool":
        return boolean(value)
    if key.kind == "integer":
        return integer(value)
    if key.kind == "size":
        return size(value)
    if key.kind == "choice":
        return next((c for c in key.choices if c.lower() == value.lower()), None)
    if key.kind == "address":
        return value if _is_address(value) else None
    return value


def _complaints(key: Key, written: str, value: str, where: str) -> Iterator[str]:
    """Return what WSL says of a value."""
    if key.kind == "ports":
        for port in value.split(","):
            number = re.match(r"\s*\+?0*([0-9]+)", port)  # std::stoi stops at the first odd character
            if not number or len(number[1]) > 5 or not 0 < int(number[1]) < 1 << 16:
                yield f"Invalid integer value '{value}' for key '{written}' in {where}"
    elif key.kind == "mac":
        if not re.fullmatch(r"[0-9a-fA-F]{2}([:-][0-9a-fA-F]{2}){5}", value):
            yield f"Invalid mac address '{value}' for key '{written}' in {where}"
    elif _convert(key, value) is None:
        yield _REFUSALS[key.kind].format(
            value=value, written=written, where=where, choices=", ".join(key.choices)
        )


def _is_address(value: str) -> bool:
    try:
        IPv4Address(value)
    except AddressValueError:
        return False
    return True


def _letter(char: str) -> bool:
    return char.isascii() and char.isalpha()


def _letter_or_digit(char: str) -> bool:
    return char.isascii() and char.isalnum()
