"""Kills by systemd-oomd and earlyoom, which no kernel counter shows, from systemd's journal.

A child (``journalctl --follow``) waits for their messages, and runs only if one of the two does.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
from collections import Counter
from typing import IO, cast

from wslgpud.host import NoData, SourceError, unprotected
from wslgpud.metrics import counter
from wslgpud.model import Event, Reading, Sample
from wslgpud.security import safe_files
from wslgpud.security.redaction import named
from wslgpud.sources import Source
from wslgpud.words import cause, say, template
from wslgpud.words.units import one_line

#: how often to look for a daemon, and to restart a child that ended
DAEMON_CHECK_SECONDS = 60.0
#: lines per tick; the rest waits in the pipe
_MAX_BYTES = 64 << 10
_MAX_LINE = 16 << 10
_UNITS = "/sys/fs/cgroup/system.slice"
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
        units = [f"{daemon}.service" for daemon in _DAEMONS if self.host.exists(f"{_UNITS}/{daemon}.service")]
        if not units or self.host.recorded:
            raise NoData(say("neither systemd-oomd nor earlyoom runs"))
        self._kills.update(dict.fromkeys((unit.removesuffix(".service") for unit in units), 0))
        options = ["--follow", "--lines=0", "--quiet", "--output=json", "--output-fields=MESSAGE,_SYSTEMD_UNIT"]
        matches = " + ".join(f"_SYSTEMD_UNIT={unit}" for unit in units).split()
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
            data = os.read(cast("IO[bytes]", child.stdout).fileno(), _MAX_BYTES)
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
        with contextlib.suppress(ValueError):
            entry = safe_files.parsed(line)
            daemon, message = str(entry.get("_SYSTEMD_UNIT")).removesuffix(".service"), entry.get("MESSAGE")
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
