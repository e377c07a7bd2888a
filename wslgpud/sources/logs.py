"""Events that only logs tell: the kernel's (``kernel_lines`` says what its lines mean), and that of OOM daemons.

The kernel log has OOM kills, errors of WSL's GPU driver, of NVIDIA's, and of disks. Kills by systemd-oomd and earlyoom
are in systemd's journal, and no kernel counter shows them: a child (``journalctl --follow``) waits for their messages,
and runs only if one of the two does.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from typing import IO, cast

from wslgpud.host import NoData, SourceError, unprotected
from wslgpud.metrics import counter
from wslgpud.model import Event, Reading, Sample
from wslgpud.security import safe_files
from wslgpud.security.redaction import named
from wslgpud.sources import Source
from wslgpud.sources.kernel_lines import Line, LineParser, parse_line
from wslgpud.words import cause, say, template
from wslgpud.words.units import one_line

_PATH = "/dev/kmsg"
_RECORD_BYTES = 8192  # the kernel does not return partial records
_MAX_RECORDS = 2000  # per tick; the rest waits in the kernel's ring buffer
_MAX_LABELS = 32

OOM_KILLS = counter(
    "kernel_oom_kills",
    "OOM kills in the kernel log: scope global is the whole machine, cgroup is a limit (a container's, or WSL's own "
    "on all user processes).",
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
UNCONNECTED = counter(
    "vmbus_allocation_failures",
    "Connections to Windows for which the kernel had no contiguous memory: new WSL sessions hang.",
)
DISK_ERRORS = counter(
    "kernel_disk_errors",
    "Lines of the kernel log that say that a disk or its file system fails, by device; hv_storvsc is WSL's bridge to "
    "the virtual disks in Windows.",
    "device",
)
LOST = counter("kernel_log_lost_records", "Kernel messages overwritten before they could be read.")
_COUNTERS = {
    "oom_kill": OOM_KILLS,
    "dxg_error": DXG_ERRORS,
    "dxg_notice": DXG_NOTICES,
    "nvidia_xid": XIDS,
    "vmbus_starved": UNCONNECTED,
    "disk_error": DISK_ERRORS,
}
#: A failing disk floods the log (https://github.com/microsoft/WSL/issues/9173), and so does a program that tries again
#: and again what the card refuses: of each error, one line in this time is an event.
_QUIET_SECONDS = {"disk_error": 60.0, "dxg_error": 1.0, "nvidia_xid": 1.0}


class KernelLogSource(Source):
    """Reads /dev/kmsg without blocking: first the rest of this boot's log, then new records.

    Events older than our first read have ``past`` = 1, and each has the kernel's ``sequence`` number, which with the
    boot id shows whether it has been seen before.
    """

    name = "kernel_log"
    metrics = (OOM_KILLS, DXG_ERRORS, DXG_NOTICES, XIDS, UNCONNECTED, DISK_ERRORS, LOST)

    def _prepare(self) -> None:
        self._descriptor: int | None = None
        self.caught_up = False
        self._opened_mono = 0.0
        self._replayed = False
        self._parser = LineParser()
        self._lost = 0
        self._told: dict[tuple[str, tuple[str, ...], object], float] = {}
        self._counts: dict[str, Counter[tuple[str, ...]]] = {kind: Counter() for kind in _COUNTERS}
        self._counts["oom_kill"] = Counter({("global",): 0, ("cgroup",): 0})
        self._counts["dxg_notice"], self._counts["vmbus_starved"] = Counter({(): 0}), Counter({(): 0})

    def read(self) -> Sample:
        """Return the counts since boot and the events since the last read; NoData where we have no read permission."""
        lines = filter(None, map(parse_line, self.records()))
        events = tuple(filter(None, map(self._note, lines)))
        return Sample(tuple(self._readings()), events=events)

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def records(self) -> Iterator[str]:
        """Yield the records since the last read, a few thousand at most."""
        if not self.host.live:  # a recording is a plain file
            if not self._replayed:
                self._replayed = True
                self._opened_mono = self.host.clock.mono()
                yield from self.host.read(_PATH).splitlines()
            return
        if self._descriptor is None:
            self._descriptor = self._open()
        for number in range(_MAX_RECORDS):
            try:
                yield os.read(self._descriptor, _RECORD_BYTES).decode("utf-8", "replace")
            except BlockingIOError:  # end of the log for now
                self.caught_up = True
                return
            except BrokenPipeError:  # overwritten before we read it; the next read continues after the gap
                self._lost += 1
            except OSError as error:
                if number:  # report what came before; this record waits for the next read
                    return
                raise SourceError("cannot read {path}: {why}", path=_PATH, why=cause(error)) from error

    def _open(self) -> int:
        try:
            descriptor = os.open(self.host.path(_PATH), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError as error:
            raise NoData("there is no {path}", path=_PATH) from error
        except PermissionError as error:
            # The default for users of most distributions: worth knowing, but no fault.
            remedy = say(
                "no permission to read {path}, so OOM kills go unseen: run as root, give the service "
                "AmbientCapabilities=CAP_SYSLOG, or run 'sudo sysctl kernel.dmesg_restrict=0'",
                path=_PATH,
            )
            raise NoData(remedy) from error
        except OSError as error:
            # Containers often have the file without the device.
            if error.errno in (errno.ENXIO, errno.ENODEV):
                raise NoData("{path} has no device behind it", path=_PATH) from error
            raise SourceError("cannot open {path}: {why}", path=_PATH, why=cause(error)) from error
        self._opened_mono = self.host.clock.mono()
        return descriptor

    def _note(self, line: Line) -> Event | None:
        """Count the line's event; return it if it should be reported."""
        found = self._parser.add(line.text)
        if found is None:
            return None
        counts = self._counts[found.kind]
        known = found.labels in counts or len(counts) < _MAX_LABELS
        labels = found.labels if known else ("other",) * len(found.labels)
        counts[labels] += 1
        if found.kind == "dxg_notice":
            return None
        if quiet_seconds := _QUIET_SECONDS.get(found.kind):
            error = (found.kind, labels, found.fields.get("device") if known else None)
            if line.seconds - self._told.get(error, -math.inf) < quiet_seconds:
                return None
            self._told[error] = line.seconds
        wall = self.host.clock.wall()
        if not self.caught_up:
            # The log's clock is never corrected and drifts by seconds per week, so new records get our own time.
            wall -= self.host.clock.mono() - line.seconds
        # A long log is read over several ticks; records written meanwhile are new.
        past = int(not self.caught_up and line.seconds <= self._opened_mono)
        return Event(
            found.kind, wall, found.text or line.text, {"sequence": line.sequence, "past": past, **found.fields}
        )

    def _readings(self) -> Iterator[Reading]:
        for kind, spec in _COUNTERS.items():
            for labels, count in self._counts[kind].items():
                yield Reading(spec, count, labels)
        yield Reading(LOST, self._lost)


#: how often to look for a daemon, and to restart a child that ended
DAEMON_CHECK_SECONDS = 60.0
#: lines per tick; the rest waits in the pipe
_MAX_BYTES_A_TICK = 64 << 10
_MAX_LINE = 16 << 10
#: where systemd keeps its units: with version 2 of cgroups, and with both versions, as in older releases of WSL
_UNITS = ("/sys/fs/cgroup/system.slice", "/sys/fs/cgroup/systemd/system.slice")
#: Runs a program until our end of standard input is closed: it must not outlive us, waiting for the next kill. Not
#: setpriv(1), which needs capset(2), a call that the service may not make.
_UNTIL_WE_END = '"$@" & exec >&-; read -r _; kill "$!"'
_KILLED = template("{daemon} killed {victim}: {reason}")
#: per daemon, the pattern of victim and reason: systemd 249 and newer, which since 260 logs the victim when marking it
#: and kills a moment later (https://github.com/systemd/systemd/blob/main/src/oom/oomd-manager.c), and earlyoom 1.3 to
#: 1.9 (https://github.com/rfjakob/earlyoom/blob/master/kill.c)
_DAEMONS = {
    "systemd-oomd": re.compile(r"(?:Killed|Marked) (?P<victim>/\S{1,512})(?: for killing)? due to (?P<reason>.*)"),
    "earlyoom": re.compile(
        r"sending SIG(?:TERM|KILL) to process (?P<pid>\d{1,10}) uid \d{1,10} "
        r'"(?P<victim>.*?)": (?P<reason>(?:badness|oom_score) .*)'
    ),
}

KILLS = counter("oom_daemon_kills", "Kills by systemd-oomd or earlyoom before memory ran out.", "daemon")


class OomDaemonSource(Source):
    """Follows new messages of the daemons; journald itself vouches for their sender (``_SYSTEMD_UNIT``)."""

    name = "oom_daemons"
    # Starting a program may block on memory, and RAM must not wait for that.
    lane = "oom_daemons"
    metrics = (KILLS,)

    def _prepare(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None
        self._rest = b""
        self._kills: Counter[str] = Counter()

    def read(self) -> Sample:
        """Return the kills since the last read; NoData where neither daemon runs."""
        lines = self._lines(self._child or self._start())
        events = [event for line in lines if (event := self._event(line)) is not None]
        return Sample(tuple(Reading(KILLS, n, (daemon,)) for daemon, n in self._kills.items()), events=tuple(events))

    def close(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            cast("IO[bytes]", child.stdin).close()
            child.wait()
            cast("IO[bytes]", child.stdout).close()

    def _start(self) -> subprocess.Popen[bytes]:
        self.period_seconds = DAEMON_CHECK_SECONDS
        daemons = [name for name in _DAEMONS if any(self.host.exists(f"{units}/{name}.service") for units in _UNITS)]
        if not daemons or self.host.recorded:
            raise NoData(say("neither systemd-oomd nor earlyoom runs"))
        self._kills.update(dict.fromkeys(daemons, 0))
        options = ["--follow", "--lines=0", "--quiet", "--output=json", "--output-fields=MESSAGE,_SYSTEMD_UNIT"]
        matches = " + ".join(f"_SYSTEMD_UNIT={name}.service" for name in daemons).split()
        command = unprotected(["/bin/sh", "-c", _UNTIL_WE_END, "sh", "journalctl", *options, *matches])
        pipe, null = subprocess.PIPE, subprocess.DEVNULL
        try:
            self._child = started = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=null, cwd="/")
        except OSError as error:
            raise SourceError("cannot start {program}: {why}", program="journalctl", why=cause(error)) from error
        os.set_blocking(cast("IO[bytes]", started.stdout).fileno(), False)
        self._rest, self.period_seconds = b"", 0.0
        return started

    def _lines(self, child: subprocess.Popen[bytes]) -> list[bytes]:
        try:
            data = os.read(cast("IO[bytes]", child.stdout).fileno(), _MAX_BYTES_A_TICK)
        except BlockingIOError:
            return []
        if not data:
            self.close()
            self.period_seconds = DAEMON_CHECK_SECONDS
            raise SourceError(say("journalctl ended: may this user read the journal?"))
        *lines, self._rest = (self._rest + data).split(b"\n")
        self._rest = self._rest[:_MAX_LINE]
        return lines

    def _event(self, line: bytes) -> Event | None:
        with contextlib.suppress(ValueError, TypeError):
            entry = safe_files.parsed(line)
            daemon, message = str(entry.get("_SYSTEMD_UNIT")).removesuffix(".service"), entry.get("MESSAGE")
            if isinstance(message, list):  # bytes, where a victim's name has characters that cannot be printed
                message = bytes(message).decode("utf-8", "replace")
            pattern = _DAEMONS.get(daemon)
            match = pattern.fullmatch(message) if pattern is not None and isinstance(message, str) else None
            if match is not None:
                self._kills[daemon] += 1
                fields: dict[str, str | int | float] = {"daemon": daemon, "victim": named(match["victim"])}
                fields["reason"] = one_line(match["reason"])
                if pid := match.groupdict().get("pid"):
                    fields["pid"] = int(pid)
                return Event("oom_daemon_kill", self.host.clock.wall(), _KILLED, fields)
        return None
