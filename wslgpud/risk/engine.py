"""The risk engine: observations in, forecasts and changes of level out."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from wslgpud.model import Forecast, Level, Observation, RamState
from wslgpud.risk.attribution import NOBODY, Attribution, Culprit, GpuAttribution
from wslgpud.risk.ceilings import Ceilings, Failure
from wslgpud.risk.expected import Commands, Wish
from wslgpud.risk.headroom import Room, gpu_key, gpu_used, rooms
from wslgpud.risk.levels import ENDINGS, Danger, Hysteresis
from wslgpud.risk.pressure import Pressure, PressureMeter
from wslgpud.risk.settings import RiskSettings
from wslgpud.risk.suspects import Suspects
from wslgpud.risk.watch import RATE_SECONDS, Circumstances, View, Watch
from wslgpud.risk.wording import headline
from wslgpud.words import Message

HORIZONS = (60, 300, 900, 3600)
ETA_SPREAD = 0.6
"""Spread (standard deviation of the logarithm) of the real time to exhaustion about the middle estimate."""
MOST_RESOURCES = 256
FORGET_SECONDS = 600.0
CULPRIT_SECONDS = 5.0
NO_PRESSURE = Pressure()
COMMANDS = "commands"
"""By what the peaks of commands are kept, beside the resources' own lessons."""


class LevelChange(NamedTuple):
    """A resource went from one level to another at ``t``; ``message`` is the first line to show."""

    t: float
    resource: str
    old: Level
    new: Level
    message: Message
    forecast: Forecast


@dataclass(frozen=True, slots=True)
class Assessment:
    """What one observation led to: a forecast per resource, changes of level, and failures to learn from."""

    forecasts: tuple[Forecast, ...]
    changes: tuple[LevelChange, ...]
    failures: tuple[Failure, ...] = ()


def probabilities(danger: Danger | None, *, known: bool = True) -> dict[int, float]:
    """Return the probability of exhaustion within each horizon (seconds); empty if too little was seen.

    That it happens at all is the danger's own probability; when, if so, is taken as log-normal about
    the middle estimate.
    """
    if danger is None:
        return dict.fromkeys(HORIZONS, 0.0) if known else {}
    eta = max(danger.eta_seconds, 0.5)
    return {
        horizon: danger.probability
        * 0.5
        * (1.0 + math.erf(math.log(horizon / eta) / (ETA_SPREAD * math.sqrt(2.0))))
        for horizon in HORIZONS
    }


class _Last(NamedTuple):
    """The newest forecast of a resource, by what it is remembered, and when a sample led to it."""

    key: str
    t: float
    forecast: Forecast


def _aged(forecast: Forecast, age: float, level: Level) -> Forecast:
    """Return what holds of a forecast so many seconds after its sample, at the level that holds now."""

    def less(seconds: float | None) -> float | None:
        return None if seconds is None else max(0.0, seconds - (age - forecast.age_seconds))

    if level > forecast.level:
        forecast = replace(forecast, cause="stall", window_seconds=age, may_stop=False)
    return replace(
        forecast,
        level=level,
        age_seconds=age,
        eta_early_seconds=less(forecast.eta_early_seconds),
        eta_seconds=less(forecast.eta_seconds),
        eta_late_seconds=less(forecast.eta_late_seconds),
    )


def _ended(forecast: Forecast) -> Forecast:
    """Return what is left of the forecast of something that is not there any more under that name."""
    return replace(
        forecast,
        level=Level.OK,
        who="",
        cause="gone",
        eta_early_seconds=None,
        eta_seconds=None,
        eta_late_seconds=None,
        probabilities={},
    )


def _kind(resource: str) -> str:
    """Return what kind of resource it is, as ``Observation.late`` names it."""
    return "gpu" if resource.startswith("gpu") else resource.partition(":")[0]


class RiskEngine:
    """Sees memory run out before it does. Pure: time is what the observations say.

    What it remembers hangs on a resource's key (a card's UUID), what it says on the resource's name.
    """

    def __init__(self, settings: RiskSettings | None = None) -> None:
        """Start with nothing known."""
        self.settings = settings or RiskSettings()
        self._watches: dict[str, Watch] = {}
        self._pressure = PressureMeter()
        self._attribution = Attribution()
        self._gpu_attribution: dict[str, GpuAttribution] = {}
        self._ceilings = Ceilings(self.settings)
        self._commands = Commands()
        self._suspects = Suspects(self.settings)
        self.card_ends: Mapping[str, float] = {}
        self._kills: dict[str, int] = {}
        self._culprits: dict[str, tuple[float, Culprit]] = {}
        self._last: dict[str, _Last] = {}
        self._warned: set[str] = set()
        self._ram: RamState | None = None
        self._recalled: dict[str, tuple[Mapping[str, Any], float]] = {}

    def observe(self, observation: Observation) -> Assessment:
        """Take the next observation; return what is to be thought of every resource now."""
        t = observation.t
        self._ram = observation.ram or self._ram
        pressure = self._pressure.push(observation)
        if not self._short_of_ram():
            pressure = NO_PRESSURE
        self._attribution.push(observation)
        refused, killed = set(self._refused(observation)), set(self._killed(observation))
        exhausted = refused | killed
        failures = tuple(self._learn(observation, exhausted))
        failed = {failure.uuid or failure.resource for failure in failures}
        cards = {gpu_key(gpu): gpu for gpu in observation.gpus}
        hits = {f"cgroup:{group.path}": group.max_events_total for group in observation.cgroups}
        seen: dict[str, _Last] = {}
        here = list(rooms(observation, self._ceilings.bytes_by_key))
        self._commands.push(observation, here, exhausted)
        for room in here:
            watch = self._watch(room, t)
            wish = self._commands.wish(t, room, observation.expected)
            over = self._suspects.just_ended(room, observation)
            around = Circumstances(
                pressure if room.key == "ram" else NO_PRESSURE,
                "killed" if room.key in killed else "refused" if room.key in refused else "",
                "refused" if room.key in failed else "freed" if over else "",
                observation.gap_expected,
                hits.get(room.key),
                wish.rest_bytes if wish else 0,
                self._commands.calm(room),
                cards.get(room.key),
                self.card_ends.get(room.key),
            )
            old = watch.hysteresis.level
            view = watch.look(t, room, around)
            forecast = self._forecast(observation, room, view, wish, changed=view.level != old)
            seen[room.resource] = _Last(room.key, t, forecast)
        held = dict(self._held(observation, seen, pressure))
        forecasts = [last.forecast for last in (seen | held).values()]
        return Assessment(tuple(forecasts), tuple(self._changes(t, seen, held, observation.late)), failures)

    def _short_of_ram(self) -> bool:
        ram = self._ram
        return ram is not None and ram.available < self.settings.pressure_available * ram.total

    def _held(
        self, observation: Observation, seen: Mapping[str, _Last], pressure: Pressure
    ) -> Iterator[tuple[str, _Last]]:
        """Yield the resources whose sample did not come though they are there: what was thought holds."""
        here = {last.key for last in seen.values()}
        for name, last in self._last.items():
            age = observation.t - last.t
            kind = _kind(name)
            watch = self._watches.get(last.key)
            if (
                name not in seen
                and last.key not in here
                and watch is not None
                and 0.0 <= age <= self.settings.hold_seconds
                and (kind == "ram" or kind in observation.late)
            ):
                level = watch.hysteresis.level
                if name == "ram" and not observation.gap_expected:
                    level = watch.miss(observation.t, pressure)
                yield name, last._replace(forecast=_aged(last.forecast, age, level))

    def _vanished(self, t: float, name: str, last: _Last, late: Collection[str]) -> bool:
        """Tell whether an alarm is about what is there no longer: a container that ended, a lost card.

        A source that is late says nothing of that, and RAM does not go away.
        """
        kind = _kind(name)
        unseen = t - last.t > self.settings.hold_seconds and kind != "ram" and kind not in late
        return unseen and last.forecast.level > Level.OK

    def _changes(
        self, t: float, seen: Mapping[str, _Last], held: Mapping[str, _Last], late: Collection[str]
    ) -> Iterator[LevelChange]:
        """Yield what differs from what was said last under each name, and remember what is said now."""
        here = {last.key for last in seen.values()}
        gone = {}
        for name, last in self._last.items():
            if name in seen or name in held:
                continue
            moved = last.key in here  # the card has another number now
            if not moved and not self._vanished(t, name, last, late):
                continue
            if not moved and last.key in self._watches:  # what takes its place has an alarm of its own
                self._watches[last.key].hysteresis = Hysteresis(self.settings)
            gone[name] = last._replace(forecast=_ended(last.forecast))
        for name, last in (*seen.items(), *held.items(), *gone.items()):
            forecast = last.forecast
            old = self._last[name].forecast.level if name in self._last else Level.OK
            self._last[name] = last
            if forecast.level < Level.WARNING <= old:
                self._warned.add(last.key)
            if forecast.level != old:
                yield LevelChange(t, name, old, forecast.level, headline(forecast), forecast)

    def _watch(self, room: Room, t: float) -> Watch:
        watch = self._watches.get(room.key)
        if watch is None:
            if len(self._watches) >= MOST_RESOURCES:
                self._drop_stale(t)
            watch = self._watches[room.key] = Watch(self.settings, room.capacity)
            if room.key in self._recalled:
                watch.recall(t, *self._recalled.pop(room.key))
        elif abs(watch.capacity - room.capacity) > 0.01 * room.capacity:
            watch.rebase(room.capacity)
        return watch

    def _drop_stale(self, t: float) -> None:
        """Forget resources not seen for long (cgroups come and go), or the one seen longest ago."""
        stale = [key for key, watch in self._watches.items() if t - watch.t > FORGET_SECONDS]
        for key in stale or [min(self._watches, key=lambda key: self._watches[key].t)]:
            del self._watches[key]
            self._culprits.pop(key, None)
            self._kills.pop(key, None)
            self._warned.discard(key)
            self._suspects.forget(key)
            self._last = {name: last for name, last in self._last.items() if last.key != key}

    def _killed(self, observation: Observation) -> Iterator[str]:
        """Yield resources for which the kernel has killed since the last observation."""
        counts = {f"cgroup:{group.path}": group.oom_kills_total for group in observation.cgroups}
        if observation.vm is not None:
            counts["ram"] = observation.vm.oom_kills_total
        grown = False
        for name, count in counts.items():
            if count is None:
                continue
            before = self._kills.get(name)
            self._kills[name] = count
            if before is None or count <= before or (name == "ram" and (grown or not self._ram_was_short())):
                continue
            grown = True
            yield name

    def _ram_was_short(self) -> bool:
        """Tell a kill by the whole machine from one in a limited group, which the kernel counts in one."""
        watch = self._watches.get("ram")
        return watch is not None and watch.headroom < self.settings.pressure_headroom * watch.capacity

    def _refused(self, observation: Observation) -> Iterator[str]:
        """Yield the keys of what an allocation has just failed on; of several cards the likeliest."""
        keys = {f"gpu{gpu.index}": gpu_key(gpu) for gpu in observation.gpus}
        for name in observation.exhausted:
            if name != "gpu":
                yield keys.get(name, name)
                continue
            cards = {key: self._watches[key] for key in keys.values() if key in self._watches}
            growing = [
                key
                for key, watch in cards.items()
                if (watch.rate or 0.0) * RATE_SECONDS > self.settings.noise * watch.capacity
            ]
            if cards:
                yield min(growing or cards, key=lambda key: cards[key].headroom / cards[key].capacity)

    def _learn(self, observation: Observation, exhausted: set[str]) -> Iterator[Failure]:
        """Learn where the cards' ceilings are, and yield failures that nobody told of."""
        t = observation.t
        for gpu in observation.gpus:
            key, used, total = gpu_key(gpu), gpu_used(gpu), gpu.total_bytes
            self._gpu_attribution.setdefault(key, GpuAttribution()).push(t, gpu)
            watch = self._watches.get(key)
            if used is None or not total or watch is None:
                continue
            if key in exhausted:
                self._ceilings.failed(key, max(used, watch.capacity - watch.headroom), total)
            usual = watch.is_usual(t, 1.0 - self.settings.ceiling_reached)
            failure = self._ceilings.look(t, gpu, watch.capacity, usual=usual)
            if failure is not None:
                if failure.program:
                    watch.forget_peaks()
                yield failure

    def lessons(self) -> dict[str, dict[str, Any]]:
        """Return what is worth keeping over a restart, by key, as JSON can hold it."""
        keys = ["ram", *self._gpu_attribution]
        found = {
            key: self._watches[key].document() | self._ceilings.document(key)
            for key in keys
            if key in self._watches
        }
        return found | ({COMMANDS: self._commands.document} if self._commands.document else {})

    def recall(self, key: str, document: Mapping[str, Any], age_seconds: float) -> None:
        """Take up what an earlier run had to say of a resource so long ago."""
        if key == COMMANDS:
            self._commands.recall(document, age_seconds)
            return
        self._ceilings.recall(key, document)
        self._recalled[key] = (document, age_seconds)

    def _forecast(
        self, observation: Observation, room: Room, view: View, wish: Wish | None, *, changed: bool
    ) -> Forecast:
        danger, culprit, peak = view.danger, NOBODY, None
        told = view.told
        grows = told is not None and told.cause in {"growth", "steps"}
        if told is not None and told.cause == "expected" and wish is not None:
            culprit, peak = Culprit(wish.who, "process"), wish.peak_bytes
        elif told is not None and told.cause in ENDINGS:
            culprit = self._suspects.ended(room.key, observation.t - told.window_seconds)
        elif told is not None and view.level >= Level.INFO:
            known_t, culprit = self._culprits.get(room.key, (-math.inf, NOBODY))
            old = changed or not 0.0 <= observation.t - known_t < CULPRIT_SECONDS
            if old and told.cause != "paused":  # who grew then is who is meant, not who does something now
                culprit = self._culprit(observation, room, view, told)
        return Forecast(
            resource=room.resource,
            level=view.level,
            headroom_bytes=room.headroom,
            capacity_bytes=room.capacity,
            rate_bytes_per_second=view.rate,
            eta_early_seconds=view.early_seconds,
            eta_seconds=None if danger is None or view.late_seconds is None else danger.eta_seconds,
            eta_late_seconds=view.late_seconds,
            probabilities=probabilities(danger, known=view.known),
            who=culprit.who,
            cause=told.cause if told else "",
            who_kind=culprit.kind,
            who_pid=culprit.pid,
            who_bytes_per_second=culprit.rate or None,
            who_share_ratio=culprit.share or None,
            may_stop=grows and self._is_first(room.key, view.level),
            next_step_bytes=round(told.next_step * room.capacity) if told and told.cause == "steps" else None,
            window_seconds=told.window_seconds if told else None,
            capacity_learned=self._ceilings.certainty(room.key),
            expected_peak_bytes=peak,
            spilled_bytes=told.spilled_bytes or None if told else None,
        )

    def _is_first(self, key: str, level: Level) -> bool:
        """Tell whether a resource grows, not badly yet, that has not been warned of before."""
        return level <= Level.WARNING and key not in self._warned

    def _culprit(self, observation: Observation, room: Room, view: View, danger: Danger) -> Culprit:
        """Look up who grows, and keep the answer for a while: it costs more than all the rest."""
        t = observation.t
        window, rate = max(danger.window_seconds, 3.0), danger.rate * room.capacity
        if not rate:  # what does not grow steadily is looked at over the time that the rate is of
            window, rate = RATE_SECONDS, view.rate or 0.0
        found = NOBODY
        if room.resource == "ram":
            found = self._attribution.ram_culprit(observation, window, rate)
        elif room.resource.startswith("cgroup:"):
            group = room.resource.removeprefix("cgroup:")
            known = any(p.cgroup for p in observation.processes)
            members = tuple(p for p in observation.processes if p.within(group) or not known)
            found = self._attribution.ram_culprit(replace(observation, processes=members), window, rate)
            if found.kind not in {"process", "group"}:
                found = NOBODY
            elif not known:  # whoever grows as fast as the group does is most likely in it
                found = found.likely
        else:
            for gpu in observation.gpus:
                known_here = self._gpu_attribution[gpu_key(gpu)]
                if room.key == gpu_key(gpu) and danger.cause == "full":
                    found = known_here.holder(observation, gpu)
                elif room.key == gpu_key(gpu):
                    found = known_here.culprit(observation, gpu, window, rate)
        self._suspects.note(room.key, found)
        self._culprits[room.key] = (t, found)
        return found
