"""Every key that WSL knows in .wslconfig, from keys.toml; and keys that people believe in."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from wslgpud.words import template

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

#: what each kind of value is called
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

_SOURCE = "https://github.com/microsoft/WSL/blob/master/src/windows/common/WslCoreConfig.h"
_DOCUMENTATION = "https://learn.microsoft.com/windows/wsl/wsl-config#{}-settings"


@dataclass(frozen=True, slots=True)
class WslconfigKey:
    """One setting; ``old_section`` is where it stood before, which WSL still reads.

    ``default``, ``meaning`` and ``since`` are templates where they are words.
    """

    section: str
    name: str
    kind: Kind
    default: str
    meaning: str
    since: str = template("2.5.8 or earlier")
    link: str = _SOURCE
    choices: tuple[str, ...] = ()
    old_section: str = ""

    @property
    def path(self) -> str:
        """Name as WSL writes it: ``wsl2.memory``."""
        return f"{self.section}.{self.name}"


def _declared(path: str, row: Mapping[str, Any]) -> WslconfigKey:
    section, name = path.split(".")
    facts = {column.removesuffix("_words"): value for column, value in row.items()}
    if documented := facts.pop("documented", ""):
        facts["link"] = _DOCUMENTATION.format(documented)
    return WslconfigKey(section, name, **facts | {"choices": tuple(facts.get("choices", ()))})


_TABLE: Mapping[str, Mapping[str, Any]] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
KEYS = tuple(_declared(path, row) for path, row in _TABLE.items())
#: Texts of the table that are translated.
TEXTS = {row[column] for row in _TABLE.values() for column in row if column == "meaning" or column.endswith("_words")}

#: Lower-case path, also that of an old section -> key. WSL compares without regard to case.
BY_PATH = {f"{section}.{k.name}".lower(): k for k in KEYS for section in (k.section, k.old_section) if section}
#: Lower-case name -> its key, for lines in the wrong section.
BY_NAME = {key.name.lower(): key for key in KEYS}

#: What guides recommend and WSL does not know: name -> what to do about it.
FOLKLORE = {
    "pagereporting": template(
        "delete the line: it existed in one build of 2019 (19013) only; free pages always go back to Windows now"
    ),
    "idlethreshold": template("delete the line: it existed in one build of 2019 (19013) only"),
    "guessvhdsize": template("delete the line: no WSL has ever known it"),
}
