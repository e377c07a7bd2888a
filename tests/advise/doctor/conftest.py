"""Machines of a few files, and what one check says of one."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from wslgpud.advise.doctor.checking import CHECKS, Evidence, Outcome
from wslgpud.config import Config
from wslgpud.host import RecordedHost


@pytest.fixture
def machine(tmp_path: Path) -> Callable[..., Evidence]:
    """A recorded machine with these files, under WSL2 where it has /dev/dxg."""

    def build(files: Mapping[str, str] = {}, **facts: object) -> Evidence:
        root = tmp_path / "small" / "root"
        for path, text in files.items():
            target = root / path.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)
        (root / "proc").mkdir(parents=True, exist_ok=True)
        (root.parent / "host.json").write_text(json.dumps({"kind": "synthetic", "wall": 1.79e9, "mono": 5e3, **facts}))
        return Evidence(RecordedHost(root.parent), Config(), None, "/var/lib/wslgpud")

    return build


def outcome(check: str, machine: Evidence) -> Outcome:
    """Return the finding of this check alone."""
    (look,) = (one.look for one in CHECKS if one.id == check)
    return look(machine)
