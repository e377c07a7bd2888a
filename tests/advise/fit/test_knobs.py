"""Every change that brings a plan in is named, the least harmful first, with what it really takes."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from wslgpud.advise.fit.plan import Plan, fitting, turns
from wslgpud.advise.fit.source import Kind

FULL = Plan("training", "fp32", 1, 4096)
DRAWN = Plan("inference", "fp16", 2, input=(3, 770, 1538))


def turned(plan: Plan, kind: Kind) -> list[Plan]:
    return [replace(plan, **changes) for changes in turns(plan, kind)]


@pytest.mark.parametrize(
    ("plan", "changed"),
    [
        (
            FULL,
            [
                replace(FULL, checkpointing=True),
                replace(FULL, context=1024),
                replace(FULL, optimizer="adamw8bit"),
                replace(FULL, precision="bf16"),
                replace(FULL, mode="lora", precision="bf16"),
                replace(FULL, mode="lora", precision="int4"),
            ],
        ),
        (
            Plan(context=2052),
            [Plan(context=513), Plan(precision="int8", context=2052), Plan(precision="int4", context=2052)],
        ),
        (
            Plan("lora", "fp32", 1, 512, checkpointing=True),
            [Plan("lora", p, 1, 512, checkpointing=True) for p in ("bf16", "int8", "int4")],
        ),
        (Plan("lora", "int4", 1, 512, checkpointing=True), []),
    ],
)
def test_a_language_model_gets_these_changes(plan: Plan, changed: list[Plan]) -> None:
    assert turned(plan, "language") == changed


def test_pictures_get_these_changes() -> None:
    assert turned(DRAWN, "pipeline") == [
        replace(DRAWN, tiling=True),
        replace(DRAWN, offload=True),
        replace(DRAWN, precision="bf16"),
        replace(DRAWN, precision="fp8"),
        replace(DRAWN, precision="int4"),
        replace(DRAWN, input=(3, 385, 769)),
    ]


def test_other_models_get_their_optimizer_and_precision() -> None:
    assert turns(replace(FULL, batch=64), "named") == [{"optimizer": "adamw8bit"}, {"precision": "bf16"}]


def test_of_a_gguf_file_only_the_context_can_change() -> None:
    assert turns(Plan(), "gguf") == [{"context": 1024}]


def taking(plan: Plan) -> int:
    """Return 1000 for each sequence, halved by each of these changes."""
    halved = plan.checkpointing + (plan.context < 4096) + (plan.precision == "bf16")
    return 1000 * plan.batch >> halved


def test_each_single_change_that_is_enough_is_named() -> None:
    plan = replace(FULL, batch=4)

    assert fitting(plan, turns(plan, "language"), 2500, taking) == [
        replace(plan, batch=2),
        replace(plan, checkpointing=True),
        replace(plan, context=3584),
        replace(plan, precision="bf16"),
    ]


def test_where_none_is_enough_several_changes_are_named_together() -> None:
    known = turns(FULL, "language")

    assert fitting(FULL, known, 300, taking) == [replace(FULL, checkpointing=True, context=1024)]
    assert fitting(replace(FULL, batch=2), known, 300, taking) == fitting(FULL, known, 300, taking)
    assert fitting(FULL, known, 10, taking) == []


@pytest.mark.parametrize("usable", range(40))
def test_the_largest_batch_that_fits_is_named_wherever_it_lies(usable: int) -> None:
    found = fitting(replace(FULL, batch=36), [], usable, lambda plan: plan.batch**2)

    assert found == ([replace(FULL, batch=min(35, math.isqrt(usable)))] if usable else [])


def test_the_longest_context_that_fits_is_named() -> None:
    found = fitting(Plan(context=131072), [{"context": 32768}], 9999, lambda plan: plan.context)

    assert found == [Plan(context=19 * 512)]


def test_the_largest_batch_is_found_with_few_questions() -> None:
    asked: list[int] = []

    def total(plan: Plan) -> int:
        asked.append(plan.batch)
        return plan.batch

    assert fitting(replace(FULL, batch=1024), [], 700, total) == [replace(FULL, batch=700)]
    assert len(asked) <= 12


def test_of_changes_together_no_more_are_tried_than_needed() -> None:
    asked: list[Plan] = []

    def total(plan: Plan) -> int:
        asked.append(plan)
        return taking(plan)

    fitting(FULL, turns(FULL, "language"), 300, total)
    assert asked[-1] == replace(FULL, checkpointing=True, context=1024)
