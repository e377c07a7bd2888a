"""The cases whose right answer is written down, in ``cases.toml`` of their folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from wslgpud.toml import tomllib

HERE = Path(__file__).parent
#: where a case comes from (``source``), texts that an answer must have (``says``) and must not have (``never``)
Case = Mapping[str, Any]


def known(folder: Path) -> Mapping[str, Case]:
    """Return the cases of a folder by kind and file name, like ``oom/cicc-killed``; none without a ``cases.toml``."""
    file = folder / "cases.toml"
    kinds = tomllib.loads(file.read_text()) if file.exists() else {}
    return {f"{kind}/{name}": case for kind, cases in kinds.items() for name, case in cases.items()}


def judged(said: str, case: Case | None) -> Literal["right", "wrong"] | None:
    """Return whether an answer is right; None where nobody has written down what is."""
    if case is None:
        return None
    right = all(text in said for text in case["says"]) and not any(text in said for text in case.get("never", ()))
    return "right" if right else "wrong"
