"""The composition root: builds everything, runs it, and shuts it down in order."""

from __future__ import annotations

import hashlib
import logging
import math
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from wslgpud.advise.checkups import Checkups, Findings
from wslgpud.alerts import dispatcher, look_back
from wslgpud.alerts.manager import HISTORY_SECONDS, AlertManager, Installation
from wslgpud.alerts.rules import LASTING
from wslgpud.app import systemd
from wslgpud.app.catalogue import catalogue
from wslgpud.app.return_cache import CacheReturner
from wslgpud.app.tick import Tick
from wslgpud.brake import FILE as HELD_FILE
from wslgpud.config import Config, ConfigError
from wslgpud.host import Host, NoData, SourceError, oom_score_adjust
from wslgpud.model import Transition
from wslgpud.sampling.assessor import Assessor
from wslgpud.security import safe_files
from wslgpud.serve import HttpServer, LocalApi, Publisher, ServeError, api, api_history, base_routes, commands, otlp
from wslgpud.store import Store, StoreError, shown, sqlite_path, store_metrics
from wslgpud.stress import schedule, separate
from wslgpud.stress.schedule import Nightly
from wslgpud.words import MessageError, cause, chosen, translator

if TYPE_CHECKING:
    from typing_extensions import Self

    from wslgpud.brake.brake import Brake
    from wslgpud.brake.watchdog import Watchdog

log = logging.getLogger(__name__)

#: a clean stop must stay well below the 10 s that systemd and WSL allow
STOP_SECONDS = 2.0
#: A signal that arrives just before a wait does not end it: Python runs handlers between instructions. It is seen when
#: the wait is over.
MAX_WAIT_SECONDS = 1.0


class StartError(MessageError):
    """The daemon cannot start; the message names the cause and the remedy."""


def check(config: Config) -> None:
    """Refuse a configuration the daemon would not start with; nothing is opened, sent or started.

    Anything that depends on the session (its channels, whether a port is free) is not checked.

    Raises ConfigError: the key, and what it may be.
    """
    from wslgpud.brake.brake import allowed_users  # late, like all of the brake: it is off by default

    dispatcher.configured(config.alerts)
    allowed_users(config.brake)
    HttpServer(config.server, Publisher(()), ())
    if config.otlp.endpoint:
        otlp.Push(config.otlp, list)
    if config.stress.schedule != schedule.OFF:
        schedule.crontab(config.stress.schedule)


class Daemon:
    """The running program. ``with Daemon(...) as daemon: daemon.run()``."""

    def __init__(self, config: Config, host: Host, state_folder: Path, environ: Mapping[str, str]) -> None:
        self._config, self._host, self._folder, self._environ = config, host, state_folder, environ
        self._systemd = systemd.Notifier(environ, config.sampling.interval_seconds)
        self._stop: SimpleQueue[None] = SimpleQueue()
        self._resources = ExitStack()
        self._watchdog: Watchdog | None = None

    def __enter__(self) -> Self:
        """Open the store, bind the port, prepare the sources. Raises StartError: one of these failed."""
        if self._config.brake.on and self._host.live:
            from wslgpud.brake.watchdog import Watchdog, stay_resident

            # Before we drop inheritable capabilities: the watchdog resumes paused jobs if we die.
            self._watchdog = Watchdog()
            if why := stay_resident():
                log.info("the memory of the brake could not be locked and may be paged out: %s", why)
        systemd.keep_capabilities()
        if warning := systemd.lack_of_protection(self._environ, oom_score_adjust()):
            log.warning("%s", warning)
        try:
            with ExitStack() as stack:
                self._open(stack)
                self._resources = stack.pop_all()
        except (StoreError, ServeError, ConfigError, NoData, SourceError) as error:
            raise StartError(cause(error)) from error
        return self

    def __exit__(self, *_: object) -> None:
        self._systemd.send("STOPPING=1")
        self._resources.close()

    def stop(self) -> None:
        """Ask the ticks to end; safe in a signal handler.

        An Event is not: a second signal during the first (a closing terminal sends two) would deadlock on its lock. A
        SimpleQueue is reentrant.
        """
        self._stop.put(None)

    def run(self) -> None:
        due = 0.0
        while True:
            left = max(0.0, due - time.monotonic())
            with suppress(Empty):
                return self._stop.get(timeout=min(left, MAX_WAIT_SECONDS))
            started = time.monotonic()
            if started >= due:
                self.tick.run()
                due = started + self.tick.assessor.delay_seconds

    def _open(self, stack: ExitStack) -> None:
        config, host = self._config, self._host
        self._make_folder()
        target = config.store.path or str(self._folder / "wslgpud.db")
        self.database = shown(target)
        # With the database on a server, only our state folder can fill up.
        file = (sqlite_path(target) or self._folder / "wslgpud.db").resolve()
        boot_id = host.read("/proc/sys/kernel/random/boot_id").strip()
        ids = {"boot_id": boot_id, "machine_id": _machine_id(host)}
        store = stack.enter_context(Store(target, config.store, **ids, clock=host.clock, own_file=file))
        if store.warning:
            log.warning("%s", store.warning)
        language = chosen(config.alerts.language, self._environ)
        place = Installation(socket.gethostname(), self._folder.resolve(), file.parent, language)
        alerts = self._alerts(store, place)
        stack.callback(alerts.close, STOP_SECONDS)
        brake, returner = self._brake(stack, alerts), self._returner(stack)
        # --state counts too: the disk to watch is the one that we write to.
        watched = replace(config, store=replace(config.store, path=str(file))) if host.live else config
        assessor = Assessor(watched, host)
        stack.callback(assessor.close)
        unit_socket = self._environ.get(separate.VARIABLE, "")
        nightly = Nightly(config.stress, host, self._folder, store, unit_socket=unit_socket)
        publisher = Publisher(catalogue(), host.clock)
        self.tick = tick = Tick(
            assessor, alerts, brake, returner, nightly, store, publisher, self._systemd, translator(language)
        )
        tick.recall_lessons(host.clock.wall())
        doctor_runner = Checkups(self._checkup, host.clock)
        for part in (alerts, systemd, tick.verdicts, brake, returner, nightly, doctor_runner):
            if part is not None:
                publisher.add_collector(part.readings)
        publisher.add_collector(lambda: store_metrics.readings(store.stats()))
        table = [
            *base_routes(publisher, tick.now),
            *api.routes(publisher, tick.now, store.stats, doctor_runner.last),
            commands.seen_route(alerts.see),
            *api_history.routes(publisher, catalogue(), lambda: store.reader, place.host),
        ]
        http = HttpServer(config.server, publisher, table)
        http.start()
        self.url = tick.url = http.url.removesuffix("/")
        stack.callback(http.stop, STOP_SECONDS)
        if config.otlp.endpoint:
            push = otlp.Push(config.otlp, publisher.readings, host.clock)
            push.start()
            stack.callback(push.close, STOP_SECONDS)
            publisher.add_collector(push.readings)
        doctor_runner.start()
        stack.callback(doctor_runner.close)
        # First of all when we stop: a run takes a while to free its card, lessons only a moment to be kept.
        stack.callback(tick.keep_lessons, last=True)
        stack.callback(nightly.close)
        alerts.dispatcher.start()
        done = [commands.run_route(assessor.runs), commands.stress_route(nightly.keep)]
        done += commands.alert_routes(alerts.control, host.clock) + ([commands.brake_route(brake)] if brake else [])
        local = LocalApi(self._folder, [*table, *done], guarded=bool(config.server.web_config_file))
        if local.start():
            stack.callback(local.close)
        look_back.start(host, store, boot_id, alerts)

    def _alerts(self, store: Store, place: Installation) -> AlertManager:
        def earlier() -> Iterator[tuple[int, Transition]]:
            """Yield the announcements of earlier runs; a history that cannot be read must not keep us from warning."""
            try:
                yield from store.reader.changes(self._host.clock.wall() - HISTORY_SECONDS, LASTING)
            except StoreError as error:
                log.warning("earlier level changes are unknown: %s", error)

        run, settings = store.previous_run, self._config.alerts
        return AlertManager(
            settings,
            dispatcher.build_channels(settings, self._host, self._environ),
            store,
            self._host.clock,
            place,
            rows=earlier(),
            unseen_since_wall=math.inf if run is None else run.stopped_wall or run.started_wall,
        )

    def _brake(self, stack: ExitStack, alerts: AlertManager) -> Brake | None:
        """Resume jobs that an earlier daemon left paused; return the brake, if it is on."""
        clock, folder = self._host.clock, self._folder.resolve()
        if self._host.live and (folder / HELD_FILE).exists():
            from wslgpud.brake.watchdog import HeldJobsFile

            for number, why in HeldJobsFile(folder).resume_all().items():
                failed = f", failed: {why}" if why else ""
                log.warning("resuming job %d, which a daemon that died had paused%s", number, failed)
        for incident in alerts.left_open:
            if incident.paused is not None:
                from wslgpud.brake.paused_job import OUTCOMES, row

                # Its job was resumed when the daemon that had paused it ended.
                outcome = {"outcome": OUTCOMES["restart"]}
                alerts.report(row(incident.resource, clock.wall(), clock.mono(), (), outcome))
        if self._watchdog is None:
            return None
        from wslgpud.brake.brake import Brake

        brake = Brake(self._config.brake, self._host, folder, self._watchdog)
        stack.callback(brake.close)
        return brake

    def _returner(self, stack: ExitStack) -> CacheReturner | None:
        """Return the part that gives page cache back to Windows, if that is on."""
        if not (self._config.windows.return_cache and self._host.live):
            return None
        returner = CacheReturner(self._host)
        stack.callback(returner.close, STOP_SECONDS)
        return returner

    def _checkup(self) -> Findings:
        """Return the doctor's findings; without torch, whose check starts users' Pythons and is left to the command."""
        from wslgpud.advise import doctor  # only when asked for

        return [finding._asdict() for finding in doctor.run(self._host, self._config, None, str(self._folder))]

    def _make_folder(self) -> None:
        try:
            safe_files.make_folder(self._folder)
        except OSError as error:
            path, why = str(self._folder), cause(error)
            raise StartError(
                "cannot write into {path}: {why}; choose another with --state", path=path, why=why
            ) from error


def _machine_id(host: Host) -> str:
    """Return a public id of this machine's installation; empty where it has none.

    https://www.freedesktop.org/software/systemd/man/latest/machine-id.html asks not to show the id itself.
    """
    with suppress(NoData, SourceError):
        return hashlib.sha256(b"wslgpud " + host.read("/etc/machine-id").strip().encode()).hexdigest()[:16]
    return ""
