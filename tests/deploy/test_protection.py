"""What systemd was asked to give the daemon is read back, and kept from what the daemon starts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from wslgpud import host
from wslgpud.app.systemd import lack_of_protection, readings
from wslgpud.host import oom_score_adjust

SERVICE = {"NOTIFY_SOCKET": "/run/systemd/notify"}
#: A process that has capabilities to hand on, and one that it starts, before and after it keeps them.
HAND_ON = """
import ctypes, os, subprocess, sys
from wslgpud.app.systemd import keep_capabilities

def children_have():
    command = ["grep", "CapEff", "/proc/self/status"]
    return int(subprocess.run(command, capture_output=True, text=True).stdout.split()[1], 16)

libc = ctypes.CDLL(None)
libc.prctl(8, 1, 0, 0, 0)  # keep the permitted ones when no longer root
os.setresgid(65534, 65534, 65534)
os.setresuid(65534, 65534, 65534)

class Header(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]

KILL = 1 << 5
data = (ctypes.c_uint32 * 6)(KILL, KILL, KILL, 0, 0, 0)
assert libc.capset(ctypes.byref(Header(0x20080522, 0)), data) == 0
assert libc.prctl(47, 2, 5, 0, 0) == 0  # PR_CAP_AMBIENT_RAISE, as systemd does
before = children_have()
keep_capabilities()
print(before, children_have(), int(open("/proc/self/status").read().split("CapEff:")[1].split()[0], 16))
"""


def test_a_service_that_is_killed_as_easily_as_others_says_so() -> None:
    assert "its OOM score adjustment is 0" in lack_of_protection(SERVICE, 0)
    assert "wslgpud service install" in lack_of_protection(SERVICE, 200)


@pytest.mark.parametrize(("environ", "score"), [(SERVICE, -500), ({}, 0), (SERVICE, None)])
def test_who_is_protected_or_no_service_says_nothing(environ: dict[str, str], score: int | None) -> None:
    assert lack_of_protection(environ, score) == ""


def test_the_score_is_a_metric_where_the_kernel_tells_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (score,) = readings()

    assert score.value == oom_score_adjust() == int(Path("/proc/self/oom_score_adj").read_text())

    monkeypatch.setattr(host, "_SCORE", str(tmp_path / "oom_score_adj"))

    assert oom_score_adjust() is None
    assert list(readings()) == []


def test_capabilities_of_the_daemon_are_not_passed_to_children() -> None:
    kill = 1 << 5
    done = subprocess.run([sys.executable, "-c", HAND_ON], capture_output=True, text=True, check=False)
    if "PermissionError" in done.stderr:
        pytest.skip("needs root, to have capabilities")

    assert done.stdout == f"{kill} 0 {kill}\n", done.stderr
