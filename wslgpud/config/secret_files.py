"""Our files that hold secrets, and whether other users can read them."""

from __future__ import annotations

import stat
from pathlib import Path

from wslgpud.config import Config, ConfigError, declared_keys, load
from wslgpud.security.redaction import visible


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
