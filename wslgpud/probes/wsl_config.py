r"""The keys of .wslconfig and /etc/wsl.conf, and a parser that reads them exactly as WSL does, with WSL's warnings.

Follows src/shared/configfile/configfile.cpp and ParseBool, ParseMemorySize in src/shared/inc/stringshared.h of
https://github.com/microsoft/WSL. Surprising: only ``#`` begins a comment; ``\`` must be doubled; sizes take upper-case
units without a fraction; the first of duplicate keys counts, even if its value is invalid; a malformed line is skipped
in .wslconfig, and ends the parsing of /etc/wsl.conf. Warnings are worded as in
localization/strings/en-US/Resources.resw.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from ipaddress import AddressValueError, IPv4Address
from pathlib import Path
from typing import Any, Literal

from wslgpud.toml import tomllib
from wslgpud.words import template

#: names of the kinds of values
KINDS = {
    "bool": template("true or false"),
    "integer": template("whole number"),
    "size": template("size"),
    "text": template("text"),
    "path": template("path"),
    "ports": template("ports"),
    "address": template("IPv4 address"),
    "mac": template("MAC address"),
}
Kind = Literal["bool", "integer", "size", "text", "path", "choice", "ports", "address", "mac"]

_SOURCE = "https://github.com/microsoft/WSL/blob/master/src/"
_DOCUMENTATION = "https://learn.microsoft.com/windows/wsl/wsl-config#{}-settings"


@dataclass(frozen=True, slots=True)
class WslKey:
    """One setting; ``old_section`` is its former section, which WSL still reads.

    ``default``, ``meaning`` and ``since`` are message templates where they are text.
    """

    section: str
    name: str
    kind: Kind
    default: str
    meaning: str
    link: str
    since: str = template("2.5.8 or earlier")
    choices: tuple[str, ...] = ()
    old_section: str = ""

    @property
    def path(self) -> str:
        """Name as WSL writes it: ``wsl2.memory``."""
        return f"{self.section}.{self.name}"


class WslFile:
    """One of the two files: its keys, by path and by name in lower case (WSL compares without regard to case).

    ``forgiving`` means that WSL skips a malformed line; otherwise it ignores everything below.
    """

    def __init__(self, name: str, table: str, source: str, *, forgiving: bool) -> None:
        self.name, self.forgiving = name, forgiving
        rows = tomllib.loads((Path(__file__).parent / table).read_text("utf-8"))
        self.keys = tuple(_declared(path, row, _SOURCE + source) for path, row in rows.items())
        #: translated columns of the table
        self.texts = {row[c] for row in rows.values() for c in row if c == "meaning" or c.endswith("_words")}
        sections = ((section, key) for key in self.keys for section in (key.section, key.old_section) if section)
        self.by_path = {f"{section}.{key.name}".lower(): key for section, key in sections}
        names = Counter(key.name.lower() for key in self.keys)
        #: a name that occurs in several sections is ambiguous
        self.by_name = {key.name.lower(): key for key in self.keys if names[key.name.lower()] == 1}


def _declared(path: str, row: Mapping[str, Any], link: str) -> WslKey:
    section, name = path.split(".")
    facts = {column.removesuffix("_words"): value for column, value in row.items()}
    if documented := facts.pop("documented", ""):
        link = _DOCUMENTATION.format(documented)
    return WslKey(section, name, **facts | {"choices": tuple(facts.get("choices", ())), "link": link})


WSLCONFIG = WslFile(".wslconfig", "wslconfig.toml", "windows/common/WslCoreConfig.h", forgiving=True)
WSL_CONF = WslFile("wsl.conf", "wslconf.toml", "linux/init/WslDistributionConfig.cpp", forgiving=False)
FILES = (WSLCONFIG, WSL_CONF)

#: Keys that guides recommend although WSL does not know them: name -> remedy.
FOLKLORE = {
    "idlethreshold": template("delete the line: it existed in one build of 2019 (19013) only"),
    "guessvhdsize": template("delete the line: no version of WSL has ever known it"),
}

#: Keys that WSL knew once -> the version that removed them. microsoft/WSL#9899, #12133, MicrosoftDocs/WSL#2023.
#: No other went between the first public source (2.5.8) and that of August 2026.
REMOVED = {"pagereporting": "1.1.7", "pagereportingorder": "1.1.7", "usewindowsdnscache": "2.3.22"}

Value = bool | int | str
State = Literal["used", "unknown", "duplicate", "refused", "unreadable"]

_UNITS = {"": 1, "B": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SIZE = re.compile(r"\s*([+-]?)([0-9]+)(|B|KB?|MB?|GB?|TB?)")
_INTEGER = re.compile(r"\s*([+-]?)(0[xX][0-9a-fA-F]+|[0-9]+)")
_MAC = re.compile(r"[0-9a-fA-F]{2}([:-][0-9a-fA-F]{2}){5}")
_WRAP = 1 << 64
_REFUSALS = {
    "bool": "Invalid boolean value '{value}' for key '{written}' in {where}",
    "integer": "Invalid integer value '{value}' for key '{written}' in {where}",
    "ports": "Invalid integer value '{value}' for key '{written}' in {where}",
    "size": "Invalid memory string '{value}' for .wslconfig entry '{written}' in {where}",
    "address": "Invalid IP value '{value}' for key '{written}' in {where}",
    "mac": "Invalid mac address '{value}' for key '{written}' in {where}",
    "choice": "Invalid value '{value}' for config key '{written}' in {where} (Valid values: {choices})",
}
_ESCAPES = {"\\": "\\", '"': '"', "b": "\b", "n": "\n", "t": "\t"}
#: An escape, or one character of a value; \r\n is a single line end everywhere.
_PIECE = re.compile(r'\\(\r?\n|[\\"bnt])|[^\r\n\\]')
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9]*")
_SPACES = re.compile(r"[ \t]*")
_BETWEEN = re.compile(r"[ \t\r\n]+|\A\ufeff")
_REST_OF_LINE = re.compile(r"[^\n]*?(?=\r?\n|\Z)")
_LINE_END = re.compile(r"\r?\n")


@dataclass(frozen=True, slots=True)
class Entry:
    """One setting, or a malformed line (``unreadable``), which is then its ``value``.

    ``written`` is section and name as WSL would show them, ``name`` the key as spelled in the file, ``value`` WSL's
    interpretation of the text between ``span`` (start and end in the file's text); ``begin`` and ``end`` hold all of
    it. ``warnings`` are what WSL prints on the Windows console; ``result`` is None unless the entry counts.
    """

    written: str
    name: str
    value: str
    line: int
    span: tuple[int, int]
    begin: int
    end: int
    state: State
    warnings: tuple[str, ...] = ()
    key: WslKey | None = None
    result: Value | None = None


@dataclass(slots=True)
class Parsed:
    """A whole file. ``headers`` maps sections (lower case) to the end of their first header's line.

    ``lost`` holds the entries below a line at which WSL stopped parsing; ``windows_line`` is the first line with a
    Windows line end.
    """

    file: WslFile = WSLCONFIG
    entries: list[Entry] = field(default_factory=list)
    lost: list[Entry] = field(default_factory=list)
    headers: dict[str, int] = field(default_factory=dict)
    windows_line: int = 0

    def get(self, path: str) -> Value | None:
        """Return the effective value of ``section.name``, or None where WSL uses its default."""
        entry = self.first(path)
        return entry.result if entry else None

    def first(self, path: str) -> Entry | None:
        """Return the entry that decides ``section.name``: the first, even if invalid."""
        key = self.file.by_path[path.lower()]
        return next((e for e in self.entries if e.key is key), None)


def parse(text: str, path: str = "", file: WslFile = WSLCONFIG) -> Parsed:
    """Parse the text of a file with any line ends; warnings name it by ``path``."""
    return _Parser(text, path or file.name, file).run()


def size(text: str) -> int | None:
    """Return a size in bytes as WSL parses it, or None where WSL rejects it."""
    match = _SIZE.fullmatch(text)
    if not match:
        return None
    # strtoull stops there; Python itself refuses to read thousands of digits.
    number = min(int(match[2].lstrip("0")[:21] or "0"), _WRAP - 1)
    if number == 0 and text[: match.end(2)] != "0":  # 00GB, -0
        return None
    return (-number if match[1] == "-" else number) * _UNITS[match[3][:1]] % _WRAP


def integer(text: str) -> int | None:
    """Return a number as C's ``strtol(value, &end, 0)`` reads it, or None where WSL rejects it."""
    match = _INTEGER.fullmatch(text)
    if not match:
        return None
    digits = match[2]
    base = 16 if digits[:2].lower() == "0x" else 8 if digits.startswith("0") else 10
    try:
        number = int(match[1] + digits, base)
    except ValueError:  # 08: strtol stops before the 8
        return None
    return number if -(1 << 31) <= number < 1 << 31 else None


def boolean(text: str) -> bool | None:
    """Return true or false, or None where WSL rejects it (yes, on)."""
    return {"true": True, "1": True, "false": False, "0": False}.get(text.lower())


def _address(text: str) -> str | None:
    try:
        return str(IPv4Address(text))
    except AddressValueError:
        return None


def _result(key: WslKey, value: str) -> Value | None:
    """Return the parsed value, or None; texts, paths, ports and MAC addresses count even where WSL warns."""
    if key.kind == "choice":
        return next((c for c in key.choices if c.lower() == value.lower()), None)
    readers: dict[str, Callable[[str], Value | None]]
    readers = {"bool": boolean, "integer": integer, "size": size, "address": _address}
    return readers.get(key.kind, str)(value)


def _refused(key: WslKey, value: str) -> int:
    """Return how many times WSL warns about a value."""
    if key.kind == "ports":
        # std::stoi stops at the first odd character
        numbers = (re.match(r"\s*\+?0*([0-9]+)", port) for port in value.split(","))
        return sum(not n or len(n[1]) > 5 or not 0 < int(n[1]) < 1 << 16 for n in numbers)
    return not _MAC.fullmatch(value) if key.kind == "mac" else _result(key, value) is None


class _BadLine(Exception):
    """The line is malformed; WSL skips it."""


class _Parser:
    """The state machine. ``key`` outlives lines on purpose: WSL's does, see ``_setting``."""

    def __init__(self, text: str, path: str, file: WslFile) -> None:
        self.text, self.path = text, path
        self.at, self.line = 0, 1
        self.key, self.section_length = "", 0
        self.name = ""
        before, windows, _ = text.partition("\r\n")
        self.parsed = Parsed(file, windows_line=1 + before.count("\n") if windows else 0)
        self._into = self.parsed.entries

    def run(self) -> Parsed:
        while self.at < len(self.text):
            begin, self.name = self.at, ""
            if blanks := self._take(_BETWEEN):
                self.line += blanks.count("\n")
            elif self._next() == "#":
                self._take(_REST_OF_LINE)
            else:
                try:
                    self._section() if self._next() == "[" else self._setting()
                except _BadLine as error:
                    warning = f"{error} in {self.path}:{self.line}"
                    at = self.at
                    self._take(_REST_OF_LINE)
                    line = self.text[begin : self.at]
                    skipped = Entry("", self.name, line, self.line, (at, at), begin, self.at, "unreadable", (warning,))
                    self._into.append(skipped)
                    if not self.parsed.file.forgiving:
                        self._into = self.parsed.lost
        return self.parsed

    def _next(self) -> str:
        return self.text[self.at : self.at + 1]

    def _take(self, pattern: re.Pattern[str]) -> str:
        match = pattern.match(self.text, self.at)
        if not match:
            return ""
        self.at = match.end()
        return match[0]

    def _section(self) -> None:
        self.at += 1
        name = self._take(_NAME)
        if not name:
            raise _BadLine("Invalid section name")
        self.key = name
        if self._next() != "]":
            raise _BadLine("Expected ']'")
        self.at += 1
        self._take(_SPACES)
        if self._next() not in ("", "\n", "\r", "#"):
            raise _BadLine(r"Expected ' ' or '\n'")
        self.section_length = len(name)
        if self._next() == "#":
            self._take(_REST_OF_LINE)
        self.parsed.headers.setdefault(name.lower(), self.at)

    def _setting(self) -> None:
        begin, self.name = self.at, self._take(_NAME)
        if not self.name:
            raise _BadLine("Invalid key name")
        # WSL truncates its buffer to the length of the last valid section: below a header that it rejected, keys get a
        # garbage section. C strings end at the first NUL of the padding.
        self.key = self.key[: self.section_length].ljust(self.section_length, "\0")
        self.key += "." * bool(self.key) + self.name
        self._take(_SPACES)
        if self._next() != "=":
            raise _BadLine("Expected '='")
        self.at += 1
        self._take(_SPACES)
        value, span = self._value()
        if self._next() == "#":
            self._take(_REST_OF_LINE)
        written = self.key.partition("\0")[0]
        key = self.parsed.file.by_path.get(written.lower())
        state, warnings = self._judged(key, written, value)
        result = _result(key, value) if key and state == "used" else None
        entry = Entry(written, self.name, value, self.line, span, begin, self.at, state, warnings, key, result)
        self._into.append(entry)

    def _value(self) -> tuple[str, tuple[int, int]]:
        """Return the value without trailing spaces, and its span."""
        start = kept_at = self.at
        value, kept_length, quoted = "", 0, False
        while (piece := _PIECE.match(self.text, self.at)) and (quoted or piece[0] != "#"):
            self.at = piece.end()
            if piece[0] == '"':
                quoted = not quoted
            elif piece[1]:
                value += _ESCAPES.get(piece[1], "")
                self.line += piece[1].endswith("\n")
            else:
                value += piece[0]
            if piece[0] not in " \t":
                kept_length, kept_at = len(value), self.at
        if self._next() == "\\":
            raise _BadLine(f"Invalid escaped character: '{self.text[self.at + 1 : self.at + 2]}'")
        if quoted:
            raise _BadLine('Expected "')
        # WSL keeps the low byte of each character, and C strings end at a zero byte, such as a full-width space's.
        zero = next((at for at, char in enumerate(value) if not ord(char) & 0xFF), kept_length)
        return value[: min(zero, kept_length)], (start, kept_at)

    def _judged(self, key: WslKey | None, written: str, value: str) -> tuple[State, tuple[str, ...]]:
        """Return the effect of a setting, and WSL's warnings about it."""
        where = f"{self.path}:{self.line}"
        if key is None:
            return "unknown", (f"Unknown key '{written}' in {where}",)
        if earlier := self.parsed.first(key.path):
            conflict = f"(Conflicting key: '{earlier.written}' in {self.path}:{earlier.line})"
            return "duplicate", (f"Duplicated config key '{written}' in {where} {conflict}",)
        warning = _REFUSALS.get(key.kind, "").format(
            value=value, written=written, where=where, choices=", ".join(key.choices)
        )
        return "refused" if _result(key, value) is None else "used", (warning,) * _refused(key, value)
