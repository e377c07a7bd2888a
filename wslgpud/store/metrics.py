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
DROPPED_RECORDS = MetricSpec(
    "store_dropped_records", "counter", "",
    "Events, changes of level and other records given up because the disk took none for too long.",
    stored=False,
)  # fmt: skip
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
REJECTED = MetricSpec(
    "store_rejected_values", "counter", "",
    "Values that could not be kept: not finite, beyond 64 bits, or of more series than one machine may have.",
    stored=False,
)  # fmt: skip
PURGED = MetricSpec(
    "store_purged_rows",
    "counter",
    "",
    "Rows deleted for their age or for the size of the whole.",
    stored=False,
)
WRITTEN = MetricSpec(
    "store_written_bytes", "counter", "bytes",
    "Bytes that the history had the kernel write to the disk since the start: its share of the wear.",
)  # fmt: skip
SET_ASIDE = MetricSpec(
    "store_set_aside", "gauge", "",
    "1 when a damaged database was set aside since the start and what could be read was saved, else 0.",
    stored=False,
)  # fmt: skip
FINDINGS = MetricSpec(
    "store_check_findings", "gauge", "", "What the nightly look through the file found wrong the last time.",
    stored=False,
)  # fmt: skip
CHECKED = MetricSpec(
    "store_last_check_timestamp_seconds", "gauge", "seconds", "When the file was last looked through.",
    decimals=3, stored=False,
)  # fmt: skip

METRICS = (
    FILE, WAL, FREE, QUEUE, DROPPED, DROPPED_RECORDS, ERRORS, FAILING, COMMIT_AGE, COMMIT_DURATION, REJECTED,
    PURGED, WRITTEN, SET_ASIDE, FINDINGS, CHECKED,
)  # fmt: skip


def readings(stats: StoreStats) -> Iterator[Reading]:
    """Turn the store's figures into readings; what is not known is left out."""
    known: tuple[tuple[MetricSpec, Number | None], ...] = (
        (FILE, stats.file_bytes),
        (WAL, stats.wal_bytes),
        (FREE, stats.free_bytes),
        (QUEUE, stats.queue_ticks),
        (DROPPED, stats.dropped_ticks_total),
        (DROPPED_RECORDS, stats.dropped_records_total),
        (ERRORS, stats.write_errors_total),
        (FAILING, int(bool(stats.error))),
        (COMMIT_AGE, stats.last_commit_age_seconds),
        (COMMIT_DURATION, stats.last_commit_seconds),
        (REJECTED, stats.rejected_values_total),
        (PURGED, stats.purged_rows_total),
        (WRITTEN, stats.written_bytes_total),
        (SET_ASIDE, int(bool(stats.set_aside))),
        (FINDINGS, None if stats.check_findings is None else len(stats.check_findings)),
        (CHECKED, stats.last_check_wall),
    )
    for spec, value in known:
        if value is not None:
            yield Reading(spec, value)
