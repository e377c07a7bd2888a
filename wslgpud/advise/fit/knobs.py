"""Changes of a plan that make it fit, the least harmful first. Pure but for the questions that it asks."""

from __future__ import annotations

import operator
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate, islice
from typing import Any

from wslgpud.advise.fit.plan import QUANTIZED, WEIGHT_BYTES, Plan
from wslgpud.advise.fit.source import Kind

#: Changes that are named; each question may take a model's real steps.
_MAX_KNOBS = 4
#: tokens, and pixels of a picture's side, that are not made fewer
_SHORTEST, _MIN_SIDE = 512, 768


def turns(plan: Plan, kind: Kind) -> list[dict[str, Any]]:
    """Return the changes that save memory, as fields: at the cost of speed, of what is trained, of precision."""
    training, full = plan.mode != "inference", plan.mode == "training"
    language, pipeline = kind == "language", kind == "pipeline"
    shorter = min(plan.context, max(_SHORTEST, plan.context // 4))
    colours, *sides = plan.input or (0,)
    every: list[tuple[bool, dict[str, Any]]] = [
        (training and (language or pipeline), {"checkpointing": True}),
        (pipeline and not training, {"tiling": True}),
        (pipeline and not training, {"offload": True}),
        (language or kind == "gguf", {"context": shorter}),
        (full, {"optimizer": "adamw8bit"}),
        *((True, {"precision": name}) for name in _smaller(plan, kind)),
        (pipeline and min(sides) > _MIN_SIDE, {"input": (colours, *(side // 2 for side in sides))}),
        (language and full, {"mode": "lora", "precision": "bf16"}),
        (language and full, {"mode": "lora", "precision": "int4"}),
    ]
    return [changes for sensible, changes in every if sensible and replace(plan, **changes) != plan]


def _smaller(plan: Plan, kind: Kind) -> list[str]:
    """Return the smaller formats of weights; in fp16 SDXL decodes in 32 bits."""
    usual = 0.0 if plan.precision in QUANTIZED else WEIGHT_BYTES[plan.precision]
    usual += kind == "pipeline" and plan.precision == "fp16"
    packed = {"pipeline": ("fp8", "int4"), "language": ("int8", "int4")}.get(kind, ())
    return [name for name in ("bf16", *(packed if plan.mode != "training" else ())) if WEIGHT_BYTES[name] < usual]


def fitting(
    plan: Plan, known: list[dict[str, Any]], usable_bytes: int, total_bytes: Callable[[Plan], int]
) -> list[Plan]:
    """Return the plans that fit instead of one that does not.

    Those with a single change that is enough, with the largest batch and the longest context; else with all of them
    together, as far as needed, the least harmful first. A plan may be asked for twice.
    """

    def taken(**changes: Any) -> int:
        return total_bytes(replace(plan, **changes))

    def fits(changes: dict[str, Any]) -> bool:
        return taken(**changes) <= usable_bytes

    def largest(field: str, values: range) -> dict[str, Any]:
        many = bisect_right(values, usable_bytes, key=lambda value: taken(**{field: value}))
        return {field: values[many - 1]} if many else {}

    contexts = range(_SHORTEST, plan.context, _SHORTEST)
    single = [changes if "context" not in changes else largest("context", contexts) for changes in known]
    enough = filter(fits, filter(None, [largest("batch", range(1, plan.batch)), *single]))
    together = ({**changes, "batch": 1} for changes in accumulate(known, operator.or_))
    found = [*islice(enough, _MAX_KNOBS)] or [*islice(filter(fits, together), 1)]
    return [replace(plan, **changes) for changes in found]
