"""Windows' programs on a card: named where they fill it, and told wherever it is short."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from wslgpud.model import Forecast, GpuProcess, GpuSample, Level, Observation
from wslgpud.risk.attribution import NOBODY, Culprit, GpuAttribution
from wslgpud.risk.engine import RiskEngine
from wslgpud.risk.forecast_messages import advice, evidence
from wslgpud.risk.trace import observation_from_row, row_from_observation

MIB, GIB = 1 << 20, 1 << 30


def card(used: float, programs: Mapping[str, float], linux: tuple[GpuProcess, ...] = ()) -> GpuSample:
    held = tuple(GpuProcess(0, name, int(size * GIB)) for name, size in programs.items())
    return GpuSample(0, "GPU-1", "card", 16 * GIB, int(used * GIB), processes=linux, in_windows=held)


def named(*cards: GpuSample, rate: float, window: float = 10.0) -> Culprit:
    """Return who is named for a loss of so many GiB a second, of cards five seconds apart."""
    attribution = GpuAttribution()
    for n, one in enumerate(cards):
        attribution.push(5.0 * n, one)
    now = Observation(t=5.0 * (len(cards) - 1), wsl=True)
    return attribution.culprit(now, cards[-1], window, rate * GIB)


def test_a_program_of_windows_that_fills_the_card_is_named() -> None:
    found = named(card(4, {"game.exe": 1}), card(7, {"game.exe": 4}), card(10, {"game.exe": 7}), rate=0.6)

    assert (str(found.who), found.kind, found.pid) == ("game.exe (in Windows)", "windows program", None)
    assert found.rate == 0.6 * GIB


def test_a_game_that_has_just_started_is_named() -> None:
    found = named(card(4, {"dwm.exe": 1}), card(4, {"dwm.exe": 1}), card(12, {"game.exe": 8, "dwm.exe": 1}), rate=0.8)

    assert str(found.who) == "game.exe (in Windows)"


@pytest.mark.parametrize("before", [{}, {"game.exe": 8}], ids=["no list yet", "the list failed for a moment"])
def test_a_list_that_arrives_late_blames_nobody(before: Mapping[str, float]) -> None:
    cards = card(8, before), card(10, {}), card(12, {"game.exe": 8})

    assert named(*cards, rate=0.4) == NOBODY


def test_a_program_that_moves_up_in_the_list_is_not_blamed() -> None:
    first = {"chrome.exe": 2.0, "code.exe": 1.9}
    cards = card(8, first), card(10, first), card(12, {"teams.exe": 1.95, "chrome.exe": 2.0})

    assert named(*cards, rate=0.4) == NOBODY


@pytest.mark.parametrize(("game", "who"), [(12, "game.exe (in Windows)"), (7, "")])
def test_a_program_holds_most_of_a_full_card_only_above_half(game: float, who: str) -> None:
    attribution, full = GpuAttribution(), card(15.8, {"game.exe": game})
    attribution.push(0.0, full)

    assert str(attribution.holder(Observation(t=0.0, wsl=True), full).who) == who


def test_a_warning_of_a_card_tells_who_holds_it_in_windows() -> None:
    engine, last = RiskEngine(), None
    for second in range(40):
        programs = {"chrome.exe": 2.1, "dwm.exe": 0.9}
        gpu = card(6 + 0.24 * second, programs, (GpuProcess(7, "python", None),))
        for forecast in engine.observe(Observation(t=float(second), gpus=(gpu,), wsl=True)).forecasts:
            last = forecast

    assert last is not None
    assert last.level >= Level.WARNING
    assert "On it in Windows: chrome.exe 2.1 GiB, dwm.exe 922 MiB." in [str(one) for one in evidence(last)]


def test_a_calm_card_does_not_tell_who_holds_it() -> None:
    (calm,) = RiskEngine().observe(Observation(t=0.0, gpus=(card(3, {"dwm.exe": 1}),), wsl=True)).forecasts

    assert calm.in_windows == ""


def test_a_program_of_windows_is_to_be_closed_there() -> None:
    full = Forecast("gpu0", Level.WARNING, GIB, 16 * GIB, who_kind="windows program", cause="growth")

    assert str(advice(full)).startswith("Close it in Windows")


def test_a_recording_keeps_the_programs_of_windows() -> None:
    seen = Observation(t=1.0, gpus=(card(3, {"dwm.exe": 1}),), wsl=True)

    assert observation_from_row(row_from_observation(seen), wsl=True).gpus[0].in_windows == seen.gpus[0].in_windows
