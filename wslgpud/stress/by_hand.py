"""A stress run outside the daemon, on a user's command or in a unit of its own, and where its result is kept.

The store, which takes as long to import as everything else, is imported when needed: while torch loads.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from wslgpud.client import DaemonClient, Unanswered
from wslgpud.config import Config
from wslgpud.host import Host, NoData, SourceError
from wslgpud.model import GpuSample, StressResult
from wslgpud.security import safe_files
from wslgpud.sources.gpu import GpuSource
from wslgpud.store.records import stress_to_json
from wslgpud.stress.stress_run import Mode, Runner
from wslgpud.stress.telemetry import Recent
from wslgpud.words import MessageError, MessageLike, cause

_LOOK_SECONDS = 0.5


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
        self._recent, self._done = Recent(), threading.Event()
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
        self._recent.add(self._host.clock.mono(), sample.gpus or (), sample.readings)

    def _go_on_looking(self) -> None:
        while not self._done.wait(_LOOK_SECONDS):
            with contextlib.suppress(NoData, SourceError):
                self._look()

    def _look_anew(self) -> None:
        self._done.set()
        self._watcher.join()
        self._source.ask_everything()
        with contextlib.suppress(NoData, SourceError):
            self._look()

    def _gpu(self, index: int) -> GpuSample:
        self._look()
        known = {sample.index: sample for sample in self._recent.gpus()}
        if not known:
            raise NoSuchGpuError("there is no GPU {gpu}, and no other", gpu=index)
        if index not in known:
            others = tuple(f"GPU {one}" for one in known)
            raise NoSuchGpuError("there is no GPU {gpu}; there is {known}", gpu=index, known=others)
        return known[index]

    def _earlier(self) -> list[StressResult]:
        from wslgpud.store import Reader, StoreError

        with contextlib.suppress(StoreError), Reader(self._database) as reader:
            return [run for _, run in reader.stress_runs()]
        return []


def keep(result: StressResult, config: Config, folder: Path, database: str) -> MessageLike:
    """Have the daemon keep a run, or without one write it to the database; return why that failed, if it did."""
    from wslgpud.store import Store, StoreError

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
