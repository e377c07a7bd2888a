"""What holds for all tests."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.support.parts import PARTS
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


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="also run what is left out while no test is named")


def pytest_configure(config: pytest.Config) -> None:
    for name, part in PARTS.items():
        config.addinivalue_line("markers", f"{name}: {part.what} (needs {part.needs()})")
    if hasattr(config, "workerinput"):
        config.option.parts = config.workerinput["parts"]
    else:
        named = config.args_source is config.ArgsSource.ARGS or config.option.keyword or config.option.markexpr
        config.option.parts = config.option.all or bool(named)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell xdist's workers, which do not see the command line."""
    node.workerinput["parts"] = node.config.option.parts


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark who uses a part's fixture; leave the parts out while no test is named, else begin with what takes long."""
    for item in items:
        for name, part in PARTS.items():
            if not {*part.fixtures}.isdisjoint(getattr(item, "fixturenames", ())):
                item.add_marker(name)
        if item.get_closest_marker("torch") and not item.get_closest_marker("xdist_group"):
            # Whoever loads torch is a training, to which a night's stress run leaves the card.
            item.add_marker(pytest.mark.xdist_group("torch"))
    heavy = [item for item in items if any(item.get_closest_marker(name) for name in PARTS)]
    light = [item for item in items if item not in {*heavy}]
    if config.option.all:
        items[:] = heavy + light
    elif not config.option.parts:
        items[:] = light
        config.hook.pytest_deselected(items=heavy)


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Say what is left out, or what it needs and whether that is here."""
    if not config.option.parts:
        return [f"left out: {', '.join(PARTS)} (./tests/run --all runs them too; so does naming a test)"]
    lines = []
    for name, part in PARTS.items() if config.option.all else ():
        lacks = part.lacks()
        lines.append(
            f"{name}: {part.what}; needs {part.needs()}" + f"; skipped without {', '.join(lacks)}" * bool(lacks)
        )
    return lines


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder that every account can reach, as those of ``tmp_path`` are not."""
    folder = Path(tempfile.mkdtemp(prefix="wslgpud-public-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let ``fit`` find no Python with torch but one that a test names, whatever is installed here."""
    from wslgpud.cli import fit  # only for tests of commands
    from wslgpud.stress.find_python import NoTorch, find_python
    from wslgpud.words import say

    def found(setting: str, _: object, folder: Path) -> object:
        if setting:
            return find_python(setting, {}, folder)
        raise NoTorch(say("the Python that is named, {path}, is not a program", path="/none"))

    monkeypatch.setattr(fit, "find_python", found)
