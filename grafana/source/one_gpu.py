"""One card: its headroom, what throttles it, its health."""

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
REPAIR = words(
    {0: ("nothing to do", GOOD), 1: ("at next reset", WARNING), 2: ("replace card", CRITICAL), -1: ("N/A", NOT_HERE)}
)
DISPLAY = words({1: ("yes", NOTE), 0: ("no", GOOD), -1: ("N/A", NOT_HERE)})
DIVIDED = words({1: ("divided", NOTE), 0: ("whole", GOOD), -1: ("N/A", NOT_HERE)})


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
            "Until its memory is exhausted at the current rate; or no end in sight.",
            ask(f"{left} or {level} * 0 - 1", now=True),
            unit="s",
            mappings=TIME_LEFT_WORDS,
            decimals=1,
            thresholds=steps(*TIME_LEFT_STEPS),
            width=4,
        ),
        figure(
            "Usable VRAM left",
            "VRAM that programs can still allocate, as wslgpud has learned; under WSL2 less than what looks free.",
            ask(f"max({for_gpu(metric('headroom_bytes'))})", now=True),
            unit="bytes",
            width=4,
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
            width=4,
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
        width=8,
    )
    power = lines(
        "Power and limit",
        "Drawn by the board. Dashed: the limit in force.",
        ask(gpu("gpu_power_watts"), "power"),
        ask(gpu("gpu_power_limit_watts"), "limit"),
        unit="watt",
        width=8,
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
            width=8,
        ),
        dashed(temperature, "/limit/"),
        dashed(power, "/limit/"),
        lines(
            "Clocks",
            "Lower than usual under load: see the throttle reasons.",
            ask(gpu("gpu_clock_hertz"), "{{clock}}"),
            unit="hertz",
            width=8,
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
            width=8,
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
            width=8,
            height=7,
            decimals=0,
        ),
        lines(
            "Programs on the card",
            "As reported by the driver; under WSL2 it does not report Windows programs.",
            ask(gpu("gpu_processes"), "programs"),
            unit="none",
            width=8,
            height=7,
            decimals=0,
        ),
    ]


def _health() -> list[Panel]:
    def one(title: str, text: str, name: str, field: str, *matchers: str, unit: str = "none", width: int = 3) -> Panel:
        return figure(
            title,
            text,
            ask(f"max({or_not_here(gpu(name, *matchers), field)})", now=True),
            unit=unit,
            mappings=NOT_HERE_WORDS,
            width=width,
            decimals=0,
        )

    failed, pending = gpu("gpu_row_remap_failed"), gpu("gpu_row_remap_pending")
    energy = gpu("gpu_energy_joules")
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
    return [
        one("Fan", "Target speed.", "gpu_fan_speed_ratio", "fan", unit="percentunit", width=2),
        one(
            "ECC uncorrected",
            "Memory errors since the driver was loaded.",
            "gpu_ecc_errors",
            "ecc_uncorrected",
            'type="uncorrected"',
            width=4,
        ),
        one(
            "ECC corrected",
            "Memory errors since the driver was loaded.",
            "gpu_ecc_errors",
            "ecc_corrected",
            'type="corrected"',
        ),
        one("Remapped rows", "Memory rows permanently replaced by spare ones.", "gpu_remapped_rows", "remapped_rows"),
        figure(
            "Row repair",
            "Whether a faulty row is waiting to be replaced (at the next reset), or could not be.",
            ask(f"max({or_not_here(f'2 * {failed} > 0 or {pending}', 'remapped_rows')})", now=True),
            mappings=REPAIR,
            width=3,
        ),
        figure(
            "Display",
            "Whether this card drives one. If so, the desktop takes part of its memory.",
            ask(f"max({or_not_here(gpu('gpu_display_active'), 'display')})", now=True),
            mappings=DISPLAY,
            width=3,
        ),
        figure(
            "MIG",
            "Whether the card is divided into instances (MIG).",
            ask(f"max({or_not_here(gpu('gpu_mig_enabled'), 'mig')})", now=True),
            mappings=DIVIDED,
            width=3,
        ),
        figure(
            "Energy per day",
            "At the rate of the time range shown: by the card's own counter, else from its power.",
            ask(
                f"(max(rate({energy}[$__range])) or max(avg_over_time({gpu('gpu_power_watts')}[$__range])))"
                f" * 24 / 1000 or max(({gpu('gpu_field_supported', field='power')} == 0) - 1)",
                now=True,
            ),
            unit="kwatth",
            decimals=1,
            mappings=NOT_HERE_WORDS,
            width=3,
        ),
        known,
        who,
    ]


def supported() -> list[object]:
    """Return how the column of supported calls looks."""
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
