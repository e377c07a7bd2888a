"""The daemon in a machine with a ``/dev/dxg`` that answers as WSL's kernels do: one boot, one driver after the other.

The device is CUSE's (``dxg_cuse.py``), the card the stand-in of ``tests/fake_nvml``. No Windows takes part.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from .conftest import REPOSITORY, BootMachine, slow
from .machine import Machine
from .service import METRIC, eventually, fake_nvml

pytestmark = [pytest.mark.vm, pytest.mark.xdist_group("vm-dxg"), pytest.mark.timeout(1800), slow]

GIB = 1 << 30
LIBRARY, ANSWERS, FOLDER = "/usr/local/lib/nvml.so.1", "/run/dxg.json", "/usr/local/lib/dxg"
# Emulated, each call takes a hundred times as long.
CONFIGURATION = f"""
[sampling]
nvml_library = "{LIBRARY}"
gpu_timeout_seconds = 60
[brake]
on = true
users = ["alice"]
resources = ["gpu"]
"""
#: holds the card, as far as the stand-ins say; its second thread opened the device
PROGRAM = """
import os, threading, time
threading.Thread(target=lambda: (print(os.getpid(), threading.get_native_id(), flush=True), time.sleep(9999))).start()
"""
PROBE = """
import os
wanted = b"nvml" + b"_probe"  # which is not in our own arguments
for pid in filter(str.isdecimal, os.listdir("/proc")):
    try:
        if wanted in open(f"/proc/{pid}/cmdline", "rb").read():
            os.kill(int(pid), 9)
    except OSError:
        pass
"""


class Guest:
    """The machine, its card and its device, changed by writing their files."""

    def __init__(self, machine: Machine, pid: int, thread: int) -> None:
        self.machine, self.pid, self.thread = machine, pid, thread

    def on_card(self, used: int) -> None:
        lines = {"total": 16 * GIB, "used": used, "wddm": 1, "pid": self.pid, "process_name": "/python3"}
        self._replace(f"{LIBRARY}.settings", "".join(f"{name} {value}\n" for name, value in lines.items()))

    def windows_says(self, *entries: dict[str, Any], **more: Any) -> None:
        """Have the device answer so; the probe is replaced, as it does not soon repeat what has failed."""
        self.windows_goes_on(*entries, **more)
        self.machine.python(PROBE)

    def windows_goes_on(self, *entries: dict[str, Any], **more: Any) -> None:
        self._replace(ANSWERS, json.dumps({"adapters": [{"vram": 16 * GIB, "entries": entries}], **more}))

    def metric(self, name: str) -> list[float]:
        said = self.machine.run("python3", "-c", METRIC, f"wslgpud_{name}{{", check=False)  # it may still be starting
        return [float(value) for value in said.stdout.split()]

    def card(self) -> dict[str, Any]:
        said = self.machine.run("/opt/wslgpud/bin/wslgpud", "status", "--json", check=False).stdout
        gpus: list[dict[str, Any]] = json.loads(said or "{}").get("gpus") or [{}]
        return gpus[0]

    def becomes(self, measured: float) -> None:
        def look() -> bool:
            return self.metric("gpu_up") == [1.0] and self.metric("gpu_process_memory_measured") == [measured]

        eventually(look, f"a card with measured {measured}", lambda: json.dumps(self.card()))

    def _replace(self, path: str, text: str) -> None:
        self.machine.write(f"{path}.new", text)
        self.machine.run("mv", f"{path}.new", path)


@pytest.fixture(scope="module")
def guest(module_machine: BootMachine, tmp_path_factory: pytest.TempPathFactory) -> Guest:
    machine = module_machine(program=True, memory_mib=512)
    machine.copy_in(fake_nvml(tmp_path_factory.mktemp("nvml")), LIBRARY)
    machine.copy_in(REPOSITORY / "tests/support/dxg.py", f"{FOLDER}/dxg.py")
    machine.copy_in(REPOSITORY / "tests/vm/dxg_cuse.py", f"{FOLDER}/dxg_cuse.py")
    machine.write("/etc/wslgpud/wslgpud.toml", CONFIGURATION)
    machine.run("useradd", "--create-home", "alice")
    machine.run("modprobe", "cuse")
    machine.run(
        "systemd-run", "--unit=program", "--property=StandardOutput=file:/run/program", "python3", "-c", PROGRAM
    )

    def printed() -> list[str]:
        return machine.run("cat", "/run/program", check=False).stdout.split()

    said = eventually(printed, "the program")
    one = Guest(machine, *map(int, said))
    one.on_card(12 * GIB)
    one.windows_says({"number": one.thread, "usage": 9 * GIB, "demoted": GIB})
    machine.run("systemd-run", "--unit=dxg", "python3", f"{FOLDER}/dxg_cuse.py", ANSWERS)
    eventually(lambda: machine.run("test", "-c", "/dev/dxg", check=False).returncode == 0, "/dev/dxg")
    answer = json.loads(machine.run("/opt/wslgpud/bin/python", "-m", "wslgpud.probes.dxg").stdout)
    assert "adapters" in answer, answer
    machine.run("systemd-run", "--unit=wslgpud-here", "/opt/wslgpud/bin/wslgpud", "run")
    return one


def test_vram_is_measured_and_a_threads_number_is_its_process(guest: Guest) -> None:
    guest.becomes(1.0)
    card = guest.card()
    assert card["vram_by_process"] == "measured"
    # Until the driver has said its name in the background, the same program is listed as a stranger's as well.
    eventually(
        lambda: [(p["pid"], p.get("used_bytes")) for p in guest.card()["processes"]] == [(guest.pid, 9 * GIB)],
        "the program alone",
    )
    assert guest.metric("gpu_memory_demoted_bytes") == [GIB]


def test_a_process_of_another_namespace_is_shown_to_nobody(guest: Guest) -> None:
    foreign = {"number": 1, "usage": 2 * GIB, "namespace": "container"}
    guest.windows_says({"number": guest.thread, "usage": 8 * GIB}, foreign)
    guest.becomes(1.0)
    eventually(
        lambda: [(p["pid"], p.get("used_bytes")) for p in guest.card()["processes"]] == [(guest.pid, 8 * GIB)],
        "the new figure",
    )


@pytest.mark.parametrize(
    ("said", "more"),
    [
        (15 * GIB, {}),  # more than NVML says is used
        (0, {}),
        (9 * GIB, {"generation": "einval"}),
        (9 * GIB, {"generation": "caller"}),
        (9 * GIB, {"generation": "no statistics"}),
        (9 * GIB, {"hang": True}),
    ],
    ids=["too much", "zeros", "EINVAL", "the caller's", "no statistics", "hangs"],
)
def test_what_is_not_to_be_believed_leaves_the_card_as_it_was(guest: Guest, said: int, more: dict[str, Any]) -> None:
    guest.on_card(12 * GIB)
    entry = {"number": guest.thread, "usage": said, "budget": 15 * GIB if said else 0}
    guest.windows_says(entry, **more)
    guest.becomes(0.0)
    assert guest.card()["vram_by_process"] == "suspected"
    guest.on_card(10 * GIB)
    eventually(lambda: guest.metric("gpu_memory_used_bytes") == [10 * GIB], "NVML's new figure")


def test_the_job_that_fills_a_measured_card_is_paused(guest: Guest) -> None:
    machine = guest.machine
    machine.run("systemd-run", "--unit=grows", "--uid=alice", "sleep", "infinity")
    pid = int(machine.run("systemctl", "show", "--property=MainPID", "--value", "grows").stdout)
    guest.pid = guest.thread = pid
    guest.on_card(4 * GIB)
    guest.windows_says({"number": pid, "usage": 3 * GIB, "budget": 15 * GIB})
    guest.becomes(1.0)

    def is_paused() -> bool:
        return b"\nState:\tT" in machine.read(f"/proc/{pid}/status")

    for used in range(10 * GIB, 16 * GIB, GIB // 4):
        guest.windows_goes_on({"number": pid, "usage": used - GIB, "budget": 15 * GIB})
        guest.on_card(used)
        # A busy host gives the machine its turn late: the card fills no faster than it is looked at.
        eventually(lambda used=used: is_paused() or guest.metric("gpu_memory_used_bytes") == [used], "the new figure")
        if is_paused():
            break

    said = machine.run("journalctl", "--no-pager", "-o", "cat", "-u", "wslgpud-here", "-n", "40").stdout
    assert is_paused(), said
    listed = machine.run("/opt/wslgpud/bin/wslgpud", "brake", "list").stdout
    assert "sleep" in listed
    assert "GPU 0" in listed
