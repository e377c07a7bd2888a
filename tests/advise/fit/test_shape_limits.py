"""Where sizes, formats and headers end: the last that is read, and the first that is not."""

from __future__ import annotations

import json
import math
import os
import re
import struct
from pathlib import Path
from typing import Any

import pytest

from tests.advise.fit.test_shape import BLOCKS, COUNT, LLAMA, TENSORS, TINY, a_gguf, safetensors, text
from wslgpud.advise.fit import gguf, model_files
from wslgpud.advise.fit.model_files import header, of
from wslgpud.advise.fit.quantization import ShapeError
from wslgpud.advise.fit.shape import of_config, of_tensors, typical

MIB = 1 << 20


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

    assert (found.layers, found.hidden, found.heads, found.kv_heads, found.head_dim) == sizes[:5]
    assert (found.intermediate, found.vocabulary) == sizes[5:]
    assert (found.gated, found.tied, found.experts) == (True, False, 1)


@pytest.mark.parametrize(
    ("words", "parameters"), [("3K", 3000), ("0.5k", 500), (".5M", 500_000), ("2.B", 2 * 10**9), ("1T", 10**12)]
)
def test_a_size_has_a_point_and_a_letter(words, parameters):
    assert of(words).parameters == parameters


def test_every_part_of_a_mixture_is_counted():
    attention, router, block = 2 * 64 * (64 + 32), 64 * 4, 3 * 64 * (96 * 4 + 32)
    config = {
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

    assert dense.count() == 5 * (attention + 2 * 64 + 3 * 64 * 256) + 2 * 100 * 64 + 64
    assert mixture.count() == 5 * (attention + 2 * 64) + 3 * (block + router) + 2 * 3 * 64 * 256 + 2 * 100 * 64 + 64
    assert (dense.active_width, mixture.active_width) == (256, 2 * 96 + 32)
    assert (dense.head_dim, dense.active_experts, dense.dense_layers, dense.dense_width) == (16, 1, 0, 0)
    assert of_config(config | {"num_experts": 1, "moe_intermediate_size": 96}).intermediate == 256
    pair = of_config(config | {"num_experts": 2, "n_shared_experts": 3, "first_k_dense_replace": 9})
    assert (pair.shared, pair.dense_layers, pair.dense_width) == (3 * 256, 5, 256)
    assert pair.count() == 5 * (attention + 2 * 64 + 3 * 64 * 256) + 2 * 100 * 64 + 64
    mixture_of_two = of_config(config | {"num_experts": 2})
    assert mixture_of_two.count() - dense.count() == 5 * (3 * 64 * 256 + 64 * 2)


def test_a_block_without_a_width_is_four_times_as_wide_as_the_model():
    narrow = {name: value for name, value in TINY.items() if name != "intermediate_size"}

    assert of_config(narrow).intermediate == 4 * 256


@pytest.mark.parametrize(
    ("more", "window", "windowed", "linear"),
    [
        ({}, 0, 0, 0),
        ({"sliding_window": 8}, 8, 12, 0),
        ({"sliding_window": 8, "sliding_window_pattern": 4}, 8, 9, 0),
        ({"sliding_window": 8, "model_type": "gemma2"}, 8, 6, 0),
        ({"sliding_window": 8, "model_type": "gemma3_text"}, 8, 10, 0),
        ({"sliding_window": 8, "model_type": "gemma3"}, 8, 10, 0),
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

    assert (found.window, found.windowed_layers, found.linear_layers) == (window, windowed, linear)


LATENT = {"kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 20}


@pytest.mark.parametrize(("rank", "query"), [(0, 256 * 4 * 24), (48, 48 * (256 + 4 * 24))])
def test_latent_attention_has_the_matrices_of_its_paper(rank, query):
    """arXiv:2405.04434, 2.1: keys and values come from one latent, queries may."""
    found = of_config(TINY | LATENT | {"q_lora_rank": rank})

    assert found.attention_parameters == query + 256 * (32 + 8) + 32 * 4 * (16 + 20) + 4 * 20 * 256
    assert (found.latent, found.head_dim) == (40, (16 + 8 + 20) // 2)


@pytest.mark.parametrize(
    ("bits", "stored"),
    [
        (4.9, "q4_k_m"),
        (4.91, "q5_k_m"),
        (5.8, "q5_k_m"),
        (5.81, "q6_k"),
        (6.7, "q6_k"),
        (6.71, "q8_0"),
        (9.0, "q8_0"),
        (9.01, "bf16"),
        (20.0, "bf16"),
        (20.01, "fp32"),
    ],
)
def test_a_gguf_file_of_another_kind_has_the_name_of_the_next_bigger_one(tmp_path, bits, stored):
    file = tmp_path / "tiny.gguf"
    file.write_bytes(a_gguf(BLOCKS, data_bytes=math.floor(COUNT * bits / 8), **LLAMA, general__file_type=99))

    assert of(str(file)).stored == stored


@pytest.mark.parametrize(
    ("number", "stored"),
    [(0, "fp32"), (1, "fp16"), (7, "q8_0"), (15, "q4_k_m"), (17, "q5_k_m"), (18, "q6_k"), (32, "bf16")],
)
def test_the_number_of_a_gguf_files_type_is_llama_cpps(tmp_path, number, stored):
    file = tmp_path / "tiny.gguf"
    size = 1 if stored == "fp32" else 4 * COUNT  # of which no name would be derived
    file.write_bytes(a_gguf(BLOCKS, data_bytes=size, **LLAMA, general__file_type=number))

    assert of(str(file)).stored == stored


@pytest.mark.parametrize(("names", "words"), [(("a", "b"), "holds 2 .gguf files: name one"), ((), "holds neither")])
def test_a_folder_with_several_gguf_files_wants_one_named(tmp_path, names, words):
    for name in names:
        (tmp_path / f"{name}.gguf").write_bytes(b"")

    with pytest.raises(ShapeError, match=words):
        of(str(tmp_path))


def test_packed_weights_are_not_taken_for_the_number_of_parameters(tmp_path):
    safetensors(tmp_path / "model.safetensors", {"model.layers.0.q_proj.qweight": [4, 4]})
    packed = TINY | {"quantization_config": {"quant_method": "gptq", "bits": 4}}
    for config, parameters in ((TINY, 16), (packed, 0)):
        (tmp_path / "config.json").write_text(json.dumps(config))
        assert of(str(tmp_path)).parameters == parameters


def test_one_file_of_several_tells_the_configuration_and_not_the_number_of_parameters(tmp_path):
    safetensors(tmp_path / "a.safetensors", TENSORS)
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    assert of(str(tmp_path / "a.safetensors")).parameters == COUNT

    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"x": "a.safetensors"}}))
    assert of(str(tmp_path / "a.safetensors")).parameters == 0
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": []}))
    with pytest.raises(ShapeError, match="names no files"):
        of(str(tmp_path))


@pytest.mark.parametrize(("rows", "head_dim", "kv_heads"), [(192, 64, 3), (256, 128, 2)])
def test_heads_follow_from_the_rows_of_queries_and_keys(rows, head_dim, kv_heads):
    wide = {name.replace("model.", ""): {"shape": dims} for name, dims in TENSORS.items()}
    for name in wide:
        if "q_proj" in name:
            wide[name] = {"shape": [512, 256]}
        if "k_proj" in name:
            wide[name] = {"shape": [rows, 256]}
    found = of_tensors({name: dims for name, dims in wide.items() if "lm_head" not in name and "gate" not in name})

    assert (found.head_dim, found.heads, found.kv_heads, found.hidden) == (head_dim, 512 // head_dim, kv_heads, 256)
    assert (found.intermediate, found.vocabulary, found.layers, found.gated, found.tied) == (688, 1000, 2, False, True)
    with pytest.raises(ShapeError, match=re.escape("it has no tensor …q_proj.weight")):
        of_tensors({name: dims for name, dims in wide.items() if "q_proj" not in name})
    with pytest.raises(ShapeError, match="it has no tensor of a layer"):
        of_tensors({"embed_tokens.weight": {"shape": [9, 9]}})
    with pytest.raises(ShapeError, match=re.escape("it has no tensor …q_proj.weight")):
        of_tensors(wide | {"layers.0.self_attn.q_proj.weight": {"shape": [1]}})


def test_the_header_of_a_safetensors_file_is_read_up_to_its_limit(tmp_path, monkeypatch):
    file = tmp_path / "a.safetensors"
    file.write_bytes(struct.pack("<Q", 2) + b"{}more")
    monkeypatch.setattr(model_files, "MAX_HEADER_BYTES", 2)
    assert header(file) == {}
    for length in (0, 3):
        file.write_bytes(struct.pack("<Q", length) + b"{} ")
        with pytest.raises(ValueError, match="is no safetensors file"):
            header(file)


@pytest.mark.parametrize(
    ("name", "head", "words"),
    [("config.json", b"{}", "larger than"), ("a.safetensors", struct.pack("<Q", 100 * MIB + 1), "is no safetensors")],
)
def test_a_header_of_more_than_100_mib_is_not_read(tmp_path, name, head, words):
    (tmp_path / name).write_bytes(head)
    os.truncate(tmp_path / name, 100 * MIB + 100)

    with pytest.raises(ShapeError, match=words):
        of(str(tmp_path / name))


def test_numbers_of_a_configuration_are_whole_and_above_0():
    for value in (0, -1, True, 2.0, "2", None):
        with pytest.raises(ShapeError, match=re.escape("config.json has no num_hidden_layers")):
            of_config(TINY | {"num_hidden_layers": value})
    assert of_config(TINY | {"num_hidden_layers": 1}).layers == 1


def values(file: Path, *content: bytes, version: int = 3, tensors: int = 0) -> gguf.Header:
    """Return the header of a file with these values."""
    file.write_bytes(b"GGUF" + struct.pack("<IQQ", version, tensors, len(content) - tensors) + b"".join(content))
    return gguf.header(file)


def value(kind: int, form: str, *given: Any) -> bytes:
    return text(f"of {kind}") + struct.pack(f"<I{form}", kind, *given)


def test_a_value_of_each_type_is_read(tmp_path):
    """By the numbers of the format's specification."""
    given = {0: ("B", 255), 1: ("b", -1), 2: ("H", 65535), 3: ("h", -1), 4: ("I", 1 << 31), 5: ("i", -1), 6: ("f", 0.5)}
    given |= {7: ("?", True), 10: ("Q", 1 << 63), 11: ("q", -1), 12: ("d", 0.1)}
    found = values(tmp_path / "a.gguf", *(value(kind, form, each) for kind, (form, each) in given.items()))

    assert found.values == {f"of {kind}": each for kind, (_, each) in given.items()}
    with pytest.raises(ValueError, match="the unknown type 13"):
        values(tmp_path / "a.gguf", value(13, "I", 1))


@pytest.mark.parametrize(("version", "known"), [(1, False), (2, True), (3, True), (4, False)])
def test_versions_2_and_3_of_the_format_are_known(tmp_path, version, known):
    if known:
        assert values(tmp_path / "a.gguf", version=version) == ({}, {}, 0)
    else:
        with pytest.raises(ValueError, match="is no GGUF file of version 2 or 3"):
            values(tmp_path / "a.gguf", version=version)


def a_list(count: int) -> bytes:
    return value(9, "IQ", 0, count)


def test_a_long_list_of_numbers_is_passed_over(tmp_path):
    last = value(4, "I", 5)
    kept = values(tmp_path / "a.gguf", a_list(1 << 16) + bytes(1 << 16), last)
    passed = values(tmp_path / "a.gguf", a_list((1 << 16) + 1) + bytes((1 << 16) + 1), last)

    assert (len(kept.values["of 9"]), kept.values["of 4"]) == (1 << 16, 5)
    assert passed.values == {"of 4": 5}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        # The list's or word's length is plausible still, the file is not.
        (a_list(1 << 32), "its header is longer than 64 MiB"),
        (a_list((1 << 32) + 1), "a list has 4294967297 values"),
        (struct.pack("<Q", 16 * MIB), "the file ends in its header"),
        (struct.pack("<Q", 16 * MIB + 1), "a text is 16 MiB long"),
        (text("a tensor") + struct.pack("<I", 8), "the file ends in its header"),
        (text("a tensor") + struct.pack("<I", 9), "a tensor has 9 dimensions"),
    ],
)
def test_the_first_implausible_length_is_named(tmp_path, content, words):
    tensor = b"tensor" in content
    with pytest.raises(ValueError, match=words):
        values(tmp_path / "a.gguf", content, *[] if tensor else [value(4, "I", 5)], tensors=int(tensor))


def test_a_header_ends_within_64_mib(tmp_path):
    """The last value begins there, or a byte further."""
    file = tmp_path / "a.gguf"
    before = 4 + 4 + 8 + 8 + len(a_list(0))
    for beyond in (0, 1):
        count = 64 * MIB - before - len(text("of 4")) - 4 + beyond
        last = value(4, "I", 5)
        file.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 2) + a_list(count))
        with file.open("r+b") as stream:
            stream.seek(before + count)
            stream.write(last)
        if beyond:
            with pytest.raises(ValueError, match="its header is longer than 64 MiB"):
                gguf.header(file)
        else:
            assert gguf.header(file).values == {"of 4": 5}
