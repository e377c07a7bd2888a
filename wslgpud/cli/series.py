"""Series by keyword or pattern, and formatting of their values."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence

from wslgpud.app.catalogue import catalogue
from wslgpud.cli.common import Fault, warn
from wslgpud.store import Reader, SeriesRef
from wslgpud.words import say
from wslgpud.words.units import size

#: keywords for the most used series; each stands for metrics of the catalogue
WORDS: Mapping[str, tuple[str, ...]] = {
    "ram": ("memory_available_bytes",),
    "swap": ("swap_free_bytes",),
    "vram": ("gpu_memory_used_bytes",),
    "gpu": ("gpu_utilization_ratio",),
    "temperature": ("gpu_temperature_celsius",),
    "power": ("gpu_power_watts",),
    "clock": ("gpu_clock_hertz",),
    "cpu": ("cpu_seconds",),
    "load": ("load1",),
    "pressure": ("pressure_stalled_ratio",),
    "headroom": ("headroom_bytes",),
    "programs": ("program_resident_bytes",),
    "disk": ("disk_read_bytes", "disk_written_bytes"),
    "network": ("network_receive_bytes", "network_transmit_bytes"),
}


def find(reader: Reader, asked: Sequence[str], host: str = "") -> dict[SeriesRef, str]:
    """Return the series matching keywords and patterns (by default all), with their metrics' kinds.

    A keyword without series on this machine (``vram`` without a card) is reported on standard error; a Fault if there
    are only such, or one is neither keyword nor matches a series.
    """
    kinds = reader.kinds(host=host)
    if not kinds:
        if host:
            raise Fault("no history of a machine called {host}", host=host)
        raise Fault("no history yet")
    series_kinds: dict[SeriesRef, str] = {}
    absent: list[str] = []
    for text in asked or ("*",):
        name, brace, labels = text.partition("{")
        patterns = [word + brace + labels for word in WORDS.get(name, (name,))]
        refs = {ref: kind for pattern in patterns for ref, kind in reader.kinds(pattern, host).items()}
        if not refs and name in WORDS:
            absent.append(f"{text} ({', '.join(WORDS[name])})")
        elif not refs:
            known = sorted({*WORDS, *(ref.metric for ref in kinds)})
            bare = name.removeprefix("wslgpud_")
            near = [metric for metric in known if bare.strip("*") in metric][:3]
            near = near or difflib.get_close_matches(bare, known, 3, 0.5)
            if near:
                raise Fault(
                    "no series {text}; did you mean {names}? 'wslgpud history' lists them all",
                    text=repr(text),
                    names=tuple(near),
                )
            raise Fault("no series {text}; 'wslgpud history' lists them all", text=repr(text))
        series_kinds.update((ref, refs[ref]) for ref in sorted(refs))
    if absent:
        message = say("nothing is recorded here of {names}", names=tuple(absent))
        if not series_kinds:
            raise Fault(message)
        warn(message)
    return series_kinds


def unit_of(metric: str) -> str:
    """Return the unit of a metric, empty without one or for an unknown metric."""
    spec = catalogue().find(metric)
    return "" if spec is None else spec.unit


def amount(value: float, unit: str, *, rate: bool = False) -> str:
    """Format a value with its unit; ``rate`` means per second."""
    if unit == "bytes_per_second":
        return amount(value, "bytes", rate=True)
    if rate:
        return f"{value:.1%}" if unit == "seconds" else f"{amount(value, unit)}/s"
    if unit == "bytes":
        return f"-{size(-value)}" if value < 0 else size(value)
    if unit == "ratio":
        return f"{value:.1%}"
    if unit == "hertz":
        return f"{value / 1e9:.2f} GHz" if value >= 1e9 else f"{value / 1e6:.0f} MHz"
    digits = f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:.3g}"
    return digits + {"celsius": " °C", "watts": " W", "joules": " J", "seconds": " s"}.get(unit, "")
