"""What a warning says, as data."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

from wslgpud.model import Forecast, Transition


def payload(transition: Transition) -> dict[str, Any]:
    """Return the warning as JSON for programs; what is not known is left out."""
    forecast = transition.forecast
    return {
        "at": datetime.fromtimestamp(transition.wall, timezone.utc).isoformat(timespec="milliseconds"),
        "resource": transition.resource,
        "rule": transition.rule,
        "level": transition.new.label,
        "previous_level": transition.old.label,
        "headline": transition.headline,
        **(forecast_payload(forecast) if forecast else {}),
    }


def forecast_payload(forecast: Forecast) -> dict[str, Any]:
    """Return a forecast as JSON; what is not known is left out."""
    eta = {
        name: round(seconds, 1)
        for name, seconds in (
            ("early", forecast.eta_early_seconds),
            ("middle", forecast.eta_seconds),
            ("late", forecast.eta_late_seconds),
        )
        if seconds is not None
    }
    facts: dict[str, Any] = {
        "headroom_bytes": forecast.headroom_bytes,
        "capacity_bytes": forecast.capacity_bytes,
        "rate_bytes_per_second": forecast.rate_bytes_per_second,
        "eta_seconds": eta or None,
        "probability_within_seconds": {str(k): round(v, 3) for k, v in forecast.probabilities.items()}
        or None,
        "who": forecast.who or None,
        "reason": forecast.reason or None,
    }
    return {name: value for name, value in facts.items() if value is not None}
