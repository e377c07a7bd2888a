"""Stress runs outside the daemon: on a user's command, or in a unit of their own, where systemd listens on a socket.

The daemon is small, protected from the OOM killer, and may neither start services nor switch users; torch is a big
program in a user's home folder. A connection to the unit's socket carries a request, one line, and the answer, up to
its end. Only the socket's owner may connect, the daemon, whose word decides only which card is tested, and how.
"""

from __future__ import annotations

import json
import math
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from wslgpud.client import DaemonClient, Unanswered
from wslgpud.config import Config
from wslgpud.host import Clock, Host, NoData, SourceError
from wslgpud.model import GpuSample, StressResult, StressVerdict
from wslgpud.security import safe_files
from wslgpud.security.shapes import MalformedError, message, of, record, uint
from wslgpud.sources.gpu import GpuSource
from wslgpud.store import Reader, Store, StoreError
from wslgpud.store.records import MAX_RESULT_BYTES, stress_from_json, stress_to_json
from wslgpud.stress.stress_run import MODES, Mode, Runner
from wslgpud.stress.telemetry import Recent
from wslgpud.words import MessageError, MessageLike, cause, clauses, from_json, say, to_json

#: names the socket where there is one; set by wslgpud.service
VARIABLE = "WSLGPUD_STRESS_SOCKET"
MAX_REQUEST_BYTES = 4096
#: time for systemd to start the unit, Python and NVML, and to stop them
AROUND_SECONDS = 120.0
#: between two looks: at the connection, and at the GPU
LOOK_SECONDS = 0.5
_REQUEST = record({"gpu": uint, "mode": of(str, MODES.__contains__)})


class NoSuchGpuError(MessageError):
    """The machine has no GPU of that number; the message names those that it has."""


def set_by_signals(stop: threading.Event) -> None:
    """Let signals set an event from a thread: the interrupted one may hold the event's lock while it waits."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: threading.Thread(target=stop.set).start())


class ByHand:
    """Samples the GPU itself, in a thread, as the daemon does between runs; for one run."""

    def __init__(
        self, host: Host, config: Config, folder: Path, database: str, max_settle_seconds: float = math.inf
    ) -> None:
        """Start nothing yet; ``database`` is where earlier runs are."""
        settle = min(config.stress.settle_seconds, max_settle_seconds)
        self._settings = replace(config.stress, settle_seconds=settle)
        self._host, self._folder, self._database = host, folder, database
        self._recent, self._done = Recent(settle), threading.Event()
        self._source = GpuSource(host, config)
        self._watcher = threading.Thread(target=self._go_on_looking, daemon=True)

    def run(self, gpu: int, mode: Mode, show: Callable[[Mapping[str, Any]], None] = lambda _line: None) -> StressResult:
        """Test a card; ``show`` takes the worker's lines. SIGINT and SIGTERM end the run. Raises NoSuchGpuError."""
        try:
            sample = self._gpu(gpu)
            safe_files.make_folder(self._folder)
            ways = self._recent, self._earlier
            runner = Runner(self._host, self._settings, self._folder, *ways, look=self._look_anew)
            set_by_signals(runner.stop)
            self._watcher.start()
            return runner.run(sample, mode, show)
        finally:
            self._done.set()
            if self._watcher.is_alive():
                self._watcher.join(2)
            self._source.close()

    def _look(self) -> None:
        sample = self._source.read()
        self._recent.add(self._host.clock.mono(), sample.gpus or (), lambda: sample.readings)

    def _go_on_looking(self) -> None:
        while not self._done.wait(LOOK_SECONDS):
            with suppress(NoData, SourceError):
                self._look()

    def _look_anew(self) -> None:
        self._done.set()
        self._watcher.join()
        self._source.ask_everything()
        with suppress(NoData, SourceError):
            self._look()

    def _gpu(self, index: int) -> GpuSample:
        self._look()
        known = {sample.index: sample for sample in self._recent.gpus()}
        if index not in known:
            others = tuple(f"GPU {one}" for one in known) or say("no other")
            raise NoSuchGpuError("there is no GPU {gpu}; there is {known}", gpu=index, known=others)
        return known[index]

    def _earlier(self) -> list[StressResult]:
        with suppress(StoreError), Reader(self._database) as reader:
            return [run for _, run in reader.stress_runs(brief=True)]
        return []


def keep(result: StressResult, config: Config, folder: Path, database: str) -> MessageLike:
    """Have the daemon keep a run, or without one write it to the database; return why that failed, if it did."""
    daemon = DaemonClient.of(folder)
    try:
        if daemon is not None and daemon.pid() is not None:
            daemon.post("/api/v1/stress-run", stress_to_json(result))
            return ""
        _become_owner_of(folder)
        with Store(database, config.store) as store:
            store.record_stress(result)
    except (Unanswered, StoreError, OSError) as error:
        return cause(error)
    return ""


def _become_owner_of(folder: Path) -> None:
    """Let go of root's rights where the folder is another's, for the rest of this process.

    Through a link there root could write anywhere, and files that SQLite adds would be root's, so that the service
    could no longer open the database.
    """
    owner = folder.stat()
    if os.geteuid() == 0 and owner.st_uid != 0:
        os.setgroups([])
        os.setresgid(owner.st_gid, owner.st_gid, owner.st_gid)
        os.setresuid(owner.st_uid, owner.st_uid, owner.st_uid)


@dataclass
class Asker:
    """The daemon's side; used like ``stress_run.Runner``."""

    clock: Clock
    path: str
    patience_seconds: float  # for one whole run
    recent: Recent  # the unit begins with the run, and knows nothing of what was before
    # Ends the wait; the run itself is ended by systemd, which stops the unit with the daemon (PartOf=).
    stop: threading.Event = field(default_factory=threading.Event)

    def run(self, sample: GpuSample, mode: Mode) -> StressResult:
        asked_wall = self.clock.wall()

        def without(verdict: StressVerdict, reason: MessageLike) -> StressResult:
            return StressResult(asked_wall, sample.uuid, sample.index, sample.name, verdict, reason)

        if reasons := [*self.recent.unrest(self.clock.mono())]:
            return without("skipped", clauses(reasons))
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


def serve_one(run: Callable[[int, Mode], StressResult]) -> None:
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
