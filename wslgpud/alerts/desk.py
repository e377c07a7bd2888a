"""Where everything that is wrong comes together: it becomes rows, messages, log lines, and the score."""

from __future__ import annotations

import logging
import math
import os
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from wslgpud.alerts import build, metrics, score
from wslgpud.alerts.channels import Channel, Prepared
from wslgpud.alerts.channels.journal import Journal, is_where_we_log
from wslgpud.alerts.control import ControlFile
from wslgpud.alerts.dispatcher import Dispatcher, Outbox
from wslgpud.alerts.incidents import Incident, Ledger, Standing, grouped, kind_of
from wslgpud.alerts.jobs_that_fit import jobs_that_fit
from wslgpud.alerts.message import payload
from wslgpud.alerts.outcome import closing, end_facts, with_victim
from wslgpud.alerts.rules import MEMORY, RuleEngine, is_momentary
from wslgpud.alerts.selfsave import SelfSave
from wslgpud.alerts.texts import Text, compose, text_now
from wslgpud.config import Alerts
from wslgpud.host import Clock
from wslgpud.model import Forecast, Level, ProcessSample, Reading, Snapshot, Transition
from wslgpud.units import one_line
from wslgpud.words import HEADLINE_CHARACTERS, Fact, Said, say, tongue

log = logging.getLogger(__name__)

#: what counts for the score, and how far back is looked for what is open, unless it is of ``rules.LASTING``
HISTORY_SECONDS = 30 * 86400.0
#: repeats come no faster than this, however fast the time runs out
REPEAT_SECONDS = 10.0
#: what is open is looked through again this often: a silence may have begun or ended since
RENEW_SECONDS = 60.0
#: the longest that a tick waits for its news to be on disk, after the channels have them
SYNC_SECONDS = 0.3
#: processes of a group that a row names, the biggest first
MOST_MEMBERS = 40
#: rows that ``lately`` looks through
MOST_LATELY = 20
#: incidents that the score remembers
_MOST_INCIDENTS = 2000
_LOG_LEVEL = {
    Level.OK: logging.INFO,
    Level.INFO: logging.INFO,
    Level.WARNING: logging.WARNING,
    Level.CRITICAL: logging.ERROR,
    Level.EMERGENCY: logging.CRITICAL,
}


class Rows(Outbox, Protocol):
    """What the desk needs of the store."""

    def record_transition(
        self, transition: Transition, messages: Mapping[str, Mapping[str, Any]] | None = None
    ) -> int:
        """Keep a row and a message for each channel; return its id. Nobody waits for the disk."""

    def flush(self, timeout: float) -> bool:
        """Wait until what was kept is on disk, at most ``timeout`` seconds."""

    def post(self, channel: str, payload: Mapping[str, Any]) -> int:
        """Keep a message that belongs to no row."""


@dataclass(frozen=True)
class Place:
    """Where this runs."""

    host: str
    state_folder: Path
    data_folder: Path
    language: str


class Desk:
    """Takes what each tick found and announces it. ``tick`` never waits for a channel."""

    def __init__(  # noqa: PLR0913 - what it brings together
        self, settings: Alerts, channels: Sequence[Channel], store: Rows, clock: Clock, place: Place,
        *, rows: Iterable[tuple[int, Transition]] = (), unseen_since_wall: float = math.inf,
    ) -> None:  # fmt: skip
        """Take over what earlier runs left open, and prepare the channels.

        Args:
            settings: the section of the configuration.
            channels: where messages go.
            store: rows and outbox.
            clock: time.
            place: where this runs.
            rows: what earlier runs announced in ``HISTORY_SECONDS``, and before that by ``rules.LASTING``,
                by number; they are taken one at a time.
            unseen_since_wall: when the last run ended; kernel messages since then are news.

        Raises:
            ConfigError: a setting cannot be used.
        """
        self._settings = settings
        self._store = store
        self._clock = clock
        self._place = place
        self._channels = channels
        self._levels = build.levels(settings, [channel.name for channel in channels])
        self.dispatcher = Dispatcher(
            channels, store, clock, manners=build.manners(settings), tongue=tongue(place.language),
            expiry_seconds=settings.expire_hours * 3600.0, levels=self._levels,
        )  # fmt: skip
        # Closed ones are kept for the score alone, and so only those that it looks at.
        self._past: deque[Incident] = deque(maxlen=_MOST_INCIDENTS)
        left: list[Incident] = []
        since = unseen_since_wall
        for incident in grouped(rows):
            left += [incident] if incident.closed_wall is None else []
            self._keep_past(incident)
            if is_momentary(incident.rule):
                since = max(since, incident.changed_wall)
        self._ledger = Ledger(left, clock.mono(), clock.wall())
        self.left_open = tuple(self._ledger.open.values())
        self._rules = RuleEngine(state_folder=str(place.data_folder), since_wall=since)
        self._rules.resume(self._ledger.levels(), clock.mono(), self._ledger.facts())
        self._control = ControlFile(place.state_folder, log.warning)
        self._journal = Journal() if is_where_we_log(os.environ) else None
        self._selfsave = SelfSave(settings, place.state_folder)
        if going := self._selfsave.released:
            log.warning("pid %s, stopped by a daemon that has died, goes on", ", ".join(map(str, going)))
        self._told: dict[str, tuple[float, float]] = {}
        self._untold: set[tuple[str, int]] = (
            set()
        )  # rules and open incidents of which a silence has kept news
        self._announced = False
        oldest = clock.wall() - settings.expire_hours * 3600.0
        for delivery in store.unsent():
            back = delivery.channel in build.sometimes(settings) and delivery.created_wall >= oldest
            if delivery.channel not in self._levels and not back:
                store.abandon(delivery.id, say("the channel is not configured any more"))
        self._reports: deque[Transition] = deque()
        self._lately: deque[Transition] = deque(maxlen=MOST_LATELY)
        self._processes: Sequence[ProcessSample] = ()
        self._forecasts: Mapping[str, Forecast] = {}
        # before anything is renewed: nobody is to be told of last night's trouble as if it were now
        self._close_overdue(clock.wall(), clock.mono(), ())
        self._renew_open()  # what stays as it was is not announced again, and must be renewed all the same
        self._keep_score()

    def report(self, transition: Transition) -> None:
        """Have something announced at the next tick; safe from any thread."""
        self._reports.append(transition)

    @property
    def open(self) -> list[Incident]:
        """Open incidents, the worst first; from any thread."""
        return sorted(self._open, key=lambda i: (-i.level, i.id))

    def standing(self) -> list[Standing]:
        """Return the open incidents with what people have said to them; from any thread."""
        control, wall = self._control.now(), self._clock.wall()
        return [
            Standing(i, i.id in control.acknowledged, control.silenced_until(i.rule, i.resource, wall))
            for i in self.open
        ]

    def lately(self, seconds: float) -> list[Transition]:
        """Return what was announced in the last seconds, the newest last."""
        since = self._clock.mono() - seconds
        return [row for row in self._lately if row.mono >= since]

    def tick(
        self,
        snapshot: Snapshot,
        forecasts: Iterable[Forecast],
        transitions: Iterable[Transition],
        store_error: Said = "",
        store_damage: Said = "",
    ) -> None:
        """Announce what a tick found: memory first, which cannot wait."""
        forecasts = list(forecasts)
        self._announced = False
        self._processes = snapshot.processes
        self._forecasts = {forecast.resource: forecast for forecast in forecasts}
        likely = any(forecast.level >= Level.INFO for forecast in forecasts)
        for channel in self._channels:
            if isinstance(channel, Prepared):
                channel.stand_by(needed=likely)
        for transition in self._found(snapshot, list(transitions), store_error, store_damage):
            self._announce(transition)
        self._close_overdue(snapshot.wall, snapshot.mono, forecasts)
        if self._settings.repeat:
            self._repeat(snapshot, forecasts)
        if self._clock.mono() - self._renewed_mono >= RENEW_SECONDS:
            self._renew_open()
        if self._announced:
            # The channels are at it already; a daemon killed now should know after its restart.
            self._store.flush(SYNC_SECONDS)

    def _found(
        self, snapshot: Snapshot, transitions: Sequence[Transition], store_error: Said, store_damage: Said
    ) -> Iterator[Transition]:
        """Yield what a tick found: ends of exhaustions after the kills, as they say how they ended."""
        yield from (transition for transition in transitions if transition.new > Level.OK)
        growing = {name: f.who_pid for name, f in self._forecasts.items() if f.level > Level.OK and f.who_pid}
        for change in self._rules.observe(
            snapshot, store_error=store_error, store_damage=store_damage, growing=growing
        ):
            yield Transition(
                snapshot.wall, snapshot.mono, change.resource, change.rule, change.old, change.new,
                facts=change.facts,
            )  # fmt: skip
        yield from (transition for transition in transitions if transition.new == Level.OK)
        while self._reports:
            yield self._reports.popleft()

    def close(self, timeout_seconds: float) -> None:
        """Stop sending; what waits is sent by the next run."""
        self._selfsave.close()
        self.dispatcher.close(timeout_seconds)

    def readings(self) -> Iterator[Reading]:
        """Return what there is to say of alerts as metrics; from any thread."""
        yield from metrics.readings(self._open, self.dispatcher.counts.copy(), self.dispatcher.waiting())
        yield from self._score

    def _close_overdue(self, wall: float, mono: float, forecasts: Iterable[Forecast]) -> None:
        for rule, incident in self._ledger.overdue(mono, forecasts):
            now = self._forecasts.get(incident.resource) if rule == MEMORY else None
            level = incident.levels[rule]
            self._announce(Transition(wall, mono, incident.resource, rule, level, Level.OK, forecast=now))

    def _announce(self, wanted: Transition) -> None:
        """Make a row of what fits, put it into the outbox of each channel that wants it, and log it."""
        row = self._ledger.fit(wanted)
        if row is None:
            # What is no news after a restart is so to whoever was stopped before it, and then let go on.
            self._save(wanted)
            return
        if row.forecast is not None and (jobs := jobs_that_fit(row.forecast, self._processes)) is not None:
            row = replace(row, facts={**row.facts, "jobs": jobs})
        before = self._ledger.known(row)
        row = replace(row, facts={**row.facts, **self._story_facts(row, before)})
        if row.forecast is not None and before is not None:
            row = replace(row, forecast=with_victim(row.forecast, before.kill))
        text = compose(row)
        if row.rule == MEMORY and row.new == Level.OK and before and (end := closing(before, row)):
            text = text._replace(evidence=(end, *text.evidence))
        row = replace(row, message=text.headline)
        self._lately.append(row)
        self._log(row)
        number = self._store.record_transition(row, self._messages(row, text, before))
        self.dispatcher.wake()
        self._announced = True
        incident, over = self._ledger.record(number, row)
        if kind_of(row) in ("opened", "escalated") and self._is_silenced(row):
            self._untold.add((row.rule, incident.id))
        for one in (*over, incident):
            self._keep_past(one)
        if row.rule == MEMORY and row.new == Level.OK:
            self._told.pop(row.resource, None)  # what the next one has left is to be compared with itself
        elif row.forecast is not None and row.forecast.eta_seconds is not None:
            self._told[row.resource] = (row.forecast.eta_seconds, row.mono)
        self._renew_open()
        self._keep_score()
        self._save(row)

    def _story_facts(self, row: Transition, before: Incident | None) -> Mapping[str, Fact]:
        """Return what a row of memory keeps for its incident's story: who was in the group, how it ended."""
        if row.rule != MEMORY:
            return {}
        if row.new == Level.OK:
            there = row.resource in self._forecasts
            return end_facts(before, row, self._processes, there=there) if before is not None else {}
        group = row.resource.removeprefix("cgroup:")
        members = [p.pid for p in self._processes if group != row.resource and p.within(group)]
        return {"pids": " ".join(map(str, members[:MOST_MEMBERS]))} if members else {}

    def _save(self, row: Transition) -> None:
        if done := self._selfsave.note(row, self._processes):
            log.warning("%s", done)

    def _keep_past(self, incident: Incident) -> None:
        if incident.closed_wall is not None and incident.rule in score.RULES:
            self._past.append(incident)

    def _keep_score(self) -> None:
        """Make ready what other threads ask for: they must not walk through what changes meanwhile."""
        self._open = tuple(self._ledger.open.values())
        known = {i.id: i for i in (*self._past, *self._open)}  # news of a kill opens what was over
        self._score = tuple(score.readings(known[number] for number in sorted(known)))

    def _repeat(self, snapshot: Snapshot, forecasts: Iterable[Forecast]) -> None:
        """Say it again when half of the time is gone."""
        for forecast in forecasts:
            incident = self._ledger.open.get((MEMORY, forecast.resource))
            eta = forecast.eta_seconds
            level = incident.levels.get(MEMORY, Level.OK) if incident is not None else Level.OK
            if incident is None or level < Level.WARNING or eta is None:
                continue
            told, when = self._told.setdefault(forecast.resource, (eta, snapshot.mono))
            if eta > told / 2 or snapshot.mono - when < REPEAT_SECONDS:
                continue
            self._told[forecast.resource] = (eta, snapshot.mono)
            row = Transition(
                snapshot.wall, snapshot.mono, forecast.resource, MEMORY, level, level, forecast=forecast
            )
            self._post(row, compose(row), incident)

    def _post(self, row: Transition, text: Text, incident: Incident) -> None:
        """Say something of an incident that is no row of its own."""
        for channel, message in self._messages(row, text, incident).items():
            self._store.post(channel, message)
        self.dispatcher.wake()

    def _tell_late(self, row: Transition, incident: Incident) -> None:
        """Say what a silence has kept; of memory with the forecast of now: what was left then is no news."""
        now = self._forecasts.get(row.resource) if row.rule == MEMORY else None
        if now is not None:
            row = replace(row, wall=self._clock.wall(), forecast=now)
        self._post(row, text_now(incident, now), incident)

    def _is_silenced(self, row: Transition) -> bool:
        return self._control.now().silenced_until(row.rule, row.resource, self._clock.wall()) is not None

    def _messages(
        self, row: Transition, text: Text, incident: Incident | None
    ) -> dict[str, Mapping[str, Any]]:
        if self._is_silenced(row):
            return {}
        acknowledged = incident is not None and incident.id in self._control.now().acknowledged
        if acknowledged and kind_of(row) in ("eased", "repeated"):
            return {}
        message = payload(row, text, incident=incident, host=self._place.host)
        return {c.name: message for c in self._channels if self._wants(c, row, incident)}

    def _wants(self, channel: Channel, row: Transition, incident: Incident | None) -> bool:
        worst = max(row.old, row.new)
        if row.new == Level.OK:
            if channel.human and (not self._settings.resolved or is_momentary(row.rule)):
                return False
            worst = incident.worst if incident is not None else worst
        return worst >= self._levels[channel.name]

    def _renew_open(self) -> None:
        self._renewed_mono = self._clock.mono()
        messages = []
        self._untold &= {(rule, i.id) for i in self._ledger.open.values() for rule in i.held}
        held = [(incident, row) for incident in self._ledger.open.values() for row in incident.held.values()]
        for incident, row in held:
            if self._is_silenced(row):
                continue
            if (row.rule, incident.id) in self._untold:  # it outlasts its silence
                self._untold.discard((row.rule, incident.id))
                self._tell_late(row, incident)
            if row.new >= min(self._levels.values(), default=Level.OK):
                text = Text(row.message, compose(row).evidence)
                messages.append(payload(row, text, incident=incident, host=self._place.host))
        self.dispatcher.now_open(messages)

    def _log(self, row: Transition) -> None:
        levels = {"level": row.new.label, "previous_level": row.old.label}
        fields = {"rule": row.rule, "resource": row.resource, **levels}
        # The line is the alert, for people who look into the journal: in their language, unlike other logs.
        spoken = tongue(self._place.language)
        level = spoken.template(row.new.label)
        text = one_line(spoken.text(row.message), HEADLINE_CHARACTERS)
        line = spoken.t("{title}: {text}", title=level, text=text)
        if self._journal is None or not self._journal.write(line, row.new.label, fields):
            log.log(_LOG_LEVEL[row.new], "%s", line)
