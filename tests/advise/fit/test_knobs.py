"""Every change that brings a plan in is named, the least harmful first, with what it really takes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from wslgpud.advise.fit.knobs import fitting, largest_batch, turns
from wslgpud.advise.fit.plan import Plan
from wslgpud.advise.fit.source import Kind

FULL = Plan("training", "fp32", 1, 4096)
DRAWN = Plan("inference", "fp16", 2, width=1538, height=770)


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
        replace(DRAWN, width=769, height=385),
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
        (replace(plan, batch=2), 2000),
        (replace(plan, checkpointing=True), 2000),
        (replace(plan, context=1024), 2000),
        (replace(plan, precision="bf16"), 2000),
    ]


def test_where_none_is_enough_several_changes_are_named_together() -> None:
    known = turns(FULL, "language")

    assert fitting(FULL, known, 300, taking) == [(replace(FULL, checkpointing=True, context=1024), 250)]
    assert fitting(replace(FULL, batch=2), known, 300, taking) == fitting(FULL, known, 300, taking)
    assert fitting(FULL, known, 10, taking) == []


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
