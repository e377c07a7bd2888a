"""The layers, held by a test: who may import whom, and where each library lives."""

from __future__ import annotations

import ast
import os
from collections import Counter
from collections.abc import Callable, Iterator
from graphlib import TopologicalSorter
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "wslgpud"

# From the bottom up: a layer imports only layers below it; neighbours on one line do not import each other.
LAYERS = (
    ("metrics", "optional_packages", "shipped_files", "toml", "training", "__init__"),
    ("words",),
    ("model", "security"),
    ("colors", "config", "host", "client"),
    ("probes",),
    ("sources", "risk"),
    ("store", "active_runs"),
    ("sampling", "alerts"),
    ("stress", "brake"),
    ("series", "verdict", "advise", "service"),
    ("serve",),
    ("app",),
    ("cli",),
    ("__main__",),
)

# What forecasts and decides is pure: nothing of the machine, of files or of the network is in its reach.
PURE = ("metrics", "model", "risk", "colors", "verdict")
IO = {"os", "subprocess", "socket", "threading", "time", "sqlite3", "shutil", "urllib", "http"}

# Each third-party library has one home; what only a command or an option needs is imported late there.
HOMES = {
    "sqlalchemy": {"store"},
    "psycopg": {"store"},
    "prometheus_client": {"serve", "cli"},
    "h11": {"serve", "security"},
    "apscheduler": {"stress"},
    "bcrypt": {"serve"},
    "yaml": {"serve"},
    "pynvml": {"probes"},
    "torch": {"stress", "advise"},
    "polib": {"words"},
    "psutil": {"serve", "advise", "alerts", "security"},
    "rich": {"cli"},
    "textual": {"cli"},
    "click": {"cli"},
    "matplotlib": {"series"},
    "apprise": {"alerts"},
    "pyarrow": {"series"},
    "opentelemetry": {"serve"},
}


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def executed(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a node and all below it, apart from those for type checkers."""
    yield node
    for child in ast.iter_child_nodes(node):
        if not (isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"):
            yield from executed(child)


def imports(path: Path, walk: Callable[[ast.AST], Iterator[ast.AST]] = ast.walk) -> Iterator[str]:
    for node in walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def wrong(path: Path) -> Iterator[str]:
    """Yield a module's forbidden imports."""
    floor = {room: number for number, rooms in enumerate(LAYERS) for room in rooms}
    mine, name = room_of(path), path.relative_to(PACKAGE)
    for imported in imports(path):
        top, *rest = imported.split(".")
        if top == "wslgpud":
            theirs = rest[0] if rest and rest[0] != "__version__" else "__init__"
            if theirs != mine and floor[theirs] >= floor[mine]:
                yield f"{name}: {mine} must not import {theirs}"
        elif mine not in HOMES.get(top, {mine}):
            yield f"{name}: {top} belongs in {', '.join(HOMES[top])}"
        elif mine in PURE and top in IO:
            yield f"{name}: {mine} is pure, and must not import {top}"


def test_every_module_is_short_and_imports_only_lower_layers() -> None:
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        found += wrong(path)
        name, lines = str(path.relative_to(PACKAGE)), len(path.read_text().splitlines())
        found += [f"{name}: {lines} lines"] if lines > 420 else []
    assert found == []


def test_no_modules_import_each_other_in_a_circle_not_even_late() -> None:
    paths = {".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts): path for path in PACKAGE.rglob("*.py")}
    modules = {name.removesuffix(".__init__"): path for name, path in paths.items()}
    needs = {
        name: {found if found in modules else found.rpartition(".")[0] for found in imports(path, executed)} - {name}
        for name, path in modules.items()
    }
    tuple(TopologicalSorter(needs).static_order())  # raises CycleError, which names them


def test_a_name_of_a_module_or_a_class_stands_for_one_thing() -> None:
    """A command's module is named like the command; elsewhere a second module of that name would be another thing."""
    modules, classes = Counter[str](), Counter[str]()
    for path in PACKAGE.rglob("*.py"):
        modules[path.stem] += path.stem != "__init__" and room_of(path) != "cli"
        classes.update(node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.ClassDef))
    assert [name for name, number in (modules + classes).items() if number > 1] == []


def test_no_file_names_a_place_on_its_authors_machine() -> None:
    ours = str(PACKAGE.parent)
    for folder, folders, names in os.walk(ours):
        # In hidden ones lies what programs make, checkers beside us this very moment.
        folders[:] = [name for name in folders if not name.startswith(".")]
        for path in (Path(folder, name) for name in names):
            if path.suffix in {".py", ".md", ".toml", ".json", ".sh", ".service"}:
                # /opt/wslgpud is where the unit wants the program, so a clone there proves nothing.
                assert ours == "/opt/wslgpud" or f"{ours}/" not in path.read_text(errors="replace"), path
