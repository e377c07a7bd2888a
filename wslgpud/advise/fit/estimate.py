"""The memory of a language model by published arithmetic, with a margin, where no model can be asked. Pure; bytes.

At least: weights, keys and values, gradients and optimizer states, which follow from the configuration, and what any
way to compute keeps between the layers. At most: attention that materialises its scores, activations with every mask
(Korthikanti et al., arXiv:2205.05198, 4.1), copies that an optimizer works on, and gaps.
"""

from __future__ import annotations

from wslgpud.advise.fit.plan import CONTEXT_BYTES, GGUF, QUANTIZED, WEIGHT_BYTES, Estimate, Plan
from wslgpud.advise.fit.shape import Shape
from wslgpud.words import template

#: bytes of the optimizer's states for each byte of a parameter, see ``tracer/steps.py``
_STATES = {"adamw": 2.0, "adamw-fused": 2.0, "adamw8bit": 0.51, "adafactor": 0.0, "momentum": 1.0, "sgd": 0.0}
#: numbers that a layer keeps for each token, at least and at most: as multiples of the hidden size, and of the width of
#: its feed-forward block
_KEPT = ((10.0, 1.0), (16.0, 5.0))
#: numbers for each score of attention where it is materialised: in 32 bits, and where torch has no kernel for a family
_SCORES = 6.0
#: bytes for each logit of a training, in 16 and 32 bits and with gradients
_LOGITS = (8, 16)
#: gaps between blocks, and keys and values that are copied as they grow
_GAPS, _GROWTH = 0.1, 0.6


def between(shape: Shape, plan: Plan) -> Estimate:
    """Return the memory that a plan takes at least, and how much more at most."""
    element_bytes = 4 if plan.precision == "fp32" else 2
    tokens = plan.batch * plan.context
    parts = {template("weights"): round(weights(shape, plan.precision))}
    trained_bytes = adapters(shape, plan) * 4 if plan.mode == "lora" else parts["weights"]
    scores = plan.batch * shape.heads * plan.context**2 * element_bytes * _SCORES
    scores *= plan.precision == "fp32" or shape.eager
    least, most = (tokens * (hidden * shape.hidden + wide * shape.wide) * element_bytes for hidden, wide in _KEPT)
    if plan.mode == "lora" and plan.precision in ("int4", "int8"):
        most *= 2  # peft widens all between the matrices to 32 bits: https://github.com/huggingface/peft/issues/816
    if plan.mode == "inference":
        parts[template("keys and values")] = cached = plan.batch * cached_bytes(shape, plan.context, element_bytes)
        spread = _GROWTH * cached + most + scores + plan.batch * shape.vocabulary * _LOGITS[1]
    else:
        layers = 1 if plan.checkpointing else shape.layers
        logits = tokens * shape.vocabulary
        kept = shape.layers * tokens * shape.hidden * element_bytes if plan.checkpointing else 0
        parts[template("activations")] = round(kept + layers * least + logits * _LOGITS[0])
        parts[template("gradients")] = trained_bytes
        parts[template("optimizer")] = round(trained_bytes * _STATES[plan.optimizer])
        spread = layers * (most - least + scores) + logits * (_LOGITS[1] - _LOGITS[0]) + trained_bytes
        spread += parts["weights"] / 2 if plan.precision == "mixed" else 0  # a copy in 16 bits
    parts[template("CUDA itself")] = CONTEXT_BYTES
    return Estimate(parts, round(spread + _GAPS * (sum(parts.values()) + spread)), shape.parameters)


def adapters(shape: Shape, plan: Plan) -> int:
    """Return the number of LoRA's parameters: two thin matrices beside each of those that are adapted."""
    matrices = [(shape.hidden, shape.query_width), (shape.hidden, shape.kv_width)]
    if plan.targets == "all":
        matrices += [*matrices, *[(shape.hidden, shape.wide)] * 3]
    return shape.layers * plan.rank * sum(a + b for a, b in matrices)


def cached_bytes(shape: Shape, tokens: int, element_bytes: int, step: int = 0) -> int:
    """Return the keys and values of a sequence; layers with a window keep that and the tokens of one step."""
    kept_tokens = shape.full_layers * tokens + shape.windowed_layers * min(tokens, shape.window + step)
    return 2 * shape.kv_width * element_bytes * kept_tokens


def weights(shape: Shape, precision: str) -> float:
    """Return the bytes of the weights; where the rest is quantized, embeddings or all but experts stay in 16 bits."""
    plain = 0 if precision not in QUANTIZED - GGUF else shape.embeddings
    if precision == "mxfp4" and shape.experts:  # gpt-oss
        plain = max(shape.parameters - shape.experts, 0)
        return shape.experts * WEIGHT_BYTES[precision] + plain * 2
    return max(shape.parameters - plain, 0) * WEIGHT_BYTES[precision] + plain * 2
