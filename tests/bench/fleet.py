"""A fleet for the benchmarks of central servers: what one recorded machine tells, with figures of its own for each.

The series are those that a real daemon exposes of a machine of ``tests/hosts``; they pass through the daemon's own
store and exporter, which see a machine a second as they would beside the daemon's other parts.
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
from wslgpud.serve.exposition import Publisher
from wslgpud.serve.negotiation import OPENMETRICS

#: a machine under WSL2 with a card that is nearly full
HOST = "wsl2-vram-full"
#: seconds by which the day of each machine differs from that of the one before
_APART_SECONDS = 7 * 3600 + 300

_new_reading: Callable[[Iterable[Any]], Reading] = partial(tuple.__new__, Reading)


def exposed() -> list[Line]:
    """Return the series that a daemon exposes of the recorded machine, and where each stands."""
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
    """One machine of the fleet."""

    def __init__(self, number: int, known: Sequence[Line]) -> None:
        self.name = f"box{number:03}"
        self._apart = number * _APART_SECONDS
        self._machine = Machine([replace(line) for line in known], seed=number)

    def snapshots(self, start: int, seconds: int) -> Iterator[Snapshot]:
        """Yield a snapshot for each second from ``start`` on."""
        columns = map(_readings, self._machine.lines, self._machine.stretch(start + self._apart, seconds))
        for second, readings in enumerate(zip(*columns, strict=True)):
            wall = start + second + 0.25
            # under the name by which the sampler tells of itself there is no series more than on a real machine
            report = SourceReport("sampler", "ok", Sample(readings), wall, 0.001)
            yield Snapshot(wall, wall, second, (report,))


def _readings(line: Line, scaled: Sequence[float]) -> Sequence[Reading]:
    first, scale = scaled[0], 10**line.spec.decimals
    values = [value / scale for value in scaled] if scale > 1 else scaled
    if scaled.count(first) == len(scaled):
        return [Reading(line.spec, values[0], line.labels)] * len(scaled)
    # a constructor in Python takes three times as long, and there are millions of them
    return [*map(_new_reading, zip(repeat(line.spec), values, repeat(line.labels), strict=False))]


def scrapes(box: Box, start: int, seconds: int) -> list[bytes]:
    """Return what a scraper of the machine gets in each second, zipped."""
    clock = FakeClock(start)
    publisher = Publisher(catalogue(), clock)
    found = []
    for snapshot in box.snapshots(start, seconds):
        clock.now = snapshot.wall
        publisher.publish(snapshot)
        found.append(publisher.text(OPENMETRICS, zipped=True))
    return found
