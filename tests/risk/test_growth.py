"""Growth at all scales, and the peaks that did no harm: what counts, and for how long."""

from __future__ import annotations

import pytest

from wslgpud.risk.growth import Envelope, Peaks
from wslgpud.risk.settings import RiskSettings

S = RiskSettings()


def blocks(*used: float) -> list[float]:
    """Show four samples per second, two per block; return the maximum of each completed block."""
    envelope, found = Envelope(S.noise, S.jump), list[float]()
    for i, share in enumerate(used):
        envelope.push(i / 4, share)
        found += [value for scale, _, value in envelope.rolled if scale == 0]
    return found


def test_a_jump_never_lifts_a_block_above_real_memory_use() -> None:
    assert blocks(*(0.1,) * 8, 0.1, 0.17, 0.17, 0.5, 0.5, 0.5, 0.5) == [0.1] * 4 + [0.17, 0.5, 0.5]


def excursions(*tops: tuple[float, float], memory_seconds: float = 1000.0, until: float = 0.0) -> Peaks:
    """Rise to each top at its time, and fall to 20 % a second later."""
    peaks = Peaks(S.swing, memory_seconds)
    peaks.push(0.0, 0.2)
    for t, top in tops:
        peaks.push(t, top)
        peaks.push(t + 1, 0.2)
    peaks.push(until or tops[-1][0] + 2, 0.2)
    return peaks


def test_the_usual_peak_interval_is_the_median_of_the_last_five() -> None:
    times = (1000.0, 2000.0, 2010.0, 2020.0, 2040.0, 2080.0, 2120.0)

    assert excursions(*((t, 0.5) for t in times), memory_seconds=9000.0).period_seconds == 20
    assert excursions((10.0, 0.5)).period_seconds == 0


def test_each_peak_is_forgotten_in_its_own_time() -> None:
    tops = (9.0, 0.5), (59.0, 0.6), (109.0, 0.7)

    def left(until: float) -> list[float]:
        return [share for _, share in excursions(*tops, memory_seconds=100.0, until=until).document(until)]

    assert [left(until) for until in (110.0, 110.1, 160.0, 160.1)] == [[0.5, 0.6, 0.7], [0.6, 0.7], [0.6, 0.7], [0.7]]


def test_an_excursion_begins_and_ends_with_a_full_swing() -> None:
    def tops(*used: float) -> list[float]:
        peaks = Peaks(0.25, 1000.0)
        for t, share in enumerate(used):
            peaks.push(float(t), share)
        return [share for _, share in peaks.document(9.0)]

    assert tops(0.5, 0.75, 0.625, 0.75, 0.5625) == []
    assert tops(0.5, 0.75, 0.5) == [0.75]
    assert tops(0.75, 0.5, 0.625, 0.5) == [0.75]
    assert tops(0.75, 0.5, 0.25, 0.5, 0.25) == [0.75, 0.5]


def test_whether_memory_was_this_full_is_known_from_past_peaks() -> None:
    peaks = excursions((10.0, 0.5), (20.0, 0.75))

    assert [peaks.reached(share, 30.0) for share in (0.75, 0.76)] == [True, False]
    assert [peaks.reached(0.6, before) for before in (21.0, 21.1)] == [False, True]


@pytest.mark.parametrize(("height", "doubts"), [(0.4, 1.0), (0.5, 1.0), (0.5375, 0.5), (0.575, 0.0), (0.6, 0.0)])
def test_a_peak_counts_less_the_further_memory_rises_above_it(height: float, doubts: float) -> None:
    assert excursions((10.0, 0.5)).doubt(height, 100.0) == pytest.approx(doubts, abs=1e-6)
