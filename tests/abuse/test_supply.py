"""Only locked packages are installed, whatever an index offers: hashes, no source archives, no surprises.

The scripts run as they are, on a repository of a few lines, against an index on loopback that records each request and
offers newer, changed and hostile files.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import subprocess
import sys
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ENVIRONMENT = ROOT / "deploy" / "environment.sh"
LOCKED = sorted(
    file.relative_to(ROOT)
    for file in (
        *(ROOT / "deploy").glob("*.txt"),
        *(ROOT / "deploy" / "extras").glob("*.txt"),
        ROOT / "tests" / "requirements.txt",
    )
)
PINNED = re.compile(
    r"(?P<name>[a-z0-9][a-z0-9._-]*)==(?P<version>[^ ;\\]+)(?P<marker> ; [^\\]+)?"
    r"(?P<hashes>(?: \\\n    --hash=sha256:[0-9a-f]{64})+)\n"
)
#: A build backend in a line or two; the real one is as any other package here.
BACKEND = """
import zipfile
from pathlib import Path

INFO = "wslgpud-1.0.dist-info"

def build_wheel(folder, settings=None, metadata=None):
    name = "wslgpud-1.0-py3-none-any.whl"
    with zipfile.ZipFile(Path(folder, name), "w") as wheel:
        wheel.writestr("wslgpud/__init__.py", Path("wslgpud/__init__.py").read_text())
        wheel.writestr(f"{INFO}/METADATA", "Metadata-Version: 2.1\\nName: wslgpud\\nVersion: 1.0\\n")
        wheel.writestr(f"{INFO}/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr(f"{INFO}/RECORD", "")
    return name
"""
#: Leaves a trace when anybody imports or runs it.
HOSTILE = "import os, pathlib\npathlib.Path(os.environ['TRACES'], __name__ + '.py').touch()\n"


def requirements(file: Path) -> list[re.Match[str]]:
    """Take a lock file apart; every line of it must belong to a pin with hashes."""
    text = "".join(line for line in (ROOT / file).read_text().splitlines(keepends=True) if not line.startswith("#"))
    found = list(PINNED.finditer(text))
    assert "".join(match[0] for match in found) == text, f"{file}: something is not pinned, or has no hash"
    return found


def canonical(requirement: str) -> str:
    return re.sub(r"[-_.]+", "-", re.split(r"[^A-Za-z0-9._-]", requirement)[0]).lower()


@pytest.mark.parametrize("file", LOCKED, ids=str)
def test_every_line_of_a_lock_file_is_a_pin_with_hashes(file: Path) -> None:
    assert requirements(file)


def test_all_that_pyproject_asks_for_is_locked() -> None:
    tomllib = pytest.importorskip("tomllib")
    document = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = document["project"]["optional-dependencies"]
    asked = {
        Path("deploy/requirements.txt"): document["project"]["dependencies"],
        Path("deploy/build.txt"): [*document["build-system"]["requires"], *document["dependency-groups"]["build"]],
        Path("tests/requirements.txt"): document["dependency-groups"]["test"],
        **{Path(f"deploy/extras/{name}.txt"): wanted for name, wanted in extras.items()},
    }
    locked = {file: {match["name"] for match in requirements(file)} for file in LOCKED}

    assert set(locked) == set(asked)
    assert {file: {canonical(one) for one in wanted} - locked[file] for file, wanted in asked.items()} == {
        file: set() for file in asked
    }


def test_a_package_is_the_same_wherever_it_is_locked() -> None:
    """Else pip could not install two files together, and an extra would not be what the tests ran with.

    What builds ours and what tests the GPU's memory have environments of their own, and torch for CUDA no test's.
    """
    files: dict[tuple[str, str], set[str]] = {}
    for file in LOCKED:
        if file not in (Path("deploy/build.txt"), Path("deploy/extras/stress.txt")):
            for match in requirements(file):
                files.setdefault((match["name"], match["version"]), set()).add(match["hashes"])
    versions: dict[str, dict[str, set[str]]] = {}
    for file in LOCKED:
        for match in requirements(file):
            versions.setdefault(match["name"], {}).setdefault(match["version"], set()).add(str(file))

    assert [package for package, hashes in files.items() if len(hashes) != 1] == []
    tests = {(match["name"], match["version"]) for match in requirements(Path("tests/requirements.txt"))}
    core = {(match["name"], match["version"]) for match in requirements(Path("deploy/requirements.txt"))}
    extras = {
        (match["name"], match["version"])
        for file in LOCKED
        if file.parent.name == "extras" and file.stem != "stress"
        for match in requirements(file)
    }
    assert extras - tests - core == set()


@dataclass
class Index:
    """A folder of packages, served as an index that records requests."""

    folder: Path
    asked: list[str] = field(default_factory=list)
    url: str = ""

    def put(self, name: str, content: bytes) -> str:
        """Offer a file, and return its line of a lock file."""
        package, version, *_ = re.split(r"-|\.tar\.gz", name)
        place = self.folder / "simple" / package / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
        return f"{package}=={version} \\\n    --hash=sha256:{hashlib.sha256(content).hexdigest()}\n"


def wheel(name: str, version: str, module: str, needs: str = "") -> tuple[str, bytes]:
    """Return a wheel of one module, by its file's name and content."""
    info, parts = f"{name}-{version}.dist-info", BytesIO()
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    files = {
        f"{name}.py": module,
        f"{info}/METADATA": metadata + (f"Requires-Dist: {needs}\n" if needs else ""),
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    with zipfile.ZipFile(parts, "w") as archive:
        record = ""
        for path, text in files.items():
            archive.writestr(path, text)
            digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
            record += f"{path},sha256={digest},{len(text.encode())}\n"
        archive.writestr(f"{info}/RECORD", record + f"{info}/RECORD,,\n")
    return f"{name}-{version}-py3-none-any.whl", parts.getvalue()


def source(name: str, version: str) -> tuple[str, bytes]:
    """Return a source archive whose build leaves a trace and asks for more."""
    content = BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as archive:
        for path, text in (
            ("pyproject.toml", '[build-system]\nrequires = ["evil"]\nbuild-backend = "evil"\n'),
            ("setup.py", HOSTILE),
            ("PKG-INFO", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"),
        ):
            member = tarfile.TarInfo(f"{name}-{version}/{path}")
            member.size = len(text)
            archive.addfile(member, BytesIO(text.encode()))
    return f"{name}-{version}.tar.gz", content.getvalue()


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Index]:
    offered = Index(tmp_path_factory.mktemp("index"))

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, *arguments: object) -> None:
            offered.asked.append(self.path)

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(offered.folder))) as server:
        offered.url = f"http://127.0.0.1:{server.server_port}/simple"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield offered
        server.shutdown()
        thread.join()


@dataclass
class Clone:
    """A repository of a few lines with the real scripts, and a release made of it."""

    folder: Path
    release: Path
    traces: Path
    index: Index

    def runs(self, script: str) -> subprocess.CompletedProcess[str]:
        """Source the scripts and run something, in a folder full of traps as /tmp may be."""
        return subprocess.run(
            ["sh", "-euc", f". '{ENVIRONMENT}'\n{script}"],
            cwd=self.traces / "traps",
            capture_output=True,
            text=True,
            check=False,
            env={
                "PATH": os.environ["PATH"],
                "HOME": str(self.traces),
                "PYTHON": sys.executable,
                "TRACES": str(self.traces),
                "PIP_INDEX_URL": self.index.url,
                "PIP_CONFIG_FILE": os.devnull,
                "PIP_NO_CACHE_DIR": "1",
                "NO_PROXY": "*",
            },
        )

    def left(self) -> list[str]:
        """Return the traces of what should never have run."""
        return sorted(path.name for path in self.traces.glob("*.py"))


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory, index: Index) -> Clone:
    folder, traces = tmp_path_factory.mktemp("clone"), tmp_path_factory.mktemp("traces")
    (traces / "traps").mkdir()
    for name in ("venv", "ensurepip", "pip", "hatchling", "wslgpud", "sitecustomize"):
        (traces / "traps" / f"{name}.py").write_text(HOSTILE)
    (folder / "wslgpud").mkdir()
    (folder / "wslgpud" / "__init__.py").write_text('__version__ = "1.0"\n')
    # What is not locked is asked for in each way that there is.
    (folder / "pyproject.toml").write_text(
        '[project]\nname = "wslgpud"\nversion = "1.0"\ndependencies = ["evil"]\n'
        '[project.optional-dependencies]\nmore = ["evil"]\n'
        '[build-system]\nrequires = ["backend>=1", "evil"]\nbuild-backend = "backend"\n'
    )
    (folder / "deploy" / "extras").mkdir(parents=True)
    locked = {
        "requirements.txt": index.put(*wheel("good", "1.0", "")),
        "build.txt": index.put(*wheel("backend", "1.0", BACKEND)),
        "extras/more.txt": index.put(*wheel("addition", "1.0", "")),
    }
    for name, text in locked.items():
        (folder / "deploy" / name).write_text(text)
    for name in ("good", "backend", "addition", "evil"):
        index.put(*wheel(name, "9.0", HOSTILE))
    return Clone(folder, tmp_path_factory.mktemp("releases") / "one", traces, index)


@pytest.fixture(scope="module")
def made(clone: Clone) -> Clone:
    done = clone.runs(f"make_release '{clone.release}' '{clone.folder}' more")
    assert done.returncode == 0, done.stderr
    return clone


@pytest.mark.slow
def test_a_release_contains_and_requests_only_locked_packages(made: Clone) -> None:
    asked = {path.split("/")[2] for path in made.index.asked if path.startswith("/simple/")}
    packages = next(made.release.glob("lib/python3*/site-packages"))
    installed = {path.name for path in packages.glob("*.dist-info") if not path.name.startswith(("pip-", "set"))}

    assert asked == {"good", "backend", "addition"}
    assert installed == {"good-1.0.dist-info", "addition-1.0.dist-info", "wslgpud-1.0.dist-info"}
    assert (made.release / "complete").exists()
    assert not (made.release / "backend").exists()
    assert made.left() == []


@pytest.mark.slow
def test_making_it_writes_nothing_into_the_clone(made: Clone) -> None:
    there = {str(path.relative_to(made.folder)) for path in made.folder.rglob("*") if path.is_file()}

    assert there == {
        "pyproject.toml",
        "wslgpud/__init__.py",
        "deploy/requirements.txt",
        "deploy/build.txt",
        "deploy/extras/more.txt",
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("offered", "why"),
    [
        (wheel("changed", "1.0", HOSTILE), "DO NOT MATCH THE HASHES"),
        (source("built", "1.0"), "No matching distribution"),
        (wheel("asking", "1.0", "", needs="evil"), "all requirements must have their versions pinned"),
    ],
    ids=["another wheel under the same name", "a source archive, its hash right", "a dependency not locked"],
)
def test_what_was_not_locked_is_refused(made: Clone, offered: tuple[str, bytes], why: str) -> None:
    name, content = offered
    line = made.index.put(name, content)
    if name.startswith("changed"):
        line = line.replace(line[-65:-1], hashlib.sha256(b"what was locked").hexdigest())
    lock = made.folder.parent / f"{name}.txt"
    lock.write_text(line)
    done = made.runs(f"install_locked '{made.release}' '{lock}'")

    assert done.returncode != 0
    assert why in done.stderr
    assert made.left() == []
    assert "/simple/evil/evil-9.0-py3-none-any.whl" not in made.index.asked


@pytest.mark.slow
def test_a_changed_build_backend_is_refused_and_builds_nothing(made: Clone, tmp_path: Path) -> None:
    copy = tmp_path / "clone"
    (copy / "deploy").mkdir(parents=True)
    wrong = hashlib.sha256(b"what was locked").hexdigest()
    (copy / "deploy" / "build.txt").write_text(f"backend==9.0 \\\n    --hash=sha256:{wrong}\n")
    (copy / "pyproject.toml").write_text((made.folder / "pyproject.toml").read_text())
    done = made.runs(f"install_ours '{made.release}' '{copy}'")

    assert done.returncode != 0
    assert "DO NOT MATCH THE HASHES" in done.stderr
    assert made.left() == []
