"""Shared by the tests of stress runs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from wslgpud.model import GpuSample, StressFinding, StressResult
from wslgpud.words import MessageLike

MIB = 1 << 20


def gpu(**changes: Any) -> GpuSample:
    """Return an idle RTX 5070 Ti."""
    given: dict[str, Any] = {
        "index": 0,
        "uuid": "GPU-1",
        "name": "NVIDIA GeForce RTX 5070 Ti",
        "total_bytes": 16303 * MIB,
        "used_bytes": 1000 * MIB,
        "free_bytes": 15000 * MIB,
        "reserved_bytes": 303 * MIB,
        "utilization_ratio": 0.0,
        "temperature_celsius": 40.0,
    }
    return GpuSample(**given | changes)


def night(
    number: float,
    *,
    verdict: Any = "passed",
    findings: Iterable[Any] = (),
    driver: str = "576.88",
    uuid: str = "GPU-1",
    reason: MessageLike = "",
    **values: float,
) -> StressResult:
    """Return the run of one night."""
    figures = {
        "write_median": 800e9,
        "change_median": 780e9,
        "read_median": 760e9,
        "usable_bytes": 14000 * MIB,
        "free_bytes": 14500 * MIB,
        "verified_bytes": 14400 * MIB,
        "errors": 0,
        "duration_seconds": 9.0,
    }
    complete = verdict in ("passed", "findings")
    return StressResult(
        1.7e9 + 86400.0 * number,
        uuid,
        0,
        "NVIDIA GeForce RTX 5070 Ti",
        verdict,
        reason,
        tuple(StressFinding(*finding) for finding in findings),
        {"driver": driver, "torch": "2.13.0", "mode": "nightly", "wsl": "yes"},
        figures | values if complete else {},
    )
