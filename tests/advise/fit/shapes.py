"""Shapes by their sizes, as a config.json says them."""

from __future__ import annotations

from typing import Any

from wslgpud.advise.fit.source import Shape, of_config

_KEYS = ("num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim")


def shape(*sizes: int, **more: Any) -> Shape:
    """Return a Llama of these layers, width, heads, heads of keys, width of a head, width of a block, and words."""
    config = dict(zip((*_KEYS, "intermediate_size", "vocab_size"), sizes, strict=True))
    return of_config({"model_type": "llama", **config, **more})
