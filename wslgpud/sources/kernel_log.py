"""What the kernel says: processes killed for lack of memory, errors of WSL's GPU driver and of NVIDIA's."""

from __future__ import annotations

import errno
import logging
import os
import stat
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import ClassVar

from wslgpud.config import Config
from wslgpud.event import Event
from wslgpud.host import Host, NoData, SourceError
from wslgpud.metrics import MetricSpec
from wslgpud.model import Reading, Sample
from wslgpud.sources import Source
from wslgpud.sources.kernel_lines import DxgError, Line, OomKill, Story, Xid, parse_line
from wslgpud.words import failure, say

log = logging.getLogger(__name__)

_PATH = "/dev/kmsg"
_RECORD_BYTES = 8192  # the kernel refuses to hand out a record in pieces
_MOST_RECORDS = 2000  # a tick; the rest waits in the kernel's ring buffer
_MOST_LABELS = 32

OOM_KILLS = MetricSpec(
    "kernel_oom_kills", "counter", "",
    "OOM kills in the kernel log: scope global is the whole machine, cgroup is a limit "
    "(a container's, or WSL's own on everything of the user).", ("scope",),
)  # fmt: skip
DXG_ERRORS = MetricSpec(
    "dxg_errors", "counter", "",
    "Errors of WSL's GPU driver by function and error; make_resident with ENOMEM is VRAM running out "
    "although some looks free.", ("function", "error"),
)  # fmt: skip
DXG_NOTICES = MetricSpec(
    "dxg_notices", "counter", "",
    "Lines of WSL's GPU driver that look like errors and are usually harmless; a burst while a program "
    "hangs is not.",
)  # fmt: skip
XIDS = MetricSpec(
    "nvidia_xid_errors", "counter", "",
    "Errors of NVIDIA's Linux driver by number; https://docs.nvidia.com/deploy/xid-errors/ has their "
    "meanings.",
    ("xid",),
)  # fmt: skip
LOST = MetricSpec(
    "kernel_log_lost_records", "counter", "", "Kernel messages overwritten before they could be read."
)  # fmt: skip


class KernelLogSource(Source):
    """Reads /dev/kmsg without waiting: first what is left of this boot, then what is new.

    Events of lines older than our first look carry ``past`` = 1, and each carries the kernel's ``sequence``
    number, which with the boot id tells whether it has been seen before.
    """

    name: ClassVar[str] = "kernel_log"
    metrics: ClassVar[tuple[MetricSpec, ...]] = (OOM_KILLS, DXG_ERRORS, DXG_NOTICES, XIDS, LOST)

    def __init__(self, host: Host, config: Config) -> None:
        """Open nothing yet."""
        super().__init__(host, config)
        self._descriptor: int | None = None
        self._caught_up = False
        self._opened_mono = 0.0
        self._replayed = False
        self._said = False
        self._story = Story()
        self._lost = self._notices = 0
        self._kills: Counter[str] = Counter()
        self._dxg: Counter[tuple[str, str]] = Counter()
        self._xids: Counter[str] = Counter()

    def read(self) -> Sample:
        """Return the counts since boot and the events since the last read.

        Raises:
            NoData: there is no kernel log (a container), or we may not read it.
            SourceError: it cannot be read.
        """
        events = []
        for record in self._records():
            line = parse_line(record)
            if line is not None and (event := self._note(line)) is not None:
                events.append(event)
        return Sample(tuple(self._readings()), events=tuple(events))

    def close(self) -> None:
        """Close the kernel log."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _records(self) -> Iterator[str]:
        if not self.host.live and not _is_device(self.host.path(_PATH)):
            if not self._replayed:
                self._replayed = True
                self._opened_mono = self.host.clock.mono()
                yield from self.host.read(_PATH).splitlines()
            return
        descriptor = self._open()
        for _ in range(_MOST_RECORDS):
            try:
                yield os.read(descriptor, _RECORD_BYTES).decode("utf-8", "replace")
            except BlockingIOError:  # how the kernel says that there is no more
                self._caught_up = True
                return
            except BrokenPipeError:  # overwritten before we came; the next read goes on behind the gap
                self._lost += 1
            except OSError as error:
                raise SourceError(say("cannot read {path}: {why}", path=_PATH, why=failure(error))) from error

    def _open(self) -> int:
        if self._descriptor is None:
            try:
                self._descriptor = os.open(self.host.path(_PATH), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
                self._opened_mono = self.host.clock.mono()
            except FileNotFoundError as error:
                raise NoData(say("there is no {path}", path=_PATH)) from error
            except PermissionError as error:
                # So it is for the users of most distributions: worth knowing, and no fault.
                remedy = say(
                    "no permission to read {path}, so OOM kills go unseen: run as root, give the service "
                    "AmbientCapabilities=CAP_SYSLOG, or run 'sudo sysctl kernel.dmesg_restrict=0'",
                    path=_PATH,
                )
                if not self._said:
                    self._said = True
                    log.info("%s", remedy)
                raise NoData(remedy) from error
            except OSError as error:
                # Containers often have the file and no device behind it.
                if error.errno in (errno.ENXIO, errno.ENODEV):
                    raise NoData(say("{path} has no device behind it", path=_PATH)) from error
                raise SourceError(say("cannot open {path}: {why}", path=_PATH, why=failure(error))) from error
        return self._descriptor

    def _note(self, line: Line) -> Event | None:
        """Count what the line says; return it as an event when somebody should know."""
        found = self._story.add(line.text)
        wall = self.host.clock.wall()
        if not self._caught_up:
            # The log's clock is set by nobody and drifts by seconds in a week, so for what is new we
            # rather take our own.
            wall -= self.host.clock.mono() - line.seconds
        fields: dict[str, str | int | float] = {
            "sequence": line.sequence,
            # A long log is read over several ticks, and what happens meanwhile is news.
            "past": int(not self._caught_up and line.seconds <= self._opened_mono),
        }  # fmt: skip
        if isinstance(found, OomKill):
            self._kills[found.scope] += 1
            fields |= found.fields()
            return Event("oom_kill", wall, found.text, fields)
        if isinstance(found, Xid):
            self._xids[_bounded(found.number, self._xids)] += 1
            fields |= {"xid": found.number, "device": found.device}
            return Event("nvidia_xid", wall, line.text, fields)
        if isinstance(found, DxgError):
            if found.benign:
                self._notices += 1
                return None
            full = len(self._dxg) >= _MOST_LABELS and (found.function, found.error) not in self._dxg
            self._dxg[("other", "other") if full else (found.function, found.error)] += 1
            fields |= {"function": found.function, "error": found.error}
            return Event("dxg_error", wall, line.text, fields)
        return None

    def _readings(self) -> Iterator[Reading]:
        for scope in ("global", "cgroup"):
            yield Reading(OOM_KILLS, self._kills[scope], (scope,))
        for (function, error), count in self._dxg.items():
            yield Reading(DXG_ERRORS, count, (function, error))
        yield Reading(DXG_NOTICES, self._notices)
        for xid, count in self._xids.items():
            yield Reading(XIDS, count, (xid,))
        yield Reading(LOST, self._lost)


def _is_device(path: str) -> bool:
    """Tell a kernel log from a recording of one: reading the former to its end would wait for ever."""
    try:
        return stat.S_ISCHR(os.stat(path).st_mode)  # noqa: PTH116 - a path of the host, not of ours
    except OSError:
        return False


def _bounded(label: str, known: Iterable[str]) -> str:
    known = set(known)
    return label if label in known or len(known) < _MOST_LABELS else "other"
