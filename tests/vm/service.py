"""The service installed in a machine, asked through systemctl and journalctl; the scripts that run there."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

from .conftest import REPOSITORY
from .machine import Machine, Result

T = TypeVar("T")

PATIENCE_SECONDS = 300  # bounds what never comes; says nothing about how long things take

SOURCE, NEWER_SOURCE = "/usr/src/wslgpud", "/usr/src/wslgpud-9.9.9"
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
#: Slowly until somebody is warned: on a busy host the daemon's turn may come late.
TAKE_ALL_MEMORY = """
import os, sys, time
def left():
    lines = dict(line.split(":") for line in open("/proc/meminfo"))
    return sum(int(lines[key].split()[0]) for key in ("MemAvailable", "SwapFree")) * 1024
step, kept = left() // 100, []
while True:
    kept.append(b"x" * step)
    if not os.path.exists(sys.argv[1]):
        time.sleep(0.5)
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
cp -a {SOURCE} {NEWER_SOURCE}
cd {NEWER_SOURCE} && . deploy/environment.sh
now=$(readlink -f /opt/wslgpud)
sed -i 's/^__version__ = .*/__version__ = "9.9.9"/' wslgpud/__init__.py
new=/opt/wslgpud.releases/$(release_of "$PWD" "")
cp -al "$now" "$new"
cp --remove-destination wslgpud/__init__.py "$new"/lib/python3*/site-packages/wslgpud/
sed -i "s|$now|$new|" "$new/bin/wslgpud"
echo "$new"
"""
#: The same for somebody's own service.
OWN_RELEASE = """
now=$(readlink -f /opt/wslgpud)
own=/home/somebody/.local/share/wslgpud.releases
mkdir -p "$own"
cp -al "$now" "$own"
sed -i "s|${now%/*}|$own|" "$own/${now##*/}/bin/wslgpud"
find /home/somebody -type d -exec chown somebody: {} +
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
    libc.prctl(47, 4, 0, 0, 0)  # what the daemon does at its start, see wslgpud.app.systemd
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
MAY = {
    "kernel log",
    "memory",
    "pressure",
    "cgroups",
    "libraries of others",
    "the machine's mounts",
    "state",
    "journal",
    "network",
}
PYTHON = f"/home/{SOMEBODY}/bin/python"
LOCK = "/run/lock/wslgpud-gpu0.lock"
AS_WHOM = "/run/lock/as-whom"
#: In the place of a Python with torch: says as whom it runs and what it sees, and works until asked to stop.
WORKER = f"""#!/bin/sh
read job
echo "$(id -un) $(cat /proc/self/oom_score_adj) $(stat -c %a /etc/shadow)" >{AS_WHOM}
while sleep 1; do echo '{{"event": "beat", "phase": "fill", "traversed": 0, "verified": 0}}'; done &
read stop
kill $!
echo '{{"event": "end", "outcome": "left", "why": "told to"}}'
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

    def without_drop_ins(self) -> None:
        """Take away what tests have laid over the unit, also for the boot after the power cut to come."""
        self.machine.run("rm", "-r", DROP_INS)
        self.machine.run("sync", UNITS)
        self.ctl("daemon-reload")

    def replaced(self, pid: str) -> str:
        """Wait until another process than ``pid`` is ready; return its pid."""

        def ready() -> str:
            now = self.property("MainPID")
            return now if now != pid and self.property("ActiveState") == "active" else ""

        return eventually(ready, f"a daemon in the place of {pid}")


def install(service: Service, *arguments: str, source: str = SOURCE) -> Result:
    return service.machine.run(
        f"{source}/deploy/install",
        *arguments,
        environment={"SUDO_USER": SOMEBODY},
        timeout_seconds=4 * PATIENCE_SECONDS,
    )


def fake_nvml(folder: Path) -> Path:
    """Build the stand-in for NVIDIA's library."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler (cc) to build the fake NVML library with")
    library = folder / "nvml.so.1"
    source = REPOSITORY / "tests/fake_nvml/fake_nvml.c"
    options = ["-std=c11", "-D_GNU_SOURCE", "-O1", "-shared", "-fPIC"]
    subprocess.run(["cc", *options, "-o", library, source, "-ldl"], check=True)
    return library
