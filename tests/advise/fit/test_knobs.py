"""Every change that brings a plan in is named, the least harmful first, as soon as it does so to the byte."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

import pytest

from wslgpud.advise.fit import diffusion, picture
from wslgpud.advise.fit.estimate import OPTIMIZERS, Optimizer, Plan, estimate, knobs
from wslgpud.advise.fit.knobs import fitting
from wslgpud.advise.fit.picture import PicturePlan
from wslgpud.advise.fit.shape import Shape
from wslgpud.words import Message, say

P = TypeVar("P", Plan, PicturePlan)
SMALL = Shape(2, 256, 4, 2, 64, 688, 1000)
SDXL = diffusion.of("sdxl")
assert SDXL is not None
FULL = Plan("training", "fp32", 2, 1)
BATCH = PicturePlan("fp16", 2, 1538, 770)


def named_to_the_byte(
    turns: Mapping[str, P], total_bytes: Callable[[P], int], found: Callable[[int], list[tuple[Message, int]]]
) -> None:
    """Assert that with room for any of these plans, the first four that fit are named."""
    totals = {text: total_bytes(plan) for text, plan in turns.items()}
    for room in totals.values():
        for usable in (room, room - 1):
            if expected := [(text, total) for text, total in totals.items() if total <= usable][:4]:
                assert [(str(text), total) for text, total in found(usable)] == expected


@dataclass(frozen=True)
class Four:
    """A plan of four parts."""

    a: int = 10
    b: int = 10
    c: int = 10
    d: int = 10


@pytest.mark.parametrize(
    ("usable", "named"),
    [
        (36, ["half of a", "no a", "no b", "no c"]),
        (34, ["no a", "no b", "no c", "no d"]),
        (29, ["half of a and no b", "half of a and no c", "half of a and no d", "no a and no b"]),
        (20, ["no a and no b", "no a and no c", "no a and no d", "no b and no c"]),
        (
            19,
            [
                *(f"half of a and no {two}" for two in ("b and no c", "b and no d", "c and no d")),
                "no a and no b and no c",
            ],
        ),
        (10, ["no a and no b and no c", "no a and no b and no d", "no a and no c and no d", "no b and no c and no d"]),
        (9, []),
    ],
)
def test_the_fewest_changes_are_named_at_most_three_at_once_and_none_twice(usable: int, named: list[str]) -> None:
    turns = [(say("half of {name}", name="a"), {"a": 5})]
    turns += [(say("no {name}", name=name), {name: 0}) for name in "abcd"]
    found = fitting(turns, Four(), usable, lambda plan: plan.a + plan.b + plan.c + plan.d)

    assert [str(text) for text, _ in found] == named
    assert all(total <= usable for _, total in found)


@pytest.mark.parametrize(
    ("plan", "turns"),
    [
        (
            FULL,
            {
                "gradient checkpointing (a third slower)": replace(FULL, checkpointing=True),
                "a batch of 1 with gradient accumulation": replace(FULL, batch=1),
                "8-bit AdamW": replace(FULL, optimizer="adamw8bit"),
                "bf16 weights": replace(FULL, precision="bf16"),
                "LoRA instead of all weights": replace(FULL, mode="lora", precision="bf16"),
                "LoRA on 4-bit weights (QLoRA)": replace(FULL, mode="lora", precision="int4"),
            },
        ),
        (
            replace(FULL, precision="bf16", optimizer="adafactor", checkpointing=True, batch=1, context=513),
            {
                "a context of 512": Plan("training", "bf16", 1, 512, "adafactor", checkpointing=True),
                "8-bit AdamW": Plan("training", "bf16", 1, 513, "adamw8bit", checkpointing=True),
                "LoRA instead of all weights": Plan("lora", "bf16", 1, 513, "adafactor", checkpointing=True),
                "LoRA on 4-bit weights (QLoRA)": Plan("lora", "int4", 1, 513, "adafactor", checkpointing=True),
            },
        ),
        (
            Plan(batch=2, context=2052),
            {
                "a batch of 1": Plan(context=2052),
                "a context of 513": Plan(batch=2, context=513),
                "int8 weights": Plan(precision="int8", batch=2, context=2052),
                "int4 weights": Plan(precision="int4", batch=2, context=2052),
            },
        ),
        (
            Plan("lora", "fp32", 1, 512, checkpointing=True),
            {f"{p} weights": Plan("lora", p, 1, 512, checkpointing=True) for p in ("bf16", "int8", "int4")},
        ),
    ],
)
def test_a_plan_that_does_not_fit_gets_the_changes_that_make_it(plan: Plan, turns: dict[str, Plan]) -> None:
    named_to_the_byte(
        turns,
        lambda changed: estimate(SMALL, changed).total_bytes,
        lambda usable_bytes: knobs(SMALL, plan, usable_bytes),
    )


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_smaller_batch_is_named_with_every_optimizer(optimizer: Optimizer) -> None:
    """Also where there is little but weights, gradients and moments."""
    shape = Shape(2, 8192, 64, 64, 128, 28672, 1000)
    plan = Plan("training", "bf16", 2, 1, optimizer, checkpointing=True)
    total = estimate(shape, replace(plan, batch=1)).total_bytes

    assert ("a batch of 1 with gradient accumulation", total) in [
        (str(text), at) for text, at in knobs(shape, plan, total)
    ]


@pytest.mark.parametrize(
    ("plan", "turns"),
    [
        (
            BATCH,
            {
                "--vae-slicing (decodes one image after the other)": replace(BATCH, slicing=True),
                "--vae-tiling (decodes images in tiles)": replace(BATCH, tiling=True),
                "--offload (models stay in RAM until needed)": replace(BATCH, offload=True),
                "a batch of 1": replace(BATCH, batch=1),
                "bf16 weights": replace(BATCH, precision="bf16"),
                "fp8 weights": replace(BATCH, precision="fp8"),
                "int4 weights": replace(BATCH, precision="int4"),
                "769x385 pixels": replace(BATCH, width=769, height=385),
            },
        ),
        (
            PicturePlan("fp8", 2, 768, 768, offload=True, tiling=True, slicing=True),
            {
                "a batch of 1": PicturePlan("fp8", 1, 768, 768, offload=True, tiling=True, slicing=True),
                "int4 weights": PicturePlan("int4", 2, 768, 768, offload=True, tiling=True, slicing=True),
            },
        ),
        (
            PicturePlan("bf16", 1, 768, 769, offload=True, tiling=True),
            {
                "fp8 weights": PicturePlan("fp8", 1, 768, 769, offload=True, tiling=True),
                "int4 weights": PicturePlan("int4", 1, 768, 769, offload=True, tiling=True),
            },
        ),
    ],
)
def test_pictures_that_do_not_fit_get_the_changes_that_make_them(
    plan: PicturePlan, turns: dict[str, PicturePlan]
) -> None:
    named_to_the_byte(
        turns,
        lambda changed: picture.estimate(SDXL, changed).total_bytes,
        lambda usable_bytes: picture.knobs(SDXL, plan, usable_bytes),
    )
