"""Severity: from evidence to a level and a probability, and from levels to few changes. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, NamedTuple

from wslgpud.model import Forecast, Level
from wslgpud.risk.settings import RiskSettings
from wslgpud.words import Fact

Cause = Literal[
    "growth", "steps", "pressure", "stall", "limit", "oom", "expected", "full", "paused", "killed", "refused", "freed"
]
#: Causes that explain how memory came back.
ENDINGS: frozenset[Cause] = frozenset({"killed", "refused", "freed"})
#: Causes reported with the time until nothing is left.
COUNTDOWNS: frozenset[Cause] = frozenset({"growth", "steps"})
#: Time to exhaustion that counts as a matter of seconds.
SECONDS_LONG = 16.0
#: Samples that must show that an alarm is over: at one every half minute, two or three may be chance.
MIN_SAMPLES = 10
#: Dangers that do not grow have no time left to judge by: whoever finds one decides its level by its probability,
#: which is critical from here on.
CRITICAL_PROBABILITY = 0.9
#: A growth at less than this part of its mean pace is ending, and not critical.
ENDING_PACE = 0.5
#: Times to exhaustion between which the headroom of a critical growth rises from that of a fast one to that of others.
FAST_SECONDS, SLOW_SECONDS = 2.0, 10.0
#: An alarm waits this many periods of a sawtooth for the next tooth: one that is late must not be another alarm.
TEETH = 1.5

#: The cause of a forecast without a current sample, and how long it must lack one to be a warning: cards fill within
#: seconds.
BLIND, BLIND_WARNING_SECONDS = "blind", 3.0


def shown_level(forecast: Forecast) -> Level:
    """Return the level to show: of a blind resource ``level`` is that of its last sample; it may be full now."""
    if forecast.cause != BLIND:
        return forecast.level
    return max(forecast.level, Level.WARNING if forecast.age_seconds >= BLIND_WARNING_SECONDS else Level.INFO)


class Danger(NamedTuple):
    """Evidence of coming exhaustion.

    "paused" means no growth for ``window_seconds``, and only explains an alarm that still holds; one of ``ENDINGS``
    happened ``window_seconds`` ago.
    """

    cause: Cause
    probability: float  # for causes other than growth and steps: critical from CRITICAL_PROBABILITY, else a warning
    eta_seconds: float  # the middle estimate
    window_seconds: float  # duration of the evidence
    early_seconds: float = math.inf  # the shortest estimate of any scale
    now_seconds: float = math.inf  # the estimate by the last seconds of a growth
    still_seconds: float = 0.0  # longest pause after which it may still continue
    rate: float = 0.0
    pace: float = 1.0  # how fast it goes now against its mean
    next_step: float = 0.0  # of a staircase
    last_step: float = 0.0
    alike: bool = False  # the last two steps were about as large as the next
    spilled_bytes: int = 0  # in Windows' RAM because the card is full
    belief: float = 1.0  # the part of the probability that earlier harmless peaks have left


def undoubted(danger: Danger) -> Danger:
    """Return the danger as it would be without earlier harmless peaks."""
    return danger._replace(probability=danger.probability / danger.belief, belief=1.0)


def headroom_for_warning(eta: float, s: RiskSettings) -> float:
    """Return the share of headroom below which a danger this many seconds away causes a warning."""
    if eta > s.warn_eta_seconds:
        return s.slow_headroom if eta <= s.slow_eta_seconds else 0.0
    for (before_eta, before), (point_eta, headroom) in pairwise(s.warn_points):
        if eta <= point_eta:
            return before + (headroom - before) * max(0.0, eta - before_eta) / (point_eta - before_eta)
    return s.warn_points[-1][1]


def level_for(danger: Danger, share: float, until_next: float, s: RiskSettings) -> Level:
    """Return the level of a danger at this ``share`` of headroom.

    Headroom is projected ``until_next`` seconds ahead: the excess of the sampling interval over the fastest.
    """
    if danger.cause == "expected":
        return Level.WARNING if danger.probability >= s.warn_probability else Level.INFO
    if danger.cause not in COUNTDOWNS:
        return Level.CRITICAL if danger.probability >= CRITICAL_PROBABILITY else Level.WARNING
    if danger.probability < s.warn_probability or danger.eta_seconds > s.slow_eta_seconds:
        return Level.OK
    least = headroom_for_warning(danger.early_seconds, s)
    least += s.card_margin if danger.early_seconds <= SECONDS_LONG else 0.0
    near = share - danger.rate * until_next < least
    if danger.cause == "growth":
        return _growth_level(danger, share, s) if near else Level.INFO
    # Will the next step fit? Assume no more than twice the last one.
    fits = danger.next_step < share or danger.last_step < 0.5 * share or danger.eta_seconds > s.warn_eta_seconds
    if fits and not near:
        return Level.INFO
    return Level.CRITICAL if not fits and _within_seconds(danger, share, s) else Level.WARNING


def _within_seconds(danger: Danger, share: float, s: RiskSettings) -> bool:
    """Return whether exhaustion is almost certain and a matter of seconds, by the mean rate and that of now."""
    near, eta = s.act_headroom, danger.eta_seconds
    if danger.cause == "growth":
        near = s.faster_act_headroom if danger.now_seconds <= s.faster * eta else s.growth_act_headroom
        eta = max(eta, danger.now_seconds)
    return share <= near and danger.probability >= s.act_probability and eta <= s.act_seconds


def _growth_level(danger: Danger, share: float, s: RiskSettings) -> Level:
    """Return the level of a growth that is close enough to the limit for a warning."""
    if danger.pace < ENDING_PACE:
        return Level.WARNING
    # Growth over seconds is mostly a program that loads and fits: wait until it is closer to the limit.
    slow = min(1.0, max(0.0, (danger.eta_seconds - FAST_SECONDS) / (SLOW_SECONDS - FAST_SECONDS)))
    if not _within_seconds(danger, share, s) and (
        danger.probability < s.critical_probability
        or danger.eta_seconds > s.critical_eta_seconds
        or share > s.critical_headroom_fast + slow * (s.critical_headroom - s.critical_headroom_fast)
    ):
        return Level.WARNING
    if share <= s.emergency_headroom and danger.eta_seconds <= s.emergency_eta_seconds:
        return Level.EMERGENCY
    return Level.CRITICAL


@dataclass(slots=True)
class Hysteresis:
    """The level of one resource: raised at once, lowered only when the reason is certainly gone."""

    settings: RiskSettings
    level: Level = Level.OK
    raised_share: float = 1.0  # headroom when the level was last raised
    warned_share: float = 1.0  # headroom when the alarm began
    wanted_t: float = 0.0
    still_needed: float = 0.0
    better_since: float | None = None
    interval: float = 0.0  # seconds between two samples

    def step(self, t: float, want: Level, share: float, still_needed: float, period: float) -> Level:
        """Take the level that the evidence justifies at ``t`` with this share of headroom; return the level that holds.

        The alarm may end after ``still_needed`` seconds without evidence. ``period`` is the usual time in seconds
        between the peaks of a sawtooth, else 0.
        """
        s = self.settings
        if want >= self.level:
            if want > self.level:
                self.raised_share = share
                self.warned_share = share if self.level < Level.WARNING else self.warned_share
            self.level, self.wanted_t, self.better_since = want, t, None
            self.still_needed = max(still_needed, self._least_still() if want >= Level.WARNING else 0.0)
            return self.level
        if self.level <= Level.INFO:
            if t - self.wanted_t >= max(s.info_seconds, min(0.5 * self.still_needed, s.still_seconds)):
                self.level = want
            return self.level
        if share < min(self.raised_share + s.recovery, s.recovered_headroom):
            self.better_since = None
        elif self.better_since is None:
            self.better_since = t
        # No alarm outlasts free memory, not even until the next tooth of a sawtooth.
        teeth = TEETH * period if share < s.recovered_headroom else 0.0
        patience = min(max(s.recovery_seconds, teeth, MIN_SAMPLES * self.interval), s.warn_eta_seconds)
        recovered = self.better_since is not None and t - self.better_since >= patience
        still = t - self.wanted_t >= min(self.still_needed, s.warn_eta_seconds)
        if recovered or still:
            # Stopped growth steps down to a warning first: use is still near its limit.
            self.level = max(want, Level.WARNING) if self.level > Level.WARNING and not recovered else want
            self.raised_share, self.wanted_t = share, t
        return self.level

    @property
    def room_back(self) -> float:
        """The share of headroom at which a kill, or the end of the culprit, ends the alarm."""
        s = self.settings
        began = self.warned_share + s.recovery if self.level >= Level.WARNING else 0.0
        return min(max(began, s.kill_headroom), s.recovered_headroom)

    def end(self, t: float, want: Level, share: float) -> Level:
        """End the alarm at once: its reason is gone, and ``want`` holds."""
        self.level, self.raised_share, self.wanted_t, self.better_since = want, share, t, None
        return self.level

    def settle(self) -> None:
        """Wait no longer than for other growth: a full card cannot keep growing, however long it has."""
        self.still_needed = min(self.still_needed, self._least_still())

    def _least_still(self) -> float:
        return max(self.settings.still_seconds, MIN_SAMPLES * self.interval)

    def forgive(self, seconds: float) -> None:
        """Exclude time in which nothing was sampled (a suspended machine)."""
        self.wanted_t += seconds
        if self.better_since is not None:
            self.better_since += seconds


def ending_facts(forecast: Forecast, wall: float) -> dict[str, Fact]:
    """Return the facts about how memory came back, for the row that ends an alarm.

    ``ending`` is the cause, ``ended_wall`` the time, and ``victim`` the killed process, where known.
    """
    if forecast.cause not in ENDINGS:
        return {}
    facts: dict[str, Fact] = {
        "ending": forecast.cause,
        "ended_wall": wall - (forecast.window_seconds or 0.0),
        "free_bytes": forecast.headroom_bytes,
        "capacity_bytes": forecast.capacity_bytes,
    }
    return facts | ({"victim": forecast.who} if forecast.cause == "killed" and forecast.who else {})


#: Times in seconds for which users are shown the probability of exhaustion.
HORIZONS = (60, 300, 900, 3600)


class Calibration(NamedTuple):
    """Maps the log-odds of the certainty to ``offset`` + ``slope`` x log-odds (Platt, 1999).

    The time to exhaustion is log-normal: its logarithm has the standard deviation ``spread``, around that of the
    engine's middle estimate minus ``sooner``.
    """

    offset: float
    slope: float
    spread: float
    sooner: float


#: The engine decides by its certainty that a danger continues to its end: it ranks dangers well but is no probability.
#: This makes it one, verified on recordings that it was not fitted to: ``python -m tests.bench.bench_reliability``.
CALIBRATION = Calibration(0.325, 0.65, 1.025, 0.65)
#: From here on a probability comes true as often as it says, on recordings that it was not fitted to; below it, as
#: often whatever it says: words say all that is known.
SURE, EVEN = 0.7, 0.5


def probabilities(danger: Danger | None, *, known: bool = True) -> dict[int, float]:
    """Return the probability of exhaustion within each horizon (seconds); empty with too few samples."""
    if danger is None:
        return dict.fromkeys(HORIZONS, 0.0) if known else {}
    return {horizon: within(horizon, danger.probability, danger.eta_seconds) for horizon in HORIZONS}


def within(seconds: float, certainty: float, eta_seconds: float, as_fitted: Calibration = CALIBRATION) -> float:
    """Return the probability that a danger of this certainty and middle estimate ends within ``seconds``."""
    offset, slope, spread, sooner = as_fitted
    odds_against = (1.0 - certainty) / certainty if certainty > 0.0 else math.inf
    comes = 1.0 / (1.0 + math.exp(-offset) * math.pow(odds_against, slope))
    deviation = (math.log(seconds / max(eta_seconds, 0.5)) + sooner) / spread
    return comes * 0.5 * (1.0 + math.erf(deviation / math.sqrt(2.0)))
