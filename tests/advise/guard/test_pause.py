"""A real parallel build that dies of its own greed, and lives when its compilers take turns."""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path

import pytest

from tests.advise.guard.box import box
from tests.advise.guard.test_guard import GUARD
from wslgpud.advise.guard import tree
from wslgpud.host import Host

MIB = 1 << 20
#: Each file takes g++ some 75 MiB and a second; all at once take half as much again as the limit.
FILES, ENTRIES, LIMIT = 5, 450_000, 260 * MIB


@pytest.fixture(scope="module")
def sources(tmp_path_factory) -> Path:
    if not (shutil.which("g++") and shutil.which("make")):
        pytest.skip("no g++ and make")
    folder = tmp_path_factory.mktemp("build")
    table = ",".join(str(i % 97) for i in range(ENTRIES))
    for i in range(FILES):
        (folder / f"table{i}.cc").write_text(f"int table{i}[] = {{{table}}};\n")
    objects = " ".join(f"table{i}.o" for i in range(FILES))
    (folder / "Makefile").write_text(f"all: {objects}\n%.o: %.cc\n\tg++ -O0 -c $<\n")
    return folder


def build(folder: Path, *before: str) -> subprocess.CompletedProcess:
    for old in folder.glob("*.o"):
        old.unlink()
    with box(LIMIT) as inside:
        command = [*inside, *before, "make", f"-j{FILES}"]
        return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def is_killed_alone(folder: Path) -> bool:
    """Return whether the kernel kills a compiler; the rest may fit so tightly that they would thrash for ever."""
    make = "make", f"-j{FILES}"
    with box(LIMIT) as inside, subprocess.Popen([*inside, *make], cwd=folder, stderr=subprocess.PIPE, text=True) as run:
        killed = any("Killed" in line for line in run.stderr)
        run.kill()
    return killed


@pytest.mark.slow
def test_a_build_that_dies_without_the_guard_lives_with_it(sources, tmp_path):
    assert is_killed_alone(sources)

    options = ("--jobs", "off", "--pause", "--state", str(tmp_path), "--")
    guarded = build(sources, *GUARD, *options)

    assert guarded.returncode == 0, guarded.stderr
    assert len(list(sources.glob("*.o"))) == FILES
    assert "compilers had to wait" in guarded.stderr

    # The next time it is known how little each takes: two may run at once.
    again = build(sources, *GUARD, "--pause", "--state", str(tmp_path), "--")
    assert again.returncode == 0, again.stderr
    assert "measured for each" in again.stderr


def test_compilers_go_on_when_the_guard_is_killed(sources, tmp_path):
    """Nobody but us knows that they wait."""
    for old in sources.glob("*.o"):
        old.unlink()
    with box(LIMIT) as inside:
        options = ("--jobs", "off", "--pause", "--state", str(tmp_path), "--")
        command = [*inside, *GUARD, *options, "make", "-j3", *(f"table{i}.o" for i in range(3))]
        guard = subprocess.Popen(command, cwd=sources, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while not (waiting := [p for p in below(guard.pid) if p.stopped]):
            assert guard.poll() is None, "the build ended and nobody had to wait"
            time.sleep(0.05)
        guard.kill()
        guard.wait()

        while {p.key for p in waiting} & {p.key for p in below(1) if p.stopped}:
            time.sleep(0.05)


def below(root: int) -> list[tree.Process]:
    """Return the processes that ``root`` has started; orphans are found below the first of all."""
    return tree.descendants(Host(), root)
