"""The card during a run: temperature, power, clocks, throttle reasons, ECC errors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from wslgpud.model import Number, Reading, StressFinding
from wslgpud.sources import windows
from wslgpud.words import says

#: followed metrics of the GPU source, by name and additional label ("gpu_clock_hertz:sm")
FOLLOWED = {
    *("gpu_temperature_celsius", "gpu_power_watts", "gpu_clock_hertz", "gpu_throttle_reason", "gpu_ecc_errors"),
    *("gpu_remapped_rows", "gpu_row_remap_pending", "gpu_row_remap_failed"),
    *("gpu_pcie_link_generation", "gpu_pcie_link_width"),
}
#: These make a night's figures useless for comparison. A power cap does not: it slows the cores more than the memory,
#: and on many cards it is always active.
SLOWED = ("hw_slowdown", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown")
ECC = "gpu_ecc_errors:corrected"
#: by adapter, not by UUID
SHARED = windows.GPU_SHARED.name
#: growth of it that may have other reasons
SHARED_BYTES = 256 << 20


def followed(readings: Iterable[Reading]) -> dict[str, dict[str, Number]]:
    """Return the followed values, by the GPU's UUID and their name."""
    by_gpu: dict[str, dict[str, Number]] = {}
    shared: dict[str, Number] = {}
    for spec, value, labels in readings:
        if spec.name in FOLLOWED:
            by_gpu.setdefault(labels[1], {})[":".join((spec.name, *labels[2:]))] = value
        elif spec.name == SHARED:
            shared[":".join((SHARED, *labels))] = value
    for facts in by_gpu.values():
        facts.update(shared)
    return by_gpu


@dataclass
class Course:
    """Extremes of the followed values, from the sample before a run to the last one."""

    first: Mapping[str, Number] = field(default_factory=dict)
    last: dict[str, Number] = field(default_factory=dict)
    low: dict[str, Number] = field(default_factory=dict)
    high: dict[str, Number] = field(default_factory=dict)
    samples: int = 0
    slowed: int = 0
    over: bool = False

    def add(self, now: Mapping[str, Number]) -> None:
        """Take a sample; after the run, only its counters."""
        self.last.update(now)
        if self.over:
            return
        self.samples += 1
        self.slowed += any(now.get(f"gpu_throttle_reason:{reason}") for reason in SLOWED)
        for name, value in now.items():
            self.low[name] = min(value, self.low.get(name, value))
            self.high[name] = max(value, self.high.get(name, value))

    def grown(self, name: str) -> Number | None:
        before, after = self.first.get(name), self.last.get(name)
        return None if before is None or after is None else max(0, after - before)

    def values(self) -> dict[str, Number]:
        # Increase, since before the run, of the card's memory that Windows has moved into RAM.
        adapters = [name for name in self.high if name.startswith(SHARED) and name in self.first]
        shared = [self.high[name] - self.first[name] for name in adapters]
        throttles = any(name.startswith("gpu_throttle_reason:") for name in self.last)
        known = {
            "temperature_max_celsius": self.high.get("gpu_temperature_celsius"),
            "power_max_watts": self.high.get("gpu_power_watts"),
            "memory_clock_hertz": self.high.get("gpu_clock_hertz:memory"),
            "sm_clock_hertz": self.high.get("gpu_clock_hertz:sm"),
            "slowed_ratio": self.slowed / self.samples if throttles else None,
            "shared_grown_bytes": max(0, *shared) if shared else None,
            "ecc_corrected": self.grown(ECC),
            "ecc_uncorrected": self.grown("gpu_ecc_errors:uncorrected"),
            "remapped_rows": self.grown("gpu_remapped_rows:uncorrectable"),
        }
        return {name: value for name, value in known.items() if value is not None}

    def findings(self) -> Iterator[StressFinding]:
        values = self.values()
        if count := values.get("ecc_uncorrected"):
            text = says(
                "{count} memory error that ECC could not correct",
                "{count} memory errors that ECC could not correct",
                count=int(count),
            )
            yield StressFinding("errors", text)
        if count := values.get("remapped_rows"):
            text = says(
                "the card has retired {count} broken row of its memory",
                "the card has retired {count} broken rows of its memory",
                count=int(count),
            )
            yield StressFinding("errors", text)

    def detail(self) -> dict[str, Any]:
        reasons = [n.partition(":")[2] for n, v in self.high.items() if v and n.startswith("gpu_throttle")]
        extremes = {"first": dict(self.first), "last": self.last, "low": self.low, "high": self.high}
        return {"samples": self.samples, **extremes, "throttle_reasons": sorted(reasons)}
