"""A stage for each test that wants one, and a browser for all."""

from __future__ import annotations

import pytest

from tests.page.stage import Stage


@pytest.fixture
def stage(tmp_path):
    """A server on loopback with nothing in it yet."""
    made = Stage(tmp_path)
    yield made
    made.close()
