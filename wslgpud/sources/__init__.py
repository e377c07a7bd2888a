"""Sources: each file declares its metrics and reads them. They never import one another.

This module holds what they share; in the kernel's text files, anything but a plain number is unknown.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import ClassVar

from wslgpud.config import Config
from wslgpud.host import Host
from wslgpud.metrics import MetricSpec
from wslgpud.model import Number, Reading, Sample

#: Longer numbers are garbage or mean "unlimited", and would not fit the database.
_MAX_DIGITS = 18
#: limits of a number, and of a line of a page of metrics
_MAX_DECIMAL, _MAX_LINE = 40, 4000
_SAMPLE = re.compile(r"([\w:]{1,100})(?:\{(.*)\})? (\S+)(?: \d+)?")


class Source(ABC):
    """One source of readings.

    The sources of a ``lane`` are read one after another, and a lane that hangs leaves the others alone: another thread
    reads them. Whatever may hang (a driver, 9p, a command) has its own lane.
    """

    name: ClassVar[str]
    metrics: ClassVar[tuple[MetricSpec, ...]] = ()
    lane: ClassVar[str] = "kernel"
    #: read at most this often; 0 means at every tick (a source may take it from the configuration)
    period_seconds: float = 0.0
    #: time limit of a read; beyond it the source is late, and its previous values are not repeated
    deadline_seconds: ClassVar[float] = 0.5
    #: cheap, and able to end a training within seconds: read at every tick; the others every few seconds while all is
    #: calm, and not at the additional ticks while headroom shrinks
    fast: ClassVar[bool] = False
    #: whether this read need only return what can end a training, and may repeat the rest; set by the sampler
    brief: bool = False

    def __init__(self, host: Host, config: Config) -> None:
        self.host = host
        self.config = config
        self._prepare()

    def _prepare(self) -> None:  # noqa: B027 - most sources remember nothing
        """Set up the source's state; nothing is read yet."""

    @abstractmethod
    def read(self) -> Sample:
        """Return the current readings.

        Raises:
            NoData: the machine does not have it; no fault.
            SourceError: it exists and could not be read.
        """

    def own(self) -> tuple[Reading, ...]:
        """Return readings of the source's own state, valid also while ``read`` fails or hangs.

        Called from any thread; must not block. Only metrics that are not stored.
        """
        return ()

    def close(self) -> None:  # noqa: B027 - most sources hold nothing
        """Release the source's resources (a child process, a file handle)."""


def parse_uint(word: str | None) -> int | None:
    """Return ``word`` as a count, or None when it is anything but a few decimal digits."""
    # int() would also take "-1", "1_000" and digits of other scripts.
    if word is None or len(word) > _MAX_DIGITS or not word.isascii() or not word.isdigit():
        return None
    return int(word)


def decimal(word: str | None) -> float | None:
    """Return ``word`` as a finite number that is not negative, or None."""
    if word is None or len(word) > _MAX_DECIMAL:
        return None
    try:
        value = float(word)
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None


def table(text: str) -> dict[str, str]:
    """Return a file of ``name value`` lines as a dictionary (colons and kB of /proc/meminfo fall away)."""
    # 12 us for the 190 lines of /proc/vmstat, against 45 us line by line. A broken line shifts names into the place of
    # values, where ``parse_uint`` refuses them.
    words = text.replace(" kB", "").replace(":", "").split()
    return dict(zip(words[::2], words[1::2], strict=False))


def readings(known: Iterable[tuple[MetricSpec, Number | None]], *labels: str) -> list[Reading]:
    """Return readings of the known values, all with the same labels."""
    return [Reading(spec, value, labels) for spec, value in known if value is not None]


def page_samples(page: str, prefixes: str | tuple[str, ...]) -> Iterator[tuple[str, str, float]]:
    """Yield name, text of the labels and value of each sample of a page of metrics in Prometheus' text format.

    Only of names that begin with one of the prefixes, and only finite values that are not negative.
    """
    for line in page.splitlines():
        match = _SAMPLE.fullmatch(line) if line.startswith(prefixes) and len(line) <= _MAX_LINE else None
        if match and (value := decimal(match[3])) is not None:
            yield match[1], match[2] or "", value
