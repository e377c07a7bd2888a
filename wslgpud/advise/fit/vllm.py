"""What vLLM needs of its share of a card, and how many tokens the rest of the share holds. Pure.

vLLM takes ``gpu_memory_utilization`` of the whole card, however small the model is. The cache of keys and values gets
the rest after weights, the peak of a profiling run (with the largest step), CUDA graphs and CUDA itself. vLLM starts
only if that share is free and the cache holds one sequence of ``max_model_len``:
https://docs.vllm.ai/en/latest/configuration/conserving_memory/, ``determine_available_memory`` in
https://github.com/vllm-project/vllm/blob/main/vllm/v1/worker/gpu_worker.py and ``check_enough_kv_cache_memory`` in
https://github.com/vllm-project/vllm/blob/main/vllm/v1/core/kv_cache_utils.py. Bytes throughout.
"""

from __future__ import annotations

from typing import NamedTuple

from wslgpud.advise.fit.estimate import cached_bytes, weights
from wslgpud.advise.fit.plan import Estimate, NoEstimate, Plan
from wslgpud.advise.fit.source import NamedModel
from wslgpud.words import say, template

GIB = 1 << 30
#: vLLM's default share of the card
UTILIZATION = 0.92
#: non-torch memory: 0.26 to 0.56 GiB in vLLM's logs
_CUDA_BYTES = GIB // 2
#: per layer, of the 86 graphs that vLLM captures by default: 0.2 to 0.9 GiB in all in its logs
_GRAPH_BYTES = 86 * 230_000
#: per logit of the sampler: in 16 bits, in 32, its probability, and a mask
_SCORE_BYTES = 2 + 4 + 4 + 1


class Step(NamedTuple):
    """The most tokens, and sequences, of one step: max_num_batched_tokens and max_num_seqs."""

    tokens: int
    sequences: int


def step_of(card_bytes: int) -> Step:
    """Return vLLM's default step on a card of this size: ``EngineArgs.get_batch_defaults``."""
    return Step(8192, 1024) if card_bytes >= 70 * GIB else Step(2048, 256)


def serve(share_bytes: int, step: Step, source: NamedModel, plan: Plan) -> Estimate:
    """Return what vLLM needs to hold a plan's sequences in its cache at once, and the tokens that its share holds.

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
