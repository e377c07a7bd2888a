"""Settings WSL refuses get a remark in its words; those it silently accepts get one in ours, or none."""

from __future__ import annotations

import pytest

from wslgpud.advise.wslconfig.check import remarks
from wslgpud.advise.wslconfig.presets import GIB, WINDOWS_BYTES
from wslgpud.probes.wsl_config import parse


def of(setting: str, **facts: int) -> list[tuple[bool, str, str]]:
    """Return whether WSL warns about a setting, the reason not to use it, and the fix."""
    return [(bool(r.wsl), str(r.why), str(r.fix)) for r in remarks(parse(f"[wsl2]\n{setting}\n"), **facts)]


def test_a_refused_value_gets_no_advice_meant_for_valid_ones() -> None:
    # Taken for what it says, each of these would be too little, or a wish that people regret.
    assert [wsl for wsl, _, _ in of("memory=1 GB")] == [True]
    assert [wsl for wsl, _, _ in of("safeMode=yes")] == [True]
    assert [wsl for wsl, _, _ in of("memory=1GB")] == [False]
    assert [wsl for wsl, _, _ in of("safeMode=true")] == [False]


@pytest.mark.parametrize(
    ("written", "meant"), [("511", "memory=511GB"), ("512", "memory=512MB"), ("16777215", "memory=16777215MB")]
)
def test_a_size_without_a_unit_is_taken_for_what_people_mean(written: str, meant: str) -> None:
    ((wsl, why, fix),) = of(f"memory={written}")

    assert (wsl, fix) == (False, f"write {meant}")
    assert "in bytes" in why


def test_too_little_and_too_much_memory_begin_where_they_do() -> None:
    host = 32 * GIB
    most = (host - WINDOWS_BYTES) // GIB

    assert of("memory=2GB", host_memory_bytes=host) == []
    assert [fix for _, _, fix in of("memory=2047MB")] == ["write memory=8GB or more"]
    assert of(f"memory={most}GB", host_memory_bytes=host) == []
    assert [fix for _, _, fix in of(f"memory={most + 1}GB", host_memory_bytes=host)] == [
        f"write memory={most}GB or less"
    ]
    assert of("memory=2GB", host_memory_bytes=4 * GIB) == [], "there is nothing better to advise"
    assert [fix for _, _, fix in of("memory=3GB", host_memory_bytes=5 * GIB)] == ["write memory=2GB or less"]


def test_more_processors_than_there_are_begin_with_one_more() -> None:
    assert of("processors=8", host_processors=8) == []
    assert [fix for _, _, fix in of("processors=9", host_processors=8)] == ["write processors=8 or less"]
    assert of("processors=9") == []
