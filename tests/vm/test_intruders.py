"""The service installed in a booted machine, and three accounts that attack it from inside.

A stranger with an account, a member of the group ``wslgpud``, and the service's own account (an alert command
that turned hostile, in the sandbox) each try the whole list below; then root works in a folder that the
service's account has filled with traps. One machine serves all tests, in their order.
"""

from __future__ import annotations

import json
import re

import pytest

from .conftest import REPOSITORY, slow
from .service import (
    CONFIGURATION_FILE,
    METRIC,
    PATIENCE_SECONDS,
    PATIENT,
    READY,
    SOURCE,
    UNITS,
    Service,
    eventually,
    install,
)

pytestmark = [pytest.mark.vm, pytest.mark.xdist_group("vm-service"), pytest.mark.timeout(1800)]

STRANGER, MEMBER = "stranger", "somebody"
STATE = "/var/lib/wslgpud"
SECRET = '[alerts]\nalertmanager_urls = ["http://me:word@127.0.0.1:9093"]\n'
URLS, TOPIC = "/etc/wslgpud/urls", "ntfy://ntfy.sh/my-topic"
ATTACKS = "/usr/local/lib/attacks.py"
#: Tries everything and prints what came of it; "may" where nothing stood in the way.
ATTACK = """
import ctypes, glob, json, os, resource, socket, subprocess, sys

daemon, libc = int(sys.argv[1]), ctypes.CDLL(None, use_errno=True)
if "CapAmb:\\t0000000000000000" not in open("/proc/self/status").read():
    libc.prctl(47, 4, 0, 0, 0)  # as the daemon does before it starts anything, see wslgpud.app.systemd
    os.execv(sys.executable, [sys.executable, *sys.argv])
proc = f"/proc/{daemon}/"

def call(number, *arguments):
    result = libc.syscall(number, *arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), "")
    return result

def read(path):
    return lambda: open(path, "rb").read(1)

def write(path):
    return lambda: os.close(os.open(path, os.O_WRONLY | os.O_APPEND))

def create(folder):
    def deed():
        path = f"{folder}/intruder.conf"
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        os.unlink(path)
    return deed

def program(*command):
    return lambda: subprocess.run(command, check=True, capture_output=True)

def peek():
    buffer = ctypes.create_string_buffer(8)
    address = int(open(proc + "maps").read().split("-")[0], 16)
    local, remote = ((ctypes.c_void_p * 2)(where, 8) for where in (ctypes.addressof(buffer), address))
    call(310, daemon, local, 1, remote, 1, 0)  # process_vm_readv

def steal():
    call(438, call(434, daemon, 0), 3, 0)  # pidfd_getfd(pidfd_open())

def connect(path):
    return lambda: socket.socket(socket.AF_UNIX).connect(path)

code = glob.glob("/opt/wslgpud/lib/python3*/site-packages/wslgpud")[0]
deeds = {
    "read the configuration": read("/etc/wslgpud/wslgpud.toml"),
    "read the addresses of channels": read("/etc/wslgpud/urls"),
    "read the history": read("/var/lib/wslgpud/wslgpud.db"),
    "list the state folder": lambda: os.listdir("/var/lib/wslgpud"),
    "read its environment": read(proc + "environ"),
    "read its memory": lambda: os.close(os.open(proc + "mem", os.O_RDONLY)),
    "read its memory by a call": peek,
    "list its open files": lambda: os.listdir(proc + "fd"),
    "take one of its open files": steal,
    "trace it": lambda: call(101, 16, daemon, 0, 0),
    "read shadow": read("/etc/shadow"),
    "change the program": create(code),
    "change its bytecode": create(code + "/__pycache__"),
    "change what it runs on": create("/opt/wslgpud/bin"),
    "plant another release": create("/opt/wslgpud.releases"),
    "change the command": lambda: os.rename("/usr/local/bin/wslgpud", "/usr/local/bin/intruder"),
    "change the configuration": write("/etc/wslgpud/wslgpud.toml"),
    "add to the configuration": create("/etc/wslgpud"),
    "change its unit": write("/etc/systemd/system/wslgpud.service"),
    "change the unit of the stress test": write("/etc/systemd/system/wslgpud-stress@.service"),
    "add a unit": create("/etc/systemd/system"),
    "add a drop-in": create("/etc/systemd/system/wslgpud.service.d"),
    "add a unit for now": create("/run/systemd/system"),
    "change the history": write("/var/lib/wslgpud/wslgpud.db"),
    "add to the state folder": create("/var/lib/wslgpud"),
    "replace the state folder": lambda: os.rename("/var/lib/wslgpud", "/var/lib/intruder"),
    "move it to another cgroup": write("/sys/fs/cgroup/cgroup.procs"),
    "limit its cgroup": write("/sys/fs/cgroup/system.slice/wslgpud.service/memory.max"),
    "freeze its cgroup": write("/sys/fs/cgroup/system.slice/wslgpud.service/cgroup.freeze"),
    "end it": lambda: os.kill(daemon, 0),
    "have it killed first": write(proc + "oom_score_adj"),
    "slow it down": lambda: os.setpriority(os.PRIO_PROCESS, daemon, 19),
    "pin it to a processor": lambda: os.sched_setaffinity(daemon, {0}),
    "limit what it may use": lambda: resource.prlimit(daemon, resource.RLIMIT_CORE, (0, 0)),
    "stop the unit": program("systemctl", "stop", "wslgpud"),
    "reload its unit": program("systemctl", "daemon-reload"),
    "start the stress test": program("systemctl", "start", "wslgpud-stress@1.service"),
    "ask for a stress test": connect("/run/wslgpud-stress.sock"),
    "become root": lambda: os.setuid(0),
    "become the service": lambda: os.setresuid(*[__import__("pwd").getpwnam("wslgpud").pw_uid] * 3)
    if os.geteuid() != __import__("pwd").getpwnam("wslgpud").pw_uid else os.kill(1, 0),
    # Everybody may; from within the sandbox it would lead out of it: "loginctl enable-linger".
    "speak to the system's services": lambda: connect("/run/dbus/system_bus_socket")()
    if os.geteuid() == __import__("pwd").getpwnam("wslgpud").pw_uid else os.kill(1, 0),
    "write to the kernel's log": write("/dev/kmsg"),
    "read the disk": read("/dev/vda"),
}
# Nobody believes these; that they change nothing is looked at afterwards.
for words in ("STOPPING=1", "MAINPID=1", "WATCHDOG=trigger", "STATUS=all is well"):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
        try:
            notify.sendto(words.encode(), "/run/systemd/notify")
        except OSError:
            pass
found = {}
for name, deed in deeds.items():
    try:
        deed()
    except Exception as error:
        found[name] = type(error).__name__
    else:
        found[name] = "may"
print(json.dumps(found))
"""
READS = {"read the configuration", "read the addresses of channels", "read the history", "list the state folder"}
#: An alert command is as trusted as the service itself: it can end it, and is ended with it.
OWN = {"change the history", "add to the state folder", "end it", "limit what it may use", "ask for a stress test"}
#: Takes the lock of a card, announces runs without end, asks hostile questions, and holds connections open
#: without a word, until its input ends.
FLOOD = """
import fcntl, os, socket, sys

lock = os.open("/run/lock/wslgpud-gpu0.lock", os.O_RDONLY | os.O_CREAT, 0o666)
fcntl.flock(lock, fcntl.LOCK_EX)
said = b'{"kind": "guard", "what": "x", "who": "x", "phase": "", "began_mono": 0}'
announced = [socket.socket(socket.AF_UNIX) for _ in range(300)]
for one in announced:
    one.connect("/var/lib/wslgpud/control.sock")
    head = "POST /api/v1/run HTTP/1.1", "Host: localhost", f"Content-Length: {len(said)}", "", ""
    one.sendall("\\r\\n".join(head).encode() + said)
for number in range(100):
    with socket.create_connection(("127.0.0.1", 9655)) as asker:
        pattern = "*a" * 100 + str(number)
        lines = f"GET /api/v1/series?match={pattern} HTTP/1.1", "Host: localhost", "Connection: close", "", ""
        asker.sendall("\\r\\n".join(lines).encode())
        while asker.recv(1 << 16):
            pass
held = [socket.create_connection(("127.0.0.1", 9655)) for _ in range(300)]
print("flooded", flush=True)
"""
#: of systemd's MemoryMax=256M
MAX_MEMORY_BYTES = 160 << 20
#: What root keeps apart from all this, and finds unchanged.
TREASURE = "/srv/treasure"
KEEP_TREASURE = f"""
mkdir -p {TREASURE}
for name in a.json stress-1.json 1.5-GPU-1.json wslgpud.db; do echo "root's" >{TREASURE}/$name; done
"""
FINGERPRINT = f"cd {TREASURE} && find . -printf '%p %U %m %s %y\\n' | sort && cat *"
#: What the service's account can lay into its folder for root to stumble over.
TRAPS = f"""
cd {STATE}
for folder in guard running stress; do ln -sfn {TREASURE} $folder; done
for file in alerts.json held.json stress-hung.json last-training.json; do
    rm -f $file
    ln -s {TREASURE}/a.json $file
done
ln -s {TREASURE} link-to-a-folder
mkdir -p deep/er && ln -s / deep/er/root && mkdir -m 0 closed
"""


@pytest.fixture(scope="module", params=["container", pytest.param("machine", marks=slow)])
def service(request: pytest.FixtureRequest) -> Service:
    """The service as its installer leaves it, with secrets in its configuration."""
    if request.param == "machine":
        machine = request.getfixturevalue("module_machine")(program=True, memory_mib=512)
    else:
        machine = request.getfixturevalue("container")
    machine.copy_in(REPOSITORY / "deploy", f"{SOURCE}/deploy")
    for user in (STRANGER, MEMBER):
        machine.run("useradd", "--create-home", user)
    machine.run("rm", "/opt/wslgpud")  # all is there but what the test is about
    machine.write("/usr/local/lib/systemd/system/wslgpud.service.d/00-patient.conf", PATIENT)
    # As it was made before: open to all.
    machine.write(CONFIGURATION_FILE, SECRET)
    machine.write(URLS, TOPIC + "\n")
    machine.write(ATTACKS, ATTACK)
    one = Service(machine)
    # In the most careless of shells.
    machine.run(
        "sh",
        "-c",
        f"umask 0; cd /tmp; exec {SOURCE}/deploy/install",
        environment={"SUDO_USER": MEMBER},
        timeout_seconds=4 * PATIENCE_SECONDS,
    )
    return one


def as_user(service: Service, user: str, *command: str, check: bool = True) -> str:
    who = ("setpriv", "--reset-env", "--reuid", user, "--regid", user, "--init-groups")
    return service.machine.run(*who, *command, check=check).stdout


def attacked_by(service: Service, user: str) -> set[str]:
    """Return what somebody could do to the running service."""
    said = as_user(service, user, "python3", ATTACKS, service.property("MainPID"))
    return {deed for deed, outcome in json.loads(said).items() if outcome == "may"}


def unharmed(service: Service, pid: str) -> bool:
    status = service.property("StatusText")
    return (
        service.property("MainPID") == pid
        and service.property("ActiveState") == "active"
        and "all is well" not in status
        and service.machine.python(READY).stdout == "200\n"
    )


def test_nothing_that_root_runs_or_reads_is_open_to_others(service: Service) -> None:
    places = ("/opt/wslgpud.releases", "/etc/wslgpud", "/usr/local/bin", *(f"{UNITS}/{u}" for u in units(service)))
    writable = service.machine.run("find", *places, "!", "-type", "l", "-perm", "/022", "-o", "!", "-user", "root")
    access = service.machine.run("stat", "-c", "%U:%G %a", "/etc/wslgpud", CONFIGURATION_FILE, STATE).stdout
    listening = service.machine.python(
        "print({int(line.split()[1].split(':')[0], 16) for line in list(open('/proc/net/tcp'))[1:]"
        " if line.split()[3] == '0A'}, len(list(open('/proc/net/tcp6'))))"
    ).stdout

    assert writable.stdout == ""
    assert access == "root:wslgpud 750\nroot:wslgpud 640\nwslgpud:wslgpud 751\n"
    assert listening == "{16777343} 1\n"  # 127.0.0.1, as little-endian machines print it


def units(service: Service) -> list[str]:
    return service.machine.run("ls", f"{SOURCE}/deploy/system").stdout.split()


def test_a_stranger_gets_nowhere(service: Service) -> None:
    pid = service.property("MainPID")

    assert attacked_by(service, STRANGER) == set()
    assert unharmed(service, pid)
    for program in ("status", "config"):
        arguments = ("show",) if program == "config" else ("--json",)
        said = as_user(service, STRANGER, "wslgpud", program, *arguments)
        assert said
        assert "me:word" not in said


def test_a_strangers_flood_neither_ends_nor_fills_nor_stops_it(service: Service) -> None:
    pid, lines = service.property("MainPID"), len(service.journal("--unit=wslgpud"))
    assert as_user(service, STRANGER, "python3", "-c", FLOOD) == "flooded\n"

    def ticks() -> float:
        return float(service.machine.python(METRIC, "wslgpud_ticks_total ").stdout)

    before = ticks()
    eventually(lambda: ticks() > before + 2, "more samples")
    assert unharmed(service, pid)
    assert service.property("NRestarts") == "0"
    memory = service.machine.read(f"/proc/{pid}/smaps_rollup").decode()
    (memory_kib,) = re.findall(r"^Pss: +(\d+) kB", memory, re.MULTILINE)
    assert int(memory_kib) << 10 < MAX_MEMORY_BYTES
    assert len(service.journal("--unit=wslgpud")) < lines + 10


def test_a_member_of_the_group_reads_and_no_more(service: Service) -> None:
    pid = service.property("MainPID")

    assert attacked_by(service, MEMBER) == READS
    assert unharmed(service, pid)


def test_a_hostile_alert_command_stays_in_the_sandbox(service: Service) -> None:
    pid = service.property("MainPID")
    service.machine.run("cp", f"{UNITS}/wslgpud.service", "/run/systemd/system/hostile.service")
    service.machine.write(
        "/run/systemd/system/hostile.service.d/once.conf",
        f"[Service]\nType=oneshot\nRestart=no\nWatchdogSec=0\nExecStart=\nExecStart=/usr/bin/python3 {ATTACKS} {pid}\n",
    )
    service.ctl("daemon-reload")
    service.ctl("start", "hostile", check=False)
    lines = [line["MESSAGE"] for line in service.journal("-u", "hostile")]
    said = next((line for line in lines if line.startswith("{")), "")
    assert said, lines

    assert {deed for deed, outcome in json.loads(said).items() if outcome == "may"} == READS | OWN
    assert service.property("ActiveState") == "active"


def test_no_secret_is_in_the_journal_or_in_its_status(service: Service) -> None:
    journal = service.machine.run("journalctl", "-b").stdout + service.property("StatusText")

    assert "me:word" not in journal
    assert "my-topic" not in journal


def test_root_falls_into_no_trap_set_by_the_service_account(service: Service) -> None:
    machine = service.machine
    machine.run("sh", "-euc", KEEP_TREASURE)
    before = machine.run("sh", "-c", FINGERPRINT).stdout
    as_user(service, "wslgpud", "sh", "-euc", TRAPS)

    for command in ("alerts silence memory_exhaustion --for 1h", "alerts list", "stress --quick"):
        said = machine.run("timeout", "200", "wslgpud", *command.split(), check=False)
        assert said.returncode != 124, command
        assert "Traceback" not in said.stderr, command
        assert machine.run("sh", "-c", FINGERPRINT).stdout == before, command

    # An upgrade, and what waits for ever for its other end in the place of the socket that root asks.
    as_user(service, "wslgpud", "sh", "-euc", f"cd {STATE}; rm control.sock; mkfifo control.sock")
    assert "wslgpud" in install(service).stdout
    assert machine.run("sh", "-c", FINGERPRINT).stdout == before

    machine.run(f"{SOURCE}/deploy/uninstall", "--purge", timeout_seconds=PATIENCE_SECONDS)
    assert machine.run("sh", "-c", FINGERPRINT).stdout == before
    assert machine.run("test", "-e", STATE, check=False).returncode == 1
    running = machine.run("sh", "-c", "grep -lsa '/opt/[w]slgpud' /proc/[0-9]*/cmdline", check=False).stdout
    assert running == ""
