"""The document that says how things stand."""

from __future__ import annotations

from wslgpud.model import Forecast, Level, Observation, Snapshot
from wslgpud.status import status

GIB = 1 << 30


def test_memory_that_is_gone_now_is_worse_than_memory_that_will_be() -> None:
    soon = Forecast("gpu0", Level.EMERGENCY, 2 * GIB, 16 * GIB, 1e8, eta_seconds=21.0)
    now = Forecast("ram", Level.EMERGENCY, 0, 32 * GIB, 1e8, eta_seconds=0.0)
    calm = Forecast("gpu1", Level.OK, 9 * GIB, 16 * GIB)

    for forecasts in ((soon, now, calm), (calm, now, soon)):
        said = status(Snapshot(0.0, 0.0, 1, ()), Observation(0.0), forecasts)
        assert said["headline"].startswith("RAM is full")
