"""All keys of .wslconfig and /etc/wsl.conf, and common ones that do not exist."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
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
