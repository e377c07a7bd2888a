"""What ``fit`` says of the models that were measured on a card: it changes on purpose only."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.gpu.fit_on_a_real_card import MODELS
from wslgpud.advise.fit import diffusion, parameters, picture, simulation
from wslgpud.advise.fit.allocator import Allocator, Block
from wslgpud.advise.fit.diffusion_configs import CONFIGS
from wslgpud.advise.fit.estimate import Plan, estimate
from wslgpud.advise.fit.picture import PicturePlan
from wslgpud.advise.fit.shape import Shape, of_config

MEASURED = json.loads(Path(__file__).with_name("h200.json").read_text())
GOLDEN = Path(__file__).with_name("predicted.json")
COURSES = Path(__file__).with_name("courses.json")

#: a step of each kind; each goes other ways through a layer
STEPS = {
    "inference": Plan(batch=2, context=6144),
    "inference, GPTQ": Plan(precision="gptq", batch=2, context=6144),
    "training": Plan("training", batch=2, context=6144),
    "training, mixed, checkpointing": Plan("training", "mixed", 2, 6144, "adamw8bit", checkpointing=True),
    "training, fp32": Plan("training", "fp32", 2, 3072, "momentum"),
    "LoRA, mixed, on all": Plan("lora", "bf16", 2, 6144, targets="all"),
    "QLoRA, checkpointing": Plan("lora", "int4", 2, 6144, checkpointing=True),
    "training on two tokens": Plan("training", context=2, optimizer="sgd"),
}
PICTURES = {
    "bf16, batch 2": PicturePlan(batch=2),
    "fp16, slices, tiles": PicturePlan("fp16", 3, 1536, 768, tiling=True, slicing=True),
    "fp8": PicturePlan("fp8", height=1536),
    "int8, many tiles": PicturePlan("int8", 2, 4096, 4096, tiling=True),
    "int4, offload": PicturePlan("int4", offload=True),
    "fp32, offload": PicturePlan("fp32", width=512, offload=True),
}
#: what the models that were measured do not have: dropout, layers without a cache, as few experts as can be
MORE: dict[str, dict[str, object]] = {
    "GPT-2 large, dropout": MODELS["GPT-2 large"] | {"resid_pdrop": 0.1},
    "XGLM 1.7B, dropout": MODELS["XGLM 1.7B"] | {"dropout": 0.1},
    "Mixtral 2L, two experts": MODELS["Mixtral 2L"] | {"num_local_experts": 2},
    "Qwen3 4B, linear": MODELS["Qwen3 4B"] | {"full_attention_interval": 2},
}


class Course(Allocator):
    """How often, how much and for how long memory is taken: any other size, order or lifetime tells."""

    def __init__(self) -> None:
        super().__init__()
        self.times, self.taken_bytes, self.held_bytes = 0, 0, 0

    def take(self, size: int) -> Block:
        block = super().take(size)
        self.times += 1
        self.taken_bytes += size
        self.held_bytes += self.allocated_bytes
        return block

    def told(self) -> dict[str, object]:
        """Return it, with the peak by purpose."""
        sums = {"times": self.times, "taken": self.taken_bytes, "held": self.held_bytes}
        return {**sums, "reserved": self.reserved_bytes, "peak": self.peak}


def of_two_layers(shape: Shape) -> Shape:
    return replace(
        shape,
        layers=2,
        parameters=0,
        dense_layers=min(1, shape.dense_layers),
        windowed_layers=min(1, shape.windowed_layers),
        linear_layers=min(1, shape.linear_layers),
    )


def courses(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, object]]:
    run: list[Course] = []

    def begun() -> Course:
        run.append(Course())
        return run[-1]

    monkeypatch.setattr(parameters, "Allocator", begun)
    monkeypatch.setattr(picture, "Allocator", begun)
    for name, config in (MODELS | MORE).items():
        for step, plan in STEPS.items():
            simulation.held.cache_clear()
            estimate(of_two_layers(of_config(config)), plan)
            yield {"model": name, "step": step, **run.pop().told()}
    for name in CONFIGS:
        for step, drawn in PICTURES.items():
            model = diffusion.of(name)
            assert model is not None
            picture.estimate.cache_clear()
            picture.estimate(model, drawn)
            yield from ({"model": name, "step": step, **one.told()} for one in run)
            run.clear()


def predictions() -> list[dict[str, object]]:
    found = []
    for case in (*MEASURED["cases"], *MEASURED["held_out"]):
        told = estimate(of_config(MODELS[case["model"]]), Plan(**case["plan"]))
        found.append({"model": case["model"], "plan": case["plan"], "bytes": told.total_bytes})
    return found


def renewed(file: Path, found: Callable[[], Iterable[dict[str, object]]]) -> list[dict[str, object]]:
    """Return the rows of a file, written anew where that is wanted."""
    if os.environ.get("WSLGPUD_RENEW"):
        file.write_text("[\n" + ",\n".join(json.dumps(one) for one in found()) + "\n]\n")
    rows: list[dict[str, object]] = json.loads(file.read_text())
    return rows


@pytest.mark.slow
def test_a_prediction_is_the_same_to_the_byte_until_it_is_meant_to_change() -> None:
    assert predictions() == renewed(GOLDEN, predictions)


def test_memory_is_taken_and_given_back_in_the_same_course_until_it_is_meant_to_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    golden = renewed(COURSES, lambda: courses(monkeypatch))

    for found, expected in zip(courses(monkeypatch), golden, strict=True):
        assert found == expected
