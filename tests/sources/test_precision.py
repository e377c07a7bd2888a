"""The precision to which the history keeps what sources read."""

from __future__ import annotations

from wslgpud.sampling.sampler import SOURCES

#: A sleeping card draws a few watts; /proc writes times in hundredths, milliseconds or microseconds.
DECIMALS = {
    **dict.fromkeys(("gpu_power_watts", "gpu_power_limit_watts"), 1),
    **{f"gpu_{kind}_ratio": 2 for kind in ("utilization", "memory_utilization", "fan_speed")},
    **{f"gpu_{kind}_utilization_ratio": 2 for kind in ("encoder", "decoder")},
    **dict.fromkeys(("cpu_seconds", "load1", "load5", "load15"), 2),
    **{f"disk_{kind}_time_seconds": 3 for kind in ("read", "write", "io")},
    **dict.fromkeys(("pressure_waiting_ratio", "pressure_stalled_ratio"), 4),
    **dict.fromkeys(("pressure_waiting_seconds", "pressure_stalled_seconds"), 6),
}


def test_a_series_goes_on_though_its_precision_changed():
    specs = {spec.name: spec for kind in SOURCES for spec in kind.metrics}
    assert {name: spec.decimals for name, spec in specs.items() if spec.decimals} == DECIMALS
