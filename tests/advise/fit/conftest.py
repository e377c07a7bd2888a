"""No test traces a model in whatever Python is installed here, unless it names one."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _without_torch(without_torch: None) -> None:
    pass
