"""When an alarm ends: over use that saws, over time unseen, after a kill; by how much is in test_parts.py."""

from __future__ import annotations

import pytest

from wslgpud.model import Level
from wslgpud.risk.levels import Hysteresis
from wslgpud.risk.settings import RiskSettings

S = RiskSettings()
#: The alarm begins with this share of headroom left.
BEGAN = 0.2
LONG = 10 * S.warn_eta_seconds


def alarm(level: Level = Level.WARNING, share: float = BEGAN) -> Hysteresis:
    """Return an alarm whose growth took so long that its standing still ends nothing."""
    machine = Hysteresis(S)
    machine.step(0.0, level, share, LONG, 0.0)
    return machine


def held(machine: Hysteresis, share: float, seconds: float, *, period: float = 0.0) -> list[Level]:
    """Return the levels of so many seconds with this headroom and without evidence, from the tenth on."""
    return [machine.step(10.0 + t, Level.OK, share, LONG, period) for t in range(int(seconds) + 1)]


def test_sawtooth_use_is_waited_for_one_and_a_half_teeth() -> None:
    period = 100.0
    levels = held(alarm(), BEGAN + S.recovery, 1.5 * period, period=period)

    assert levels.count(Level.WARNING) == 150
    assert levels[-1] == Level.OK
    assert held(alarm(), S.recovered_headroom, S.recovery_seconds, period=period)[-1] == Level.OK


def test_an_info_is_forgotten_after_half_its_growth_time() -> None:
    machine = Hysteresis(S)
    machine.step(0.0, Level.INFO, 0.9, 60.0, 0.0)

    assert machine.step(29.0, Level.OK, 0.9, 0.0, 0.0) == Level.INFO
    assert machine.step(30.0, Level.OK, 0.9, 0.0, 0.0) == Level.OK


def test_time_in_which_nothing_could_be_seen_does_not_count() -> None:
    machine = alarm()
    held(machine, 0.5, S.recovery_seconds / 2)
    machine.forgive(1000.0)
    t = 10.0 + 1000.0 + S.recovery_seconds

    assert machine.step(t - 1, Level.OK, 0.5, LONG, 0.0) == Level.WARNING
    assert machine.step(t, Level.OK, 0.5, LONG, 0.0) == Level.OK


def test_a_kill_ends_it_where_room_is_back() -> None:
    assert alarm(share=0.3).room_back == pytest.approx(0.3 + S.recovery)
    assert alarm(share=0.01).room_back == S.kill_headroom
    assert alarm(share=0.59).room_back == S.recovered_headroom
    escalated = alarm(share=0.3)
    escalated.step(1.0, Level.CRITICAL, 0.1, LONG, 0.0)
    assert escalated.room_back == pytest.approx(0.3 + S.recovery)
