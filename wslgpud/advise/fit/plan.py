"""The intended use of a model, the memory that it takes, part by part, and the changes that make it fit.

Pure, but for the questions that ``fitting`` asks; bytes throughout.
"""

from __future__ import annotations

import operator
from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate, islice
from typing import Any, Literal, NamedTuple

from wslgpud.advise.fit.source import Kind
from wslgpud.words import MessageError, MessageLike

Mode = Literal["inference", "lora", "training"]
Optimizer = Literal["adamw", "adamw-fused", "adamw8bit", "adafactor", "momentum", "sgd"]

#: Bytes of a weight.
#: - bitsandbytes: int8 with a scale for each row (arXiv:2208.07339); int4 is NF4 with double quantization:
#:   4.127 bits (QLoRA, arXiv:2305.14314, 3).
#: - GPTQ and AWQ: for each 128 weights a scale of 16 bits and a zero of as many bits as a weight has
#:   (arXiv:2210.17323; the packing is https://github.com/casper-hansen/AutoAWQ's).
#: - MXFP4: 4 bits and 8 for each 32 weights (OCP Microscaling Formats 1.0, 5.1); NVFP4: 4 bits and 8 for each 16.
#: - GGUF: bits a weight of the whole model, as llama.cpp lists them for Llama 3.1 8B, embeddings included:
#:   https://github.com/ggml-org/llama.cpp/blob/master/tools/quantize/README.md.
PLAIN = {"bf16": 2.0, "fp16": 2.0, "fp32": 4.0, "mixed": 4.0}
_GROUPED = {"gptq": (4 + 20 / 128) / 8, "awq": (4 + 20 / 128) / 8, "gptq8": (8 + 24 / 128) / 8}
_BLOCKS = {"fp8": 1.0, "mxfp4": (4 + 8 / 32) / 8, "nvfp4": (4 + 8 / 16) / 8, "int8": 1.01, "int4": 4.127 / 8}
_LLAMA_CPP = {"q4_k_m": 4.8944 / 8, "q5_k_m": 5.7036 / 8, "q6_k": 6.5633 / 8, "q8_0": 8.5008 / 8}
WEIGHT_BYTES: Mapping[str, float] = {**PLAIN, **_BLOCKS, **_GROUPED, **_LLAMA_CPP}
PRECISIONS = tuple(WEIGHT_BYTES)
GGUF = frozenset(_LLAMA_CPP)
#: Precisions of weights that are not trained; all but llama.cpp's allow adapters.
QUANTIZED = frozenset(WEIGHT_BYTES) - frozenset(PLAIN)
#: One matrix at a time is dequantized to 16 bits for long inputs: bitsandbytes' dequantize_4bit, and GPTQ's and AWQ's
#: kernels beyond a few tokens.
UNPACKED: frozenset[str] = frozenset({"int4", "gptq", "gptq8", "awq"})
#: Memory of CUDA and its kernels themselves, as measured on an NVIDIA H200; less on cards with fewer multiprocessors.
CONTEXT_BYTES = 768 << 20
#: Changes that are named; each question may take a model's real steps.
_MAX_KNOBS = 4
#: tokens, and pixels of a picture's side, that are not made fewer
_SHORTEST, _MIN_SIDE = 512, 768


@dataclass(frozen=True, slots=True)
class Plan:
    """The intended use of a model.

    ``context`` is of language models; ``input`` the shape of one input of the others or of a pipeline's picture, such
    as 3 x 512 x 512, None by their configuration. Of a pipeline, ``offload`` keeps models in RAM until they are needed,
    ``tiling`` decodes pictures in tiles.
    """

    mode: Mode = "inference"
    precision: str = "bf16"
    batch: int = 1
    context: int = 4096
    optimizer: Optimizer = "adamw"
    checkpointing: bool = False
    rank: int = 16
    targets: str = "attention"
    input: tuple[int, ...] | None = None
    offload: bool = False
    tiling: bool = False


class NoEstimate(MessageError):
    """The model could not be asked; the message says why."""


class Estimate(NamedTuple):
    """Bytes by part (a template that names it) that a plan takes at least; ``spread_bytes`` more at most.

    A spread of 0 is an exact answer; None: nothing is known about the most. ``parameters`` is 0 where they are not
    counted, ``by`` the program that was asked, and ``unmeasured`` names what was never compared with a real card.
    """

    parts: dict[str, int]
    spread_bytes: int | None = 0
    parameters: int = 0
    by: MessageLike = ""
    unmeasured: tuple[MessageLike, ...] = ()

    @property
    def total_bytes(self) -> int:
        """Return the peak on the card, at least."""
        return sum(self.parts.values())

    @property
    def max_bytes(self) -> int | None:
        """Return the peak on the card, at most."""
        return None if self.spread_bytes is None else self.total_bytes + self.spread_bytes


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
