"""Pressure stall information: the share of time in which programs waited for memory, CPU or disk."""

from __future__ import annotations

import errno

from wslgpud.host import NoData, SourceError
from wslgpud.metrics import counter, gauge
from wslgpud.model import Reading, Sample
from wslgpud.sources import Source, decimal, parse_uint
from wslgpud.words import say

RESOURCES = ("memory", "cpu", "io")

WAITING_SECONDS, STALLED_SECONDS = (
    counter(f"pressure_{state}_seconds", text, "resource", decimals=6)
    for state, text in (
        ("waiting", 'Time in which at least one program waited for the resource (memory, cpu, io); PSI\'s "some".'),
        ("stalled", 'Time in which every program waited for the resource, so nothing got done; PSI\'s "full".'),
    )
)
WAITING_RATIO, STALLED_RATIO = (
    gauge(f"pressure_{state}_ratio", f"The kernel's own average of {text}", "resource", "window", decimals=4)
    for state, text in (
        ("waiting", "waiting over the last 10 s or 60 s."),
        ("stalled", "stalls over the last 10 s or 60 s; memory above 0.2 is thrashing."),
    )
)
_KINDS = {"some": (WAITING_SECONDS, WAITING_RATIO), "full": (STALLED_SECONDS, STALLED_RATIO)}
_WINDOWS = {"avg10": "10s", "avg60": "60s"}


class PressureSource(Source):
    """PSI of the whole machine (https://docs.kernel.org/accounting/psi.html).

    WSL's 5.15 kernel has none; its 6.18 has it built in but switched off
    (``kernelCommandLine=psi=1`` under ``[wsl2]`` in .wslconfig switches it on).
    """

    name = "pressure"
    fast = True
    metrics = (WAITING_SECONDS, STALLED_SECONDS, WAITING_RATIO, STALLED_RATIO)

    def read(self) -> Sample:
        """Return the kernel's PSI; NoData where it has none, or it is switched off."""
        readings: list[Reading] = []
        for resource in RESOURCES:
            try:
                readings += parse(resource, self.host.read(f"/proc/pressure/{resource}"))
            except NoData:
                continue
            except SourceError as error:
                # Compiled in but off: the file exists, reading it fails with "not supported".
                if getattr(error.__cause__, "errno", None) != errno.EOPNOTSUPP:
                    raise
        if not readings:
            raise NoData(say("this kernel has no pressure stall information, or it is off (boot with psi=1)"))
        return Sample(tuple(readings))


def parse(resource: str, text: str) -> list[Reading]:
    readings: list[Reading] = []
    for line in text.splitlines():
        kind, *fields = line.split() or ("",)
        # The kernel reports "full" for cpu as zero: it has no meaning for a whole machine.
        if kind not in _KINDS or (kind == "full" and resource == "cpu"):
            continue
        seconds, ratio = _KINDS[kind]
        values = dict(field.partition("=")[::2] for field in fields)
        if (total := parse_uint(values.get("total"))) is not None:
            readings.append(Reading(seconds, total / 1e6, (resource,)))
        for name, window in _WINDOWS.items():
            if (percent := decimal(values.get(name))) is not None:
                # The kernel's running averages overshoot 100 by a rounding error.
                readings.append(Reading(ratio, round(min(percent, 100) / 100, 4), (resource, window)))
    return readings
