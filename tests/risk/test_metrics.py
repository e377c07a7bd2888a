"""Forecasts as metrics: unknown values are absent."""

from wslgpud.model import Forecast, Level
from wslgpud.risk.risk_metrics import readings


def said(forecast: Forecast) -> dict[str, float]:
    return {f"{r.spec.name}{{{','.join(r.labels)}}}": r.value for r in readings([forecast])}


def test_a_calm_resource_has_headroom_and_a_level_and_no_end():
    assert said(Forecast("ram", Level.OK, 30, 100, who="python")) == {
        "risk_level{ram}": 0,
        "headroom_bytes{ram}": 30,
        "headroom_capacity_bytes{ram}": 100,
        "risk_forecast_age_seconds{ram}": 0,
    }


def test_a_held_forecast_shows_its_age_and_a_ceiling_its_share():
    found = said(Forecast("gpu0", Level.OK, 30, 100, age_seconds=12.34, capacity_learned="probable"))
    assert found["risk_forecast_age_seconds{gpu0}"] == 12.3
    assert found["learned_ceiling_bytes{gpu0,probable}"] == 100


def test_a_resource_in_danger_says_when_how_likely_and_who():
    forecast = Forecast(
        "gpu0",
        Level.WARNING,
        30,
        100,
        rate_bytes_per_second=1.6,
        eta_early_seconds=10.2,
        eta_seconds=19.4,
        eta_late_seconds=36.1,
        probabilities={60: 0.68749},
        who="python3 (pid 7)",
        who_kind="process",
        cause="growth",
    )
    found = said(forecast)
    assert found["consumption_bytes_per_second{gpu0}"] == 2
    assert [found[f"time_to_exhaustion_seconds{{gpu0,{e}}}"] for e in ("early", "middle", "late")] == [10, 19, 36]
    assert found["exhaustion_probability_ratio{gpu0,60}"] == 0.687
    assert found["risk_culprit{gpu0,python3 (pid 7),process,growth}"] == 1
