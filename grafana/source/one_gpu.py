"""One card: its headroom, its throttling, its health."""

from __future__ import annotations

from grafana.source.frame import dashboard, variables
from grafana.source.kit import (
    CRITICAL,
    GOOD,
    NOT_HERE,
    NOT_HERE_WORDS,
    NOTE,
    TIME_LEFT_STEPS,
    TIME_LEFT_WORDS,
    WARNING,
    Panel,
    ask,
    dashed,
    figure,
    for_gpu,
    gpu,
    lines,
    metric,
    or_not_here,
    override,
    rows,
    states,
    steps,
    words,
)
from grafana.source.overview import vram

ALIVE = words({1: ("answers", GOOD), 0: ("lost", CRITICAL)})
YES_NO = words({1: ("yes", WARNING), 0: ("no", GOOD), -1: ("N/A", NOT_HERE)})
ON_OFF = words({1: ("on", NOTE), 0: ("off", "#5a5a5a33")})
REPAIR = words({0: ("nothing to do", GOOD), 1: ("at next reset", WARNING), 2: ("replace card", CRITICAL)})
DISPLAY = words({1: ("yes", NOTE), 0: ("no", GOOD)})
DIVIDED = words({1: ("divided", NOTE), 0: ("whole", GOOD)})


def _now() -> list[Panel]:
    level = f"max({for_gpu(metric('risk_level'))})"
    left = f"min({for_gpu(metric('time_to_exhaustion_seconds', estimate='middle'))})"
    harmful = gpu(
        "gpu_throttle_reason", 'reason=~"hw_slowdown|hw_thermal_slowdown|hw_power_brake_slowdown|sw_thermal_slowdown"'
    )
    return [
        figure(
            "State",
            "Whether the card answers. Lost: it no longer answers, but the driver still lists it.",
            ask(f"min({gpu('gpu_up')})", now=True),
            mappings=ALIVE,
            background=True,
            width=3,
        ),
        figure(
            "Time left",
            "Until its memory is exhausted at the current rate; or not running out.",
            ask(f"{left} or {level} * 0 - 1", now=True),
            unit="s",
            mappings=TIME_LEFT_WORDS,
            decimals=1,
            thresholds=steps(*TIME_LEFT_STEPS),
        ),
        figure(
            "Usable VRAM left",
            "VRAM that programs can still allocate, as wslgpud has learned; under WSL2 less than what looks free.",
            ask(f"max({for_gpu(metric('headroom_bytes'))})", now=True),
            unit="bytes",
            decimals=1,
        ),
        figure(
            "Load",
            "Share of time in which a kernel ran.",
            ask(f"max({or_not_here(gpu('gpu_utilization_ratio'), 'utilization')})"),
            unit="percentunit",
            mappings=NOT_HERE_WORDS,
            spark=True,
            width=3,
            colour=NOTE,
        ),
        figure(
            "Temperature",
            "Of the core.",
            ask(f"max({or_not_here(gpu('gpu_temperature_celsius'), 'temperature')})"),
            unit="celsius",
            mappings=NOT_HERE_WORDS,
            spark=True,
            width=3,
            colour=NOTE,
        ),
        figure(
            "Power",
            "Drawn by the board.",
            ask(f"max({or_not_here(gpu('gpu_power_watts'), 'power')})"),
            unit="watt",
            mappings=NOT_HERE_WORDS,
            spark=True,
            width=3,
            colour=NOTE,
        ),
        figure(
            "Throttled",
            "Whether heat or the power supply throttles the card. A plain power cap does not count.",
            ask(f"max({or_not_here(harmful, 'throttle_reasons')})", now=True),
            mappings=YES_NO,
            background=True,
        ),
    ]


def _work() -> list[Panel]:
    temperature = lines(
        "Temperatures",
        "Dashed: throttling, and shutdown.",
        ask(gpu("gpu_temperature_celsius"), "core"),
        ask(gpu("gpu_temperature_limit_celsius"), "{{limit}} limit"),
        unit="celsius",
        least=20,
    )
    power = lines(
        "Power and limit",
        "Drawn by the board. Dashed: the limit in force.",
        ask(gpu("gpu_power_watts"), "power"),
        ask(gpu("gpu_power_limit_watts"), "limit"),
        unit="watt",
    )
    return [
        lines(
            "Use",
            "Shares of time: kernels, memory reads and writes, video encoder and decoder.",
            ask(gpu("gpu_utilization_ratio"), "kernels"),
            ask(gpu("gpu_memory_utilization_ratio"), "memory"),
            ask(gpu("gpu_encoder_utilization_ratio"), "encoder"),
            ask(gpu("gpu_decoder_utilization_ratio"), "decoder"),
            unit="percentunit",
            most=1,
        ),
        dashed(temperature, "/limit/"),
        dashed(power, "/limit/"),
        lines(
            "Clocks",
            "Lower than usual under load: see the throttle reasons.",
            ask(gpu("gpu_clock_hertz"), "{{clock}}"),
            unit="hertz",
            fill=0,
        ),
        states(
            "Throttle reasons",
            "Each reason the driver reports; idle is harmless, a power cap normal.",
            ask(gpu("gpu_throttle_reason"), "{{reason}}"),
            ON_OFF,
            width=16,
            height=8,
            said=False,
        ),
        lines(
            "Performance state",
            "0 fastest, 15 slowest.",
            ask(gpu("gpu_performance_state"), "P"),
            unit="none",
            most=15,
            height=7,
            decimals=0,
        ),
        lines(
            "PCIe link",
            "Generation and lanes; both drop when idle, to save power. Fewer lanes than possible under "
            "load: the slot or the riser cable.",
            ask(gpu("gpu_pcie_link_width"), "lanes"),
            ask(gpu("gpu_pcie_link_width_max"), "lanes possible"),
            ask(gpu("gpu_pcie_link_generation"), "generation"),
            ask(gpu("gpu_pcie_link_generation_max"), "generation possible"),
            unit="none",
            height=7,
            decimals=0,
        ),
        lines(
            "Programs on the card",
            "As reported by the driver; under WSL2 it does not report Windows programs. Measured is 1 where it is known "
            "how much each holds; otherwise who fills the card is only suspected.",
            ask(gpu("gpu_processes"), "programs"),
            ask(gpu("gpu_process_memory_measured"), "measured"),
            unit="none",
            height=7,
            decimals=0,
        ),
    ]


def _health() -> list[Panel]:
    energy, power = gpu("gpu_energy_joules"), gpu("gpu_power_watts")
    failed, pending = gpu("gpu_row_remap_failed"), gpu("gpu_row_remap_pending")
    # One panel, for Grafana shows no tile for a series that is not there, but an empty panel for a query without any.
    parts = {
        "Fan": gpu("gpu_fan_speed_ratio"),
        "ECC uncorrected": gpu("gpu_ecc_errors", type="uncorrected"),
        "ECC corrected": gpu("gpu_ecc_errors", type="corrected"),
        "Remapped rows": gpu("gpu_remapped_rows"),
        "Row repair": f"2 * {failed} > 0 or {pending}",
        "Display": gpu("gpu_display_active"),
        "MIG": gpu("gpu_mig_enabled"),
        "Energy per day": f"(rate({energy}[$__range]) or avg_over_time({power}[$__range])) * 24 / 1000",
    }
    tiles = figure(
        "Health",
        "Target speed of the fan; memory errors since the driver was loaded; rows of memory replaced by spare ones, and"
        " whether a faulty one waits for the next reset; whether the card drives a display, which then takes part of "
        "its"
        " memory, and is divided into instances; energy at the rate of the time range shown. A tile is missing where "
        "the"
        " card has no such thing (below).",
        *(ask(f"max({expression})", name, now=True) for name, expression in parts.items()),
        width=24,
    )
    override(tiles, "Fan", unit="percentunit")
    override(tiles, "Energy per day", unit="kwatth", decimals=1)
    for name, meanings in {"Row repair": REPAIR, "Display": DISPLAY, "MIG": DIVIDED}.items():
        override(tiles, name, mappings=[meaning.to_json() for meaning in meanings])
    known = rows(
        "Supported metrics",
        "Driver calls and whether this card supports them: the reason for N/A elsewhere.",
        ask(gpu("gpu_field_supported"), rows=True),
        columns={"field": "Call", "Value": "Supported"},
        width=10,
    ).override_by_name("Supported", supported())
    who = rows(
        "Identity",
        "The card and its driver.",
        ask(gpu("gpu"), rows=True),
        columns={
            "name": "Name",
            "driver_version": "Driver",
            "driver_model": "Model",
            "cuda_version": "CUDA",
            "compute_capability": "Compute",
        },
        width=14,
    )
    override(who, "Name", custom__width=260)
    return [tiles, known, who]


def supported() -> list[object]:
    """Return the look of the column of supported calls."""
    from grafana_foundation_sdk.models.dashboard import DynamicConfigValue as Value

    meanings = words({1: ("yes", GOOD), 0: ("N/A", NOT_HERE)})
    return [
        Value(id_val="mappings", value=[m.to_json() for m in meanings]),
        Value(id_val="custom.cellOptions", value={"type": "color-text"}),
        Value(id_val="custom.width", value=120),
    ]


def one_gpu() -> str:
    """Return the dashboard."""
    return dashboard(
        "wslgpud-gpu",
        "wslgpud / GPU",
        "One card: its memory by layer, load, temperature, clocks, and throttle reasons.",
        (("", _now()), ("Memory", [vram(24)]), ("Work", _work()), ("Health", _health())),
        chosen=variables(cards="one"),
    )
