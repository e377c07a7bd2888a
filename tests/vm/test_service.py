"""The service under a real systemd: installed, watched, upgraded, removed; and when memory or power goes."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

import pytest

from .conftest import REPOSITORY, BootMachine
from .machine import Machine, Result

pytestmark = [
    pytest.mark.vm,
    pytest.mark.xdist_group("vm"),
    pytest.mark.timeout(1800),
    pytest.mark.skipif(
        "WSLGPUD_SLOW" not in os.environ,
        reason="takes a quarter of an hour where machines are emulated: set WSLGPUD_SLOW=1",
    ),
]

T = TypeVar("T")

PATIENCE_SECONDS = 300  # bounds what never comes; says nothing about how long things take

SOURCE = "/usr/src/wslgpud"
UNITS = "/etc/systemd/system"
CONFIGURATION_FILE = "/etc/wslgpud/wslgpud.toml"
DROP_INS = f"{UNITS}/wslgpud.service.d"
WARNINGS = "/var/lib/wslgpud/warnings"  # the service may write nowhere else
ON_WARNING = f"""#!/bin/sh
cat >> {WARNINGS}
echo >> {WARNINGS}
sync {WARNINGS}
grep CapEff /proc/self/status > {WARNINGS}.capabilities
"""
CONFIGURATION = """
[alerts]
command = ["/usr/local/bin/on-warning"]
[store]
commit_seconds = 2
"""
#: How long things take on a busy host, in an emulated machine, is not what these tests are about.
PATIENT = f"[Service]\nTimeoutStopSec={PATIENCE_SECONDS}\nWatchdogSec={PATIENCE_SECONDS}\n"
#: Installs it by sudo.
SOMEBODY = "somebody"
TAKE_ALL_MEMORY_WITHIN_SECONDS = """
import time
def left():
    lines = dict(line.split(":") for line in open("/proc/meminfo"))
    return sum(int(lines[key].split()[0]) for key in ("MemAvailable", "SwapFree")) * 1024
step, kept = left() // 100, []
while True:
    kept.append(b"x" * step)
    time.sleep(0.25)
"""
QUERY = """
import json, sqlite3, sys
print(json.dumps(list(sqlite3.connect("/var/lib/wslgpud/wslgpud.db").execute(sys.argv[1]))))
"""
METRIC = """
import sys, urllib.request
with urllib.request.urlopen("http://127.0.0.1:9655/metrics") as answer:
    lines = answer.read().decode().splitlines()
print(*(line.rpartition(" ")[2] for line in lines if line.startswith(sys.argv[1])))
"""
#: Another release, as pip would make it within minutes here: all but one file is shared with this one.
ANOTHER_RELEASE = f"""
cd {SOURCE} && . deploy/environment.sh
now=$(readlink -f /opt/wslgpud)
sed -i "$2" "wslgpud/$1"
new=/opt/wslgpud.releases/$(release_of "$PWD" "")
cp -al "$now" "$new"
cp --remove-destination "wslgpud/$1" "$new"/lib/python3*/site-packages/wslgpud/
sed -i "s|$now|$new|" "$new/bin/wslgpud"
echo "$new"
"""
#: Runs in the daemon's own sandbox, with its user and capabilities, and tells what it may do.
LOOK_AROUND = """
import ctypes, json, mmap, os, socket, subprocess

def may(deed):
    try:
        deed()
    except Exception as error:
        return type(error).__name__
    return "may"

libc = ctypes.CDLL(None, use_errno=True)

def call(number, *arguments):
    if libc.syscall(number, *arguments) < 0:
        raise OSError(ctypes.get_errno(), "")

def children_may(*command):
    libc.prctl(47, 4, 0, 0, 0)  # what the daemon does at its start, see wslgpud.systemd
    return lambda: subprocess.run(command, check=True, capture_output=True)

read = lambda path: lambda: open(path, "rb").read(1)
found = {
    "kernel log": may(lambda: os.close(os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK))),
    "memory": may(read("/proc/meminfo")),
    "pressure": may(read("/proc/pressure/memory")),
    "cgroups": may(read("/sys/fs/cgroup/system.slice/memory.current")),
    "libraries of others": may(read("/proc/1/maps")),
    "the machine's mounts": may(read("/proc/1/mounts")),
    "state": may(lambda: open("/var/lib/wslgpud/probe", "w").close()),
    "journal": may(lambda: subprocess.run(["journalctl", "-k", "-n1"], check=True, capture_output=True)),
    "network": may(lambda: socket.create_server(("127.0.0.1", 0)).close()),
    "windows": may(lambda: socket.socket(socket.AF_VSOCK).close()),
    "homes": may(lambda: os.listdir("/home/somebody")),
    "secrets": may(read("/etc/shadow")),
    "settings": may(lambda: open("/etc/wslgpud/new", "w")),
    "program": may(lambda: open("/opt/wslgpud/new", "w")),
    "disk": may(read("/dev/vda")),
    "tunables": may(lambda: open("/proc/sys/vm/swappiness", "w")),
    "packets": may(lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW).close()),
    "code in memory": may(lambda: mmap.mmap(-1, 4096, prot=mmap.PROT_WRITE | mmap.PROT_EXEC)),
    "tracing": may(lambda: call(101, 16, 1, 0, 0)),
    "namespaces": may(lambda: call(272, 0x00020000)),
    "becoming root": may(lambda: os.setuid(0)),
    "signals to others": may(lambda: os.kill(1, 0)),
    "libraries of others for what it starts": may(children_may("head", "-c1", "/proc/1/maps")),
}
print(json.dumps(found))
"""
ONCE = """
[Service]
Type=oneshot
Restart=no
TimeoutStartSec=infinity
WatchdogSec=0
ExecStart=
ExecStart=/usr/bin/python3 /usr/local/lib/look_around.py
"""
MAY = {
    "kernel log", "memory", "pressure", "cgroups", "libraries of others", "the machine's mounts", "state",
    "journal", "network",
}  # fmt: skip
PYTHON = f"/home/{SOMEBODY}/bin/python"
#: In the place of a Python with torch: says as whom it runs, in the words of the real worker.
WORKER = """#!/bin/sh
read job
why="I am $(id -un) with a score of $(cat /proc/self/oom_score_adj)"
printf '{"event": "end", "outcome": "left", "why": "%s"}\\n' "$why"
"""
READY = """
import urllib.request
with urllib.request.urlopen("http://127.0.0.1:9655/-/ready") as answer:
    print(answer.status)
"""


def eventually(look: Callable[[], T], what: str, why: Callable[[], str] = str) -> T:
    end = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < end:
        if found := look():
            return found
        time.sleep(0.2)
    raise AssertionError(f"{what} did not come about {why()}".rstrip())


class Service:
    """The installed unit, asked through systemctl and journalctl."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    def ctl(self, *arguments: str, check: bool = True) -> str:
        # A start may take what the unit allows for it (TimeoutStartSec=300).
        return self.machine.run(
            "systemctl", *arguments, check=check, timeout_seconds=2 * PATIENCE_SECONDS
        ).stdout.strip()

    def property(self, name: str) -> str:
        return self.ctl("show", "-P", name, "wslgpud")

    def journal(self, *arguments: str) -> list[dict[str, Any]]:
        said = self.machine.run("journalctl", "-b", "-o", "json", *arguments, check=False).stdout
        return [json.loads(line) for line in said.splitlines()]

    def query(self, sql: str) -> list[list[Any]]:
        rows: list[list[Any]] = json.loads(self.machine.python(QUERY, sql).stdout)
        return rows

    def boot_id(self) -> str:
        return self.machine.read("/proc/sys/kernel/random/boot_id").decode().strip()

    def last_run_of(self, boot_id: str) -> tuple[bool, int]:
        """Return whether the daemon's last run under a kernel ended cleanly, and when."""
        ended = "select boot_id, clean, coalesce(stopped_ms, started_ms) from daemon_run order by id"
        runs = self.query(ended)
        clean, stopped_ms = [run[1:] for run in runs if run[0] == boot_id][-1]
        return bool(clean), stopped_ms

    def lose_power(self) -> None:
        """Cut the power, boot again and wait for the service."""
        self.machine.cut_power()
        self.machine.boot()
        eventually(
            lambda: self.ctl("is-active", "wslgpud", check=False) == "active",
            "the service",
            lambda: self.machine.run("journalctl", "-b", "-u", "wslgpud", check=False).stdout,
        )

    def replaced(self, pid: str) -> str:
        """Wait until another process than ``pid`` is ready; return its pid."""

        def ready() -> str:
            now = self.property("MainPID")
            return now if now != pid and self.property("ActiveState") == "active" else ""

        return eventually(ready, f"a daemon in the place of {pid}")


@pytest.fixture(scope="module")
def installed(module_machine: BootMachine) -> Service:
    machine = module_machine(program=True, memory_mib=384, swap_mib=128)
    machine.copy_in(REPOSITORY / "deploy", f"{SOURCE}/deploy")
    machine.run("useradd", "--create-home", SOMEBODY)
    machine.run("rm", "/opt/wslgpud")  # all is there but what the test is about
    machine.write("/run/systemd/system/wslgpud.service.d/00-patient.conf", PATIENT)
    machine.write("/usr/local/bin/on-warning", ON_WARNING, mode=0o755)
    machine.write(CONFIGURATION_FILE, CONFIGURATION)
    return Service(machine)


@pytest.fixture
def service(installed: Service) -> Service:
    """The service, running; without effect where the last test left it so: a start takes its time."""
    installed.ctl("start", "wslgpud")
    return installed


def install(service: Service, *arguments: str, check: bool = True) -> Result:
    return service.machine.run(
        f"{SOURCE}/deploy/install", *arguments, environment={"SUDO_USER": SOMEBODY}, check=check,
        timeout_seconds=4 * PATIENCE_SECONDS,
    )  # fmt: skip


def fake_nvml(folder: Path) -> Path:
    """Build the stand-in for NVIDIA's library."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler (cc) to build the fake NVML library with")
    library = folder / "nvml.so.1"
    source = REPOSITORY / "tests/fake_nvml/fake_nvml.c"
    options = ["-std=c11", "-D_GNU_SOURCE", "-O1", "-shared", "-fPIC"]
    subprocess.run(["cc", *options, "-o", library, source, "-ldl"], check=True)
    return library


def another(service: Service, file: str, change: str) -> str:
    """Change a file of the source as sed does, and return the release that this makes."""
    return service.machine.run("sh", "-euc", ANOTHER_RELEASE, "sh", file, change).stdout.strip()


def test_a_dry_run_shows_what_it_would_do_and_does_nothing(installed: Service) -> None:
    said = install(installed, "--dry-run").stdout

    assert f"install -D -m 644 {SOURCE}/deploy/system/wslgpud.service {UNITS}/wslgpud.service" in said
    assert "systemctl restart wslgpud.service" in said
    for made in (f"{UNITS}/wslgpud.service", "/opt/wslgpud", "/usr/local/bin/wslgpud"):
        assert installed.machine.run("test", "-e", made, check=False).returncode == 1
    assert installed.machine.run("id", "wslgpud", check=False).returncode == 1


def test_install_returns_when_there_is_a_sample_and_a_page_to_see_it(installed: Service) -> None:
    said = install(installed).stdout

    assert "page           http://127.0.0.1:9655/\n" in said
    assert "WSL" not in said
    assert installed.machine.python(READY).stdout == "200\n"
    assert installed.ctl("is-active", "wslgpud.service", "wslgpud-stress.path") == "active\nactive"
    assert installed.ctl("is-enabled", "wslgpud.service", "wslgpud-stress.path") == "enabled\nenabled"
    assert installed.machine.read(CONFIGURATION_FILE).decode() == CONFIGURATION


def test_a_second_install_changes_nothing(service: Service) -> None:
    pid = service.property("MainPID")

    assert install(service, "--dry-run").stdout == "would do:\n  nothing: all is as it should be\n"
    assert service.property("MainPID") == pid


def test_systemd_finds_nothing_wrong_and_little_exposed(service: Service) -> None:
    units = ("wslgpud.service", "wslgpud-stress.path", "wslgpud-stress.service")
    verified = service.machine.run("systemd-analyze", "verify", "--recursive-errors=yes", *units)

    assert verified.stdout + verified.stderr == ""
    service.machine.run("systemd-analyze", "security", "--threshold=20", "wslgpud.service")
    service.machine.run("systemd-analyze", "security", "--threshold=40", "wslgpud-stress.service")


def test_the_sandbox_lets_it_see_all_that_it_watches_and_do_nothing_else(service: Service) -> None:
    service.machine.write("/usr/local/lib/look_around.py", LOOK_AROUND)
    service.machine.run("cp", f"{UNITS}/wslgpud.service", f"{UNITS}/sandbox.service")
    once = "[Service]\nType=oneshot\nRestart=no\nWatchdogSec=0\nExecStart=\n"
    service.machine.write(
        f"{UNITS}/sandbox.service.d/once.conf",
        f"{once}ExecStart=/usr/bin/python3 /usr/local/lib/look_around.py\n",
    )
    service.ctl("daemon-reload")
    service.ctl("start", "sandbox")
    (said,) = (
        line["MESSAGE"] for line in service.journal("-u", "sandbox") if line["MESSAGE"].startswith("{")
    )

    assert {deed for deed, outcome in json.loads(said).items() if outcome == "may"} == MAY


def test_it_sees_no_less_than_root_does(service: Service) -> None:
    """A sandbox that blinded a source would show as its failure, or as a disk that looks read-only."""

    def metric(name: str) -> list[str]:
        return service.machine.python(METRIC, name).stdout.split()

    assert set(metric("wslgpud_source_success{")) == {"1.0"}
    assert metric('wslgpud_source_available{source="kernel_log"}') == ["1.0"]
    assert metric("wslgpud_filesystem_readonly{") == ["0.0"]


def test_systemctl_status_says_how_things_stand(service: Service) -> None:
    said = eventually(lambda: service.property("StatusText"), "a status")

    assert re.match(r"ram [\d.]+ GiB left", said)


def test_status_finds_the_service_for_whoever_asks(service: Service) -> None:
    as_nobody = ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups"]

    def seen_by() -> str:
        said = service.machine.run(*as_nobody, "/usr/local/bin/wslgpud", "status", "--json").stdout
        return str(json.loads(said)["seen_by"])

    # A busy emulated machine may take longer to answer than status waits.
    eventually(lambda: seen_by() == "daemon", "an answer of the daemon")


def test_who_installed_it_may_read_its_history_and_others_may_not(service: Service) -> None:
    as_somebody = ["setpriv", "--reuid", SOMEBODY, "--regid", SOMEBODY, "--init-groups"]
    database = service.machine.run("stat", "-c", "%U %G %a", "/var/lib/wslgpud/wslgpud.db").stdout

    assert json.loads(service.machine.run(*as_somebody, "wslgpud", "incidents", "--json").stdout) == []
    assert database == "wslgpud wslgpud 640\n"


def test_the_daemon_is_the_last_that_the_kernel_kills_and_says_so(service: Service) -> None:
    pid = service.property("MainPID")

    assert service.machine.read(f"/proc/{pid}/oom_score_adj") == b"-500\n"
    assert service.machine.python(METRIC, "wslgpud_oom_score_adjust ").stdout == "-500.0\n"


def test_what_is_killed_comes_back_and_what_hangs_is_replaced(service: Service) -> None:
    service.machine.write(f"{DROP_INS}/impatient.conf", "[Service]\nWatchdogSec=15\n")
    service.ctl("daemon-reload")
    first = service.property("MainPID")

    service.ctl("kill", "--signal=KILL", "wslgpud")
    second = service.replaced(first)
    service.ctl("kill", "--signal=STOP", "wslgpud")
    service.replaced(second)

    said = [line["MESSAGE"] for line in service.journal("-u", "wslgpud")]
    assert any("Watchdog timeout" in line for line in said)
    assert {clean for (clean,) in service.query("select clean from daemon_run")} == {0}
    service.machine.run("rm", "-r", DROP_INS)
    # Else it may be back after the power cut to come, when a busy machine needs more patience than this.
    service.machine.run("sync", UNITS)
    service.ctl("daemon-reload")


def test_a_stress_run_happens_in_a_unit_of_its_own_as_the_owner_of_its_python(
    service: Service, tmp_path: Path
) -> None:
    library = "/usr/local/lib/nvml.so.1"
    service.machine.copy_in(fake_nvml(tmp_path), library)
    service.machine.write(f"{library}.settings", "utilization 0\n")
    service.machine.write(PYTHON, WORKER, mode=0o755)
    service.machine.run("chown", "-R", f"{SOMEBODY}:", f"/home/{SOMEBODY}")
    service.machine.run("chmod", "700", f"/home/{SOMEBODY}")
    service.machine.write(
        CONFIGURATION_FILE,
        f'{CONFIGURATION}[sampling]\nnvml_library = "{library}"\n'
        f'[stress]\npython = "{PYTHON}"\nsettle_seconds = 1\n',
    )

    as_the_service = ["setpriv", "--reuid=wslgpud", "--regid=wslgpud", "--clear-groups"]
    request = '{"gpu": 0, "mode": "nightly"}'
    ask = f"echo '{request}' > stress-request.part; mv stress-request.part stress-request.json"
    service.machine.run(*as_the_service, "sh", "-c", f"cd /var/lib/wslgpud; {ask}")
    read = [*as_the_service, "cat", "/var/lib/wslgpud/stress-answer.json"]
    eventually(
        lambda: service.machine.run(*read, check=False).returncode == 0,
        "an answer",
        lambda: service.machine.run("journalctl", "-b", "-u", "wslgpud-stress", check=False).stdout,
    )
    answer = json.loads(service.machine.run(*read).stdout)

    assert (answer["verdict"], answer["reason"]) == ("left", f"I am {SOMEBODY} with a score of 800")
    assert (
        service.machine.run("test", "-e", "/var/lib/wslgpud/stress-request.json", check=False).returncode == 1
    )
    service.machine.write(CONFIGURATION_FILE, CONFIGURATION)


def test_a_stop_comes_about_with_everything_committed(service: Service) -> None:
    asked = float(service.machine.python("import time; print(time.time())").stdout)
    service.ctl("stop", "wslgpud")
    (newest,) = service.query("select clean, stopped_ms from daemon_run order by id desc limit 1")
    ((last_tick,),) = service.query("select max(time) from recent")

    assert service.property("Result") == "success"  # else systemd had to kill it
    assert newest[0] == 1
    assert last_tick > asked - 5  # the batch that was open then
    assert service.ctl("is-active", "wslgpud-stress.path", check=False) == "inactive"


def test_a_mistake_in_the_configuration_is_told_once_and_ends_in_failure(installed: Service) -> None:
    installed.machine.write(CONFIGURATION_FILE, "[server]\nprot = 1\n")
    installed.ctl("restart", "wslgpud", check=False)

    line = f"wslgpud: {CONFIGURATION_FILE}: unknown key server.prot; did you mean server.port?"
    errors = [entry["MESSAGE"] for entry in installed.journal("-u", "wslgpud", "-p", "3..3")]
    assert errors.count(line) == 1
    assert installed.property("ActiveState") == "failed"
    assert installed.property("ExecMainStatus") == "2"
    assert installed.property("NRestarts") == "0"

    installed.machine.write(CONFIGURATION_FILE, CONFIGURATION)
    # To be there after the power cut to come; only this, for what the daemon writes must survive by itself.
    installed.machine.run("sync", CONFIGURATION_FILE)
    installed.ctl("reset-failed", "wslgpud")


def test_a_crash_loop_ends(installed: Service) -> None:
    installed.machine.write(
        f"{DROP_INS}/crash.conf", "[Service]\nExecStart=\nExecStart=/bin/false\nRestartSec=0\n"
    )
    installed.ctl("daemon-reload")
    installed.ctl("start", "wslgpud", check=False)

    eventually(lambda: installed.property("ActiveState") == "failed", "an end")
    assert int(installed.property("NRestarts")) < 20
    installed.machine.run("rm", "-r", DROP_INS)
    installed.machine.run("sync", UNITS)
    installed.ctl("daemon-reload")
    installed.ctl("reset-failed", "wslgpud")


def test_a_version_that_does_not_start_leaves_the_one_before_running(installed: Service) -> None:
    good = installed.machine.run("readlink", "/opt/wslgpud").stdout
    another(installed, "app.py", '$a raise SystemExit("broken on purpose")')
    failed = install(installed, check=False)

    assert failed.returncode == 1
    assert "broken on purpose" in failed.stderr
    assert failed.stderr.endswith("The one before runs again.\n")
    assert installed.machine.run("readlink", "/opt/wslgpud").stdout == good
    assert installed.ctl("is-active", "wslgpud") == "active"
    installed.machine.run("sed", "-i", "$d", f"{SOURCE}/wslgpud/app.py")


def test_an_upgrade_keeps_configuration_and_data_and_removes_the_old_program(service: Service) -> None:
    runs = service.query("select id from daemon_run")
    new = another(service, "__init__.py", 's/^__version__ = .*/__version__ = "9.9.9"/')
    install(service)

    assert service.machine.run("readlink", "/opt/wslgpud").stdout.strip() == new
    assert service.machine.run("ls", "/opt/wslgpud.releases").stdout == new.rpartition("/")[2] + "\n"
    assert service.machine.run("wslgpud", "--version").stdout == "wslgpud 9.9.9\n"
    assert service.machine.read(CONFIGURATION_FILE).decode() == CONFIGURATION
    assert service.query("select id from daemon_run")[: len(runs)] == runs
    assert service.query("select clean from daemon_run order by id")[-2:] == [[1], [0]]


def test_it_warns_before_the_kernel_kills_who_eats_all_memory_and_lives_on(service: Service) -> None:
    pid = service.property("MainPID")
    hog = service.machine.python(TAKE_ALL_MEMORY_WITHIN_SECONDS, check=False)
    kill, *_ = service.journal("-k", "--grep", r"^Out of memory: Killed process \d+ \(python3\)")
    warning, *_ = service.journal(
        "-u", "wslgpud", "-p", "warning", "--grep", "^(warning|critical|emergency): "
    )
    handed_over = json.loads(service.machine.read(WARNINGS).splitlines()[0])

    assert hog.returncode == -signal.SIGKILL
    assert int(warning["__MONOTONIC_TIMESTAMP"]) < int(kill["__MONOTONIC_TIMESTAMP"])
    assert warning["PRIORITY"] == {"warning": "4", "critical": "3", "emergency": "2"}[handed_over["level"]]
    assert handed_over["resource"] == "ram"
    # The service's capabilities are for the service, not for a program of the user's.
    assert service.machine.read(f"{WARNINGS}.capabilities") == b"CapEff:\t0000000000000000\n"
    assert datetime.fromisoformat(handed_over["at"]).timestamp() < int(kill["__REALTIME_TIMESTAMP"]) / 1e6
    assert service.property("MainPID") == pid
    assert service.machine.python(READY).stdout == "200\n"


def test_a_power_cut_costs_no_warning_and_is_noticed_at_the_next_start(service: Service) -> None:
    transitions = service.query("select id, headline from transition order by id")
    before = float(service.machine.python("import time; print(time.time())").stdout)
    boot_id = service.boot_id()

    service.lose_power()

    assert service.boot_id() != boot_id
    assert service.query("pragma integrity_check") == [["ok"]]
    assert service.query("select id, headline from transition order by id")[: len(transitions)] == transitions
    clean, stopped_ms = service.last_run_of(boot_id)
    assert not clean
    assert stopped_ms / 1000 > before - 60  # what was not synced lives as long in the kernel: dirty_expire


def test_uninstall_keeps_data_and_configuration_unless_told(service: Service) -> None:
    left = (
        "/opt/wslgpud",
        "/opt/wslgpud.releases",
        "/usr/local/bin/wslgpud",
        f"{UNITS}/wslgpud.service",
        DROP_INS,
    )

    def there(*paths: str) -> set[str]:
        return {p for p in paths if service.machine.run("test", "-e", p, check=False).returncode == 0}

    kept = service.machine.run(f"{SOURCE}/deploy/uninstall").stdout
    assert there(*left) == set()
    assert len(there(CONFIGURATION_FILE, "/var/lib/wslgpud/wslgpud.db")) == 2
    assert "kept: /var/lib/wslgpud" in kept
    assert service.ctl("list-units", "--all", "--no-legend", "wslgpud*") == ""

    service.machine.run(f"{SOURCE}/deploy/uninstall", "--purge")
    assert there("/etc/wslgpud", "/var/lib/wslgpud") == set()
    assert service.machine.run("id", "wslgpud", check=False).returncode == 1
