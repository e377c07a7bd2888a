"""Finds recorded series by keyword or pattern."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence

from wslgpud.store import Reader, SeriesRef
from wslgpud.words import Message, MessageError, say

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


class NoSeriesError(MessageError):
    """None of the series asked for is recorded; the message names similar ones."""


def find(
    reader: Reader, asked: Sequence[str], host: str = "", warn: Callable[[Message], None] = lambda _message: None
) -> dict[SeriesRef, str]:
    """Return the series matching keywords and patterns (by default all), with their metrics' kinds.

    ``warn`` is told of keywords without series on this machine (``vram`` without a card).

    Raises:
        NoSeriesError: there are only such, or one is neither a keyword nor matches a series.
    """
    kinds = reader.kinds(host=host)
    if not kinds:
        raise NoSeriesError(say("no history of a machine called {host}", host=host) if host else say("no history yet"))
    series_kinds: dict[SeriesRef, str] = {}
    absent: list[str] = []
    for text in asked or ("*",):
        name, brace, labels = text.partition("{")
        patterns = [word + brace + labels for word in WORDS.get(name, (name,))]
        refs = {ref: kind for pattern in patterns for ref, kind in reader.kinds(pattern, host).items()}
        if not refs and name not in WORDS:
            raise NoSeriesError(_unknown(text, sorted({*WORDS, *(ref.metric for ref in kinds)})))
        if not refs:
            absent.append(f"{text} ({', '.join(WORDS[name])})")
        series_kinds.update((ref, refs[ref]) for ref in sorted(refs))
    message = say("nothing is recorded here of {names}", names=tuple(absent))
    if not series_kinds:
        raise NoSeriesError(message)
    if absent:
        warn(message)
    return series_kinds


def _unknown(text: str, known: Sequence[str]) -> Message:
    bare = text.partition("{")[0].removeprefix("wslgpud_")
    near = [metric for metric in known if bare.strip("*") in metric][:3] or difflib.get_close_matches(
        bare, known, 3, 0.5
    )
    if near:
        return say(
            "no series {text}; did you mean {names}? 'wslgpud history' lists them all",
            text=repr(text),
            names=tuple(near),
        )
    return say("no series {text}; 'wslgpud history' lists them all", text=repr(text))
