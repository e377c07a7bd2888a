"""Gives page cache back to Windows while that is short of memory; off until asked for (``windows.return_cache``).

Linux keeps the files that it has read in RAM, and WSL returns them only when it is idle: Windows' programs fail first
(https://github.com/microsoft/WSL/issues/4166, 41285). Only the part that Windows lacks goes, through ``memory.reclaim``
of the root cgroup. Programs' own memory must not go to swap instead: a kernel that does not know ``swappiness=0`` there
(before 6.11) is asked step by step, and no longer once something was swapped out. Root drops all clean cache
(``drop_caches``) where there is no such file.
"""

from __future__ import annotations

import errno
import logging
import math
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from queue import SimpleQueue

from wslgpud.alerts.incidents import OpenIncident
from wslgpud.alerts.rules import WINDOWS_MEMORY_LOW
from wslgpud.host import Host
from wslgpud.metrics import counter
from wslgpud.model import Event, Forecast, Level, Reading, Snapshot
from wslgpud.risk.headroom import WINDOWS
from wslgpud.sources import parse_uint, table, windows
from wslgpud.sources.cgroups import reclaim_file
from wslgpud.sources.memory import clean_cache_bytes
from wslgpud.words import TEMPLATES

log = logging.getLogger(__name__)

#: share of its memory that Windows shall have free: the end of the rule ``windows_memory_low``, and a little more
TARGET_RATIO = 0.12
#: cache that stays: the files that running programs have mapped and read all the time
KEPT_BYTES = 1 << 30
#: as much as WSL itself asks for at a time; less is not worth a slower program
STEP_BYTES = 256 << 20
#: the longest time for one attempt, and the shortest between two: WSL hands memory over in the background, and Windows
#: is queried every few seconds
MAX_SECONDS, EVERY_SECONDS = 30.0, 300.0
_DROP_CACHES = "/proc/sys/vm/drop_caches"

RETURNED = counter(
    "windows_returned_cache_bytes",
    "Page cache given back because Windows was short of memory (windows.return_cache); absent if that is off.",
    stored=False,
)
METRICS = (RETURNED,)


def is_short(forecasts: Iterable[Forecast], standing: Iterable[OpenIncident]) -> bool:
    """Return whether Windows' memory has a warning, by the forecast or by the rule about what is left."""
    return any(f.resource == WINDOWS and f.level >= Level.WARNING for f in forecasts) or any(
        one.incident.rule == WINDOWS_MEMORY_LOW and one.incident.level >= Level.WARNING for one in standing
    )


def wanted_bytes(seen: Snapshot) -> int:
    """Return how much cache to give back: as much as Windows lacks and Linux can spare; 0 where that is too little."""
    total, available = seen.value(windows.TOTAL), seen.value(windows.AVAILABLE)
    cache = clean_cache_bytes(seen)
    if not total or available is None or cache is None:
        return 0
    wanted = int(min(TARGET_RATIO * total - available, cache - KEPT_BYTES))
    return wanted if wanted >= STEP_BYTES else 0


class CacheReturner:
    """Reclaims in a thread of its own, as the kernel may take seconds."""

    def __init__(self, host: Host, write: Callable[[str, str], None] | None = None) -> None:
        """``write`` writes a text to one of the kernel's files, raising OSError; another one is for tests."""
        self._host, self._write = host, write or _write
        self._news: SimpleQueue[Event] = SimpleQueue()
        self._worker: threading.Thread | None = None
        self._next_mono = -math.inf
        self._returned_bytes = 0
        self._failure = ""

    def tick(self, seen: Snapshot, *, short: bool) -> Iterator[Event]:
        """Begin to reclaim if that is due; yield an event for memory reclaimed since the last tick."""
        wanted = wanted_bytes(seen) if short and seen.mono >= self._next_mono else 0
        if wanted:
            self._next_mono = seen.mono + EVERY_SECONDS
            self._worker = threading.Thread(target=self._run, args=(seen, wanted), name="return cache", daemon=True)
            self._worker.start()
        while not self._news.empty():
            yield self._news.get()

    def readings(self) -> Iterator[Reading]:
        """Yield the metrics; from any thread."""
        yield Reading(RETURNED, self._returned_bytes)

    def close(self, timeout_seconds: float) -> None:
        """Wait for an attempt under way; the kernel ends a step by itself."""
        if self._worker is not None:
            self._worker.join(timeout_seconds)

    def _run(self, seen: Snapshot, wanted: int) -> None:
        before = self._cached_bytes()
        try:
            self._reclaim(wanted)
        except OSError as error:
            if str(error) != self._failure:  # the same one would be logged every five minutes
                log.warning("page cache cannot be given back to Windows: %s; 'wslgpud doctor' says why", error)
            self._failure = str(error)
            return
        freed = before - self._cached_bytes()
        if freed <= 0:
            log.info("Windows is short of memory; page cache was to be given back, but it has not shrunk")
            return
        self._returned_bytes += freed
        left = {"available_bytes": seen.value(windows.AVAILABLE) or 0, "total_bytes": seen.value(windows.TOTAL) or 0}
        text = TEMPLATES["rule"]["cache_returned"]["headline"]
        self._news.put(Event("cache_returned", self._host.clock.wall(), text, {"freed_bytes": freed, **left}))

    def _reclaim(self, wanted: int) -> None:
        path, ends = reclaim_file(self._host), self._host.clock.mono() + MAX_SECONDS
        if not path:
            self._write(_DROP_CACHES, "1")
            return
        options, swapped = " swappiness=0", self._swapped_pages()
        while wanted > 0 and self._host.clock.mono() < ends:
            step = min(wanted, STEP_BYTES)
            try:
                self._write(path, f"{step}{options}")
            except OSError as error:
                if error.errno == errno.EAGAIN:  # there was less to reclaim
                    return
                if error.errno != errno.EINVAL or not options:
                    raise
                options = ""
                continue
            wanted -= step
            if not options and self._swapped_pages() > swapped:
                return

    def _cached_bytes(self) -> int:
        levels = table(self._host.read_optional("/proc/meminfo"))
        return ((parse_uint(levels.get("Cached")) or 0) - (parse_uint(levels.get("Shmem")) or 0)) << 10

    def _swapped_pages(self) -> int:
        return parse_uint(table(self._host.read_optional("/proc/vmstat")).get("pswpout")) or 0


def _write(path: str, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)
