"""Torch is queried in a child: whatever that does, the doctor continues and reports it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wslgpud.advise.doctor.checking import PROBE, _facts, ask
from wslgpud.advise.doctor.checks_gpu import runs_on
from wslgpud.advise.doctor.checks_wsl import version

FAKE_TORCH = """
import types
__version__ = "2.7.1+cu128"
version = types.SimpleNamespace(cuda="12.8")
float32 = "float32"
class Tensor:
    def __mul__(self, other): return self
    def sum(self): return 1024.0 * 1023
def arange(*a, **k): return Tensor() if OK else fail()
def fail(): raise RuntimeError("CUDA error: no kernel image is available for execution on the device\\nmore")
cuda = types.SimpleNamespace(get_arch_list=lambda: ["sm_90", "sm_120"], is_available=lambda: True,
    device_count=lambda: 1, get_device_capability=lambda i: (12, 0))
backends = types.SimpleNamespace(cuda=types.SimpleNamespace(matmul=types.SimpleNamespace(allow_tf32=False)),
    cudnn=types.SimpleNamespace(version=lambda: 90701))
"""


def python(folder: Path, script: str) -> Path:
    """Make a program that stands for a Python of the user's."""
    file = folder / "bin" / "python"
    file.parent.mkdir()
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)
    return file


@pytest.mark.parametrize("works", [True, False])
def test_the_probe_tells_what_torch_is_and_whether_a_kernel_ran(tmp_path, works):
    (tmp_path / "torch.py").write_text(f"OK = {works}\n{FAKE_TORCH}")

    done = subprocess.run(
        [sys.executable, str(PROBE)], env={"PYTHONPATH": str(tmp_path)}, capture_output=True, check=True
    )

    said = json.loads(done.stdout)
    assert (said["version"], said["cuda"], said["capabilities"]) == ("2.7.1+cu128", "12.8", ["12.0"])
    assert said["ran"] is works
    assert ("no kernel image" in said["kernel"]) is not works


LIMITED = """
import os, types
os.uname = lambda: types.SimpleNamespace(release="6.6.87.2-microsoft-standard-WSL2")
uint8 = "uint8"
left = [LIMIT]
def empty(count, dtype, pin_memory):
    if left[0] < count: raise RuntimeError("CUDA error: out of memory")
    left[0] -= count
    return object()
"""


@pytest.mark.parametrize(("limit", "found"), [(700 << 20, [640 << 20, False]), (0, [0, False])])
def test_the_probe_pins_as_much_as_wsl_lets_it(tmp_path, limit, found):
    (tmp_path / "torch.py").write_text(f"OK = True\n{FAKE_TORCH}{LIMITED.replace('LIMIT', str(limit))}")

    done = subprocess.run(
        [sys.executable, str(PROBE)], env={"PYTHONPATH": str(tmp_path)}, capture_output=True, check=True
    )

    assert json.loads(done.stdout)["pinned"] == found


def test_the_probe_pins_no_more_than_a_quarter_of_what_is_free(tmp_path):
    (tmp_path / "torch.py").write_text(f"OK = True\n{FAKE_TORCH}{LIMITED.replace('LIMIT', str(1 << 50))}")

    done = subprocess.run(
        [sys.executable, str(PROBE)], env={"PYTHONPATH": str(tmp_path)}, capture_output=True, check=True
    )

    taken, whole = json.loads(done.stdout)["pinned"]
    free = psutil.virtual_memory().available
    assert (whole, taken >= min(4 << 30, free // 8), taken <= min(4 << 30, free // 2)) == (True, True, True)


def test_a_python_that_answers_is_heard(public):
    line = json.dumps(
        {
            "version": "2.7",
            "cuda": "",
            "architectures": [],
            "capabilities": [],
            "kernel": "none",
            "ran": False,
            "tf32": None,
            "cudnn": None,
            "pinned": [1 << 30, False],
        }
    )

    facts = ask(str(python(public, f"echo hello; echo '{line}'")), os.environ, public)

    assert (facts.version, facts.cuda, facts.kernel, facts.failure) == ("2.7", "", "none", "")
    assert facts.pinned == [1 << 30, False]


@pytest.mark.parametrize(
    ("script", "failure"),
    [
        ("exec sleep 60", "did not answer within 1 s"),
        ("echo 'ImportError: libcudart.so.12' >&2; exit 1", "ImportError: libcudart.so.12"),
        ("kill -SEGV $$", "ended with status -11"),
        ("echo '{}'", "ended with status 0"),
        ("echo not json", "ended with status 0"),
        (r"printf 'Pfad \374ber\n' >&2; exit 1", "Pfad \N{REPLACEMENT CHARACTER}ber"),
    ],
)
def test_a_python_that_hangs_crashes_or_babbles_says_so(public, script, failure):
    seconds = 0.3 if "sleep" in script else 60

    facts = ask(str(python(public, script)), os.environ, public, seconds)

    assert str(facts.failure) == failure


@pytest.mark.parametrize("spoilt", [{"capabilities": [12]}, {"ran": 1}, {"pinned": [1]}, {"cudnn": "9"}, {"cuda": 12}])
def test_an_answer_of_another_form_is_none(spoilt):
    answer = {
        "version": "2.7",
        "cuda": "12.8",
        "architectures": ["sm_120"],
        "capabilities": ["12.0"],
        "kernel": "",
        "ran": True,
        "tf32": False,
        "cudnn": 90701,
        "pinned": None,
    }

    facts = _facts("/p", f"warning\n{json.dumps(answer)}\n", "", 0)
    assert (facts.capabilities, facts.cudnn, facts.tf32, facts.pinned) == (["12.0"], 90701, False, None)
    assert (facts.cuda, facts.architectures, facts.ran) == ("12.8", ["sm_120"], True)
    told = _facts("/p", json.dumps(answer | spoilt), "first\nlast\n", 3)
    assert (told.version, str(told.failure)) == ("", "last")
    assert str(_facts("/p", "", "", 3).failure) == "ended with status 3"


def test_a_program_that_cannot_be_started_says_so(tmp_path):
    facts = ask(f"{tmp_path}/none", os.environ, tmp_path)

    assert (facts.python, str(facts.failure)) == (
        f"{tmp_path}/none",
        f"the Python that is named, {tmp_path}/none, is not a program",
    )


@pytest.mark.parametrize(
    ("built", "card", "runs"),
    [
        (["sm_90", "sm_120"], (12, 0), True),
        (["sm_50", "sm_90"], (12, 0), False),
        (["sm_86"], (8, 9), True),
        (["sm_89"], (8, 6), False),
        (["sm_90", "compute_90"], (12, 0), True),
        (["compute_120"], (9, 0), False),
        (["sm_90a"], (9, 0), True),
        (["compute_80"], (8, 0), True),
        (["compute_89"], (8, 6), False),
        (["gfx90a"], (9, 0), False),
        ([], (9, 0), False),
    ],
)
def test_compiled_code_runs_only_within_its_gpu_generation(built, card, runs):
    assert runs_on(built, card) is runs


@given(st.lists(st.text(max_size=12)), st.tuples(st.integers(1, 13), st.integers(0, 9)))
def test_odd_names_of_architectures_harm_nobody(names, card):
    assert runs_on([*names, f"sm_{card[0]}{card[1]}"], card)


def test_versions_compare_as_numbers():
    assert version("2.10.0+cu128") > version("2.9.1")
    assert version("6.6.87.2-microsoft-standard-WSL2") == (6, 6, 87)
    assert version("2.7.1+cu128") == (2, 7, 1)
