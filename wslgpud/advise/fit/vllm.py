"""How vLLM divides a card among weights, activations and the KV cache, and how many tokens that holds. Pure.

vLLM takes ``gpu_memory_utilization`` of the whole card, however small the model is. The KV cache gets the rest after
weights, the peak of a profiling run (with the largest step), CUDA graphs and CUDA itself. vLLM starts only if that
share is free and the cache holds one sequence of ``max_model_len``:
https://docs.vllm.ai/en/latest/configuration/conserving_memory/, ``determine_available_memory`` in
https://github.com/vllm-project/vllm/blob/main/vllm/v1/worker/gpu_worker.py and ``check_enough_kv_cache_memory`` in
https://github.com/vllm-project/vllm/blob/main/vllm/v1/core/kv_cache_utils.py. Bytes throughout.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, NamedTuple

from wslgpud.advise.fit.estimate import weights
from wslgpud.advise.fit.plan import WEIGHT_BYTES, Estimate
from wslgpud.advise.fit.shape import Shape
from wslgpud.words import Message, say, template

GIB = 1 << 30
CacheType = Literal["auto", "fp8"]
#: vLLM's default share of the card, and tokens in a block of its cache
UTILIZATION, BLOCK_TOKENS = 0.92, 16
#: Default tokens per step and concurrent sequences, on cards from 70 GiB on and on smaller ones:
#: ``EngineArgs.get_batch_defaults``.
_LARGE_BYTES, _LARGE, _SMALL = 70 * GIB, (8192, 1024), (2048, 256)
#: non-torch memory: 0.26 to 0.56 GiB in vLLM's logs
_CUDA_BYTES = GIB // 2
#: per layer, of the 86 graphs that vLLM captures by default: 0.2 to 0.9 GiB in all in its logs
_GRAPH_BYTES = 86 * 230_000
#: per logit of the sampler: in 16 bits, in 32, its probability, and a mask
_SCORE_BYTES = 2 + 4 + 4 + 1
#: concurrent sequences that are enough for a single user
_FEW = 16


@dataclass(frozen=True, slots=True)
class ServingPlan:
    """vLLM's settings, by its names: ``context`` is max_model_len; 0 leaves a number to vLLM."""

    precision: str = "bf16"
    context: int = 4096
    utilization: float = UTILIZATION
    max_num_seqs: int = 0
    max_num_batched_tokens: int = 0
    kv_cache: CacheType = "auto"


#: vLLM's own options for these
_OPTIONS = {"utilization": "--gpu-memory-utilization", "context": "--max-model-len", "kv_cache": "--kv-cache-dtype"}
_OPTIONS |= {"max_num_seqs": "--max-num-seqs", "precision": "--quantization"}


class Card(NamedTuple):
    """The whole card, and its free memory."""

    total_bytes: int
    free_bytes: int


class Served(NamedTuple):
    """How vLLM divides its share of a card; ``refusal`` is the reason why it does not start."""

    found: Estimate
    cache_bytes: int
    tokens: int
    #: concurrent sequences of max_model_len
    concurrency: float
    refusal: Message | None


def serve(shape: Shape, plan: ServingPlan, card: Card) -> Served:
    """Return how vLLM divides the card, and whether it starts."""
    share = round(plan.utilization * card.total_bytes)
    parts = {
        template("weights"): round(weights(shape, plan.precision)),
        template("profiling run"): _profiling_bytes(shape, plan, card),
        template("CUDA graphs"): _GRAPH_BYTES * shape.layers,
        template("CUDA itself"): _CUDA_BYTES,
    }
    cache = share - sum(parts.values())
    each = sequence_bytes(shape, plan, card, plan.context)
    concurrency = max(0.0, cache / each)
    tokens = int(concurrency * plan.context) // BLOCK_TOKENS * BLOCK_TOKENS
    if cache > 0:
        parts[template("keys and values")] = cache
    found, refusal = Estimate(parts, 0, shape.parameters), _refusal(share, cache, each, plan, card)
    return Served(found, cache, tokens, concurrency, refusal)


def _refusal(share: int, cache: int, each: int, plan: ServingPlan, card: Card) -> Message | None:
    facts = {"share_bytes": share, "free_bytes": card.free_bytes, "size_bytes": each, "cache_bytes": cache}
    if share > card.free_bytes:
        return say(
            "vLLM will not start: it needs {share_bytes}, but only {free_bytes} are free"
            " (`Free memory on device … is less than desired GPU memory utilization`).",
            **facts,
        )
    if cache <= 0:
        return say("vLLM will not start: nothing is left to cache (`No available memory for the cache blocks`).")
    if each > cache:
        return say(
            "vLLM will not start: a sequence of {count} tokens takes {size_bytes} of the cache, which has {cache_bytes}"
            " (`… is larger than the maximum number of tokens that can be stored in KV cache`).",
            count=plan.context,
            **facts,
        )
    return None


def sequence_bytes(shape: Shape, plan: ServingPlan, card: Card, tokens: int) -> int:
    """Return the KV cache of a sequence; layers with a window keep the window and the tokens of one step."""
    element = 1 if plan.kv_cache == "fp8" else 4 if plan.precision == "fp32" else 2
    page = BLOCK_TOKENS * 2 * shape.kv_width * element
    seen = min(tokens, shape.window - 1 + _batched(plan, card)[0]) if shape.window else tokens
    blocks = shape.full_layers * -(-tokens // BLOCK_TOKENS) + shape.windowed_layers * (-(-seen // BLOCK_TOKENS) + 1)
    return page * max(1, blocks)  # one block with only linear layers


def _batched(plan: ServingPlan, card: Card) -> tuple[int, int]:
    """Return the largest number of tokens in a step, and of sequences."""
    tokens, sequences = _LARGE if card.total_bytes >= _LARGE_BYTES else _SMALL
    return plan.max_num_batched_tokens or tokens, plan.max_num_seqs or sequences


def _profiling_bytes(shape: Shape, plan: ServingPlan, card: Card) -> int:
    """Return the peak of the profiling run: in a feed-forward block, or in the sampler.

    The block holds its input, the residual, and the outputs of its matrices and activation.
    """
    tokens, sequences = _batched(plan, card)
    element = 4 if plan.precision == "fp32" else 2
    block = tokens * (2 * shape.hidden + 3 * shape.wide) * element
    choice = tokens * shape.hidden * element + min(sequences, tokens) * shape.vocabulary * _SCORE_BYTES
    return max(block, choice)


def turns(shape: Shape, plan: ServingPlan, card: Card) -> list[tuple[list[str], int]]:
    """Return vLLM's options that let it start, and how many tokens its cache holds then.

    Each goes with a share of the card that is free.
    """
    free = math.floor(100 * card.free_bytes / card.total_bytes) / 100
    within = replace(plan, utilization=min(plan.utilization, free))
    lacking = sequence_bytes(shape, plan, card, plan.context) - serve(shape, within, card).cache_bytes
    needed = math.ceil(100 * (within.utilization + max(0, lacking) / card.total_bytes)) / 100
    every: list[dict[str, Any]] = [
        {"utilization": min(needed, free)},
        {"context": min(plan.context, _longest(shape, within, card)) or plan.context},
        {"kv_cache": "fp8"},
        {"max_num_seqs": min(_FEW, _batched(plan, card)[1])},
        *({"precision": name} for name in ("fp8", "awq") if WEIGHT_BYTES[name] < WEIGHT_BYTES[plan.precision]),
    ]
    found = dict[tuple[str, ...], int]()
    for changed in (replace(within, **changes) for changes in every):
        served = serve(shape, changed, card)
        given = {name: value for name, value in asdict(changed).items() if value != getattr(plan, name)}
        options = tuple(f"{_OPTIONS[name]} {value}" for name, value in given.items())
        if options and served.refusal is None:
            found.setdefault(options, served.tokens)
    return [([*options], tokens) for options, tokens in found.items()]


def _longest(shape: Shape, plan: ServingPlan, card: Card) -> int:
    """Return how many tokens of a sequence fit into the cache, in whole blocks."""
    cache, blocks = serve(shape, plan, card).cache_bytes, range(1, plan.context // BLOCK_TOKENS + 1)
    fitting = bisect_right(blocks, cache, key=lambda n: sequence_bytes(shape, plan, card, n * BLOCK_TOKENS))
    return fitting * BLOCK_TOKENS
