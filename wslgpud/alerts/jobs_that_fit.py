"""How many of the programs that grow together would fit: the number for MAX_JOBS, -j or num_workers."""

from __future__ import annotations

from collections.abc import Iterable

from wslgpud.model import Forecast, ProcessSample
from wslgpud.risk.attribution import group_name

#: the largest of them shows what each will come to; some room is left for what has not shown yet
ROOM = 0.9


def jobs_that_fit(forecast: Forecast, processes: Iterable[ProcessSample]) -> int | None:
    """Return how many programs of the group that a forecast blames fit at once; None where that is not known.

    What all of them hold together with what is left, divided by what the largest holds.
    """
    program = group_name(forecast.who).partition(" ")[0] if forecast.who_kind == "group" else ""
    if not program:
        return None
    held = [p.rss_bytes + p.swap_bytes for p in processes if program in (p.name, _program(p))]
    if len(held) < 2 or not max(held):
        return None
    fit = max(1, int(ROOM * (sum(held) + max(0, forecast.headroom_bytes)) / max(held)))
    return fit if fit < len(held) else None  # no advice to go on as before


def _program(process: ProcessSample) -> str:
    words = process.command.split()
    return words[0].rpartition("/")[2] if words else ""
