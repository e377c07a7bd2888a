"""How a card fared during a stress run, and what the run was made with, in words."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from wslgpud.stress.comparison import named
from wslgpud.words import Message, MessageLike, say, says, template

MODES = {"quick": template("quick run"), "nightly": template("nightly run"), "full": template("full run")}
#: the card's state during a run, by the figure that shows it
COURSE: Mapping[str, Callable[[float], MessageLike]] = {
    "temperature_max_celsius": lambda celsius: say("up to {celsius} °C", celsius=round(celsius)),
    "power_max_watts": lambda watts: f"{watts:.0f} W",
    "memory_clock_hertz": lambda hertz: say("memory at {mhz} MHz", mhz=round(hertz / 1e6)),
    "slowed_ratio": lambda ratio: say("throttled for {slowed_ratio} of the time", slowed_ratio=ratio),
    "ecc_corrected": lambda n: says("ECC corrected {count} error", "ECC corrected {count} errors", count=int(n)),
    "ecc_uncorrected": lambda n: says(
        "{count} error could not be corrected", "{count} errors could not be corrected", count=int(n)
    ),
}


def course(values: Mapping[str, float]) -> Iterator[MessageLike]:
    """Yield the card's state during a run, as far as it is known."""
    return (word(values[name]) for name, word in COURSE.items() if name in values)


def made_with(key: Mapping[str, str]) -> Iterator[MessageLike]:
    """Yield mode, versions and machine of a run."""
    for name, value in key.items():
        if name == "mode" and value in MODES:
            yield Message(MODES[value])
        elif name == "wsl":
            yield say("under WSL") if value == "yes" else say("not under WSL")
        elif name == "reserve_bytes" and value.isdecimal():
            yield say("{reserve_bytes} deliberately left free", reserve_bytes=int(value))
        elif name == "engine":
            yield say("test version {version}", version=value)
        elif value:
            yield say("{name} {version}", name=named(name), version=value)
