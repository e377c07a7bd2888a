"""The document that says how things stand."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from wslgpud.model import Forecast, Level, Observation, Snapshot
from wslgpud.sampling.pipeline import PipelineState
from wslgpud.serve.status import TickState, status
from wslgpud.verdict import decide
from wslgpud.words import from_json, translator

GIB = 1 << 30


def document(*forecasts: Forecast, language: str = "en") -> dict[str, Any]:
    state = PipelineState(Snapshot(0.0, 0.0, 1, ()), Observation(0.0), forecasts)
    found: dict[str, Any] = json.loads(
        json.dumps(status(TickState(state, decide(forecasts, ())), translator(language)))
    )
    return found


def test_memory_that_is_gone_now_is_worse_than_memory_that_will_be() -> None:
    soon = Forecast("gpu0", Level.EMERGENCY, 2 * GIB, 16 * GIB, 1e8, eta_seconds=21.0, cause="growth")
    now = Forecast("ram", Level.EMERGENCY, 0, 32 * GIB, 1e8, eta_seconds=0.0, cause="growth")
    calm = Forecast("gpu1", Level.OK, 9 * GIB, 16 * GIB)

    for forecasts in ((soon, now, calm), (calm, now, soon)):
        assert document(*forecasts)["verdict"]["subject"] == "ram"


def test_the_verdict_is_worded_in_the_language_asked_for_and_kept_as_template_and_facts() -> None:
    growing = Forecast("ram", Level.WARNING, GIB, 16 * GIB, 1e7, eta_seconds=40.0, cause="growth")
    growing = replace(growing, who="train.py")
    english, chinese = document(growing)["verdict"], document(growing, language="zh")["verdict"]

    assert english["headline"] == "RAM full in about 40 s: train.py +572 MiB/min, 1.0 of 16 GiB left"
    assert "train.py" in chinese["headline"]
    assert "full" not in chinese["headline"]
    assert english["message"] == chinese["message"]
    assert translator("zh").text(from_json(english["message"])) == chinese["headline"]
    assert document(growing)["level"] == english["level"] == "warning"
