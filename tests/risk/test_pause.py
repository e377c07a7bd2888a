"""Messages after growth has stopped high up: why the alarm still holds, and its end."""

import pytest

from tests.risk.wording import headline_of
from wslgpud.model import GpuProcess, GpuSample, Level, Observation
from wslgpud.risk.engine import RiskEngine
from wslgpud.risk.forecast_messages import headline, reason

GIB = 1 << 30


def filled_and_left(seconds, top=0.91, rest=3600):
    """Fill a card in so many seconds and leave it; yield (seconds since then, forecast, change or None)."""
    engine = RiskEngine()
    for t in range(seconds + rest):
        used = int(16 * GIB * (0.2 + (top - 0.2) * min(1.0, t / seconds)))
        card = GpuSample(0, "GPU-0", "card", 16 * GIB, used, processes=(GpuProcess(7, "python", used),))
        seen = engine.observe(Observation(t=float(t), gpus=(card,)))
        yield t - seconds, seen.forecasts[0], seen.changes[0] if seen.changes else None


@pytest.mark.parametrize(("grew", "longest"), [(60, 185), (600, 900), (3600, 2400)])
def test_a_flat_card_is_warned_of_no_longer_than_it_had_grown(grew, longest):
    held = [t for t, forecast, _ in filled_and_left(grew) if t > 0 and forecast.level >= Level.WARNING]
    assert held
    assert max(held) <= longest


def test_an_alarm_held_after_growth_stopped_names_no_time():
    times = [(t, f) for t, f, _ in filled_and_left(600) if f.level >= Level.WARNING and f.cause == "paused"]
    paused = [forecast for _, forecast in times]
    assert paused
    for forecast in paused:
        assert forecast.who == "python (pid 7)"
        assert forecast.eta_early_seconds is forecast.eta_seconds is forecast.eta_late_seconds is None
        assert "ends by itself" in str(reason(forecast))
    assert str(headline(paused[-1])).startswith("GPU 0 has not grown for ")
    assert {round(f.window_seconds - t) for t, f in times} <= {-1, 0, 1, 2, 3, 4, 5}


def test_a_warning_never_lacks_a_reason():
    assert all(reason(f) for _, f, _ in filled_and_left(300, top=0.95) if f.level >= Level.INFO)


def test_the_message_of_its_end_tells_no_rate_of_what_grew_then():
    changes = [change for t, _, change in filled_and_left(600) if t > 0 and change is not None]
    assert [change.new for change in changes] == [Level.OK]
    assert headline_of(changes[0]) == "GPU 0 is no longer running out: 1.4 of 16 GiB left"
