"""Reads the config.json files of models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from wslgpud.advise.fit.quantization import ShapeError
from wslgpud.security import safe_files
from wslgpud.words import cause

MAX_HEADER_BYTES = 100 << 20  # safetensors' own limit


@contextmanager
def reading(text: str) -> Iterator[None]:
    """Report which of the user's files could not be read.

    Raises:
        ShapeError: one could not.
    """
    try:
        yield
    except (OSError, ValueError, RuntimeError) as error:  # hidden, too long, in the home of an unknown user
        file = error.filename if isinstance(error, OSError) else None  # a file below the path
        raise ShapeError("cannot read {path}: {why}", path=str(file or text), why=cause(error)) from error


def document(file: Path) -> dict[str, Any]:
    """Return the object in a model's JSON file.

    Raises:
        OSError: it cannot be read.
        ValueError: it is not a JSON object.
    """
    return safe_files.parsed(safe_files.contents(file, MAX_HEADER_BYTES, follow=True))


def whole_of(document: Mapping[str, Any], *names: str, default: int | None = None) -> int:
    """Return the first of these keys that has a whole number above 0.

    Raises:
        ShapeError: there is none, and no default.
    """
    for name in names:
        value = document.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    if default is None:
        raise ShapeError("config.json has no {name}", name=names[0])
    return default
