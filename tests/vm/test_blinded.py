"""A stranger with a program on the card tries to blind the daemon; and a driver that hangs is told at once.

The stranger's program holds the lock of its own memory map (``guest/hold_own_lock.c``), so that all readers of its
arguments and libraries wait: ``ps`` of the whole machine hangs. The card is the stand-in of ``tests/fake_nvml``.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import Any

import pytest

from .conftest import REPOSITORY, BootMachine, slow
from .service import (
    CONFIGURATION_FILE,
    ON_WARNING,
    PATIENT,
    SOMEBODY,
    SOURCE,
    WARNINGS,
    Service,
    eventually,
    fake_nvml,
    install,
)

pytestmark = [pytest.mark.vm, pytest.mark.xdist_group("vm-blinded"), pytest.mark.timeout(1800), slow]

LIBRARY, HOLD, STRANGER = "/usr/local/lib/nvml.so.1", "/usr/local/bin/hold_own_lock", "stranger"
HELD = "/run/held.pid"
CONFIGURATION = f"""
[alerts]
command = ["/usr/local/bin/on-warning"]
[sampling]
nvml_library = "{LIBRARY}"
"""
GIB = 1 << 30
#: Fills the card from 60 to 99 % within half a minute.
FILL = f"""
import os, sys, time
pid, total = sys.argv[1], {80 * GIB}
for step in range(40):
    with open("{LIBRARY}.settings.new", "w") as file:
        file.write(f"total {{total}}\\nused {{int((0.60 + 0.01 * step) * total)}}\\npid {{pid}}\\n")
    os.rename("{LIBRARY}.settings.new", "{LIBRARY}.settings")
    time.sleep(0.8)
"""


@pytest.fixture(scope="module")
def service(module_machine: BootMachine, tmp_path_factory: pytest.TempPathFactory) -> Service:
    """The service with a card, as its installer leaves it."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler (cc) to build the attack with")
    folder = tmp_path_factory.mktemp("attack")
    subprocess.run(
        ["cc", "-O1", "-static", "-o", folder / "hold", REPOSITORY / "tests/vm/guest/hold_own_lock.c"], check=True
    )
    machine = module_machine(program=True, memory_mib=512)
    machine.copy_in(REPOSITORY / "deploy", f"{SOURCE}/deploy")
    machine.copy_in(folder / "hold", HOLD)
    machine.run("chmod", "755", HOLD)
    machine.copy_in(fake_nvml(folder), LIBRARY)
    for user in (SOMEBODY, STRANGER):
        machine.run("useradd", "--create-home", user)
    machine.run("rm", "/opt/wslgpud")  # all is there but what the test is about
    machine.write("/usr/local/lib/systemd/system/wslgpud.service.d/00-patient.conf", PATIENT)
    machine.write("/usr/local/bin/on-warning", ON_WARNING, mode=0o755)
    machine.write(CONFIGURATION_FILE, CONFIGURATION)
    on_card(machine, used=40 * GIB)
    one = Service(machine)
    install(one)
    machine.run("modprobe", "fuse")
    return one


def on_card(machine: Any, **settings: object) -> None:
    lines = {"total": 80 * GIB, **settings}
    machine.write(f"{LIBRARY}.settings.new", "".join(f"{name} {value}\n" for name, value in lines.items()))
    machine.run("mv", f"{LIBRARY}.settings.new", f"{LIBRARY}.settings")  # it is read at every call, never in part


def warned(service: Service) -> list[dict[str, Any]]:
    text = service.machine.run("cat", WARNINGS, check=False).stdout
    return [json.loads(line) for line in text.splitlines() if line]


def filled(service: Service, pid: str) -> list[str]:
    """Have the card filled; return the levels that were told of it.

    Which ones depends on how many samples an emulated machine comes to take; that there are any does not.
    """
    known = len(warned(service))
    service.machine.run("systemd-run", "--wait", "--collect", "python3", "-c", FILL, pid)

    def levels() -> list[str]:
        return [m["level"] for m in warned(service)[known:] if m["resource"] == "gpu0"]

    return eventually(lambda: [level for level in levels() if level != "ok"], "a warning", lambda: str(warned(service)))


def verdict(service: Service) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(service.machine.run("wslgpud", "status", "--json", check=False).stdout)
    return found["verdict"] | {"processes": found["processes"], "gpus": found["gpus"]}


def test_a_stranger_who_blocks_its_readers_silences_no_warning(service: Service) -> None:
    machine = service.machine
    # Not through the journal: journald reads the arguments of whoever writes to it, and would wait as well.
    output = f"--property=StandardOutput=file:{HELD}"
    machine.run("systemd-run", "--unit=hold", f"--uid={STRANGER}", output, HOLD, "/dev/fuse", "900")

    def printed() -> str:
        return machine.run("cat", HELD, check=False).stdout.strip()

    said = eventually(printed, "the held lock", lambda: str(service.journal()))
    ps = machine.run("timeout", "-s", "KILL", "5", "cat", f"/proc/{said}/cmdline", check=False)
    assert ps.returncode != 0, "the control: whoever reads its arguments waits"

    assert set(filled(service, said)) <= {"warning", "critical", "emergency"}
    seen = verdict(service)
    assert seen["level"] in {"warning", "critical", "emergency"}
    assert [process["pid"] for gpu in seen["gpus"] for process in gpu["processes"]] == [int(said)]
    assert service.property("NRestarts") == "0"
    machine.run("systemctl", "stop", "hold")
    on_card(machine, used=10 * GIB)


def test_without_the_attack_the_warnings_are_the_same(service: Service) -> None:
    """The control: the attack changes nothing."""
    eventually(lambda: verdict(service)["level"] == "ok", "calm", lambda: str(verdict(service)))
    assert set(filled(service, service.property("MainPID"))) <= {"warning", "critical", "emergency"}
    on_card(service.machine, used=10 * GIB)
    eventually(lambda: verdict(service)["level"] == "ok", "calm", lambda: str(verdict(service)))


def test_a_hung_driver_is_reported_with_its_last_figures(service: Service) -> None:
    known = len(warned(service))
    on_card(service.machine, used=10 * GIB, hang="DeviceGetMemoryInfo_v2")
    told = eventually(
        lambda: next((v for v in [verdict(service)] if v["cause"] == "blind"), None),
        "the verdict",
        lambda: str(verdict(service)),
    )
    assert told["subject"] == "gpu0"
    assert "no reading for" in told["headline"]
    assert "69 of 79 GiB were left" in told["headline"]

    message = eventually(
        lambda: next((m for m in warned(service)[known:] if m["rule"] == "blind"), None),
        "the message",
        lambda: str(warned(service)),
    )
    assert message["level"] == "warning"
    assert "GPU 0: no reading for" in message["headline"]
    assert service.machine.run("wslgpud", "status", "--check", check=False).returncode == 1
    on_card(service.machine, used=10 * GIB)
    eventually(lambda: verdict(service)["level"] == "ok", "readings again", lambda: str(verdict(service)))


def test_a_machine_with_a_stopped_daemon_is_not_watched(service: Service) -> None:
    service.ctl("stop", "wslgpud")
    done = service.machine.run("wslgpud", "status", "--check", check=False)

    assert (done.returncode, done.stdout.partition(":")[0]) == (3, "UNKNOWN Not watched")
