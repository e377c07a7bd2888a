"""Alerts as metrics, and the daemon's own score.

The score: how many exhaustions it warned of in time, and how many false alarms there were.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from wslgpud.alerts.incidents import Incident
from wslgpud.alerts.rules import OOM_KILL, UNCLEAN_END
from wslgpud.metrics import counter, gauge
from wslgpud.model import MEMORY, Level, Reading
from wslgpud.words import Message, says

#: the rules whose incidents count for the score
SCORED = (MEMORY, OOM_KILL, UNCLEAN_END)
#: a warning later than this leaves no time to act
IN_TIME_SECONDS = 5.0
#: below this, a number of warnings per day is meaningless
MIN_WATCHED_SECONDS = 86400.0

# Not stored as samples: they follow from rows and outbox.
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


def tally(incidents: Sequence[Incident], since_wall: float, watched_seconds: float) -> Message | None:
    """Return the number of memory warnings, and of false alarms among them; None with less than a day of data."""
    if watched_seconds < MIN_WATCHED_SECONDS:
        return None
    warned = [i for i in incidents if i.rule == MEMORY and i.warned_wall is not None and i.opened_wall >= since_wall]
    return says(
        "{watched_seconds} watched: {count} memory warning, {needless} needless",
        "{watched_seconds} watched: {count} memory warnings, {needless} needless",
        count=len(warned),
        needless=_needless(warned, incidents),
        watched_seconds=watched_seconds,
    )


def score(incidents: Sequence[Incident]) -> Iterator[Reading]:
    leads = [incident.lead_seconds for incident in incidents if incident.kill is not None]
    in_time = sum(lead is not None and lead >= IN_TIME_SECONDS for lead in leads)
    yield Reading(EXHAUSTIONS, in_time, ("yes",))
    yield Reading(EXHAUSTIONS, len(leads) - in_time, ("no",))
    yield Reading(FALSE_ALARMS, _needless(incidents, incidents))
    if leads and leads[-1] is not None:
        yield Reading(LEAD, round(leads[-1], 1))


def _needless(warned: Iterable[Incident], known: Iterable[Incident]) -> int:
    ends = [incident for incident in known if incident.rule == UNCLEAN_END]
    return sum(false_alarm(incident, ends) for incident in warned)
