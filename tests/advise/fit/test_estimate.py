"""What a model takes is what PyTorch keeps: counted, not guessed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from tests.gpu.fit_on_a_real_card import MODELS
from wslgpud.advise.fit.estimate import (
    MODES,
    OPTIMIZERS,
    PRECISIONS,
    Plan,
    _layer_token_bytes,
    cache,
    estimate,
    knobs,
    lora_parameters,
    weights,
)
from wslgpud.advise.fit.shape import Shape, of, of_config
from wslgpud.cli import app

GIB = 1 << 30
SMALL = Shape(2, 256, 4, 2, 64, 688, 1000)
SMALL_GPT2 = Shape(2, 256, 4, 4, 64, 1024, 1000, gated=False, stepwise_gelu=True)
PLANS = st.builds(
    Plan, st.sampled_from(MODES), st.sampled_from(PRECISIONS), st.integers(1, 64), st.integers(1, 32768),
    st.sampled_from(OPTIMIZERS), st.booleans(), st.integers(1, 256), st.sampled_from(["attention", "all"]),
).filter(lambda p: not (p.mode == "training" and p.precision in ("int8", "int4")))  # fmt: skip


@pytest.mark.parametrize(
    ("shape", "mode", "precision", "targets", "kept"),
    [
        (SMALL, "training", "bf16", "attention", 11160),
        (SMALL, "training", "fp32", "attention", 20248),
        (SMALL, "training", "mixed", "attention", 13718),
        (SMALL, "lora", "bf16", "attention", 9912),
        (SMALL, "lora", "bf16", "all", 17080),
        (SMALL, "lora", "fp32", "attention", 14552),
        (SMALL, "lora", "fp32", "all", 18648),
        (SMALL_GPT2, "training", "bf16", "attention", 15384),
        (SMALL_GPT2, "training", "fp32", "attention", 30752),
    ],
)
def test_a_layer_keeps_of_a_token_what_pytorch_was_seen_to_keep(shape, mode, precision, targets, kept):
    """Bytes of all saved tensors of one layer and token (transformers 5.23, torch 2.13, on a processor)."""
    plan = Plan(mode, precision, targets=targets)

    assert _layer_token_bytes(shape, plan) == pytest.approx(kept, rel=0.003)


def test_weights_and_cache_are_what_arithmetic_says():
    llama = of("7B")

    assert weights(llama, "bf16") == 14e9
    assert weights(replace(llama, vocabulary=1), "int4") == pytest.approx(3.61e9, rel=0.001)
    assert cache(Shape(32, 4096, 32, 8, 128, 14336, 128256), Plan(batch=2, context=8192)) == 2 * GIB
    assert lora_parameters(SMALL, Plan("lora", rank=8)) == 2 * 8 * (256 + 256 + 256 + 128)


def test_training_in_full_takes_16_bytes_a_parameter_before_the_first_token():
    """ZeRO, arXiv:1910.02054, section 3.1; AdamW's step needs 4 more for a moment unless it is fused."""
    parts = estimate(of("1B"), Plan("training", "fp32", 1, 1)).parts
    fused = estimate(of("1B"), Plan("training", "fp32", 1, 1, "adamw-fused")).parts

    assert parts["weights"] + parts["optimizer"] == 12e9
    assert parts["gradients"] == parts["optimizer's step"] == pytest.approx(4e9, rel=0.07)
    assert "optimizer's step" not in fused


RECORDED = json.loads(Path(__file__).with_name("h200.json").read_text())


@pytest.mark.parametrize("case", RECORDED["cases"], ids=lambda c: f"{c['model']} {c['plan']['mode']}")
def test_a_real_card_took_what_is_said(case):
    """An NVIDIA H200 on 2026-11-21, by tests/gpu/fit_on_a_real_card.py."""
    found = estimate(of_config(MODELS[case["model"]]), Plan(**case["plan"])).total_bytes

    assert found == pytest.approx(case["measured_bytes"], rel=0.065)


@given(PLANS)
def test_more_never_takes_less(plan):
    base = estimate(SMALL, plan).total_bytes

    assert estimate(SMALL, replace(plan, batch=plan.batch + 1)).total_bytes >= base
    assert estimate(SMALL, replace(plan, context=plan.context + 1)).total_bytes >= base
    assert estimate(replace(SMALL, layers=3), plan).total_bytes >= base
    assert all(part > 0 for part in estimate(SMALL, plan).parts.values())


@given(PLANS, st.integers(1, 80))
def test_every_knob_that_is_named_brings_it_in(plan, gigabytes):
    shape, room = of("3B"), gigabytes * GIB

    for text, changed in knobs(shape, plan, room):
        assert text
        assert estimate(shape, changed).total_bytes <= room


def test_a_card_of_16_gb_takes_a_7b_for_inference_in_4_bits_and_not_in_16():
    llama, room = of("7B"), int(14.5 * GIB)

    assert estimate(llama, Plan(precision="bf16")).total_bytes > room
    assert estimate(llama, Plan(precision="int4")).total_bytes < room
    assert ("int4 weights" in [text for text, _ in knobs(llama, Plan(), room)]) is True


def test_the_answer_is_printed_and_its_status_says_it():
    fits = CliRunner().invoke(app, ["fit", "1B", "--usable", "14.5GB"])
    not_so = CliRunner().invoke(app, ["fit", "7B", "--mode", "training", "--usable", "14.5GB", "--json"])

    assert fits.exit_code == 0
    assert "It fits" in fits.output
    document = json.loads(not_so.output)
    assert not_so.exit_code == 1
    assert document["fits"] is False
    assert sum(document["parts_bytes"].values()) == document["total_bytes"]
    assert document["knobs"][0]["total_bytes"] <= document["usable_bytes"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["huge"], "is no number like 7B"),
        (["7B", "--mode", "sleeping"], "there are inference, lora, training"),
        (["7B", "--mode", "training", "--precision", "int4"], "use --mode lora"),
        (["7B", "--usable", "much"], "write it like 14.5GB"),
    ],
)
def test_what_cannot_be_answered_says_why(arguments, words):
    done = CliRunner().invoke(app, ["fit", *arguments])

    assert done.exit_code == 2
    assert words in done.output


def test_a_mixture_computes_with_some_of_its_experts_and_stores_all():
    mixtral = of_config({
        "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
        "intermediate_size": 14336, "vocab_size": 32000, "num_local_experts": 8, "num_experts_per_tok": 2,
    })  # fmt: skip
    dense = replace(mixtral, experts=1, active_experts=1)

    assert weights(mixtral, "bf16") > 6 * weights(dense, "bf16")
    assert _layer_token_bytes(mixtral, Plan("training")) < 2 * _layer_token_bytes(dense, Plan("training"))
