"""What is remembered and thought of one resource."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from wslgpud.model import GpuSample, Level
from wslgpud.risk.fullness import Full, Fullness
from wslgpud.risk.growth import Envelope
from wslgpud.risk.headroom import Room
from wslgpud.risk.levels import Cause, Danger, Hysteresis, wanted
from wslgpud.risk.peaks import Peaks
from wslgpud.risk.pressure import Pressure
from wslgpud.risk.settings import RiskSettings
from wslgpud.risk.steps import LEDGER_LEVELS, StepLedger

RATE_SECONDS = 60.0
QUIET_HEADROOM = 0.5
EXPECTED_SECONDS = 900.0
"""When a command comes to what it came to before is not known: only the probabilities take it for this."""


class View(NamedTuple):
    """What a resource looks like now: the worst danger and the times that its scales believe in.

    ``known`` says that enough was seen for silence to mean something; ``told`` is the danger that
    people are told of: the one that the level holds for, "paused" where that is seen no longer.
    """

    level: Level
    danger: Danger | None
    early_seconds: float | None
    late_seconds: float | None
    rate: float | None
    known: bool = True
    told: Danger | None = None


class Circumstances(NamedTuple):
    """What else is known at the time of a sample.

    ``pressure`` are stalls that are about this resource (none for a GPU); ``exhausted`` says that since the
    last sample a process was "killed" for lack of it or an allocation was "refused"; ``ended`` that who grew
    has ended ("freed"), or has failed as far as can be seen ("refused"); ``gap_expected`` that the time since
    then is no stall; ``limit_hits`` counts a cgroup's runs into its limit. ``wanted_bytes`` is
    what running commands will still want, by their earlier runs; ``calm`` how many such runs took as much as
    is taken now, and more, and did no harm. ``gpu`` is the card, and ``end_bytes`` what was in use when a
    stress run saw its memory come to lie in RAM.
    """

    pressure: Pressure = Pressure()
    exhausted: Literal["", "killed", "refused"] = ""
    ended: Literal["", "freed", "refused"] = ""
    gap_expected: bool = False
    limit_hits: int | None = None
    wanted_bytes: int = 0
    calm: int = 0
    gpu: GpuSample | None = None
    end_bytes: float | None = None


class _Ending(NamedTuple):
    """How memory came back, or is about to."""

    t: float
    cause: Cause


class Watch:
    """One resource: its history at all scales, the peaks it survived, and the level that holds."""

    def __init__(self, settings: RiskSettings, capacity: int) -> None:
        """Start with nothing seen of a resource of this capacity (bytes)."""
        self.settings = settings
        self.capacity = capacity
        self.hysteresis = Hysteresis(settings)
        self.t = -math.inf
        self.headroom = 0
        self._interval = 0.0
        self._quiet = True
        self._alarmed = False
        self._counting = False
        self._ending = _Ending(-math.inf, "freed")
        self._fullness = Fullness(settings)
        self._hits: deque[tuple[float, int]] = deque(maxlen=32)
        self._forget()

    def _forget(self) -> None:
        s = self.settings
        self._envelope = Envelope(s.noise, s.jump)
        self._ledgers = {level: StepLedger(s.step) for level in LEDGER_LEVELS}
        self._peaks = Peaks(s.swing, s.peak_memory_seconds)
        self._recent: deque[tuple[float, int]] = deque(maxlen=14)

    def rebase(self, capacity: int) -> None:
        """Take a new capacity: what was seen under the old one says nothing, only the alarm holds."""
        self._fullness.rebase(self.capacity / capacity)
        self.capacity = capacity
        self._forget()

    def gap(self, t: float) -> float:
        """Return the seconds by which a sample at ``t`` is overdue, or 0 if it is about on time."""
        late = t - self.t
        usual = max(self.settings.gap_seconds, 6.0 * self._interval)
        return late if math.isfinite(late) and self._interval > 0 and late > usual else 0.0

    @property
    def rate(self) -> float | None:
        """Bytes a second that went away over the last minute."""
        start, headroom = self._recent[0] if self._recent else (self.t, 0)
        return (headroom - self.headroom) / (self.t - start) if self.t - start > 0 else None

    def is_usual(self, t: float, share: float) -> bool:
        """Tell whether use came as high as this share before the last seconds, and went back unharmed."""
        return self._peaks.reached(share, t - RATE_SECONDS / 6)

    def forget_peaks(self) -> None:
        """Take it that the last peak did harm."""
        self._peaks.clear()

    def miss(self, t: float, pressure: Pressure) -> Level:
        """Judge a moment at which the sample did not come; return the level that holds.

        Reading memory takes microseconds. Where little is left and either the counters or an alarm of
        before tell of trouble, a read that does not return is the stall that was to be warned of.
        """
        share, late = self.headroom / self.capacity, self.gap(t)
        stalled = pressure.stalled or self.hysteresis.level >= Level.INFO
        for danger in self._stalling(share, pressure._replace(stalled=stalled), late, alarmed=self._alarmed):
            want = wanted(danger, share, 0.0, self.settings)
            if want > self.hysteresis.level:
                self.hysteresis.step(t, want, share, self.settings.still_seconds, 0.0)
        return self.hysteresis.level

    def document(self) -> dict[str, Any]:
        """Return what is worth keeping over a restart: peaks that did no harm, and of what capacity."""
        peaks = self._peaks.document(self.t)
        found = {"peaks": peaks} if peaks else {}
        found |= self._fullness.document()
        return {"capacity_bytes": self.capacity, **found} if found else {}

    def recall(self, t: float, document: Mapping[str, Any], age_seconds: float) -> None:
        """Take what an earlier run has kept so long ago; peaks of another capacity say nothing."""
        capacity = document.get("capacity_bytes")
        if isinstance(capacity, int) and abs(capacity - self.capacity) <= 0.01 * self.capacity:
            self._peaks.recall(t, ((age + age_seconds, peak) for age, peak in document.get("peaks", ())))
            self._fullness.recall(document)

    def look(self, t: float, room: Room, around: Circumstances) -> View:
        """Take one sample of the resource at ``t`` seconds; return what is to be thought of it."""
        s = self.settings
        gap, share = self.gap(t), room.share
        if gap:
            self._envelope.skip(gap)
        if gap and around.gap_expected:
            self.hysteresis.forgive(gap)
        elif not gap and math.isfinite(self.t) and t > self.t:
            step = t - self.t
            self._interval = step if not self._interval else self._interval + 0.2 * (step - self._interval)
        self._note_ending(t, around)
        self._remember(t, room, 1.0 - share)
        quiet = share >= QUIET_HEADROOM
        dangers = [] if quiet else self._growing(t, share, around.calm)
        self._quiet = quiet
        alarmed = self.hysteresis.level >= Level.WARNING
        gap = 0.0 if around.gap_expected else gap
        dangers += self._stalling(share, around.pressure, gap, alarmed=alarmed)
        if around.exhausted and share < self.hysteresis.room_back:
            dangers.append(Danger("oom", 1.0, 0.0, 0.0))
        hit = self._hit_rate(t, around.limit_hits)
        if hit >= s.limit_hits_per_second and share < s.critical_headroom:
            dangers.append(Danger("limit", 0.6, 60.0, 10.0))
        dangers += self._expecting(room, around.wanted_bytes)
        full = None
        if around.gpu is not None:
            full = self._fullness.look(t, around.gpu, share, room.capacity, around.end_bytes, alarmed=alarmed)
        view = self._judge(t, share, dangers, full, swap=room.swap)
        self._alarmed = view.level >= Level.WARNING
        return view

    def _remember(self, t: float, room: Room, used: float) -> None:
        self.t, self.headroom = t, room.headroom
        self._envelope.push(t, used)
        self._peaks.push(t, used)
        for level, ended, value in self._envelope.rolled:
            if level in self._ledgers:
                self._ledgers[level].feed(ended, value)
        if not self._recent or t - self._recent[-1][0] >= RATE_SECONDS / 12:
            self._recent.append((t, room.headroom))

    def _expecting(self, room: Room, wanted_bytes: int) -> list[Danger]:
        """Compare what is still to come with what is left."""
        s = self.settings
        if wanted_bytes < s.step * room.capacity or wanted_bytes < s.expected_near * room.headroom:
            return []
        fits = wanted_bytes <= s.expected_too_much * room.headroom
        return [Danger("expected", 0.3 if fits else 0.6, EXPECTED_SECONDS, 10.0)]

    def _growing(self, t: float, share: float, calm: int) -> list[Danger]:
        def belief(height: float, since: float) -> float:
            return 1.0 / (1.0 + self.settings.doubt * (self._peaks.doubt(height, since) + calm))

        growths = [g for g in self._envelope.growths(share, resumed=self._quiet) if g.window_seconds >= 1.4]
        top = max((g.probability for g in growths), default=0.0)
        early = min(
            (g.eta_seconds for g in growths if g.window_seconds >= 2.5 and g.probability >= 0.3 * top),
            default=math.inf,
        )
        dangers = [
            Danger(
                "growth",
                g.probability * belief(g.height, t - g.window_seconds),
                g.eta_seconds,
                g.window_seconds,
                early_seconds=min(early, g.eta_seconds),
                rate=g.rate,
                pace=g.pace,
            )
            for g in growths
        ]
        for ledger in self._ledgers.values():
            stairs = ledger.stairs(t, share)
            if stairs is not None:
                dangers.append(
                    Danger(
                        "steps",
                        stairs.probability * belief(1.0 - share, stairs.since),
                        stairs.eta_seconds,
                        stairs.interval_seconds,
                        early_seconds=max(stairs.eta_seconds, stairs.interval_seconds),
                        still_seconds=max(4.0, 2.5 * stairs.steps) * stairs.interval_seconds,
                        next_step=stairs.next_step,
                        last_step=stairs.last_step,
                        headroom=share,
                    )
                )
        return dangers

    def _stalling(self, share: float, pressure: Pressure, gap: float, *, alarmed: bool) -> list[Danger]:
        s = self.settings
        if share >= s.pressure_headroom:
            return []
        dangers = []
        if gap and pressure.stalled:
            dangers.append(Danger("stall", 0.95 if alarmed else 0.7, 30.0, gap))
        if pressure.full >= s.full_warning:
            dangers.append(Danger("pressure", 0.95 if pressure.full >= s.full_critical else 0.6, 60.0, 10.0))
        return dangers

    def _hit_rate(self, t: float, hits: int | None) -> float:
        if hits is None:
            return 0.0
        while self._hits and t - self._hits[0][0] > 10.0:
            self._hits.popleft()
        if self._hits and hits < self._hits[-1][1]:
            self._hits.clear()  # the group was made anew
        self._hits.append((t, hits))
        start, first = self._hits[0]
        return (hits - first) / (t - start) if t - start >= 5.0 else 0.0

    def _judge(self, t: float, share: float, dangers: list[Danger], full: Full | None, *, swap: bool) -> View:
        best, want = None, Level.OK
        overdue = min(5.0, max(0.0, self._interval - 0.5))
        overdue *= self.settings.look_ahead if swap else 1.0
        for danger in dangers:
            level = wanted(
                danger, share, overdue, self.settings, margin=0.0 if swap else self.settings.no_swap_margin
            )
            if best is None or (level, danger.probability) > (want, best.probability):
                best, want = danger, level
        told, passed = best, False
        if full is not None:
            chance, spilled = 0.95 if full.critical else 0.6, full.spilled_bytes
            danger = Danger("full", chance, math.inf, full.seconds, spilled_bytes=spilled)
            level = wanted(danger, share, 0.0, self.settings)
            # What was moved away has passed the end: a countdown to it means nothing any more.
            passed = spilled > 0 and share < self.settings.full_headroom and _counts_down(best)
            if level > want or (level == want and spilled) or passed or self._is_refuted(best, full):
                told, want = danger, level
                self.hysteresis.settle()
        still = max(best.window_seconds, best.still_seconds) if best is not None else 0.0
        period = self._peaks.period_seconds if self.hysteresis.level > Level.INFO else 0.0
        self.hysteresis.interval = self._interval
        ended = t - self._ending.t
        over = want < min(self.hysteresis.level, Level.WARNING) and self._is_over(ended, share)
        if over or (passed and self._counting):
            level = self.hysteresis.end(t, want, share)
        else:
            level = self.hysteresis.step(t, want, share, still, period)
        quiet = t - self.hysteresis.wanted_t
        if want < min(level, Level.WARNING) and (best is None or quiet >= self.settings.info_seconds):
            told = Danger("paused", 0.0, math.inf, self._envelope.still_seconds)
        elif level == Level.OK and ended < self.settings.news_seconds and share >= self.hysteresis.room_back:
            told = Danger(self._ending.cause, 0.0, math.inf, ended)
        self._counting = _counts_down(told)
        early = late = None
        if best is not None and best is told and best.cause != "expected":
            times = [
                d.eta_seconds
                for d in dangers
                if d.cause == best.cause and d.probability >= 0.3 * best.probability
            ]
            early = min([0.7 * best.eta_seconds, best.early_seconds, *times])
            late = max(1.6 * best.eta_seconds, *times)
        return View(level, best, early, late, self.rate, self._envelope.knows, told)

    def _note_ending(self, t: float, around: Circumstances) -> None:
        if around.exhausted:
            self._forget()
            self._fullness.failed()
            self._ending = _Ending(t, around.exhausted)
            return
        if self._ending.cause != "freed" and t - self._ending.t <= self.settings.ending_seconds:
            self._peaks.clear()  # what falls now did harm: a kill is counted before its memory is back
        # Who was killed ends as well, and is seen to be gone only later.
        known = t - self._ending.t <= self.settings.ending_seconds
        if around.ended and not known and self.hysteresis.level >= Level.WARNING:
            self._ending = _Ending(t, around.ended)

    def _is_over(self, ended_seconds: float, share: float) -> bool:
        """Tell whether somebody was killed, failed or ended just now, and what was held is back."""
        return ended_seconds <= self.settings.ending_seconds and share >= self.hysteresis.room_back

    def _is_refuted(self, danger: Danger | None, full: Full) -> bool:
        """Tell whether a countdown has run out twice over without anything having grown."""
        if danger is None or not _counts_down(danger):
            return False
        return full.flat_seconds > max(self.settings.full_seconds, 2.0 * danger.eta_seconds)


def _counts_down(danger: Danger | None) -> bool:
    """Tell whether what is told is how long it takes until nothing is left."""
    return danger is not None and danger.cause in {"growth", "steps"}
