"""Incidents: transition rows grouped from ok to ok. They open, escalate, ease and close, over restarts.

Only the rows are kept: an incident is what a fold over them finds, its number the id of its first row. It is
of one size however many rows it has: an ordinary user can add some thousand a day to one that never ends.
Memory that runs out, whom that kills, and who was paused before it did is one story, and one incident, of the resource.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Literal, NamedTuple

from wslgpud.alerts.rules import BRAKE, OOM_KILL, OTHERS, UNCLEAN_END, is_momentary, rule_named
from wslgpud.model import MEMORY, Forecast, Level, Transition
from wslgpud.words import Message

Kind = Literal["opened", "escalated", "eased", "closed", "repeated"]
#: a story (see ``story``) and a resource
Key = tuple[str, str]

#: after a restart the risk engine knows no history: what it had raised stays open for this long without it
GRACE_SECONDS = 60.0
#: and for so long where no more is left than when it was raised: it may be growing as before
STILL_SECONDS = 900.0
#: share of the capacity that must have come back for the shorter of the two; ``risk`` asks for as much
RECOVERED_SHARE = 0.08
#: a repeated event adds a row to its incident at most this often
AGAIN_SECONDS = 30.0
#: by less of its capacity nothing is said to grow, as for ``risk``
BREATH_SHARE = 0.012
#: how long the report of an unclean end counts as open: there is nothing that could make it end
REPORT_SECONDS = 600.0
#: an alarm was worth it when less than this share of the memory was left while it held
CLOSE_CALL_SHARE = 0.10
#: a kill gives the memory back at once, but the kernel's log or the list of processes may tell of it later:
#: news of one so soon after an exhaustion is how that ended
LATE_KILL_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class Incident:
    """One stretch of trouble with one resource; ``rule`` is that of its first row."""

    id: int
    rule: str
    resource: str
    level: Level
    worst: Level
    opened_wall: float
    changed_wall: float
    #: the headline of the worst that was told
    message: Message
    first: Transition
    last: Transition
    last_id: int
    #: by rule, the last row of what holds now
    held: Mapping[str, Transition] = field(default_factory=lambda: MappingProxyType({}))
    #: when it first was a warning or worse, before anything was killed
    warned_wall: float | None = None
    #: the least that was left at one of its rows, and of how much
    least_bytes: tuple[int, int] | None = None
    #: the row with which a job that was paused because of it no longer was, the last such one
    resumed: Transition | None = None
    resumed_id: int | None = None
    #: its first kill, and when the last one was told
    kill: Transition | None = None
    kill_id: int | None = None
    kill_told_wall: float | None = None
    closed_wall: float | None = None

    @property
    def key(self) -> Key:
        """Return the key that only one open incident can have."""
        return story(self.rule), self.resource

    @property
    def levels(self) -> Mapping[str, Level]:
        return {rule: row.new for rule, row in self.held.items()}

    @property
    def paused(self) -> Transition | None:
        """The row of a job that is paused because of it, while it is."""
        return self.held.get(BRAKE)

    def stands_still(self, now: Forecast | None) -> bool:
        """Tell whether a job is paused because of it, and nobody else goes on taking what is left."""
        if self.paused is None or now is None or now.level < Level.CRITICAL:
            return self.paused is not None
        left = self.paused.facts.get("left_bytes")
        return isinstance(left, (int, float)) and now.headroom_bytes >= left - BREATH_SHARE * now.capacity_bytes

    @property
    def close_call(self) -> bool:
        return self.least_bytes is not None and self.least_bytes[0] < CLOSE_CALL_SHARE * self.least_bytes[1]

    @property
    def killed_wall(self) -> float | None:
        if self.kill is None:
            return None
        told = self.kill.facts.get("killed_wall")
        return float(told) if isinstance(told, (int, float)) else self.kill.wall

    @property
    def lead_seconds(self) -> float | None:
        """How long before the kill it was warned of; None without either."""
        if self.killed_wall is None or self.warned_wall is None:
            return None
        return max(0.0, self.killed_wall - self.warned_wall) or None


class OpenIncident(NamedTuple):
    incident: Incident
    acknowledged: bool
    silenced_until_wall: float | None


def story(rule: str) -> str:
    """Return the rule under which the rows of this one are told."""
    return MEMORY if rule in (OOM_KILL, BRAKE) else rule


def kind_of(transition: Transition) -> Kind:
    if Level.OK in (transition.new, transition.old):
        return "closed" if transition.new == Level.OK else "opened"
    if transition.new == transition.old:
        return "repeated"
    return "escalated" if transition.new > transition.old else "eased"


class Fold:
    """Makes incidents of rows that come one at a time, by number.

    Rows lost with a crash leave marks: an incident that is not closed before another one of its kind opens
    ended at a time that nobody knows, so it ends with its last row. An end whose beginning has been deleted
    is left out.
    """

    def __init__(self, open_ones: Iterable[Incident] = ()) -> None:
        self.open: dict[Key, Incident] = {i.key: i for i in open_ones if i.closed_wall is None}
        #: over, but news of a kill that ended it may still come
        self.lately: dict[Key, Incident] = {}

    def known(self, row: Transition) -> Incident | None:
        """Return the incident that a row goes on with; None where it begins another one."""
        key = story(row.rule), row.resource
        known = self.open.get(key) or self.lately.get(key)
        return None if known is None or _begins_anew(known, row) else known

    def take(self, number: int, row: Transition) -> tuple[Incident, list[Incident]]:
        """Return the incident of a row as it is now, and those over for good."""
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
    # After a kill the resource is free, and who fills it once more begins another story.
    fills = row.rule == MEMORY and known.kill_told_wall is not None
    return row.rule in known.held or (fills and row.wall - (known.kill_told_wall or 0.0) > AGAIN_SECONDS)


def grouped(rows: Iterable[tuple[int, Transition]]) -> Iterator[Incident]:
    """Yield the incidents that the rows make up, each as soon as it has ended, then those that are open.

    The rows come by number, and not by the wall clock, which jumps; they are taken one at a time.
    """
    folding = Fold()
    for number, row in rows:
        yield from folding.take(number, row)[1]
    yield from (*folding.lately.values(), *folding.open.values())


def after(known: Incident | None, number: int, row: Transition) -> Incident:
    """Return the incident as a further row leaves it, the row with which it begins if none is ``known``."""
    if known is None:
        what = row.rule, row.resource, row.new, row.new, row.wall, row.wall, row.message
        known = Incident(number, *what, first=row, last=row, last_id=number)
    held = {rule: last for rule, last in known.held.items() if rule != row.rule}
    if row.new > Level.OK:
        held[row.rule] = row
    kills = row.rule == OOM_KILL and row.new >= row.old
    if kills and known.kill is None:
        known = replace(known, kill=row, kill_id=number)
    if known.kill is None and known.warned_wall is None and row.new >= Level.WARNING:
        known = replace(known, warned_wall=row.wall)
    paused = row.rule == BRAKE and row.new > Level.OK
    # Whom the brake has saved is the story; an alarm that is no worse comes and goes beside it.
    saved = known.resumed is not None or known.paused is not None
    if kills or (known.kill is None and (paused or row.new > known.worst or (row.new == known.worst and not saved))):
        known = replace(known, message=row.message)
    if row.rule == BRAKE and row.new == Level.OK:
        known = replace(known, resumed=row, resumed_id=number)
    least, now = known.least_bytes, row.forecast
    if now is not None and (least is None or now.headroom_bytes * least[1] < least[0] * now.capacity_bytes):
        least = now.headroom_bytes, now.capacity_bytes
    return replace(
        known,
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
    """The open incidents. Every change of level passes through here and becomes a row that fits the last."""

    def __init__(self, incidents: Iterable[Incident], mono: float, wall: float) -> None:
        """Take over those that earlier runs left open; ``mono`` and ``wall`` are now."""
        super().__init__(incidents)
        for key, incident in self.open.items():  # the clock of an earlier boot tells nothing
            rows = {n: replace(row, mono=mono - max(0.0, wall - row.wall)) for n, row in incident.held.items()}
            self.open[key] = replace(incident, held=rows)
        #: by rule and resource, when what nothing has confirmed since was inherited
        self._inherited = dict.fromkeys(self.held(), mono)

    def held(self) -> dict[Key, Transition]:
        """Return the last row of each rule and resource that is not at ok."""
        return {(row.rule, row.resource): row for incident in self.open.values() for row in incident.held.values()}

    def fit(self, wanted: Transition) -> Transition | None:
        """Return the row that brings the incident to the level wanted; None when it is there already.

        An engine that has begun anew says "ok to warning" of an incident that is open at critical: the row
        says what really changes. A second unclean end is another one, with a black box of its own.
        """
        if wanted.rule == UNCLEAN_END and wanted.new > Level.OK:
            return replace(wanted, old=Level.OK)
        key = wanted.rule, wanted.resource
        self._inherited.pop(key, None)
        last = self.held().get(key)
        if last is None:
            return replace(wanted, old=Level.OK) if wanted.new > Level.OK else None
        news = is_momentary(wanted.rule) and wanted.mono - last.mono >= AGAIN_SECONDS
        news = news or (wanted.rule == BRAKE and wanted.facts.get("job") != last.facts.get("job"))
        return replace(wanted, old=last.new) if news or wanted.new != last.new else None

    def overdue(self, mono: float, forecasts: Iterable[Forecast]) -> list[Transition]:
        """Return the rows to close: inherited ones that nothing confirms any more, and reports of unclean ends.

        What happened at a moment stays open to keep a burst together: a kill of last night is no trouble now.
        ``forecasts`` are what the risk engine thinks now.
        """
        now, held = {forecast.resource: forecast for forecast in forecasts}, self.held()
        for rule, resource in held:
            # An engine that says ok and has told of no change began anew: it failed, and knows nothing of it.
            if rule == MEMORY and resource in now and now[resource].level == Level.OK:
                self._inherited.setdefault((rule, resource), mono)
        self._inherited = {key: since for key, since in self._inherited.items() if key in held}
        return [
            row
            for key, row in held.items()
            if (key in self._inherited and self._is_over(row, mono, now.get(row.resource)))
            or (row.rule == UNCLEAN_END and mono - row.mono > REPORT_SECONDS)
        ]

    def _is_over(self, row: Transition, mono: float, now: Forecast | None) -> bool:
        """Tell whether nothing holds an inherited level; ``now`` is the forecast for its resource."""
        key, rule = (row.rule, row.resource), rule_named(row.rule)
        if row.rule == MEMORY:
            grace = STILL_SECONDS if _as_short(self.open[key].last.forecast, now) else GRACE_SECONDS
            return (now is None or now.level == Level.OK) and mono - self._inherited[key] > grace
        if rule is None:
            return row.rule not in OTHERS  # a rule of another version
        return rule.momentary and mono - row.mono > rule.clear_seconds


def _as_short(then: Forecast | None, now: Forecast | None) -> bool:
    """Tell whether no more of a resource is left than when its level was last raised."""
    if then is None or now is None or then.capacity_bytes <= 0 or now.capacity_bytes <= 0:
        return False
    back = now.headroom_bytes / now.capacity_bytes - then.headroom_bytes / then.capacity_bytes
    return back < RECOVERED_SHARE
