"""Small machines made of a few files."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from wslgpud.host import RecordedHost
from wslgpud.model import Number, Sample


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
            name = reading.spec.exposed_name.removeprefix("wslgpud_")
            labels = ",".join(reading.labels)
            found[f"{name}{{{labels}}}" if labels else name] = reading.value
        assert len(found) == len(sample.readings), "two readings of one series"
        return found

    return flat


@pytest.fixture
def limited_cgroup() -> Iterator[Path]:
    """A real cgroup of this machine that may use 32 MiB, swap included; skipped where none can be made."""
    top = Path("/sys/fs/cgroup")
    folder, limits = (
        (top / "memory", ["memory.limit_in_bytes", "memory.memsw.limit_in_bytes"])
        if (top / "memory").is_dir()
        else (top, ["memory.max", "memory.swap.max"])
    )
    if os.geteuid() != 0 or not os.access(folder, os.W_OK):
        pytest.skip("making a cgroup needs root and a writable /sys/fs/cgroup")
    box = folder / f"wslgpud-test-{uuid.uuid4().hex[:8]}"
    try:
        box.mkdir()
    except OSError as error:
        pytest.skip(f"no cgroup can be made here: {error.strerror}")
    try:
        if not (box / limits[0]).exists():
            pytest.skip("the memory controller is not handed down to new cgroups here")
        (box / limits[0]).write_text(str(32 << 20))
        if (box / limits[1]).exists():
            (box / limits[1]).write_text("0" if limits[1] == "memory.swap.max" else str(32 << 20))
        yield box
    finally:
        box.rmdir()
