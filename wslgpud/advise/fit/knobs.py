"""Changes of a plan that make it fit, the least harmful first. Pure but for the questions that it asks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import accumulate
from typing import Any

from wslgpud.advise.fit.plan import QUANTIZED, WEIGHT_BYTES, Plan
from wslgpud.words import Message, say

#: a change: its message, and the fields of the plan that it sets
Turn = tuple[Message, dict[str, Any]]
#: answers given, and questions asked: each may take a model's real steps
_MAX_KNOBS, _MAX_QUESTIONS = 4, 16
_SHORTEST, _MIN_SIDE = 512, 768


def turns(plan: Plan, *, language: bool = False, pipeline: bool = False) -> Iterator[Turn]:
    """Yield the changes that save memory: at the cost of speed, of what is trained, of precision."""
    training = plan.mode != "inference"
    if training and not plan.checkpointing and (language or pipeline):
        yield say("gradient checkpointing (a third slower)"), {"checkpointing": True}
    if pipeline and not training:
        yield from _drawing(plan)
    if language and plan.context > (shorter := max(_SHORTEST, plan.context // 4)):
        yield say("a context of {count}", count=shorter), {"context": shorter}
    if plan.mode == "training" and plan.optimizer != "adamw8bit":
        yield say("8-bit AdamW"), {"optimizer": "adamw8bit"}
    for precision in _precisions(plan, language=language, pipeline=pipeline):
        yield say("{precision} weights", precision=precision), {"precision": precision}
    if pipeline and min(plan.width, plan.height) > _MIN_SIDE:
        half = {"width": plan.width // 2, "height": plan.height // 2}
        yield say("{width}x{height} pixels", **half), half
    if language and plan.mode == "training":
        yield say("LoRA instead of all weights"), {"mode": "lora", "precision": "bf16"}
        yield say("LoRA on 4-bit weights (QLoRA)"), {"mode": "lora", "precision": "int4"}


def _drawing(plan: Plan) -> Iterator[Turn]:
    if plan.batch > 1 and not plan.slicing:
        yield say("--vae-slicing (decodes one image after the other)"), {"slicing": True}
    if not plan.tiling:
        yield say("--vae-tiling (decodes images in tiles)"), {"tiling": True}
    if not plan.offload:
        yield say("--offload (models stay in RAM until needed)"), {"offload": True}


def _precisions(plan: Plan, *, language: bool, pipeline: bool) -> Iterator[str]:
    if plan.precision in QUANTIZED:
        return
    usual = WEIGHT_BYTES[plan.precision] + (pipeline and plan.precision == "fp16")  # in which SDXL decodes in 32 bits
    packed = ("fp8", "int4") if pipeline else ("int8", "int4") if language else ()
    for precision in ("bf16", *packed) if plan.mode != "training" else ("bf16",):
        if WEIGHT_BYTES[precision] < usual:
            yield precision


def fitting(
    known: Iterator[Turn], plan: Plan, usable_bytes: int, total_bytes: Callable[[Plan], int]
) -> list[tuple[Message, int]]:
    """Return the changes that make a plan fit, and its bytes then.

    Each single change that is enough; else all of them together, as far as needed, the least harmful first. Before
    them the largest batch that fits.
    """
    asked = 0

    def total(changed: Plan) -> int:
        nonlocal asked
        asked += 1
        return total_bytes(changed)

    found = []
    if best := largest_batch(lambda batch: total(replace(plan, batch=batch)), plan.batch, usable_bytes):
        accumulating = say("a batch of {count}, the largest that fits", count=best[0])
        found.append((accumulating, best[1]))
    every = list(known)
    for said, changes in every:
        if asked < _MAX_QUESTIONS and (taken := total(replace(plan, **changes))) <= usable_bytes:
            found.append((said, taken))
    if not found:
        smallest = replace(plan, batch=1)
        together = accumulate(every, lambda before, turn: (_both(before[0], turn[0]), before[1] | turn[1]))
        for said, changes in together:
            if asked < _MAX_QUESTIONS and (taken := total(replace(smallest, **changes))) <= usable_bytes:
                return [(said if plan.batch == 1 else _both(say("a batch of 1"), said), taken)]
    return found[:_MAX_KNOBS]


def _both(first: Message, second: Message) -> Message:
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
