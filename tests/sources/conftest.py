"""Small machines made of a few files."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from wslgpud.host import RecordedHost
from wslgpud.model import Number, Sample

# Found values count, not how fast a busy machine finds them, nor whether it may write next to the tests.
settings.register_profile(
    "patient", deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("patient")


@pytest.fixture
def machine(tmp_path: Path) -> Callable[..., RecordedHost]:
    """Make a machine that has just these files; facts are what host.json may hold."""

    def make(files: Mapping[str, str] | None = None, **facts: Any) -> RecordedHost:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        for path, text in (files or {}).items():
            file = folder / "root" / path.lstrip("/")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        (folder / "host.json").write_text(
            json.dumps({"kind": "synthetic", "wall": 1_790_000_000.0, "mono": 5000.0, **facts})
        )
        return RecordedHost(folder)

    return make


@pytest.fixture
def values() -> Callable[[Sample], dict[str, Number]]:
    """Write a sample's readings as Prometheus would, for short comparisons."""

    def flat(sample: Sample) -> dict[str, Number]:
        found = {}
        for reading in sample.readings:
            name = reading.spec.sample.removeprefix("wslgpud_")
            labels = ",".join(reading.labels)
            found[f"{name}{{{labels}}}" if labels else name] = reading.value
        assert len(found) == len(sample.readings), "two readings of one series"
        return found

    return flat
