"""Changes single keys in a user's configuration file and leaves everything else unchanged."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from wslgpud.config import ConfigError, load
from wslgpud.security import safe_files
from wslgpud.toml import tomllib
from wslgpud.words import cause


def with_keys(text: str, section: str, values: Mapping[str, Any]) -> str:
    """Return the TOML text with these keys of a section set to these values.

    Raises ValueError: it is written in a way not supported here and has to be edited by hand.
    """
    lines, header = text.splitlines(), f"[{section}]"
    heads = [number for number, line in enumerate(lines) if line.partition("#")[0].strip() == header]
    if not heads:
        lines += ["", header] if lines else [header]
        heads = [len(lines) - 1]
    begin = heads[0] + 1
    end = next((n for n in range(begin, len(lines)) if lines[n].lstrip().startswith("[")), len(lines))
    own = lines[begin:end]
    for name, value in values.items():
        line = f"{name} = {json.dumps(value, ensure_ascii=False)}"
        places = [n for n, one in enumerate(own) if _key_of(one) == name] or [
            n for n, one in enumerate(own) if _key_of(one.lstrip().removeprefix("#")) == name
        ]
        if places:
            own[places[0]] = line
        else:
            own.insert(0, line)
    changed = "\n".join([*lines[:begin], *own, *lines[end:]]) + "\n"
    before, after = tomllib.loads(text), tomllib.loads(changed)
    wanted = {**before, section: {**before.get(section, {}), **values}}
    if after != wanted:
        raise ValueError(f"[{section}] is written in a way that only a person can change")
    return changed


def _key_of(line: str) -> str:
    name, equals, _ = line.partition("=")
    return name.strip() if equals else ""


def change(file: Path, section: str, values: Mapping[str, Any]) -> None:
    """Change keys in a file atomically, keeping owner, group and mode; create the file if it is missing.

    Raises ConfigError: it cannot be read or written, or would become invalid.
    """
    try:
        facts = file.stat()
        text = safe_files.contents(file, follow=True).decode()
    except FileNotFoundError:
        facts, text = None, ""
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("{file}: {reason}", file=str(file), reason=cause(error)) from error
    try:
        changed = with_keys(text, section, values)
        if facts is None:
            file.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        target = file.resolve()
        with safe_files.Folder(target.parent) as folder, folder.replacing(target.name) as descriptor:
            if facts is not None:
                if os.geteuid() == 0:
                    os.fchown(descriptor, facts.st_uid, facts.st_gid)
                os.fchmod(descriptor, stat.S_IMODE(facts.st_mode))
            with os.fdopen(descriptor, "w", encoding="utf-8", closefd=False) as stream:
                stream.write(changed)
            load(Path(f"/proc/self/fd/{descriptor}"), {})
    except (OSError, ValueError) as error:
        raise ConfigError("{file}: {reason}", file=str(file), reason=cause(error)) from error
