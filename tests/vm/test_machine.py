"""The virtual machines keep what they promise to the tests that build on them."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import REPOSITORY, BootMachine
from .machine import Machine, MachineError

pytestmark = [pytest.mark.vm, pytest.mark.xdist_group("vm"), pytest.mark.timeout(3000)]

TAKE_ALL_MEMORY = """
blocks = []
while True:
    blocks.append(b"x" * (4 << 20))
"""


@pytest.fixture(scope="module")
def debian(module_machine: BootMachine) -> Machine:
    if "WSLGPUD_SLOW" not in os.environ:
        # The tests that build on the machines would find it as well, only less plainly.
        pytest.skip("takes minutes where machines are emulated: set WSLGPUD_SLOW=1")
    return module_machine(program=True, memory_mib=384, swap_mib=128)


def test_tests_that_share_a_machine_share_a_worker(request: pytest.FixtureRequest) -> None:
    """Else each worker boots a machine, and what one test installs the next one misses."""
    distributed = "PYTEST_XDIST_WORKER" in os.environ

    assert request.node.nodeid.endswith("@vm") or not distributed


def test_a_command_returns_its_exit_code_and_both_outputs(debian: Machine) -> None:
    result = debian.run("sh", "-c", 'cat; echo "$WHO" >&2; exit 7', stdin=b"in", environment={"WHO": "me"}, check=False)

    assert (result.returncode, result.stdout, result.stderr) == (7, "in", "me\n")


def test_a_hanging_command_is_killed_along_with_its_children(debian: Machine) -> None:
    with pytest.raises(MachineError, match="still running after 5 s, killed"):
        debian.run("sh", "-c", "sleep 3141 & echo $! > /run/child; wait", timeout_seconds=5)

    child = debian.read("/run/child").decode().strip()
    assert debian.run("test", "-e", f"/proc/{child}", check=False).returncode == 1


def test_a_memory_limit_of_a_cgroup_kills_inside_it(debian: Machine) -> None:
    limited = ["systemd-run", "--wait", "--quiet", "--unit=limited", "-p", "MemoryMax=48M", "-p", "MemorySwapMax=0"]

    debian.run(*limited, "python3", "-c", TAKE_ALL_MEMORY, check=False)

    assert debian.run("systemctl", "show", "-P", "Result", "limited").stdout == "oom-kill\n"
    assert re.search(r"Memory cgroup out of memory: Killed process \d+ \(python3\)", debian.kernel_log())
    assert "oom_memcg=/system.slice/limited.service" in debian.kernel_log()


def test_the_machine_still_answers_after_a_memory_hog_is_killed(debian: Machine) -> None:
    result = debian.python(TAKE_ALL_MEMORY, check=False)

    killed = r"(?<!cgroup )[Oo]ut of memory: Killed process \d+ \(python3\)"
    assert result.returncode == -signal.SIGKILL
    assert re.search(killed, debian.kernel_log())
    assert re.search(killed, debian.console)


def test_a_power_cut_loses_only_what_was_not_synced(debian: Machine) -> None:
    before = debian.read("/proc/sys/kernel/random/boot_id")
    debian.write("/srv/synced", "here")
    debian.run("sync")
    debian.write("/srv/unsynced", "gone")

    debian.cut_power()

    assert not debian.running
    with pytest.raises(MachineError, match="has no power"):
        debian.run("true")
    assert debian.boot() not in before.decode()
    assert debian.read("/srv/synced") == b"here"
    assert debian.run("test", "-s", "/srv/unsynced", check=False).returncode == 1
    assert "Linux version" in debian.run("journalctl", "-k", "-b", "-1").stdout


def test_the_machine_dies_with_a_test_run_that_is_killed(able_to_boot: None, tmp_path: Path) -> None:
    code = f"""
import signal, time
from pathlib import Path
from tests.vm.image import image
from tests.vm.machine import Machine, MachineError
machine = Machine(image(), Path({str(tmp_path)!r}))
try:
    machine.boot(timeout_seconds=0)
except MachineError:
    # Only from then on is it bound to our life.
    while not Path(f"/proc/{{machine._qemu.pid}}/comm").read_text().startswith("qemu"):
        time.sleep(0.1)
    print(machine._qemu.pid, flush=True)
signal.pause()
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, cwd=REPOSITORY) as run:
        assert run.stdout is not None
        qemu = os.pidfd_open(int(run.stdout.readline()))
        assert not select.select([qemu], [], [], 0)[0]
        run.kill()

    assert select.select([qemu], [], [], 300)[0]
    os.close(qemu)
