"""The headline of a change of level, as the alert manager words it."""

from __future__ import annotations

from wslgpud.model import Transition
from wslgpud.risk.forecast_messages import headline


def headline_of(change: Transition) -> str:
    assert change.forecast is not None
    return str(headline(change.forecast))
