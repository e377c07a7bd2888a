"""What the kernel says: processes killed for lack of memory, errors of WSL's GPU driver and of NVIDIA's."""

from __future__ import annotations

import errno
import logging
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

from wslgpud.event import Event
from wslgpud.host import NoData, SourceError
from wslgpud.metrics import counter
from wslgpud.model import Reading, Sample
from wslgpud.sources import Source
from wslgpud.sources.kernel_lines import DxgError, Line, OomKill, Story, Xid, parse_line
from wslgpud.words import failure, say

log = logging.getLogger(__name__)

_PATH = "/dev/kmsg"
_RECORD_BYTES = 8192  # the kernel refuses to hand out a record in pieces
_MOST_RECORDS = 2000  # a tick; the rest waits in the kernel's ring buffer
_MOST_LABELS = 32
_Label = TypeVar("_Label")

OOM_KILLS = counter(
    "kernel_oom_kills",
    "OOM kills in the kernel log: scope global is the whole machine, cgroup is a limit "
    "(a container's, or WSL's own on everything of the user).",
    "scope",
)
DXG_ERRORS = counter(
    "dxg_errors",
    "Errors of WSL's GPU driver by function and error; make_resident with ENOMEM is VRAM running out "
    "although some looks free.",
    "function",
    "error",
)
DXG_NOTICES = counter(
    "dxg_notices",
    "Lines of WSL's GPU driver that look like errors and are usually harmless; a burst while a program hangs is not.",
)
XIDS = counter(
    "nvidia_xid_errors",
    "Errors of NVIDIA's Linux driver by number; https://docs.nvidia.com/deploy/xid-errors/ has their meanings.",
    "xid",
)
LOST = counter("kernel_log_lost_records", "Kernel messages overwritten before they could be read.")


class KernelLogSource(Source):
    """Reads /dev/kmsg without waiting: first what is left of this boot, then what is new.

    Events of lines older than our first look carry ``past`` = 1, and each carries the kernel's ``sequence``
    number, which with the boot id tells whether it has been seen before.
    """

    name = "kernel_log"
    metrics = (OOM_KILLS, DXG_ERRORS, DXG_NOTICES, XIDS, LOST)

    def _prepare(self) -> None:
        self._descriptor: int | None = None
        self.caught_up = False
        self._opened_mono = 0.0
        self._replayed = False
        self._said = False
        self._story = Story()
        self._lost = self._notices = 0
        self._kills: Counter[str] = Counter()
        self._dxg: Counter[tuple[str, str]] = Counter()
        self._xids: Counter[str] = Counter()

    def read(self) -> Sample:
        """Return the counts since boot and the events since the last read; NoData where we may not read the log."""
        events = []
        for record in self.records():
            line = parse_line(record)
            if line is not None and (event := self._note(line)) is not None:
                events.append(event)
        return Sample(tuple(self._readings()), events=tuple(events))

    def close(self) -> None:
        """Close the kernel log."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def records(self) -> Iterator[str]:
        """Yield what the log holds beyond the last look, some thousand records at most."""
        # A recording has no device; reading a real log to its end would wait for ever.
        if not self.host.live and not Path(self.host.path(_PATH)).is_char_device():
            if not self._replayed:
                self._replayed = True
                self._opened_mono = self.host.clock.mono()
                yield from self.host.read(_PATH).splitlines()
            return
        if self._descriptor is None:
            self._descriptor = self._open()
        for _ in range(_MOST_RECORDS):
            try:
                yield os.read(self._descriptor, _RECORD_BYTES).decode("utf-8", "replace")
            except BlockingIOError:  # how the kernel says that there is no more
                self.caught_up = True
                return
            except BrokenPipeError:  # overwritten before we came; the next read goes on behind the gap
                self._lost += 1
            except OSError as error:
                raise SourceError("cannot read {path}: {why}", path=_PATH, why=failure(error)) from error

    def _open(self) -> int:
        try:
            descriptor = os.open(self.host.path(_PATH), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError as error:
            raise NoData("there is no {path}", path=_PATH) from error
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
                raise NoData("{path} has no device behind it", path=_PATH) from error
            raise SourceError("cannot open {path}: {why}", path=_PATH, why=failure(error)) from error
        self._opened_mono = self.host.clock.mono()
        return descriptor

    def _note(self, line: Line) -> Event | None:
        """Count what the line says; return it as an event when somebody should know."""
        found = self._story.add(line.text)
        wall = self.host.clock.wall()
        if not self.caught_up:
            # The log's clock is set by nobody and drifts by seconds in a week, so for what is new we
            # rather take our own.
            wall -= self.host.clock.mono() - line.seconds
        fields: dict[str, str | int | float] = {
            "sequence": line.sequence,
            # A long log is read over several ticks, and what happens meanwhile is news.
            "past": int(not self.caught_up and line.seconds <= self._opened_mono),
        }
        if isinstance(found, OomKill):
            self._kills[found.scope] += 1
            return Event("oom_kill", wall, found.text, {**fields, **found.fields()})
        if isinstance(found, Xid):
            self._xids[_bounded(found.number, self._xids, "other")] += 1
            return Event("nvidia_xid", wall, line.text, {**fields, "xid": found.number, "device": found.device})
        if isinstance(found, DxgError) and not found.benign:
            self._dxg[_bounded((found.function, found.error), self._dxg, ("other", "other"))] += 1
            return Event("dxg_error", wall, line.text, {**fields, **found._asdict()})
        self._notices += found is not None
        return None

    def _readings(self) -> Iterator[Reading]:
        for scope in ("global", "cgroup"):
            yield Reading(OOM_KILLS, self._kills[scope], (scope,))
        for call, count in self._dxg.items():
            yield Reading(DXG_ERRORS, count, call)
        yield Reading(DXG_NOTICES, self._notices)
        for xid, count in self._xids.items():
            yield Reading(XIDS, count, (xid,))
        yield Reading(LOST, self._lost)


def _bounded(label: _Label, known: Counter[_Label], other: _Label) -> _Label:
    return label if label in known or len(known) < _MOST_LABELS else other
