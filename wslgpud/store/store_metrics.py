"""The store about itself, for the API and as metrics: growth and trouble are seen before they hurt."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial

from wslgpud.metrics import counter, gauge
from wslgpud.model import Reading
from wslgpud.words import MessageLike, say


@dataclass(slots=True)
class StoreStats:
    """The store about itself; sizes in bytes, ages in seconds, None where nothing is known yet."""

    file_bytes: int | None = None
    wal_bytes: int | None = None
    free_bytes: int | None = None
    rows: dict[str, int] = field(default_factory=dict)
    queue_ticks: int = 0
    queue_bytes: int = 0
    dropped_ticks_total: int = 0
    dropped_records_total: int = 0
    rejected_values_total: int = 0
    write_errors_total: int = 0
    error: MessageLike = ""
    last_commit_age_seconds: float | None = None
    last_commit_seconds: float | None = None
    last_purge_wall: float | None = None
    purged_rows_total: int = 0
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


_gauge_now, _counter_now = partial(gauge, stored=False), partial(counter, stored=False)
_REJECTED = "Values that could not be kept: not finite, beyond 64 bits, or of more series than one machine may have."
_RECORDS = "Events, changes of level and other records given up because the disk took none for too long."
_WRITTEN = "Bytes that the history had the kernel write to the disk since the start: its share of the wear."
_ASIDE = "1 when a damaged database was set aside since the start and what could be read was saved, else 0."
_FINDINGS = "What the nightly look through the file found wrong the last time."
_AGE, _CHECKED = "Time since data last reached the disk.", "When the file was last looked through."
_DURATION, _DELETED = "How long the last commit took.", "Rows deleted for their age or for the size of the whole."

#: field of the figures -> its metric
_METRICS = {
    "file_bytes": gauge("store_file_bytes", "Size of the database file."),
    "wal_bytes": gauge("store_wal_bytes", "Size of its write-ahead log."),
    "free_bytes": gauge("store_free_bytes", "Room inside the file that new data will use first."),
    "queue_ticks": _gauge_now("store_queue_ticks", "Samples that wait in memory to be written."),
    "dropped_ticks_total": _counter_now(
        "store_dropped_ticks", "Samples given up because the disk took none for too long."
    ),
    "dropped_records_total": _counter_now("store_dropped_records", _RECORDS),
    "write_errors_total": _counter_now(
        "store_write_errors", "Failed attempts to write; the data is kept and written later."
    ),
    "error": _gauge_now("store_failing", "1 while the database cannot be written, else 0."),
    "last_commit_age_seconds": _gauge_now("store_commit_age_seconds", _AGE, decimals=3),
    "last_commit_seconds": _gauge_now("store_commit_duration_seconds", _DURATION, decimals=6),
    "rejected_values_total": _counter_now("store_rejected_values", _REJECTED),
    "purged_rows_total": _counter_now("store_purged_rows", _DELETED),
    "written_bytes_total": counter("store_written_bytes", _WRITTEN),
    "set_aside": _gauge_now("store_set_aside", _ASIDE),
    "check_findings": _gauge_now("store_check_findings", _FINDINGS),
    "last_check_wall": _gauge_now("store_last_check_timestamp_seconds", _CHECKED, decimals=3),
}
METRICS = tuple(_METRICS.values())


def readings(stats: StoreStats) -> Iterator[Reading]:
    """Turn the store's figures into readings; what is not known is left out, of findings there is the count."""
    for name, spec in _METRICS.items():
        value = getattr(stats, name)
        if isinstance(value, tuple):
            yield Reading(spec, len(value))
        elif value is not None:
            yield Reading(spec, value if isinstance(value, (int, float)) else int(bool(value)))
