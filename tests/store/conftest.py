"""What tests of the store share."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import hypothesis
import pytest

from wslgpud.config import StoreSettings

# a loaded machine is no fault of the code
hypothesis.settings.register_profile("patient", deadline=None)
hypothesis.settings.load_profile("patient")


def _load(name):
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_MADE = _load("made")


@pytest.fixture(scope="session")
def made():
    """Snapshots made of plain numbers (``made.py``)."""
    return _MADE


@pytest.fixture
def clock():
    """A clock that stands still until it is set."""
    return _MADE.FakeClock(_MADE.T0)


@pytest.fixture
def settings():
    """Settings under which only the test decides when something is committed."""
    return StoreSettings(commit_seconds=300, raw_days=3650)


@pytest.fixture
def file(tmp_path):
    """Where the history of a test lies."""
    return tmp_path / "state" / "wslgpud.db"
