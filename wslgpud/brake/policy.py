"""When a job is paused, how much room must come back before it goes on, and how long one may take to end. Pure.

What is done needs more certainty than what is said. In 154 recordings (``python -m tests.bench.bench_brake``) a
critical comes before 72 of 75 exhaustions, and for nothing in 6 of the 20 that climb close and stop by themselves;
acting as below comes before 69, once by less than a second, and for nothing in 2. In the 53 that call for silence
neither does.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal

from wslgpud.model import Forecast, Level
from wslgpud.risk.levels import COUNTDOWNS
from wslgpud.words import Message

#: share of a resource below which a job that grows is paused
PAUSE_RATIO: Final = 0.045
#: and that of one which is through within so many seconds: it takes the rest from one sample to the next
SOON_SECONDS, SOON_RATIO = 1.5, 0.15
#: causes at a critical that speak for acting; by stalls it is only told who has grown, by no growth nobody is
_CAUSES = COUNTDOWNS | {"pressure", "stall"}

#: how much more must be left than when the job was paused: this share of the resource, or what it took in so long
ROOM_RATIO, ROOM_SECONDS = 0.08, 60.0
#: no more than this at first: who took it within seconds may be near its end, and to be paused again loses nothing
FIRST_ROOM_RATIO = 0.25
#: no more than this share is ever waited for: where so much is free, nothing is short
MOST_ROOM_RATIO = 0.6
#: for so long it must have been there; twice as long, and twice as much, each time that the job had to be paused again
STEADY_SECONDS = 5.0
MOST_DOUBLINGS = 6
#: a job that has run for so long since it was resumed is as good as new
FORGIVEN_SECONDS = 3600.0

#: how long a job that was asked to end (TERM) may take to before it is killed
TERM_SECONDS: Final = 10.0
#: less than this share of what was left when it was paused, or than it took in three samples, and it is killed at once:
#: earlyoom kills at half of what it asks at, and turns to it while it waits (``kill_wait`` in its kill.c)
KILL_RATIO, KILL_SECONDS = 0.5, 0.3

#: what becomes of a job at a tick
Step = Literal["hold", "room", "time", "stop"]
#: what the configuration says of one that nobody decides about
AfterHold = Literal["stay", "resume", "stop"]


def resource_kind(resource: str) -> str:
    """Return the kind of a resource by which the configuration names it: ram, gpu, cgroup, or another's own name."""
    return "gpu" if resource.startswith("gpu") else resource.partition(":")[0]


def should_pause(forecast: Forecast) -> bool:
    """Tell whether a resource is so near its end, and so surely, that what grows is to be paused."""
    if forecast.level < Level.CRITICAL or forecast.cause not in _CAUSES or forecast.capacity_bytes <= 0:
        return False
    left, eta = forecast.headroom_bytes / forecast.capacity_bytes, forecast.eta_seconds
    soon = forecast.cause in COUNTDOWNS and eta is not None and eta <= SOON_SECONDS
    return left <= PAUSE_RATIO or (soon and left <= SOON_RATIO)


def attribution_probability(forecast: Forecast) -> float:
    """Return how certain it is who takes the resource: 1 where it is measured, 0 where nobody is named."""
    if forecast.who_kind != "guess":
        return 1.0 if forecast.who_pid is not None else 0.0
    chance = forecast.who.facts.get("chance_ratio") if isinstance(forecast.who, Message) else None
    return float(chance) if isinstance(chance, (int, float)) else 0.0


@dataclass(frozen=True, slots=True)
class PauseState:
    """A paused job, as far as it matters for when it is resumed; times are monotonic.

    ``left_bytes`` of the resource was left when it was paused, at ``rate_bytes_per_second`` it took it. ``repeats``
    counts how often it had been resumed before and had to be paused again, ``room_since_t`` is when room for it came
    back.
    """

    paused_t: float
    left_bytes: int
    capacity_bytes: int
    rate_bytes_per_second: float = 0.0
    repeats: int = 0
    room_since_t: float | None = None

    @property
    def needed_bytes(self) -> float:
        """How much must be left for it to be resumed without anybody's word."""
        doubled = 2.0 ** min(self.repeats, MOST_DOUBLINGS)
        taken = min(FIRST_ROOM_RATIO * self.capacity_bytes, ROOM_SECONDS * self.rate_bytes_per_second)
        more = max(ROOM_RATIO * self.capacity_bytes, taken) * doubled
        most = max(MOST_ROOM_RATIO * self.capacity_bytes, self.left_bytes + ROOM_RATIO * self.capacity_bytes)
        return min(self.left_bytes + more, most)

    @property
    def steady_seconds(self) -> float:
        """For how long so much must have been left."""
        return STEADY_SECONDS * 2.0 ** min(self.repeats, MOST_DOUBLINGS)


def next_step(
    paused: PauseState, t: float, left_bytes: int | None, hold_seconds: float, after_hold: AfterHold
) -> tuple[PauseState, Step]:
    """Return the state as the next tick leaves it, and what becomes of its job.

    ``left_bytes`` is what is left of the resource now, None where that is not known: then there is no room for all that
    anybody knows. ``hold_seconds`` is for how long a job is held that nobody decides about.
    """
    roomy = left_bytes is not None and left_bytes >= paused.needed_bytes
    since = (t if paused.room_since_t is None else paused.room_since_t) if roomy else None
    paused = replace(paused, room_since_t=since)
    if since is not None and t - since >= paused.steady_seconds:
        return paused, "room"
    if after_hold != "stay" and t - paused.paused_t >= hold_seconds:
        return paused, "stop" if after_hold == "stop" else "time"
    return paused, "hold"


def may_save(paused: PauseState, left_bytes: int | None) -> bool:
    """Tell whether so much is left that a job that was asked to end may run to do so, as it takes memory meanwhile.

    Where it is not known how much is left, only the time counts: that of RAM always is, and a card that is full ends no
    machine.
    """
    least = max(KILL_RATIO * paused.left_bytes, KILL_SECONDS * paused.rate_bytes_per_second)
    return left_bytes is None or left_bytes >= least


def repeats(before: int, resumed_t: float, t: float) -> int:
    """Return how often a job has been paused again, given how often before, and when it was last resumed for room."""
    return before + 1 if t - resumed_t <= FORGIVEN_SECONDS else 0
