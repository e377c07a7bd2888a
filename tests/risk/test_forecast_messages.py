"""Messages of a forecast: the word agrees with the badge, who is named first, and figures stay whole."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wslgpud.model import Forecast, GpuProcess, GpuSample, Level, Observation, ProcessSample
from wslgpud.risk.engine import RiskEngine
from wslgpud.risk.forecast_messages import advice, evidence, headline, outlook, reason
from wslgpud.risk.trace import read_trace, replay
from wslgpud.words import HEADLINE_CHARACTERS, say, sentences, translator

GIB = 1 << 30
TRACES = Path(__file__).parent.parent / "traces"
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
        (LEAK, "RAM full in about 43 s (31-100): python3 train.py (pid 8932) +17 MiB/s, 14 of 24 GiB left"),
        (
            replace(LEAK, resource="cgroup:/train"),
            "cgroup /train full in about 43 s (31-100): python3 train.py (pid 8932) +17 MiB/s, 14 of 24 GiB left",
        ),
        (
            replace(LEAK, resource="cgroup:/user.slice/user-1000.slice/train.scope"),
            ("cgroup …/train.scope full in about 43 s: python3 train.py (pid 8932) +17 MiB/s, 14 of 24 GiB left"),
        ),
        (
            replace(LEAK, level=Level.INFO),
            ("At this rate RAM is full in about 43 s: python3 train.py (pid 8932) +17 MiB/s, 14 of 24 GiB left"),
        ),
        (
            replace(LEAK, resource="gpu0", cause="steps", next_step_bytes=15 * GIB, steps_alike=True),
            "GPU 0: the next block like the last two (15 GiB) will not fit: python3 train.py (pid 8932)",
        ),
        (
            replace(LEAK, resource="gpu0", cause="steps", next_step_bytes=13 * GIB, steps_alike=True),
            "GPU 0 full in about 43 s (31-100): python3 train.py (pid 8932) +19 MiB/s, 14 of 24 GiB left",
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
            "Programs stall for lack of RAM: +17 MiB/s, 14 of 24 GiB left",
        ),
        (replace(LEAK, headroom_bytes=0), "RAM is full: python3 train.py (pid 8932) +17 MiB/s, 0 KiB of 24 GiB left"),
        (
            replace(LEAK, cause="", eta_seconds=None, headroom_bytes=GIB, rate_bytes_per_second=0.0),
            "RAM is nearly full: python3 train.py (pid 8932), 1.0 of 24 GiB left",
        ),
        (
            replace(LEAK, cause="full", resource="gpu0", headroom_bytes=GIB, spilled_bytes=3 * GIB),
            "GPU 0 is full; 3.0 GiB has spilled into Windows RAM: slow",
        ),
        (
            replace(LEAK, level=Level.OK, cause="killed", window_seconds=23.0),
            "python3 train.py (pid 8932) was killed 23 s ago; 14 of 24 GiB free again",
        ),
        (
            replace(LEAK, level=Level.OK, cause="freed", window_seconds=23.0),
            "python3 train.py (pid 8932) gave its memory back 23 s ago; 14 of 24 GiB free again",
        ),
        (
            replace(LEAK, level=Level.OK, cause="freed", who="", window_seconds=23.0),
            "RAM is fine again: 14 of 24 GiB free",
        ),
        (replace(LEAK, level=Level.OK), "RAM is fine again: 14 of 24 GiB free"),
        (replace(LEAK, level=Level.OK, cause="", headroom_bytes=6 * GIB), "RAM is fine again: 6.0 of 24 GiB free"),
        (
            replace(LEAK, level=Level.OK, cause="", headroom_bytes=6 * GIB - 1),
            "RAM is no longer running out: 6.0 of 24 GiB left",
        ),
        (replace(LEAK, level=Level.OK, cause="gone", resource="cgroup:/build"), "cgroup /build is gone"),
    ],
)
def test_the_first_line_says_what_is_so_at_this_level(forecast: Forecast, text: str) -> None:
    assert str(headline(forecast)) == text


@pytest.mark.parametrize(
    ("early", "middle", "late", "text"),
    [
        (44.5, 89.0, 178.0, "89 s (44-178)"),
        (45.0, 90.0, 180.0, "2 min (1-3)"),
        (2699.5, 5399.0, 10798.0, "90 min (45-180)"),
        (2700.0, 5400.0, 10800.0, "2 h (1-3)"),
        (0.2, 1.0, 3.0, "1 s (1-3)"),
        (0.1, 0.2, 0.4, "1 s"),
        (None, 43.0, 100.0, "43 s"),
        (31.0, 43.0, None, "43 s"),
    ],
)
def test_a_countdown_and_its_range_have_one_unit(
    early: float | None, middle: float, late: float | None, text: str
) -> None:
    told = headline(replace(LEAK, eta_early_seconds=early, eta_seconds=middle, eta_late_seconds=late))

    assert str(told).startswith(f"RAM full in about {text}: python3")


@pytest.mark.parametrize(
    ("left", "text"),
    [(1200, "RAM is running low"), (1199, "RAM is nearly full"), (51, "RAM is nearly full"), (50, "RAM is full")],
)
def test_full_and_nearly_full_are_shares_of_a_capacity(left: int, text: str) -> None:
    told = headline(replace(LEAK, cause="", eta_seconds=None, headroom_bytes=left, capacity_bytes=10_000))

    assert str(told).startswith(f"{text}: ")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (10.0, "RAM has not grown for 10 s"),
        (9.9, "RAM is growing more slowly now"),
        (None, "RAM is growing more slowly"),
    ],
)
def test_a_growth_that_pauses_is_first_called_slower(seconds: float | None, text: str) -> None:
    assert str(headline(replace(LEAK, cause="paused", eta_seconds=None, window_seconds=seconds))).startswith(text)


def test_memory_unread_for_a_moment_is_told_of_as_a_second() -> None:
    unread = replace(LEAK, level=Level.OK, cause="blind", age_seconds=0.0)

    assert str(headline(unread)).startswith("RAM: no reading for 1 s")


def test_a_size_that_is_unknown_ends_in_no_error() -> None:
    assert str(headline(replace(LEAK, capacity_bytes=0))).startswith("RAM is full")
    assert str(headline(replace(LEAK, capacity_bytes=1, headroom_bytes=1))).startswith("RAM full in about 43 s")


def test_figures_have_no_digits_without_a_meaning() -> None:
    odd = replace(LEAK, eta_seconds=43.256, who_share_ratio=0.98765, window_seconds=20.256, probabilities={60: 0.71239})
    ended = replace(odd, level=Level.OK, cause="killed", rate_bytes_per_second=None)
    why, odds = evidence(odd)

    assert headline(odd).facts["eta_seconds"] == outlook(odd).facts["eta_seconds"] == 43.3
    assert (why.facts["window_seconds"], why.facts["share_ratio"]) == (20.3, 0.99)
    assert odds.facts["chance_ratio"] == 0.712
    assert outlook(ended).facts == {"ago_seconds": 20.3}


def test_what_is_not_near_its_limit_is_never_called_nearly_full() -> None:
    for cause in ("", "oom", "limit", "stall", "steps"):
        assert "nearly full" not in str(headline(replace(LEAK, cause=cause, eta_seconds=None)))


@pytest.mark.parametrize(
    ("forecast", "text"),
    [
        (LEAK, "~43 s left"),
        (replace(LEAK, level=Level.INFO), "growing +17 MiB/s"),
        (replace(LEAK, level=Level.INFO, eta_seconds=120.0), "growing +1.0 GiB/min"),
        (replace(LEAK, level=Level.OK, cause="", eta_seconds=None), ""),
        (replace(LEAK, level=Level.OK, rate_bytes_per_second=-GIB / 60), ""),
        (replace(LEAK, level=Level.OK, rate_bytes_per_second=100_000.0), "steady"),
        (replace(LEAK, level=Level.OK, rate_bytes_per_second=None), ""),
        (replace(LEAK, level=Level.OK, rate_bytes_per_second=0.002 * 24 * GIB / 60), ""),
        (replace(LEAK, level=Level.OK, rate_bytes_per_second=0.00199 * 24 * GIB / 60), "steady"),
        (replace(LEAK, cause="paused", window_seconds=10.0), "steady"),
        (replace(LEAK, cause="paused", window_seconds=9.0), "growing +17 MiB/s"),
        (replace(LEAK, cause="full"), "full"),
        (replace(LEAK, cause="steps"), "~43 s left"),
        (replace(LEAK, cause="pressure"), "growing +17 MiB/s"),
        (replace(LEAK, cause="full", level=Level.OK, headroom_bytes=0), "full"),
        (replace(LEAK, level=Level.OK, cause="freed", rate_bytes_per_second=0.0), "given back 20 s ago"),
        (replace(LEAK, level=Level.OK, cause="refused", rate_bytes_per_second=None), "allocation failed 20 s ago"),
        (replace(LEAK, headroom_bytes=0), "full"),
        (replace(LEAK, level=Level.OK, cause="killed", rate_bytes_per_second=-7.0 * GIB), "killed 20 s ago"),
        (replace(LEAK, level=Level.OK, cause="killed"), ""),
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
def test_the_first_line_fits_with_all_figures_in_both_languages(code: str, forecast: Forecast) -> None:
    assert len(translator(code).text(headline(forecast))) <= HEADLINE_CHARACTERS


def climb(engine: RiskEngine, start: float, top: float = 0.97) -> list[Forecast]:
    """Let a program take a card within a minute and end; return the forecasts."""
    found: list[Forecast] = []
    for t in range(300):
        used = int(16 * GIB * (0.2 + (top - 0.2) * min(1.0, t / 60))) if t < 70 else GIB
        processes = (ProcessSample(8932, 1, "python3", GIB, 0, command="python3 train.py"),)
        gpu = GpuSample(0, "GPU-0", "card", 16 * GIB, used, processes=(GpuProcess(8932, "python3", used),))
        seen = engine.observe(Observation(t=start + t, gpus=(gpu,), processes=processes))
        found += seen.forecasts
    return found


def test_only_the_first_growth_is_said_to_perhaps_stop_by_itself() -> None:
    engine = RiskEngine()
    first, second = climb(engine, 0.0), climb(engine, 300.0)

    def warned(forecasts: list[Forecast]) -> list[str]:
        return [str(reason(f)) for f in forecasts if f.level == Level.WARNING and f.cause == "growth"]

    assert warned(first)
    assert any(f.level >= Level.WARNING and f.cause == "growth" for f in second)
    assert all("may stop by itself" in text for text in warned(first))
    assert not any("may stop by itself" in text for text in warned(second))


def test_whoever_grows_on_a_card_is_named_by_its_script() -> None:
    named = {str(f.who) for f in climb(RiskEngine(), 0.0) if f.level >= Level.WARNING}

    assert named == {"python3 train.py (pid 8932)"}


def test_where_all_is_well_there_is_no_reason_and_nothing_to_do() -> None:
    calm = replace(LEAK, level=Level.OK)

    assert not reason(calm)
    assert not advice(calm)
    assert evidence(calm) == ()


def test_a_growth_message_says_how_long_whose_and_how_likely() -> None:
    assert str(sentences(evidence(replace(LEAK, may_stop=True)))) == (
        "RAM use has grown for 20 s, 98 % of it by python3 train.py (pid 8932). "
        "RAM has not grown like this since wslgpud started: it may stop by itself. "
        "Probability that it runs out within 60 s: 70 %."
    )


@pytest.mark.parametrize(
    ("forecast", "texts"),
    [
        (replace(LEAK, who_share_ratio=None), ("RAM use has grown for 20 s.", "Growing: python3 train.py (pid 8932).")),
        (
            replace(LEAK, cause="steps", next_step_bytes=14 * GIB),
            (
                "RAM use climbs in steps, about every 20 s, and the next, of 14 GiB, may not fit.",
                "Growing: python3 train.py (pid 8932).",
            ),
        ),
        (
            replace(LEAK, cause="steps", next_step_bytes=14 * GIB - 1),
            ("RAM use climbs in steps, about every 20 s, and few more fit.", "Growing: python3 train.py (pid 8932)."),
        ),
        (
            replace(LEAK, cause="full"),
            ("RAM is full: the next allocation does not fit.", "Most of it is held by python3 train.py (pid 8932)."),
        ),
        (
            replace(LEAK, cause="expected", expected_peak_bytes=41 * GIB),
            ("In an earlier run python3 train.py (pid 8932) reached 41 GiB of RAM; 14 GiB is left for the rest.",),
        ),
        (replace(LEAK, cause="paused"), ("RAM use has not grown for 20 s, but it may go on.",)),
        (replace(LEAK, cause="paused", window_seconds=3.0), ("RAM use grows more slowly than when it was warned of.",)),
    ],
)
def test_each_cause_is_explained_with_its_figures_and_culprit(forecast: Forecast, texts: tuple[str, ...]) -> None:
    assert tuple(map(str, evidence(replace(forecast, probabilities={})))) == texts


@pytest.mark.parametrize(
    ("probabilities", "text"),
    [
        ({60: 0.04, 300: 0.2, 900: 0.7, 3600: 0.9}, "Probability that it runs out within 15 min: 70 %."),
        ({60: 0.5, 300: 0.9}, "Probability that it runs out within 5 min: 90 %."),
        ({60: 0.04, 300: 0.5, 900: 0.69}, "It is about as likely as not to run out within 5 min."),
        ({60: 0.04, 300: 0.05, 900: 0.49}, "Most of what looks like this stops by itself."),
        ({60: 0.049}, "RAM use has grown for 20 s, 98 % of it by python3 train.py (pid 8932)."),
    ],
)
def test_a_figure_is_told_only_where_it_comes_true_as_it_says(probabilities: dict[int, float], text: str) -> None:
    assert str(evidence(replace(LEAK, probabilities=probabilities))[-1]) == text


@pytest.mark.parametrize(
    ("forecast", "text"),
    [
        (LEAK, "Save your work, then stop or restart"),
        (replace(LEAK, who_kind=""), "Save your work, then stop or restart"),
        (replace(LEAK, who_kind="", resource="gpu1"), "Save a checkpoint, then use a smaller batch"),
        (replace(LEAK, who_kind="", resource="cgroup:/a"), "Raise the group's limit"),
        (replace(LEAK, who_kind="", resource="windows"), "Close programs in Windows"),
        (replace(LEAK, cause="pressure"), "Pause or stop the largest program"),
        (replace(LEAK, cause="full", resource="gpu0", spilled_bytes=GIB), "Use a smaller batch, a shorter context"),
    ],
)
def test_the_advice_suits_the_cause_or_the_place(forecast: Forecast, text: str) -> None:
    assert str(advice(forecast)).startswith(text)
    assert str(advice(forecast, {"jobs": 3})).startswith("Run fewer of them at once: about 3 fit here")


@pytest.mark.parametrize("name", ["ram-leak_linear-1", "ram-tmpfs_oom-1", "gpu-leak_outputs-1", "real-workers_oom"])
def test_what_is_left_divided_by_the_rate_is_the_time(name: str) -> None:
    seen = replay(name, read_trace(TRACES / f"{name}.jsonl.gz")).forecasts
    shown = [
        one
        for rows in seen.values()
        for _, one in rows
        if one.cause == "growth" and one.level > Level.OK and one.headroom_bytes
    ]

    assert shown
    for forecast in shown:
        assert forecast.headroom_bytes == pytest.approx(forecast.rate_bytes_per_second * forecast.eta_seconds, rel=0.1)
