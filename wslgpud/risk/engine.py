"""The risk engine: observations in, forecasts and changes of level out."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from wslgpud.model import Forecast, Level, Observation
from wslgpud.risk.forecast import Envelope
from wslgpud.risk.headroom import Room, rooms
from wslgpud.risk.levels import Danger, Hysteresis, wanted
from wslgpud.risk.peaks import Peaks
from wslgpud.risk.pressure import Pressure, PressureMeter
from wslgpud.risk.settings import RiskSettings
from wslgpud.risk.steps import LEDGER_LEVELS, StepLedger

HORIZONS = (60, 300, 900, 3600)


class LevelChange(NamedTuple):
    """A resource went from one level to another at ``t``."""

    t: float
    resource: str
    old: Level
    new: Level
    forecast: Forecast


@dataclass(frozen=True, slots=True)
class Assessment:
    """What one observation led to: a forecast per resource, and the changes of level."""

    forecasts: tuple[Forecast, ...]
    changes: tuple[LevelChange, ...]


class _Watch:
    """What is remembered of one resource."""

    def __init__(self, settings: RiskSettings) -> None:
        self.settings = settings
        self.envelope = Envelope(settings.noise, settings.jump)
        self.ledgers = {level: StepLedger(settings.step) for level in LEDGER_LEVELS}
        self.peaks = Peaks(settings.swing, settings.peak_memory_seconds)
        self.hysteresis = Hysteresis(settings)
        self.capacity = 0
        self.t = -math.inf
        self.share = 1.0

    def look(self, t: float, room: Room, pressure: Pressure, avail: float) -> tuple[Danger | None, Level]:
        s = self.settings
        share = room.share
        used = 1.0 - share
        dt = t - self.t
        self.envelope.push(t, used)
        self.peaks.push(t, used)
        for level, bt, value in self.envelope.rolled:
            ledger = self.ledgers.get(level)
            if ledger is not None:
                ledger.feed(bt, value)
        dangers = []
        if share < 0.5:
            belief = 1.0 / (1.0 + self.peaks.doubt(used))
            for g in self.envelope.growths(share):
                if g.window_seconds >= 1.4:
                    dangers.append(
                        Danger("growth", g.probability * belief, g.eta_seconds, g.rate, g.window_seconds)
                    )
            for ledger in self.ledgers.values():
                st = ledger.stairs(t, share)
                if st is not None:
                    dangers.append(
                        Danger(
                            "steps",
                            st.probability * belief,
                            st.eta_seconds,
                            st.next_step,
                            st.interval_seconds * st.steps,
                            st.interval_seconds * 4,
                        )
                    )
        if share < s.pressure_headroom and avail < s.pressure_available and pressure.full >= s.full_warning:
            dangers.append(
                Danger("pressure", 0.95 if pressure.full >= s.full_critical else 0.6, 60.0, 0.0, 10.0)
            )
        best, want = None, Level.OK
        for d in dangers:
            step = 0.0
            if d.cause == "growth":
                step = d.rate * max(0.6, min(dt, 5.0))
            w = wanted(d, share, share - step, s)
            if best is None or (w, d.probability) > (want, best.probability):
                best, want = d, w
        still = 0.0
        if best is not None:
            still = max(2.5 * best.window_seconds, best.still_seconds)
        self.t, self.share = t, share
        level = self.hysteresis.step(t, want, share, still)
        return best, level


class RiskEngine:
    """Sees memory run out before it does. Pure: time is what the observations say."""

    def __init__(self, settings: RiskSettings | None = None) -> None:
        """Start with nothing known."""
        self.settings = settings or RiskSettings()
        self._watches: dict[str, _Watch] = {}
        self._pressure = PressureMeter()
        self._ceilings: dict[str, int] = {}

    def observe(self, observation: Observation) -> Assessment:
        """Take the next observation; return what is to be thought of every resource now."""
        t = observation.t
        pressure = self._pressure.push(observation)
        avail = 1.0
        if observation.ram is not None and observation.ram.total > 0:
            avail = observation.ram.available / observation.ram.total
        forecasts, changes = [], []
        for room in rooms(observation, self._ceilings):
            watch = self._watches.get(room.resource)
            if watch is None or abs(watch.capacity - room.capacity) > 0.01 * room.capacity:
                watch = self._watches[room.resource] = _Watch(self.settings)
            watch.capacity = room.capacity
            old = watch.hysteresis.level
            calm = pressure if room.resource == "ram" else Pressure(0.0, measured=False, counters_moved=False)
            danger, level = watch.look(t, room, calm, avail)
            forecast = Forecast(
                room.resource,
                level,
                room.headroom,
                room.capacity,
                eta_seconds=danger.eta_seconds if danger else None,
                probabilities={300: danger.probability} if danger else {},
                reason=f"{danger.cause} P={danger.probability:.2f} w={danger.window_seconds:.0f}"
                if danger
                else "",
            )
            forecasts.append(forecast)
            if level != old:
                changes.append(LevelChange(t, room.resource, old, level, forecast))
        return Assessment(tuple(forecasts), tuple(changes))
