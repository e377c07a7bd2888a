"""The risk engine: observations in, forecasts and changes of level out."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from wslgpud.model import MEMORY, Forecast, Level, Observation, RamState, Transition
from wslgpud.risk.attribution import NOBODY, Attribution, Culprit, GpuAttribution, windows_programs
from wslgpud.risk.command_peaks import CommandPeaks, ExpectedPeak
from wslgpud.risk.headroom import WINDOWS, BalloonedMemory, Ceilings, Failure, Room, gpu_key, gpu_used, rooms
from wslgpud.risk.level_tracker import CAPACITY_TOLERANCE, RATE_SECONDS, Circumstances, LevelTracker, ResourceState
from wslgpud.risk.levels import BLIND, COUNTDOWNS, ENDINGS, Danger, Hysteresis, ending_facts, probabilities
from wslgpud.risk.owners import Holders
from wslgpud.risk.scarcity import Pressure, PressureMeter
from wslgpud.risk.settings import RiskSettings

MAX_RESOURCES = 256
CULPRIT_SECONDS = 5.0
#: a kill in a cgroup this long after a hit of its own limit is due to it: the kernel tries to reclaim in between
HIT_SECONDS = 10.0
ETAS = ("eta_early_seconds", "eta_seconds", "eta_late_seconds")
#: Key under which command peaks are stored, next to the lessons of resources.
COMMANDS = "commands"


@dataclass(frozen=True, slots=True)
class Assessment:
    """The result of one observation: a forecast per resource, changes of level, and failures to learn from."""

    forecasts: tuple[Forecast, ...]
    changes: tuple[Transition, ...]
    failures: tuple[Failure, ...] = ()


class _Last(NamedTuple):
    """The newest forecast of a resource, the resource's key, and the time of its last sample."""

    key: str
    t: float
    forecast: Forecast


def _place(forecast: Forecast) -> int:
    """Return the place among others in ``rooms``' order, so that no row of a screen moves because a source is late."""
    return next(n for n, kind in enumerate(("ram", "gpu", WINDOWS, "cgroup")) if forecast.resource.startswith(kind))


def _aged(forecast: Forecast, age: float, level: Level, *, stalled: bool) -> Forecast:
    """Return a forecast aged by the seconds since its sample, at the level of now; has the machine just ``stalled``?"""
    if stalled:
        forecast = replace(forecast, cause="stall", window_seconds=age, may_stop=False)
    passed = age - forecast.age_seconds
    etas: dict[str, Any] = {
        eta: max(0.0, seconds - passed) for eta in ETAS if (seconds := getattr(forecast, eta)) is not None
    }
    return replace(forecast, level=level, age_seconds=age, **etas)


def _unfounded(last: Forecast, cause: str, level: Level, age: float) -> Forecast:
    """Return a forecast that knows no more than the last figures."""
    sizes = last.headroom_bytes, last.capacity_bytes
    return Forecast(last.resource, level, *sizes, cause=cause, age_seconds=age, capacity_learned=last.capacity_learned)


class RiskEngine:
    """Predicts the exhaustion of memory. Pure: time comes from the observations.

    State is kept by resource key (a card's UUID), forecasts by name.
    """

    def __init__(self, settings: RiskSettings | None = None, *, users_known: bool = False) -> None:
        """Take the thresholds, and whether processes name their users; else that begins with the first which does."""
        self.settings = settings or RiskSettings()
        self._holders = Holders(known=users_known)
        self._trackers: dict[str, LevelTracker] = {}
        self._pressure = PressureMeter()
        self._attribution = Attribution()
        self._gpu_attribution: dict[str, GpuAttribution] = {}
        self._ceilings = Ceilings(self.settings)
        self._commands = CommandPeaks()
        self._taken = BalloonedMemory()
        self._kills: dict[str, int] = {}
        #: by cgroup, how often its own limit was hit, and when this last rose
        self._limit_hits: dict[str, int] = {}
        self._last_hit: dict[str, float] = {}
        self._last: dict[str, _Last] = {}
        self._ram: RamState | None = None
        self._listed = Observation(-math.inf)  # the last with a list of processes
        self._recalled: dict[str, tuple[Mapping[str, Any], float]] = {}

    def observe(self, observation: Observation, wall: float = 0.0) -> Assessment:
        """Take the next observation, made at ``wall``; return the assessment of every resource."""
        t = observation.t
        ram = self._ram = observation.ram or self._ram
        scarce = ram is not None and ram.available < self.settings.pressure_available * ram.total
        pressure = self._pressure.push(observation, wanted=scarce)
        self._attribution.push(observation)
        self._listed = observation if observation.processes else self._listed
        refused, killed = set(self._refused(observation)), set(self._killed(observation))
        exhausted = refused | killed
        failures = tuple(self._learn(observation, exhausted))
        failed = {failure.uuid or failure.resource for failure in failures}
        seen: dict[str, _Last] = {}
        known = rooms(observation, self._ceilings.bytes_by_key, self._taken.total(observation))
        here = list(known)[:MAX_RESOURCES]
        if COMMANDS in self._recalled:
            self._commands.recall(t, *self._recalled.pop(COMMANDS))
        self._holders.push(observation)
        self._commands.push(observation, here, exhausted, self._holders)
        for room in here:
            tracker = self._tracker(room, t)
            wish = self._commands.wish(t, room, observation.expected)
            over = tracker.suspect.just_ended(room, observation, self.settings)
            around = Circumstances(
                pressure if room.key == "ram" else Pressure(),
                "killed" if room.key in killed else "refused" if room.key in refused else "",
                "refused" if room.key in failed else "freed" if over else "",
                observation.gap_expected,
                wish.rest_bytes if wish else 0,
                self._commands.calm,
                self._holders.of,
                self._holders.known,
            )
            view = tracker.update(t, room, around)
            seen[room.resource] = _Last(room.key, t, self._forecast(observation, room, tracker, view, wish))
        unseen = {} if self._last.keys() <= seen.keys() else dict(self._unseen(observation, seen, pressure))
        now = seen | unseen
        changes = tuple(self._changes(t, wall, now))
        here_still = [last.forecast for last in now.values() if last.forecast.cause != "gone"]
        if unseen:
            here_still.sort(key=_place)
        return Assessment(tuple(here_still), changes, failures)

    def _unseen(
        self, observation: Observation, seen: Mapping[str, _Last], pressure: Pressure
    ) -> Iterator[tuple[str, _Last]]:
        """Yield forecasts for resources whose sample is missing: late ones, and those that are gone.

        A card that got another index is gone under its old name, as is an alarmed resource that no longer exists (a
        container, a lost card). RAM is never gone. While a source is late its resources are blind: their levels stay,
        and nothing is said of them but their last figures.
        """
        t, here = observation.t, {last.key for last in seen.values()}
        for name, last in self._last.items():
            if name in seen:
                continue
            age, before, tracker = t - last.t, last.forecast, self._trackers[last.key]
            held, late = age <= self.settings.hold_seconds, name.startswith(observation.late)
            if name == WINDOWS:  # it is asked every few seconds, and not missed while all is well
                late = late and not held and before.level >= Level.WARNING
            if last.key in here:
                yield name, last._replace(forecast=_unfounded(before, "gone", Level.OK, age))
            elif late or name == "ram" or (name == WINDOWS and held):
                level = tracker.hysteresis.level
                if name == "ram" and held and not observation.gap_expected:
                    level = tracker.miss(t, pressure)
                stalled = level > before.level
                if held and (stalled or before.cause == "stall" or not late):
                    yield name, last._replace(forecast=_aged(before, age, level, stalled=stalled))
                elif late:
                    yield name, last._replace(forecast=_unfounded(before, BLIND, level, age))
            elif not held and before.level > Level.OK:
                tracker.hysteresis = Hysteresis(self.settings)  # its successor gets an alarm of its own
                yield name, last._replace(forecast=_unfounded(before, "gone", Level.OK, age))

    def _changes(self, t: float, wall: float, now: Mapping[str, _Last]) -> Iterator[Transition]:
        """Yield a transition for each level that has changed since the last forecast; keep the new forecasts."""
        for name, last in now.items():
            forecast = last.forecast
            old = self._last[name].forecast.level if name in self._last else Level.OK
            self._last[name] = last
            if forecast.level < Level.WARNING <= old:
                self._trackers[last.key].warned = True
            if forecast.level != old:
                facts = ending_facts(forecast, wall)
                yield Transition(wall, t, name, MEMORY, old, forecast.level, forecast=forecast, facts=facts)

    def _tracker(self, room: Room, t: float) -> LevelTracker:
        tracker = self._trackers.get(room.key)
        if tracker is None:
            if len(self._trackers) >= MAX_RESOURCES:
                self._drop_oldest()
            tracker = self._trackers[room.key] = LevelTracker(self.settings.of(room.resource), room.capacity)
            if room.key in self._recalled:
                tracker.recall(t, *self._recalled.pop(room.key))
        elif abs(tracker.capacity - room.capacity) > CAPACITY_TOLERANCE * room.capacity:
            tracker.rebase(room.capacity)
        return tracker

    def _drop_oldest(self) -> None:
        """Forget the resource seen longest ago: cgroups come and go."""
        key = min(self._trackers, key=lambda key: self._trackers[key].t)
        del self._trackers[key]
        for of_resources in (self._kills, self._limit_hits, self._last_hit):
            of_resources.pop(key, None)
        self._last = {name: last for name, last in self._last.items() if last.key != key}

    def _killed(self, observation: Observation) -> Iterator[str]:
        """Yield resources with an OOM kill since the last observation."""
        killed = False
        for group in observation.cgroups:
            key, hits = f"cgroup:{group.path}", group.max_events_total
            if self._has_risen(self._limit_hits, key, hits):
                self._last_hit[key] = observation.t
            # Kills in a group count in those around it as well, whose own limit need not have been hit.
            hit = hits is None or observation.t - self._last_hit.get(key, -math.inf) <= HIT_SECONDS
            if self._has_risen(self._kills, key, group.oom_kills_total):
                killed = True
                if hit:
                    yield key
        ram = self._trackers.get("ram")
        more = self._has_risen(
            self._kills, "ram", observation.vm.oom_kills_total if observation.vm is not None else None
        )
        # A kill in a limited cgroup also counts in the machine's total.
        if more and not killed and ram and ram.headroom < self.settings.pressure_headroom * ram.capacity:
            yield "ram"

    @staticmethod
    def _has_risen(last: dict[str, int], key: str, count: int | None) -> bool:
        if count is None:
            return False
        before, last[key] = last.get(key, count), count
        return count > before

    def _refused(self, observation: Observation) -> Iterator[str]:
        """Yield the keys of resources on which an allocation has just failed; among several cards, the likeliest."""
        keys = {f"gpu{gpu.index}": gpu_key(gpu) for gpu in observation.gpus}
        for name in observation.exhausted:
            if name != "gpu":
                yield keys.get(name, name)
                continue
            cards = {key: self._trackers[key] for key in keys.values() if key in self._trackers}
            least = self.settings.noise / RATE_SECONDS
            growing = [key for key, card in cards.items() if (card.rate or 0.0) > least * card.capacity]
            if cards:
                yield min(growing or cards, key=lambda key: cards[key].headroom / cards[key].capacity)

    def _learn(self, observation: Observation, exhausted: set[str]) -> Iterator[Failure]:
        """Learn the cards' ceilings, and yield failures that were not reported."""
        t = observation.t
        for gpu in observation.gpus:
            key, used, total = gpu_key(gpu), gpu_used(gpu), gpu.total_bytes
            attribution = self._gpu_attribution.setdefault(key, GpuAttribution())
            attribution.push(t, gpu)
            if observation.wsl:
                attribution.suspects.push(observation, gpu)
            tracker = self._trackers.get(key)
            if used is None or not total or tracker is None:
                continue
            if key in exhausted:
                self._ceilings.failed(key, max(used, tracker.capacity - tracker.headroom), total)
            usual = tracker.peaks.reached(1.0 - self.settings.ceiling_reached, t - RATE_SECONDS / 6)
            failure = self._ceilings.update(t, gpu, tracker.capacity, usual=usual)
            if failure is not None:
                if failure.program:
                    tracker.forget_peaks()  # the last peak did harm
                yield failure

    def lessons(self) -> dict[str, dict[str, Any]]:
        """Return the engine's lessons by key, in JSON types, to be kept across restarts."""
        keys = [key for key in ("ram", *self._gpu_attribution) if key in self._trackers]
        found = {key: self._trackers[key].document() | self._ceilings.document(key) for key in keys}
        return found | ({COMMANDS: self._commands.document} if self._commands.document else {})

    def recall(self, key: str, document: Mapping[str, Any], age_seconds: float) -> None:
        """Take over an earlier run's lessons about a resource, and their age."""
        self._ceilings.recall(key, document)
        self._recalled[key] = (document, age_seconds)

    def _forecast(
        self,
        observation: Observation,
        room: Room,
        tracker: LevelTracker,
        view: ResourceState,
        wish: ExpectedPeak | None,
    ) -> Forecast:
        danger, reported, culprit, peak = view.danger, view.reported, NOBODY, None
        if reported is not None and reported.cause == "expected" and wish is not None:
            culprit, peak = Culprit(wish.who, "process"), wish.peak_bytes
        elif reported is not None and reported.cause in ENDINGS:
            culprit = tracker.suspect.ended(observation.t - reported.window_seconds, self.settings)
        elif reported is not None and view.level >= Level.INFO:
            old = not 0.0 <= observation.t - tracker.culprit_t < CULPRIT_SECONDS
            if old and reported.cause != "paused":  # the alarm is about the earlier growth, not about current activity
                tracker.culprit_t, tracker.culprit = observation.t, self._culprit(observation, room, tracker, reported)
                tracker.suspect.note(tracker.culprit)
            culprit = tracker.culprit
        # The first growth seen here, and not severe yet.
        first = view.level <= Level.WARNING and not tracker.warned
        eta = None
        if danger is not None and view.late_seconds is not None:
            eta = tracker.countdown(observation.t, danger.eta_seconds, view.early_seconds, view.late_seconds)
        # One rate beside one time: what is left, divided by the rate shown, is the time shown.
        counts = reported is not None and reported.cause == "growth" and view.level > Level.OK
        return Forecast(
            resource=room.resource,
            level=view.level,
            headroom_bytes=room.headroom,
            capacity_bytes=room.capacity,
            rate_bytes_per_second=room.headroom / eta if counts and eta else tracker.rate,
            eta_early_seconds=view.early_seconds,
            eta_seconds=eta,
            eta_late_seconds=view.late_seconds,
            probabilities=probabilities(danger, known=tracker.envelope.knows),
            who=culprit.who,
            cause=reported.cause if reported else "",
            who_kind=culprit.kind,
            who_pid=culprit.pid,
            who_bytes_per_second=culprit.rate or None,
            who_share_ratio=culprit.share or None,
            may_stop=reported is not None and reported.cause in COUNTDOWNS and first,
            next_step_bytes=round(reported.next_step * room.capacity) or None if reported else None,
            window_seconds=reported.window_seconds if reported else None,
            capacity_learned=self._ceilings.certainty(room.key),
            expected_peak_bytes=peak,
            spilled_bytes=reported.spilled_bytes or None if reported else None,
            steps_alike=reported is not None and reported.alike,
            swap_free_bytes=room.swap_free,
            memory_limit_bytes=room.memory_limit,
            in_windows=windows_programs(room.gpu.in_windows) if reported and room.gpu else "",
        )

    def _culprit(self, observation: Observation, room: Room, tracker: LevelTracker, danger: Danger) -> Culprit:
        """Find the culprit: costlier than everything else, so the answer is cached for a while."""
        window, rate = max(danger.window_seconds, 3.0), danger.rate * room.capacity
        if not rate:  # without a steady growth: use the window of the rate
            window, rate = RATE_SECONDS, tracker.rate or 0.0
        by_list = room.gpu is None and room.resource != WINDOWS
        if by_list and observation.t - self._listed.t <= self.settings.hold_seconds:
            observation = self._listed  # lists are late while memory is scarce: whoever grew until then is still named
        if room.resource in ("ram", WINDOWS):
            of = self._attribution.ram_culprit if room.resource == "ram" else self._attribution.windows_culprit
            return of(observation, window, rate)
        if room.resource.startswith("cgroup:"):
            group = room.resource.removeprefix("cgroup:")
            known = any(p.cgroup for p in observation.processes)
            members = tuple(p for p in observation.processes if p.within(group) or not known)
            found = self._attribution.ram_culprit(replace(observation, processes=members), window, rate)
            if found.kind not in {"process", "group"}:
                return NOBODY
            return found if known else found.likely  # a process that grows as fast as the group is most likely in it
        if room.gpu is None:
            return NOBODY
        if danger.cause == "full":
            return self._gpu_attribution[room.key].holder(observation, room.gpu)
        return self._gpu_attribution[room.key].culprit(observation, room.gpu, window, rate)
