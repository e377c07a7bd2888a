"""The model that a user names is told apart, and what no rule describes is refused by what was not understood."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from wslgpud.advise.fit.source import NamedModel, ShapeError, source_of

LLAMA = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 100}


def config_of(asked: str) -> Any:
    return json.loads(asked.removeprefix("config:"))


def test_a_size_is_a_typical_llama_of_that_size() -> None:
    source = source_of("7B")

    assert (source.kind, source.name) == ("language", "7B")
    sizes = {"model_type": "llama", "hidden_size": 4224, "num_hidden_layers": 33}
    assert config_of(source.asked).items() >= sizes.items()


def test_a_folder_is_its_configuration(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    for named in (tmp_path, tmp_path / "config.json"):
        source = source_of(str(named))
        assert config_of(source.asked) == LLAMA
        assert source.shape is not None
        assert source.shape.hidden == 64


def test_a_model_no_rule_describes_still_tells_its_file_size(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "dbrx", "d_model": 64, "attn_config": {"a": 1}}))
    (tmp_path / "model.safetensors").write_bytes(bytes(64))
    source = source_of(str(tmp_path))

    assert source.shape is None
    assert str(source.unknown) == "config.json: no rule here understands its attn_config"
    assert source.weights_bytes == 64
    assert config_of(source.asked)["model_type"] == "dbrx"


@pytest.mark.parametrize(
    ("words", "parameters"),
    [("7b", 7e9), ("1.5 B", 1.5e9), ("350M", 350e6), ("3K", 3000), (".5M", 500_000), ("2.B", 2e9), ("1T", 1e12)],
)
def test_a_size_has_a_point_and_a_letter(words: str, parameters: float) -> None:
    source = source_of(words)

    assert source.shape is not None
    assert source.shape.parameters == parameters


def test_a_gguf_file_is_as_large_as_all_its_pieces(tmp_path: Path) -> None:
    for number in (1, 2):
        (tmp_path / f"tiny-0000{number}-of-00002.gguf").write_bytes(bytes(100))
    source = source_of(str(tmp_path / "tiny-00002-of-00002.gguf"))

    assert (source.kind, source.weights_bytes) == ("gguf", 200)
    assert source.asked == str(tmp_path / "tiny-00001-of-00002.gguf")
    with pytest.raises(ShapeError, match=r"holds 2 \.gguf files: name one"):
        source_of(str(tmp_path))
    (tmp_path / "tiny-00001-of-00002.gguf").unlink()
    with pytest.raises(ShapeError, match="00001-of-00002"):
        source_of(str(tmp_path / "tiny-00002-of-00002.gguf"))
    (tmp_path / "tiny-00002-of-00002.gguf").rename(tmp_path / "whole.gguf")
    assert source_of(str(tmp_path)).weights_bytes == 100


def stored(quantization: object) -> str:
    return NamedModel("", "language", "", quantization=quantization).stored


@pytest.mark.parametrize(
    ("quantization", "precision"),
    [
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, "gptq"),
        ({"quant_method": "gptq", "bits": 8}, "gptq8"),
        ({"quant_method": "awq", "bits": 4}, "awq"),
        ({"quant_method": "AWQ"}, "awq"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "int4"),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "int8"),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8"),
        # as in openai/gpt-oss-20b
        ({"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]}, "mxfp4"),
        (None, ""),
    ],
)
def test_how_weights_are_stored_is_in_the_configuration(quantization: object, precision: str) -> None:
    assert stored(quantization) == precision


@pytest.mark.parametrize(
    ("quantization", "named"),
    [
        ({"quant_method": "aqlm", "bits": 2}, "aqlm, 2 bits"),
        ({"quant_method": "AQLM"}, "aqlm"),
        ({"quant_method": "gptq", "bits": 3}, "gptq, 3 bits"),
        ({"quant_method": "gptq", "bits": [4]}, "gptq, [4] bits"),
        ({}, "?"),
    ],
)
def test_a_quantization_nobody_knows_is_named(quantization: object, named: str) -> None:
    with pytest.raises(ShapeError, match=re.escape(f"({named}): give --precision")):
        stored(quantization)


def test_the_quantization_of_the_text_part_counts(tmp_path: Path) -> None:
    gptq = {"quantization_config": {"quant_method": "gptq", "bits": 4}}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llava", "text_config": LLAMA | gptq}))

    assert source_of(str(tmp_path)).stored == "gptq"


def test_models_by_name_and_functions_of_ones_own_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")

    name = "timm:vit_base_patch16_224"
    assert source_of(name)[:3] == (name, "named", name)
    own = source_of(f"{tmp_path}/train.py:make_model")
    assert (own.kind, own.asked) == ("own", f"{tmp_path}/train.py:make_model")
    with pytest.raises(ShapeError, match="there is no file"):
        source_of(f"{tmp_path}/gone.py:make_model")


def test_pipelines_are_known_by_name_or_by_their_folder(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    index = {"_class_name": "StableDiffusionPipeline", "vae": ["diffusers", "AutoencoderKL"], "../x": ["a", "b"]}
    index |= {"unet": ["diffusers", "UNet2DConditionModel"], "tokenizer": ["transformers", "CLIPTokenizer"]}
    for part in ("vae", "unet"):
        (folder / part).mkdir(parents=True)
        (folder / part / "config.json").write_text('{"in_channels": 4}')
    (folder / "model_index.json").write_text(json.dumps(index))
    models = json.loads(source_of(str(folder)).asked.removeprefix("pipeline:"))

    assert models == {
        "vae": {"in_channels": 4, "_class_name": "AutoencoderKL"},
        "unet": {"in_channels": 4, "_class_name": "UNet2DConditionModel"},
    }
    assert set(json.loads(source_of("SDXL").asked.removeprefix("pipeline:"))) >= {"unet", "vae", "text_encoder_2"}
    (folder / "model_index.json").write_text(json.dumps({"vae": ["diffusers", "AutoencoderKL"]}))
    with pytest.raises(ShapeError, match="no pipeline with a denoiser"):
        source_of(str(folder))


def test_what_is_no_model_is_said_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama", "hidden_size": 256}')
    for name in ("broken", "empty"):
        (tmp_path / name).mkdir()
    (tmp_path / "broken/config.json").write_text("{")
    for text, words in (
        ("big", "is neither a size like 7B"),
        ("0B", "is neither a size like 7B"),
        ("1.2.3B", "is neither a size like 7B"),
        ("9" * 400 + "B", "cannot read|is neither a size like 7B"),
        ("~nobody-of-this-name/model", "cannot read"),
        ("x" * 300, "cannot read|is neither a size like 7B"),
        (str(tmp_path), "has no num_hidden_layers"),
        (str(tmp_path / "broken"), "cannot read"),
        (str(tmp_path / "empty"), "there is no config.json in"),
    ):
        with pytest.raises(ShapeError, match=words) as refused:
            source_of(text)
        assert len(str(refused.value).splitlines()) == 1
