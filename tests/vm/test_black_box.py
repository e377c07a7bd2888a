"""A real program eats all memory of a real machine, and then the power is cut: the whole story is told."""

from __future__ import annotations

import json
from typing import Any

import pytest

from .conftest import BootMachine
from .machine import Machine

pytestmark = [pytest.mark.vm, pytest.mark.xdist_group("vm")]

PROGRAM = "/opt/wslgpud/bin/wslgpud"
CONFIG = """
[sampling]
gpu = false
[alerts]
command = ["/srv/on-alert"]
minimum_level = "info"
"""
EAT_EVERYTHING = """
import time
blocks = []
while True:
    blocks.append(bytearray(b"x" * (2 << 20)))
    time.sleep(0.1)
"""


def wait_until(machine: Machine, condition: str) -> None:
    """Wait inside the machine, whose own load decides how long things take."""
    machine.run("sh", "-c", f"until {condition}; do sleep 0.5; done", timeout_seconds=240)


def start(machine: Machine) -> None:
    """Start the daemon as a service; returns after its first sample."""
    service = ["systemd-run", "--unit=wslgpud", "-p", "Type=notify", "-p", "OOMScoreAdjust=-900"]
    machine.run(*service, PROGRAM, "run", "--state", "/var/lib/wslgpud")


def ask(machine: Machine, *arguments: str) -> Any:
    return json.loads(machine.run(PROGRAM, *arguments, "--json", "--state", "/var/lib/wslgpud").stdout)


def test_the_warning_leaves_before_the_kill_and_the_report_survives_a_power_cut(machine: BootMachine) -> None:
    debian = machine(program=True, memory_mib=448, swap_mib=64)
    debian.write("/etc/wslgpud/wslgpud.toml", CONFIG)
    debian.write("/srv/on-alert", "#!/bin/sh\n{ cat; echo; } >> /srv/alerts\n", mode=0o755)
    start(debian)
    debian.run("systemd-run", "--unit=eater", "-p", "OOMScoreAdjust=500", "python3", "-c", EAT_EVERYTHING)
    wait_until(debian, "grep -qs oom_kill /srv/alerts")
    told = [json.loads(line) for line in debian.read("/srv/alerts").splitlines() if line]

    debian.run("journalctl", "--sync")  # journald itself would, within five minutes
    debian.cut_power()
    debian.boot()
    start(debian)
    wait_until(debian, "grep -q unclean_end /srv/alerts")
    incidents = {i["rule"]: i for i in ask(debian, "incidents")}
    kill = ask(debian, "incidents", str(incidents["oom_kill"]["id"]))
    end = ask(debian, "incidents", str(incidents["unclean_end"]["id"]))

    rules = [message["rule"] for message in told]
    assert rules.index("memory_exhaustion") < rules.index("oom_kill")
    assert "Killed for lack of memory: python3 (pid " in incidents["oom_kill"]["headline"]
    assert kill["warned_seconds_before"] > 1
    assert {m["channel"] for m in kill["messages"] if "sent" in m} == {"command"}
    assert (end["resource"], end["level"]) == ("machine", "warning")
    assert "python3" in end["trouble"]
    assert any("Killed process" in line and "python3" in line for line in end["kernel"])
    curve = next(h for h in end["headroom"] if h["resource"] == "ram")
    assert min(left for _, left in curve["points"]) < 0.2 * curve["capacity_bytes"]
