"""The memory of a language model by published arithmetic, with a margin, where no model can be asked. Pure; bytes.

At least: weights, keys and values, gradients and optimizer states, which follow from the configuration, and the
activations that are kept between the layers however they are computed. At most: attention that materialises its scores,
activations with every mask (Korthikanti et al., arXiv:2205.05198, 4.1), copies that an optimizer works on, and gaps.

vLLM takes ``gpu_memory_utilization`` of the whole card, however small the model is. The cache of keys and values gets
the rest after weights, the peak of a profiling run (with the largest step), CUDA graphs and CUDA itself. vLLM starts
only if that share is free and the cache holds one sequence of ``max_model_len``:
https://docs.vllm.ai/en/latest/configuration/conserving_memory/, ``determine_available_memory`` in
https://github.com/vllm-project/vllm/blob/main/vllm/v1/worker/gpu_worker.py and ``check_enough_kv_cache_memory`` in
https://github.com/vllm-project/vllm/blob/main/vllm/v1/core/kv_cache_utils.py.
"""

from __future__ import annotations

from typing import NamedTuple

from wslgpud.advise.fit.plan import CONTEXT_BYTES, GGUF, QUANTIZED, WEIGHT_BYTES, Estimate, NoEstimate, Plan
from wslgpud.advise.fit.source import NamedModel, Shape
from wslgpud.words import say, template

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

GIB = 1 << 30
#: vLLM's default share of the card
VLLM_UTILIZATION = 0.92
#: non-torch memory: 0.26 to 0.56 GiB in vLLM's logs
_CUDA_BYTES = GIB // 2
#: per layer, of the 86 graphs that vLLM captures by default: 0.2 to 0.9 GiB in all in its logs
_GRAPH_BYTES = 86 * 230_000
#: per logit of the sampler: in 16 bits, in 32, its probability, and a mask
_SCORE_BYTES = 2 + 4 + 4 + 1


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


class VllmStep(NamedTuple):
    """The most tokens, and sequences, of one step: max_num_batched_tokens and max_num_seqs."""

    tokens: int
    sequences: int


def vllm_step(card_bytes: int) -> VllmStep:
    """Return vLLM's default step on a card of this size: ``EngineArgs.get_batch_defaults``."""
    return VllmStep(8192, 1024) if card_bytes >= 70 * GIB else VllmStep(2048, 256)


def served_by_vllm(share_bytes: int, step: VllmStep, source: NamedModel, plan: Plan) -> Estimate:
    """Return the memory with which vLLM holds a plan's sequences in its cache at once, and the tokens that fit.

    The profiling run is at its peak in a feed-forward block, which holds its input, the residual, and the outputs of
    its matrices and activation, or in the sampler. Raises NoEstimate: no rule describes the model.
    """
    if (shape := source.shape) is None:
        raise NoEstimate("what vLLM takes is computed, not traced")
    element_bytes = 4 if plan.precision == "fp32" else 2
    block_bytes = step.tokens * (2 * shape.hidden + 3 * shape.wide) * element_bytes
    score_bytes = min(step) * shape.vocabulary * _SCORE_BYTES
    parts = {
        template("weights"): round(weights(shape, plan.precision)),
        template("profiling run"): max(block_bytes, step.tokens * shape.hidden * element_bytes + score_bytes),
        template("CUDA graphs"): _GRAPH_BYTES * shape.layers,
        template("CUDA itself"): _CUDA_BYTES,
    }
    rest_bytes = max(0, share_bytes - sum(parts.values()))
    needed_bytes = plan.batch * cached_bytes(shape, plan.context, element_bytes, step.tokens)
    parts[template("keys and values")] = needed_bytes
    tokens = rest_bytes * plan.batch * plan.context // max(1, needed_bytes)
    by = say("vLLM, with room for {count} tokens", count=tokens)
    return Estimate(parts, 0, shape.parameters, by, (say("vLLM's profiling run and CUDA graphs"),))
