"""The service under a real systemd: started, watched, stopped; and when the memory or the power goes."""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Callable
from datetime import datetime
from typing import Any, TypeVar

import pytest

from .conftest import REPOSITORY, BootMachine
from .machine import Machine

pytestmark = [pytest.mark.vm, pytest.mark.xdist_group("vm")]

T = TypeVar("T")

PATIENCE_SECONDS = 120  # bounds what never comes; says nothing about how long things take

CONFIGURATION_FILE = "/etc/wslgpud/wslgpud.toml"
DROP_INS = "/etc/systemd/system/wslgpud.service.d"
ON_WARNING = "#!/bin/sh\ncat >> /var/lib/warnings\necho >> /var/lib/warnings\nsync /var/lib/warnings\n"
CONFIGURATION = """
[alerts]
command = ["/usr/local/bin/on-warning"]
[store]
commit_seconds = 2
"""
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
        return self.machine.run("systemctl", *arguments, check=check).stdout.strip()

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
        runs = self.query("select boot_id, clean, stopped_ms from daemon_run order by id")
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
    machine.copy_in(REPOSITORY / "deploy/wslgpud.service", "/etc/systemd/system/wslgpud.service")
    machine.write("/usr/local/bin/on-warning", ON_WARNING, mode=0o755)
    machine.write(CONFIGURATION_FILE, CONFIGURATION)
    machine.run("systemctl", "enable", "wslgpud")
    return Service(machine)


@pytest.fixture
def service(installed: Service) -> Service:
    """The service, running; without effect where the last test left it so: a start takes its time."""
    installed.ctl("start", "wslgpud")
    return installed


def test_a_start_returns_when_there_is_a_sample_and_a_page_to_see_it(service: Service) -> None:
    assert service.machine.python(READY).stdout == "200\n"
    assert service.ctl("is-active", "wslgpud") == "active"


def test_systemctl_status_says_how_things_stand(service: Service) -> None:
    said = eventually(lambda: service.property("StatusText"), "a status")

    assert re.match(r"ram [\d.]+ GiB left", said)


def test_status_finds_the_service_for_whoever_asks(service: Service) -> None:
    as_nobody = ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups"]

    def seen_by() -> str:
        said = service.machine.run(*as_nobody, "/opt/wslgpud/bin/wslgpud", "status", "--json").stdout
        return str(json.loads(said)["seen_by"])

    # A busy emulated machine may take longer to answer than status waits.
    eventually(lambda: seen_by() == "daemon", "an answer of the daemon")


def test_the_daemon_is_the_last_that_the_kernel_kills(service: Service) -> None:
    pid = service.property("MainPID")

    assert service.machine.read(f"/proc/{pid}/oom_score_adj") == b"-500\n"


def test_what_is_killed_comes_back_and_what_hangs_is_replaced(service: Service) -> None:
    first = service.property("MainPID")
    service.machine.write(f"{DROP_INS}/impatient.conf", "[Service]\nWatchdogSec=10\n")
    service.ctl("daemon-reload")

    service.ctl("kill", "--signal=KILL", "wslgpud")
    second = service.replaced(first)
    service.ctl("kill", "--signal=STOP", "wslgpud")
    service.replaced(second)

    said = [line["MESSAGE"] for line in service.journal("-u", "wslgpud")]
    assert any("Watchdog timeout" in line for line in said)
    assert service.query("select clean from daemon_run") == [[0], [0], [0]]
    service.machine.run("rm", "-r", DROP_INS)
    service.ctl("daemon-reload")


def test_a_stop_comes_about_in_time_with_everything_committed(service: Service) -> None:
    asked = float(service.machine.python("import time; print(time.time())").stdout)
    service.ctl("stop", "wslgpud")
    (newest,) = service.query("select clean, stopped_ms from daemon_run order by id desc limit 1")
    ((last_tick,),) = service.query("select max(time) from recent")

    assert service.property("Result") == "success"  # else systemd had to kill it
    assert newest[0] == 1
    assert last_tick > asked - 5  # the batch that was open then


def test_a_mistake_in_the_configuration_is_told_once_and_ends_in_failure(service: Service) -> None:
    service.machine.write(CONFIGURATION_FILE, "[server]\nprot = 1\n")
    service.ctl("restart", "wslgpud", check=False)

    line = f"wslgpud: {CONFIGURATION_FILE}: unknown key server.prot; did you mean server.port?"
    errors = [entry["MESSAGE"] for entry in service.journal("-u", "wslgpud", "-p", "3..3")]
    assert errors.count(line) == 1
    assert service.property("ActiveState") == "failed"
    assert service.property("ExecMainStatus") == "2"
    assert service.property("NRestarts") == "0"

    service.machine.write(CONFIGURATION_FILE, CONFIGURATION)
    # To be there after the power cut to come; only this, for what the daemon writes must survive by itself.
    service.machine.run("sync", CONFIGURATION_FILE)
    service.ctl("reset-failed", "wslgpud")


def test_it_warns_before_the_kernel_kills_who_eats_all_memory_and_lives_on(service: Service) -> None:
    pid = service.property("MainPID")
    hog = service.machine.python(TAKE_ALL_MEMORY_WITHIN_SECONDS, check=False)
    kill, *_ = service.journal("-k", "--grep", r"^Out of memory: Killed process \d+ \(python3\)")
    warning, *_ = service.journal(
        "-u", "wslgpud", "-p", "warning", "--grep", "^(warning|critical|emergency): "
    )
    handed_over = json.loads(service.machine.read("/var/lib/warnings").splitlines()[0])

    assert hog.returncode == -signal.SIGKILL
    assert int(warning["__MONOTONIC_TIMESTAMP"]) < int(kill["__MONOTONIC_TIMESTAMP"])
    assert warning["PRIORITY"] == {"warning": "4", "critical": "3", "emergency": "2"}[handed_over["level"]]
    assert handed_over["resource"] == "ram"
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
