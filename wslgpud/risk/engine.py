"""The risk engine: observations in, forecasts and changes of level out."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from wslgpud.model import Forecast, Level, Observation
from wslgpud.risk.attribution import NOBODY, Attribution, Culprit, GpuAttribution
from wslgpud.risk.headroom import Room, gpu_used, rooms
from wslgpud.risk.levels import Danger
from wslgpud.risk.pressure import Pressure, PressureMeter
from wslgpud.risk.settings import RiskSettings
from wslgpud.risk.watch import RATE_SECONDS, Circumstances, View, Watch
from wslgpud.risk.wording import headline, reason

HORIZONS = (60, 300, 900, 3600)
ETA_SPREAD = 0.6
"""Spread (standard deviation of the logarithm) of the real time to exhaustion about the middle estimate."""
MOST_RESOURCES = 256
FORGET_SECONDS = 600.0
CULPRIT_SECONDS = 5.0
NO_PRESSURE = Pressure()


class LevelChange(NamedTuple):
    """A resource went from one level to another at ``t``; ``headline`` is the first line to show."""

    t: float
    resource: str
    old: Level
    new: Level
    headline: str
    forecast: Forecast


@dataclass(frozen=True, slots=True)
class Assessment:
    """What one observation led to: a forecast per resource, and the changes of level."""

    forecasts: tuple[Forecast, ...]
    changes: tuple[LevelChange, ...]


def probabilities(danger: Danger | None) -> dict[int, float]:
    """Return the probability of exhaustion within each horizon (seconds).

    That it happens at all is the danger's own probability; when, if so, is taken as log-normal about
    the middle estimate.
    """
    if danger is None:
        return dict.fromkeys(HORIZONS, 0.0)
    eta = max(danger.eta_seconds, 0.5)
    return {
        horizon: danger.probability
        * 0.5
        * (1.0 + math.erf(math.log(horizon / eta) / (ETA_SPREAD * math.sqrt(2.0))))
        for horizon in HORIZONS
    }


class RiskEngine:
    """Sees memory run out before it does. Pure: time is what the observations say."""

    def __init__(self, settings: RiskSettings | None = None) -> None:
        """Start with nothing known."""
        self.settings = settings or RiskSettings()
        self._watches: dict[str, Watch] = {}
        self._pressure = PressureMeter()
        self._attribution = Attribution()
        self._gpu_attribution: dict[str, GpuAttribution] = {}
        self._ceilings: dict[str, int] = {}
        self._kills: dict[str, int] = {}
        self._culprits: dict[str, tuple[float, Culprit]] = {}

    def observe(self, observation: Observation) -> Assessment:
        """Take the next observation; return what is to be thought of every resource now."""
        t = observation.t
        pressure = self._pressure.push(observation)
        if not self._short_of_ram(observation):
            pressure = NO_PRESSURE
        self._attribution.push(observation)
        exhausted = set(observation.exhausted) | set(self._killed(observation))
        self._learn(observation, exhausted)
        hits = {f"cgroup:{group.path}": group.max_events_total for group in observation.cgroups}
        forecasts, changes = [], []
        for room in rooms(observation, self._ceilings):
            name = room.resource
            watch = self._watch(room, t)
            old = watch.hysteresis.level
            around = Circumstances(
                pressure if name == "ram" else NO_PRESSURE,
                name in exhausted,
                observation.gap_expected,
                hits.get(name),
            )
            view = watch.look(t, room, around)
            forecast = self._forecast(observation, room, view, changed=view.level != old)
            forecasts.append(forecast)
            if view.level != old:
                culprit = self._culprits.get(name, (t, NOBODY))[1]
                first_line = headline(forecast, culprit.rate or None)
                changes.append(LevelChange(t, name, old, view.level, first_line, forecast))
        return Assessment(tuple(forecasts), tuple(changes))

    def _short_of_ram(self, observation: Observation) -> bool:
        ram = observation.ram
        return ram is not None and ram.available < self.settings.pressure_available * ram.total

    def _watch(self, room: Room, t: float) -> Watch:
        watch = self._watches.get(room.resource)
        if watch is None:
            if len(self._watches) >= MOST_RESOURCES:
                self._drop_stale(t)
            watch = self._watches[room.resource] = Watch(self.settings, room.capacity)
        elif abs(watch.capacity - room.capacity) > 0.01 * room.capacity:
            watch.rebase(room.capacity)
        return watch

    def _drop_stale(self, t: float) -> None:
        """Forget resources not seen for long (cgroups come and go), or the one seen longest ago."""
        stale = [name for name, watch in self._watches.items() if t - watch.t > FORGET_SECONDS]
        for name in stale or [min(self._watches, key=lambda name: self._watches[name].t)]:
            del self._watches[name]
            self._culprits.pop(name, None)
            self._kills.pop(name, None)

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

    def _learn(self, observation: Observation, exhausted: set[str]) -> None:
        """Lower a GPU's ceiling to where an allocation failed, and drop that when more was used after all."""
        for gpu in observation.gpus:
            name = f"gpu{gpu.index}"
            used, total = gpu_used(gpu), gpu.total_bytes
            self._gpu_attribution.setdefault(name, GpuAttribution()).push(observation.t, gpu)
            if used is None or not total:
                continue
            if used > self._ceilings.get(name, total):
                self._ceilings.pop(name, None)
            watch = self._watches.get(name)
            if name in exhausted and watch is not None:
                most = max(used, watch.capacity - watch.headroom)
                if most >= (1.0 - self.settings.learn_ceiling_below) * total:
                    self._ceilings[name] = most

    def _forecast(self, observation: Observation, room: Room, view: View, *, changed: bool) -> Forecast:
        danger, culprit = view.danger, NOBODY
        if danger is not None and view.level >= Level.INFO:
            known_t, culprit = self._culprits.get(room.resource, (-math.inf, NOBODY))
            if changed or not 0.0 <= observation.t - known_t < CULPRIT_SECONDS:
                culprit = self._culprit(observation, room, view, danger)
        return Forecast(
            resource=room.resource,
            level=view.level,
            headroom_bytes=room.headroom,
            capacity_bytes=room.capacity,
            rate_bytes_per_second=view.rate,
            eta_early_seconds=view.early_seconds,
            eta_seconds=None if danger is None else danger.eta_seconds,
            eta_late_seconds=view.late_seconds,
            probabilities=probabilities(danger),
            who=culprit.text,
            reason=reason(room.resource, danger, culprit) if danger and view.level >= Level.INFO else "",
            cause=danger.cause if danger else "",
            who_kind=culprit.kind,
            window_seconds=danger.window_seconds if danger else None,
        )

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
                found = found._replace(text=f"probably {found.text}")
        else:
            for gpu in observation.gpus:
                if room.resource == f"gpu{gpu.index}":
                    found = self._gpu_attribution[room.resource].culprit(t, gpu, window, rate)
        self._culprits[room.resource] = (t, found)
        return found
