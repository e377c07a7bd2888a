"""Wanted settings are written in .wslconfig's syntax."""

from __future__ import annotations

import pytest

from wslgpud.advise.wslconfig.compare import quoted
from wslgpud.probes.wsl_config import WSLCONFIG

MEMORY = WSLCONFIG.by_path["wsl2.memory"]


@pytest.mark.parametrize(
    ("size", "written"),
    [(1 << 40, "1TB"), (50 << 30, "50GB"), (1536 << 20, "1536MB"), (5 << 10, "5KB"), (1001, "1001B"), (0, "0")],
)
def test_a_size_is_written_in_the_largest_exact_unit(size: int, written: str) -> None:
    assert quoted(MEMORY, size) == written
