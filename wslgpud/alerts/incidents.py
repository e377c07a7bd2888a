"""Incidents: transition rows grouped from ok to ok. They open, escalate, ease and close, over restarts.

Only the rows are kept: an incident is what a fold over them finds, its number the id of its first row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from wslgpud.alerts.rules import MEMORY, OTHERS, UNCLEAN_END, is_momentary, rule_named
from wslgpud.model import Forecast, Level, Number, Transition

Kind = Literal["opened", "escalated", "eased", "closed", "repeated"]
Key = tuple[str, str]

#: after a restart the risk engine knows no history: what it had raised stays open for this long without it
GRACE_SECONDS = 60.0
#: and for so long where no more is left than when it was raised: it may be growing as before
STILL_SECONDS = 900.0
#: share of the capacity that must have come back for the shorter of the two; ``risk`` asks for as much
RECOVERED_SHARE = 0.08
#: what happens again and again is one more row of its incident at most this often
AGAIN_SECONDS = 30.0
#: how long the report of an unclean end counts as open: there is nothing that could make it end
REPORT_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class Incident:
    """One stretch of trouble with one resource under one rule."""

    id: int
    rule: str
    resource: str
    level: Level
    worst: Level
    opened_wall: float
    changed_wall: float
    headline: str
    transitions: tuple[Transition, ...]
    closed_wall: float | None = None

    @property
    def key(self) -> Key:
        """What may have only one open incident."""
        return self.rule, self.resource


class Standing(NamedTuple):
    """An open incident and what people have said to it."""

    incident: Incident
    acknowledged: bool
    silenced_until_wall: float | None


def kind_of(transition: Transition) -> Kind:
    """Return what a transition does to its incident."""
    if transition.new == Level.OK:
        return "closed"
    if transition.old == Level.OK:
        return "opened"
    if transition.new == transition.old:
        return "repeated"
    return "escalated" if transition.new > transition.old else "eased"


def fold(rows: Iterable[tuple[int, Transition]]) -> list[Incident]:
    """Return the incidents that the rows make up, by number.

    Rows lost with a crash leave marks: an incident that is not closed before another one of its kind opens
    ended at a time that nobody knows, so it ends with its last row.
    """
    open_ones: dict[Key, Incident] = {}
    done: list[Incident] = []
    for number, row in sorted(rows, key=lambda pair: pair[0]):  # not by the wall clock, which jumps
        key = (row.rule, row.resource)
        known = open_ones.pop(key, None)
        if known is None or kind_of(row) == "opened":
            if known is not None:
                done.append(replace(known, closed_wall=known.changed_wall))
            if row.new == Level.OK:
                continue  # the row that opened it has been deleted
            open_ones[key] = Incident(
                number, row.rule, row.resource, row.new, row.new, row.wall, row.wall, row.headline, (row,)
            )
            continue
        grown = replace(
            known,
            level=row.new,
            worst=max(known.worst, row.new),
            changed_wall=row.wall,
            headline=row.headline if row.new >= known.worst else known.headline,
            transitions=(*known.transitions, row),
        )
        if row.new == Level.OK:
            done.append(replace(grown, closed_wall=row.wall))
        else:
            open_ones[key] = grown
    return sorted([*done, *open_ones.values()], key=lambda incident: incident.id)


class Ledger:
    """The open incidents. Every change of level passes through here and becomes a row that fits the last."""

    def __init__(self, incidents: Iterable[Incident], mono: float, wall: float) -> None:
        """Take over those that earlier runs left open; ``mono`` and ``wall`` are now."""
        self.open: dict[Key, Incident] = {i.key: i for i in incidents if i.closed_wall is None}
        self._inherited = dict.fromkeys(self.open, mono)
        self._since = {key: mono - max(0.0, wall - i.changed_wall) for key, i in self.open.items()}

    def levels(self) -> Mapping[Key, Level]:
        """Return the level of each open incident."""
        return {key: incident.level for key, incident in self.open.items()}

    def facts(self) -> Mapping[Key, Mapping[str, str | Number]]:
        """Return what was last seen of each open incident."""
        return {key: incident.transitions[-1].facts for key, incident in self.open.items()}

    def fit(self, wanted: Transition) -> Transition | None:
        """Return the row that brings the incident to the level wanted; None when it is there already.

        An engine that has begun anew says "ok to warning" of an incident that is open at critical: the row
        says what really changes. A second unclean end is another one, with a black box of its own.
        """
        key = (wanted.rule, wanted.resource)
        if wanted.rule == UNCLEAN_END and wanted.new > Level.OK:
            return replace(wanted, old=Level.OK)
        held = self.open[key].level if key in self.open else Level.OK
        self._inherited.pop(key, None)
        if wanted.new == held:
            news = is_momentary(wanted.rule) and held > Level.OK
            if not news or wanted.mono - self._since[key] < AGAIN_SECONDS:
                return None
        return replace(wanted, old=held)

    def record(self, number: int, row: Transition) -> Incident:
        """Note a row that has been written under ``number``; return the incident as it is now."""
        key = (row.rule, row.resource)
        known = self.open.pop(key, None)
        rows = [(known.id, t) for t in known.transitions] if known is not None else []
        incident = fold([*rows, (number, row)])[-1]
        if incident.closed_wall is None:
            self.open[key] = incident
            self._since[key] = row.mono
        else:
            self._since.pop(key, None)
        return incident

    def overdue(self, mono: float, forecasts: Iterable[Forecast]) -> list[Incident]:
        """Return inherited incidents that nothing holds open any more, and those whose time is over.

        What happened at a moment stays open to keep a burst together: a kill of last night is no trouble now.

        Args:
            mono: now.
            forecasts: what the risk engine thinks now.
        """
        now = {forecast.resource: forecast for forecast in forecasts}
        for key in self.open:
            # An engine that says ok and has told of no change began anew: it failed, and knows nothing of it.
            if key[0] == MEMORY and key[1] in now and now[key[1]].level == Level.OK:
                self._inherited.setdefault(key, mono)
        self._inherited = {key: since for key, since in self._inherited.items() if key in self.open}
        found = [self.open[key] for key in self._inherited if self._is_over(key, mono, now.get(key[1]))]
        for key, incident in self.open.items():
            if incident.rule == UNCLEAN_END and mono - self._since[key] > REPORT_SECONDS:
                found.append(incident)
        return found

    def _is_over(self, key: Key, mono: float, now: Forecast | None) -> bool:
        """Tell whether nothing holds an inherited incident open; ``now`` is the forecast for its resource."""
        name, rule = key[0], rule_named(key[0])
        if name == MEMORY:
            grace = STILL_SECONDS if _as_short(self.open[key], now) else GRACE_SECONDS
            return (now is None or now.level == Level.OK) and mono - self._inherited[key] > grace
        if rule is None:
            return name not in OTHERS  # a rule of another version
        return rule.momentary and mono - self._since[key] > rule.clear_seconds


def _as_short(incident: Incident, now: Forecast | None) -> bool:
    """Tell whether no more of a resource is left than when its level was last raised."""
    then = incident.transitions[-1].forecast
    if then is None or now is None or then.capacity_bytes <= 0 or now.capacity_bytes <= 0:
        return False
    back = now.headroom_bytes / now.capacity_bytes - then.headroom_bytes / then.capacity_bytes
    return back < RECOVERED_SHARE
