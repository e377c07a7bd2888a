"""Somebody whose jobs the brake may not pause hoards memory; another user's training, which starts then, goes on.

The service is installed with the brake on for ``victim`` alone. Each hoard is a real one; the control is a training
that takes the same memory itself.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .conftest import REPOSITORY, BootMachine, slow
from .service import CONFIGURATION_FILE, PATIENT, SOMEBODY, SOURCE, Service, eventually, install

pytestmark = [pytest.mark.vm, pytest.mark.xdist_group("vm-brake"), pytest.mark.timeout(1800), slow]

VICTIM, INTRUDER = "victim", "intruder"
CONFIGURATION = f"""
[brake]
on = true
users = ["{VICTIM}"]
resources = ["ram"]
"""
LEFT = """
import os, sys, time
def left():
    lines = dict(line.split(":") for line in open("/proc/meminfo"))
    return int(lines["MemAvailable"].split()[0]) / int(lines["MemTotal"].split()[0])
"""
#: What takes one more piece of memory that is charged to no process, or to its own.
HOARDS = {
    "memfd": "f = os.memfd_create('x'); piece = b'x' * (4 << 20)\ndef take(): os.write(f, piece)",
    "tmpfs": "f = os.open('/dev/shm/hoard', os.O_CREAT | os.O_RDWR); piece = b'x' * (4 << 20)\n"
    "def take(): os.write(f, piece)",
    "sockets": """
import resource, socket
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
kept = []
def take():
    for pair in [socket.socketpair() for _ in range(20)]:
        kept.append(pair)
        pair[0].setblocking(False)
        try:
            while pair[0].send(b"x" * 32768): pass
        except BlockingIOError: pass
""",
    "pipes": """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
def take():
    for _ in range(200):
        _, end = os.pipe()
        os.set_blocking(end, False)
        try:
            while os.write(end, b"x" * 65536): pass
        except BlockingIOError: pass
""",
    "private memory": "kept = []\ndef take(): kept.append(bytearray(b'x' * (4 << 20)))",
}
#: takes until a tenth is left, and holds it
HOARD = LEFT + "{hoard}\nwhile left() > 0.10: take(); time.sleep(0.02)\nprint('hoarded', flush=True)\ntime.sleep(900)\n"
#: An ordinary start: grows by 8 MiB per second, down to 3.5 % left.
TRAIN = (
    LEFT
    + """
kept = [bytearray(b"x" * (100 << 20))]
while not os.path.exists(sys.argv[1]): time.sleep(0.2)
while left() > 0.035: kept.append(bytearray(b"x" * (4 << 20))); time.sleep(0.5)
print("trains", flush=True)
time.sleep(900)
"""
)


@pytest.fixture(scope="module")
def service(module_machine: BootMachine) -> Service:
    machine = module_machine(program=True, memory_mib=1024)
    machine.copy_in(REPOSITORY / "deploy", f"{SOURCE}/deploy")
    for user in (SOMEBODY, VICTIM, INTRUDER):
        machine.run("useradd", "--create-home", user)
    machine.run("rm", "/opt/wslgpud")  # all is there but what the test is about
    machine.write("/usr/local/lib/systemd/system/wslgpud.service.d/00-patient.conf", PATIENT)
    machine.write(CONFIGURATION_FILE, CONFIGURATION)
    one = Service(machine)
    install(one, "--allow", "brake")
    machine.run("mount", "-o", "remount,size=95%", "/dev/shm")
    return one


def start(service: Service, unit: str, user: str, program: str, *arguments: str) -> None:
    file = f"/home/{user}/{unit}.py"
    service.machine.write(file, program)
    service.machine.run(
        "systemd-run", f"--unit={unit}", f"--uid={user}", "--collect", "python3", "-u", file, *arguments
    )


def state(service: Service, unit: str) -> str:
    pid = service.ctl("show", "-P", "MainPID", unit)
    status = service.machine.read(f"/proc/{pid}/status").decode()
    return next(line.split()[1] for line in status.splitlines() if line.startswith("State:"))


def said(service: Service, unit: str, *words: str) -> str:
    """Return the first line of a unit's present process with one of these words in it; empty where there is none."""
    lines = [str(line["MESSAGE"]) for line in service.journal(f"_PID={service.ctl('show', '-P', 'MainPID', unit)}")]
    return next((line for line in lines if any(word in line for word in words)), "")


def decided(service: Service) -> str:
    """Return what the brake did once next to nothing was left."""
    return eventually(
        lambda: said(service, "wslgpud", "no job was paused", "paused python3"),
        "a decision",
        lambda: service.machine.run("head", "-3", "/proc/meminfo").stdout,
    )


@pytest.fixture
def started(service: Service) -> Iterator[Service]:
    """The daemon anew; afterwards all memory is free again."""
    service.ctl("restart", "wslgpud")
    yield service
    for unit in ("train", "hoard"):
        service.ctl("kill", "--signal=KILL", unit, check=False)
        eventually(lambda: service.ctl("is-active", unit, check=False) != "active", f"the end of {unit}")  # noqa: B023
        service.ctl("reset-failed", unit, check=False)
    service.machine.run("rm", "-f", "/dev/shm/hoard", "/tmp/go")


@pytest.mark.parametrize(
    "hoard", ["memfd", *(pytest.param(one, marks=slow) for one in ("tmpfs", "sockets", "pipes", "private memory"))]
)
def test_a_training_beside_a_strangers_hoard_is_not_paused(started: Service, hoard: str) -> None:
    service = started
    start(service, "train", VICTIM, TRAIN, "/tmp/go")
    start(service, "hoard", INTRUDER, HOARD.replace("{hoard}", HOARDS[hoard]))
    eventually(lambda: said(service, "hoard", "hoarded"), "the hoard", lambda: str(service.journal("-u", "hoard")))
    service.machine.write("/tmp/go", "")

    told = decided(service)
    assert "no job was paused" in told
    # Its own program may be what grew last, if it still fills memory of its own.
    assert "may not be paused took more of it" in told or hoard == "private memory"
    assert state(service, "train") in {"S", "R", "D"}


def test_control_a_training_that_takes_memory_itself_is_paused(started: Service) -> None:
    service = started
    start(service, "train", VICTIM, TRAIN, "/tmp/go")
    service.machine.write("/tmp/go", "")

    assert "paused python3" in decided(service)


#: Prints by how much the latest of the recorded samples was late.
LATEST = """
import json, urllib.request
with urllib.request.urlopen("http://127.0.0.1:9655/api/v1/range?step=5&series=wslgpud_tick_lateness_seconds") as answer:
    print(max(json.load(answer)["series"][0]["max"]))
"""


@pytest.fixture
def held(started: Service) -> Service:
    """The training paused."""
    start(started, "train", VICTIM, TRAIN, "/tmp/go")
    started.machine.write("/tmp/go", "")
    assert "paused python3" in decided(started)
    assert paused(started)
    return started


def paused(service: Service) -> bool:
    """Return whether the training is stopped."""
    return state(service, "train") == "T"


def up_seconds(service: Service) -> float:
    return float(service.machine.read("/proc/uptime").split()[0])


@pytest.mark.parametrize("whom", ["main", "all"])
def test_a_job_goes_on_when_the_daemon_is_killed_in_a_pause(held: Service, whom: str) -> None:
    """Its watchdog resumes the job or, if that is killed as well, the unit."""
    first = held.property("MainPID")
    held.ctl("kill", f"--kill-whom={whom}", "--signal=KILL", "wslgpud")

    eventually(lambda: not paused(held), "the job's resumption", lambda: str(held.journal("-u", "wslgpud")[-9:]))
    held.replaced(first)
    assert held.ctl("is-active", "train") == "active"


def test_a_paused_job_goes_on_when_the_daemon_is_stopped(held: Service) -> None:
    daemon, began = held.property("MainPID"), up_seconds(held)
    held.ctl("kill", "--kill-whom=main", "--signal=STOP", "wslgpud")

    eventually(lambda: not paused(held), "the job's resumption")
    assert state(held, "wslgpud") == "T"
    eventually(lambda: up_seconds(held) - began > 60, "a minute")
    held.ctl("kill", "--kill-whom=main", "--signal=CONT", "wslgpud")

    eventually(lambda: float(held.machine.python(LATEST).stdout) > 30, "a sample that says how late it is")
    assert held.property("MainPID") == daemon
    assert not paused(held)
    assert held.ctl("is-active", "train") == "active"
