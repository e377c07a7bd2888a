"""A real parallel build exhausts a whole machine, and ends whole when its compilers take turns.

Runs by hand, with WSLGPUD_SLOW=1: an emulated machine takes minutes for six files, and an image with g++ as
long again; tests/advise/guard/test_pause.py shows the same in a memory cgroup at each run. On 2026-11-21, in
384 MB of RAM without swap: killed when alone; under guard done after 1 min 49 s, with 90 MB left at the
narrowest and five waits.
"""

from __future__ import annotations

import os

import pytest

from .conftest import BootMachine
from .machine import Machine, Result

pytestmark = [
    pytest.mark.vm,
    pytest.mark.xdist_group("vm"),
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not os.environ.get("WSLGPUD_SLOW"), reason="takes minutes: set WSLGPUD_SLOW=1"),
]

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
