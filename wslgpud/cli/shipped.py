"""Writes files that come with the program to where they are used."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from wslgpud.cli.common import Fault, writing
from wslgpud.security import safe_files


def put(files: Mapping[str, str], folder: Path, *, force: bool) -> None:
    """Write files below a folder; modified ones are replaced only with ``force``. Raises Fault."""
    for name, text in files.items():
        path = folder / name
        if not force and path.exists() and path.read_text(encoding="utf-8", errors="replace") != text:
            raise Fault("{path} is there already and differs; --force replaces it", path=str(path))
    for name, text in files.items():
        path = folder / name
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            safe_files.put(path, text, mode=0o644)
