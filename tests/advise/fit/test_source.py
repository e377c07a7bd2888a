"""The model that a user names is told apart, and what no rule describes is refused by what was not understood."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from wslgpud.advise.fit.quantization import ShapeError
from wslgpud.advise.fit.source import source_of

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


def test_a_model_that_no_rule_describes_can_still_be_traced_and_says_the_size_of_its_files(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "dbrx", "d_model": 64, "attn_config": {"a": 1}}))
    head = json.dumps({"x": {"dtype": "F32", "shape": [4, 4], "data_offsets": [0, 64]}}).encode()
    (tmp_path / "model.safetensors").write_bytes(len(head).to_bytes(8, "little") + head + bytes(64))
    source = source_of(str(tmp_path))

    assert source.shape is None
    assert source.unknown is not None
    assert str(source.unknown) == "config.json: no rule here understands its attn_config"
    assert source.unknown.weights_bytes == 8 + len(head) + 64
    assert config_of(source.asked)["model_type"] == "dbrx"


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


def test_what_is_neither_is_said_in_one_line() -> None:
    with pytest.raises(ShapeError, match="neither a size like 7B nor"):
        source_of("no-such-model")
