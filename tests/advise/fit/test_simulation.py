"""The simulated steps are those of the whole model, however deep it is and whichever of its layers have a window."""

from __future__ import annotations

from dataclasses import replace

import pytest

from wslgpud.advise.fit import simulation
from wslgpud.advise.fit.estimate import Mode, Plan, estimate
from wslgpud.advise.fit.shape import Shape

SMALL = Shape(2, 256, 4, 2, 64, 688, 1000)


def in_use(shape: Shape, plan: Plan) -> dict[str, int]:
    simulation.held.cache_clear()
    return {part: taken for part, taken in estimate(shape, plan).parts.items() if "unused" not in part}


@pytest.mark.parametrize("mode", ["inference", "training"])
def test_a_model_deeper_than_is_simulated_takes_as_much_as_if_it_were(
    mode: Mode, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = Plan(mode, context=2048)
    deep = replace(SMALL, layers=160, window=512, windowed_layers=120, linear_layers=20)
    found = in_use(deep, plan)
    monkeypatch.setattr(simulation, "_MOST_LAYERS", 160)

    assert found == pytest.approx(in_use(deep, plan), rel=0.0001)


def test_a_layer_with_a_window_is_computed_again_with_its_mask() -> None:
    """Those with a window come first: the last layer has none here."""
    plan = Plan("training", context=8192, optimizer="sgd", checkpointing=True)

    def activations(windowed_layers: int) -> int:
        shape = replace(SMALL, kv_heads=4, intermediate=8192, window=512, windowed_layers=windowed_layers)
        return estimate(shape, plan).parts["activations"]

    assert activations(2) == activations(1) == activations(0) + 2 * 8192**2
