"""Incidents: transition rows grouped from ok to ok. They open, escalate, ease and close, over restarts.

Only the rows are kept: an incident is what a fold over them finds, its number the id of its first row. It is
of one size however many rows it has: an ordinary user can add some thousand a day to one that never ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Literal, NamedTuple

from wslgpud.alerts.rules import MEMORY, OTHERS, UNCLEAN_END, is_momentary, rule_named
from wslgpud.model import Forecast, Level, Transition
from wslgpud.words import Fact, Message

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
#: an alarm was worth it when less than this share of the memory was left while it held
CLOSE_CALL_SHARE = 0.10


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
    #: the headline of the worst that was told
    message: Message
    first: Transition
    last: Transition
    last_id: int
    #: number of the first row of the worst level
    peak_id: int
    #: when it first was a warning or worse
    warned_wall: float | None = None
    #: whether less than ``CLOSE_CALL_SHARE`` of the capacity was left at one of its rows
    close_call: bool = False
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


def grouped(rows: Iterable[tuple[int, Transition]]) -> Iterator[Incident]:
    """Yield the incidents that the rows make up, each as soon as it has ended, then those that are open.

    Rows lost with a crash leave marks: an incident that is not closed before another one of its kind opens
    ended at a time that nobody knows, so it ends with its last row. An end whose beginning has been deleted
    is left out.

    Args:
        rows: by number, and not by the wall clock, which jumps. They are taken one at a time.
    """
    open_ones: dict[Key, Incident] = {}
    for number, row in rows:
        known = open_ones.pop((row.rule, row.resource), None)
        if known is not None and kind_of(row) == "opened":
            yield replace(known, closed_wall=known.changed_wall)
            known = None
        if known is None and row.new == Level.OK:
            continue
        incident = after(known, number, row)
        if incident.closed_wall is None:
            open_ones[incident.key] = incident
        else:
            yield incident
    yield from open_ones.values()


def fold(rows: Iterable[tuple[int, Transition]]) -> list[Incident]:
    """Return the incidents that a few rows in any order make up, by number; see ``grouped``."""
    return sorted(grouped(sorted(rows, key=itemgetter(0))), key=lambda incident: incident.id)


def after(known: Incident | None, number: int, row: Transition) -> Incident:
    """Return the incident as a further row leaves it, the row with which it begins if none is ``known``."""
    if known is None:
        known = Incident(
            number, row.rule, row.resource, row.new, row.new, row.wall, row.wall, row.message,
            first=row, last=row, last_id=number, peak_id=number,
        )  # fmt: skip
    warned = [known.warned_wall] if known.warned_wall is not None else []
    warned += [row.wall] if row.new >= Level.WARNING else []
    return replace(
        known,
        level=row.new,
        worst=max(known.worst, row.new),
        changed_wall=row.wall,
        message=row.message if row.new >= known.worst else known.message,
        last=row,
        last_id=number,
        peak_id=number if row.new > known.worst else known.peak_id,
        warned_wall=min(warned, default=None),
        close_call=known.close_call or _is_close_call(row.forecast),
        closed_wall=row.wall if row.new == Level.OK else None,
    )


def _is_close_call(forecast: Forecast | None) -> bool:
    return forecast is not None and forecast.headroom_bytes < CLOSE_CALL_SHARE * forecast.capacity_bytes


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

    def facts(self) -> Mapping[Key, Mapping[str, Fact]]:
        """Return what was last seen of each open incident."""
        return {key: incident.last.facts for key, incident in self.open.items()}

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
        if kind_of(row) == "opened":
            known = None  # a second unclean end is another incident
        incident = after(known, number, row)
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
    then = incident.last.forecast
    if then is None or now is None or then.capacity_bytes <= 0 or now.capacity_bytes <= 0:
        return False
    back = now.headroom_bytes / now.capacity_bytes - then.headroom_bytes / then.capacity_bytes
    return back < RECOVERED_SHARE
