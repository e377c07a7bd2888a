"""Writes a history inside a machine, a tick after the other, and says what is on disk; see test_store.py.

``store_writer.py FILE FIRST LAST`` marks each confirmed tick in the log of writes of the device "watched".
With ``-`` for LAST it obeys lines instead: ``write N``, ``flush SECONDS``, ``fail`` (ask for a flush until it
is done or an error is known), ``end``.
"""

from __future__ import annotations

import json
import sys

sys.path.insert(0, "/srv")

from device_mapper import mark  # noqa: I001 - it lies beside this file, in the machine
from wslgpud.config import StoreSettings
from wslgpud.metrics import MetricSpec
from wslgpud.model import Reading, Sample, Snapshot, SourceReport
from wslgpud.store import Store, upkeep, writer

SPEC = MetricSpec("made_bytes", "gauge", "bytes", "A level.", ("kind",))
SERIES = 12
T0 = 1_750_000_000 - 1_750_000_000 % 86400


class Clock:
    """Time goes by as ticks are written."""

    now = float(T0)

    def wall(self) -> float:
        return self.now

    def mono(self) -> float:
        return self.now


def append(store: Store, clock: Clock, number: int, *, urgent: bool = False) -> None:
    clock.now = float(T0 + number)
    readings = tuple(Reading(SPEC, number, (str(i),)) for i in range(SERIES))
    report = SourceReport("made", "ok", Sample(readings), clock.now, 0.001)
    store.append(Snapshot(clock.now, clock.now, number, (report,)), urgent=urgent)


def write(file: str, first: int, last: int) -> None:
    clock = Clock()
    with Store(file, StoreSettings(raw_days=3650), host_name="pc", clock=clock) as store:
        for number in range(first, last):
            append(store, clock, number, urgent=number % 7 == 0)
            if number % 25 == 24:
                assert store.flush(120)
                mark("watched", f"confirmed-{number}")


def obey(file: str, number: int) -> None:
    clock = Clock()
    writer.RETRY_SECONDS = (0.1,)
    with Store(file, StoreSettings(raw_days=3650), host_name="pc", clock=clock) as store:
        for line in sys.stdin:
            what, *rest = line.split()
            if what == "write":
                for _ in range(int(rest[0])):
                    append(store, clock, number)
                    number += 1
            elif what == "end":
                break
            answer = {}
            if what == "flush":
                answer["flushed"] = store.flush(float(rest[0]))
            elif what == "fail":
                answer["flushed"] = False
                while not (store.stats().error or answer["flushed"]):
                    answer["flushed"] = store.flush(0.5)
            stats = store.stats()
            answer |= {"error": str(stats.error), "queue": stats.queue_ticks, "errors": stats.write_errors_total}
            sys.stdout.write(json.dumps(answer) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    upkeep.INTERVAL_SECONDS = 0.0
    target, begin, end = sys.argv[1:]
    if end == "-":
        obey(target, int(begin))
    else:
        write(target, int(begin), int(end))
