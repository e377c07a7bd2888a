"""Incidents: transition rows grouped from ok to ok, which open, escalate, ease and close; and the score.

Only the rows are stored: an incident is a fold over them, its number the id of its first row. Its size does not depend
on the number of rows: an unprivileged user can add thousands per day to one that never ends. Exhaustion of memory, its
kills, and jobs paused before it are one story, hence one incident of the resource.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Literal, NamedTuple

from wslgpud.alerts.rules import BRAKE, DAEMON_KILL, OOM_KILL, OTHERS, UNCLEAN_END, is_momentary, rule_named
from wslgpud.metrics import counter, gauge
from wslgpud.model import MEMORY, Forecast, Level, Reading, Transition
from wslgpud.risk.levels import shown_level
from wslgpud.risk.settings import RiskSettings
from wslgpud.words import Message, MessageLike

Kind = Literal["opened", "escalated", "eased", "closed", "repeated"]
#: a story (see ``story``) and a resource
Key = tuple[str, str]

#: after a restart the risk engine has no history: its alarms stay open for this long without it
GRACE_SECONDS = 60.0
#: and for this long where no more is left than when they were raised: growth may continue
STILL_SECONDS = 900.0
#: share of the capacity that must be free again for the shorter of the two, as in the risk engine
RECOVERED_SHARE = RiskSettings().recovery
#: a repeated event adds a row to its incident at most this often
EVENT_INTERVAL_SECONDS = 30.0
#: growth this long after a kill, which freed the memory, opens another incident
NEW_STORY_SECONDS = 30.0
#: growth below this share of the capacity is ignored, as in the risk engine
NOISE_SHARE = RiskSettings().noise
#: how long the report of an unclean end counts as open: nothing ends it
REPORT_SECONDS = 600.0
#: an alarm was justified if less than this share of memory was left meanwhile
CLOSE_CALL_SHARE = 0.10
#: a kill frees memory at once, but the kernel log or the process list may show it later: one reported this soon after
#: an exhaustion is how that ended
LATE_KILL_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class Incident:
    """An incident of one resource; ``rule`` is that of its first row."""

    id: int
    rule: str
    resource: str
    level: Level
    worst: Level
    opened_wall: float
    changed_wall: float
    #: the headline of its worst message
    message: Message
    first: Transition
    last: Transition
    last_id: int
    #: by rule, the last row of its current alarm
    held: Mapping[str, Transition] = field(default_factory=lambda: MappingProxyType({}))
    #: when it first reached a warning, before any kill
    warned_wall: float | None = None
    #: whom its last warning named
    who: MessageLike = ""
    #: the lowest headroom of its rows, and the capacity
    least_bytes: tuple[int, int] | None = None
    #: the last row with which a job paused because of it no longer was
    resumed: Transition | None = None
    #: its first kill, and when the last one was reported
    kill: Transition | None = None
    kill_told_wall: float | None = None
    closed_wall: float | None = None
    #: number of the last row that told of a lost job
    lost_id: int | None = None

    @property
    def key(self) -> Key:
        """Return the key that only one open incident can have."""
        return story(self.rule), self.resource

    @property
    def paused(self) -> Transition | None:
        """The row of a job paused because of it, while it is paused."""
        return self.held.get(BRAKE)

    def stands_still(self, now: Forecast | None) -> bool:
        """Return whether a job is paused because of it, and no other process keeps growing."""
        if self.paused is None or now is None or now.level < Level.CRITICAL:
            return self.paused is not None
        left = self.paused.facts.get("left_bytes")
        return isinstance(left, (int, float)) and now.headroom_bytes >= left - NOISE_SHARE * now.capacity_bytes

    @property
    def close_call(self) -> bool:
        return self.least_bytes is not None and self.least_bytes[0] < CLOSE_CALL_SHARE * self.least_bytes[1]

    @property
    def killed_wall(self) -> float | None:
        return None if self.kill is None else _told_wall(self.kill, "killed_wall")

    @property
    def loss(self) -> Transition | None:
        """The row that tells that a job was lost: its first kill, or an allocation that failed although warned of."""
        if self.lost_id is None:
            return None
        return self.kill or (self.first if self.rule == DAEMON_KILL else self.last)

    @property
    def lost_wall(self) -> float:
        """When the job was lost; the last change where none was."""
        return self.killed_wall or _told_wall(self.loss or self.last, "ended_wall")

    @property
    def lead_seconds(self) -> float | None:
        """Time from the warning to the kill; None without either."""
        if self.killed_wall is None or self.warned_wall is None:
            return None
        return max(0.0, self.killed_wall - self.warned_wall) or None


def _told_wall(row: Transition, name: str) -> float:
    """Return the moment that a row tells of, else that of the row."""
    told = row.facts.get(name)
    return float(told) if isinstance(told, (int, float)) else row.wall


class UnseenLoss(NamedTuple):
    """The newest incident in which a job was lost, until somebody has seen it; ``others`` counts those before it."""

    incident: Incident
    others: int = 0


class OpenIncident(NamedTuple):
    incident: Incident
    acknowledged: bool
    silenced_until_wall: float | None


def story(rule: str) -> str:
    """Return the rule whose story the rows of this one belong to."""
    return MEMORY if rule in (OOM_KILL, BRAKE) else rule


def kind_of(transition: Transition) -> Kind:
    if Level.OK in (transition.new, transition.old):
        return "closed" if transition.new == Level.OK else "opened"
    if transition.new == transition.old:
        return "repeated"
    return "escalated" if transition.new > transition.old else "eased"


class Fold:
    """Builds incidents from rows that come one at a time, by number.

    Rows lost in a crash leave gaps: an incident that is not closed before the next of its kind opens ended at an
    unknown time, so it ends with its last row. An end without a beginning, which was deleted, is ignored.
    """

    def __init__(self, open_ones: Iterable[Incident] = ()) -> None:
        self.open: dict[Key, Incident] = {i.key: i for i in open_ones if i.closed_wall is None}
        #: closed, but the report of a kill that ended it may still come
        self.lately: dict[Key, Incident] = {}

    def known(self, row: Transition) -> Incident | None:
        """Return the incident that a row continues; None where it opens another one."""
        key = story(row.rule), row.resource
        known = self.open.get(key) or self.lately.get(key)
        return None if known is None or _begins_anew(known, row) else known

    def take(self, number: int, row: Transition) -> tuple[Incident, list[Incident]]:
        """Return the updated incident of a row, and those that are final."""
        key, known = (story(row.rule), row.resource), self.known(row)
        before = self.open.pop(key, None)
        over = [] if before is None or before is known else [replace(before, closed_wall=before.changed_wall)]
        if known is not None:
            self.lately.pop(key, None)
        settled = [i for i in self.lately.values() if abs(row.wall - i.changed_wall) > LATE_KILL_SECONDS]
        over += [self.lately.pop(incident.key) for incident in settled]
        incident = after(known, number, row)
        if incident.closed_wall is None:
            self.open[key] = incident
        elif known is not None and incident.rule == MEMORY and incident.kill is None:
            self.lately[key] = incident
        elif known is not None:
            over.append(incident)
        return incident, over


def _begins_anew(known: Incident, row: Transition) -> bool:
    if known.closed_wall is not None:
        return row.rule != OOM_KILL or row.new == Level.OK or abs(row.wall - known.closed_wall) > LATE_KILL_SECONDS
    if kind_of(row) != "opened":
        return False
    # After a kill the resource is free, and new growth is another story.
    fills = row.rule == MEMORY and known.kill_told_wall is not None
    return row.rule in known.held or (fills and row.wall - (known.kill_told_wall or 0.0) > NEW_STORY_SECONDS)


def grouped(rows: Iterable[tuple[int, Transition]]) -> Iterator[Incident]:
    """Yield the incidents of the rows, each as soon as it has ended, then the open ones.

    The rows come by number, and not by the wall clock, which jumps; they are taken one at a time.
    """
    folding = Fold()
    for number, row in rows:
        yield from folding.take(number, row)[1]
    yield from (*folding.lately.values(), *folding.open.values())


def after(known: Incident | None, number: int, row: Transition) -> Incident:
    """Return the incident updated by a row, or a new one if none is ``known``."""
    if known is None:
        what = row.rule, row.resource, row.new, row.new, row.wall, row.wall, row.message
        known = Incident(number, *what, first=row, last=row, last_id=number)
    held = {rule: last for rule, last in known.held.items() if rule != row.rule}
    if row.new > Level.OK:
        held[row.rule] = row
    kills = row.rule == OOM_KILL and row.new >= row.old
    if kills and known.kill is None:
        known = replace(known, kill=row)
        # The kernel's own moment may lie before the first row of the story that it ends.
        if 0.0 < known.opened_wall - known.lost_wall <= LATE_KILL_SECONDS:
            known = replace(known, opened_wall=known.lost_wall)
    if known.kill is None and known.warned_wall is None and row.new >= Level.WARNING:
        known = replace(known, warned_wall=row.wall)
    if row.rule == MEMORY and row.new >= Level.WARNING and row.forecast is not None:
        known = replace(known, who=row.forecast.who or known.who)
    paused = row.rule == BRAKE and row.new > Level.OK
    # A paused job is the headline of its incident; an alarm that is no worse does not replace it.
    saved = known.resumed is not None or known.paused is not None
    if kills or (known.kill is None and (paused or row.new > known.worst or (row.new == known.worst and not saved))):
        known = replace(known, message=row.message)
    if row.rule == BRAKE and row.new == Level.OK:
        known = replace(known, resumed=row)
    least, now = known.least_bytes, row.forecast
    if now is not None and (least is None or now.headroom_bytes * least[1] < least[0] * now.capacity_bytes):
        least = now.headroom_bytes, now.capacity_bytes
    refused = row.new == Level.OK and now is not None and now.cause == "refused" and known.warned_wall is not None
    return replace(
        known,
        lost_id=number if kills or row.rule == DAEMON_KILL or refused else known.lost_id,
        level=max((last.new for last in held.values()), default=Level.OK),
        held=held,
        worst=max(known.worst, row.new),
        changed_wall=row.wall,
        last=row,
        last_id=number,
        kill_told_wall=row.wall if kills else known.kill_told_wall,
        least_bytes=least,
        closed_wall=None if held else row.wall,
    )


class IncidentLedger(Fold):
    """The open incidents. Every change of level becomes a row here that continues from the last one."""

    def __init__(self, incidents: Iterable[Incident], mono: float, wall: float) -> None:
        """Take over incidents left open by earlier runs; ``mono`` and ``wall`` are the current time."""
        super().__init__(incidents)
        for key, incident in self.open.items():  # the monotonic clock of an earlier boot is meaningless
            rows = {n: replace(row, mono=mono - max(0.0, wall - row.wall)) for n, row in incident.held.items()}
            self.open[key] = replace(incident, held=rows)
        #: by resource, when a memory alarm that the risk engine has not confirmed since was inherited
        self._inherited = {resource: mono for rule, resource in self.held() if rule == MEMORY}

    def held(self) -> dict[Key, Transition]:
        """Return the last row of each rule and resource that is not ok."""
        return {(row.rule, row.resource): row for incident in self.open.values() for row in incident.held.values()}

    def reconcile(self, wanted: Transition) -> Transition | None:
        """Return the row that brings the incident to the new level; None if it is there already.

        A restarted engine reports "ok to warning" for an incident that is open at critical: the row states the actual
        change. A second unclean end is a new incident, with its own black box.
        """
        if wanted.rule == UNCLEAN_END and wanted.new > Level.OK:
            return replace(wanted, old=Level.OK)
        key = wanted.rule, wanted.resource
        if wanted.rule == MEMORY:
            self._inherited.pop(wanted.resource, None)
        last = self.held().get(key)
        if last is None:
            return replace(wanted, old=Level.OK) if wanted.new > Level.OK else None
        news = is_momentary(wanted.rule) and wanted.mono - last.mono >= EVENT_INTERVAL_SECONDS
        news = news or (wanted.rule == BRAKE and wanted.facts.get("job") != last.facts.get("job"))
        return replace(wanted, old=last.new) if news or wanted.new != last.new else None

    def overdue(self, mono: float, forecasts: Iterable[Forecast]) -> list[Transition]:
        """Return the rows to close: memory alarms that are no longer confirmed, and reports of unclean ends.

        ``forecasts`` are the current ones.
        """
        now, held = {forecast.resource: forecast for forecast in forecasts}, self.held()
        for rule, resource in held:
            # An engine at ok that reported no change was restarted after a bug, and does not know about it.
            if rule == MEMORY and resource in now and shown_level(now[resource]) == Level.OK:
                self._inherited.setdefault(resource, mono)
        return [row for row in held.values() if self._is_over(row, mono, now.get(row.resource))]

    def _is_over(self, row: Transition, mono: float, now: Forecast | None) -> bool:
        """Return whether a level is no longer justified; ``now`` is the forecast for its resource."""
        if row.rule == UNCLEAN_END:
            return mono - row.mono > REPORT_SECONDS
        if row.rule == MEMORY and row.resource in self._inherited:
            known = self.open[MEMORY, row.resource].last.forecast
            grace = STILL_SECONDS if _as_short(known, now) else GRACE_SECONDS
            calm = now is None or shown_level(now) == Level.OK
            return calm and mono - self._inherited[row.resource] > grace
        return rule_named(row.rule) is None and row.rule not in OTHERS  # a rule of another version


def _as_short(then: Forecast | None, now: Forecast | None) -> bool:
    """Return whether no more of a resource is left than when its level was last raised."""
    if then is None or now is None or then.capacity_bytes <= 0 or now.capacity_bytes <= 0:
        return False
    back = now.headroom_bytes / now.capacity_bytes - then.headroom_bytes / then.capacity_bytes
    return back < RECOVERED_SHARE


#: the rules whose incidents count for the score
SCORED = (MEMORY, OOM_KILL, UNCLEAN_END)
#: a warning later than this leaves no time to act
IN_TIME_SECONDS = 5.0

# Alerts as metrics, and the daemon's own score: how many exhaustions it warned of in time, and how many false alarms
# there were. Not stored as samples: they follow from rows and outbox.
LEVEL = gauge(
    "alert_level",
    "Level of each open incident: 1 info, 2 warning, 3 critical, 4 emergency; absent when it is closed.",
    "rule",
    "resource",
    stored=False,
)
OPENED = gauge(
    "alert_opened_timestamp_seconds",
    "When each open incident began, in seconds since the epoch; absent when it is closed.",
    "rule",
    "resource",
    stored=False,
)
DELIVERIES = counter(
    "alert_deliveries",
    "Messages by channel and outcome: sent, failed (retried), or given up: refused, expired, dropped (too many in the "
    "queue), replaced (by a later step up of the same alarm).",
    "channel",
    "outcome",
    stored=False,
)
WAITING = gauge(
    "alert_deliveries_waiting",
    "Messages waiting for a channel; many: it is down, or quiet hours.",
    "channel",
    stored=False,
)
EXHAUSTIONS = counter(
    "exhaustions",
    "Processes killed for lack of memory, by whether there was a warning at least 5 s before.",
    "warned",
    stored=False,
)
FALSE_ALARMS = counter(
    "false_alarms",
    "Memory warnings that ended without a kill, with more than 10 % of the memory left throughout.",
    stored=False,
)
LEAD = gauge("warning_lead_seconds", "Time from the warning to the last kill; absent without a kill.", stored=False)
METRICS = (LEVEL, OPENED, DELIVERIES, WAITING, EXHAUSTIONS, FALSE_ALARMS, LEAD)


def readings(
    open_ones: Iterable[Incident], counts: Mapping[tuple[str, str], int], waiting: Mapping[str, int]
) -> Iterator[Reading]:
    for incident in open_ones:
        for rule, row in incident.held.items():
            yield Reading(LEVEL, int(row.new), (rule, incident.resource))
            yield Reading(OPENED, incident.opened_wall, (rule, incident.resource))
    yield from (Reading(DELIVERIES, count, labels) for labels, count in counts.items())
    yield from (Reading(WAITING, number, (channel,)) for channel, number in waiting.items())


def false_alarm(incident: Incident, incidents: Iterable[Incident]) -> bool:
    end = incident.closed_wall
    if incident.rule != MEMORY or incident.worst < Level.WARNING or end is None or incident.kill is not None:
        return False
    # If the machine or the daemon ended meanwhile, the outcome is unknown.
    if any(i.rule == UNCLEAN_END and incident.opened_wall <= i.opened_wall <= end + 60.0 for i in incidents):
        return False
    return not incident.close_call


def score(incidents: Sequence[Incident]) -> Iterator[Reading]:
    leads = [incident.lead_seconds for incident in incidents if incident.kill is not None]
    in_time = sum(lead is not None and lead >= IN_TIME_SECONDS for lead in leads)
    yield Reading(EXHAUSTIONS, in_time, ("yes",))
    yield Reading(EXHAUSTIONS, len(leads) - in_time, ("no",))
    yield Reading(FALSE_ALARMS, false_alarms(incidents, incidents))
    if leads and leads[-1] is not None:
        yield Reading(LEAD, round(leads[-1], 1))


def false_alarms(warned: Iterable[Incident], known: Iterable[Incident]) -> int:
    """Return how many of these were false alarms, given all incidents."""
    ends = [incident for incident in known if incident.rule == UNCLEAN_END]
    return sum(false_alarm(incident, ends) for incident in warned)
