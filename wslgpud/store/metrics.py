"""The store about itself, as metrics: growth and trouble are seen before they hurt."""

from __future__ import annotations

from collections.abc import Iterator

from wslgpud.metrics import MetricSpec
from wslgpud.model import Number, Reading
from wslgpud.store.records import StoreStats

FILE = MetricSpec("store_file_bytes", "gauge", "bytes", "Size of the database file.")
WAL = MetricSpec("store_wal_bytes", "gauge", "bytes", "Size of its write-ahead log.")
FREE = MetricSpec("store_free_bytes", "gauge", "bytes", "Room inside the file that new data will use first.")
QUEUE = MetricSpec(
    "store_queue_ticks", "gauge", "", "Samples that wait in memory to be written.", stored=False
)
DROPPED = MetricSpec(
    "store_dropped_ticks",
    "counter",
    "",
    "Samples given up because the disk took none for too long.",
    stored=False,
)
ERRORS = MetricSpec(
    "store_write_errors",
    "counter",
    "",
    "Failed attempts to write; the data is kept and written later.",
    stored=False,
)
FAILING = MetricSpec(
    "store_failing", "gauge", "", "1 while the database cannot be written, else 0.", stored=False
)
COMMIT_AGE = MetricSpec(
    "store_commit_age_seconds",
    "gauge",
    "seconds",
    "Time since data last reached the disk.",
    decimals=3,
    stored=False,
)
COMMIT_DURATION = MetricSpec(
    "store_commit_duration_seconds",
    "gauge",
    "seconds",
    "How long the last commit took.",
    decimals=6,
    stored=False,
)

METRICS = (FILE, WAL, FREE, QUEUE, DROPPED, ERRORS, FAILING, COMMIT_AGE, COMMIT_DURATION)


def readings(stats: StoreStats) -> Iterator[Reading]:
    """Turn the store's figures into readings; what is not known is left out."""
    known: tuple[tuple[MetricSpec, Number | None], ...] = (
        (FILE, stats.file_bytes),
        (WAL, stats.wal_bytes),
        (FREE, stats.free_bytes),
        (QUEUE, stats.queue_ticks),
        (DROPPED, stats.dropped_ticks_total),
        (ERRORS, stats.write_errors_total),
        (FAILING, int(bool(stats.error))),
        (COMMIT_AGE, stats.last_commit_age_seconds),
        (COMMIT_DURATION, stats.last_commit_seconds),
    )
    for spec, value in known:
        if value is not None:
            yield Reading(spec, value)
