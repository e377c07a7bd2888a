"""JSON from files and programs that somebody may have spoiled."""

from __future__ import annotations

import json
from typing import Any


def parsed(text: str | bytes) -> dict[str, Any]:
    """Return the object in a JSON text.

    Raises:
        ValueError: it holds none; also where it nests deeper than can be read (json raises RecursionError).
    """
    try:
        document = json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(document, dict):
        raise ValueError("not a JSON object")  # noqa: TRY004 - one error for all that is wrong with a text
    return document
