import importlib.util
import sys
from pathlib import Path

import pytest

from wslgpud.model import Level
from wslgpud.risk.engine import RiskEngine

TRACES = Path(__file__).parent.parent / "traces"


def _generate():
    spec = importlib.util.spec_from_file_location("risk_generate", TRACES / "generate.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def generate():
    return _generate()


@pytest.fixture(scope="session")
def traces():
    return sorted(TRACES.glob("*.jsonl.gz"))


@pytest.fixture
def highest():
    """Run an engine over observations; return the highest level a resource reached, and all changes."""

    def run(observations, resource="ram", settings=None):
        engine, level, changes = RiskEngine(settings), Level.OK, []
        for observation in observations:
            assessment = engine.observe(observation)
            changes += [c for c in assessment.changes if c.resource == resource]
            level = max([level, *(f.level for f in assessment.forecasts if f.resource == resource)])
        return level, changes

    return run
