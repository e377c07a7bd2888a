"""The composition root: builds everything, runs the ticks, ends in order."""

from __future__ import annotations

import json
import logging
import math
import os
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from wslgpud import __version__, documents, jobs, stress_unit, systemd
from wslgpud.advise.rounds import Rounds
from wslgpud.alerts import blackbox, build, policy, runbook
from wslgpud.alerts.channels import alertmanager, apprise
from wslgpud.alerts.desk import HISTORY_SECONDS, Desk, Place
from wslgpud.alerts.incidents import Standing
from wslgpud.alerts.rules import LASTING
from wslgpud.archive import Archive
from wslgpud.catalogue import catalogue
from wslgpud.config import Config
from wslgpud.config_key import ConfigError
from wslgpud.host import Host, NoData, SourceError, oom_score_adjust
from wslgpud.jobs import Nightly, inbox
from wslgpud.model import Level, Transition
from wslgpud.monitor import Monitor
from wslgpud.serve import LocalApi, Publisher, Route, ServeError, Server, api, otlp, routes
from wslgpud.serve import runbook as runbook_page
from wslgpud.status import State, in_one_line, judged, status, waiting
from wslgpud.store import Store, StoreError, shown, sqlite_path
from wslgpud.store import metrics as store_metrics
from wslgpud.verdict import NEWS_SECONDS, WAITING, Told, Verdict, blindness, decide
from wslgpud.words import Said, cause, chosen, failure, say, tongue
from wslgpud.words.names import LEVELS

if TYPE_CHECKING:
    from typing_extensions import Self

log = logging.getLogger(__name__)

#: a clean stop must stay under systemd's and WSL's patience (10 s) by a wide margin
STOP_SECONDS = 2.0
#: how far back ``status`` looks for changes of level
RECENT_SECONDS = 24 * 3600.0
MOST_RECENT = 10


class StartError(Exception):
    """The daemon cannot start; one line that names the thing and the remedy."""


def check(config: Config) -> None:
    """Refuse what the daemon would not start with; nothing is opened, sent or started.

    What depends on who asks (which channels there are in a session, whom a port belongs to) is left out.

    Raises:
        ConfigError: the key, and what it may be.
    """
    alerts = config.alerts
    build.manners(alerts)
    policy.channel_levels(alerts)
    apprise.understood(apprise.urls_from(alerts.urls, alerts.urls_file))
    for url in alerts.alertmanager_urls:
        alertmanager.AlertmanagerChannel(url)
    Server(config.server, Publisher(()), ())
    if config.otlp.endpoint:
        otlp.Collector(config.otlp)
    if config.stress.schedule != jobs.OFF:
        jobs.trigger(config.stress)


class Daemon:
    """The running program. ``with Daemon(...) as daemon: daemon.run()``."""

    def __init__(self, config: Config, host: Host, state_folder: Path, environ: Mapping[str, str]) -> None:
        """Keep what it is made of; nothing is opened yet."""
        self._config = config
        self._host = host
        self._folder = state_folder
        self._systemd = systemd.Notifier(environ)
        self._environ = environ
        self._stop: SimpleQueue[None] = SimpleQueue()
        self._desk_error = ""
        self._runs_known = 0
        self._state: State | None = None
        self._verdict = WAITING
        self._standing: Sequence[Standing] = ()
        self._told = Told()
        self._resources = ExitStack()

    def __enter__(self) -> Self:
        """Open the store, bind the port, prepare the sources.

        Raises:
            StartError: one of these cannot be had.
        """
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
        """Close everything in the reverse order."""
        self._systemd.send("STOPPING=1")
        self._resources.close()

    def _open(self, stack: ExitStack) -> None:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StartError(
                say(
                    "cannot make the folder {folder}: {reason}; choose another with --state",
                    folder=str(self._folder),
                    reason=failure(error),
                )
            ) from error
        target = self._config.store.path or str(self._folder / "wslgpud.db")
        self.database = shown(target)
        # A database on a server leaves the state folder as the only place of ours that can fill up.
        file = (sqlite_path(target) or self._folder / "wslgpud.db").resolve()
        boot_id = self._host.read("/proc/sys/kernel/random/boot_id").strip()
        self._store = stack.enter_context(
            Store(target, self._config.store, boot_id=boot_id, clock=self._host.clock)
        )
        if self._store.warning:
            log.warning("%s", self._store.warning)
        run = self._store.previous_run
        channels = build.channels(self._config.alerts, self._host, self._environ)
        place = Place(
            socket.gethostname(), self._folder.resolve(), file.parent,
            chosen(self._config.alerts.language, self._environ),
        )  # fmt: skip
        self._tongue = tongue(place.language)
        self._desk = Desk(
            self._config.alerts, channels, self._store, self._host.clock, place, rows=self._earlier(),
            unseen_since_wall=math.inf if run is None else run.stopped_wall or run.started_wall,
        )  # fmt: skip
        stack.callback(self._desk.close, STOP_SECONDS)
        if run is not None and not run.clean:
            blackbox.examine_in_background(self._host, self._store, run, boot_id, self._desk)
        publisher = self._publisher = Publisher(catalogue(), self._host.clock)
        publisher.include(lambda: store_metrics.readings(self._store.stats()))
        publisher.include(self._desk.readings)
        publisher.include(systemd.readings)
        publisher.include(self._told.readings)
        table = self._routes(place)
        self._server = Server(self._config.server, publisher, table)
        self._server.start()
        self.url = self._server.url.removesuffix("/")
        stack.callback(self._server.stop, STOP_SECONDS)
        if self._config.otlp.endpoint:
            push = otlp.Push(self._config.otlp, publisher.readings, self._host.clock)
            stack.callback(push.close, STOP_SECONDS)
            publisher.include(push.readings)
        watched = self._config
        if self._host.live:  # --state decides too: the disk to watch is the one that we write to
            watched = replace(watched, store=replace(watched.store, path=str(file)))
        self._monitor = Monitor(watched, self._host)
        stack.callback(self._monitor.close)
        stack.callback(self._keep_lessons, last=True)
        self._recall_lessons()
        self._nightly = Nightly(
            self._config.stress, self._host, self._folder, self._store,
            apart=self._environ.get(stress_unit.VARIABLE) == "yes",
        )  # fmt: skip
        stack.callback(self._nightly.close)
        publisher.include(self._nightly.readings)
        rounds = Rounds(self.checkup)
        publisher.include(rounds.readings)
        rounds.start()
        stack.callback(rounds.close)
        self._desk.dispatcher.start()
        self._leave_note(stack, table)

    def _leave_note(self, stack: ExitStack, table: Sequence[Route]) -> None:
        """Tell this machine's own commands where we are."""
        facts: dict[str, str | int] = {"pid": os.getpid(), "url": self.url, "version": __version__}
        if self._server.guarded:
            local = LocalApi(self._folder, table)
            if local.start():
                stack.callback(local.close)
                facts["socket"] = local.path.name
        note = self._folder / "daemon.json"
        try:
            documents.put(note, json.dumps(facts), mode=0o644)  # for everybody's 'wslgpud status'
            inbox(self._folder).mkdir(exist_ok=True)  # ours, also when root leaves something in it first
        except OSError as error:
            raise StartError(
                say(
                    "cannot write into the folder {folder}: {reason}; choose another with --state",
                    folder=str(self._folder),
                    reason=failure(error),
                )
            ) from error
        stack.callback(note.unlink, missing_ok=True)

    def _routes(self, place: Place) -> list[Route]:
        publisher = self._publisher
        archive = Archive(lambda: self._store.reader, place.host, place.language)
        present = api.Present(self.now, self._store.stats, self.checkup)
        return [
            *routes(publisher, self.status, self.now),
            *api.routes(publisher, catalogue(), archive, present),
            *runbook_page.routes(runbook.sections),
        ]

    def _earlier(self) -> Iterator[tuple[int, Transition]]:
        """Yield what earlier runs announced; what cannot be read must not keep us from warning."""
        try:
            yield from self._store.changes(self._host.clock.wall() - HISTORY_SECONDS, LASTING)
        except StoreError as error:
            log.warning("earlier changes of level are not known: %s", error)

    def _recent(self, since_wall: float) -> list[Transition]:
        """Return the newest that was announced since, the newest first."""
        try:
            return [t for _, t in reversed(self._store.transitions(since_wall, newest=MOST_RECENT))]
        except StoreError as error:
            # The store tells of its trouble by itself; whoever asks must not fill the log with it.
            log.debug("what was announced is not known: %s", error)
            return []

    def stop(self) -> None:
        """Ask the ticks to end; safe in a signal handler.

        An Event is not: a second signal amid the first (a terminal that closes sends two) would wait for its
        lock for ever. A SimpleQueue may be put to from anywhere.
        """
        self._stop.put(None)

    def run(self) -> None:
        """Tick until stopped."""
        delay = 0.0
        while not self._told_to_stop(delay):
            started = time.monotonic()
            self._tick()
            delay = max(0.0, self._monitor.delay_seconds - (time.monotonic() - started))

    def _told_to_stop(self, seconds: float) -> bool:
        """Wait so long for the word to end."""
        try:
            self._stop.get(timeout=seconds)
        except Empty:
            return False
        return True

    def _tick(self) -> None:
        first = self._state is None
        state, transitions = self._monitor.tick()
        self._state = state
        # The warning leaves first: under memory pressure any later step may take seconds.
        self._alert(state, transitions)
        self._nightly.observe(state.snapshot)
        for transition in self._nightly.news():
            self._desk.report(transition)
        if len(runs := self._nightly.runs()) != self._runs_known:
            self._runs_known = len(runs)
            self._monitor.learn(runs)
        self._keep_lessons()
        # Here and not when somebody asks: it looks at a file, and the server's thread must wait for no disk.
        self._standing = self._desk.standing()
        self._verdict = self._decide(state)
        self._told.note(self._verdict)
        worst = max((f.level for f in state.forecasts), default=Level.OK)
        self._publisher.publish(state.snapshot)
        self._store.append(state.snapshot, urgent=worst >= Level.WARNING)
        if first:
            interval = self._config.sampling.interval_seconds
            self._systemd.send("READY=1", *systemd.watchdog_patience(self._environ, interval))
        # Only a tick that saw the memory is a sign of life: without that we warn of nothing.
        alive = ("WATCHDOG=1",) if state.observation.ram is not None else ()
        level, said = LEVELS[self._verdict.label], self._tongue.document(judged(self._verdict))
        self._systemd.send(*alive, f"STATUS={self._tongue.t(level)}: {in_one_line(said)}")

    def _decide(self, state: State) -> Verdict:
        lately = self._desk.lately(NEWS_SECONDS)
        return decide(state.forecasts, self._standing, lately, blind=blindness(state.snapshot))

    def _recall_lessons(self) -> None:
        """Give the engine what earlier runs have learned.

        After a crash only the ceilings: the peak that it remembers as harmless may have been the end of it.
        """
        run, now = self._store.previous_run, self._host.clock.wall()
        clean = run is not None and run.clean
        self._monitor.recall(
            {
                subject: (
                    {name: value for name, value in lesson.document.items() if clean or name != "peaks"},
                    max(0.0, now - lesson.wall),
                )
                for subject, lesson in self._store.learned.items()
            }
        )

    def _keep_lessons(self, *, last: bool = False) -> None:
        for subject, document in self._monitor.lessons(last=last):
            self._store.learn(subject, document)

    def _alert(self, state: State, changes: Sequence[Transition]) -> None:
        """Hand the tick to the alerts; a bug there must not end the samples."""
        try:
            stats = self._store.stats()
            self._desk.tick(state.snapshot, state.forecasts, changes, stats.error, stats.damage)
        except Exception as bug:
            if repr(bug) != self._desk_error:
                log.exception("alerts failed at this tick; please report this")
            self._desk_error = repr(bug)

    def status(self, language: str) -> dict[str, Any]:
        """Return the state of things as JSON, worded in a language; before the first tick only that."""
        state = self._state
        if state is None:
            return self.now(language)
        return self._status(state, language, self._recent(state.snapshot.wall - RECENT_SECONDS))

    def checkup(self) -> list[dict[str, Said]]:
        """Return what the doctor finds; only the command asks for torch: that starts the users' Pythons."""
        from wslgpud.advise import doctor  # noqa: PLC0415 - only when somebody looks

        found = doctor.run(self._host, self._config, None, str(self._folder))
        return [finding.document() for finding in found]

    def now(self, language: str) -> dict[str, Any]:
        """Return the same without a look into the database, hence at once."""
        state = self._state
        if state is None:
            return waiting(tongue(language))
        return self._status(state, language, ())

    def _status(self, state: State, language: str, recent: Sequence[Transition]) -> dict[str, Any]:
        return status(
            state, self._verdict, tongue(language),
            recent=recent, incidents=self._standing, stress=self._nightly.runs(),
        )  # fmt: skip
