"""Messages of a forecast: the word agrees with the badge, who is named first, and figures stay whole."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wslgpud.model import Forecast, GpuProcess, GpuSample, Level, Observation, ProcessSample
from wslgpud.risk.engine import RiskEngine
from wslgpud.risk.forecast_messages import advice, evidence, headline, outlook, reason
from wslgpud.words import HEADLINE_CHARACTERS, say, sentences, translator

GIB = 1 << 30
LEAK = Forecast(
    "ram",
    Level.WARNING,
    14 * GIB,
    24 * GIB,
    1.0 * GIB / 60,
    31.0,
    43.0,
    100.0,
    {60: 0.7},
    "python3 train.py (pid 8932)",
    "growth",
    "process",
    8932,
    1.1 * GIB / 60,
    0.98,
    window_seconds=20.0,
)


@pytest.mark.parametrize(
    ("forecast", "text"),
    [
        (LEAK, "RAM full in about 43 s (31-100): python3 train.py (pid 8932) +1.1 GiB/min, 14 of 24 GiB left"),
        (
            replace(LEAK, resource="cgroup:/train"),
            "cgroup /train full in about 43 s: python3 train.py (pid 8932) +1.1 GiB/min, 14 of 24 GiB left",
        ),
        (
            replace(LEAK, resource="cgroup:/user.slice/user-1000.slice/train.scope"),
            ("cgroup …/train.scope full in about 43 s: python3 train.py (pid 8932) +1.1 GiB/min, 14 of 24 GiB left"),
        ),
        (
            replace(LEAK, level=Level.INFO),
            ("RAM growing: would be full in about 43 s if it goes on: python3 train.py (pid 8932), 14 GiB left"),
        ),
        (
            replace(LEAK, cause="paused", eta_seconds=None, window_seconds=96.0),
            "RAM has not grown for 2 min: 14 of 24 GiB left",
        ),
        (
            replace(LEAK, cause="paused", eta_seconds=None, window_seconds=1.0),
            "RAM is growing more slowly now: 14 of 24 GiB left",
        ),
        (
            replace(LEAK, cause="expected", eta_seconds=None, expected_peak_bytes=41 * GIB),
            "RAM may not suffice: python3 train.py (pid 8932) came to 41 GiB before, 14 of 24 GiB left",
        ),
        (
            replace(LEAK, cause="pressure", eta_seconds=60.0, who=""),
            "Programs stall for lack of RAM: +1.0 GiB/min, 14 of 24 GiB left",
        ),
        (
            replace(LEAK, headroom_bytes=0),
            "RAM is full: python3 train.py (pid 8932) +1.1 GiB/min, 0 KiB of 24 GiB left",
        ),
        (
            replace(LEAK, cause="", eta_seconds=None, headroom_bytes=GIB, rate_bytes_per_second=0.0),
            "RAM is nearly full: python3 train.py (pid 8932), 1.0 of 24 GiB left",
        ),
        (
            replace(LEAK, cause="full", resource="gpu0", headroom_bytes=GIB, spilled_bytes=3 * GIB),
            "GPU 0 is full; 3.0 GiB lie in Windows' RAM: slow",
        ),
        (
            replace(LEAK, level=Level.OK, cause="killed", window_seconds=23.0),
            "python3 train.py (pid 8932) was killed 23 s ago; 14 of 24 GiB free again",
        ),
        (
            replace(LEAK, level=Level.OK, cause="freed", who="", window_seconds=23.0),
            "RAM is fine again: 14 of 24 GiB free",
        ),
        (replace(LEAK, level=Level.OK), "RAM is fine again: 14 of 24 GiB free"),
        (replace(LEAK, level=Level.OK, cause="gone", resource="cgroup:/build"), "cgroup /build is gone"),
    ],
)
def test_the_first_line_says_what_is_so_at_this_level(forecast: Forecast, text: str) -> None:
    assert str(headline(forecast)) == text


def test_what_is_not_near_its_limit_is_never_called_nearly_full() -> None:
    for cause in ("", "oom", "limit", "stall", "steps"):
        assert "nearly full" not in str(headline(replace(LEAK, cause=cause, eta_seconds=None)))


@pytest.mark.parametrize(
    ("forecast", "text"),
    [
        (LEAK, "~43 s left"),
        (replace(LEAK, level=Level.INFO), "growing +1.1 GiB/min"),
        (replace(LEAK, level=Level.OK, cause="", eta_seconds=None), "growing +1.0 GiB/min"),
        (replace(LEAK, level=Level.OK, rate_bytes_per_second=-GIB / 60), "shrinking \N{MINUS SIGN}1.0 GiB/min"),
        (replace(LEAK, level=Level.OK, rate_bytes_per_second=100_000.0), "steady"),
        (replace(LEAK, level=Level.OK, rate_bytes_per_second=None), ""),
        (replace(LEAK, headroom_bytes=0), "full"),
        (replace(LEAK, level=Level.OK, cause="killed", rate_bytes_per_second=-7.0 * GIB), "killed 20 s ago"),
        (replace(LEAK, level=Level.OK, cause="killed"), "growing +1.0 GiB/min"),
    ],
)
def test_a_row_says_in_short_how_it_goes_on(forecast: Forecast, text: str) -> None:
    assert str(outlook(forecast)) == text


WHO = st.one_of(
    st.text(max_size=60),
    st.builds(lambda who: say("probably {who}", who=who), st.just("python3 a_very_long_name_of_it.py (pid 7)")),
    st.builds(lambda n: say("{count} x {name}", count=n, name="cc1plus"), st.integers(2, 999)),
)


FORECASTS = st.builds(
    lambda eta, **more: replace(
        LEAK,
        eta_early_seconds=eta / 2,
        eta_seconds=eta,
        eta_late_seconds=2 * eta,
        expected_peak_bytes=41 * GIB,
        window_seconds=600.0,
        **more,
    ),
    eta=st.floats(0, 1e6),
    who=WHO,
    resource=st.sampled_from(["ram", "gpu0", "cgroup:/system.slice/a-rather-long-name.service"]),
    cause=st.sampled_from(["growth", "steps", "pressure", "limit", "oom", "full", "killed", "paused", ""]),
    level=st.sampled_from(list(Level)),
    headroom_bytes=st.integers(0, 24 * GIB),
)


@pytest.mark.parametrize("code", ["en", "zh"])
@given(forecast=FORECASTS)
def test_the_first_line_fits_with_all_its_figures_in_either_language(code: str, forecast: Forecast) -> None:
    assert len(translator(code).text(headline(forecast))) <= HEADLINE_CHARACTERS


def climb(engine: RiskEngine, start: float, top: float = 0.97) -> list[Forecast]:
    """Let a program take a card within a minute and end; return the forecasts."""
    found = []
    for t in range(300):
        used = int(16 * GIB * (0.2 + (top - 0.2) * min(1.0, t / 60))) if t < 70 else GIB
        processes = (ProcessSample(8932, 1, "python3", GIB, 0, command="python3 train.py"),)
        gpu = GpuSample(0, "GPU-0", "card", 16 * GIB, used, processes=(GpuProcess(8932, "python3", used),))
        seen = engine.observe(Observation(t=start + t, gpus=(gpu,), processes=processes))
        found += seen.forecasts
    return found


def test_the_first_growth_may_stop_by_itself_and_the_next_one_is_no_longer_the_first() -> None:
    engine = RiskEngine()
    first, second = climb(engine, 0.0), climb(engine, 300.0)

    def warned(forecasts: list[Forecast]) -> list[str]:
        return [str(reason(f)) for f in forecasts if f.level == Level.WARNING and f.cause == "growth"]

    assert warned(first)
    assert warned(second)
    assert all("may stop by itself" in text for text in warned(first))
    assert not any("may stop by itself" in text for text in warned(second))


def test_who_grows_on_a_card_is_named_by_its_script_as_in_the_list_of_processes() -> None:
    named = {str(f.who) for f in climb(RiskEngine(), 0.0) if f.level >= Level.WARNING}

    assert named == {"python3 train.py (pid 8932)"}


def test_where_all_is_well_there_is_no_reason_and_nothing_to_do() -> None:
    calm = replace(LEAK, level=Level.OK)

    assert not reason(calm)
    assert not advice(calm)
    assert evidence(calm) == ()


def test_what_is_told_of_a_growth_is_how_long_whose_and_how_likely() -> None:
    assert str(sentences(evidence(replace(LEAK, may_stop=True)))) == (
        "RAM use has grown for 20 s, 98 % of it by python3 train.py (pid 8932). "
        "RAM has not grown like this since wslgpud started: it may stop by itself. "
        "Probability that it runs out within 60 s: 70 %."
    )
