"""Changes of a plan that make it fit, the least harmful first. Pure but for the questions that it asks."""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate, count, islice
from typing import Any

from wslgpud.advise.fit.plan import QUANTIZED, WEIGHT_BYTES, Plan
from wslgpud.advise.fit.source import Kind

#: answers given, and questions asked: each may take a model's real steps
_MAX_KNOBS, _MAX_QUESTIONS = 4, 16
_SHORTEST, _MIN_SIDE = 512, 768


def turns(plan: Plan, kind: Kind) -> list[dict[str, Any]]:
    """Return the changes that save memory, as fields: at the cost of speed, of what is trained, of precision."""
    training, full = plan.mode != "inference", plan.mode == "training"
    language, pipeline = kind == "language", kind == "pipeline"
    shorter = min(plan.context, max(_SHORTEST, plan.context // 4))
    every: list[tuple[bool, dict[str, Any]]] = [
        (training and (language or pipeline), {"checkpointing": True}),
        (pipeline and not training, {"tiling": True}),
        (pipeline and not training, {"offload": True}),
        (language or kind == "gguf", {"context": shorter}),
        (full, {"optimizer": "adamw8bit"}),
        *((True, {"precision": name}) for name in _smaller(plan, kind)),
        (pipeline and min(plan.width, plan.height) > _MIN_SIDE, {"width": plan.width // 2, "height": plan.height // 2}),
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
) -> list[tuple[Plan, int]]:
    """Return the plans that fit instead of one that does not, and their bytes.

    Those with a single change that is enough; else with all of them together, as far as needed, the least harmful
    first. Before them that with the largest batch.
    """
    asked = count()

    def tried(changes: dict[str, Any]) -> tuple[Plan, int]:
        changed = replace(plan, **changes)
        return changed, total_bytes(changed) if next(asked) < _MAX_QUESTIONS else sys.maxsize

    found = []
    if best := largest_batch(lambda batch: total_bytes(replace(plan, batch=batch)), plan.batch, usable_bytes):
        found.append((replace(plan, batch=best[0]), best[1]))
    found += [answer for answer in map(tried, known) if answer[1] <= usable_bytes]
    if not found:
        together = (tried({**changes, "batch": 1}) for changes in accumulate(known, operator.or_))
        found = [*islice((answer for answer in together if answer[1] <= usable_bytes), 1)]
    return found[:_MAX_KNOBS]


def largest_batch(total_bytes: Callable[[int], int], batch: int, usable_bytes: int) -> tuple[int, int] | None:
    """Return the largest batch below ``batch``, which is too large, that fits and its bytes; None: not even one does.

    Memory grows about evenly with the batch, so that each question is where a line between the last two meets the room.
    """
    if batch == 1 or (least := total_bytes(1)) > usable_bytes:
        return None
    low, high, most = 1, batch, 0
    while high - low > 1:
        even = low + (usable_bytes - least) * (high - low) // (most - least) if most else (low + high) // 2
        middle = min(max(even, low + 1), high - 1)
        if (total := total_bytes(middle)) <= usable_bytes:
            low, least = middle, total
        else:
            high, most = middle, total
    return low, least
