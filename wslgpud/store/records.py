"""What readers get: series, points and what else is kept."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from wslgpud.metrics import PREFIX
from wslgpud.model import Number
from wslgpud.words import MessageLike


class SeriesRef(NamedTuple):
    """One series of one host; ``labels`` are pairs in the order of the metric's declaration."""

    metric: str
    labels: tuple[tuple[str, str], ...] = ()
    host: str = ""

    def __str__(self) -> str:
        inside = ",".join(f'{k}="{v}"' for k, v in self.labels)
        return f"{self.metric}{{{inside}}}" if inside else self.metric


_SELECTOR = re.compile(r"([^{}]*)\{(.*)\}")
_LABEL = re.compile(r"\s*([a-z][a-z0-9_]*)\s*=\s*(\"[^\"]*\"|[^\",]*)\s*(?:,|$)")


def shell_pattern(pattern: str) -> Callable[[str], object]:
    """Return a test of whole texts, as ``fnmatch.fnmatchcase``, which would keep 32,768 patterns; ``re`` keeps 512.

    Patterns may be a stranger's: what a star has taken is not tried in other ways, so the time stays bounded.
    """
    return re.compile(fnmatch.translate(pattern)).match


def matcher(pattern: str) -> Callable[[SeriesRef], bool]:
    """Return a test of series against a pattern.

    ``gpu_*`` is a shell pattern for the metric; ``gpu_memory_used_bytes{gpu="0"}`` asks for labels too (those
    named; quotes may be left out, their values be patterns). Prometheus' prefix and suffix may be there.
    """
    bare = pattern.removeprefix(PREFIX)
    metric, wanted = bare, {}
    if selector := _SELECTOR.fullmatch(bare):
        metric, inside = selector[1] or "*", selector[2]
        wanted = {name: value.strip('"').strip() for name, value in _LABEL.findall(inside)}
        if _LABEL.sub("", inside).strip():
            return lambda _: False
    whole = shell_pattern(bare)
    names = [shell_pattern(name) for name in {metric, metric.removesuffix("_total")}]
    values = {label: shell_pattern(value) for label, value in wanted.items()}

    def matches(ref: SeriesRef) -> bool:
        if whole(str(ref)):
            return True
        labels = dict(ref.labels)
        return any(name(ref.metric) for name in names) and all(
            label in labels and value(labels[label]) for label, value in values.items()
        )

    return matches


class Point(NamedTuple):
    """One value of a series; ``wall`` is seconds since the epoch, exact to the millisecond."""

    wall: float
    value: Number


class Bucket(NamedTuple):
    """What is known of a series over one step of time that begins at ``wall``."""

    wall: float
    n: int
    low: Number
    high: Number
    total: Number
    last: Number

    @property
    def mean(self) -> float:
        """Mean of the values."""
        return self.total / self.n


#: made from one tuple: NamedTuple's own constructor runs as Python, which shows where there are thousands
new_point: Callable[[tuple[float, Number]], Point] = partial(tuple.__new__, Point)
new_bucket: Callable[[tuple[float, int, Number, Number, Number, Number]], Bucket] = partial(tuple.__new__, Bucket)


class Oldest(NamedTuple):
    """Since when each tier goes back, in seconds since the epoch; None: nothing is in it."""

    raw_wall: float | None = None
    minute_wall: float | None = None
    hour_wall: float | None = None


class ProcessPoint(NamedTuple):
    """One process as seen at ``wall``."""

    wall: float
    pid: int
    start_ticks: int
    name: str
    rss_bytes: int
    swap_bytes: int


class GpuProcessPoint(NamedTuple):
    """One program on a GPU as seen at ``wall``; ``used_bytes`` is None where the driver did not tell."""

    wall: float
    uuid: str
    pid: int
    name: str
    used_bytes: int | None


class Learned(NamedTuple):
    """What was found out about a subject, at ``wall``."""

    wall: float
    document: dict[str, Any]


class Delivery(NamedTuple):
    """Something handed to a channel; ``done_wall`` is None while it waits, ``error`` the last failure's."""

    id: int
    channel: str
    transition_id: int | None
    payload: dict[str, object]
    created_wall: float
    attempts: int = 0
    error: MessageLike = ""
    done_wall: float | None = None


class DaemonRun(NamedTuple):
    """One life of the daemon; ``stopped_wall`` of an unclean end is when it last wrote, as far as known."""

    started_wall: float
    stopped_wall: float | None
    clean: bool
    version: str
    boot_id: str
