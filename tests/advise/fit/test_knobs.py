"""Every change that brings a plan in is named, the least harmful first, with what it really takes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from wslgpud.advise.fit.knobs import fitting, largest_batch, turns
from wslgpud.advise.fit.plan import Plan
from wslgpud.advise.fit.source import Kind

FULL = Plan("training", "fp32", 1, 4096)
DRAWN = Plan("inference", "fp16", 2, width=1538, height=770)


def named(plan: Plan, kind: Kind) -> dict[str, Plan]:
    return {str(said): replace(plan, **changes) for said, changes in turns(plan, kind)}


@pytest.mark.parametrize(
    ("plan", "changes"),
    [
        (
            FULL,
            {
                "gradient checkpointing (a third slower)": replace(FULL, checkpointing=True),
                "a context of 1024": replace(FULL, context=1024),
                "8-bit AdamW": replace(FULL, optimizer="adamw8bit"),
                "bf16 weights": replace(FULL, precision="bf16"),
                "LoRA instead of all weights": replace(FULL, mode="lora", precision="bf16"),
                "LoRA on 4-bit weights (QLoRA)": replace(FULL, mode="lora", precision="int4"),
            },
        ),
        (
            Plan(context=2052),
            {
                "a context of 513": Plan(context=513),
                "int8 weights": Plan(precision="int8", context=2052),
                "int4 weights": Plan(precision="int4", context=2052),
            },
        ),
        (
            Plan("lora", "fp32", 1, 512, checkpointing=True),
            {f"{p} weights": Plan("lora", p, 1, 512, checkpointing=True) for p in ("bf16", "int8", "int4")},
        ),
        (Plan("lora", "int4", 1, 512, checkpointing=True), {}),
    ],
)
def test_a_language_model_gets_these_changes(plan: Plan, changes: dict[str, Plan]) -> None:
    assert named(plan, "language") == changes


def test_pictures_get_these_changes() -> None:
    assert named(DRAWN, "pipeline") == {
        "--vae-slicing (decodes one image after the other)": replace(DRAWN, slicing=True),
        "--vae-tiling (decodes images in tiles)": replace(DRAWN, tiling=True),
        "--offload (models stay in RAM until needed)": replace(DRAWN, offload=True),
        "bf16 weights": replace(DRAWN, precision="bf16"),
        "fp8 weights": replace(DRAWN, precision="fp8"),
        "int4 weights": replace(DRAWN, precision="int4"),
        "769x385 pixels": replace(DRAWN, width=769, height=385),
    }


def test_other_models_get_their_optimizer_and_precision() -> None:
    assert list(named(replace(FULL, batch=64), "named")) == ["8-bit AdamW", "bf16 weights"]


def test_of_a_gguf_file_only_the_context_can_change() -> None:
    assert list(named(Plan(), "gguf")) == ["a context of 1024"]


def taking(plan: Plan) -> int:
    """Return 1000 for each sequence, halved by each of these changes."""
    halved = plan.checkpointing + (plan.context < 4096) + (plan.precision == "bf16")
    return 1000 * plan.batch >> halved


def test_each_single_change_that_is_enough_is_named() -> None:
    plan = replace(FULL, batch=4)
    found = fitting(turns(plan, "language"), plan, 2500, taking)

    assert [(str(said), taken) for said, taken in found] == [
        ("a batch of 2, the largest that fits", 2000),
        ("gradient checkpointing (a third slower)", 2000),
        ("a context of 1024", 2000),
        ("bf16 weights", 2000),
    ]


def test_where_none_is_enough_several_changes_are_named_together() -> None:
    ((said, taken),) = fitting(turns(FULL, "language"), FULL, 300, taking)

    assert (str(said), taken) == ("gradient checkpointing (a third slower) and a context of 1024", 250)
    assert fitting(turns(FULL, "language"), FULL, 10, taking) == []


def test_the_largest_batch_is_found_with_few_questions() -> None:
    asked: list[int] = []

    def total(batch: int) -> int:
        asked.append(batch)
        return 3000 + 128 * batch + batch % 3

    assert largest_batch(total, 64, 3000 + 128 * 12 + 2) == (12, 3000 + 128 * 12)
    assert len(asked) <= 5
    assert largest_batch(total, 64, 3127) is None
    assert largest_batch(total, 1, 9000) is None


@pytest.mark.parametrize("usable", range(1, 40))
def test_it_is_the_largest_wherever_it_lies(usable: int) -> None:
    found = largest_batch(lambda batch: batch * batch, 36, usable)

    assert found is not None
    assert found[0] ** 2 <= usable
    assert (found[0] + 1) ** 2 > usable
