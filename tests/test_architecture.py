"""The house plan, held by a test: who may import whom, and where each library lives."""

from __future__ import annotations

import ast
import os
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "wslgpud"

# Lower never imports higher; neighbours of one layer do not import each other.
LAYERS = (
    ("metrics", "units", "steps", "documents", "extras", "patterns", "shapes", "__init__"),
    ("words",),
    ("event",),
    ("model", "masking"),
    ("config_key",),
    ("config", "host", "outgoing", "palette", "foreign"),
    ("probes",),
    ("sources",),
    ("client", "observe", "capture", "systemd", "logs", "running", "secrecy", "output"),
    ("risk",),
    ("store", "alerts", "serve", "stress", "advise", "plots"),
    ("verdict",),
    ("stress_unit",),
    ("sampler", "admission", "jobs", "status", "history", "export", "curves", "archive"),
    ("catalogue",),
    ("monitor",),
    ("app",),
    ("daemon",),
    ("cli",),
    ("__main__",),
)

# Each third-party library has one home; what only a command or an option needs is imported late there.
HOMES = {
    "sqlalchemy": {"store"},
    "psycopg": {"store"},
    "prometheus_client": {"serve", "cli"},
    "uvicorn": {"serve"},
    "bcrypt": {"serve"},
    "yaml": {"serve"},
    "apscheduler": {"jobs"},
    "pynvml": {"probes"},
    "torch": {"stress", "advise"},
    "polib": {"words"},
    "psutil": {"serve"},
    "rich": {"cli"},
    "textual": {"cli"},
    "typer": {"cli"},
    "matplotlib": {"plots"},
    "apprise": {"alerts"},
    "pyarrow": {"export"},
    "opentelemetry": {"serve"},
}

# One file by design: a Python that has torch and nothing of ours is given it as it is.
LENGTHS = {"stress/worker.py": 840}

MODULES = sorted(PACKAGE.rglob("*.py"))


def part_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def height(part: str) -> int:
    return next(i for i, layer in enumerate(LAYERS) if part in layer)


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_a_module_imports_only_what_lies_below_it(path: Path) -> None:
    mine = part_of(path)
    for name in imports(path):
        top, *rest = name.split(".")
        if top == "wslgpud":
            theirs = rest[0] if rest and rest[0] != "__version__" else "__init__"
            allowed = theirs == mine or height(theirs) < height(mine)
            assert allowed, f"{mine} must not import {theirs}"
        elif top in HOMES:
            assert mine in HOMES[top], f"{top} belongs in {', '.join(HOMES[top])}"


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_a_module_is_short_enough_to_be_read_at_one_sitting(path: Path) -> None:
    longest = LENGTHS.get(str(path.relative_to(PACKAGE)), 420)

    assert len(path.read_text().splitlines()) <= longest


def test_no_file_names_a_place_on_its_authors_machine() -> None:
    ours = str(PACKAGE.parent)
    for folder, folders, names in os.walk(ours):
        # In hidden ones lies what programs make, checkers beside us this very moment.
        folders[:] = [name for name in folders if not name.startswith(".")]
        for path in (Path(folder, name) for name in names):
            if path.suffix in {".py", ".md", ".toml", ".json", ".sh", ".service"}:
                # /opt/wslgpud is where the unit wants the program, so a clone there proves nothing.
                assert ours == "/opt/wslgpud" or f"{ours}/" not in path.read_text(errors="replace"), path
