"""A simulated fleet for the benchmarks of central servers: one recorded machine, with different values for each.

The series are those that a real daemon exposes for a machine of ``tests/hosts``. They pass through the daemon's own
store and exporter, which get a sample per second as in a daemon.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from tests.bench.year import Line, Machine
from tests.hosts.machines import HERE
from tests.store.made import FakeClock
from tests.support.daemons import daemon, eventually
from wslgpud.app.catalogue import catalogue
from wslgpud.model import Reading, Sample, Snapshot, SourceReport
from wslgpud.serve.publisher import OPENMETRICS, Publisher

#: a machine under WSL2 with a nearly full card
HOST = "wsl2-vram-full"
#: offset in seconds between the simulated days of consecutive machines
_APART_SECONDS = 7 * 3600 + 300

_new_reading: Callable[[Iterable[Any]], Reading] = partial(tuple.__new__, Reading)


def exposed() -> list[Line]:
    """Return the series that a daemon exposes for the recorded machine, with their values."""
    with (
        tempfile.TemporaryDirectory() as home,
        daemon(Path(home), "--host-root", str(HERE / HOST), settings={"WSLGPUD_STORE__COMMIT_SECONDS": "1"}) as running,
    ):

        def complete() -> str:
            text = running.get("/metrics")
            return text if "wslgpud_store_commit_age" in text and "wslgpud_windows_memory_total" in text else ""

        text = eventually(complete, "all that a daemon tells")
    specs = {spec.exposed_name: spec for spec in catalogue()}
    samples = (sample for family in text_string_to_metric_families(text) for sample in family.samples)
    known = ((specs[one.name], one) for one in samples if one.name in specs)
    return [Line(spec, tuple(one.labels[name] for name in spec.labels), one.value) for spec, one in known]


class Box:
    """A machine of the fleet."""

    def __init__(self, number: int, known: Sequence[Line]) -> None:
        self.name = f"box{number:03}"
        self._apart = number * _APART_SECONDS
        self._machine = Machine([replace(line) for line in known], seed=number)

    def snapshots(self, start: int, seconds: int) -> Iterator[Snapshot]:
        """Yield a snapshot per second, from ``start`` on."""
        columns = map(_readings, self._machine.lines, self._machine.stretch(start + self._apart, seconds))
        for second, readings in enumerate(zip(*columns, strict=True)):
            wall = start + second + 0.25
            # under the sampler's own name, so that there are no more series than on a real machine
            report = SourceReport("sampler", "ok", Sample(readings), wall, 0.001)
            yield Snapshot(wall, wall, second, (report,))


def _readings(line: Line, scaled: Sequence[float]) -> Sequence[Reading]:
    first, scale = scaled[0], 10**line.spec.decimals
    values = [value / scale for value in scaled] if scale > 1 else scaled
    if scaled.count(first) == len(scaled):
        return [Reading(line.spec, values[0], line.labels)] * len(scaled)
    # a Python constructor would take three times as long, for millions of readings
    return [*map(_new_reading, zip(repeat(line.spec), values, repeat(line.labels), strict=False))]


def scrapes(box: Box, start: int, seconds: int) -> list[bytes]:
    """Return the compressed response to a scrape in each second."""
    clock = FakeClock(start)
    publisher = Publisher(catalogue(), clock)
    found = []
    for snapshot in box.snapshots(start, seconds):
        clock.now = snapshot.wall
        publisher.publish(snapshot)
        found.append(publisher.text(OPENMETRICS, zipped=True))
    return found
