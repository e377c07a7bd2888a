"""Files that come with the program and are used elsewhere: units, dashboards, rules for Prometheus, examples."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

_PACKAGE = Path(__file__).parent
#: in a wheel they lie in the package (see pyproject.toml), in a checkout where they are generated
ROOT = _PACKAGE / "shipped" if (_PACKAGE / "shipped").is_dir() else _PACKAGE.parent


def texts(places: Iterable[str]) -> dict[str, str]:
    """Return the texts of the files at these places, files or folders below ``ROOT``, by their relative paths."""
    files = [file for place in places for file in (ROOT / place, *(ROOT / place).rglob("*")) if file.is_file()]
    return {str(file.relative_to(ROOT)): file.read_text(encoding="utf-8") for file in sorted(files)}


def in_folder(folder: str) -> dict[str, str]:
    """Return the texts of the files in one folder, by their names."""
    return {Path(name).name: text for name, text in texts([folder]).items()}
