"""The shape of a language model is told by its size or its configuration, or is refused by the key nobody knows."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wslgpud.advise.fit.source import ShapeError, UnknownModelError, of_config, typical

#: Published figures: parameters by the models' own cards.
LLAMA_2_7B = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "intermediate_size": 11008,
    "vocab_size": 32000,
    "tie_word_embeddings": False,
}
LLAMA_3_1B = {
    "model_type": "llama",
    "hidden_size": 2048,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "intermediate_size": 8192,
    "vocab_size": 128256,
    "tie_word_embeddings": True,
}
MIXTRAL = {
    "model_type": "mixtral",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 32000,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "tie_word_embeddings": False,
}
QWEN3_30B_A3B = {
    "model_type": "qwen3_moe",
    "hidden_size": 2048,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "vocab_size": 151936,
    "tie_word_embeddings": False,
}
QWEN15_MOE = {
    "model_type": "qwen2_moe",
    "hidden_size": 2048,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "intermediate_size": 5632,
    "moe_intermediate_size": 1408,
    "num_experts": 60,
    "num_experts_per_tok": 4,
    "shared_expert_intermediate_size": 5632,
    "vocab_size": 151936,
    "tie_word_embeddings": False,
}
DEEPSEEK_MOE_16B = {
    "model_type": "deepseek",
    "hidden_size": 2048,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "intermediate_size": 10944,
    "moe_intermediate_size": 1408,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "num_experts_per_tok": 6,
    "first_k_dense_replace": 1,
    "vocab_size": 102400,
    "tie_word_embeddings": False,
}
TINY = {
    "model_type": "llama",
    "hidden_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 688,
    "vocab_size": 1000,
}


@pytest.mark.parametrize(
    ("config", "parameters"), [(LLAMA_2_7B, 6_738_415_616), (LLAMA_3_1B, 1_235_814_400), (MIXTRAL, 46_702_792_704)]
)
def test_parameters_are_counted_as_the_models_cards_say(config, parameters):
    assert of_config(config).parameters == parameters


@pytest.mark.parametrize(("config", "billions"), [(QWEN3_30B_A3B, 30.5), (QWEN15_MOE, 14.3), (DEEPSEEK_MOE_16B, 16.4)])
def test_mixtures_are_as_large_as_their_cards_say(config, billions):
    assert of_config(config).parameters / 1e9 == pytest.approx(billions, abs=0.05)


@pytest.mark.parametrize(
    ("parameters", "sizes"),
    [
        (1000, (1, 64, 1, 1, 64, 128, 32000)),
        (500_000_000, (14, 1664, 13, 13, 128, 3392, 32000)),
        (29_999_999_999, (53, 6912, 54, 54, 128, 17664, 32000)),
        # from this size on with grouped keys, as Llama 2 70B
        (30_000_000_000, (53, 7168, 56, 8, 128, 19264, 128256)),
    ],
)
def test_a_size_alone_stands_for_the_shape_of_a_llama(parameters, sizes):
    found = typical(parameters)
    names = ("num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim")

    assert tuple(found[name] for name in (*names, "intermediate_size", "vocab_size")) == sizes


@given(st.integers(10**6, 10**12))
def test_a_typical_shape_has_about_as_many_parameters(parameters):
    config = typical(parameters)

    assert config["num_attention_heads"] % config["num_key_value_heads"] == 0
    if parameters > 10**9:
        assert of_config(config).parameters == pytest.approx(parameters, rel=0.1)


def test_every_part_of_a_mixture_is_counted():
    attention, router, block = 2 * 64 * (64 + 32), 64 * 4, 3 * 64 * (96 * 4 + 32)
    config = {
        "model_type": "llama",
        "hidden_size": 64,
        "num_hidden_layers": 5,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 256,
        "vocab_size": 100,
    }
    experts = {"num_experts": 4, "moe_intermediate_size": 96, "shared_expert_intermediate_size": 32}
    dense = of_config(config)
    mixture = of_config(config | experts | {"first_k_dense_replace": 2, "num_experts_per_tok": 2})

    assert dense.parameters == 5 * (attention + 2 * 64 + 3 * 64 * 256) + 2 * 100 * 64 + 64
    assert mixture.parameters == 5 * (attention + 2 * 64) + 3 * (block + router) + 2 * 3 * 64 * 256 + 2 * 100 * 64 + 64
    assert (dense.wide, mixture.wide) == (256, max(2 * 96 + 32, 256))
    assert (dense.query_width, dense.kv_width, dense.experts) == (4 * 16, 2 * 16, 0)
    assert mixture.experts == 3 * 3 * 64 * 96 * 4
    assert of_config(config | {"num_experts": 1, "moe_intermediate_size": 96}).wide == 256
    pair = of_config(config | {"num_experts": 2, "n_shared_experts": 3, "first_k_dense_replace": 9})
    assert pair.parameters == 5 * (attention + 2 * 64 + 3 * 64 * 256) + 2 * 100 * 64 + 64
    mixture_of_two = of_config(config | {"num_experts": 2})
    assert mixture_of_two.parameters - dense.parameters == 5 * (3 * 64 * 256 + 64 * 2)


def test_a_block_without_a_width_is_four_times_the_model():
    narrow = {name: value for name, value in TINY.items() if name != "intermediate_size"}

    assert of_config(narrow).wide == 4 * 256


@pytest.mark.parametrize(
    ("more", "window", "windowed", "linear"),
    [
        ({}, 0, 0, 0),
        ({"sliding_window": 8}, 8, 12, 0),
        ({"sliding_window": 8, "sliding_window_pattern": 4}, 8, 9, 0),
        ({"sliding_window": 8, "model_type": "gemma2"}, 8, 6, 0),
        ({"sliding_window": 8, "model_type": "gemma3_text"}, 8, 10, 0),
        ({"sliding_window": 8, "model_type": "gemma3"}, 8, 10, 0),
        ({"sliding_window": 8, "use_sliding_window": False}, 0, 0, 0),
        ({"layer_types": ["sliding_attention"] * 2 + ["chunked_attention"]}, 0, 0, 0),
        ({"sliding_window": 8, "layer_types": ["sliding_attention"] * 2 + ["chunked_attention"]}, 8, 3, 0),
        ({"sliding_window": 8, "layer_types": ["sliding_attention"] * 20}, 8, 12, 0),
        ({"layer_types": ["mamba", "conv", "linear_attention", "attention"]}, 0, 0, 3),
        ({"layer_types": ["mamba"] * 20}, 0, 0, 12),
        ({"full_attention_interval": 4}, 0, 0, 9),
    ],
)
def test_layers_with_a_window_or_without_a_cache_are_counted(more, window, windowed, linear):
    found = of_config(TINY | {"num_hidden_layers": 12} | more)

    assert (found.window, found.windowed_layers) == (window, windowed)
    assert found.full_layers == max(0, 12 - windowed - linear)


def test_numbers_of_a_configuration_are_whole_and_above_0():
    for value in (0, -1, True, 2.0, "2", None):
        with pytest.raises(ShapeError, match=re.escape("config.json has no num_hidden_layers")):
            of_config(TINY | {"num_hidden_layers": value})
    assert of_config(TINY | {"num_hidden_layers": 1}).layers == 1


def test_the_text_part_of_a_model_of_pictures_counts():
    assert of_config({"model_type": "llava", "text_config": LLAMA_2_7B}).layers == 32
    gemma = {"model_type": "gemma3", "text_config": LLAMA_2_7B | {"model_type": "gemma3_text", "sliding_window": 512}}
    assert of_config(gemma).windowed_layers == 27


@pytest.mark.parametrize(("kind", "tied"), [("llama", False), ("gemma2", True), ("cohere", True), ("smollm3", True)])
def test_families_tie_head_and_embeddings_unless_they_say(kind, tied):
    embeddings = 1000 * 256

    assert of_config(TINY | {"model_type": kind}).embeddings == embeddings * (2 - tied)
    assert of_config(TINY | {"model_type": kind, "tie_word_embeddings": not tied}).embeddings == embeddings * (1 + tied)


@pytest.mark.parametrize(
    ("more", "key"),
    [
        ({"model_type": "gpt2"}, "model_type gpt2"),
        ({"model_type": "nobody_knows"}, "model_type nobody_knows"),
        ({"model_type": "dbrx", "attn_config": {"kv_n_heads": 8}}, "attn_config"),
        ({"kv_lora_rank": 512}, "kv_lora_rank"),
        ({"interleave_moe_layer_step": 2}, "interleave_moe_layer_step"),
    ],
)
def test_what_no_rule_describes_is_refused_by_its_key(more, key):
    with pytest.raises(UnknownModelError, match=f"no rule here understands its {key}"):
        of_config(TINY | more)


def test_a_configuration_that_is_no_models_is_refused():
    with pytest.raises(ShapeError, match=r"config\.json is not a model's"):
        of_config({"text_config": ["llama"]})
