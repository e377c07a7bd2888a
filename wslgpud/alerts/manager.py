"""The alert manager: turns changes of level into rows, messages, log lines, and the alerts' own score.

It also keeps the silences and acknowledgements, and which lost jobs somebody has seen.
"""

from __future__ import annotations

import json
import logging
import math
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from wslgpud.alerts import incidents
from wslgpud.alerts.channels import Channel, Payload
from wslgpud.alerts.dispatcher import Dispatcher, lowest_levels, optional_channels
from wslgpud.alerts.incidents import Incident, IncidentLedger, OpenIncident, UnseenLoss, grouped, kind_of
from wslgpud.alerts.messages import announcement, compose, payload, tally, text_now
from wslgpud.alerts.rules import RuleEngine, is_momentary
from wslgpud.alerts.save_request import SaveRequests
from wslgpud.config import Alerts
from wslgpud.host import Clock
from wslgpud.model import MEMORY, Forecast, Level, ProcessSample, Reading, Snapshot, Transition
from wslgpud.security import safe_files
from wslgpud.store import Store
from wslgpud.words import HEADLINE_CHARACTERS, Message, MessageLike, cause, say, translator
from wslgpud.words.units import one_line

log = logging.getLogger(__name__)

#: window of the score, and of the search for open incidents other than those of ``rules.LASTING``
HISTORY_SECONDS = 30 * 86400.0
#: minimum interval between repeats: where time runs out faster, each step of the level is news enough
REPEAT_SECONDS = 600.0
#: a warning this soon after the end of the last one about the same resource begins with "Again"
RETURN_SECONDS = 1800.0
#: the longest that a tick waits for its rows to be on disk, after the channels have them
SYNC_SECONDS = 0.3
#: rows that ``lately`` and ``recent`` scan
MAX_LATELY = 20
#: how far back ``recent`` looks, and how many rows it lists
RECENT_SECONDS, MAX_RECENT = 24 * 3600.0, 10
#: incidents kept for the score
_MAX_INCIDENTS = 2000
#: silences, acknowledgements and seen losses, in the state folder, and the most entries of each
FILE, _MAX_ENTRIES = "alerts.json", 200

_LOG_LEVELS = (logging.INFO, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL)


@dataclass(frozen=True)
class Installation:
    host: str
    state_folder: Path
    data_folder: Path
    language: str


class AlertManager:
    """Announces the findings of each tick. ``tick`` never waits for a channel."""

    def __init__(  # noqa: PLR0913 - it brings them together
        self,
        settings: Alerts,
        channels: Sequence[Channel],
        store: Store,
        clock: Clock,
        place: Installation,
        *,
        rows: Iterable[tuple[int, Transition]] = (),
        unseen_since_wall: float = math.inf,
    ) -> None:
        """Take over incidents left open by earlier runs, and prepare the channels.

        ``rows`` yields the transitions of the last ``HISTORY_SECONDS`` and older ones of ``rules.LASTING``, by id.
        Kernel messages since ``unseen_since_wall``, the end of the last run, are new.

        Raises:
            ConfigError: a setting is invalid.
        """
        self._settings, self._store, self._clock, self._place = settings, store, clock, place
        self._channels, self._began = channels, clock.mono()
        self._levels = lowest_levels(settings)
        spoken = translator(place.language)
        self.dispatcher = Dispatcher(channels, store.outbox, clock, settings, spoken, self.reminders)
        # Closed ones are kept only for the score and for lost jobs, and so only those that count for these.
        self._past: deque[Incident] = deque(maxlen=_MAX_INCIDENTS)
        left: list[Incident] = []
        earlier: deque[Transition] = deque(maxlen=MAX_LATELY)
        ended_wall = unseen_since_wall

        def noted() -> Iterator[tuple[int, Transition]]:
            for number, row in rows:
                earlier.append(row)
                yield number, row

        for incident in grouped(noted()):
            left += [incident] if incident.closed_wall is None else []
            self._keep_past(incident)
            if is_momentary(incident.rule):
                unseen_since_wall = max(unseen_since_wall, incident.changed_wall)
        self._ledger = IncidentLedger(left, clock.mono(), clock.wall())
        self.left_open = tuple(self._ledger.open.values())
        self._rules = RuleEngine(state_folder=str(place.data_folder), since_wall=unseen_since_wall)
        self._rules.resume(self._ledger.held().values(), clock.mono())
        self.control = ControlFile(place.state_folder, log.warning)
        self._save_requests = SaveRequests(settings)
        #: the processes paused by the brake, by pid and start time, set by the loop
        self.paused: frozenset[tuple[int, int]] = frozenset()
        # rules and incidents of the alerts that a silence covers, or covered when the last run ended
        self._silenced = {
            (rule, incident.id)
            for incident in self.left_open
            for rule in incident.held
            if self.control.now.silenced_until(rule, incident.resource, ended_wall) is not None
        }
        self._announced = False
        self._reports: deque[Transition] = deque()
        # The monotonic times of earlier runs mean nothing in this one.
        self._lately = deque((replace(row, mono=-math.inf) for row in earlier), MAX_LATELY)
        self._processes: Sequence[ProcessSample] = ()
        self._forecasts: Mapping[str, Forecast] = {}
        oldest = clock.wall() - settings.expire_hours * 3600.0
        names, optional = {channel.name for channel in channels}, optional_channels(settings)
        for delivery in store.outbox.unsent():
            back = delivery.channel in optional and delivery.created_wall >= oldest
            if delivery.channel not in names and not back:
                store.outbox.tried(delivery.id, say("the channel is no longer configured"), done=True)
        self._close_overdue(clock.wall(), clock.mono())
        self._share_copies()

    def report(self, transition: Transition) -> None:
        """Announce something at the next tick; safe from any thread."""
        self._reports.append(transition)

    def standing(self) -> list[OpenIncident]:
        """Return the open incidents, worst first, with their silences and acknowledgements; from any thread."""
        control, wall = self.control.now, self._clock.wall()
        return [
            OpenIncident(i, i.id in control.acknowledged, control.silenced_until(i.rule, i.resource, wall))
            for i in sorted(self._open, key=lambda i: (-i.level, i.id))
        ]

    def unseen(self) -> UnseenLoss | None:
        """Return the newest lost job that nobody has seen; from any thread. Who has seen one has seen those before."""
        seen_id = self.control.now.seen_id
        unseen = [i for i in self._known if i.lost_id is not None and i.lost_id > seen_id]
        return UnseenLoss(max(unseen, key=lambda i: i.lost_id or 0), len(unseen) - 1) if unseen else None

    def see(self, number: int) -> bool:
        """Note that somebody has seen that a job was lost in an incident; False if it waits for nobody.

        Raises OSError: that cannot be kept.
        """
        unseen = self.unseen()
        if unseen is None or unseen.incident.id != number:
            return False
        self.control.see(unseen.incident.last_id)
        return True

    def tally(self) -> Message | None:
        now, ran = self._clock.wall(), self._clock.mono() - self._began
        watched = min(HISTORY_SECONDS, self._store.watched_seconds + ran)
        return tally(self._known, now - HISTORY_SECONDS, watched)

    def lately(self, seconds: float) -> list[Transition]:
        since = self._clock.mono() - seconds
        return [row for row in self._lately if row.mono >= since]

    def recent(self) -> list[Transition]:
        """Return the last rows of a day, those of earlier runs included, newest first."""
        since_wall = self._clock.wall() - RECENT_SECONDS
        return [row for row in reversed(self._lately) if row.wall >= since_wall][:MAX_RECENT]

    def reminders(self, channel: str) -> list[Payload]:
        """Return messages of open, unsilenced incidents at the channel's levels; from any thread."""
        return [
            payload(row, compose(row), incident=incident, host=self._place.host)
            for incident in self._open
            for row in incident.held.values()
            if row.new >= self._levels[channel] and not self._is_silenced(row)
        ]

    def tick(
        self,
        snapshot: Snapshot,
        forecasts: Iterable[Forecast],
        transitions: Iterable[Transition],
        store_error: MessageLike = "",
        store_damage: MessageLike = "",
    ) -> None:
        """Announce the findings of a tick: memory first, which cannot wait."""
        self._announced = False
        self._processes = snapshot.processes
        self._forecasts = {forecast.resource: forecast for forecast in forecasts}
        for transition in self._found(snapshot, list(transitions), store_error, store_damage):
            self._announce(transition)
        for forecast in self._forecasts.values():
            if done := self._save_requests.ask(forecast, snapshot.processes, self.paused):
                log.warning("%s", done)
        # Warnings are out by now: starting a process may take long while memory is short.
        likely = any(forecast.level >= Level.INFO for forecast in self._forecasts.values())
        for channel in self._channels:
            channel.keep_warm(needed=likely)
        self._close_overdue(snapshot.wall, snapshot.mono)
        if self._settings.repeat:
            self._repeat(snapshot)
        self._tell_after_silence()
        if self._announced:
            # The channels are already sending; a daemon killed now should know after its restart.
            self._store.flush(SYNC_SECONDS)

    def close(self, timeout_seconds: float) -> None:
        self.dispatcher.close(timeout_seconds)

    def readings(self) -> Iterator[Reading]:
        """Return the metrics of alerts; from any thread."""
        yield from incidents.readings(self._open, self.dispatcher.counts.copy(), self.dispatcher.waiting())
        yield from self._score

    def _found(
        self, snapshot: Snapshot, transitions: Sequence[Transition], store_error: MessageLike, store_damage: MessageLike
    ) -> Iterator[Transition]:
        # Ends of exhaustions come after the kills that explain them.
        yield from (transition for transition in transitions if transition.new > Level.OK)
        now = self._forecasts.values()
        yield from self._rules.observe(snapshot, store_error=store_error, store_damage=store_damage, forecasts=now)
        yield from (transition for transition in transitions if transition.new == Level.OK)
        while self._reports:
            yield self._reports.popleft()

    def _close_overdue(self, wall: float, mono: float) -> None:
        for row in self._ledger.overdue(mono, self._forecasts.values()):
            now = self._forecasts.get(row.resource) if row.rule == MEMORY else None
            self._announce(Transition(wall, mono, row.resource, row.rule, row.new, Level.OK, forecast=now))

    def _announce(self, wanted: Transition) -> None:
        """Record a change of level and put a message into the outbox of each channel that wants it, unless known."""
        if (row := self._ledger.reconcile(wanted)) is not None:
            self._record(row)

    def _record(self, row: Transition) -> None:
        before = self._ledger.known(row)
        returns = self._returns(row, before)
        row, message = announcement(row, before, self._processes, returns=returns, host=self._place.host)
        self._lately.append(row)
        self._log(row)
        wanting = self._wanting(row, before)
        number = self._store.outbox.record(row, dict.fromkeys(wanting, message))
        self.dispatcher.wake()
        self._announced = True
        incident, ended = self._ledger.take(number, row)
        if wanting:  # its silence is over, and this tells of it
            self._silenced.discard((row.rule, incident.id))
        for one in (*ended, incident):
            self._keep_past(one)
        self._share_copies()

    def _returns(self, row: Transition, before: Incident | None) -> bool:
        """Return whether a row is the first warning of an exhaustion soon after an earlier one was over."""
        first = row.rule == MEMORY and row.new >= Level.WARNING and (before is None or before.warned_wall is None)
        return first and any(
            one.key == (MEMORY, row.resource)
            and one.worst >= Level.WARNING
            and 0.0 <= row.wall - one.changed_wall <= RETURN_SECONDS
            for one in self._past
        )

    def _keep_past(self, incident: Incident) -> None:
        counts = incident.rule in incidents.SCORED or incident.lost_id is not None
        if incident.closed_wall is not None and counts:
            self._past.append(incident)

    def _share_copies(self) -> None:
        # Prepared copies for other threads, which must not iterate over changing containers.
        self._open = tuple(self._ledger.open.values())
        known = {i.id: i for i in (*self._past, *self._open)}  # a reported kill reopens a closed one
        self._known = [known[number] for number in sorted(known)]
        self._score = tuple(incidents.score(self._known))

    def _repeat(self, at: Snapshot) -> None:
        """Repeat a warning of memory once half of the time that was left when it was last told has passed."""
        for incident in self._open:
            last, now = incident.held.get(MEMORY), self._forecasts.get(incident.resource)
            if last is None or last.new < Level.WARNING or at.mono - last.mono < REPEAT_SECONDS:
                continue
            if now is None or now.eta_seconds is None:
                continue
            told = None if last.forecast is None else last.forecast.eta_seconds
            row = Transition(at.wall, at.mono, incident.resource, MEMORY, last.new, last.new, forecast=now)
            if (told is None or now.eta_seconds <= told / 2) and self._wanting(row, incident):
                self._record(row)

    def _tell_after_silence(self) -> None:
        """Send a message about each alert that has outlasted its silence, that of memory with the current forecast.

        One of an earlier run may be over by now, which shows within the first minute.
        """
        before, self._silenced = self._silenced, set()
        starting = self._clock.mono() - self._began <= incidents.GRACE_SECONDS
        for incident in self._open:
            for rule, row in incident.held.items():
                owed = (rule, incident.id) in before
                if self._is_silenced(row) or (owed and starting):
                    self._silenced.add((rule, incident.id))
                elif owed and not self._is_known(row, incident):
                    self._remind(row, incident)

    def _remind(self, row: Transition, incident: Incident) -> None:
        now = self._forecasts.get(row.resource) if row.rule == MEMORY else None
        if now is not None:
            row = replace(row, wall=self._clock.wall(), forecast=now)
        message = payload(row, text_now(incident, now), incident=incident, host=self._place.host)
        for channel in self._wanting(row, incident):
            self._store.outbox.post(channel, message)
        self.dispatcher.wake()

    def _is_known(self, row: Transition, incident: Incident) -> bool:
        """Return whether an acknowledged incident is no worse than when it began."""
        begins = row.rule == incident.rule and kind_of(row) == "opened"
        return begins and incident.id in self.control.now.acknowledged

    def _is_silenced(self, row: Transition) -> bool:
        return self.control.now.silenced_until(row.rule, row.resource, self._clock.wall()) is not None

    def _wanting(self, row: Transition, incident: Incident | None) -> list[str]:
        """Return the channels that get the message of a row."""
        acknowledged = incident is not None and incident.id in self.control.now.acknowledged
        if self._is_silenced(row) or (acknowledged and kind_of(row) in ("eased", "repeated")):
            return []
        if row.rule == MEMORY and row.new < row.old and incident is not None and incident.paused is not None:
            return []  # a paused job does not grow: neither all-clear nor news
        over = row.new == Level.OK
        worst = incident.worst if over and incident is not None else max(row.old, row.new)
        for_people = not over or (self._settings.resolved and not is_momentary(row.rule))
        return [c.name for c in self._channels if worst >= self._levels[c.name] and (for_people or not c.human)]

    def _log(self, row: Transition) -> None:
        # The line is the alert itself, for readers of the journal: in their language, unlike other log lines.
        spoken = translator(self._place.language)
        text = one_line(spoken.text(row.message), HEADLINE_CHARACTERS)
        line = spoken.t("{title}: {text}", title=spoken.label("level", row.new.label), text=text)
        log.log(_LOG_LEVELS[row.new], "%s", line)


@dataclass(frozen=True, slots=True)
class Silence:
    """No messages of a rule (``*``: any) for a resource (``*``: any) until a moment."""

    rule: str
    resource: str
    until_wall: float


@dataclass(frozen=True, slots=True)
class Control:
    silences: tuple[Silence, ...] = ()
    acknowledged: tuple[int, ...] = ()
    #: up to this row, somebody has seen which jobs were lost
    seen_id: int = -1

    def silenced_until(self, rule: str, resource: str, wall: float) -> float | None:
        covering = (s for s in self.silences if s.rule in ("*", rule) and s.resource in ("*", resource))
        return max((s.until_wall for s in covering if wall < s.until_wall), default=None)


class ControlFile:
    """Keeps it across restarts; from any thread. Only the daemon writes: commands ask it to, over its socket."""

    def __init__(self, folder: Path, complain: Callable[[MessageLike], None] = lambda _: None) -> None:
        """Read the file; an unreadable one silences nothing."""
        self.path = folder / FILE
        self._lock = threading.Lock()
        self.now = Control()
        try:
            self.now = self._read()
        except FileNotFoundError:
            pass
        except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:
            complain(
                say("{path} cannot be read, so nothing is silenced: {error}", path=str(self.path), error=cause(error))
            )

    def silence(self, silence: Silence, wall: float) -> None:
        """Replace the silence of that rule and resource, and drop those that are over. OSError: it cannot be kept."""
        with self._lock:
            place = silence.rule, silence.resource
            others = (s for s in self.now.silences if s.until_wall > wall and (s.rule, s.resource) != place)
            self._put(replace(self.now, silences=(*others, silence)))

    def acknowledge(self, number: int, seen_id: int = -1) -> None:
        """Acknowledge an incident, whose jobs lost up to that row somebody has seen. OSError: it cannot be kept."""
        with self._lock:
            others = (known for known in self.now.acknowledged if known != number)
            seen_id = max(seen_id, self.now.seen_id)
            self._put(replace(self.now, acknowledged=(*others, number), seen_id=seen_id))

    def see(self, row_id: int) -> None:
        with self._lock:
            self._put(replace(self.now, seen_id=max(row_id, self.now.seen_id)))

    def _put(self, control: Control) -> None:
        latest = Control(control.silences[-_MAX_ENTRIES:], control.acknowledged[-_MAX_ENTRIES:], control.seen_id)
        safe_files.put(self.path, json.dumps(asdict(latest)), mode=0o644)  # 'wslgpud alerts list' is another user
        self.now = latest

    def _read(self) -> Control:
        document = safe_files.parsed(safe_files.contents(self.path))
        silences = ((str(s["rule"]), str(s["resource"]), float(s["until_wall"])) for s in document["silences"])
        acknowledged = tuple(int(number) for number in document["acknowledged"])
        return Control(tuple(Silence(*s) for s in silences), acknowledged, int(document.get("seen_id", -1)))
