"""What holds for all tests."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from wslgpud.store import store

#: how many examples of each property, at random, somebody who looks for more wants to see
EXAMPLES = int(os.environ.get("WSLGPUD_EXAMPLES", "0"))
#: A busy machine takes seconds over what takes microseconds: how long an example takes is no finding.
ANY_MACHINE = {"deadline": None, "database": None, "suppress_health_check": [HealthCheck.too_slow]}

# The same examples wherever they run, or a change would be refused for what it has not touched.
settings.register_profile("the same for all", **ANY_MACHINE, derandomize=True)
settings.register_profile("more", **ANY_MACHINE, derandomize=False, max_examples=EXAMPLES or 100)
settings.load_profile("more" if EXAMPLES else "the same for all")

# A daemon must not wait for a busy disk when it ends; of a test's store all is on it at the end.
store.CLOSE_SECONDS = 300.0


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder that every account can reach, as those of ``tmp_path`` are not."""
    folder = Path(tempfile.mkdtemp(prefix="wslgpud-public-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)
