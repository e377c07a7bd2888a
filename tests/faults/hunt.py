"""Plants a fault in a copy of the repository, and says whether the tests of its module see it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.faults.plant import planted
from tests.support.parts import LIGHT

#: room of the package -> where its tests are, besides the folder of the same name
ROOMS = {
    "active_runs": ("live", "training", "abuse/test_notes.py", "advise/guard/test_announce.py"),
    "advise": ("abuse/test_models.py", "abuse/test_windows_files.py"),
    "alerts": ("abuse/test_channels.py", "abuse/test_peers.py"),
    "app": ("integration",),
    "cli": (
        *("live", "integration/test_commands.py", "store/test_commands.py", "words/test_surfaces.py"),
        *("advise/fit", "advise/wslconfig", "alerts/test_report_screen.py"),
    ),
    "config": ("test_config.py", "contract", "abuse/test_safe_files.py"),
    "probes": ("gpu", "abuse/test_probe_pipes.py"),
    "security": ("abuse",),
    "series": ("store/test_commands.py", "page/test_plots.py"),
    "serve": ("page", "abuse/test_web.py", "abuse/test_requests_cost.py"),
    "service": ("deploy",),
    "sources": ("gpu", "abuse/test_parsers.py"),
    "store": ("abuse/test_foreign_database.py", "abuse/test_series.py"),
    "stress": ("abuse/test_stress_runs.py", "abuse/test_privileges.py"),
}
#: what goes through the whole house
WHOLE = ("test_verdict.py", "contract", "stories", "hosts")
NEVER_COPIED = ("__pycache__", ".git", ".venv*", ".cache", ".*_cache", ".hypothesis")
#: A test that waits this long for what no longer comes about has seen the fault.
TEST_SECONDS = 90
#: for compiling; where that takes longer, the tests do the rest
COLLECT_SECONDS = 120
#: What is planted may signal any process or take any memory: it sees its own processes alone, and has limits.
#: The shell is there to wait for orphans.
OWN_PROCESSES = ("--pid", "--fork", "--kill-child", "--mount-proc")
APART = ("unshare", "--user", "--map-current-user", *OWN_PROCESSES)
#: Root hands its rights over. Tests of who owns a file pass there, while in a user's namespace root's belong to nobody.
NOBODY = 65534
AS_NOBODY = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--no-new-privs")
WITHIN = ("prlimit", f"--as={16 << 30}", f"--fsize={2 << 30}", "sh", "-c", '"$@"; exit $?', "sh")
#: in this order; what needs more cannot run everywhere
MARKED = (LIGHT, "slow", "servers")
PASSED, FAILED, NOTHING_TO_RUN, TIME_OVER = 0, 1, 5, 124


class Outcome(NamedTuple):
    """Whether a fault was seen, and by which test."""

    place: str
    change: str
    seen: bool
    by: str
    seconds: float


def tests_of(root: Path, module: str) -> list[str]:
    """Return a module's test files: first those called like it, then which name it, of its folder, of the whole."""
    package, *parts = Path(module).with_suffix("").parts
    parts = [part for part in parts if part != "__init__"]
    parent, name = ".".join([package, *parts[:-1]]), parts[-1] if parts else ""
    names_it = re.compile(rf"\b{re.escape(parent)}(\.| import .*\b){name}\b")
    folders = ["/".join(parts[:depth]) for depth in range(len(parts), 0, -1)]
    folders = [folder for folder in folders if (root / "tests" / folder).is_dir()][:1]
    files = sorted((root / "tests").rglob("test_*.py"))
    naming = [file for file in files if names_it.search(file.read_text())]
    room = _below(root / "tests", [*folders, *ROOMS.get(parts[0] if parts else "", ())], files)
    called = [file for file in room if file.stem == f"test_{name}"]
    found = [*called, *(file for file in room if file in naming), *naming, *room, *_below(root / "tests", WHOLE, files)]
    return [str(file.relative_to(root)) for file in dict.fromkeys(found)]


def _below(tests: Path, places: Iterable[str], files: Sequence[Path]) -> list[Path]:
    return [file for place in places for file in files if tests / place in (file, *file.parents)]


class Workshop:
    """A copy of a repository in which one fault at a time is planted."""

    def __init__(self, root: Path, folder: Path) -> None:
        """Copy the repository to ``folder``, which must not be there yet."""
        shutil.copytree(root, folder, ignore=shutil.ignore_patterns(*NEVER_COPIED), symlinks=True)
        self._root = folder
        self._apart = apart()
        if AS_NOBODY[0] in self._apart:
            for path in (folder, *folder.rglob("*")):
                os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
        # Compiles all modules once. Nothing is compiled to disk while there is a fault: a file's time may be too coarse
        # to tell it from the one without.
        self._run(["--collect-only", "-q", "tests"], COLLECT_SECONDS, {})
        self._useless: list[str] = []

    def judge(self, module: str, number: int, seconds: float) -> Outcome:
        """Run the tests with a fault, the quickest first, for so many seconds at most or until one sees it."""
        path = self._root / module
        source = path.read_text()
        fault = planted(source, number)
        tests = tests_of(self._root, module)
        begun = time.monotonic()
        by = ""
        for which in MARKED:
            by = by or self._first_to_see(path, fault.source, tests, which, begun + seconds)
        return Outcome(f"{module}:{fault.line}", fault.change, bool(by), by, time.monotonic() - begun)

    def _first_to_see(self, path: Path, faulty: str, tests: Sequence[str], which: str, end: float) -> str:
        """Return the first test that fails with the fault, each time, and passes without it."""
        source, state = path.read_text(), path.stat()
        while (left := end - time.monotonic()) > 0:
            try:
                path.write_text(faulty)
                code, by = self._pytest(tests, which, left)
                alone, _ = self._pytest([by], which, left) if code == FAILED else (code, "")
            finally:
                path.write_text(source)
                os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
            if code in (PASSED, NOTHING_TO_RUN, TIME_OVER):
                return ""
            if code != FAILED or (alone == FAILED and self._pytest([by], which, left)[0] == PASSED):
                return by or f"pytest's end ({code})"
            self._useless.append(by)  # fails without the fault as well, or only now and then
        return ""

    def _pytest(self, tests: Sequence[str], which: str, seconds: float) -> tuple[int, str]:
        """Run tests until the first that fails; return pytest's status and that test."""
        options = ["-x", "-n0", "-q", "--tb=no", "-m", which, f"--timeout={TEST_SECONDS}"]
        options += [f"--deselect={test}" for test in self._useless]
        code, said = self._run([*options, *tests], seconds, {"PYTHONDONTWRITEBYTECODE": "1"})
        first = re.search(r"^(?:FAILED|ERROR) (.*?)(?: - .*)?$", said, re.MULTILINE)
        return code, first[1] if first else ""

    def _run(self, options: Sequence[str], seconds: float, environment: Mapping[str, str]) -> tuple[int, str]:
        """Run pytest, apart; return its status and its output."""
        plugins = ["-p", "no:cacheprovider", "-p", "xdist", "-p", "timeout"]
        inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        process = subprocess.Popen(
            [*self._apart, *WITHIN, sys.executable, "-m", "pytest", *plugins, *options],
            cwd=self._root,
            env={**inherited, "HOME": str(self._root), "PYTHONPATH": str(self._root), **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        try:
            said, _ = process.communicate(timeout=max(seconds, 1.0))
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            return TIME_OVER, ""
        return process.returncode, said


def apart() -> tuple[str, ...]:
    """Return what keeps the tests' processes apart, where the kernel lets us, and takes root's rights from them."""
    ways = [APART] if os.geteuid() != 0 else [("unshare", *OWN_PROCESSES, *AS_NOBODY), APART]
    for way in ways:
        tried = subprocess.run([*way, *WITHIN, sys.executable, "-c", ""], capture_output=True, check=False)
        if tried.returncode == 0:
            return way
    return ()
