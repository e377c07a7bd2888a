"""Who grew last on each resource and has ended: the victim of a kill, as far as can be seen."""

from __future__ import annotations

import math
from typing import NamedTuple

from wslgpud.model import Forecast, Observation
from wslgpud.risk.attribution import NOBODY, Culprit
from wslgpud.risk.headroom import Room, gpu_key
from wslgpud.risk.levels import ENDINGS
from wslgpud.risk.settings import RiskSettings
from wslgpud.words import Fact


class _Suspect(NamedTuple):
    """Who grew, and when it was first seen to be gone."""

    culprit: Culprit
    gone_t: float = math.inf


class Suspects:
    """Remembers one process for each resource, by the resource's key."""

    def __init__(self, settings: RiskSettings) -> None:
        """Start with nobody known."""
        self._settings = settings
        self._known: dict[str, _Suspect] = {}

    def note(self, key: str, culprit: Culprit) -> None:
        """Take note of who grows now; what is no process cannot end."""
        if culprit.pid:
            self._known[key] = _Suspect(culprit)

    def forget(self, key: str) -> None:
        """Forget who grew on a resource that has not been seen for long."""
        self._known.pop(key, None)

    def just_ended(self, room: Room, observation: Observation) -> bool:
        """Tell whether who grew has ended since the last sample; False where nobody can know."""
        suspect = self._known.get(room.key)
        card = next((gpu for gpu in observation.gpus if gpu_key(gpu) == room.key), None)
        if suspect is None:
            # A driver that shows no programs: what gave back nearly all of a card has ended.
            return card is not None and not card.processes and room.share >= self._settings.recovered_headroom
        if card is None and not observation.processes:
            return False
        pids = {p.pid for p in (observation.processes if card is None else card.processes)}
        there = suspect.culprit.pid in pids
        first = not there and suspect.gone_t == math.inf
        if there or first:
            self._known[room.key] = suspect._replace(gone_t=math.inf if there else observation.t)
        return first

    def ended(self, key: str, t: float) -> Culprit:
        """Return who ended about then, and so was killed, or gave its memory back."""
        suspect = self._known.get(key)
        if suspect is None or abs(suspect.gone_t - t) > self._settings.ending_seconds:
            return NOBODY
        return suspect.culprit


def ending_facts(forecast: Forecast, wall: float) -> dict[str, Fact]:
    """Return the facts of how a room came back, for the row of the change that ends an alarm.

    ``ending`` is the cause, ``ended_wall`` when it was, and ``victim`` who was killed, where that is known.
    """
    if forecast.cause not in ENDINGS:
        return {}
    facts: dict[str, Fact] = {
        "ending": forecast.cause,
        "ended_wall": wall - (forecast.window_seconds or 0.0),
        "free_bytes": forecast.headroom_bytes,
        "capacity_bytes": forecast.capacity_bytes,
    }
    return facts | ({"victim": forecast.who} if forecast.cause == "killed" and forecast.who else {})
