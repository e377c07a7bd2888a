"""A real parallel build exhausts a whole machine, and ends whole when its compilers take turns."""

from __future__ import annotations

import pytest

from .conftest import BootMachine
from .machine import Machine, Result

pytestmark = [pytest.mark.vm, pytest.mark.xdist_group("vm")]

PROGRAM = "/opt/wslgpud/bin/wslgpud"
#: Each file takes g++ some 60 MB; all at once take more than the machine has, two of them fit.
FILES, ENTRIES, MEMORY_MIB = 6, 350_000, 384
SOURCES = f"""
table = ",".join(str(i % 97) for i in range({ENTRIES}))
for i in range({FILES}):
    open(f"/srv/table{{i}}.cc", "w").write(f"int table{{i}}[] = {{{{{{table}}}}}};\\n")
"""
MAKEFILE = f"""all: {" ".join(f"table{i}.o" for i in range(FILES))}
%.o: %.cc
\tg++ -O0 -c $<
"""


def build(machine: Machine, *before: str) -> Result:
    machine.run("sh", "-c", "rm -f /srv/*.o")
    command = [*before, "make", "-C", "/srv", f"-j{FILES}"]
    return machine.run(*command, check=False, timeout_seconds=600)


def test_a_build_that_dies_alone_ends_whole_under_guard(machine: BootMachine) -> None:
    debian = machine(program=True, packages=("g++", "make"), memory_mib=MEMORY_MIB)
    debian.python(SOURCES)
    debian.write("/srv/Makefile", MAKEFILE)

    alone = build(debian)
    assert alone.returncode != 0
    assert "Killed process" in debian.kernel_log()

    guarded = build(debian, PROGRAM, "guard", "--jobs", "off", "--pause", "--state", "/srv/state", "--")
    assert guarded.returncode == 0, guarded.stderr
    assert "compilers waited" in guarded.stderr
    assert "killed" not in guarded.stderr
    print(guarded.stderr)  # noqa: T201 - how it went, for who runs this by hand
