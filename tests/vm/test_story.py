"""The whole story in one machine: installed, a training leaks, warned, a power cut, the report read.

Every step waits for a fact, never for a time. With WSLGPUD_RENEW=1 Prometheus scrapes, too, which takes minutes where
machines are emulated, and what the terminal showed is kept in ``story.json``, of which ``tests/test_docs.py`` makes the
README's film.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.support.screens import print_status
from tests.support.servers import program

from .conftest import BootMachine
from .machine import Machine

pytestmark = [pytest.mark.vm, pytest.mark.xdist_group("vm"), pytest.mark.timeout(3000)]

STORY = Path(__file__).parent / "story.json"
RENEW = "WSLGPUD_RENEW" in os.environ
SOURCE = "/usr/src/wslgpud"
WARNINGS = "/var/lib/wslgpud/warnings"  # the service may write nowhere else
ON_WARNING = f"#!/bin/sh\n{{ cat; echo; }} >>{WARNINGS}\n"
CONFIGURATION = '[alerts]\ncommand = ["/usr/local/bin/on-warning"]\n'
#: How long things take on a busy host, in an emulated machine, is not what this is about.
PATIENT = "[Service]\nTimeoutStopSec=300\nTimeoutStartSec=1200\nWatchdogSec=600\n"
PROMETHEUS_YML = """scrape_configs:
  - job_name: wslgpud
    scrape_interval: 10s
    static_configs:
      - targets: ["127.0.0.1:9655"]
"""
PROMETHEUS = (
    "systemd-run",
    "--quiet",
    "--unit=prometheus",
    "-p",
    "OOMScoreAdjust=-900",
    "/usr/local/bin/prometheus",
    "--config.file=/root/prometheus.yml",
    "--storage.tsdb.path=/var/lib/prometheus",
    "--log.level=warn",
)
HEADROOM = 'wslgpud_headroom_bytes{resource="ram"}'
#: Keeps what it has seen, and then validates, which takes all the rest at once. It takes a step when the
#: daemon has taken another sample: where the machine is slow, both are, and the warning has as many samples.
TRAIN = """
import time, urllib.request

def left():
    lines = dict(line.split(":") for line in open("/proc/meminfo"))
    return int(lines["MemAvailable"].split()[0]) * 1024

def ticks():
    with urllib.request.urlopen("http://127.0.0.1:9655/metrics", timeout=300) as answer:
        lines = answer.read().decode().splitlines()
    return next(line for line in lines if line.startswith("wslgpud_ticks_total"))

batch, history, seen = left() // 20, [], ""
for step in range(1, 18):
    history.append(b"x" * batch)
    print(f"step {step:3}  loss {2.31 * 0.98 ** step:.3f}  examples kept: {len(history) * 512}", flush=True)
    time.sleep(0.5)
    while (now := ticks()) == seen:
        time.sleep(0.5)
    seen = now
print("validation", flush=True)
history.append(b"x" * (20 * batch))
"""
URL = "http://127.0.0.1:9655"
STATUS = f"""
import urllib.request
print(urllib.request.urlopen("{URL}/api/v1/status", timeout=300).read().decode())
"""
COLUMNS = 100
#: bounds what hangs; says nothing about how long things take
PATIENCE_SECONDS = 1200


class Terminal:
    """Somebody at the machine's terminal, and all that it has shown."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.scenes: list[dict[str, Any]] = []

    def scene(self, caption: str) -> dict[str, Any]:
        self.scenes.append({"caption": caption, "shown": []})
        return self.scenes[-1]

    def types(self, command: str, folder: str = "/root", shown_as: str = "", lines: int = 20) -> str:
        """Run a command to its end and return what it printed, of which so many lines fit on the screen."""
        done = self.machine.run(
            "sh",
            "-c",
            f"cd {folder} && {{ {command}; }} 2>&1",
            environment={"FORCE_COLOR": "1", "TERM": "xterm-256color", "COLUMNS": str(COLUMNS)},
            timeout_seconds=PATIENCE_SECONDS,
        )
        self.shows(shown_as or command, done.stdout, lines)
        return done.stdout

    def shows(self, command: str, text: str, lines: int) -> None:
        output = text.strip("\n").splitlines()
        shown = [*output[:lines], "…"] if len(output) > lines else output
        self.scenes[-1]["shown"].append({"command": command, "output": "\n".join(shown)})


def wait_until(machine: Machine, condition: str) -> None:
    """Wait inside the machine, whose own load decides how long things take."""
    machine.run("sh", "-c", f"until {condition}; do sleep 0.5; done", timeout_seconds=PATIENCE_SECONDS)


def bring(machine: Machine, name: str) -> None:
    """Copy a program of Debian's Prometheus into the machine, which has no network."""
    packed = gzip.compress(Path(program("prometheus", name)).read_bytes(), compresslevel=1)
    target = f"/usr/local/bin/{name}"
    machine.run("sh", "-c", f"gzip -d >{target} && chmod 755 {target}", stdin=packed)


@pytest.fixture
def terminal(machine: BootMachine) -> Terminal:
    """A Debian with Prometheus' programs, a training, and this repository; nothing of it runs yet."""
    debian = machine(program=True, memory_mib=768)
    if RENEW:
        for name in ("prometheus", "promtool"):
            bring(debian, name)
    debian.run("rm", "/opt/wslgpud")  # all is there but what this is about
    debian.write("/etc/systemd/system/wslgpud.service.d/patient.conf", PATIENT)
    debian.write("/usr/local/bin/on-warning", ON_WARNING, mode=0o755)
    debian.write("/etc/wslgpud/wslgpud.toml", CONFIGURATION)
    debian.write("/root/prometheus.yml", PROMETHEUS_YML)
    debian.write("/root/train.py", TRAIN)
    return Terminal(debian)


def test_a_training_leak_is_reported_before_the_end_and_after_it(terminal: Terminal) -> None:
    installs(terminal)
    if RENEW:
        scrapes(terminal)
    warned = terminal.scene("")
    trains(terminal)
    terminal.machine.cut_power()
    terminal.machine.boot(PATIENCE_SECONDS)
    lead = reads(terminal)
    warned["caption"] = f"A training keeps all that it has seen: a warning, {lead} before the end"

    if RENEW:
        STORY.write_text(json.dumps(terminal.scenes, indent=1) + "\n")


def installs(terminal: Terminal) -> None:
    terminal.scene("One command, and it starts with the machine")
    assert "starts with the machine" in terminal.types("./deploy/install", SOURCE)
    assert terminal.types("systemctl is-enabled wslgpud") == "enabled\n"
    stranger = ("setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups", "wslgpud", "incidents")
    assert "you may not read it: use sudo" in terminal.machine.run(*stranger, check=False).stderr
    terminal.machine.run("sync")  # as the kernel would within half a minute


def scrapes(terminal: Terminal) -> None:
    terminal.scene("Prometheus scrapes it")
    terminal.machine.run(*PROMETHEUS)
    query = f"promtool query instant http://127.0.0.1:9090 '{HEADROOM}'"
    # Kept, because a scrape that a busy machine is too slow for takes the answer away again.
    wait_until(terminal.machine, f"{query} >answer 2>/dev/null && grep -q wslgpud answer")
    terminal.types("cat prometheus.yml")
    left_bytes = float(terminal.types("cat answer", shown_as=query).split("=>")[1].split()[0])
    assert 0 < left_bytes < 768 << 20


def trains(terminal: Terminal) -> None:
    """A warning reaches the user's program, then the kernel's kill does."""
    machine = terminal.machine
    service = ("systemd-run", "--quiet", "--unit=training", "-p", "OOMScoreAdjust=500")
    machine.run(*service, "-p", "StandardOutput=file:/root/train.log", "python3", "/root/train.py")
    wait_until(machine, f"grep -qs memory_exhaustion {WARNINGS}")
    terminal.types("tail -n 3 /root/train.log", shown_as="python3 train.py")
    # Python may take longer to start here than is left: its screen, of what it would have asked for.
    screen = Console(record=True, width=COLUMNS, force_terminal=True, file=io.StringIO())
    print_status({"seen_by": "daemon", "url": URL, **json.loads(machine.python(STATUS).stdout)}, screen)
    terminal.shows("wslgpud status", screen.export_text(styles=True), lines=15)
    wait_until(machine, f"grep -qs oom_kill {WARNINGS}")
    told = [json.loads(line) for line in machine.read(WARNINGS).splitlines() if line]
    rules = [message["rule"] for message in told]
    assert rules.index("memory_exhaustion") < rules.index("oom_kill")
    wait_until(machine, "journalctl --quiet --dmesg | grep -q 'Out of memory: Killed process'")  # read by journald, too
    machine.run("journalctl", "--sync")  # journald itself would, within five minutes


def reads(terminal: Terminal) -> str:
    """What is known of the time before the cut; returns how long before the kill it was warned."""
    wait_until(terminal.machine, f"grep -q unclean_end {WARNINGS}")
    terminal.scene("The kernel kills it, then the power goes. After the restart")
    listed = terminal.types("wslgpud incidents", lines=8)
    kill, end = (
        next(line.split()[0] for line in listed.splitlines() if what in line)
        for what in ("Killed for lack of memory: python3 ", "The machine ended without a shutdown")
    )
    killed = terminal.types(f"wslgpud incidents {kill}", lines=5)
    terminal.scene("The black box: the minutes before the end")
    ended = terminal.types(f"wslgpud incidents {end}", lines=24)

    warned = re.search(r"; killed [\d:]+, warned (.*) before$", killed, re.MULTILINE)
    assert warned is not None, killed
    assert re.search(r"^  .* command +sent ", killed, re.MULTILINE)
    assert "machine, at worst warning; began " in ended
    assert re.search(r"^Probable cause: (.*\n)?.*python3", ended, re.MULTILINE), ended  # it may be wrapped
    assert "RAM: used of " in ended
    assert re.search(r"^  .*: Out of memory: Killed process \d+ \(python3\)", ended, re.MULTILINE)
    return warned[1]
