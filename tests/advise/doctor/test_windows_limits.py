"""What the doctor says of Windows' answers, at the limits of each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.advise.doctor.conftest import outcome
from wslgpud.advise.doctor import checks_windows
from wslgpud.advise.doctor.checking import Evidence, Gpus, GpuSample
from wslgpud.host import SourceError
from wslgpud.sources import windows
from wslgpud.sources.windows import Adapter, Facts
from wslgpud.words import say

GIB = 1 << 30
ABOUT = {"version": "5.1", "windows": "10.0.22000.1", "language": "en-US", "administrator": False, "seconds": 4.9}
SILENT = "Windows reports neither a figure nor a reason"


@pytest.mark.parametrize(
    ("answer", "state", "found"),
    [
        ({}, "good", "Windows 11 (10.0.22000.1, en-US, as an ordinary user), PowerShell 5.1, answered in 5 s"),
        ({"windows": "10.0.21999.1"}, "good", "Windows 10 (10.0.21999.1, "),
        ({"windows": "10.0"}, "good", "Windows 10 (10.0, "),
        ({"administrator": True}, "good", "Windows 11 (10.0.22000.1, en-US, as administrator)"),
        ({"seconds": 5.0}, "note", "Windows 11"),
        ({"error": "hangs"}, "could not tell", "hangs"),
    ],
)
def test_the_windows_version_and_response_time_are_reported(machine, answer, state, found):
    here = machine()
    here.powershell = ABOUT | answer
    said = outcome("windows.powershell", here)

    assert said.state == state
    assert str(said.found).startswith(found)


@pytest.mark.parametrize(
    ("said", "policy"),
    [("ConstrainedLanguage", True), ("no", False), (say("{why}", why="no", told="x ConstrainedLanguage"), True)],
)
def test_a_policy_is_recognised_by_powershells_id(said, policy):
    refused = checks_windows._refused(said, "remedy")

    assert (refused.state, str(refused.found)) == ("problem", str(said))
    assert (refused.remedy == "remedy") is not policy


@pytest.fixture
def answered(machine: Callable[..., Evidence]) -> Callable[..., Evidence]:
    """A machine of 16 GiB, 12 of them used, 4 of page cache, whose Windows answers this."""

    def of(sizes: dict[Any, int], *cards: Adapter, **missing: object) -> Evidence:
        kibibytes = {"MemTotal": 16 << 20, "MemFree": 4 << 20, "Cached": 5 << 20, "Shmem": 1 << 20}
        here = machine({"/proc/meminfo": "".join(f"{name}: {size} kB\n" for name, size in kibibytes.items())})
        here.windows_facts, here.windows_answer = Facts(sizes, cards, {}), {"missing": missing}
        return here

    return of


@pytest.mark.parametrize(
    ("held", "left", "state", "found"),
    [
        (16 * GIB, 50, "note", "its process holds 16 GiB, of which Linux uses 12 GiB"),
        (16 * GIB - 1, 50, "good", "its process holds 16 GiB"),
        (GIB, 50, "good", "its process holds 1.0 GiB"),
        (12 * GIB, 9, "note", "its process holds 12 GiB, 4.0 GiB of it page cache; Windows has 9 % left"),
        (12 * GIB, 10, "good", "its process holds 12 GiB"),
        (12 * GIB, None, "good", "its process holds 12 GiB"),
    ],
)
def test_memory_kept_by_the_vm_is_reported_from_4_gib_on(answered, held, left, state, found):
    sizes = {windows.VM: held} | ({} if left is None else {windows.TOTAL: 100, windows.AVAILABLE: left})
    said = outcome("windows.vm", answered(sizes))

    assert (said.state, str(said.found)) == (state, found)


@pytest.mark.parametrize(
    ("check", "missing", "state", "found"),
    [
        ("windows.vm", {}, "note", SILENT),
        ("windows.vm", {"vm": "Zugriff\nverweigert"}, "note", "Zugriff verweigert"),
        ("windows.memory", {"memory": "a", "system": "b"}, "problem", "a; b"),
        (
            "windows.memory",
            {"memory": say("Windows gave no answer"), "system": "b"},
            "problem",
            "Windows gave no answer",
        ),
        ("windows.gpus", {"vm": "a"}, "problem", SILENT),
        ("windows.gpus", {"gpu": "a", "adapters": "a" * 400}, "problem", f"a; {'a' * 296}…"),
    ],
)
def test_what_windows_does_not_report_is_told_with_its_reason(answered, check, missing, state, found):
    said = outcome(check, answered({}, **missing))

    assert (said.state, str(said.found)) == (state, found)


@pytest.mark.parametrize(
    ("sizes", "state"),
    [({windows.TOTAL: 4 * GIB}, "problem"), ({windows.TOTAL: 4 * GIB, windows.AVAILABLE: GIB}, "good")],
)
def test_windows_memory_takes_both_figures(answered, sizes, state):
    said = outcome("windows.memory", answered(sizes))

    assert said.state == state
    assert (str(said.found) == "1.0 GiB of 4.0 GiB available") is (state == "good")


@pytest.mark.parametrize(
    ("card", "state", "found"),
    [("RTX 5070", "good", "NVIDIA RTX 5070"), ("RTX 9", "note", "NVIDIA RTX 5070; without RTX 9, which NVML sees")],
)
def test_a_card_that_windows_does_not_count_is_named(answered, card, state, found):
    here = answered({}, Adapter((0, 1), "NVIDIA RTX 5070", {}))
    here.gpus = Gpus((GpuSample(0, "GPU-1", card),))
    said = outcome("windows.gpus", here)

    assert (said.state, str(said.found)) == (state, found)


@pytest.mark.parametrize(
    ("result", "state", "found"),
    [
        ("0x0", "good", "created, run and removed again"),
        ("0x1", "problem", "Windows ran it, and it ended with 0x1"),
        (SourceError("refused"), "problem", "refused"),
    ],
)
def test_a_task_is_fine_where_it_ended_with_0(machine, monkeypatch, result, state, found):
    def does(*_: object) -> str:
        if isinstance(result, Exception):
            raise result
        return f"{result}\n"

    monkeypatch.setattr(checks_windows.interop, "keep_alive", does)
    said = outcome("windows.task", machine())

    assert (said.state, str(said.found)) == (state, found)
