"""When a job is paused, how much headroom it needs to be resumed, and how long it may take to end; the metrics. Pure.

Acting needs more certainty than warning. On 156 recordings (``python -m tests.bench.bench_brake``) a critical level
precedes 72 of 75 exhaustions, with false alarms in 7 of the 20 recordings that come close and recover. The thresholds
below precede 69 (one by less than a second), with 3 false alarms. Neither fires in the 55 quiet recordings.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, Literal

from wslgpud.metrics import counter, gauge
from wslgpud.model import Forecast, Level, Number
from wslgpud.risk.levels import COUNTDOWNS
from wslgpud.sources import memory
from wslgpud.words import Message

#: headroom, as a share of the resource, at which a growing job is paused
PAUSE_RATIO: Final = 0.045
#: and if exhaustion is this close: the rest could be gone before the next sample
SOON_SECONDS, SOON_RATIO = 1.5, 0.15
#: causes of a critical level that justify acting: ongoing growth, or stalls (the job is still identified by its growth)
_CAUSES = COUNTDOWNS | {"pressure", "stall"}
#: with this share of zram free the kernel does not kill yet: in the recordings (tests/traces/vm) nine tenths were in
#: use by then, even with memory that does not compress
ZRAM_RATIO: Final = 0.5

#: headroom required for resuming beyond that at the pause: this share, or what the job allocates in this time if more
ROOM_RATIO, ROOM_SECONDS = 0.08, 60.0
#: cap on the latter before doubling: a burst may be nearly over, and pausing it again loses nothing
FIRST_ROOM_RATIO = 0.25
#: cap in any case: with this much free, memory is not short
MAX_ROOM_RATIO = 0.6
#: how long that headroom must last (hysteresis); both double each time the job has to be paused again
STEADY_SECONDS = 5.0
MAX_DOUBLINGS = 6
#: a job that ran this long after it was resumed starts afresh
FORGIVEN_SECONDS = 3600.0

#: grace period between SIGTERM and SIGKILL
TERM_SECONDS: Final = 10.0
#: SIGKILL at once if headroom falls below this share of that at the pause, or below what the job allocates in this time
#: (three samples). earlyoom sends SIGKILL at half its SIGTERM threshold, also during the grace period (``kill_wait``,
#: https://github.com/rfjakob/earlyoom/blob/master/kill.c)
KILL_RATIO, KILL_SECONDS = 0.5, 0.3

#: result of a tick for a paused job
Step = Literal["hold", "room", "time", "stop"]
#: ``after_hold`` of the configuration
AfterHold = Literal["stay", "resume", "stop"]


def resource_kind(resource: str) -> str:
    """Return a resource's kind as in ``brake.resources``: ram, gpu, cgroup; any other resource is its own kind."""
    return "gpu" if resource.startswith("gpu") else resource.partition(":")[0]


def should_pause(forecast: Forecast) -> bool:
    """Return whether exhaustion is close and certain enough to pause the growing job."""
    if forecast.level < Level.CRITICAL or forecast.cause not in _CAUSES or forecast.capacity_bytes <= 0:
        return False
    left, eta = forecast.headroom_bytes / forecast.capacity_bytes, forecast.eta_seconds
    soon = forecast.cause in COUNTDOWNS and eta is not None and eta <= SOON_SECONDS
    return left <= PAUSE_RATIO or (soon and left <= SOON_RATIO)


def waits_for_zram(forecast: Forecast, value: Callable[..., Number | None]) -> bool:
    """Return whether RAM may have more room than its forecast counts, as nobody knows yet how well memory compresses.

    The forecast counts unknown room as none and warns early. A job paused for that might wait for ever, although there
    is room: alone on its machine, nobody but itself can free any. Stalls do not wait, as they are no estimate: memory
    that does not compress can bring the machine to a standstill on the way to zram, and the daemon with it. So where
    stalls are not measured, nothing waits. ``value`` returns that of a series, as ``Snapshot.value`` does.
    """
    free, total = value(memory.ZRAM_FREE) or 0, value(memory.ZRAM_TOTAL) or 0
    unknown = total > 0 and free >= ZRAM_RATIO * total and value(memory.COMPRESSIBLE) is None
    measured = value(memory.STALLED_SECONDS, "memory") is not None
    return forecast.resource == "ram" and forecast.cause in COUNTDOWNS and unknown and measured


def attribution_probability(forecast: Forecast) -> float:
    """Return the probability that the named process uses the resource: 1 if measured, 0 if none is named."""
    if forecast.who_kind != "guess":
        return 1.0 if forecast.who_pid is not None else 0.0
    chance = forecast.who.facts.get("chance_ratio") if isinstance(forecast.who, Message) else None
    return float(chance) if isinstance(chance, (int, float)) else 0.0


@dataclass(frozen=True, slots=True)
class PauseState:
    """State that decides when a paused job is resumed; times are monotonic.

    ``left_bytes`` is the headroom and ``rate_bytes_per_second`` the job's growth when it was paused. ``repeats`` counts
    how often it was paused again after being resumed, ``room_since_t`` is since when there has been enough headroom.
    """

    paused_t: float
    left_bytes: int
    capacity_bytes: int
    rate_bytes_per_second: float = 0.0
    repeats: int = 0
    room_since_t: float | None = None

    @property
    def needed_bytes(self) -> float:
        """Headroom at which it is resumed automatically."""
        doubled = 2.0 ** min(self.repeats, MAX_DOUBLINGS)
        taken = min(FIRST_ROOM_RATIO * self.capacity_bytes, ROOM_SECONDS * self.rate_bytes_per_second)
        more = max(ROOM_RATIO * self.capacity_bytes, taken) * doubled
        max_bytes = max(MAX_ROOM_RATIO * self.capacity_bytes, self.left_bytes + ROOM_RATIO * self.capacity_bytes)
        return min(self.left_bytes + more, max_bytes)

    @property
    def steady_seconds(self) -> float:
        """How long that headroom must last."""
        return STEADY_SECONDS * 2.0 ** min(self.repeats, MAX_DOUBLINGS)


def next_step(
    paused: PauseState, t: float, left_bytes: int | None, hold_seconds: float, after_hold: AfterHold
) -> tuple[PauseState, Step]:
    """Return the state after a tick, and what to do with the job.

    ``left_bytes`` is the current headroom; None, unknown, counts as not enough. ``after_hold`` applies after
    ``hold_seconds`` without a decision.
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
    """Return whether there is enough headroom to let a job run after SIGTERM, as it may allocate while it saves.

    If the headroom is unknown, only the grace period limits it: RAM's is always known, and a full GPU does not take the
    machine down.
    """
    min_bytes = max(KILL_RATIO * paused.left_bytes, KILL_SECONDS * paused.rate_bytes_per_second)
    return left_bytes is None or left_bytes >= min_bytes


def repeats(before: int, resumed_t: float, t: float) -> int:
    """Return the new ``repeats`` of a job, given the last and when it was last resumed automatically."""
    return before + 1 if t - resumed_t <= FORGIVEN_SECONDS else 0


# all absent while the brake is off
READY = gauge("brake_ready", "1 if the brake could pause a job now, 0 if it is on but cannot; absent if off.")
HELD = gauge("brake_held_jobs", "Jobs currently paused by the brake.")
HELD_BYTES = gauge("brake_held_bytes", "Memory of the paused jobs at the pause: RAM and swap, on a GPU VRAM.")
PAUSES = counter("brake_pauses", "Jobs paused since the daemon started.")
ENDS = counter(
    "brake_ends",
    "Pauses ended, by how: room (resumed when memory was free again), owner (resumed by a user), time (resumed after "
    "hold_minutes), stopped (on request), ended (the job was killed by something else).",
    "how",
    stored=False,
)
SPARED = counter(
    "brake_spared",
    "Times that memory was about to run out but no job was paused, by reason: nobody (no program accounts for it), "
    "several (no single job does), protected, user (not in brake.users), crowd (too many processes), unsure (the "
    "process is only a guess), outside (more of it went to users not in brake.users, files in RAM or the kernel than "
    "to the job that grows), refused (pausing failed).",
    "reason",
    stored=False,
)
PAUSE_TIME = gauge(
    "brake_pause_seconds", "Time from the sample to the last process stopped, for the most recent pause.", stored=False
)
METRICS = (READY, HELD, HELD_BYTES, PAUSES, ENDS, SPARED, PAUSE_TIME)
