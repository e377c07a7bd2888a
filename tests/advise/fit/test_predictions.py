"""What ``fit`` says of the models that were measured on a card: it changes on purpose only."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.gpu.fit_on_a_real_card import MODELS
from wslgpud.advise.fit.estimate import Plan, estimate
from wslgpud.advise.fit.shape import of_config

MEASURED = json.loads(Path(__file__).with_name("h200.json").read_text())
GOLDEN = Path(__file__).with_name("predicted.json")


def predictions() -> list[dict[str, object]]:
    found = []
    for case in (*MEASURED["cases"], *MEASURED["held_out"]):
        told = estimate(of_config(MODELS[case["model"]]), Plan(**case["plan"]))
        found.append({"model": case["model"], "plan": case["plan"], "bytes": told.total_bytes})
    return found


@pytest.mark.slow
def test_a_prediction_is_the_same_to_the_byte_until_it_is_meant_to_change() -> None:
    found = predictions()
    if os.environ.get("WSLGPUD_RENEW"):
        GOLDEN.write_text("[\n" + ",\n".join(json.dumps(one) for one in found) + "\n]\n")

    assert found == json.loads(GOLDEN.read_text())
