"""The composition root: builds everything, runs the ticks, ends in order."""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wslgpud import __version__
from wslgpud.alerts.channels import Channel, CommandChannel
from wslgpud.alerts.dispatcher import Dispatcher
from wslgpud.alerts.message import payload
from wslgpud.catalogue import catalogue
from wslgpud.config import Alerts, Config, ConfigError
from wslgpud.host import Host, NoData, SourceError
from wslgpud.jobs import Nightly
from wslgpud.model import Level, Transition
from wslgpud.monitor import Monitor, State
from wslgpud.serve import Publisher, ServeError, Server, routes
from wslgpud.status import status
from wslgpud.store import Store, StoreError
from wslgpud.store import metrics as store_metrics
from wslgpud.systemd import Notifier

if TYPE_CHECKING:
    from typing_extensions import Self

log = logging.getLogger(__name__)

#: a clean stop must stay under systemd's and WSL's patience (10 s) by a wide margin
STOP_SECONDS = 2.0
#: how far back ``status`` looks for changes of level
RECENT_SECONDS = 24 * 3600.0
_LOG_LEVEL = {
    Level.OK: logging.INFO,
    Level.INFO: logging.INFO,
    Level.WARNING: logging.WARNING,
    Level.CRITICAL: logging.ERROR,
    Level.EMERGENCY: logging.CRITICAL,
}


class StartError(Exception):
    """The daemon cannot start; one line that names the thing and the remedy."""


def _channels(settings: Alerts) -> list[Channel]:
    if not settings.command:
        return []
    return [CommandChannel(settings.command, settings.command_timeout_seconds)]


def _headline(state: State) -> str:
    """Say in one line, for ``systemctl status``, how things stand."""
    worst = max(state.forecasts, key=lambda f: f.level, default=None)
    if worst is not None and worst.level > Level.OK:
        return f"{worst.level.label}: {worst.reason}"
    return (
        ", ".join(f"{f.resource} {f.headroom_bytes / 2**30:.1f} GiB left" for f in state.forecasts)
        or "watching"
    )


class Daemon:
    """The running program. ``with Daemon(...) as daemon: daemon.run()``."""

    def __init__(self, config: Config, host: Host, state_folder: Path, environ: Mapping[str, str]) -> None:
        """Keep what it is made of; nothing is opened yet."""
        self._config = config
        self._host = host
        self._folder = state_folder
        self._systemd = Notifier(environ)
        self._minimum = Level[config.alerts.minimum_level.upper()]
        self._stop = threading.Event()
        self._state: State | None = None
        self._resources = ExitStack()

    def __enter__(self) -> Self:
        """Open the store, bind the port, prepare the sources.

        Raises:
            StartError: one of these cannot be had.
        """
        try:
            with ExitStack() as stack:
                self._open(stack)
                self._resources = stack.pop_all()
        except (StoreError, ServeError, ConfigError, NoData, SourceError) as error:
            raise StartError(str(error)) from error
        return self

    def __exit__(self, *_: object) -> None:
        """Close everything in the reverse order."""
        self._systemd.send("STOPPING=1")
        self._resources.close()

    def _open(self, stack: ExitStack) -> None:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StartError(
                f"cannot make the folder {self._folder}: {error.strerror}; choose another with --state"
            ) from error
        self.database = Path(self._config.store.path or self._folder / "wslgpud.db")
        boot_id = self._host.read("/proc/sys/kernel/random/boot_id").strip()
        self._store = stack.enter_context(
            Store(self.database, self._config.store, boot_id=boot_id, clock=self._host.clock)
        )
        if self._store.warning:
            log.warning("%s", self._store.warning)
        channels = _channels(self._config.alerts)
        self._channel_names = [channel.name for channel in channels]
        self._dispatcher = Dispatcher(channels, self._store, self._host.clock)
        stack.callback(self._dispatcher.close, STOP_SECONDS)
        publisher = self._publisher = Publisher(catalogue(), self._host.clock)
        publisher.include(lambda: store_metrics.readings(self._store.stats()))
        self._server = Server(self._config.server, publisher, routes(publisher, self.status))
        self._server.start()
        self.url = self._server.url.removesuffix("/")
        stack.callback(self._server.stop, STOP_SECONDS)
        self._monitor = Monitor(self._config, self._host)
        stack.callback(self._monitor.close)
        self._nightly = Nightly(self._config.stress, self._host, self._folder, self._store)
        stack.callback(self._nightly.close)
        publisher.include(self._nightly.readings)
        self._dispatcher.start()
        note = self._folder / "daemon.json"
        note.write_text(json.dumps({"pid": os.getpid(), "url": self.url, "version": __version__}))
        stack.callback(note.unlink, missing_ok=True)

    def stop(self) -> None:
        """Ask the ticks to end; safe in a signal handler."""
        self._stop.set()

    def run(self) -> None:
        """Tick until stopped."""
        delay = 0.0
        while not self._stop.wait(delay):
            started = time.monotonic()
            self._tick()
            delay = max(0.0, self._monitor.delay_seconds - (time.monotonic() - started))

    def _tick(self) -> None:
        first = self._state is None
        state, transitions = self._monitor.tick()
        self._state = state
        self._nightly.observe(state.snapshot)
        # The warning leaves first: under memory pressure any later step may take seconds.
        for transition in (*transitions, *self._nightly.news()):
            log.log(_LOG_LEVEL[transition.new], "%s: %s", transition.new.label, transition.headline)
            self._announce(transition)
        worst = max((f.level for f in state.forecasts), default=Level.OK)
        self._publisher.publish(state.snapshot)
        self._store.append(state.snapshot, urgent=worst >= Level.WARNING)
        if first:
            self._systemd.send("READY=1")
        self._systemd.send("WATCHDOG=1", f"STATUS={_headline(state)}")

    def _announce(self, transition: Transition) -> None:
        """Keep the row, and put it into the outbox of each channel that wants it."""
        wanted = max(transition.old, transition.new) >= self._minimum
        message = payload(transition)
        self._store.record_transition(
            transition, dict.fromkeys(self._channel_names, message) if wanted else {}
        )
        self._dispatcher.wake()

    def status(self) -> dict[str, Any]:
        """Return the state of things as JSON; before the first tick only that."""
        state = self._state
        if state is None:
            return {"version": __version__, "waiting": "for the first sample"}
        recent = [t for _, t in self._store.transitions(state.snapshot.wall - RECENT_SECONDS)]
        return status(state.snapshot, state.observation, state.forecasts, recent[:-11:-1])
