"""The shape of a language model by its config.json, or a typical one of its size. Pure.

Only Llama's layout is described: attention with grouped keys, feed-forward blocks of three matrices, and mixtures of
these. Everything else is refused by the key that was not understood.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from wslgpud.words import MessageError, say

#: Llama's families keep hidden size / layers near this (LLaMA, arXiv:2302.13971, table 2; Llama 3 is wider).
_WIDTH_TO_DEPTH = 128
#: From this size on, models share keys and values among heads (Llama 2 70B, arXiv:2307.09288).
_GROUPED_PARAMETERS = 30_000_000_000
#: families with Llama's layout, whose keys are all read here
_FAMILIES = """
    aquila baichuan cohere cohere2 deepseek dots1 ernie4_5 ernie4_5_moe exaone4 gemma gemma2 gemma3 gemma3_text glm glm4
    glm4_moe gpt_oss granite granitemoe helium hunyuan_v1_dense internlm2 internlm3 internvl internvl_chat llama llava
    llava_next minicpm minimax_m2 ministral ministral3 mistral mistral3 mixtral olmo olmo2 olmo3 olmoe orion phi3 phimoe
    pixtral qwen2 qwen2_5_vl qwen2_moe qwen2_vl qwen3 qwen3_5 qwen3_5_moe qwen3_moe qwen3_next qwen3_vl qwen3_vl_moe
    seed_oss smollm3 stablelm xverse
"""
#: keys of other layers, which nothing here counts
_STRANGE = ("kv_lora_rank", "attn_config", "ffn_config", "interleave_moe_layer_step", "mamba_d_state", "state_size")
#: families whose configurations do not say that embeddings and head are tied
_TIED = ("gemma", "cohere", "smollm3", "ernie4_5")
#: one in how many layers sees all tokens, where the configuration relies on the family
_EVERY = {"gemma2": 2, "gemma3_text": 6, "gemma3": 6}
_WINDOWED, _LINEAR = ("sliding_attention", "chunked_attention"), ("linear_attention", "mamba", "conv")


class ShapeError(MessageError):
    """The model cannot be read; the message says what is missing."""


class UnknownModelError(ShapeError):
    """A configuration that no rule here describes; the message says which key was not understood."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A decoder; ``parameters`` is their number where it is known, else they are counted.

    ``intermediate`` is the width of one expert, ``shared`` of those that every token passes; the first ``dense_layers``
    have a block of ``dense_width`` instead of experts. ``windowed_layers`` see the last ``window`` tokens only, and
    ``linear_layers`` keep none.
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    tied: bool = False
    experts: int = 1
    active_experts: int = 1
    name: str = ""
    parameters: int = 0
    shared: int = 0
    dense_layers: int = 0
    dense_width: int = 0
    window: int = 0
    windowed_layers: int = 0
    linear_layers: int = 0
    #: attention materialises its scores: torch has no kernel for this family that does not
    eager: bool = False

    def count(self) -> int:
        """Return the number of parameters: attention, feed-forward, norms, embeddings."""
        attention = 2 * self.hidden * (self.query_width + self.kv_width)
        across = 3 * self.hidden
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
    def wide(self) -> int:
        """Width of the widest feed-forward block that a token passes."""
        return max(self.intermediate * self.active_experts + self.shared, self.dense_width)

    @property
    def full_layers(self) -> int:
        """Layers that keep the keys and values of all tokens."""
        return max(0, self.layers - self.linear_layers - self.windowed_layers)

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
    kv_heads, vocabulary = (8, 128_256) if big else (heads, 32_000)
    attention = hidden * hidden // heads * (2 * heads + 2 * kv_heads)
    rest = (parameters - 2 * vocabulary * hidden) / layers - attention
    wide = 64 * max(2, round(rest / (3 * hidden) / 64))
    return Shape(layers, hidden, heads, kv_heads, hidden // heads, wide, vocabulary, name=name, parameters=parameters)


def of_config(document: Mapping[str, Any], name: str = "") -> Shape:
    """Return the shape in a Hugging Face config.json.

    Raises:
        UnknownModelError: no rule here describes it; the message names the key.
        ShapeError: a size is missing; the message names it.
    """
    inner = document.get("text_config") or document.get("llm_config") or document
    if not isinstance(inner, Mapping):
        raise ShapeError(say("config.json is not a model's"))
    kind = str(inner.get("model_type", document.get("model_type", "")))
    strange = next((key for key in _STRANGE if inner.get(key)), "")
    if strange or kind not in _FAMILIES.split():
        raise UnknownModelError("config.json: no rule here understands its {key}", key=strange or f"model_type {kind}")

    def number(*names: str, default: int | None = None) -> int:
        value = next((inner[name] for name in names if type(inner.get(name)) is int and inner[name] > 0), default)
        if value is None:
            raise ShapeError("config.json has no {name}", name=names[0])
        return int(value)

    hidden, layers, heads = number("hidden_size"), number("num_hidden_layers"), number("num_attention_heads")
    wide = dense = number("intermediate_size", default=4 * hidden)
    experts = number("num_local_experts", "num_experts", "n_routed_experts", default=1)
    shared = dense_layers = 0
    if experts > 1:
        wide = number("moe_intermediate_size", default=wide)
        shared = number("shared_expert_intermediate_size", default=number("n_shared_experts", default=0) * wide)
        dense_layers = min(layers, number("first_k_dense_replace", default=0))
    window = number("sliding_window", default=0) if inner.get("use_sliding_window", True) else 0
    kinds = inner.get("layer_types")
    if not isinstance(kinds, list):
        every = number("sliding_window_pattern", default=_EVERY.get(kind, 0))
        linear = layers - layers // number("full_attention_interval", default=1)
        windowed = layers - layers // every if every else layers
    else:
        linear, windowed = (sum(kind in those for kind in kinds) for those in (_LINEAR, _WINDOWED))
    tied = document.get("tie_word_embeddings", inner.get("tie_word_embeddings", kind.startswith(_TIED)))
    kv_heads, head = number("num_key_value_heads", default=heads), number("head_dim", default=hidden // heads)
    dense_width, active = dense if dense_layers else 0, number("num_experts_per_tok", default=1)
    windowed, linear = min(layers, windowed) if window else 0, min(layers, linear)
    # in the order of Shape's fields
    known = (
        layers,
        hidden,
        heads,
        kv_heads,
        head,
        wide,
        number("vocab_size"),
        bool(tied),
        experts,
        active,
        name or kind,
    )
    return Shape(*known, 0, shared, dense_layers, dense_width, window, windowed, linear, kind == "gpt_oss")
