"""The tracer runs models on shapes alone in a torch without CUDA: what a storage is for, and what it refuses."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from wslgpud.advise.fit.asking import IdleCard, ask, job_of
from wslgpud.advise.fit.plan import Estimate, NoEstimate, Plan
from wslgpud.advise.fit.source import NamedModel, source_of
from wslgpud.stress.find_python import Python

pytest.importorskip("torch")
TRAINING = Plan("training", "bf16", 2, 128)
LLAMA = {
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "vocab_size": 4096,
    "tie_word_embeddings": True,
}
BERT = {"model_type": "bert", "hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
T5 = {"model_type": "t5", "d_model": 128, "d_ff": 256, "num_layers": 2, "num_heads": 2, "d_kv": 64}
VIT = {"model_type": "vit", "hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 32}
TRAIN = """
import torch
from torch import nn

print("9" * 10, flush=True)

def make(batch):
    assert torch.linspace(0, 0.1, 3).tolist()[-1] > 0  # values that decide a model's form
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 30 * 30, 10))
    return model, torch.randn(batch, 3, 32, 32)

def counts():
    class Counts(nn.Linear):
        def forward(self, x):
            return x[: int((x > 0).sum())]
    return Counts(4, 4), torch.randn(2, 4)

def fails():
    raise OSError("no data here")

def nothing():
    return 7

def plain():
    return nn.Linear(16, 16)

def attends():
    return nn.TransformerEncoderLayer(16, 2, 32), torch.randn(5, 2, 16)
"""


def traced(source: NamedModel, plan: Plan = TRAINING) -> Estimate:
    return ask(Python(Path(sys.executable), None), IdleCard(), None, source, plan)


def language(config: dict[str, Any], plan: Plan = TRAINING) -> Estimate:
    pytest.importorskip("transformers")
    return traced(NamedModel("model", "language", f"config:{json.dumps(config)}"), plan)


@pytest.fixture
def train(tmp_path: Path) -> Path:
    file = tmp_path / "train.py"
    file.write_text(TRAIN)
    return file


def test_a_training_holds_weights_gradients_and_two_moments() -> None:
    found = language(LLAMA)
    parts = found.parts
    # Queries to output, a gate and two more matrices, two norms in each layer; tied embeddings and the last norm
    count = 4 * (4 * 256**2 + 3 * 256 * 512 + 2 * 256) + 4096 * 256 + 256

    assert found.parameters == count
    assert parts["weights"] == pytest.approx(2 * count, rel=0.01)
    assert parts["optimizer"] >= 2 * parts["weights"]
    assert found.spread_bytes


def test_checkpointing_and_a_smaller_batch_take_less() -> None:
    whole = language(LLAMA, replace(TRAINING, batch=16)).total_bytes

    assert language(LLAMA, replace(TRAINING, batch=16, checkpointing=True)).total_bytes < whole
    assert language(LLAMA, TRAINING).total_bytes < whole


def test_answers_grow_a_cache_and_keep_no_gradients() -> None:
    parts = language(LLAMA, replace(TRAINING, mode="inference", context=512)).parts

    assert "gradients" not in parts
    assert "optimizer" not in parts


@pytest.mark.parametrize("config", [BERT, T5, VIT], ids=lambda config: config["model_type"])
def test_encoders_and_vision_models_are_built_by_own_classes(config: dict[str, Any]) -> None:
    found = language(config)

    assert found.parts["gradients"] > 0
    # One of pictures begins with a convolution, of which only the card knows the workspace.
    assert (found.max_bytes is None) == (config is VIT)


def test_adapters_leave_packed_weights_as_small_as_they_are() -> None:
    pytest.importorskip("peft")
    plain, packed = (language(LLAMA, replace(TRAINING, mode="lora", precision=p)) for p in ("bf16", "int4"))

    assert packed.parameters == plain.parameters
    assert packed.parts["weights"] < plain.parts["weights"]
    assert plain.parts["optimizer"] < plain.parts["weights"] / 10


def test_a_model_of_ones_own_is_traced_whatever_its_file_prints(train: Path) -> None:
    found = traced(source_of(f"{train}:make"), replace(TRAINING, precision="fp32"))

    assert found.parameters == 3 * 8 * 9 + 8 + 8 * 30 * 30 * 10 + 10
    assert found.max_bytes is None
    given = traced(source_of(f"{train}:plain"), replace(TRAINING, precision="fp32", input=(16,)))
    assert given.parameters == 16 * 17


def test_torchs_own_attention_drops_no_scores_as_on_a_card(train: Path) -> None:
    found = traced(source_of(f"{train}:attends"), replace(TRAINING, precision="fp32"))

    assert found.parts["gradients"] > 0


@pytest.mark.parametrize(
    ("function", "why"),
    [
        ("counts", "measure it with 'wslgpud sweep'"),
        ("fails", "OSError: no data here"),
        ("nothing", "returned a int, no torch.nn.Module"),
        ("gone", "has no function gone"),
        ("plain", "needs --input"),
    ],
)
def test_what_cannot_be_traced_says_why(function: str, why: str, train: Path) -> None:
    with pytest.raises(NoEstimate, match=why):
        traced(source_of(f"{train}:{function}"))


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"model_type": "nobody-knows"}, "does not know the model_type nobody-knows"),
        (LLAMA | {"max_position_embeddings": 64}, "64 positions, fewer than a context of 128"),
        (LLAMA | {"num_attention_heads": "many"}, "could not be traced"),
    ],
)
def test_a_configuration_that_transformers_cannot_build_says_why(config: dict[str, Any], why: str) -> None:
    with pytest.raises(NoEstimate, match=why):
        language(config)


def small_pipeline() -> NamedModel:
    """Return Stable Diffusion 1.5 with a few narrow layers."""
    models = json.loads(source_of("sd15").asked.removeprefix("pipeline:"))
    narrow = {"block_out_channels": [32, 32, 64, 64], "cross_attention_dim": 64, "attention_head_dim": 8}
    narrow |= {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 64}
    small = {part: config | {k: v for k, v in narrow.items() if k in config} for part, config in models.items()}
    return NamedModel("sd15", "pipeline", f"pipeline:{json.dumps(small)}")


def test_a_pipeline_draws_and_its_denoiser_is_trained() -> None:
    pytest.importorskip("diffusers")
    drawn = Plan(batch=2, input=(3, 256, 256))
    whole = traced(small_pipeline(), drawn).parts
    apart = traced(small_pipeline(), replace(drawn, offload=True)).parts
    trained = traced(small_pipeline(), replace(drawn, mode="training", precision="fp32")).parts

    assert apart["weights"] < whole["weights"]
    assert "optimizer" not in whole
    assert trained["optimizer"] > 0


@pytest.mark.parametrize("checkpointing", [True, False])
def test_a_denoiser_is_trained_with_checkpoints_if_asked(checkpointing: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("diffusers")
    torch = pytest.importorskip("torch")
    from wslgpud.advise.fit.tracer import steps

    source = small_pipeline()
    job = job_of(source, replace(TRAINING, input=(3, 64, 64), checkpointing=checkpointing), IdleCard())
    with torch.device("meta"):
        pipeline = steps.Pipeline(json.loads(source.asked.removeprefix("pipeline:")), job, torch.bfloat16)
    monkeypatch.setattr(steps, "train", lambda *_: None)
    pipeline.run(steps.Stage(job, "cpu", Mock()))

    assert pipeline.denoiser.is_gradient_checkpointing == checkpointing
