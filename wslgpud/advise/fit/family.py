"""Differences between model families in transformers, as far as they affect memory. Pure.

Derived from transformers' modeling files (5.17) and recordings of their allocations on a real card.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

#: - rms: Llama's; late: the weight is applied in 32 bits (OLMo 2), and as 1 + weight (plus_one: Gemma)
#: - layer: torch's own LayerNorm; layer_wide: the same in 32 bits (OLMo); layer32: written out in 32 bits (Cohere)
Norm = Literal["rms", "late", "plus_one", "layer", "layer_wide", "layer32"]
#: - halves: Llama's; wide: in 32 bits (OLMo 2); pairs: neighbours, in 32 bits (Cohere); complex (DeepSeek V2)
Rotary = Literal["none", "halves", "wide", "pairs"]
#: - one: one kernel; steps: tanh's approximation step by step; own: BLOOM's; squared: ReLU squared
Activation = Literal["one", "steps", "own", "relu", "squared"]


@dataclass(frozen=True, slots=True)
class Family:
    """The structure of a layer.

    ``placement`` says whether norms come before attention and feed-forward block, after, or both; ``parallel`` that the
    two read the same tensor, with ``one_norm`` through the same norm; ``joined_qkv`` and ``joined_gate`` that one
    matrix has several outputs; ``rotary_share`` is the part of each head that is rotated. ``biased`` says whether
    attention's inputs, its output, and the feed-forward block have a bias. ``head_norms`` are norms of queries and
    keys, of each head (head) or of all (row). ``eager`` attention materialises its scores: only its softmax in 32 bits
    (own), all of it (wide), or nothing (narrow). ``apart`` shares keys among all heads in a way that torch has no
    kernel for, ``narrow_experts`` weights their outputs in 16 bits. ``scaled`` has factors: of embeddings, of residual
    branches, of logits.
    """

    norm: Norm = "rms"
    placement: Literal["before", "after", "both"] = "before"
    parallel: bool = False
    one_norm: bool = False
    rotary: Rotary = "halves"
    rotary_share: float = 1.0
    activation: Activation = "one"
    joined_qkv: bool = False
    joined_gate: bool = False
    biased: tuple[bool, bool, bool] = (False, False, False)
    head_norms: Literal["", "head", "row"] = ""
    eager: Literal["", "own", "wide", "narrow"] = ""
    scaled: tuple[bool, bool, bool] = (False, False, False)
    capped: bool = False
    positions: bool = False
    embedding_norm: bool = False
    dropout: bool = False
    narrow_experts: bool = False
    apart: bool = False


LLAMA = Family()
_GPT = Family(norm="layer", rotary="none", biased=(True, True, True), positions=True)
_NEOX = Family(norm="layer", biased=(True, True, True), parallel=True)
_J = Family(norm="layer", biased=(False, False, True), parallel=True, one_norm=True, activation="steps", eager="wide")
_GEMMA = Family(norm="plus_one", scaled=(True, False, False))
_COHERE = Family(norm="layer32", parallel=True, one_norm=True, rotary="pairs", scaled=(False, False, True))
_GLM = Family(joined_gate=True, rotary_share=0.5, biased=(True, False, False))
FAMILIES: Mapping[str, Family] = {
    "arcee": Family(activation="squared"),
    "bloom": replace(_GPT, activation="own", joined_qkv=True, positions=False, eager="own", embedding_norm=True),
    "codegen": replace(_J, joined_qkv=True),
    "cohere": _COHERE,
    "cohere2": _COHERE,
    "exaone4": Family(placement="after", head_norms="head"),
    "falcon": Family(norm="layer", parallel=True, one_norm=True, joined_qkv=True, apart=True),
    "gemma": _GEMMA,
    "gemma2": replace(_GEMMA, placement="both", capped=True),
    "gemma3_text": replace(_GEMMA, placement="both", head_norms="head"),
    "glm": _GLM,
    "glm4": replace(_GLM, placement="both"),
    "gpt2": replace(_GPT, activation="steps", joined_qkv=True, dropout=True),
    "gpt_bigcode": replace(_GPT, joined_qkv=True, dropout=True),
    "gpt_neo": replace(_GPT, activation="steps", biased=(False, True, True), eager="wide"),
    "gpt_neox": replace(_NEOX, joined_qkv=True, rotary_share=0.25),
    "gptj": _J,
    "granite": Family(scaled=(True, True, True)),
    "granitemoe": Family(scaled=(True, True, True)),
    "helium": Family(norm="late"),
    "hunyuan_v1_dense": Family(head_norms="head"),
    "mpt": replace(_GPT, joined_qkv=True, positions=False, biased=(False, False, False), eager="own"),
    "nemotron": Family(norm="layer", rotary_share=0.5, activation="squared"),
    "olmo": Family(norm="layer_wide", rotary="wide"),
    "olmo2": Family(norm="late", placement="after", rotary="wide", head_norms="row"),
    "olmoe": Family(head_norms="row", narrow_experts=True),
    "opt": replace(_GPT, activation="relu", dropout=True),
    "phi": replace(_NEOX, one_norm=True, activation="steps", rotary_share=0.5),
    "phi3": Family(joined_qkv=True, joined_gate=True),
    "qwen2": Family(biased=(True, False, False)),
    "qwen2_moe": Family(biased=(True, False, False), narrow_experts=True),
    "qwen3": Family(head_norms="head"),
    "qwen3_moe": Family(head_norms="head", narrow_experts=True),
    "seed_oss": Family(biased=(True, False, False)),
    "stablelm": Family(norm="layer", rotary_share=0.25),
    "starcoder2": Family(norm="layer", biased=(True, True, True)),
    "xglm": replace(_GPT, dropout=True, eager="narrow", positions=False, scaled=(True, False, False)),
}
#: families whose configurations do not say that embeddings and head are tied
TIED = re.compile(
    "gpt2|gpt_neo|gpt_bigcode|opt|bloom|falcon|mpt|xglm|starcoder2|smollm3|gemma.*|cohere.*|ernie4_5|biogpt"
)
_ACTIVATIONS: Mapping[str, Activation] = {"gelu_new": "steps", "gelu_fast": "steps", "relu": "relu", "relu2": "squared"}
_DROPOUTS = ("dropout", "resid_pdrop", "hidden_dropout", "residual_dropout", "resid_dropout")


def family_of(kind: str, config: Mapping[str, Any]) -> Family:
    """Return the family of a config.json; unknown ones are treated as a Llama."""
    found = FAMILIES.get(kind, LLAMA)
    turning = config.get("rope_parameters")
    shares = [config.get("partial_rotary_factor"), config.get("rotary_pct")]
    shares.append(turning.get("partial_rotary_factor") if isinstance(turning, Mapping) else None)
    turned, heads, hidden = (config.get(name) for name in ("rotary_dim", "n_head", "n_embd"))
    if isinstance(turned, int) and isinstance(heads, int) and isinstance(hidden, int) and 0 < turned * heads <= hidden:
        shares.append(turned * heads / hidden)
    share = next((s for s in shares if isinstance(s, float) and 0 < s <= 1), None)
    if share and found.rotary != "none":
        found = replace(found, rotary_share=share)
    activation = config.get("activation_function") or config.get("hidden_act")
    if isinstance(activation, str) and found.activation != "own":
        found = replace(found, activation=_ACTIVATIONS.get(activation, "one"))
    if "final_logit_softcapping" in config:
        found = replace(found, capped=bool(config["final_logit_softcapping"]))
    said = [p for name in _DROPOUTS if isinstance(p := config.get(name), (int, float))]
    return replace(found, dropout=any(p > 0 for p in said)) if said else found
