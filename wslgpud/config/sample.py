"""The sample configuration file; the Debian package generates it without our libraries."""

from __future__ import annotations

import itertools
import json
from typing import Any

from wslgpud.config import declared_keys
from wslgpud.words import t


def sample_file() -> str:
    """Return a configuration file in which every key stands with its help and default, commented out."""
    lines = ["# " + t("wslgpud configuration. Every line shows a default; remove the # to change it.")]
    for section, keys in itertools.groupby(declared_keys(), lambda key: key.section):
        lines += ["", f"[{section}]"]
        lines += [f"# {line}" for key in keys for line in (t(key.help), f"{key.name} = {to_toml(key.default)}")]
    return "\n".join(lines) + "\n"


def to_toml(value: Any) -> str:
    """Write a value as TOML, whose strings, numbers and lists look like those of JSON."""
    return json.dumps(value, ensure_ascii=False)
