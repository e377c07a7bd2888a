"""The memory that a model takes on the card, part by part. Pure; bytes throughout.

What PyTorch keeps for the backward pass was listed tensor by tensor with the saved_tensors_hooks of
torch.autograd.graph on Llama and GPT-2 of transformers 5.23 (torch 2.13): the terms of ``_layer_token_bytes``
give its sums. Cf. Korthikanti et al., arXiv:2205.05198, for the same count of an older block, and
https://blog.eleuther.ai/transformer-math/ for the rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, Literal, NamedTuple, get_args

from wslgpud.advise.fit.shape import Shape
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
#: Weights of which nothing is trained; beside all but the last ones adapters are.
QUANTIZED: frozenset[str] = frozenset({"int8", "int4", "fp8", "mxfp4", "nvfp4", "gptq", "gptq8", "awq"}) | GGUF
#: One matrix at a time is made 16 bits wide again for long inputs: bitsandbytes' dequantize_4bit, and what
#: GPTQ's and AWQ's kernels do for more than some tokens.
_UNPACKED: frozenset[str] = frozenset({"int4", "gptq", "gptq8", "awq"})
#: What follows was measured on an NVIDIA H200 by tests/gpu/fit_on_a_real_card.py: see README.md beside this.
#: What CUDA, cuBLAS and the kernels themselves take; on cards with fewer processors it is less.
CONTEXT_BYTES = 768 << 20
#: What the allocator holds beyond what is in use, as a share of what comes and goes; more of a prompt's work, and
#: most where the cache of keys and values grows by being copied, as transformers' own does.
SLACK_RATIO, WORK_SLACK_RATIO, SCORES_SLACK_RATIO, CACHE_SLACK_RATIO = 0.06, 0.1, 0.2, 0.3
#: Tensors as wide as the vocabulary when the backward pass begins, in bytes a token and word: log_softmax,
#: the gradient of nll_loss and that of log_softmax (4 each); and the gap that 16-bit logits leave behind.
_LOSS_BYTES = {2: 14, 4: 12}
#: Scaled, squashed and scaled again (2 each) before that, and the gaps that these leave.
_CAP_BYTES = 13
_MOST_KNOBS = 4


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be done with the model."""

    mode: Mode = "inference"
    precision: Precision = "bf16"
    batch: int = 1
    context: int = 4096
    optimizer: Optimizer = "adamw"
    checkpointing: bool = False
    rank: int = 16
    targets: Literal["attention", "all"] = "attention"


class Estimate(NamedTuple):
    """Bytes by part (a template that names it), and their sum at the narrowest moment."""

    parts: dict[str, int]

    @property
    def total_bytes(self) -> int:
        """Return the peak as the card sees it."""
        return sum(self.parts.values())

    def scaled(self, ratio: float) -> Estimate:
        """Return it with all parts but CUDA's own so many times as large."""
        own = template("CUDA itself")
        return Estimate({part: taken if part == own else round(taken * ratio) for part, taken in self.parts.items()})


def estimate(shape: Shape, plan: Plan) -> Estimate:
    """Return the memory that a plan takes."""
    parts = _inference(shape, plan) if plan.mode == "inference" else _training(shape, plan)
    return Estimate({**{k: round(v) for k, v in parts.items() if v}, template("CUDA itself"): CONTEXT_BYTES})


def weights(shape: Shape, precision: Precision) -> float:
    """Return the bytes of the weights; embeddings stay in 16 bits where the rest is quantized."""
    if shape.stored_bytes and precision == shape.stored:
        return shape.stored_bytes
    if precision not in QUANTIZED - GGUF:
        return shape.size * WEIGHT_BYTES[precision]
    if precision == "mxfp4" and shape.experts > 1:  # gpt-oss: all but the experts stays in 16 bits
        experts = (
            (shape.layers - shape.dense_layers) * shape.matrices * shape.hidden * shape.intermediate * shape.experts
        )
        return experts * WEIGHT_BYTES[precision] + max(shape.size - experts, 0) * 2
    embeddings = shape.vocabulary * shape.hidden * (1 if shape.tied else 2)
    return max(shape.size - embeddings, 0) * WEIGHT_BYTES[precision] + embeddings * 2


def _widened(shape: Shape, plan: Plan) -> int:
    """Return what embeddings and head take more in 32 bits, which peft makes them for weights of bitsandbytes.

    ``prepare_model_for_kbit_training``: https://github.com/huggingface/peft/issues/816, .../issues/1149
    """
    embeddings = shape.vocabulary * shape.hidden * (1 if shape.tied else 2)
    return 2 * embeddings if plan.precision in ("int4", "int8") else 0


def _unpacked(shape: Shape, precision: Precision) -> float:
    """Return the bytes of the widest matrix in 16 bits, where weights are unpacked to be multiplied."""
    return 2.0 * shape.hidden * max(shape.intermediate, shape.shared) if precision in _UNPACKED else 0.0


def cache(shape: Shape, plan: Plan) -> int:
    """Return the bytes of keys and values of all tokens that a layer keeps: 2 x kv heads x head size each."""
    whole = shape.layers - shape.windowed_layers - shape.linear_layers
    tokens = whole * plan.context + shape.windowed_layers * min(plan.context, shape.window)
    return 2 * max(tokens, 0) * shape.kv_width * _element(plan.precision) * plan.batch


def _mask(shape: Shape, plan: Plan) -> int:
    """Return the bytes of what says which tokens each one sees, which a window has torch write out.

    Boolean for each kind of layer, and once as numbers for the layer at work.
    """
    if not shape.windowed_layers or plan.context <= shape.window:
        return 0
    kinds = 1 + (shape.windowed_layers < shape.layers - shape.linear_layers)
    return plan.batch * plan.context**2 * (kinds + _element(plan.precision))


def _inference(shape: Shape, plan: Plan) -> dict[str, float]:
    # The prompt goes through one layer at a time: gate, up, their product, the residual and its norm.
    layer = shape.matrices * shape.active_width + 6 * shape.hidden
    work = plan.batch * plan.context * layer * _element(plan.precision) + _unpacked(shape, plan.precision)
    work += plan.batch * shape.vocabulary * 6  # words of the last token only
    scores = _scores(shape, plan) * (14 if shape.eager else 8) * (1 + SCORES_SLACK_RATIO)
    return {
        template("weights"): weights(shape, plan.precision),
        template("keys and values"): cache(shape, plan) * (1 + CACHE_SLACK_RATIO),
        template("prompt at once"): work * (1 + WORK_SLACK_RATIO) + scores + _mask(shape, plan),
    }


def _training(shape: Shape, plan: Plan) -> dict[str, float]:
    tokens = plan.batch * plan.context
    frozen = plan.mode == "lora"
    trained = lora_parameters(shape, plan) if frozen else shape.size
    # peft keeps adapters in 32 bits; what is trained in full has the precision of the weights.
    each = 4 if frozen else int(WEIGHT_BYTES[plan.precision])
    layer = _layer_token_bytes(shape, plan)
    kept = shape.layers * layer
    if plan.checkpointing:
        # Each layer keeps its input, and one layer at a time is computed again.
        kept = shape.layers * shape.hidden * (4 if plan.precision in ("fp32", "mixed") else 2) + layer
    # In 32 bits, and as numbers of the model's own where softmax computes in more.
    scores = _scores(shape, plan) * (4 + _element(plan.precision) if shape.eager else 4)
    kept = kept * tokens + scores * (1 if plan.checkpointing else shape.layers + 2)
    if plan.precision == "mixed" and not frozen:
        kept += 2 * shape.size  # 16-bit copies of the weights, until the backward pass has passed them
    words = _LOSS_BYTES[_element(plan.precision)] + (_CAP_BYTES if shape.soft_capped else 0)
    head = tokens * (shape.vocabulary * words + 8 * shape.hidden)
    states, step = _optimizer(plan.optimizer, each)
    gradients = trained * each
    # A matrix at both ends gets two gradients, and their sum.
    tied = 2 * shape.vocabulary * shape.hidden * each if shape.tied and not frozen else 0
    moment = max(trained * step, tied)
    forward, update = kept + head, gradients + moment
    # While gradients come, what was kept for them goes: the peak is at one end or the other.
    static = {
        template("weights"): weights(shape, plan.precision) + (trained * each + _widened(shape, plan) if frozen else 0),
        template("a matrix unpacked"): _unpacked(shape, plan.precision),
        template("optimizer"): trained * states,
    }
    slack = 1 + SLACK_RATIO
    if forward >= update:
        return {**static, template("activations"): kept * slack, template("loss"): head * slack}
    return {**static, template("gradients"): gradients * slack, template("optimizer's step"): moment * slack}


def unmeasured(shape: Shape, plan: Plan) -> list[MessageLike]:
    """Return the parts of a plan that are only computed; the rest was measured on a real card, see README.md."""
    found: list[MessageLike] = []
    if plan.precision in QUANTIZED:
        found.append(say("quantized weights"))
    if plan.mode != "inference" and plan.optimizer in ("adamw8bit", "adafactor", "momentum", "sgd"):
        found.append(plan.optimizer)
    if shape.experts > 1:
        found.append(say("mixtures of experts"))
    return found


def _scores(shape: Shape, plan: Plan) -> int:
    """Return the number of one layer's attention scores, where they are written out.

    Flash attention never does; in 32 bits torch has none of it for heads that share keys and values, and a bias
    on each (ALiBi) has transformers compute them step by step.
    """
    if not shape.eager and (plan.precision != "fp32" or shape.kv_heads == shape.heads):
        return 0
    return plan.batch * shape.heads * plan.context**2


def lora_parameters(shape: Shape, plan: Plan) -> int:
    """Return the parameters of the adapters: rank x (in + out) of each matrix they stand beside."""
    return sum(plan.rank * (a + b) for a, b in _targets(shape, plan)) * shape.layers


def _targets(shape: Shape, plan: Plan) -> list[tuple[int, int]]:
    """Return inputs and outputs of the matrices that get adapters; peft's own choice is q and v."""
    query, key = (shape.hidden, shape.query_width), (shape.hidden, shape.kv_width)
    if plan.targets == "attention":
        return [query, key]
    up = [(shape.hidden, shape.intermediate)] * (shape.matrices - 1)
    if shape.fused:
        every = (shape.hidden, shape.query_width + 2 * shape.kv_width), (shape.hidden, 2 * shape.intermediate)
        return [*every, (shape.query_width, shape.hidden), (shape.intermediate, shape.hidden)]
    return [query, key, key, (shape.query_width, shape.hidden), *up, (shape.intermediate, shape.hidden)]


def _layer_token_bytes(shape: Shape, plan: Plan) -> float:
    """Return what one layer keeps of one token for the backward pass."""
    element = _element(plan.precision)
    # Queries, keys, values and their outcome, and a number for each head (flash attention).
    attention = element * (2 * shape.query_width + 2 * shape.kv_width) + 4 * shape.heads
    wide = element * shape.active_width
    frozen = plan.mode == "lora"
    # A norm keeps its input in 32 bits, and where weights learn also what it made; LayerNorm input and outcome.
    learning = 4 if frozen else 12 if plan.precision == "fp32" else 8
    norms = shape.layer_norms * shape.hidden * (2 * element if shape.native_norms else learning)
    norms += (shape.query_width + shape.kv_width) * learning if shape.head_norms else 0
    if shape.gated:  # gate, silu(gate), up; and their product where a matrix behind it learns
        pieces: float = 3 if frozen else 4
    else:
        pieces = 5.5 if shape.stepwise_gelu else 1 if shape.relu else 2
    inputs = 0.0
    if frozen:
        # Adapters are in 32 bits, and each takes a copy of its input so.
        read = [a for a, _ in _targets(shape, plan)]
        copies = sum(read)
        if plan.precision == "fp32":  # no copies then, but what nobody kept before: outcomes of norms, products
            every = plan.targets == "all"
            copies = 2 * shape.hidden + shape.intermediate if every else shape.hidden
        inputs = 4 * copies + 4 * plan.rank * len(read)
    elif plan.precision == "mixed":
        inputs = 2 * 5 * shape.hidden  # a 16-bit copy for each matrix that reads the norm's outcome
    # Each expert takes a copy of the tokens that come to it, and what it makes of them is weighted after.
    routed = 2 * element * shape.hidden * shape.active_experts if shape.experts > 1 else 0
    return norms + attention + wide * pieces + inputs + routed


def _optimizer(name: Optimizer, each: int) -> tuple[float, float]:
    """Return bytes of state, and bytes that a step takes for a moment, for each parameter.

    AdamW keeps two moments (in the precision of the parameter); its foreach form, torch's own choice, works
    on a copy the size of all parameters. In 8 bits each moment is a byte, and 32 bits for each block of 256
    (arXiv:2110.02861; the block is bitsandbytes'). Adafactor: rows and columns only (arXiv:1804.04235).
    """
    return {
        "adamw": (2 * each, each),
        "adamw-fused": (2 * each, 0),
        "adamw8bit": (2 * (1 + 4 / 256), 0),
        "adafactor": (0.01, each),
        "momentum": (each, 0),
        "sgd": (0, 0),
    }[name]


def _element(precision: Precision) -> int:
    """Return the bytes of one number of an activation."""
    return 4 if precision == "fp32" else 2


def knobs(shape: Shape, plan: Plan, usable_bytes: int, ratio: float = 1.0) -> list[tuple[Message, int]]:
    """Return the changes that make a plan fit, and the bytes it takes then.

    Each change that does so alone, else each pair, else each three; ``ratio`` is by what was measured here.
    """
    turns = list(_turns(plan))
    for number in range(1, 4):
        found = []
        for some in combinations(turns, number):
            turned = [name for _, changes in some for name in changes]
            if len(set(turned)) < len(turned):
                continue  # two ways to store the weights
            changed = plan
            for _, changes in some:
                changed = replace(changed, **changes)
            if (total := estimate(shape, changed).scaled(ratio).total_bytes) <= usable_bytes:
                *others, said = (said for said, _ in some)
                for other in reversed(others):
                    said = say("{first} and {second}", first=other, second=said)
                found.append((said, total))
        if found:
            return found[:_MOST_KNOBS]
    return []


def _turns(plan: Plan) -> Iterator[tuple[Message, dict[str, Any]]]:
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
