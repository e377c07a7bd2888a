"""The shape of a language model: by its config.json, the shapes of its tensors, or a typical one of its size. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from wslgpud.advise.fit.config_json import whole_of
from wslgpud.advise.fit.quantization import ShapeError, stored
from wslgpud.words import Message, say

#: Llama's families keep hidden size / layers near this (LLaMA, arXiv:2302.13971, table 2; Llama 3 is wider).
_WIDTH_TO_DEPTH = 128
#: From this size on, models share keys and values among heads (Llama 2 70B, arXiv:2307.09288).
_GROUPED_PARAMETERS = 30_000_000_000
#: These have two matrices in each feed-forward block, all newer ones three (with a gate).
_UNGATED = re.compile(
    "gpt2|gpt_neox?|gptj|gpt_bigcode|opt|bloom|falcon|phi|mpt|bert|roberta|t5"
    "|starcoder2|codegen|nemotron|xglm|arcee|persimmon|biogpt"
)
#: families whose parameters these keys describe in full
_FAMILIES = """
    apertus aquila arcee baichuan biogpt bloom codegen cohere cohere2 deepseek deepseek_v2 deepseek_v3 dots1
    ernie4_5 ernie4_5_moe exaone exaone4 falcon gemma gemma2 gemma3 gemma3_text glm glm4 glm4_moe gpt2 gpt_bigcode
    gpt_neo gpt_neox gpt_oss gptj granite granitemoe helium hunyuan_v1_dense internlm2 internlm3 internvl
    internvl_chat kimi_k2 llama llava llava_next minicpm minicpm3 minimax_m2 ministral ministral3 mistral mistral3
    mixtral mpt nemotron olmo olmo2 olmo3 olmoe opt orion persimmon phi phi3 phimoe pixtral qwen2 qwen2_5_vl
    qwen2_moe qwen2_vl qwen3 qwen3_5 qwen3_5_moe qwen3_moe qwen3_next qwen3_vl qwen3_vl_moe seed_oss smollm3
    stablelm starcoder2 xglm xverse
"""
_COUNTED = frozenset(_FAMILIES.split())
#: keys of layers that are unlike each other, or that no rule here counts
_STRANGE = (
    *("attn_config", "ffn_config", "inner_hidden_size", "multi_query_group_num", "interleave_moe_layer_step"),
    *("hybrid_override_pattern", "attn_layer_period", "expert_layer_period", "ssm_state_size", "state_size"),
    *("mamba_d_state", "mamba_num_heads", "num_decoder_layers", "encoder_layers", "kv_channels"),
)


class UnknownModelError(ShapeError):
    """A configuration that no rule here describes; ``weights_bytes`` is the size of its files, if there are any."""

    def __init__(self, said: Message | str, weights_bytes: int = 0, **facts: str) -> None:
        """Say which key was not understood."""
        super().__init__(said, **facts)
        self.weights_bytes = weights_bytes


#: families for whose attention torch has no kernel that keeps no scores
_EAGER = frozenset(["bloom", "codegen", "falcon", "gpt_neo", "gpt_oss", "gptj", "mpt", "xglm"])
#: families whose configurations do not say that embeddings and head are tied
_TIED = re.compile(
    "gpt2|gpt_neo|gpt_bigcode|opt|bloom|falcon|mpt|xglm|starcoder2|smollm3|gemma.*|cohere.*|ernie4_5|biogpt"
)
#: one in how many layers sees all tokens, where the configuration relies on the family
_EVERY = {"gemma2": 2, "gemma3_text": 6, "gemma3": 6}


@dataclass(frozen=True, slots=True)
class Shape:
    """A decoder; ``parameters`` is its real number, if a file states it, else counted from the rest.

    ``intermediate`` is the width of one expert, ``shared`` of those that every token passes; the first ``dense_layers``
    have a block of ``dense_width`` instead of experts. ``stored`` names the quantization of the weights in the files,
    if any, ``stored_bytes`` their size, if known. ``windowed_layers`` see the last ``window`` tokens only, and
    ``linear_layers`` keep none. ``attention_parameters`` are those of one layer if not hidden x (queries, keys, values,
    output).
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    gated: bool = True
    tied: bool = False
    experts: int = 1
    active_experts: int = 1
    name: str = ""
    parameters: int = 0
    shared: int = 0
    dense_layers: int = 0
    dense_width: int = 0
    stored: str = ""
    stored_bytes: int = 0
    window: int = 0
    windowed_layers: int = 0
    linear_layers: int = 0
    attention_parameters: int = 0
    #: attention materialises its scores
    eager: bool = False
    #: size of a token's latent in a layer, for engines that cache it instead of keys and values
    latent: int = 0

    def count(self) -> int:
        """Return the number of parameters: attention, feed-forward, norms, embeddings."""
        attention = self.attention_parameters or 2 * self.hidden * (self.query_width + self.kv_width)
        across = self.matrices * self.hidden
        router = self.hidden * self.experts if self.experts > 1 else 0
        sparse = across * (self.intermediate * self.experts + self.shared) + router
        blocks = (self.layers - self.dense_layers) * sparse + self.dense_layers * across * self.dense_width
        embeddings = self.vocabulary * self.hidden * (1 if self.tied else 2)
        return self.layers * (attention + 2 * self.hidden) + blocks + embeddings + self.hidden

    @property
    def query_width(self) -> int:
        """Numbers in the queries of one token."""
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Numbers in the keys of one token, and in its values."""
        return self.kv_heads * self.head_dim

    @property
    def matrices(self) -> int:
        """Matrices in a feed-forward block."""
        return 3 if self.gated else 2

    @property
    def active_width(self) -> int:
        """Total width of the feed-forward blocks that a token passes in a layer."""
        return self.intermediate * self.active_experts + self.shared

    @property
    def wide(self) -> int:
        """Width of the widest feed-forward block that a token passes."""
        return max(self.active_width, self.dense_width)

    @property
    def size(self) -> int:
        """Number of parameters: known, else counted."""
        return self.parameters or self.count()


def typical(parameters: int, name: str = "") -> Shape:
    """Return the typical shape of a Llama-like model of this size.

    Each layer has about 12 x hidden^2 parameters (Kaplan et al., arXiv:2001.08361, table 1).
    """
    big = parameters >= _GROUPED_PARAMETERS
    layers = max(1, round((parameters / (12 * _WIDTH_TO_DEPTH**2)) ** (1 / 3)))
    step = 1024 if big else 128 if parameters > 10**8 else 64
    hidden = step * max(1, round(math.sqrt(parameters / (12 * layers)) / step))
    heads = max(1, hidden // 128)
    kv_heads = 8 if big else heads
    vocabulary = 128_256 if big else 32_000
    attention = hidden * hidden // heads * (2 * heads + 2 * kv_heads)
    rest = (parameters - 2 * vocabulary * hidden) / layers - attention
    intermediate = 64 * max(2, round(rest / (3 * hidden) / 64))
    return Shape(
        layers, hidden, heads, kv_heads, hidden // heads, intermediate, vocabulary, name=name, parameters=parameters
    )


def of_config(document: Mapping[str, Any], name: str = "") -> Shape:
    """Return the shape in a Hugging Face config.json.

    Raises:
        ShapeError: a size is missing; the message names it.
    """
    inner = document.get("text_config") or document.get("llm_config") or document
    if not isinstance(inner, Mapping):
        raise ShapeError(say("config.json is not a model's"))
    _refuse_strange(document, inner)
    # Some models, and all GGUF headers, use other names.
    hidden = whole_of(inner, "hidden_size", "n_embd", "d_model", "dim", "embedding_length")
    layers = whole_of(inner, "num_hidden_layers", "n_layer", "num_layers", "n_layers", "block_count")
    heads = whole_of(
        inner, "num_attention_heads", "n_head", "num_heads", "n_heads", "attention_heads", "attention.head_count"
    )
    wides = ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size", "feed_forward_length")
    kind = str(document.get("model_type", inner.get("model_type", "")))
    gated = not _UNGATED.fullmatch(kind)
    wide = dense_width = whole_of(inner, *wides, default=4 * hidden)
    experts = whole_of(inner, "num_local_experts", "num_experts", "n_routed_experts", "expert_count", default=1)
    shared = dense_layers = 0
    if experts > 1:
        wide = whole_of(inner, "moe_intermediate_size", "expert_feed_forward_length", default=wide)
        shared = whole_of(inner, "n_shared_experts", "expert_shared_count", default=0) * wide
        shared_width = ("shared_expert_intermediate_size", "expert_shared_feed_forward_length")
        shared = whole_of(inner, *shared_width, default=shared)
        dense_layers = min(layers, whole_of(inner, "first_k_dense_replace", "leading_dense_block_count", default=0))
    return Shape(
        layers,
        hidden,
        heads,
        _kv_heads(inner, heads),
        _latent_head(inner) or whole_of(inner, "head_dim", "attention.key_length", default=hidden // heads),
        wide,
        whole_of(inner, "vocab_size"),
        gated,
        bool(document.get("tie_word_embeddings", inner.get("tie_word_embeddings", _TIED.fullmatch(kind) is not None))),
        experts,
        whole_of(inner, "num_experts_per_tok", "num_experts_per_token", "expert_used_count", default=1),
        str(document.get("_name_or_path") or name or kind),
        shared=shared,
        dense_layers=dense_layers,
        dense_width=dense_width if dense_layers else 0,
        stored=stored(document.get("quantization_config") or inner.get("quantization_config")),
        **_attention(inner, layers),
        **_latent(inner, hidden, heads),
        eager=kind in _EAGER,
    )


def _refuse_strange(document: Mapping[str, Any], inner: Mapping[str, Any]) -> None:
    """Refuse what no rule describes, by the name of the key, rather than take it for a Llama."""
    key = next((key for key in _STRANGE if inner.get(key)), "")
    kind = str(inner.get("model_type", document.get("model_type", "")))
    if not key and (not kind or kind in _COUNTED):
        return
    raise UnknownModelError("config.json: no rule here understands its {key}", key=key or f"model_type {kind}")


def _kv_heads(inner: Mapping[str, Any], heads: int) -> int:
    """Return the number of key-value heads; Falcon and StarCoder express a single one differently."""
    if inner.get("multi_query") is True and not inner.get("new_decoder_architecture"):
        return 1
    names = ("num_key_value_heads", "num_kv_heads", "n_head_kv", "attention.head_count_kv")
    return whole_of(inner, *names, default=heads)


def _latent_head(inner: Mapping[str, Any]) -> int:
    """Return the mean size of a head's keys and values where both come from latents (DeepSeek V2 and V3), else 0.

    transformers caches them for all heads: modeling_deepseek_v3.py. Engines that cache latents need far less.
    """
    if not whole_of(inner, "kv_lora_rank", default=0):
        return 0
    sizes = (whole_of(inner, name, default=0) for name in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"))
    return sum(sizes) // 2


def _latent(inner: Mapping[str, Any], hidden: int, heads: int) -> dict[str, int]:
    """Return the parameters of a layer's latent attention: arXiv:2405.04434, 2.1."""
    if not (latent := whole_of(inner, "kv_lora_rank", default=0)):
        return {}
    plain, turned = whole_of(inner, "qk_nope_head_dim"), whole_of(inner, "qk_rope_head_dim")
    value, compressed = whole_of(inner, "v_head_dim"), whole_of(inner, "q_lora_rank", default=0)
    queries = heads * (plain + turned)
    query = compressed * (hidden + queries) if compressed else hidden * queries
    keys = hidden * (latent + turned) + latent * heads * (plain + value)
    return {"attention_parameters": query + keys + heads * value * hidden, "latent": latent + turned}


def _attention(inner: Mapping[str, Any], layers: int) -> dict[str, int]:
    """Return how many layers see only a window of the tokens, and how many cache none.

    ``layer_types`` lists them; older configurations have one window for all layers, or for all but every n-th.
    """
    window = whole_of(inner, "sliding_window", default=0) if inner.get("use_sliding_window", True) else 0
    kinds = inner.get("layer_types")
    if isinstance(kinds, list):
        windowed = sum(kind in ("sliding_attention", "chunked_attention") for kind in kinds)
        return {
            "window": window,
            "windowed_layers": min(layers, windowed) if window else 0,
            "linear_layers": min(layers, sum(kind in ("linear_attention", "mamba", "conv") for kind in kinds)),
        }
    full = layers // whole_of(inner, "full_attention_interval", default=1)
    every = whole_of(inner, "sliding_window_pattern", default=0) or _EVERY.get(str(inner.get("model_type")), 0)
    windowed = layers - layers // every if every else layers
    return {"window": window, "windowed_layers": windowed if window else 0, "linear_layers": layers - full}


def of_tensors(tensors: Mapping[str, Any], name: str = "") -> Shape:
    """Return the shape derived from names and shapes of tensors; head sizes are assumed to be 128.

    Raises:
        ShapeError: these are not the tensors of a language model.
    """
    numbers = [int(m[1]) for n in tensors if (m := re.search(r"(?:layers|h|blocks)\.(\d{1,6})\.", n))]
    if not numbers:
        raise ShapeError(say("it has no tensor of a layer: name the model's config.json"))

    def dims(*endings: str) -> list[int]:
        found = next((e["shape"] for n, e in tensors.items() if n.endswith(endings)), None)
        if not found or len(found) != 2:
            raise ShapeError("it has no tensor …{name}: name the model's config.json", name=endings[0])
        return [int(d) for d in found]

    vocabulary, hidden = dims("embed_tokens.weight", "wte.weight", "embed_in.weight", "tok_embeddings.weight")
    query, key = dims("q_proj.weight", "wq.weight")[0], dims("k_proj.weight", "wk.weight")[0]
    wide = dims("up_proj.weight", "fc1.weight", "w3.weight")[0]
    head = math.gcd(128, key)
    tied = not any(n.endswith(("lm_head.weight", "output.weight", "embed_out.weight")) for n in tensors)
    gated = any(n.endswith(("gate_proj.weight", "w1.weight")) for n in tensors)
    return Shape(max(numbers) + 1, hidden, query // head, key // head, head, wide, vocabulary, gated, tied, name=name)
