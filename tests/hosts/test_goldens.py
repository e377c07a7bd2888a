"""What each machine looks like to Prometheus. After a change: ./tests/renew, and read the difference."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.hosts.machines import MACHINES
from wslgpud.app.catalogue import catalogue
from wslgpud.risk import risk_metrics
from wslgpud.risk.engine import RiskEngine
from wslgpud.sampling.observation import observation_of
from wslgpud.serve import publisher
from wslgpud.serve.publisher import CLASSIC, families, text_of

GOLDEN = Path(__file__).parent.parent / "golden"
VOLATILE = {publisher.SOURCE_DURATION, publisher.SOURCE_AGE, publisher.TICK_TIMESTAMP}


@pytest.mark.parametrize("name", MACHINES)
def test_the_scrape_of_a_machine_is_as_it_was(name, ticked):
    engine = RiskEngine()
    for snapshot in ticked(name):
        forecasts = engine.observe(observation_of(snapshot)).forecasts
    readings = [*snapshot.readings(), *risk_metrics.readings(forecasts), *publisher.source_readings(snapshot)]
    order = {spec.name: rank for rank, spec in enumerate(catalogue())}
    lasting = families((r for r in readings if r.spec not in VOLATILE), order)
    scrape = text_of(lasting, (), CLASSIC).decode()

    file = GOLDEN / f"{name}.prom"
    if os.environ.get("WSLGPUD_RENEW"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(scrape)
    assert scrape == file.read_text()


def test_there_is_no_golden_scrape_without_its_machine():
    assert sorted(f.stem for f in GOLDEN.glob("*.prom")) == MACHINES
