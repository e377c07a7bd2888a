"""The shape of a model is told by what people have: its size, its configuration, its weights."""

from __future__ import annotations

import json
import re
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wslgpud.advise.fit.model_files import header, of
from wslgpud.advise.fit.quantization import ShapeError
from wslgpud.advise.fit.shape import Shape, of_config, typical

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
GPT2 = {
    "model_type": "gpt2",
    "n_embd": 768,
    "n_layer": 12,
    "n_head": 12,
    "vocab_size": 50257,
    "activation_function": "gelu_new",
}


@pytest.mark.parametrize(
    ("config", "parameters"), [(LLAMA_2_7B, 6_738_415_616), (LLAMA_3_1B, 1_235_814_400), (MIXTRAL, 46_702_792_704)]
)
def test_parameters_are_counted_as_the_models_cards_say(config, parameters):
    assert of_config(config).size == parameters


@pytest.mark.parametrize(("config", "billions"), [(QWEN3_30B_A3B, 30.5), (QWEN15_MOE, 14.3), (DEEPSEEK_MOE_16B, 16.4)])
def test_mixtures_with_shared_experts_and_dense_layers_are_as_large_as_their_cards_say(config, billions):
    assert of_config(config).size / 1e9 == pytest.approx(billions, abs=0.05)


@pytest.mark.parametrize(
    ("quantization", "stored"),
    [
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, "gptq"),
        ({"quant_method": "gptq", "bits": 8}, "gptq8"),
        ({"quant_method": "awq", "bits": 4}, "awq"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "int4"),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "int8"),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8"),
        # As they stand in the config.json of openai/gpt-oss-20b, nvidia/Llama-3.1-8B-Instruct-FP4,
        # RedHatAI/Meta-Llama-3.1-8B-Instruct-quantized.w4a16 and -FP8, meta-llama/Llama-3.1-405B-Instruct-FP8,
        # Intel/Qwen2-7B-int4-inc, mobiuslabsgmbh/Llama-3.1-8b-instruct_4bitgs64_hqq_calib, pytorch/Qwen3-8B-INT4
        ({"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]}, "mxfp4"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "nvfp4"),
        ({"quant_method": "modelopt", "quantization": {"quant_algo": "FP8"}}, "fp8"),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "int", "group_size": 128}}},
            },
            "gptq",
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "float"}}},
            },
            "fp8",
        ),
        ({"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0}, "fp8"),
        ({"quant_method": "intel/auto-round", "bits": 4, "group_size": 128}, "gptq"),
        ({"quant_method": "hqq", "quant_config": {"weight_quant_params": {"nbits": 4, "group_size": 64}}}, "gptq"),
        ({"quant_method": "torchao", "quant_type": {"default": {"_type": "Int4WeightOnlyConfig"}}}, "gptq"),
        ({"quant_method": "torchao", "quant_type": "int8_weight_only"}, "int8"),
        (None, ""),
    ],
)
def test_how_weights_are_stored_stands_in_the_configuration(quantization, stored):
    assert of_config(LLAMA_2_7B | {"quantization_config": quantization}).stored == stored


def test_a_quantization_nobody_knows_is_named():
    for quantization, named in (
        ({"quant_method": "aqlm", "bits": 2}, "aqlm, 2 bits"),
        ({"quant_method": "AQLM"}, "aqlm"),
        ({"quant_method": "gptq", "bits": 3}, "gptq, 3 bits"),
        ({"quant_method": "compressed-tensors", "config_groups": {}}, "compressed-tensors"),
        ({"quant_method": "torchao", "quant_type": {}}, "torchao"),
        ({"bits": 0}, "?"),
    ):
        with pytest.raises(ShapeError, match=re.escape(f"fit does not know ({named})")):
            of_config(LLAMA_2_7B | {"quantization_config": quantization})


def test_older_models_use_other_words_and_two_matrices():
    shape = of_config(GPT2)

    assert (shape.gated, shape.tied, shape.intermediate) == (False, True, 3072)
    assert shape.size == pytest.approx(124_439_808, rel=0.01)


def test_a_picture_models_text_part_counts():
    assert of_config({"model_type": "llava", "text_config": LLAMA_2_7B}).layers == 32
    gemma = {"model_type": "gemma3", "text_config": LLAMA_2_7B | {"model_type": "gemma3_text", "sliding_window": 512}}
    assert of_config(gemma).windowed_layers == 27


def test_all_heads_of_falcon_and_starcoder_ask_the_same_keys():
    falcon = {"model_type": "falcon", "hidden_size": 4544, "num_hidden_layers": 32, "num_attention_heads": 71}
    shape = of_config(falcon | {"vocab_size": 65024, "multi_query": True})

    assert (shape.kv_heads, shape.tied) == (1, True)
    assert shape.size == pytest.approx(6.92e9, rel=0.001)


@pytest.mark.parametrize(
    ("text", "parameters"), [("7B", 7e9), ("7b", 7e9), ("1.5 B", 1.5e9), ("350M", 350e6), ("1T", 1e12)]
)
def test_a_size_is_enough(text, parameters):
    assert of(text).size == parameters


@given(st.integers(10**6, 10**12))
def test_a_typical_shape_has_about_as_many_parameters_in_its_layers(parameters):
    shape = typical(parameters)

    assert shape.heads % shape.kv_heads == 0
    if parameters > 10**9:
        assert shape.count() == pytest.approx(parameters, rel=0.1)


def safetensors(file, tensors) -> None:
    text = json.dumps(
        {"__metadata__": {"format": "pt"}}
        | {name: {"dtype": "BF16", "shape": shape, "data_offsets": [0, 0]} for name, shape in tensors.items()}
    ).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text)


TENSORS = {
    "model.embed_tokens.weight": [1000, 256],
    "lm_head.weight": [1000, 256],
    "model.norm.weight": [256],
    **{
        f"model.layers.{i}.self_attn.{n}_proj.weight": [rows, 256]
        for i in (0, 1)
        for n, rows in (("q", 256), ("k", 128), ("v", 128), ("o", 256))
    },
    **{f"model.layers.{i}.mlp.{n}_proj.weight": [688, 256] for i in (0, 1) for n in ("gate", "up")},
    **{f"model.layers.{i}.mlp.down_proj.weight": [256, 688] for i in (0, 1)},
    **{f"model.layers.{i}.{n}_layernorm.weight": [256] for i in (0, 1) for n in ("input", "post_attention")},
}


def test_weights_tell_their_shape_without_being_read(tmp_path):
    safetensors(tmp_path / "model.safetensors", TENSORS)

    shape = of(str(tmp_path / "model.safetensors"))

    assert (shape.layers, shape.hidden, shape.intermediate, shape.vocabulary) == (2, 256, 688, 1000)
    assert (shape.heads, shape.kv_heads, shape.head_dim) == (2, 1, 128)
    assert shape.size == shape.count()


TINY = {
    "model_type": "llama",
    "hidden_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 688,
    "vocab_size": 1000,
}


def test_a_folder_of_pieces_counts_as_one_with_its_configuration(tmp_path):
    names = list(TENSORS)
    for i, part in enumerate((names[:8], names[8:])):
        safetensors(tmp_path / f"model-0000{i}-of-00002.safetensors", {n: TENSORS[n] for n in part})
    (tmp_path / "config.json").write_text(json.dumps(TINY))

    assert of(str(tmp_path)).heads == 4
    assert of(str(tmp_path)).parameters == Shape(2, 256, 4, 2, 64, 688, 1000).count()


def test_weights_that_are_there_twice_or_in_part_are_not_counted_so(tmp_path):
    names = list(TENSORS)
    weight_map = {}
    for i, part in enumerate((names[:8], names[8:]), 1):
        piece = f"model-0000{i}-of-00002.safetensors"
        safetensors(tmp_path / piece, {n: TENSORS[n] for n in part})
        weight_map |= dict.fromkeys(part, piece)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    once = of(str(tmp_path)).size
    again = {f"again.{n}": shape for n, shape in TENSORS.items()}
    safetensors(tmp_path / "consolidated.safetensors", again | {"more": [5]})

    assert of(str(tmp_path)).size == once == Shape(2, 256, 4, 2, 64, 688, 1000).count()
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    assert of(str(tmp_path)).size == once


@pytest.mark.parametrize("tensors", [{"norm.weight": ["a"]}, {"norm.weight": [-1]}, {"norm.weight": [1]}])
def test_weights_that_are_no_language_models_are_refused_in_words(tmp_path, tensors):
    embedding = {"embed_tokens.weight": [9, 9], "q_proj.weight": [9, 9], "k_proj.weight": [9, 9]}
    safetensors(tmp_path / "odd.safetensors", {**embedding, "up_proj.weight": [9, 9], **tensors})

    with pytest.raises(ShapeError):
        of(str(tmp_path / "odd.safetensors"))


def text(words: str) -> bytes:
    return struct.pack("<Q", len(words)) + words.encode()


def a_gguf(tensors, *, data_bytes: int, **values) -> bytes:
    """A file as llama.cpp writes it: strings, numbers, lists of words; no weights but so many bytes."""
    body = b""
    for key, value in values.items():
        body += text(key.replace("__", "."))
        if isinstance(value, str):
            body += struct.pack("<I", 8) + text(value)
        elif isinstance(value, int):
            body += struct.pack("<II", 4, value)
        elif isinstance(value[0], str):
            body += struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(text, value))
        else:
            body += struct.pack(f"<IIQ{len(value)}i", 9, 5, len(value), *value)
    for name, dims in tensors.items():
        body += text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, 12, 0)
    return b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(values)) + body + bytes(data_bytes)


BLOCKS = {
    "token_embd.weight": [256, 1000],
    "output.weight": [256, 1000],
    "output_norm.weight": [256],
    **{
        f"blk.{i}.attn_{n}.weight": [256, columns]
        for i in (0, 1)
        for n, columns in (("q", 256), ("k", 128), ("v", 128), ("output", 256))
    },
    **{f"blk.{i}.ffn_{n}.weight": [256, 688] for i in (0, 1) for n in ("gate", "up", "down")},
    **{f"blk.{i}.{n}_norm.weight": [256] for i in (0, 1) for n in ("attn", "ffn")},
}
LLAMA = {
    "general__architecture": "llama",
    "llama__block_count": 2,
    "llama__embedding_length": 256,
    "llama__feed_forward_length": [688, 688],
    "llama__attention__head_count": 4,
    "llama__attention__head_count_kv": [2, 2],
    "tokenizer__ggml__tokens": [f"word {i}" for i in range(1000)],
}
COUNT = Shape(2, 256, 4, 2, 64, 688, 1000).count()


def test_a_gguf_file_tells_shape_and_size_of_its_weights(tmp_path):
    file = tmp_path / "tiny-Q4_0.gguf"
    file.write_bytes(a_gguf(BLOCKS, data_bytes=COUNT * 9 // 16, **LLAMA))

    shape = of(str(file))

    assert (shape.layers, shape.hidden, shape.heads, shape.kv_heads, shape.head_dim) == (2, 256, 4, 2, 64)
    assert (shape.intermediate, shape.vocabulary, shape.gated, shape.tied) == (688, 1000, True, False)
    assert shape.size == shape.count() == COUNT
    assert (shape.stored, shape.stored_bytes) == ("q4_k_m", COUNT * 9 // 16)
    assert of(str(tmp_path)) == shape
    file.write_bytes(a_gguf(BLOCKS, data_bytes=COUNT * 9 // 16, **LLAMA, general__file_type=18))
    assert of(str(file)).stored == "q6_k"


def test_a_gguf_file_without_layers_says_what_it_lacks(tmp_path):
    file = tmp_path / "odd.gguf"
    values = {name: value for name, value in LLAMA.items() if "block_count" not in name}
    file.write_bytes(a_gguf(BLOCKS, data_bytes=COUNT, **values))

    with pytest.raises(ShapeError, match="lacks the num_hidden_layers of a language model"):
        of(str(file))


def test_a_gguf_file_with_a_list_without_end_is_refused(tmp_path):
    file = tmp_path / "odd.gguf"
    endless = text("tokenizer.ggml.scores") + struct.pack("<IIQ", 9, 6, 1 << 63)
    file.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + endless)

    with pytest.raises(ShapeError, match="a list has 9223372036854775808 values"):
        of(str(file))


def test_a_gguf_model_in_pieces_counts_as_one(tmp_path):
    names = list(BLOCKS)
    for i, part, values in ((1, names[:8], LLAMA), (2, names[8:], {"split__no": 1})):
        content = a_gguf({n: BLOCKS[n] for n in part}, data_bytes=COUNT, **values)
        (tmp_path / f"tiny[1]-0000{i}-of-00002.gguf").write_bytes(content)

    shape = of(str(tmp_path / "tiny[1]-00002-of-00002.gguf"))

    assert (shape.size, shape.stored_bytes, shape.stored) == (COUNT, 2 * COUNT, "bf16")
    (tmp_path / "tiny[1]-00002-of-00002.gguf").unlink()
    with pytest.raises(ShapeError, match="00002-of-00002"):
        of(str(tmp_path / "tiny[1]-00001-of-00002.gguf"))


@given(st.integers(0, 400), st.binary(max_size=40))
def test_a_gguf_file_that_is_cut_off_or_damaged_is_refused_in_words(tmp_path_factory, kept, more):
    file = tmp_path_factory.mktemp("odd") / "odd.gguf"
    file.write_bytes(a_gguf(BLOCKS, data_bytes=0, **LLAMA)[:kept] + more)

    with pytest.raises(ShapeError):
        of(str(file))


def test_what_is_no_model_is_said_in_one_line(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "llama", "hidden_size": 256}')
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/config.json").write_text("{")
    (tmp_path / "empty").mkdir()
    for text, words in (
        ("big", "is neither a size like 7B"),
        ("0B", "is neither a size like 7B"),
        ("1.2.3B", "is neither a size like 7B"),
        ("9" * 400 + "B", "cannot read|is neither a size like 7B"),
        ("~nobody-of-this-name/model", "cannot read"),
        ("x" * 300, "cannot read|is neither a size like 7B"),
        (str(tmp_path), "has no num_hidden_layers"),
        (str(tmp_path / "broken"), "cannot read"),
        (str(tmp_path / "empty"), "holds neither"),
    ):
        with pytest.raises(ShapeError, match=words):
            of(text)


@given(st.binary(max_size=200))
def test_no_file_however_odd_breaks_the_reader(tmp_path_factory, data):
    file = tmp_path_factory.mktemp("odd") / "model.safetensors"
    file.write_bytes(data)

    with pytest.raises((ValueError, struct.error)):
        header(file)


DEEPSEEK = {"model_type": "deepseek_v3", "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64}
#: the config.json of deepseek-ai/DeepSeek-V2-Lite and DeepSeek-V3, and what their model cards say they have
LATENT = [
    (
        {
            "hidden_size": 2048,
            "num_hidden_layers": 27,
            "num_attention_heads": 16,
            "num_key_value_heads": 16,
            "intermediate_size": 10944,
            "moe_intermediate_size": 1408,
            "n_routed_experts": 64,
            "n_shared_experts": 2,
            "num_experts_per_tok": 6,
            "first_k_dense_replace": 1,
            "vocab_size": 102400,
            "q_lora_rank": None,
        },
        15.7e9,
    ),
    (
        {
            "hidden_size": 7168,
            "num_hidden_layers": 61,
            "num_attention_heads": 128,
            "num_key_value_heads": 128,
            "intermediate_size": 18432,
            "moe_intermediate_size": 2048,
            "n_routed_experts": 256,
            "n_shared_experts": 1,
            "num_experts_per_tok": 8,
            "first_k_dense_replace": 3,
            "vocab_size": 129280,
            "q_lora_rank": 1536,
        },
        671e9,
    ),
]


@pytest.mark.parametrize(("document", "parameters"), LATENT)
def test_a_model_of_latents_has_the_parameters_that_its_makers_publish(document, parameters):
    shape = of_config(DEEPSEEK | document | {"v_head_dim": 128})

    assert shape.count() == pytest.approx(parameters, rel=0.002)
    # transformers keeps keys of 192 and values of 128 numbers for each head
    assert 2 * shape.kv_width == document["num_attention_heads"] * (192 + 128)
