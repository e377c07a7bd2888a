"""Files that come with the program and run elsewhere: dashboards, rules for Prometheus, examples."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import wslgpud
from wslgpud.cli.common import Fault, writing
from wslgpud.security import safe_files

_PACKAGE = Path(wslgpud.__file__).parent
#: in a wheel they lie in the package (see pyproject.toml), in a checkout where they are made
ROOT = _PACKAGE / "shipped" if (_PACKAGE / "shipped").is_dir() else _PACKAGE.parent


def texts(places: Iterable[str]) -> dict[str, str]:
    """Return the texts of the files at these places, files or folders below ``ROOT``, by their relative paths."""
    found = [file for place in places for file in (ROOT / place, *(ROOT / place).rglob("*")) if file.is_file()]
    return {str(file.relative_to(ROOT)): file.read_text(encoding="utf-8") for file in sorted(found)}


def put(files: Mapping[str, str], folder: Path, *, force: bool) -> None:
    """Write files below a folder; those that somebody has changed only with ``force``. Raises Fault."""
    for name, text in files.items():
        path = folder / name
        if not force and path.exists() and path.read_text(encoding="utf-8", errors="replace") != text:
            raise Fault("{path} is there already and differs; --force replaces it", path=str(path))
    for name, text in files.items():
        path = folder / name
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            safe_files.put(path, text, mode=0o644)
