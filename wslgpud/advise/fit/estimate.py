"""The memory that a model takes on the card, part by part. Pure; bytes throughout.

What PyTorch keeps for the backward pass was listed tensor by tensor with the saved_tensors_hooks of
torch.autograd.graph on Llama and GPT-2 of transformers 5.23 (torch 2.13): the terms of ``_layer_token_bytes``
give its sums. Cf. Korthikanti et al., arXiv:2205.05198, for the same count of an older block, and
https://blog.eleuther.ai/transformer-math/ for the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import combinations
from typing import Literal, NamedTuple, get_args

from wslgpud.advise.fit.shape import Shape
from wslgpud.words import Message, Said, say, template

Mode = Literal["inference", "lora", "training"]
Precision = Literal[
    "bf16", "fp16", "fp32", "mixed", "int8", "int4", "fp8", "gptq", "gptq8", "awq", "q4_k_m", "q5_k_m",
    "q6_k", "q8_0",
]  # fmt: skip
Optimizer = Literal["adamw", "adamw-fused", "adamw8bit", "adafactor", "momentum", "sgd"]
MODES, PRECISIONS, OPTIMIZERS = (get_args(kind) for kind in (Mode, Precision, Optimizer))

GIB = 1 << 30
#: Bytes of a weight.
#: - bitsandbytes: int8 with a scale for each row (arXiv:2208.07339); int4 is NF4 with double quantization:
#:   4.127 bits (QLoRA, arXiv:2305.14314, 3).
#: - GPTQ and AWQ: for each 128 weights a scale of 16 bits and a zero of as many bits as a weight has
#:   (arXiv:2210.17323; the packing is https://github.com/casper-hansen/AutoAWQ's).
#: - GGUF: bits a weight of the whole model, as llama.cpp lists them for Llama 3.1 8B, embeddings included:
#:   https://github.com/ggml-org/llama.cpp/blob/master/tools/quantize/README.md.
WEIGHT_BYTES: Mapping[str, float] = {
    "bf16": 2.0, "fp16": 2.0, "fp32": 4.0, "mixed": 4.0, "int8": 1.01, "int4": 4.127 / 8, "fp8": 1.0,
    "gptq": (4 + (16 + 4) / 128) / 8, "awq": (4 + (16 + 4) / 128) / 8, "gptq8": (8 + (16 + 8) / 128) / 8,
    "q4_k_m": 4.8944 / 8, "q5_k_m": 5.7036 / 8, "q6_k": 6.5633 / 8, "q8_0": 8.5008 / 8,
}  # fmt: skip
GGUF: frozenset[str] = frozenset({"q4_k_m", "q5_k_m", "q6_k", "q8_0"})
#: Weights of which nothing is trained; beside all but the last ones adapters are.
QUANTIZED: frozenset[str] = frozenset({"int8", "int4", "fp8", "gptq", "gptq8", "awq"}) | GGUF
#: One matrix at a time is made 16 bits wide again for long inputs: bitsandbytes' dequantize_4bit, and what
#: GPTQ's and AWQ's kernels do for more than some tokens.
_UNPACKED: frozenset[str] = frozenset({"int4", "gptq", "gptq8", "awq"})
#: What follows was measured on an NVIDIA H200 by tests/gpu/fit_on_a_real_card.py: see README.md beside this.
#: What CUDA, cuBLAS and the kernels themselves take; on cards with fewer processors it is less.
CONTEXT_BYTES = 768 << 20
#: What the allocator holds beyond what is in use, as a share of what comes and goes; more where the cache of
#: keys and values grows by being copied, as transformers' own does.
SLACK_RATIO, CACHE_SLACK_RATIO = 0.06, 0.25
#: Tensors as wide as the vocabulary when the backward pass begins, in bytes a token and word: log_softmax,
#: the gradient of nll_loss and that of log_softmax (4 each); and the gap that 16-bit logits leave behind.
_LOSS_BYTES = {2: 14, 4: 12}
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


@dataclass(frozen=True, slots=True)
class Estimate:
    """Bytes by part (a template that names it), and their sum at the narrowest moment."""

    parts: dict[str, int] = field(default_factory=dict)

    @property
    def total_bytes(self) -> int:
        """Return the peak as the card sees it."""
        return sum(self.parts.values())


def estimate(shape: Shape, plan: Plan) -> Estimate:
    """Return what a plan takes."""
    parts = _inference(shape, plan) if plan.mode == "inference" else _training(shape, plan)
    return Estimate({**{k: round(v) for k, v in parts.items() if v}, template("CUDA itself"): CONTEXT_BYTES})


def weights(shape: Shape, precision: Precision) -> float:
    """Return the bytes of the weights; embeddings stay in 16 bits where the rest is quantized."""
    if shape.stored_bytes and precision == shape.stored:
        return shape.stored_bytes
    if precision not in QUANTIZED - GGUF:
        return shape.size * WEIGHT_BYTES[precision]
    embeddings = shape.vocabulary * shape.hidden * (1 if shape.tied else 2)
    return max(shape.size - embeddings, 0) * WEIGHT_BYTES[precision] + embeddings * 2


def _unpacked(shape: Shape, precision: Precision) -> int:
    """Return the bytes of the widest matrix in 16 bits, where weights are unpacked to be multiplied."""
    return 2 * shape.hidden * max(shape.intermediate, shape.shared) if precision in _UNPACKED else 0


def cache(shape: Shape, plan: Plan) -> int:
    """Return the bytes of keys and values of all tokens: 2 x layers x kv heads x head size each."""
    tokens = plan.batch * plan.context
    return 2 * shape.layers * shape.kv_heads * shape.head_dim * _element(plan.precision) * tokens


def _inference(shape: Shape, plan: Plan) -> dict[str, float]:
    # The prompt goes through one layer at a time: gate, up, their product, the residual and its norm.
    wide = 3 if shape.gated else 2
    layer = wide * shape.active_width + 6 * shape.hidden
    work = plan.batch * plan.context * layer * _element(plan.precision)
    work += plan.batch * shape.vocabulary * 6  # of the last token only
    work += 2 * _scores(shape, plan) + _unpacked(shape, plan.precision)
    return {
        template("weights"): weights(shape, plan.precision),
        template("keys and values"): cache(shape, plan) * (1 + CACHE_SLACK_RATIO),
        template("prompt at once"): work * (1 + CACHE_SLACK_RATIO),
    }


def _training(shape: Shape, plan: Plan) -> dict[str, float]:
    tokens = plan.batch * plan.context
    frozen = plan.mode == "lora"
    trained = lora_parameters(shape, plan) if frozen else shape.size
    # peft keeps adapters in 32 bits; what is trained in full has the precision of the weights.
    each = 4 if frozen else int(WEIGHT_BYTES[plan.precision])
    layer = _layer_token_bytes(shape, plan)
    if plan.checkpointing:
        # Each layer keeps its input, and one layer at a time is computed again.
        kept = shape.layers * shape.hidden * _residual(plan.precision) + layer
    else:
        kept = shape.layers * layer
    kept = kept * tokens + _scores(shape, plan) * (1 if plan.checkpointing else shape.layers + 2)
    if plan.precision == "mixed" and not frozen:
        kept += 2 * shape.size  # 16-bit copies of the weights, until the backward pass has passed them
    head = tokens * (shape.vocabulary * _LOSS_BYTES[_element(plan.precision)] + 8 * shape.hidden)
    states, step = _optimizer(plan.optimizer, each)
    gradients = trained * each
    # A matrix at both ends gets two gradients, and their sum.
    tied = 2 * shape.vocabulary * shape.hidden * each if shape.tied and not frozen else 0
    moment = max(trained * step, tied)
    forward, update = kept + head, gradients + moment
    # While gradients come, what was kept for them goes: the peak is at one end or the other.
    static = {
        template("weights"): weights(shape, plan.precision) + (trained * each if frozen else 0),
        template("a matrix unpacked"): float(_unpacked(shape, plan.precision)),
        template("optimizer"): trained * states,
    }
    slack = 1 + SLACK_RATIO
    if forward >= update:
        return {**static, template("activations"): kept * slack, template("loss"): head * slack}
    return {**static, template("gradients"): gradients * slack, template("optimizer's step"): moment * slack}


def unmeasured(shape: Shape, plan: Plan) -> list[Said]:
    """Return what of a plan is only computed; all else was held against a real card, see README.md."""
    found: list[Said] = []
    if plan.precision in QUANTIZED:
        found.append(say("quantized weights"))
    if plan.mode != "inference" and plan.optimizer in ("adamw8bit", "adafactor", "momentum", "sgd"):
        found.append(plan.optimizer)
    if shape.experts > 1:
        found.append(say("mixtures of experts"))
    return found


def _scores(shape: Shape, plan: Plan) -> int:
    """Return the bytes of one layer's attention scores, where they are written out.

    Flash attention never does; in 32 bits torch has none of it for heads that share keys and values.
    """
    if plan.precision != "fp32" or shape.kv_heads == shape.heads:
        return 0
    return plan.batch * shape.heads * plan.context**2 * 4


def lora_parameters(shape: Shape, plan: Plan) -> int:
    """Return the parameters of the adapters: rank x (in + out) of each matrix they stand beside."""
    return sum(plan.rank * (a + b) for a, b in _targets(shape, plan)) * shape.layers


def _targets(shape: Shape, plan: Plan) -> list[tuple[int, int]]:
    """Return inputs and outputs of the matrices that get adapters; peft's own choice is q and v."""
    query, key = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    if plan.targets == "attention":
        return [(shape.hidden, query), (shape.hidden, key)]
    feed = [(shape.hidden, shape.intermediate)] * (2 if shape.gated else 1)
    attention = [(shape.hidden, query), (shape.hidden, key), (shape.hidden, key), (query, shape.hidden)]
    return [*attention, *feed, (shape.intermediate, shape.hidden)]


def _layer_token_bytes(shape: Shape, plan: Plan) -> float:
    """Return what one layer keeps of one token for the backward pass."""
    element = _element(plan.precision)
    query, key = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    # Queries, keys, values and their outcome, and a number for each head (flash attention).
    attention = element * (2 * query + 2 * key) + 4 * shape.heads
    wide = element * shape.active_width
    frozen = plan.mode == "lora"
    norms = 2 * shape.hidden * _norm_bytes(shape, plan)
    # gate, silu(gate), up; and their product where a matrix behind it learns
    pieces = (3 if frozen else 4) if shape.gated else (5.5 if shape.stepwise_gelu else 2)
    inputs = 0.0
    if frozen:
        # Adapters are in 32 bits, and each takes a copy of its input so.
        read = [a for a, _ in _targets(shape, plan)]
        copies = sum(read)
        if (
            plan.precision == "fp32"
        ):  # no copies then, but what nobody kept before: outcomes of norms, products
            every = plan.targets == "all"
            copies = 2 * shape.hidden + shape.intermediate if every else shape.hidden
        inputs = 4 * copies + 4 * plan.rank * len(read)
    elif plan.precision == "mixed":
        inputs = 2 * 5 * shape.hidden  # a 16-bit copy for each matrix that reads the norm's outcome
    # Each expert takes a copy of the tokens that come to it, and what it makes of them is weighted after.
    routed = 2 * element * shape.hidden * shape.active_experts if shape.experts > 1 else 0
    return norms + attention + wide * pieces + inputs + routed


def _norm_bytes(shape: Shape, plan: Plan) -> int:
    """Return what a norm keeps of one number: its input in 32 bits; where weights learn also what it made."""
    if not shape.gated:
        return 2 * _element(plan.precision)  # LayerNorm: input and outcome
    if plan.mode == "lora":
        return 4
    return {"fp32": 12, "mixed": 8}.get(plan.precision, 8)


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


def _residual(precision: Precision) -> int:
    return 4 if precision in ("fp32", "mixed") else 2


def knobs(shape: Shape, plan: Plan, usable_bytes: int) -> list[tuple[Message, Plan]]:
    """Return what would bring a plan in: each knob that does so alone, else each pair, else three."""
    turns = _turns(plan)
    for number in range(1, 4):
        found = []
        for some in combinations(turns, number):
            if len({turn.what for turn in some}) < number:
                continue  # two ways to store the weights
            changed = plan
            for turn in some:
                changed = turn.on(changed)
            if estimate(shape, changed).total_bytes <= usable_bytes:
                found.append((_all_of(some), changed))
        if found:
            return found[:_MOST_KNOBS]
    return []


class _Turn(NamedTuple):
    what: str
    said: Message
    on: Callable[[Plan], Plan]


def _all_of(turns: Sequence[_Turn]) -> Message:
    *others, whole = (turn.said for turn in turns)
    for other in reversed(others):
        whole = say("{first} and {second}", first=other, second=whole)
    return whole


def _turns(plan: Plan) -> list[_Turn]:
    """Return what can be turned, the least harm first: to speed, to what is trained, to precision."""
    found = []
    training = plan.mode != "inference"
    if training and not plan.checkpointing:
        said = say("gradient checkpointing (a third slower)")
        found.append(_Turn("checkpointing", said, lambda p: replace(p, checkpointing=True)))
    if plan.batch > 1:
        said = say("a batch of 1 with gradient accumulation") if training else say("a batch of 1")
        found.append(_Turn("batch", said, lambda p: replace(p, batch=1)))
    shorter = max(512, plan.context // 4)
    if plan.context > shorter:
        said = say("a context of {count}", count=shorter)
        found.append(_Turn("context", said, lambda p: replace(p, context=shorter)))
    if plan.mode == "training":
        if plan.optimizer != "adamw8bit":
            said = say("8-bit AdamW")
            found.append(_Turn("optimizer", said, lambda p: replace(p, optimizer="adamw8bit")))
        if plan.precision in ("fp32", "mixed"):
            found.append(
                _Turn(
                    "weights",
                    say("{precision} weights", precision="bf16"),
                    lambda p: replace(p, precision="bf16"),
                )
            )
        lora, qlora = say("LoRA instead of all weights"), say("LoRA on 4-bit weights (QLoRA)")
        found.append(_Turn("weights", lora, lambda p: replace(p, mode="lora", precision="bf16")))
        found.append(_Turn("weights", qlora, lambda p: replace(p, mode="lora", precision="int4")))
        return found
    smaller: tuple[Precision, ...] = ("bf16", "int8", "int4")
    found += [
        _Turn(
            "weights",
            say("{precision} weights", precision=precision),
            partial(_with_precision, precision=precision),
        )
        for precision in smaller
        if WEIGHT_BYTES[precision] < WEIGHT_BYTES[plan.precision]
    ]
    return found


def _with_precision(plan: Plan, precision: Precision) -> Plan:
    return replace(plan, precision=precision)
