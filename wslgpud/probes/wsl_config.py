r"""The keys of .wslconfig and /etc/wsl.conf, and a parser of both files, with WSL's own warnings.

Follows src/shared/configfile/configfile.cpp and ParseBool, ParseMemorySize in src/shared/inc/stringshared.h of
https://github.com/microsoft/WSL. Surprising: only ``#`` begins a comment; ``\`` must be doubled; sizes take upper-case
units without a fraction; the first of duplicate keys counts, even if its value is invalid; a malformed line is skipped
in .wslconfig, and ends the parsing of /etc/wsl.conf. Warnings are worded as in
localization/strings/en-US/Resources.resw.

A negative size, which WSL takes for a huge one, counts as refused. Below a header that WSL rejects, its keys get a
section of arbitrary name, here none.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import takewhile
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

_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}
_SCALES = {"": 1, "B": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SIZE = re.compile(r"(0|\+?0*[1-9][0-9]{0,18})(|B|[KMGT]B?)")
_INTEGER = re.compile(r"[+-]?(0[xX][0-9a-fA-F]{1,8}|0[0-7]{0,11}|[1-9][0-9]{0,9})")
_BYTE = "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_FORMS = {
    "ports": re.compile(r" *\+?[0-9]{1,5}(, *\+?[0-9]{1,5})*"),
    "address": re.compile(rf"{_BYTE}(\.{_BYTE}){{3}}"),
    "mac": re.compile(r"[0-9a-fA-F]{2}([:-][0-9a-fA-F]{2}){5}"),
}
_REFUSALS = {
    "bool": "Invalid boolean value '{value}' for key '{written}' in {where}",
    "integer": "Invalid integer value '{value}' for key '{written}' in {where}",
    "ports": "Invalid integer value '{value}' for key '{written}' in {where}",
    "size": "Invalid memory string '{value}' for .wslconfig entry '{written}' in {where}",
    "address": "Invalid IP value '{value}' for key '{written}' in {where}",
    "mac": "Invalid mac address '{value}' for key '{written}' in {where}",
    "choice": "Invalid value '{value}' for config key '{written}' in {where} (Valid values: {choices})",
}
#: A backslash at the end of a line continues it in the next.
_ESCAPE = r'\\(?:\r?\n|[\\"bnt])'
_ESCAPES = {"\\\\": "\\", '\\"': '"', "\\b": "\b", "\\n": "\n", "\\t": "\t"}
_ESCAPE_OR_QUOTE = re.compile(rf'{_ESCAPE}|"')
_NAME = "[A-Za-z][A-Za-z0-9]*"
_HEADER = re.compile(rf"\[{_NAME}")
_LINE = re.compile(
    rf"""(?:\A\ufeff)? [ \t\r\n]* (?P<line>
        (?: \[(?P<section>{_NAME})\] [ \t]*
          | (?P<name>{_NAME}) [ \t]* = [ \t]*
            (?P<value>(?![ \t])(?: {_ESCAPE} | [^\\"\#\r\n] | "(?: {_ESCAPE} | [^\\"\r\n] )*" )*)
        )?
        (?: \#[^\n]*?(?=\r?\n|\Z) | (?=[\r\n]|\Z) )
      | (?P<malformed>(?: {_NAME} [ \t]* = (?: {_ESCAPE} | [^\\\r\n] )* )? [^\n]*?)(?=\r?\n|\Z)
    )""",
    re.VERBOSE,
)
#: WSL's warning about a malformed line: the first of these that fits.
_MALFORMED = (
    (re.compile(rf"\[(?!{_NAME})"), "Invalid section name"),
    (re.compile(rf"\[{_NAME}(?![A-Za-z0-9\]])"), "Expected ']'"),
    (re.compile(r"\["), r"Expected ' ' or '\n'"),
    (re.compile(rf"(?!{_NAME})"), "Invalid key name"),
    (re.compile(rf"{_NAME}(?:(?![A-Za-z0-9 \t=])|[ \t]+(?![ \t=]))"), "Expected '='"),
    (re.compile(rf'(?:{_ESCAPE}|[^\\])*\\(?!\r?\n|[\\"bnt])(.?)'), "Invalid escaped character: '{}'"),
    (re.compile(""), 'Expected "'),
)


@dataclass(frozen=True, slots=True)
class Entry:
    """One setting, or a malformed line (``unreadable``), which is then its ``value``.

    ``written`` is section and name as WSL would show them, ``name`` the key as spelled in the file, ``value`` WSL's
    interpretation of the text between ``span`` (start and end in the file's text); ``begin`` and ``end`` hold all of
    it. ``warning`` is WSL's own on the Windows console; ``result`` is None unless the entry counts.
    """

    written: str
    name: str
    value: str
    line: int
    span: tuple[int, int]
    begin: int
    end: int
    state: State
    warning: str = ""
    key: WslKey | None = None
    result: Value | None = None


@dataclass(slots=True)
class Parsed:
    """A whole file. ``ends`` maps sections (lower case) to the end of the last line there that WSL reads.

    ``lost`` holds the entries below a line at which WSL stopped parsing; ``windows_line`` is the first line with a
    Windows line end. ``deciding`` holds the first entry of each key by its path, even if invalid.
    """

    file: WslFile = WSLCONFIG
    entries: list[Entry] = field(default_factory=list)
    lost: list[Entry] = field(default_factory=list)
    ends: dict[str, int] = field(default_factory=dict)
    windows_line: int = 0
    deciding: dict[str, Entry] = field(default_factory=dict)

    def get(self, path: str) -> Value | None:
        """Return the effective value of ``section.name``, or None where WSL uses its default."""
        entry = self.first(path)
        return entry.result if entry else None

    def first(self, path: str) -> Entry | None:
        """Return the entry that decides ``section.name``."""
        return self.deciding.get(self.file.by_path[path.lower()].path)


def parse(text: str, path: str = "", file: WslFile = WSLCONFIG) -> Parsed:
    """Parse the text of a file with any line ends; warnings name it by ``path``."""
    before, windows, _ = text.partition("\r\n")
    parsed = Parsed(file, windows_line=1 + before.count("\n") if windows else 0)
    line, section, into = 1, "", parsed.entries
    for match in _LINE.finditer(text):
        line += match[0].count("\n")
        section = match["section"] or section
        if match["name"]:
            entry = _setting(match, section, line, path or file.name, parsed)
            into.append(entry)
            if entry.key and into is parsed.entries:
                parsed.deciding.setdefault(entry.key.path, entry)
        if (match["section"] or match["name"]) and into is parsed.entries:
            parsed.ends[section.lower()] = match.end()
        if malformed := match["malformed"]:
            into.append(_unreadable(match, malformed, f"{path or file.name}:{line}", line))
            section = "" if _HEADER.match(malformed) else section
            into = into if file.forgiving else parsed.lost
    return parsed


def size(text: str) -> int | None:
    """Return a size in bytes as WSL parses it, or None where WSL rejects it."""
    match = _SIZE.fullmatch(text)
    return int(match[1]) * _SCALES[match[2][:1]] if match else None


def _setting(match: re.Match[str], section: str, line: int, path: str, parsed: Parsed) -> Entry:
    """Return a setting, with its effect and WSL's warning about it."""
    written, where = f"{section}.{match['name']}".lstrip("."), f"{path}:{line}"
    key, raw = parsed.file.by_path.get(written.lower()), match["value"].rstrip(" \t")
    value = _ESCAPE_OR_QUOTE.sub(lambda found: _ESCAPES.get(found[0], ""), raw)
    # WSL keeps the low byte of each character, and C strings end at a zero byte, such as a full-width space's.
    value = "".join(takewhile(lambda char: ord(char) & 0xFF, value))
    state: State = "used"
    warning, result = "", _result(key, value) if key else None
    if key is None:
        state, warning = "unknown", f"Unknown key '{written}' in {where}"
    elif earlier := parsed.first(key.path):
        conflict = f"(Conflicting key: '{earlier.written}' in {path}:{earlier.line})"
        state, warning = "duplicate", f"Duplicated config key '{written}' in {where} {conflict}"
    elif result is None:
        facts = {"value": value, "written": written, "where": where, "choices": ", ".join(key.choices)}
        state, warning = "refused", _REFUSALS[key.kind].format(**facts)
    result = result if state == "used" else None
    span = match.start("value"), match.start("value") + len(raw)
    place = line, span, match.start("line"), match.end()
    return Entry(written, match["name"], value, *place, state, warning, key, result)


def _unreadable(match: re.Match[str], malformed: str, where: str, line: int) -> Entry:
    said = next(words.format(*found.groups()) for form, words in _MALFORMED if (found := form.match(malformed)))
    name, end = re.match(_NAME, malformed), match.end()
    place = line, (end, end), match.start("line"), end
    return Entry("", name[0] if name else "", malformed, *place, "unreadable", f"{said} in {where}")


def _integer(text: str) -> int | None:
    """Return a number as C's ``strtol(text, &end, 0)`` reads it, or None where WSL rejects it."""
    if not _INTEGER.fullmatch(text):
        return None
    number = int(re.sub("^([+-]?0)(?=[0-7])", r"\1o", text), 0)
    return number if -(1 << 31) <= number < 1 << 31 else None


def _result(key: WslKey, value: str) -> Value | None:
    """Return the parsed value, or None where WSL rejects it."""
    if key.kind == "bool":
        return _BOOLEANS.get(value.lower())
    if key.kind == "choice":
        return next((choice for choice in key.choices if choice.lower() == value.lower()), None)
    if key.kind in ("size", "integer"):
        return size(value) if key.kind == "size" else _integer(value)
    if key.kind in _FORMS and not _FORMS[key.kind].fullmatch(value):
        return None
    if key.kind == "ports" and not all(0 < int(port) < 1 << 16 for port in value.split(",")):
        return None
    return value
