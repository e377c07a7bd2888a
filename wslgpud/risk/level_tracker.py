"""The level of one resource, decided from sample to sample, and its outlook."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, NamedTuple

from wslgpud.model import Level
from wslgpud.risk.attribution import NOBODY, Grower
from wslgpud.risk.growth import Envelope, Peaks
from wslgpud.risk.headroom import Room
from wslgpud.risk.levels import COUNTDOWNS, Cause, Danger, Hysteresis, level_for, undoubted
from wslgpud.risk.owners import OwnedPeaks, Owner
from wslgpud.risk.scarcity import Full, Fullness, Pressure
from wslgpud.risk.settings import RiskSettings
from wslgpud.risk.staircases import LEDGER_SCALES, StepLedger

RATE_SECONDS = 60.0
#: A countdown that is shown follows the estimate within this time, or this share of the time left.
COUNTDOWN_SECONDS, COUNTDOWN_SHARE = 10.0, 0.3
#: A cgroup's hits of its limit are counted over this time; half of it is the least that tells.
HITS_SECONDS = 10.0
QUIET_HEADROOM = 0.5
#: Assumed time until a command reaches its earlier peak, which is unknown.
EXPECTED_SECONDS = 900.0
#: A capacity that differs by no more than this share is the same one: a small correction must not void the history.
CAPACITY_TOLERANCE = 0.01
#: Besides ``gap_seconds``, a gap is longer than this many usual intervals: slow sampling is no stall.
GAP_INTERVALS = 6.0
#: Weight of the newest interval in the usual one: one late sample must not pass for slow sampling.
INTERVAL_WEIGHT = 0.2
#: Growth is extrapolated by the excess of the sampling interval over the fastest one, and by no more than the second.
FASTEST_SECONDS, MAX_AHEAD_SECONDS = 0.5, 5.0
#: Growth seen for less than this is one or two samples, which a single allocation explains as well.
MIN_GROWTH_SECONDS = 1.4
#: And for less than this it does not shorten the estimates of the others: its own fluctuates too much.
ESTIMATE_SECONDS = 2.5
#: Estimates of scales count if they are at least this probable, as a part of the most probable one: the range would
#: otherwise be that of the worst evidence.
LIKELY_PART = 0.3
#: The range of estimates reaches at least this far around the middle one, also where the scales agree: pace changes.
EARLY_PART, LATE_PART = 0.7, 1.6
#: Probabilities of dangers that do not grow: a warning, and a critical level (from ``CRITICAL_PROBABILITY`` on).
LIKELY, CERTAIN = 0.6, 0.95
#: That of a stall without an alarm before it: a warning, but more probable than one by pressure that did not stop us.
STALL_PROBABILITY = 0.7
#: That of a command that just fits: an info, as it is below ``warn_probability``.
FITS_PROBABILITY = 0.3


class ResourceState(NamedTuple):
    """The state of a resource after a sample."""

    level: Level
    danger: Danger | None  # the worst, with the range of its scales' estimates
    early_seconds: float | None
    late_seconds: float | None
    reported: Danger | None  # the danger behind the level, "paused" where it is no longer seen


class Circumstances(NamedTuple):
    """Facts that accompany a sample of a resource."""

    pressure: Pressure = Pressure()  # stalls due to this resource (none for a GPU)
    exhausted: Literal["", "killed", "refused"] = ""  # an OOM kill, or a failed allocation, since the last sample
    ended: Literal["", "freed", "refused"] = ""  # the culprit has ended, or has probably failed
    gap_expected: bool = False  # the time since the last sample is no stall
    wanted_bytes: int = 0  # expected by running commands, judging by earlier runs
    #: how many runs of a command took at least as much as now, without harm; asked only while something grows
    calm: Callable[[Room], Mapping[Owner, int]] = lambda _: {}
    #: bytes by owner, if they have been read afresh; asked every other second
    held: Callable[[Room], Mapping[Owner, int] | None] = lambda _: None
    owners_known: bool = False  # else everything counts as one owner's


class LevelTracker:
    """One resource: its history at all scales, its harmless peaks, its culprit, and its level.

    ``culprit`` was determined at ``culprit_t``; ``warned``: there has been a warning.
    """

    def __init__(self, settings: RiskSettings, capacity: int) -> None:
        self.settings = settings
        self.capacity = capacity
        self.hysteresis = Hysteresis(settings)
        self.t = self.culprit_t = self._counted_t = -math.inf
        self._left = 0.0
        self.headroom = 0
        self.warned = False
        self.culprit, self.suspect = NOBODY, Grower()
        self._interval = 0.0
        self._quiet, self._alarmed, self._counting = True, False, False
        self._ending_t, self._urgent_t = -math.inf, math.inf
        self._ending: Cause = "freed"
        self._fullness = Fullness(settings)
        self._hits: deque[tuple[float, int]] = deque()
        self._forget()

    def _forget(self) -> None:
        s = self.settings
        self.envelope = Envelope(s.noise, s.jump)
        self._ledgers = {scale: StepLedger(s.step) for scale in LEDGER_SCALES}
        self.peaks = Peaks(s.swing, s.peak_memory_seconds)
        self.owned = OwnedPeaks(s.swing, s.peak_memory_seconds)
        self._recent: deque[tuple[float, int]] = deque(maxlen=14)

    def rebase(self, capacity: int) -> None:
        """Take a new capacity: the history under the old one is void, only the alarm stays."""
        self._fullness.rebase(self.capacity / capacity)
        self.capacity = capacity
        self._forget()

    def countdown(self, t: float, eta: float, early: float | None, late: float) -> float:
        """Return the seconds left to show: they run down evenly, and leave that only as far as the estimate does.

        What was shown stays while it lies within the range of the new estimate, and follows it within seconds.
        """
        passed = t - self._counted_t
        kept = self._left - passed
        if passed > COUNTDOWN_SECONDS or not (eta if early is None else early) <= kept <= late:
            kept = eta
        follow = min(COUNTDOWN_SECONDS, COUNTDOWN_SHARE * eta)
        self._counted_t, self._left = t, kept + (eta - kept) * (min(1.0, passed / follow) if follow > 0.0 else 1.0)
        return self._left

    def gap(self, t: float) -> float:
        """Return the seconds by which a sample at ``t`` is overdue, or 0 if it is about on time."""
        late = t - self.t
        usual = max(self.settings.gap_seconds, GAP_INTERVALS * self._interval)
        return late if self._interval > 0 and late > usual else 0.0

    @property
    def rate(self) -> float | None:
        """Loss of headroom over the last minute, in bytes per second."""
        start, headroom = self._recent[0] if self._recent else (self.t, 0)
        return (headroom - self.headroom) / (self.t - start) if self.t - start > 0 else None

    def miss(self, t: float, pressure: Pressure) -> Level:
        """Judge a missing sample; return the level.

        Reading memory takes microseconds. Where little is left and either the counters or an earlier alarm indicate
        trouble, a read that does not return is the stall to warn of.
        """
        share, late = self.headroom / self.capacity, self.gap(t)
        stalled = pressure.stalled or self.hysteresis.level >= Level.INFO
        for danger in self._stalling(share, pressure._replace(stalled=stalled), late, alarmed=self._alarmed):
            want = level_for(danger, share, 0.0, self.settings)
            if want > self.hysteresis.level:
                self.hysteresis.step(t, want, share, self.settings.still_seconds, 0.0)
        return self.hysteresis.level

    def document(self) -> dict[str, Any]:
        """Return the state kept across restarts: harmless peaks, and the capacity."""
        peaks = {"peaks": self.peaks.document(self.t), "owned_peaks": self.owned.document(self.t)}
        found = {name: rows for name, rows in peaks.items() if rows} | self._fullness.document()
        return {"capacity_bytes": self.capacity, **found} if found else {}

    def recall(self, t: float, document: Mapping[str, Any], age_seconds: float) -> None:
        """Take over an earlier run's state, and its age; peaks of another capacity are ignored."""
        if abs(document.get("capacity_bytes", 0) - self.capacity) <= CAPACITY_TOLERANCE * self.capacity:
            self.peaks.recall(t, ((age + age_seconds, peak) for age, peak in document.get("peaks", ())))
            self.owned.recall(t, document.get("owned_peaks", ()), age_seconds)
            self._fullness.recall(document)

    def update(self, t: float, room: Room, around: Circumstances) -> ResourceState:
        """Take one sample of the resource at ``t`` seconds; return its state."""
        s, gap, share = self.settings, self.gap(t), room.share
        if gap:
            fallen = (self.headroom - room.headroom) / room.capacity
            if around.gap_expected or fallen <= s.noise:
                self.envelope.skip(gap)  # else earlier growth would count as continued
            if around.gap_expected:
                self.hysteresis.forgive(gap)
        elif math.isfinite(self.t) and t > self.t:
            step = t - self.t
            self._interval = step if not self._interval else self._interval + INTERVAL_WEIGHT * (step - self._interval)
        self._note_ending(t, around)
        self._remember(t, room, 1.0 - share)
        if self.owned.due(t) and (held := around.held(room)) is not None:
            self.owned.push(t, 1.0 - share, {owner: size / room.capacity for owner, size in held.items()})
        quiet = share >= QUIET_HEADROOM
        dangers = [] if quiet else self._growing(t, share, around.calm(room), known=around.owners_known)
        self._quiet = quiet
        alarmed = self.hysteresis.level >= Level.WARNING
        dangers += self._stalling(share, around.pressure, 0.0 if around.gap_expected else gap, alarmed=alarmed)
        if around.exhausted and share < self.hysteresis.room_back:
            dangers.append(Danger("oom", 1.0, 0.0, 0.0))
        if self._hit_rate(t, room.limit_hits) >= s.limit_hits_per_second and share < s.critical_headroom:
            dangers.append(Danger("limit", LIKELY, 60.0, 10.0))
        if around.wanted_bytes >= max(s.step * room.capacity, s.expected_near * room.headroom):
            fits = around.wanted_bytes <= s.expected_too_much * room.headroom
            dangers.append(Danger("expected", FITS_PROBABILITY if fits else LIKELY, EXPECTED_SECONDS, 10.0))
        full, before = self._fullness.update(t, room, alarmed=alarmed), self.hysteresis.level
        view = self._judge(t, share, dangers, full, swap=room.swap)
        self._alarmed = view.level >= Level.WARNING
        if view.level != before:
            self.culprit_t = -math.inf  # found anew
        return view

    def _remember(self, t: float, room: Room, used: float) -> None:
        self.t, self.headroom = t, room.headroom
        self.envelope.push(t, used)
        self.peaks.push(t, used)
        for scale, ended, value in self.envelope.rolled:
            if scale in self._ledgers:
                self._ledgers[scale].feed(ended, value)
        if not self._recent or t - self._recent[-1][0] >= RATE_SECONDS / 12:
            self._recent.append((t, room.headroom))

    def _growing(self, t: float, share: float, calm: Mapping[Owner, int], *, known: bool) -> list[Danger]:
        doubtful = calm or (self.owned if known else self.peaks).any

        def belief(height: float, since: float) -> float:
            harmless = self._harmless(height, since, calm, known=known) if doubtful else 0.0
            return 1.0 / (1.0 + self.settings.doubt * harmless)

        growths = [
            g for g in self.envelope.growths(share, resumed=self._quiet) if g.window_seconds >= MIN_GROWTH_SECONDS
        ]
        likely = LIKELY_PART * max([g.probability for g in growths], default=0.0)
        longer = [g for g in growths if g.window_seconds >= ESTIMATE_SECONDS]
        early = min([g.eta_seconds for g in longer if g.probability >= likely], default=math.inf)
        now = longer[0].eta_seconds if longer else math.inf
        dangers = [
            Danger(
                "growth",
                g.probability * (believed := belief(g.height, t - g.window_seconds)),
                g.eta_seconds,
                g.window_seconds,
                belief=believed,
                early_seconds=min(early, g.eta_seconds),
                now_seconds=min(now, g.eta_seconds / g.pace) if g.pace > 0.0 else now,
                rate=g.rate,
                pace=g.pace,
            )
            for g in growths
        ]
        stairs = [ledger.danger(t, share, belief) for ledger in self._ledgers.values()]
        return dangers + [danger for danger in stairs if danger is not None]

    def _harmless(self, height: float, since: float, calm: Mapping[Owner, int], *, known: bool) -> float:
        """Return how often whoever has grown since then came to this height without harm."""
        if not known:
            return self.peaks.doubt(height, since) + max(calm.values(), default=0)
        owner = self.owned.grower(since)
        return 0.0 if owner is None else self.owned.doubt(owner, height, since) + calm.get(owner, 0)

    def _stalling(self, share: float, pressure: Pressure, gap: float, *, alarmed: bool) -> list[Danger]:
        s = self.settings
        if share >= s.pressure_headroom:
            return []
        dangers = []
        if gap and pressure.stalled:
            dangers.append(Danger("stall", CERTAIN if alarmed else STALL_PROBABILITY, 30.0, gap))
        if pressure.full >= s.full_warning:
            chance = CERTAIN if pressure.full >= s.full_critical else LIKELY
            dangers.append(Danger("pressure", chance, 60.0, 10.0))
        return dangers

    def _hit_rate(self, t: float, hits: int | None) -> float:
        if hits is None:
            return 0.0
        if self._hits and hits < self._hits[-1][1]:
            self._hits.clear()  # the cgroup was recreated
        self._hits.append((t, hits))
        while t - self._hits[0][0] > HITS_SECONDS:
            self._hits.popleft()
        start, first = self._hits[0]
        return (hits - first) / (t - start) if t - start >= HITS_SECONDS / 2 else 0.0

    def _undoubted(self, t: float, dangers: list[Danger], level_of: Callable[[Danger], Level]) -> Iterator[Danger]:
        """Yield what is critical if earlier peaks count for nothing, as they do once that has lasted."""
        raws = (undoubted(danger) for danger in dangers if danger.belief < 1.0)
        urgent = [raw for raw in raws if level_of(raw) >= Level.CRITICAL]
        self._urgent_t = min(self._urgent_t, t) if urgent else math.inf
        yield from (raw for raw in urgent if t - self._urgent_t >= self.settings.doubt_critical * raw.eta_seconds)

    def _judge(self, t: float, share: float, dangers: list[Danger], full: Full | None, *, swap: bool) -> ResourceState:
        best: Danger | None = None
        want = Level.OK
        overdue = min(MAX_AHEAD_SECONDS, max(0.0, self._interval - FASTEST_SECONDS))
        overdue *= self.settings.look_ahead if swap else 1.0

        def level_of(danger: Danger) -> Level:
            return level_for(danger, share, overdue, self.settings)

        dangers = [*dangers, *self._undoubted(t, dangers, level_of)]
        for danger in dangers:
            level = level_of(danger)
            if best is None or (level, danger.probability) > (want, best.probability):
                best, want = danger, level
        reported, passed = best, False
        if full is not None:
            chance, spilled = CERTAIN if full.critical else LIKELY, full.spilled_bytes
            danger = Danger("full", chance, math.inf, full.seconds, spilled_bytes=spilled)
            level = level_for(danger, share, 0.0, self.settings)
            countdown = best.eta_seconds if best is not None and best.cause in COUNTDOWNS else None
            # Memory that was moved away is past the end: a countdown to it is meaningless. So is one that has run out
            # twice over without growth.
            passed = spilled > 0 and share < self.settings.full_headroom and countdown is not None
            refuted = countdown is not None and full.flat_seconds > max(self.settings.full_seconds, 2.0 * countdown)
            if level > want or (level == want and spilled) or passed or refuted:
                reported, want = danger, level
                self.hysteresis.settle()
        still = max(best.window_seconds, best.still_seconds) if best is not None else 0.0
        period = self.peaks.period_seconds if self.hysteresis.level > Level.INFO else 0.0
        self.hysteresis.interval = self._interval
        ended = t - self._ending_t
        # A process was just killed, failed or ended, and its memory is back.
        back = ended <= self.settings.ending_seconds and share >= self.hysteresis.room_back
        if (back and want < min(self.hysteresis.level, Level.WARNING)) or (passed and self._counting):
            level = self.hysteresis.end(t, want, share)
        else:
            level = self.hysteresis.step(t, want, share, still, period)
        quiet = t - self.hysteresis.wanted_t
        if want < min(level, Level.WARNING) and (best is None or quiet >= self.settings.info_seconds):
            reported = Danger("paused", 0.0, math.inf, self.envelope.still_seconds)
        elif level == Level.OK and ended < self.settings.news_seconds and share >= self.hysteresis.room_back:
            reported = Danger(self._ending, 0.0, math.inf, ended)
        self._counting = reported is not None and reported.cause in COUNTDOWNS
        early = late = None
        if best is not None and best is reported and best.cause != "expected":
            likely = LIKELY_PART * best.probability
            times = [d.eta_seconds for d in dangers if d.cause == best.cause and d.probability >= likely]
            early = min([EARLY_PART * best.eta_seconds, best.early_seconds, *times])
            late = max(LATE_PART * best.eta_seconds, *times)
        return ResourceState(level, best, early, late, reported)

    def forget_peaks(self) -> None:
        """Forget all peaks: the last one did harm."""
        self.peaks.clear()
        self.owned.clear()

    def _note_ending(self, t: float, around: Circumstances) -> None:
        # A killed process ends too, but is seen to be gone only later.
        known = t - self._ending_t <= self.settings.ending_seconds
        if around.exhausted:
            self._forget()
            self._fullness.failed()
            self._ending_t, self._ending = t, around.exhausted
        elif known and self._ending != "freed":
            self.forget_peaks()  # this peak did harm: a kill is counted before its memory is back
        elif around.ended and not known and self.hysteresis.level >= Level.WARNING:
            self._ending_t, self._ending = t, around.ended
