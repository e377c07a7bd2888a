"""Writes a trace as ``wslgpud record`` does, from observations that are there already."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from wslgpud.model import Observation
from wslgpud.risk.trace import header, row_from_observation


def write_trace(
    path: Path,
    observations: Iterable[Observation],
    *,
    interval_seconds: float,
    host: Mapping[str, Any] = MappingProxyType({}),
) -> int:
    """Write a trace, compressed when its name ends in ``.gz``; return the number of samples.

    Each line is complete in itself, so a recording that is cut off loses at most its last sample.
    """
    count = 0
    with gzip.open(path, "wt", encoding="utf-8") if path.suffix == ".gz" else path.open("w", encoding="utf-8") as file:
        print(json.dumps(header(interval_seconds, host)), file=file)
        for observation in observations:
            print(json.dumps(row_from_observation(observation), separators=(",", ":")), file=file)
            count += 1
    return count
