"""The API does what its OpenAPI file says, whatever is asked of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.page.stage import nights, past_incidents, trace
from tests.page.test_api import ask

#: A question that is right by the schema may still be wrong: its end may lie before its start.
EXCLUDED = "positive_data_acceptance"


@pytest.mark.slow
def test_schemathesis_finds_nothing(stage, tmp_path):
    past_incidents(stage)
    nights(stage, 5)
    stage.play(trace("ram-leak_linear-1"), 171, thin=10)
    # He looks once; who came while he does might be asked to come again, which is no answer of the schema's.
    assert ask(stage, "doctor")[0] == 200
    command = [
        str(Path(sys.executable).parent / "schemathesis"),
        "run",
        f"{stage.url}/api/v1/openapi.json",
        "--phases=coverage,fuzzing",
        "--max-examples=12",
        "--seed=1",
        f"--exclude-checks={EXCLUDED}",
        "--no-color",
        "--generation-database=:memory:",
        # How long a busy machine takes is no finding.
        "--request-timeout=300",
        "--suppress-health-check=all",
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=tmp_path, env=os.environ | {"CI": "1"}
    )

    assert done.returncode == 0, done.stdout + done.stderr
