"""Configuration files: the sample, single keys changed in a user's, and whether others can read secrets in them.

The Debian package generates the sample without our libraries.
"""

from __future__ import annotations

import itertools
import json
import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from wslgpud.config import Config, ConfigError, declared_keys, load
from wslgpud.security import safe_files
from wslgpud.security.redaction import visible
from wslgpud.toml import tomllib
from wslgpud.words import cause, t


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
        line = f"{name} = {to_toml(value)}"
        places = [n for n, one in enumerate(own) if _key_of(one) == name] or [
            n for n, one in enumerate(own) if _key_of(one.lstrip().removeprefix("#")) == name
        ]
        if places:
            own[places[0]] = line
        else:
            own.insert(0, line)
    changed = "\n".join([*lines[:begin], *own, *lines[end:]]) + "\n"
    before = tomllib.loads(text)
    wanted = {**before, section: {**before.get(section, {}), **values}}
    with suppress(tomllib.TOMLDecodeError):  # of our own making, as by a list over several lines
        if tomllib.loads(changed) == wanted:
            return changed
    raise ValueError(f"[{section}] is written in a way that only a person can change")


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
        load(file, {}, text=text)  # its own faults first, by the lines that people see in it
        changed = with_keys(text, section, values)
        load(file, {}, text=changed)
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
    except (OSError, ValueError) as error:
        raise ConfigError("{file}: {reason}", file=str(file), reason=cause(error)) from error


def exposed(config: Config, file: Path | None) -> list[Path]:
    """Return the files with secrets that every user can read; ``config`` was read from ``file``."""
    named = [Path(p) for p in (config.alerts.urls_file, config.server.web_config_file) if p]
    ours = [file] if file is not None and _holds_secrets(file) else []
    return [path for path in (*ours, *named) if _open_to_all(path)]


def remedy(path: Path) -> str:
    """Return the command that closes a file to other users and keeps it readable where needed."""
    if path.stat().st_uid == 0:
        return f"sudo chown root:wslgpud {path} && sudo chmod 640 {path}"
    return f"chmod 600 {path}"


def _holds_secrets(file: Path) -> bool:
    """Return whether the file itself does; a secret from the environment is in no file."""
    try:
        held = load(file, {}).config
    except ConfigError:
        return False
    values = ((getattr(getattr(held, key.section), key.name), key.shows) for key in declared_keys())
    return any(visible(value, shows) != value for value, shows in values)


def _open_to_all(path: Path) -> bool:
    """Return whether everybody may read a file and enter the folders above it."""
    try:
        real = path.resolve(strict=True)
        passable = all(folder.stat().st_mode & stat.S_IXOTH for folder in real.parents)
        return passable and bool(real.stat().st_mode & stat.S_IROTH)
    except (OSError, RuntimeError):  # RuntimeError: links in a circle, before Python 3.13
        return False
