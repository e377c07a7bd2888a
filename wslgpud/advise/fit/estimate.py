"""The memory that a model takes on the card, part by part. Pure; bytes throughout.

Memory in use and the allocator's overhead are simulated: see simulation.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

from wslgpud.advise.fit.knobs import Turn, fitting
from wslgpud.advise.fit.parameters import Setup
from wslgpud.advise.fit.shape import Shape
from wslgpud.advise.fit.simulation import held
from wslgpud.words import Message, MessageLike, say, template

Mode = Literal["inference", "lora", "training"]
Precision = Literal[
    "bf16",
    "fp16",
    "fp32",
    "mixed",
    "int8",
    "int4",
    "fp8",
    "mxfp4",
    "nvfp4",
    "gptq",
    "gptq8",
    "awq",
    "q4_k_m",
    "q5_k_m",
    "q6_k",
    "q8_0",
]
Optimizer = Literal["adamw", "adamw-fused", "adamw8bit", "adafactor", "momentum", "sgd"]
MODES, PRECISIONS, OPTIMIZERS = (get_args(kind) for kind in (Mode, Precision, Optimizer))

#: Bytes of a weight.
#: - bitsandbytes: int8 with a scale for each row (arXiv:2208.07339); int4 is NF4 with double quantization:
#:   4.127 bits (QLoRA, arXiv:2305.14314, 3).
#: - GPTQ and AWQ: for each 128 weights a scale of 16 bits and a zero of as many bits as a weight has
#:   (arXiv:2210.17323; the packing is https://github.com/casper-hansen/AutoAWQ's).
#: - MXFP4: 4 bits and 8 for each 32 weights (OCP Microscaling Formats 1.0, 5.1); NVFP4: 4 bits and 8 for each 16.
#: - GGUF: bits a weight of the whole model, as llama.cpp lists them for Llama 3.1 8B, embeddings included:
#:   https://github.com/ggml-org/llama.cpp/blob/master/tools/quantize/README.md.
WEIGHT_BYTES: Mapping[str, float] = {
    "bf16": 2.0,
    "fp16": 2.0,
    "fp32": 4.0,
    "mixed": 4.0,
    "int8": 1.01,
    "int4": 4.127 / 8,
    "fp8": 1.0,
    "mxfp4": (4 + 8 / 32) / 8,
    "nvfp4": (4 + 8 / 16) / 8,
    "gptq": (4 + (16 + 4) / 128) / 8,
    "awq": (4 + (16 + 4) / 128) / 8,
    "gptq8": (8 + (16 + 8) / 128) / 8,
    "q4_k_m": 4.8944 / 8,
    "q5_k_m": 5.7036 / 8,
    "q6_k": 6.5633 / 8,
    "q8_0": 8.5008 / 8,
}
GGUF: frozenset[str] = frozenset({"q4_k_m", "q5_k_m", "q6_k", "q8_0"})
#: Precisions of weights that are not trained; all but the last ones allow adapters.
QUANTIZED: frozenset[str] = frozenset({"int8", "int4", "fp8", "mxfp4", "nvfp4", "gptq", "gptq8", "awq"}) | GGUF
#: One matrix at a time is dequantized to 16 bits for long inputs: bitsandbytes' dequantize_4bit, and GPTQ's and AWQ's
#: kernels beyond a few tokens.
_UNPACKED: frozenset[str] = frozenset({"int4", "gptq", "gptq8", "awq"})
#: Memory of CUDA, cuBLAS and the kernels themselves on an NVIDIA H200, from tests/gpu/fit_on_a_real_card.py; less on
#: cards with fewer multiprocessors.
CONTEXT_BYTES = 768 << 20


@dataclass(frozen=True, slots=True)
class Plan:
    """The intended use of the model."""

    mode: Mode = "inference"
    precision: Precision = "bf16"
    batch: int = 1
    context: int = 4096
    optimizer: Optimizer = "adamw"
    checkpointing: bool = False
    rank: int = 16
    targets: Literal["attention", "all"] = "attention"


class Estimate(NamedTuple):
    """Bytes by part (a template that names it), and their sum at the peak."""

    parts: dict[str, int]

    @property
    def total_bytes(self) -> int:
        """Return the peak on the card."""
        return sum(self.parts.values())

    def scaled(self, ratio: float) -> Estimate:
        """Return it with all parts except CUDA's own multiplied by a factor."""
        own = template("CUDA itself")
        return Estimate({part: taken if part == own else round(taken * ratio) for part, taken in self.parts.items()})


def estimate(shape: Shape, plan: Plan) -> Estimate:
    """Return the memory that a plan takes."""
    found = held(shape, _setup(shape, plan), training=plan.mode != "inference")
    parts = {purpose: taken for purpose, taken in found.used.items() if purpose and taken}
    parts[template("PyTorch's cache, unused")] = found.reserved_bytes - sum(parts.values())
    return Estimate({**parts, template("CUDA itself"): CONTEXT_BYTES})


def _setup(shape: Shape, plan: Plan) -> Setup:
    adapting, training = plan.mode == "lora", plan.mode == "training"
    element = 4 if plan.precision == "fp32" else 2
    matrix, embedding = _weight_bytes(shape, plan.precision)
    # prepare_model_for_kbit_training casts embeddings and norms to 32 bits, and so everything between the layers:
    # https://github.com/huggingface/peft/issues/816, .../issues/1149
    widened = adapting and plan.precision in ("int4", "int8")
    if widened:
        embedding = max(embedding, 4.0)
    # peft keeps adapters in 32 bits; fully trained weights keep their precision.
    moments, copying = _optimizer(plan.optimizer, 4 if adapting else WEIGHT_BYTES[plan.precision])
    return Setup(
        plan.batch,
        plan.context,
        element,
        matrix,
        embedding,
        mixed=widened or (plan.precision == "mixed" and training),
        checkpointing=plan.checkpointing and plan.mode != "inference",
        quantized=plan.precision in QUANTIZED,
        unpacking=plan.precision in _UNPACKED,
        rank=plan.rank if adapting else 0,
        every=plan.targets == "all",
        moments=moments,
        copying=copying,
    )


def _weight_bytes(shape: Shape, precision: Precision) -> tuple[float, float]:
    """Return the bytes of a number in a matrix, and in embeddings."""
    whole = weights(shape, precision)
    if precision not in QUANTIZED or precision in GGUF or (shape.stored_bytes and precision == shape.stored):
        return (whole / shape.size,) * 2
    embeddings = min(shape.vocabulary * shape.hidden * (1 if shape.tied else 2), shape.size - 1)
    return (whole - 2 * embeddings) / (shape.size - embeddings), 2.0


def weights(shape: Shape, precision: Precision) -> float:
    """Return the bytes of the weights; embeddings stay in 16 bits where the rest is quantized."""
    if shape.stored_bytes and precision == shape.stored:
        return shape.stored_bytes
    if precision not in QUANTIZED - GGUF:
        return shape.size * WEIGHT_BYTES[precision]
    if precision == "mxfp4" and shape.experts > 1:  # gpt-oss: everything but the experts stays in 16 bits
        experts = (
            (shape.layers - shape.dense_layers) * shape.matrices * shape.hidden * shape.intermediate * shape.experts
        )
        return experts * WEIGHT_BYTES[precision] + max(shape.size - experts, 0) * 2
    embeddings = shape.vocabulary * shape.hidden * (1 if shape.tied else 2)
    return max(shape.size - embeddings, 0) * WEIGHT_BYTES[precision] + embeddings * 2


def unmeasured(plan: Plan) -> list[MessageLike]:
    """Return the parts of a plan that are only computed, not measured on a real card, see README.md."""
    found: list[MessageLike] = []
    if plan.precision in QUANTIZED:
        found.append(say("quantized weights"))
    if plan.mode != "inference" and plan.optimizer in ("adamw8bit", "adafactor", "momentum", "sgd"):
        found.append(plan.optimizer)
    return found


def _optimizer(name: Optimizer, each: float) -> tuple[float, bool]:
    """Return the optimizer's bytes per parameter, and whether a step works on a copy of all parameters.

    AdamW keeps two moments (in the parameter's precision); its foreach form, torch's default, makes the copy. In 8 bits
    each moment is a byte, plus 32 bits for each block of 256 (arXiv:2110.02861; the block is bitsandbytes'). Adafactor:
    rows and columns only (arXiv:1804.04235).
    """
    return {
        "adamw": (2 * each, True),
        "adamw-fused": (2 * each, False),
        "adamw8bit": (2 * (1 + 4 / 256), False),
        "adafactor": (0.01, True),
        "momentum": (each, False),
        "sgd": (0.0, False),
    }[name]


def _least(shape: Shape, plan: Plan) -> float:
    """Return a lower bound of a plan's memory, to skip hopeless ones without a simulation."""
    if plan.mode != "training":
        return weights(shape, plan.precision)
    each = WEIGHT_BYTES[plan.precision]
    moments, copying = _optimizer(plan.optimizer, each)
    return shape.size * (2 * each + moments + (each if copying else 0))


def knobs(shape: Shape, plan: Plan, usable_bytes: int, ratio: float = 1.0) -> list[tuple[Message, int]]:
    """Return the changes that make a plan fit, and its bytes then; ``ratio`` is the correction measured here."""

    def total(changed: Plan) -> int:
        least = round(_least(shape, changed) * ratio)
        return least if least > usable_bytes else estimate(shape, changed).scaled(ratio).total_bytes

    return fitting(_turns(plan), plan, usable_bytes, total)


def _turns(plan: Plan) -> Iterator[Turn]:
    """Yield the changes that save memory, the least harmful first: to speed, to what is trained, to precision."""
    training = plan.mode != "inference"
    if training and not plan.checkpointing:
        yield say("gradient checkpointing (a third slower)"), {"checkpointing": True}
    if plan.batch > 1:
        said = say("a batch of 1 with gradient accumulation") if training else say("a batch of 1")
        yield said, {"batch": 1}
    shorter = max(512, plan.context // 4)
    if plan.context > shorter:
        yield say("a context of {count}", count=shorter), {"context": shorter}
    if plan.mode == "training" and plan.optimizer != "adamw8bit":
        yield say("8-bit AdamW"), {"optimizer": "adamw8bit"}
    for precision in ("bf16",) if plan.mode == "training" else ("bf16", "int8", "int4"):
        if WEIGHT_BYTES[precision] < WEIGHT_BYTES[plan.precision]:
            yield say("{precision} weights", precision=precision), {"precision": precision}
    if plan.mode == "training":
        yield say("LoRA instead of all weights"), {"mode": "lora", "precision": "bf16"}
        yield say("LoRA on 4-bit weights (QLoRA)"), {"mode": "lora", "precision": "int4"}
