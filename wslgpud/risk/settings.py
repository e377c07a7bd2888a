"""Every threshold of the risk engine, in one place, with its reason."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RiskSettings:
    """Thresholds; shares are of the resource's capacity, times are seconds.

    Where a number comes from is told in ``risk/README.md``; change one there too.
    """

    warn_probability: float = 0.45
    """A growth must be at least this likely to end in exhaustion (share of gain in gain + headroom)."""

    warn_headroom: float = 0.215
    """Above this share of headroom a growth that leaves time is nobody's problem yet."""

    warn_headroom_fast: float = 0.255
    """The same for a growth that exhausts the resource before ``fast_eta_seconds`` are over."""

    fast_eta_seconds: float = 15.0
    """Growth faster than this leaves no time to wait for ``warn_headroom``."""

    warn_eta_seconds: float = 900.0
    """Beyond this a warning needs headroom below ``slow_headroom`` too: people can do other things first."""

    slow_eta_seconds: float = 3600.0
    """Beyond this no growth warns."""

    slow_headroom: float = 0.10
    """Share of headroom under which even an exhaustion an hour away is worth a warning."""

    critical_headroom: float = 0.10
    """Share under which a steady growth is critical."""

    critical_headroom_fast: float = 0.06
    """Share under which a growth of seconds is critical: a model that fits ends close below the limit too."""

    critical_eta_seconds: float = 300.0
    """A critical growth ends within this."""

    critical_probability: float = 0.7
    """And it is at least this likely to end in exhaustion."""

    emergency_headroom: float = 0.03
    """Share under which a critical growth is an emergency when ``emergency_eta_seconds`` are left."""

    emergency_eta_seconds: float = 15.0
    """See ``emergency_headroom``."""

    noise: float = 0.012
    """Gain that a desktop makes by breathing; subtracted from every gain before it counts."""

    jump: float = 0.08
    """A rise this large within one sample is an allocation, not a growth: it says nothing of what follows."""

    step: float = 0.02
    """Smallest rise between two plateaus that counts as a step of a staircase."""

    swing: float = 0.04
    """A fall of at least this ends an excursion, whose peak is then known to be survivable."""

    peak_memory_seconds: float = 6 * 3600.0
    """How long a peak that did no harm speaks for the next one like it."""

    recovery: float = 0.08
    """An alarm may end when headroom is this much above where the alarm began."""

    recovery_seconds: float = 60.0
    """And has been there for so long: the next wave of a build comes within it."""

    still_seconds: float = 90.0
    """Without growth for this long (and 2.5 times what the growth took), an alarm ends where it stands."""

    still_seconds_most: float = 1800.0
    """But never later than this."""

    pressure_headroom: float = 0.35
    """Pressure alarms need headroom below this: stalls at half-empty memory come from the disk."""

    pressure_available: float = 0.10
    """And available RAM below this share of RAM."""

    full_warning: float = 0.20
    """Share of the last 10 s in which all tasks stalled on memory (PSI full) that warns."""

    full_critical: float = 0.40
    """The same for critical."""
