"""A real parallel build exhausts a whole machine, and ends whole when its compilers take turns.

The compiler is this machine's own, brought along on a disk: an image with one of its own takes minutes to
make. tests/advise/guard/test_pause.py shows more of the same in a memory cgroup.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from .conftest import BootMachine, slow
from .image import SUITE
from .machine import Machine, Result

pytestmark = [pytest.mark.vm, pytest.mark.xdist_group("vm-service"), pytest.mark.timeout(1800), slow]

PROGRAM = "/opt/wslgpud/bin/wslgpud"
#: Without it a kernel with hardly any memory left reads the same pages of its programs from the disk again
#: and again, for minutes in an emulated machine, before it kills. With it it kills as soon as it cannot keep
#: what was used within the last seconds: https://docs.kernel.org/admin-guide/mm/multigen_lru.html
KEPT_MILLISECONDS = 3000
NO_THRASHING = f"echo y >/sys/kernel/mm/lru_gen/enabled && echo {KEPT_MILLISECONDS} >/sys/kernel/mm/lru_gen/min_ttl_ms"
#: Each file takes g++ some 110 MB, and but a quarter of a second where nothing is emulated; few sources
#: take so much in so little time. All at once take twice what the machine has left, one of them fits well.
FILES, DECLARATIONS, MEMORY_MIB = 4, 100_000, 320
MAKEFILE = f"""all: {" ".join(f"heavy{i}.s" for i in range(FILES))}
%.s: %.cc
\tg++ -O0 -S $<
"""
TOOLS = "/srv/tools"
ENVIRONMENT = {"PATH": f"{TOOLS}/bin:/usr/bin:/bin", "LD_LIBRARY_PATH": f"{TOOLS}/lib"}


def libraries(program: Path) -> list[Path]:
    """Return what a program loads, the C library left out: the machine has its own of the same release."""
    listed = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    words = [line.split() for line in listed.splitlines()]
    found = [Path(line[2]) for line in words if len(line) > 3 and line[1] == "=>"]
    return [path for path in found if not path.name.startswith(("libc.", "libm.", "libdl."))]


@pytest.fixture(scope="session")
def toolbox(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A disk with g++ and make of this machine, and sources that are heavy to compile."""
    if platform.freedesktop_os_release().get("VERSION_CODENAME") != SUITE:
        pytest.skip(f"g++ of this machine may not run in Debian {SUITE}")
    if not (shutil.which("g++") and shutil.which("make")):
        pytest.skip("no g++ and make")
    told = subprocess.run(["g++", "-print-prog-name=cc1plus"], capture_output=True, text=True, check=True)
    compiler = Path(told.stdout.strip())
    folder = tmp_path_factory.mktemp("toolbox")
    tree = folder / "tree"
    # g++ looks for its parts where it would be installed, seen from itself.
    inner = tree / "lib" / compiler.relative_to("/usr/lib").parent
    for place in (tree / "bin", inner):
        place.mkdir(parents=True)
    programs = {"g++": tree / "bin", "make": tree / "bin", str(compiler): inner}
    for name, place in programs.items():
        program = Path(shutil.which(name) or name).resolve()
        shutil.copy(program, place / Path(name).name)
        for library in libraries(program):
            shutil.copy(library, tree / "lib" / library.name)
    declarations = "".join(f"int f{i}(int);\n" for i in range(DECLARATIONS))
    for i in range(FILES):
        (tree / f"heavy{i}.cc").write_text(declarations)
    (tree / "Makefile").write_text(MAKEFILE)
    disk = folder / "tools.raw"
    subprocess.run(["mkfs.ext4", "-q", "-d", str(tree), str(disk), "256M"], check=True)
    return disk


def build(machine: Machine, *before: str) -> Result:
    machine.run("sh", "-c", f"rm -f {TOOLS}/*.s")
    command = [*before, "make", "-C", TOOLS, f"-j{FILES}"]
    return machine.run(*command, check=False, environment=ENVIRONMENT, timeout_seconds=800)


def test_a_build_that_dies_alone_ends_whole_under_guard(machine: BootMachine, toolbox: Path) -> None:
    debian = machine(program=True, memory_mib=MEMORY_MIB, cpus=2, drives=(toolbox,))
    debian.run("mkdir", TOOLS)
    debian.run("mount", "/dev/vdb", TOOLS)
    debian.run("sh", "-c", NO_THRASHING)

    alone = build(debian)
    assert alone.returncode != 0
    assert "Killed process" in debian.kernel_log()

    debian.run("dmesg", "--clear")
    guarded = build(debian, PROGRAM, "guard", "--jobs", "off", "--pause", "--state", "/srv/state", "--")
    assert guarded.returncode == 0, guarded.stderr
    assert "compilers had to wait" in guarded.stderr
    assert "Killed process" not in debian.kernel_log()
    print(guarded.stderr)
