"""Changes of a plan that make it fit, the least harmful first. Pure but for the questions that it asks."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate, count
from typing import Any

from wslgpud.advise.fit.plan import QUANTIZED, WEIGHT_BYTES, Plan
from wslgpud.advise.fit.source import Kind
from wslgpud.words import Message, say

#: a change: its message, and the fields of the plan that it sets
Turn = tuple[Message, dict[str, Any]]
#: answers given, and questions asked: each may take a model's real steps
_MAX_KNOBS, _MAX_QUESTIONS = 4, 16
_SHORTEST, _MIN_SIDE = 512, 768


def turns(plan: Plan, kind: Kind) -> list[Turn]:
    """Return the changes that save memory: at the cost of speed, of what is trained, of precision."""
    training, full = plan.mode != "inference", plan.mode == "training"
    words, language, pipeline = kind in ("language", "gguf"), kind == "language", kind == "pipeline"
    drawing, tuned = pipeline and not training, language and full
    shorter, half = max(_SHORTEST, plan.context // 4), {"width": plan.width // 2, "height": plan.height // 2}
    deep, wide = training and (language or pipeline), pipeline and min(plan.width, plan.height) > _MIN_SIDE
    every: list[tuple[bool, Message, dict[str, Any]]] = [
        (deep, say("gradient checkpointing (a third slower)"), {"checkpointing": True}),
        (drawing and plan.batch > 1, say("--vae-slicing (decodes one image after the other)"), {"slicing": True}),
        (drawing, say("--vae-tiling (decodes images in tiles)"), {"tiling": True}),
        (drawing, say("--offload (models stay in RAM until needed)"), {"offload": True}),
        (words and plan.context > shorter, say("a context of {count}", count=shorter), {"context": shorter}),
        (full, say("8-bit AdamW"), {"optimizer": "adamw8bit"}),
        *((True, say("{precision} weights", precision=name), {"precision": name}) for name in _smaller(plan, kind)),
        (wide, say("{width}x{height} pixels", **half), half),
        (tuned, say("LoRA instead of all weights"), {"mode": "lora", "precision": "bf16"}),
        (tuned, say("LoRA on 4-bit weights (QLoRA)"), {"mode": "lora", "precision": "int4"}),
    ]
    return [(said, changes) for sensible, said, changes in every if sensible and replace(plan, **changes) != plan]


def _smaller(plan: Plan, kind: Kind) -> list[str]:
    """Return the smaller formats of weights; in fp16 SDXL decodes in 32 bits."""
    usual = 0.0 if plan.precision in QUANTIZED else WEIGHT_BYTES[plan.precision]
    usual += kind == "pipeline" and plan.precision == "fp16"
    packed = {"pipeline": ("fp8", "int4"), "language": ("int8", "int4")}.get(kind, ())
    return [name for name in ("bf16", *(packed if plan.mode != "training" else ())) if WEIGHT_BYTES[name] < usual]


def fitting(
    known: list[Turn], plan: Plan, usable_bytes: int, total_bytes: Callable[[Plan], int]
) -> list[tuple[Message, int]]:
    """Return the changes that make a plan fit, and its bytes then.

    Each single change that is enough; else all of them together, as far as needed, the least harmful first. Before
    them the largest batch that fits.
    """
    asked = count()

    def total(**changes: Any) -> int:
        return total_bytes(replace(plan, **changes)) if next(asked) < _MAX_QUESTIONS else sys.maxsize

    found = []
    if best := largest_batch(lambda batch: total_bytes(replace(plan, batch=batch)), plan.batch, usable_bytes):
        found.append((say("a batch of {count}, the largest that fits", count=best[0]), best[1]))
    found += [(said, taken) for said, changes in known if (taken := total(**changes)) <= usable_bytes]
    if not found:
        together = accumulate(known, lambda before, turn: (both(before[0], turn[0]), before[1] | turn[1]))
        for said, changes in together:
            if (taken := total(**changes, batch=1)) <= usable_bytes:
                return [(said if plan.batch == 1 else both(say("a batch of 1"), said), taken)]
    return found[:_MAX_KNOBS]


def both(first: Message, second: Message) -> Message:
    """Return the message that both changes are needed."""
    return say("{first} and {second}", first=first, second=second)


def largest_batch(total_bytes: Callable[[int], int], batch: int, usable_bytes: int) -> tuple[int, int] | None:
    """Return the largest batch below ``batch``, which is too large, that fits and its bytes; None: not even one does.

    Memory grows about evenly with the batch, so that each question is where a line between the last two meets the room.
    """
    if batch == 1:
        return None
    low, least, high, most = 1, total_bytes(1), batch, 0
    if least > usable_bytes:
        return None
    while high - low > 1:
        even = low + (usable_bytes - least) * (high - low) // (most - least) if most else (low + high) // 2
        middle = min(max(even, low + 1), high - 1)
        if (total := total_bytes(middle)) <= usable_bytes:
            low, least = middle, total
        else:
            high, most = middle, total
    return low, least
