"""The real command, the real daemon and its schedule, the real worker; only the card is made of host memory.

NVIDIA's library is our stand-in (tests/fake_nvml), and torch works on the CPU (on_cpu.py).
"""

from __future__ import annotations

import importlib.util
import json
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.gpu.conftest import built_library  # noqa: F401 - a fixture
from tests.support.accounts import shared_python
from tests.support.daemons import WSLGPUD, clean_environment, daemon, eventually, wslgpud

FOLDER = Path(__file__).parent
#: one after the other: what loads torch meanwhile is a program that may want the GPU, and the run gives way
pytestmark = [
    pytest.mark.xdist_group("torch"),
    pytest.mark.timeout(1800),
    pytest.mark.skipif(
        any(map(os.path.exists, ("/dev/nvidia-uvm", "/dev/dxg"))), reason="others may use this machine's GPU"
    ),
    pytest.mark.usefixtures("faulty"),  # skips where there is no torch
]


@pytest.fixture
def card(public, tmp_path, built_library):
    """Return the settings under which a card seems to be there."""
    library = tmp_path / "libnvidia-ml.so.1"
    library.write_bytes(built_library.read_bytes())
    library.with_name(f"{library.name}.settings").write_text(
        f"utilization 0\ntotal {16303 << 20}\nused {1000 << 20}\ntemperature 41\n"
    )
    python = public / "bin" / "python"
    python.parent.mkdir()
    torch = Path(importlib.util.find_spec("torch").origin).parents[1]
    python.write_text(
        f"#!/bin/sh\nexport SOAK_SECONDS=60 PYTHONPATH={shlex.quote(str(torch))}\n"
        f'exec {shlex.quote(str(shared_python()))} {shlex.quote(str(FOLDER / "on_cpu.py"))} "$@"\n'
    )
    python.chmod(0o755)
    return {
        "WSLGPUD_SAMPLING__NVML_LIBRARY": str(library),
        "WSLGPUD_STRESS__PYTHON": str(python),
        "WSLGPUD_STRESS__SETTLE_SECONDS": "1",
        "WSLGPUD_STRESS__SOAK_SECONDS": "0",
        "WSLGPUD_STRESS__SCHEDULE": "off",
    }


def run_now(home, settings, *arguments):
    """Run ``wslgpud stress``; once more when it gave way to somebody else on this machine."""
    for _ in range(5):
        done = wslgpud("stress", "--json", *arguments, "--state", str(home / "state"), home=home, settings=settings)
        document = json.loads(done.stdout)
        if done.returncode != 3:
            break
    return done.returncode, document


def history(home, settings):
    done = wslgpud("stress", "history", "--json", "--state", str(home / "state"), home=home, settings=settings)
    return json.loads(done.stdout)


def test_one_command_tests_the_card_and_keeps_the_result(tmp_path, card):
    status, document = run_now(tmp_path, card)
    values = document["values"]

    assert (status, document["verdict"], document["findings"]) == (0, "passed", [])
    assert values["verified_bytes"] == values["usable_bytes"] == values["allocated_bytes"]
    assert values["spec_bytes"] == 16 << 30
    assert values["temperature_max_celsius"] == 41
    assert {row["name"] for row in document["detail"]["patterns"]} == {
        "solid",
        "checkerboard",
        "walking",
        "address",
        "random",
        "move",
        "modulo",
        "retention",
    }
    assert [run["verdict"] for run in history(tmp_path, card)][-1] == "passed"


def test_a_night_starts_on_schedule_and_the_command_still_works(tmp_path, card):
    every_minute = {
        "WSLGPUD_STRESS__SCHEDULE": "* * * * *",
        "WSLGPUD_STRESS__JITTER_MINUTES": "0",
        "WSLGPUD_STRESS__RETRIES": "0",
    }
    with daemon(tmp_path, settings=card | every_minute) as running:
        eventually(lambda: "wslgpud_gpu_up" in running.get("/metrics"), "a GPU that answers")
        status, _ = run_now(tmp_path, card, "--quick")
        assert status == 0

        def passed():
            return {run["key"]["mode"] for run in history(tmp_path, card) if run["verdict"] == "passed"} >= {
                "quick",
                "nightly",
            }

        end = time.monotonic() + 900  # a minute for the schedule; more where others load torch
        while not passed():
            assert time.monotonic() < end, history(tmp_path, card)
            time.sleep(1)
        samples = running.samples()
    names = {name.partition("{")[0] for name in samples}

    assert {
        "wslgpud_vram_stress_last_success_timestamp_seconds",
        "wslgpud_vram_stress_bytes",
        "wslgpud_vram_stress_coverage_ratio",
        "wslgpud_vram_stress_bandwidth_bytes_per_second",
        "wslgpud_vram_stress_temperature_celsius",
        "wslgpud_vram_stress_duration_seconds",
    } <= names


@pytest.mark.skipif(
    "WSLGPUD_SLOW" not in os.environ,
    reason="other tests load torch meanwhile, which counts as trainings: set WSLGPUD_SLOW=1 and -n0",
)
def test_a_training_that_starts_meanwhile_gets_the_card(tmp_path, card):
    soaking = card | {"WSLGPUD_STRESS__SOAK_SECONDS": "60"}
    command = [*WSLGPUD, "stress", "--full", "--json", "--state", str(tmp_path / "state")]
    run = subprocess.Popen(command, env=clean_environment(tmp_path, soaking), stdout=subprocess.PIPE, text=True)
    training = None
    try:
        eventually(lambda: worker_of(run.pid), "a worker")
        training = subprocess.Popen([sys.executable, "-c", "import torch, time; time.sleep(600)"])
        said, _ = run.communicate(timeout=300)
        assert training.poll() is None
    finally:
        for process in filter(None, (training, run)):
            process.kill()
            process.communicate()

    document = json.loads(said)
    assert (document["verdict"], run.returncode) == ("left", 3), document["reason"]
    assert document["reason"].endswith("wants the GPU")


def worker_of(pid):
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            if b"stress/worker" in Path(f"/proc/{child}/cmdline").read_bytes():
                return child
    return None
