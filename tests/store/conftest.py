"""What tests of the store share."""

from __future__ import annotations

import importlib.util
import uuid
from pathlib import Path

import pytest
from sqlalchemy import create_engine
from sqlalchemy.pool import NullPool

from tests.support import servers
from wslgpud.config import StoreSettings

TIMESCALE = any(Path("/usr/share/postgresql").glob("*/extension/timescaledb.control"))


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


@pytest.fixture(scope="session")
def postgresql():
    """URL of a real PostgreSQL server of our own, on loopback, without the name of a database."""
    preload = ["shared_preload_libraries=timescaledb"] if TIMESCALE else []
    with servers.postgresql("fsync=off", *preload) as server:
        yield server.url


@pytest.fixture
def server_target(postgresql):
    """A database of its own on a real server."""
    name = f"test_{uuid.uuid4().hex}"
    engine = create_engine(f"{postgresql}/postgres", isolation_level="AUTOCOMMIT", poolclass=NullPool)
    with engine.connect() as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name}")
    return f"{postgresql}/{name}"


@pytest.fixture
def timescale_target(server_target):
    """The same with the extension, as an administrator puts it there."""
    if not TIMESCALE:
        pytest.skip("TimescaleDB is not installed")
    engine = create_engine(server_target, isolation_level="AUTOCOMMIT", poolclass=NullPool)
    with engine.connect() as connection:
        connection.exec_driver_sql("CREATE EXTENSION timescaledb")
    return server_target


@pytest.fixture
def file(tmp_path):
    """Where the history of a test lies."""
    return tmp_path / "state" / "wslgpud.db"
