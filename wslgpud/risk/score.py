"""How good the warnings were: alarms against what happened.

An alarm is an interval at warning or above. It is right when the first out-of-memory event of its resource
falls inside it or at most 10 s after its end; in time when it began 15 s before, or half of what was possible
where that is less (possible: since the truth's "onset"); false otherwise, unless the trace is one where
memory climbed close to the limit and stopped by itself ("tolerated"): a mere warning is fair there.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from wslgpud.model import Level
from wslgpud.words import cause, say

GRACE_SECONDS = 10.0
NEEDED_SECONDS = 15.0
LONGEST_LEAD_SECONDS = 300.0

Changes = Mapping[str, Sequence[tuple[float, Level]]]


@dataclass(frozen=True, slots=True)
class Truth:
    """What happened in a trace: the first event of each resource, and when it could be seen coming.

    ``onsets`` holds the resources that could be seen coming at a time of their own.
    """

    name: str
    events: Mapping[str, float]
    onset: float = 0.0
    tolerated: bool = False
    onsets: Mapping[str, float] = field(default_factory=dict)

    def needed(self, resource: str) -> float:
        """Return the lead in seconds that counts as in time."""
        onset = self.onsets.get(resource, self.onset)
        return min(NEEDED_SECONDS, 0.5 * (self.events[resource] - onset))


#: bytes of a truth file; a long one has a few hundred
_MOST_BYTES = 1 << 20


class TruthError(ValueError):
    """A truth file that cannot be read; the text names the file and what is wrong."""


def read_truth(path: Path) -> Truth:
    """Read ``NAME.truth.json``.

    Raises:
        TruthError: the file is not what it should be.
    """
    try:
        with path.open("rb") as file:
            raw = json.loads(file.read(_MOST_BYTES))  # the rest of a longer one is missed by the parser
        events: dict[str, float] = {}
        for event in raw["events"]:
            resource, t = str(event["resource"]), float(event["t"])
            events[resource] = min(t, events.get(resource, math.inf))
        return Truth(
            str(raw["name"]),
            events,
            float(raw.get("onset", 0.0)),
            bool(raw.get("tolerated", False)),
            {str(event["resource"]): float(event["onset"]) for event in raw["events"] if "onset" in event},
        )
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise TruthError(
            say(
                "{path}: not a truth file ({kind}: {error})",
                path=str(path),
                kind=type(error).__name__,
                error=cause(error),
            )
        ) from error


def alarms(changes: Sequence[tuple[float, Level]], at_least: Level) -> list[tuple[float, float]]:
    """Turn changes of level in order into intervals (start, end) at ``at_least`` or above."""
    found, start = [], None
    for t, level in changes:
        if level >= at_least and start is None:
            start = t
        elif level < at_least and start is not None:
            found.append((start, t))
            start = None
    if start is not None:
        found.append((start, math.inf))
    return found


@dataclass(slots=True)
class Score:
    """Sums over traces at one threshold of level; leads in seconds, 0 for a missed event."""

    leads: list[float] = field(default_factory=list)
    in_time: int = 0
    quiet_traces: int = 0
    quiet_with_alarm: int = 0
    tolerated_traces: int = 0
    tolerated_with_alarm: int = 0
    false_alarms: int = 0
    alarms_before_events: int = 0
    late: list[str] = field(default_factory=list)
    noisy: list[str] = field(default_factory=list)

    def add(self, truth: Truth, changes: Changes, at_least: Level) -> None:
        """Judge one trace."""
        false = 0
        for resource in sorted(set(changes) | set(truth.events)):
            raised = alarms(changes.get(resource, ()), at_least)
            if resource in truth.events:
                false += self._add_event(truth, resource, raised)
            else:
                false += len(raised)
        if truth.tolerated:
            self.tolerated_traces += 1
            self.tolerated_with_alarm += bool(false)
            if at_least == Level.WARNING:
                return
        elif not truth.events:
            self.quiet_traces += 1
            self.quiet_with_alarm += bool(false)
        self.false_alarms += false
        if false:
            self.noisy.append(truth.name)

    def _add_event(self, truth: Truth, resource: str, raised: Sequence[tuple[float, float]]) -> int:
        """Judge the alarms before an event; return how many were false."""
        event, needed, lead, false = truth.events[resource], truth.needed(resource), 0.0, 0
        for start, end in raised:
            if start >= event:
                continue
            self.alarms_before_events += 1
            if event <= end + GRACE_SECONDS:
                lead = max(lead, min(LONGEST_LEAD_SECONDS, event - start))
            else:
                false += 1
        self.leads.append(lead)
        if lead >= needed:
            self.in_time += 1
        else:
            self.late.append(f"{truth.name} ({lead:.1f} of {needed:.1f} s)")
        return false

    def share_at(self, seconds: float) -> float | None:
        """Return the share of events warned of at least so many seconds before."""
        return sum(lead >= seconds for lead in self.leads) / len(self.leads) if self.leads else None

    @property
    def median_lead(self) -> float | None:
        """Median lead in seconds, missed events as 0."""
        return statistics.median(self.leads) if self.leads else None


Said = tuple[float, float, float | None]
"""(time, probability of exhaustion within some horizon, time of the event or None)."""


def _came(said: Said, horizon: float) -> bool:
    t, _, event = said
    return event is not None and 0 <= event - t <= horizon


def brier(forecasts: Iterable[Said], horizon: float) -> float | None:
    """Return the mean squared error of probabilities for a horizon in seconds (0 best; 0.25 is a coin's)."""
    errors = [(said[1] - _came(said, horizon)) ** 2 for said in forecasts]
    return statistics.fmean(errors) if errors else None


def reliability(forecasts: Iterable[Said], horizon: float) -> list[tuple[float, float, int]]:
    """Return (said on average, came true, samples) for each fifth of the probabilities above 0."""
    fifths: list[list[tuple[float, bool]]] = [[] for _ in range(5)]
    for said in forecasts:
        if said[1] > 0.0:
            fifths[min(4, int(5 * said[1]))].append((said[1], _came(said, horizon)))
    return [
        (statistics.fmean(p for p, _ in fifth), statistics.fmean(came for _, came in fifth), len(fifth))
        for fifth in fifths
        if fifth
    ]
