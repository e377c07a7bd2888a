"""The store's own metrics, also for the API: growth and faults are seen before they hurt."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any

from wslgpud.metrics import MetricSpec, counter, gauge
from wslgpud.model import Reading
from wslgpud.words import MessageLike, say

_gauge_now, _counter_now = partial(gauge, stored=False), partial(counter, stored=False)
_REJECTED = "Values that could not be stored: not finite, too large, or beyond the limit on series of a machine."
_RECORDS = "Events, changes of level and other records dropped because the disk accepted none for too long."
_WRITTEN = "Bytes written to the disk for the history since the start: its share of the wear."
_ASIDE = "1 when a damaged database was set aside since the start and its readable part saved, else 0."
_FINDINGS = "Faults found by the last nightly check of the file."
_DROPPED = "Samples dropped because the disk accepted none for too long."
_ERRORS = "Failed attempts to write; the data is kept and written later."
_FAILING = "1 while the database cannot be written, else 0."
_WAITING = (
    "Samples that wait on the disk of this machine to be copied to the database server; absent where there is none."
)
_ROOM = "Free space inside the file, used first for new data."
_AGE, _CHECKED = "Time since data last reached the disk.", "When the file was last checked."
_DURATION, _DELETED = "How long the last commit took.", "Rows deleted for their age or the size limit."


def _figure(start: Any, metric: MetricSpec) -> Any:
    return field(default=start, metadata={"metric": metric})


@dataclass(slots=True)
class StoreStats:
    """The store's own figures; sizes in bytes, ages in seconds, None while unknown."""

    file_bytes: int | None = _figure(None, gauge("store_file_bytes", "Size of the database file."))
    wal_bytes: int | None = _figure(None, gauge("store_wal_bytes", "Size of its write-ahead log."))
    free_bytes: int | None = _figure(None, gauge("store_free_bytes", _ROOM))
    queue_ticks: int = _figure(0, _gauge_now("store_queue_ticks", "Samples that wait in memory to be written."))
    queue_bytes: int = 0
    dropped_ticks_total: int = _figure(0, _counter_now("store_dropped_ticks", _DROPPED))
    dropped_records_total: int = _figure(0, _counter_now("store_dropped_records", _RECORDS))
    write_errors_total: int = _figure(0, _counter_now("store_write_errors", _ERRORS))
    error: MessageLike = field(default="", metadata={"metric": _gauge_now("store_failing", _FAILING)})
    #: None without a server
    replication_queue_ticks: int | None = _figure(None, _gauge_now("store_replication_queue_ticks", _WAITING))
    last_commit_age_seconds: float | None = _figure(None, _gauge_now("store_commit_age_seconds", _AGE))
    last_commit_seconds: float | None = _figure(None, _gauge_now("store_commit_duration_seconds", _DURATION))
    rejected_values_total: int = _figure(0, _counter_now("store_rejected_values", _REJECTED))
    last_purge_wall: float | None = None
    purged_rows_total: int = _figure(0, _counter_now("store_purged_rows", _DELETED))
    written_bytes_total: int | None = _figure(None, counter("store_written_bytes", _WRITTEN))
    set_aside: str = _figure("", _gauge_now("store_set_aside", _ASIDE))
    check_findings: tuple[str, ...] | None = _figure(None, _gauge_now("store_check_findings", _FINDINGS))
    last_check_wall: float | None = _figure(None, _gauge_now("store_last_check_timestamp_seconds", _CHECKED))

    @property
    def damage(self) -> MessageLike:
        """The fault of the file, or of the one set aside until the new one was checked; empty without one."""
        if self.check_findings is None and self.set_aside:
            return say("damaged, and set aside as {path}", path=self.set_aside)
        return self.check_findings[0] if self.check_findings else ""


_METRICS: dict[str, MetricSpec] = {f.name: f.metadata["metric"] for f in fields(StoreStats) if f.metadata}
METRICS = tuple(_METRICS.values())


def readings(stats: StoreStats) -> Iterator[Reading]:
    """Turn the store's figures into readings; unknown ones are omitted, findings are counted."""
    for name, spec in _METRICS.items():
        value = getattr(stats, name)
        if isinstance(value, tuple):
            yield Reading(spec, len(value))
        elif value is not None:
            yield Reading(spec, value if isinstance(value, (int, float)) else int(bool(value)))


def written_bytes() -> int | None:
    """Return the bytes that this thread has written to disks, None where the kernel does not count them."""
    try:
        counts = Path("/proc/thread-self/io").read_text(encoding="ascii")
    except OSError:
        return None
    return next((int(line.split()[1]) for line in counts.splitlines() if line.startswith("write_bytes:")), None)
