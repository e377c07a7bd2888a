"""Every threshold of the risk engine, in one place, with its reason."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RiskSettings:
    """Thresholds; shares are of the resource's capacity, times are seconds.

    ``risk/README.md`` says where each number comes from; change it there, too.
    """

    warn_probability: float = 0.40
    """A growth must be at least this likely to end in exhaustion (share of gain in gain + headroom)."""
    warn_points: tuple[tuple[float, float], ...] = ((8.0, 0.275), (16.0, 0.26), (30.0, 0.24), (60.0, 0.215))
    """(seconds to exhaustion, share of headroom) under which a growth warns, linear in between: above it a
    growth is nobody's problem yet, but one of seconds leaves no time to wait."""
    no_swap_margin: float = 0.025
    """Added to those of 16 s and less where no swap slows growth down near the limit: VRAM, most cgroups."""
    look_ahead: float = 0.5
    """Share of a sampling interval (beyond half a second) that RAM's growth is carried on for before it is
    compared: the next sample may come too late. Without swap, the whole of it."""
    warn_eta_seconds: float = 900.0
    """Beyond this a warning needs headroom below ``slow_headroom``: people can do other things first."""
    slow_eta_seconds: float = 3600.0
    """Beyond this no growth warns."""
    slow_headroom: float = 0.10
    """Share of headroom under which even an exhaustion an hour away is worth a warning."""
    critical_headroom: float = 0.085
    """Share under which a steady growth is critical."""
    critical_headroom_fast: float = 0.06
    """Share under which a growth of seconds is critical: a model that fits ends close below the limit too."""
    critical_eta_seconds: float = 300.0
    """A critical growth ends within this."""
    critical_probability: float = 0.7
    """And it is at least this likely to end in exhaustion."""
    act_seconds: float = 8.0
    """And so is a growth that ends within this: with a share of headroom alone, what takes seconds from half full to
    the end would be critical when it is over."""
    act_probability: float = 0.6
    """If it is at least this likely to end in exhaustion."""
    act_headroom: float = 0.275
    """And has this share left at most: above it nothing warns either."""
    emergency_headroom: float = 0.03
    emergency_eta_seconds: float = 15.0
    """Share under which a critical growth is an emergency when it has so many seconds left."""
    noise: float = 0.012
    """Gain that a desktop makes by breathing; subtracted from every gain before it counts."""
    jump: float = 0.08
    """A rise this large within one sample is an allocation, not a growth: it says nothing of what follows."""
    step: float = 0.02
    """Smallest rise between two plateaus that counts as a step of a staircase."""
    swing: float = 0.04
    """A fall of at least this ends an excursion, whose peak is then known to be survivable."""
    doubt: float = 1.3
    """How much one peak that did no harm counts against a growth: it is believed 1 / (1 + doubt x peaks) as
    much, so that after one it must be as good as at the end."""
    peak_memory_seconds: float = 6 * 3600.0
    """How long a peak that did no harm counts in favour of the next one like it."""
    recovery: float = 0.08
    """An alarm may end when headroom is this much above where the alarm began."""
    recovery_seconds: float = 60.0
    """And has been there for so long: the next wave of a build comes within it."""
    recovered_headroom: float = 0.6
    """Or above this share, wherever it began."""
    info_seconds: float = 10.0
    """An info outlives its reason by this (and half of what the growth took), so that it does not flicker."""
    still_seconds: float = 90.0
    """Without growth for this long (and for as long as the growth took), an alarm ends where it stands: that
    it may go on is believed no longer. It ends within ``warn_eta_seconds`` at the latest."""
    pressure_headroom: float = 0.35
    """Pressure alarms need headroom below this: stalls at half-empty memory come from the disk."""
    pressure_available: float = 0.10
    """And available RAM below this share of RAM."""
    full_warning: float = 0.20
    """Share of the last 10 s in which all tasks stalled on memory (PSI full) that warns."""
    full_critical: float = 0.40
    """The same for critical."""
    gap_seconds: float = 3.0
    """A pause between samples longer than this, and than six usual ones, is a gap."""
    limit_hits_per_second: float = 1.0
    """Rate at which a cgroup runs into its limit (memory.events: max) that warns when it lasts."""
    expected_near: float = 0.9
    """Commands that will still take (as they did before) more than this share of the headroom are reported."""
    expected_too_much: float = 1.02
    """And warned of beyond this one."""
    full_headroom: float = 0.03
    """Share of a card's headroom under which it is full though nothing grows: less than a program's next
    buffers, and what the context of one more program takes."""
    full_clear_headroom: float = 0.06
    """And is so no more above this one, so that use that breathes about the edge does not flap."""
    full_seconds: float = 20.0
    """It must have been so for this long, as what was moved into Windows' RAM must lie there."""
    kill_headroom: float = 0.30
    """Above this share a kill, or an allocation that failed, is over: no growth is warned of there."""
    ending_seconds: float = 15.0
    """The memory of a program comes back within this of its end; of a large one that takes seconds."""
    news_seconds: float = 600.0
    """For so long a forecast explains how memory came back, while there is nothing else to explain."""
    hold_seconds: float = 90.0
    """A forecast is held for so long while no sample comes; after 60 s a rule reports the silent source."""
    ceiling_reached: float = 0.05
    """With less than this share of a card left, an allocation may have failed: the large ones of a training
    are a few per cent of the card."""
    ceiling_fall: float = 0.2
    """And has, if this share is free again within seconds."""
    learn_ceiling_below: float = 0.10
    """An allocation that fails with less than this share left teaches where the ceiling is; one that fails
    with more was simply too large."""
