"""From what is seen to a level, and from levels to few changes: severity and hysteresis."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from wslgpud.model import Level
from wslgpud.risk.settings import RiskSettings


class Danger(NamedTuple):
    """One thing that points to exhaustion."""

    cause: str
    probability: float
    eta_seconds: float
    rate: float
    window_seconds: float
    still_seconds: float = 0.0


def headroom_for_warning(danger: Danger, settings: RiskSettings) -> float:
    """Return the share of headroom under which this danger warns: the less time, the earlier."""
    eta = danger.eta_seconds
    if eta <= settings.fast_eta_seconds:
        return settings.warn_headroom_fast
    if eta <= 2 * settings.fast_eta_seconds:
        part = 2.0 - eta / settings.fast_eta_seconds
        return settings.warn_headroom + part * (settings.warn_headroom_fast - settings.warn_headroom)
    if eta <= settings.warn_eta_seconds:
        return settings.warn_headroom
    if eta <= settings.slow_eta_seconds:
        return settings.slow_headroom
    return 0.0


def wanted(danger: Danger | None, share: float, next_share: float, s: RiskSettings) -> Level:
    """Return the level that a danger deserves now.

    Args:
        danger: the worst thing seen, or None.
        share: headroom as a share of the capacity.
        next_share: what it will be when the next sample comes.
        s: the thresholds.
    """
    if danger is None:
        return Level.OK
    if danger.cause == "pressure":
        return Level.CRITICAL if danger.probability >= 0.9 else Level.WARNING
    if danger.cause == "steps" and danger.eta_seconds >= 0 and danger.probability >= s.warn_probability:
        if danger.rate >= share or next_share < headroom_for_warning(danger, s):
            return Level.WARNING
        return Level.INFO
    if danger.probability < s.warn_probability:
        return Level.OK
    if next_share >= headroom_for_warning(danger, s):
        return Level.INFO if share < 0.5 and danger.eta_seconds < s.slow_eta_seconds else Level.OK
    if danger.probability < s.critical_probability or danger.eta_seconds > s.critical_eta_seconds:
        return Level.WARNING
    # Seconds-long growth is mostly something that loads and fits: be nearer to the limit before shouting.
    slow = min(1.0, max(0.0, (danger.eta_seconds - 2.0) / 8.0))
    if share > s.critical_headroom_fast + slow * (s.critical_headroom - s.critical_headroom_fast):
        return Level.WARNING
    if share <= s.emergency_headroom and danger.eta_seconds <= s.emergency_eta_seconds:
        return Level.EMERGENCY
    return Level.CRITICAL


@dataclass(slots=True)
class Hysteresis:
    """The level of one resource: up at once, down only when the reason is really gone."""

    settings: RiskSettings
    level: Level = Level.OK
    raised_share: float = 1.0
    wanted_t: float = 0.0
    still_needed: float = 0.0
    better_since: float | None = None

    def step(self, t: float, want: Level, share: float, still_needed: float) -> Level:
        """Take what is wanted now; return the level that holds.

        Args:
            t: now, in seconds.
            want: the level that the evidence deserves at this moment.
            share: headroom as a share of capacity.
            still_needed: seconds without evidence after which the alarm may end.
        """
        s = self.settings
        if want >= self.level:
            if want > self.level:
                self.raised_share = share
            self.level = want
            self.wanted_t = t
            self.still_needed = max(still_needed, s.still_seconds if want >= Level.WARNING else 10.0)
            self.better_since = None
            return self.level
        if self.level <= Level.INFO:
            if t - self.wanted_t >= 10.0:
                self.level = want
            return self.level
        better = share >= self.raised_share + s.recovery or share >= 0.6
        if not better:
            self.better_since = None
        elif self.better_since is None:
            self.better_since = t
        recovered = self.better_since is not None and t - self.better_since >= s.recovery_seconds
        still = t - self.wanted_t >= min(self.still_needed, s.still_seconds_most)
        if recovered or still:
            self.level = max(want, Level.WARNING) if self.level > Level.WARNING and not recovered else want
            self.raised_share = share
            self.wanted_t = t
            self.better_since = None
        return self.level
