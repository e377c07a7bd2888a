"""A probe may write anything to its pipe: NVML's library and Windows are not ours."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from wslgpud.probes.supervisor import ProbeDown, Supervisor
from wslgpud.sources.windows import from_probe, labelled

#: what a child does with a request; ``out`` writes bytes
CHILD = """
import os, sys, time, signal
def out(data): os.write(1, data)
sys.stdin.readline()
{code}
"""
HARM = {
    "nested JSON": ("out(b'[' * 200000 + b'\\n')", "not a JSON object"),
    "a nested object": ("out(b'{\"a\":' * 100000 + b'\\n')", "not a JSON object"),
    "escapes": ("out(b'\\x1b]0;owned\\x07\\x1b[2J\\n')", "not a JSON object"),
    "a flood without a line": ("exec('while True: out(b\"x\" * 65536)')", "more than"),
    "escapes as last words": ("os.write(2, b'\\x1b[2Jowned\\x07\\n'); sys.exit(3)", "ended with status 3"),
    "an odd signal": ("os.kill(os.getpid(), 50)", "was killed by signal 50"),
    "a drip": ("exec('while True: out(b\"x\"); time.sleep(0.02)')", "did not answer within"),
    "half a line": ("out(b'{'); time.sleep(600)", "did not answer within"),
    "infinite numbers": ("out(b'NaN\\n')", "not a JSON object"),
}


@pytest.mark.parametrize(("code", "complaint"), HARM.values(), ids=HARM)
def test_an_answer_made_to_harm_costs_one_answer(code, complaint):
    never = "within" in complaint
    child = Supervisor(
        "child",
        [sys.executable, "-c", CHILD.format(code=code)],
        timeout_seconds=180.0,
        start_timeout_seconds=0.5 if never else 180.0,
    )
    try:
        with pytest.raises(ProbeDown, match=complaint) as caught:
            child.ask({})
        said = str(caught.value)
        assert said.isprintable()
        assert len(said) < 500
        assert child.pid is None
    finally:
        child.close()


@pytest.mark.parametrize(
    "answer",
    [
        {"memory": "x", "system": 3, "gpu": [[1]], "vm": {"Name": 1}, "adapters": None},
        {"memory": [{"AvailableBytes": -1, "CommittedBytes": float("nan"), "CommitLimit": 1e400}]},
        {"memory": [{"AvailableBytes": "9" * 5000}], "system": [{"TotalVisibleMemorySize": "x"}]},
        {"gpu": [{"Name": "luid_0x" + "f" * 5000 + "_0x1_phys_0", "DedicatedUsage": -5}]},
        {"gpu": [{"Name": "luid_0x0_0x1_phys_0" * 1000, "DedicatedUsage": True}]},
    ],
    ids=["shapes", "no sizes", "digits", "a luid", "a name"],
)
def test_an_answer_of_another_shape_says_nothing(answer):
    facts = from_probe(answer)

    assert not facts.sizes
    assert labelled(facts.adapters) == []


def test_a_windows_card_has_a_short_name_no_terminal_obeys():
    rows = [{"Name": f"luid_0x0_{i:#x}_phys_0", "DedicatedUsage": 1} for i in range(1, 200)]
    names = [{"Luid": i, "Name": f"\x1b]0;owned\x07{'x' * 300}"} for i in range(1, 200)]
    found = labelled(from_probe({"gpu": rows, "adapters": names}).adapters)

    assert len(found) == 16
    assert all(name.isprintable() and len(name) < 100 for name, _ in found)


def test_a_probe_that_is_gone_leaves_no_descriptor():
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(3):
        child = Supervisor("child", ["/bin/false"], timeout_seconds=180.0, start_timeout_seconds=180.0)
        with pytest.raises(ProbeDown):
            child.ask({})
        child.close()
    assert len(list(Path("/proc/self/fd").iterdir())) == before
