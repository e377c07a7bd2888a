"""The thresholds by which the risk engine is tuned, each with its reason.

Numbers that only one rule needs stand in its module.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class RiskSettings:
    """Thresholds; shares are of the resource's capacity, times are seconds.

    ``risk/README.md`` documents the origin of each number; update it, too.
    """

    #: A growth must be at least this likely to end in exhaustion (share of gain in gain + headroom).
    warn_probability: float = 0.40
    #: (seconds to exhaustion, share of headroom) below which a growth causes a warning, linear in between: above it a
    #: growth is no problem yet, but one over seconds leaves no time to wait.
    warn_points: tuple[tuple[float, float], ...] = ((8.0, 0.275), (16.0, 0.26), (30.0, 0.225), (60.0, 0.21))
    #: Added to those of 16 s and less for VRAM, which refuses at once; RAM's cache, swap and reclaim slow growth down.
    card_margin: float = 0.025
    #: Subtracted from all of them for the machine's RAM, which refuses late and slowly.
    ram_patience: float = 0.015
    #: Share of a sampling interval (beyond half a second) by which RAM's growth is extrapolated before it is compared:
    #: the next sample may come too late. Without swap, the whole interval.
    look_ahead: float = 0.5
    #: Beyond this a warning needs headroom below ``slow_headroom``: it is not urgent.
    warn_eta_seconds: float = 900.0
    #: Beyond this no growth causes a warning.
    slow_eta_seconds: float = 3600.0
    #: Share of headroom below which even exhaustion an hour away is worth a warning.
    slow_headroom: float = 0.10
    #: Share below which a steady growth is critical.
    critical_headroom: float = 0.085
    #: Share below which a growth over seconds is critical: a model that fits also ends just below the limit.
    critical_headroom_fast: float = 0.06
    #: A critical growth reaches exhaustion within this time.
    critical_eta_seconds: float = 300.0
    #: And is at least this likely to reach it.
    critical_probability: float = 0.7
    #: So is a growth that reaches exhaustion within this time: by the share of headroom alone, one that takes seconds
    #: from half full to full would become critical too late.
    act_seconds: float = 8.0
    #: If it is at least this likely to reach it.
    act_probability: float = 0.6
    #: And has at most this share left: above it there is no warning either.
    act_headroom: float = 0.275
    #: The same for a growth without steps, by the rate of the last seconds and by that of the whole growth: loads that
    #: fit end above it. Of the machine's RAM ``ram_act_headroom``.
    growth_act_headroom: float = 0.25
    ram_act_headroom: float = 0.15
    #: The same for one that gets faster: what the last seconds leave is at most this part of what the whole one does.
    faster_act_headroom: float = 0.275
    faster: float = 0.7
    emergency_headroom: float = 0.03
    #: Share below which a critical growth is an emergency if exhaustion is this close.
    emergency_eta_seconds: float = 15.0
    #: Gain from normal fluctuation of a desktop; subtracted from every gain before it counts.
    noise: float = 0.012
    #: A rise this large within one sample is an allocation, not a growth: it predicts nothing.
    jump: float = 0.08
    #: Smallest rise between two plateaus that counts as a step of a staircase.
    step: float = 0.02
    #: A fall of at least this much ends an excursion, whose peak is then known to be harmless.
    swing: float = 0.04
    #: Weight of a harmless peak against a growth, whose certainty is divided by 1 + doubt x peaks, so that after one
    #: peak it must be almost at the end.
    doubt: float = 1.3
    #: What would be critical without such peaks is critical once it has lasted for this part of the time that is left:
    #: a training's spikes, which end as they did before, are shorter.
    doubt_critical: float = 0.1
    #: How long a harmless peak counts in favour of similar ones.
    peak_memory_seconds: float = 6 * 3600.0
    #: An alarm may end when headroom is this much above that at its start.
    recovery: float = 0.08
    #: And has been for this long: the next wave of a build comes within it.
    recovery_seconds: float = 60.0
    #: Or above this share, wherever it began.
    recovered_headroom: float = 0.6
    #: An info outlasts its reason by this (and half the growth's duration), so that it does not flicker.
    info_seconds: float = 10.0
    #: Without growth for this long (and for the growth's duration), an alarm ends at its present headroom: growth is no
    #: longer expected to resume. It ends after ``warn_eta_seconds`` at the latest.
    still_seconds: float = 90.0
    #: Pressure alarms need headroom below this: stalls at half-empty memory come from the disk.
    pressure_headroom: float = 0.35
    #: And available RAM below this share of RAM.
    pressure_available: float = 0.10
    #: Share of the last 10 s in which all tasks stalled on memory (PSI full) that warns.
    full_warning: float = 0.20
    #: The same for critical.
    full_critical: float = 0.40
    #: A pause between samples longer than this, and than six usual ones, is a gap.
    gap_seconds: float = 3.0
    #: Rate at which a cgroup hits its limit (memory.events.local: max) that causes a warning if it lasts.
    limit_hits_per_second: float = 1.0
    #: Commands expected to take more than this share of the headroom, as before, are reported.
    expected_near: float = 0.9
    #: And cause a warning beyond this one.
    expected_too_much: float = 1.02
    #: Share of a card's headroom below which it is full without growth: less than a program's next buffers, or the
    #: context of one more program.
    full_headroom: float = 0.03
    #: And is no longer above this one, so that use that fluctuates around the edge does not flap.
    full_clear_headroom: float = 0.06
    #: It must have been full for this long; likewise for memory moved into Windows RAM.
    full_seconds: float = 10.0
    #: Above this share a kill, or a failed allocation, is over: there are no growth warnings there.
    kill_headroom: float = 0.30
    #: The memory of a program is free this long after its end; a large one takes seconds.
    ending_seconds: float = 15.0
    #: How long a forecast explains how memory came back, unless there is something else to report.
    news_seconds: float = 600.0
    #: How long a countdown runs on where RAM's samples fail to come, or Windows' are not due.
    hold_seconds: float = 90.0
    #: With less than this share of a card left, an allocation may have failed: large ones of a training are a few per
    #: cent of the card.
    ceiling_reached: float = 0.05
    #: And has failed if this share is free again within seconds.
    ceiling_fall: float = 0.2
    #: An allocation that fails with less than this share left reveals the ceiling; one that fails with more was simply
    #: too large.
    learn_ceiling_below: float = 0.10

    def of(self, resource: str) -> RiskSettings:
        """Return the thresholds that apply to a resource: RAM, a limited cgroup and a card end in different ways."""
        if resource.startswith("gpu"):
            return self
        if resource != "ram":
            return replace(self, card_margin=0.0)
        points = tuple((eta, share - self.ram_patience) for eta, share in self.warn_points)
        act = self.ram_act_headroom
        return replace(self, card_margin=0.0, warn_points=points, growth_act_headroom=act, faster_act_headroom=act)
