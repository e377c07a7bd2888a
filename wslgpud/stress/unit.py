"""Stress runs in a unit of their own: systemd listens on a socket, and starts the unit for a connection.

The daemon is small, protected from the OOM killer, and may neither start services nor switch users; torch is a big
program in a user's home folder. A connection carries a request, one line, and the answer, up to its end. Only the
socket's owner may connect, the daemon, whose word decides only which card is tested, and how.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from wslgpud.host import Clock
from wslgpud.model import GpuSample, StressResult, StressVerdict
from wslgpud.security import safe_files
from wslgpud.security.shapes import MalformedError, message, of, record, uint
from wslgpud.store.records import MAX_RESULT_BYTES, stress_from_json, stress_to_json
from wslgpud.stress.stress_run import MODES, Mode
from wslgpud.words import MessageError, MessageLike, cause, from_json, say, to_json

#: names the socket where there is one; set by wslgpud.service
VARIABLE = "WSLGPUD_STRESS_SOCKET"
MAX_REQUEST_BYTES = 4096
#: time for systemd to start the unit, Python and NVML, and to stop them
AROUND_SECONDS = 120.0
LOOK_SECONDS = 0.5
_REQUEST = record({"gpu": uint, "mode": of(str, MODES.__contains__)})


@dataclass
class Asker:
    """The daemon's side; used like ``stress_run.Runner``."""

    clock: Clock
    path: str
    patience_seconds: float  # for one whole run
    # Ends the wait; the run itself is ended by systemd, which stops the unit with the daemon (PartOf=).
    stop: threading.Event = field(default_factory=threading.Event)

    def run(self, sample: GpuSample, mode: Mode) -> StressResult:
        asked_wall = self.clock.wall()

        def without(verdict: StressVerdict, reason: MessageLike) -> StressResult:
            return StressResult(asked_wall, sample.uuid, sample.index, sample.name, verdict, reason)

        try:
            answer = self._exchange({"gpu": sample.index, "mode": mode})
            if self.stop.is_set():
                return without("left", say("wslgpud is shutting down"))
            if answer:
                return _result(answer)
        except (OSError, ValueError, MessageError) as error:
            return without("failed", say("cannot ask wslgpud-stress.socket: {why}", why=cause(error)))
        return without("failed", say("the unit of the test gave no answer: see journalctl -u 'wslgpud-stress@*'"))

    def _exchange(self, request: dict[str, object]) -> bytes:
        """Return the answer; empty without a complete one in time."""
        asked, answer = self.clock.mono(), b""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(LOOK_SECONDS)
            connection.connect(self.path)
            connection.sendall(json.dumps(request).encode() + b"\n")
            while self.clock.mono() - asked < self.patience_seconds and not self.stop.is_set():
                with suppress(TimeoutError):
                    if not (part := connection.recv(1 << 16)):
                        return answer
                    answer += part
                if len(answer) > MAX_RESULT_BYTES:
                    raise MalformedError("the answer is too large")
        return b""


def _result(answer: bytes) -> StressResult:
    document = safe_files.parsed(answer)
    if "fault" in document:
        if not message(document["fault"]):
            raise MalformedError("that is no answer")
        raise MessageError(from_json(document["fault"]))
    return stress_from_json(document)


def answer(run: Callable[[int, Mode], StressResult]) -> None:
    """The unit's side, whose standard input and output are the connection: do the run that is asked for.

    Raises MessageError: nothing is.
    """
    try:
        gpu, mode = _request(sys.stdin.buffer.readline(MAX_REQUEST_BYTES))
        document = stress_to_json(run(gpu, mode))
    except Exception as error:
        sys.stdout.write(json.dumps({"fault": to_json(cause(error))}))
        raise
    sys.stdout.write(json.dumps(document))


def _request(line: bytes) -> tuple[int, Mode]:
    with suppress(ValueError):
        document = safe_files.parsed(line)
        if _REQUEST(document):
            return document["gpu"], document["mode"]
    raise MessageError(say("this is no request for a stress run"))
