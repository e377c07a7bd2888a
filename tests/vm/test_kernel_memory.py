"""What a real kernel does with memory: names on a tmpfs stay, page cache goes back when it is asked for.

In a machine of its own, because both are about all of its memory.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from .conftest import BootMachine
from .machine import Machine

pytestmark = [pytest.mark.vm, pytest.mark.xdist_group("vm-kernel-memory"), pytest.mark.timeout(1800)]

PYTHON = "/opt/wslgpud/bin/python"
FILES = 60_000
NAMES = f"""
import json, os, subprocess
from wslgpud.host import Host
from wslgpud.sources import memory
def dropped():
    open("/proc/sys/vm/drop_caches", "w").write("2")
    return memory.meminfo(open("/proc/meminfo").read())
os.mkdir("/mnt/names")
subprocess.run(["mount", "-t", "tmpfs", "-o", "nr_inodes=0", "none", "/mnt/names"], check=True)
before = dropped()
for i in range({FILES}):
    os.close(os.open(f"/mnt/names/{{i}}", os.O_CREAT | os.O_WRONLY))
after = dropped()
print(json.dumps({{
    "stayed": after["SReclaimable"] - before["SReclaimable"],
    "pinned": memory.pinned_bytes(Host()),
    "kernels": after["MemAvailable"],
    "ours": memory.sizes(Host())["MemAvailable"],
}}))
"""
RECLAIM = """
import json, sys
from wslgpud.app.return_cache import CacheReturner, reclaim_file
from wslgpud.host import Host
with open("/var/tmp/read", "wb") as file:
    for _ in range(96):
        file.write(bytes(1 << 20))
import os; os.sync()
with open("/var/tmp/read", "rb") as file:
    while file.read(1 << 20):
        pass
returner = CacheReturner(Host())
before, swapped = returner._cached_bytes(), returner._swapped_pages()
returner._reclaim(64 << 20)
print(json.dumps({
    "file": reclaim_file(Host()),
    "freed": before - returner._cached_bytes(),
    "swapped": returner._swapped_pages() - swapped,
}))
"""


@pytest.fixture(scope="module")
def debian(module_machine: BootMachine) -> Machine:
    return module_machine(program=True, memory_mib=384, swap_mib=64)


def told(machine: Machine, code: str) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(machine.run(PYTHON, "-c", code, timeout_seconds=600).stdout)
    return answer


def test_names_on_a_tmpfs_stay_and_do_not_count_as_available(debian: Machine) -> None:
    seen = told(debian, NAMES)

    # The kernel has dropped all that it can: the names are still there, in what it calls reclaimable. Meanwhile other
    # caches come and go by a MiB or two.
    assert seen["stayed"] > FILES * 192 * 0.7
    assert FILES * 192 * 0.9 < seen["pinned"] < FILES * 192 * 1.5
    assert seen["ours"] <= seen["kernels"] - FILES * 192 * 0.7


def test_page_cache_goes_back_and_no_program_is_swapped_out(debian: Machine) -> None:
    seen = told(debian, RECLAIM)

    assert seen["file"] == "/sys/fs/cgroup/memory.reclaim"
    assert 48 << 20 < seen["freed"] < 96 << 20
    assert seen["swapped"] * 4096 < 4 << 20
