"""The store about itself, for the API and as metrics: growth and trouble are seen before they hurt."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from wslgpud.metrics import MetricSpec
from wslgpud.model import Number, Reading
from wslgpud.words import MessageLike, say


@dataclass(frozen=True, slots=True)
class StoreStats:
    """The store about itself; sizes in bytes, ages in seconds, None where nothing is known yet."""

    file_bytes: int | None
    wal_bytes: int | None
    free_bytes: int | None
    rows: dict[str, int]
    queue_ticks: int
    queue_bytes: int
    dropped_ticks_total: int
    dropped_records_total: int
    rejected_values_total: int
    write_errors_total: int
    error: MessageLike
    last_commit_age_seconds: float | None
    last_commit_seconds: float | None
    last_purge_wall: float | None
    purged_rows_total: int
    set_aside: str = ""
    check_findings: tuple[str, ...] | None = None
    last_check_wall: float | None = None
    written_bytes_total: int | None = None

    @property
    def damage(self) -> MessageLike:
        """What is or was wrong with the file, in a few words; empty when nothing is known."""
        if self.check_findings:
            return self.check_findings[0]
        # a look that found nothing since then was at the new file
        recovered = self.check_findings is not None and self.set_aside
        if not self.set_aside or recovered:
            return ""
        return say("damaged, and set aside as {path}", path=self.set_aside)


_now = partial(MetricSpec, stored=False)
_REJECTED = "Values that could not be kept: not finite, beyond 64 bits, or of more series than one machine may have."
_RECORDS = "Events, changes of level and other records given up because the disk took none for too long."
_WRITTEN = "Bytes that the history had the kernel write to the disk since the start: its share of the wear."
_ASIDE = "1 when a damaged database was set aside since the start and what could be read was saved, else 0."
_TICKS = "Samples given up because the disk took none for too long."
_ERRORS = "Failed attempts to write; the data is kept and written later."
_FAILING = "1 while the database cannot be written, else 0."
_FREE = "Room inside the file that new data will use first."
_FINDINGS = "What the nightly look through the file found wrong the last time."
_AGE, _DURATION = "Time since data last reached the disk.", "How long the last commit took."
_CHECKED, _CHECK = "When the file was last looked through.", "store_last_check_timestamp_seconds"

_FIGURES: tuple[tuple[MetricSpec, Callable[[StoreStats], Number | None]], ...] = (
    (MetricSpec("store_file_bytes", "gauge", "bytes", "Size of the database file."), lambda s: s.file_bytes),
    (MetricSpec("store_wal_bytes", "gauge", "bytes", "Size of its write-ahead log."), lambda s: s.wal_bytes),
    (MetricSpec("store_free_bytes", "gauge", "bytes", _FREE), lambda s: s.free_bytes),
    (_now("store_queue_ticks", "gauge", "", "Samples that wait in memory to be written."), lambda s: s.queue_ticks),
    (_now("store_dropped_ticks", "counter", "", _TICKS), lambda s: s.dropped_ticks_total),
    (_now("store_dropped_records", "counter", "", _RECORDS), lambda s: s.dropped_records_total),
    (_now("store_write_errors", "counter", "", _ERRORS), lambda s: s.write_errors_total),
    (_now("store_failing", "gauge", "", _FAILING), lambda s: int(bool(s.error))),
    (_now("store_commit_age_seconds", "gauge", "seconds", _AGE, decimals=3), lambda s: s.last_commit_age_seconds),
    (_now("store_commit_duration_seconds", "gauge", "seconds", _DURATION, decimals=6), lambda s: s.last_commit_seconds),
    (_now("store_rejected_values", "counter", "", _REJECTED), lambda s: s.rejected_values_total),
    (
        _now("store_purged_rows", "counter", "", "Rows deleted for their age or for the size of the whole."),
        lambda s: s.purged_rows_total,
    ),
    (MetricSpec("store_written_bytes", "counter", "bytes", _WRITTEN), lambda s: s.written_bytes_total),
    (_now("store_set_aside", "gauge", "", _ASIDE), lambda s: int(bool(s.set_aside))),
    (
        _now("store_check_findings", "gauge", "", _FINDINGS),
        lambda s: None if s.check_findings is None else len(s.check_findings),
    ),
    (_now(_CHECK, "gauge", "seconds", _CHECKED, decimals=3), lambda s: s.last_check_wall),
)
METRICS = tuple(spec for spec, _ in _FIGURES)


def readings(stats: StoreStats) -> Iterator[Reading]:
    """Turn the store's figures into readings; what is not known is left out."""
    for spec, value_of in _FIGURES:
        if (value := value_of(stats)) is not None:
            yield Reading(spec, value)
