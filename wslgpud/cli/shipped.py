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
        if not force and _differs(path, text):
            raise Fault("{path} is there already and differs; --force replaces it", path=str(path))
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        path = folder / name
        # Whoever owns the folder may have put links where its subfolders come.
        with writing(path), safe_files.Folder(folder, str(Path(name).parent), make=True) as inner:
            inner.put(path.name, text, mode=0o644)


def _differs(path: Path, text: str) -> bool:
    try:
        return safe_files.contents(path) != text.encode()
    except FileNotFoundError:
        return False
    except OSError:  # something else than a file
        return True
