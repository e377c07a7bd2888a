"""A model's memory is what PyTorch allocates: counted, not guessed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from tests.gpu.fit_on_a_real_card import MODELS
from tests.store.made import T0, FakeClock
from wslgpud.advise.fit.estimate import (
    CONTEXT_BYTES,
    MODES,
    OPTIMIZERS,
    PRECISIONS,
    QUANTIZED,
    Plan,
    estimate,
    knobs,
    weights,
)
from wslgpud.advise.fit.family import FAMILIES
from wslgpud.advise.fit.shape import Shape, of, of_config
from wslgpud.cli import app
from wslgpud.cli.fit_room import Usable, from_history
from wslgpud.config import StoreSettings
from wslgpud.model import GpuSample, Reading, Sample, Snapshot, SourceReport
from wslgpud.risk.risk_metrics import LEARNED
from wslgpud.sources.gpu import GpuSource
from wslgpud.store import Store

GIB = 1 << 30
SMALL = Shape(2, 256, 4, 2, 64, 688, 1000)
SMALL_GPT2 = replace(SMALL, kv_heads=4, intermediate=1024, gated=False, family=replace(FAMILIES["gpt2"], dropout=False))
UNUSED = "PyTorch's cache, unused"
PLANS = st.builds(
    Plan,
    st.sampled_from(MODES),
    st.sampled_from(PRECISIONS),
    st.integers(1, 64),
    st.integers(1, 32768),
    st.sampled_from(OPTIMIZERS),
    st.booleans(),
    st.integers(1, 256),
    st.sampled_from(["attention", "all"]),
).filter(lambda p: not (p.mode == "training" and p.precision in QUANTIZED))


def in_use(shape: Shape, plan: Plan) -> dict[str, int]:
    """Return the parts but the cache's unused ones and CUDA's own."""
    parts = estimate(shape, plan).parts
    return {part: taken for part, taken in parts.items() if part not in (UNUSED, "CUDA itself")}


@pytest.mark.parametrize(
    ("shape", "mode", "precision", "targets", "kept"),
    [
        (SMALL, "training", "bf16", "attention", 11160),
        (SMALL, "training", "mixed", "attention", 13718),
        (SMALL, "lora", "bf16", "attention", 9912),
        (SMALL, "lora", "bf16", "all", 17080),
        (SMALL_GPT2, "training", "bf16", "attention", 15384),
        (SMALL_GPT2, "training", "fp32", "attention", 30752),
    ],
)
def test_a_layer_keeps_of_a_token_what_pytorch_was_seen_to_keep(shape, mode, precision, targets, kept):
    """Bytes of all saved tensors of one layer and token (transformers 5.23, torch 2.13, on a processor)."""
    plan = Plan(mode, precision, 8, 4096, targets=targets)
    more, fewer = (in_use(replace(shape, vocabulary=200_000, layers=n), plan)["activations"] for n in (4, 3))

    assert (more - fewer) / (8 * 4096) == pytest.approx(kept, rel=0.015)


def test_weights_and_cache_are_what_arithmetic_says():
    llama, wide = of("7B"), Shape(32, 4096, 32, 8, 128, 14336, 128256)

    assert weights(llama, "bf16") == 14e9
    assert weights(replace(llama, vocabulary=1), "int4") == pytest.approx(3.61e9, rel=0.001)
    assert in_use(wide, Plan(batch=2, context=8192))["keys and values"] == pytest.approx(2 * GIB, rel=0.001)
    adapters = in_use(SMALL, Plan("lora", rank=8))["weights"] - in_use(SMALL, Plan())["weights"]
    assert adapters == pytest.approx(4 * SMALL.layers * 8 * (256 + 256 + 256 + 128), rel=0.001)


def test_training_in_full_takes_16_bytes_a_parameter_before_the_first_token():
    """ZeRO, arXiv:1910.02054, section 3.1; AdamW's step needs 4 more for a moment unless it is fused."""
    parts = estimate(of("1B"), Plan("training", "fp32", 1, 1)).parts
    fused = estimate(of("1B"), Plan("training", "fp32", 1, 1, "adamw-fused")).parts

    assert parts["weights"] + parts["optimizer"] == pytest.approx(12e9, rel=0.001)
    assert parts["gradients"] == parts["optimizer's step"] == pytest.approx(4e9, rel=0.001)
    assert "optimizer's step" not in fused


LLAMA_7B_DOCUMENT = MODELS["Llama 7B"]
GPT_OSS = {
    "model_type": "gpt_oss",
    "hidden_size": 2880,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "intermediate_size": 2880,
    "num_experts_per_tok": 4,
    "vocab_size": 201088,
    "tie_word_embeddings": False,
}
RECORDED = json.loads(Path(__file__).with_name("h200.json").read_text())


@pytest.mark.parametrize("case", RECORDED["cases"] + RECORDED["held_out"], ids=lambda c: f"{c['model']} {c['plan']}")
def test_a_real_card_took_what_is_said(case):
    """An NVIDIA H200 on 2026-11-24, by tests/gpu/fit_on_a_real_card.py."""
    found = estimate(of_config(MODELS[case["model"]]), Plan(**case["plan"])).total_bytes

    assert found == pytest.approx(case["measured_bytes"], rel=0.035)


@pytest.mark.parametrize("case", RECORDED["cases"] + RECORDED["held_out"], ids=lambda c: f"{c['model']} {c['plan']}")
def test_as_much_was_in_use_as_is_said(case):
    """Without cuBLAS's workspaces; DeepSeek's cache holds latents, where those of all heads are counted."""
    found = sum(in_use(of_config(MODELS[case["model"]]), Plan(**case["plan"])).values())

    assert found + (64 << 20) == pytest.approx(
        case["allocated_bytes"], rel=0.06 if "DeepSeek" in case["model"] else 0.035
    )


#: GiB in use, without CUDA's own, after prompts of 1, 6144, 14336 and 30720 tokens and 2048 new ones, batch 1:
#: https://github.com/QwenLM/Qwen2.5/blob/main/docs/source/benchmark/speed_benchmark.rst
PUBLISHED = {
    ("0.5B", "bf16"): (0.97, 1.23, 1.60, 2.34),
    ("1.5B", "bf16"): (2.95, 3.43, 4.16, 5.62),
    ("3B", "bf16"): (5.95, 6.59, 7.47, 9.30),
    ("7B", "bf16"): (14.38, 15.38, 16.91, 19.97),
    ("7B", "gptq8"): (8.42, 9.43, 10.96, 14.01),
    ("7B", "gptq"): (5.52, 6.52, 8.05, 11.11),
    ("7B", "awq"): (5.39, 6.39, 7.92, 10.98),
    ("14B", "bf16"): (28.08, 29.50, 31.95, 36.85),
}


def qwen_25(*sizes: int, tied: bool = False) -> Shape:
    names = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "intermediate_size")
    document = {"model_type": "qwen2", **dict(zip(names, sizes, strict=True)), "tie_word_embeddings": tied}
    windows = {"sliding_window": 32768, "use_sliding_window": False}
    return of_config(document | windows | {"vocab_size": 151936 if tied else 152064})


QWEN_25 = {
    "0.5B": qwen_25(896, 24, 14, 2, 4864, tied=True),
    "1.5B": qwen_25(1536, 28, 12, 2, 8960, tied=True),
    "3B": qwen_25(2048, 36, 16, 2, 11008, tied=True),
    "7B": qwen_25(3584, 28, 28, 4, 18944),
    "14B": qwen_25(5120, 48, 40, 8, 13824),
}


@pytest.mark.parametrize("tokens", [1, 6144, 14336, 30720])
@pytest.mark.parametrize(("name", "precision"), PUBLISHED)
def test_a_longer_prompt_takes_what_qwens_authors_measured(name, precision, tokens):
    held = sum(in_use(QWEN_25[name], Plan("inference", precision, context=tokens + 2048)).values()) / GIB
    published = PUBLISHED[name, precision][(1, 6144, 14336, 30720).index(tokens)]

    # They asked for 2048 words after the prompt, which does not go through at once.
    assert 1 <= held / published <= 1.06


MISTRAL_7B, LLAMA_2_70B = (
    of_config(
        {
            "model_type": kind,
            "hidden_size": hidden,
            "num_hidden_layers": layers,
            "num_attention_heads": hidden // 128,
            "num_key_value_heads": 8,
            "intermediate_size": wide,
            "vocab_size": 32000,
            "tie_word_embeddings": False,
            "sliding_window": None,
        }
    )
    for kind, hidden, layers, wide in (("mistral", 4096, 32, 14336), ("llama", 8192, 80, 28672))
)


@pytest.mark.parametrize(
    ("shape", "precision", "batch", "mebibytes", "tolerance"),
    [
        (MISTRAL_7B, "fp16", 4, 29731, 0.04),
        (MISTRAL_7B, "fp16", 8, 43195, 0.04),
        # "baseline-peft-bnb": peft's own prepare_model_for_kbit_training
        (MISTRAL_7B, "int4", 4, 27023, 0.055),
        (MISTRAL_7B, "int4", 8, 47145, 0.04),
        # GPTQ, which peft leaves as it is
        (MISTRAL_7B, "gptq", 4, 20453, 0.08),
        (MISTRAL_7B, "gptq", 8, 34247, 0.05),
        (LLAMA_2_70B, "gptq", 4, 71565, 0.02),
    ],
)
def test_qlora_takes_what_was_published(shape, precision, batch, mebibytes, tolerance):
    """LoRA of rank 16 with checkpointing, sequences of 4096, by NVML on an NVIDIA A100 (nvidia_mem_reserved).

    https://github.com/foundation-model-stack/fms-acceleration/blob/main/scripts/benchmarks/refs/a100_80gb.csv
    """
    found = estimate(shape, Plan("lora", precision, batch, 4096, checkpointing=True)).total_bytes

    assert found / (1 << 20) == pytest.approx(mebibytes, rel=tolerance)


LLAMA_2_7B = Shape(32, 4096, 32, 32, 128, 11008, 32000)
LLAMA_13B = Shape(40, 5120, 40, 40, 128, 13824, 32000)


@pytest.mark.parametrize(
    ("shape", "precision", "tokens", "checkpointing", "fits"),
    [
        ("7B", "int8", 512, True, True),
        ("7B", "int4", 512, False, True),
        ("7B", "int4", 1024, False, False),
        ("7B", "int4", 1024, True, True),
        ("13B", "int8", 512, True, False),
        ("13B", "int4", 512, False, False),
        ("13B", "int4", 512, True, True),
        ("13B", "int4", 1024, True, True),
    ],
)
def test_a_t4_ran_out_of_memory_where_it_is_said(shape, precision, tokens, checkpointing, fits):
    """Adapters on all matrices; a T4 has 14.6 GiB for PyTorch.

    The table of https://github.com/huggingface/blog/blob/main/4bit-transformers-bitsandbytes.md
    """
    plan = Plan("lora", precision, 1, tokens, checkpointing=checkpointing, rank=64, targets="all")
    found = estimate({"7B": LLAMA_2_7B, "13B": LLAMA_13B}[shape], plan).total_bytes

    assert (found - CONTEXT_BYTES <= 14.6 * GIB) == fits


def test_a_window_bounds_what_its_layers_keep_and_costs_a_mask():
    whole = of_config(MODELS["Gemma 3 1B"] | {"sliding_window": None})
    windowed = of_config(MODELS["Gemma 3 1B"])

    def cached(shape, context):
        return in_use(shape, Plan(context=context))["keys and values"]

    assert (windowed.window, windowed.windowed_layers) == (512, 22)
    assert cached(windowed, 512) == cached(whole, 512)
    # All of the prompt is there at first, and is shortened with the first answer.
    assert cached(windowed, 8192) == pytest.approx(cached(whole, 8192), rel=0.01)
    at_window, beyond = (in_use(windowed, Plan(context=n))["prompt at once"] for n in (520, 521))
    assert beyond - at_window > 513**2


@pytest.mark.parametrize(
    ("document", "layers"),
    [
        # https://huggingface.co/Qwen/Qwen3-Next-80B-A3B-Instruct, config.json: one of four layers keeps the tokens
        ({"full_attention_interval": 4}, (0, 24)),
        ({"layer_types": ["linear_attention"] * 24 + ["full_attention"] * 8}, (0, 24)),
        ({"layer_types": ["sliding_attention", "full_attention"] * 16, "sliding_window": 128}, (16, 0)),
        ({"sliding_window": 4096}, (32, 0)),
        ({"sliding_window": 4096, "use_sliding_window": False}, (0, 0)),
        ({"sliding_window": None}, (0, 0)),
    ],
)
def test_which_layers_keep_all_tokens_stands_in_the_configuration(document, layers):
    shape = of_config(LLAMA_7B_DOCUMENT | document)

    assert (shape.windowed_layers, shape.linear_layers) == layers


def test_embeddings_under_adapters_are_in_32_bits_where_bitsandbytes_holds_the_rest():
    """See https://github.com/huggingface/peft/issues/816 and https://github.com/huggingface/peft/issues/1149.

    The table above has 5,368,221,184 bytes of Mistral 7B, and 4,843,384,320 where peft's preparation is left out.
    """
    assert pytest.approx(5_368_221_184 - 4_843_384_320, rel=0.002) == 2 * 2 * 32000 * 4096

    def held(mode, precision):
        return estimate(LLAMA_2_7B, Plan(mode, precision)).parts["weights"]

    embeddings = 2 * 32000 * 4096
    adapters = 4 * 32 * 16 * 4 * 4096
    assert held("lora", "int4") - held("inference", "int4") == pytest.approx(2 * embeddings + adapters, rel=0.001)
    assert held("lora", "gptq") - held("inference", "gptq") == pytest.approx(adapters, rel=0.001)


@given(PLANS)
def test_more_never_takes_less(plan):
    """But for scratch memory and the allocator's gaps, which are smaller for some sizes."""
    base = sum(in_use(SMALL, plan).values())

    for shape, more in (
        (SMALL, replace(plan, batch=2 * plan.batch)),
        (SMALL, replace(plan, context=2 * plan.context)),
        (replace(SMALL, layers=3), plan),
    ):
        assert sum(in_use(shape, more).values()) >= 0.98 * base
    assert all(part >= 0 for part in estimate(SMALL, plan).parts.values())


@pytest.mark.slow
@given(PLANS, st.integers(1, 400), st.floats(0.75, 1.35))
def test_every_knob_that_is_named_brings_it_in(plan, megabytes, ratio):
    room = CONTEXT_BYTES + (megabytes << 20)

    for text, total in knobs(SMALL, plan, room, ratio):
        assert text
        assert total <= room


def test_a_card_of_16_gb_takes_a_7b_for_inference_in_4_bits_and_not_in_16():
    llama, room = of("7B"), int(14.5 * GIB)

    assert estimate(llama, Plan(precision="bf16")).total_bytes > room
    assert estimate(llama, Plan(precision="int4")).total_bytes < room
    assert "int4 weights" in [str(said) for said, _ in knobs(llama, Plan(), room)]


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
        (["huge"], "is neither a size like 7B"),
        (["7B", "--mode", "sleeping"], "there are inference, lora, training"),
        (["7B", "--mode", "training", "--precision", "int4"], "use --mode lora"),
        (["7B", "--usable", "much"], "write it like 14.5GiB"),
        (["7B", "--usable", "infGB"], "write it like 14.5GiB"),
    ],
)
def test_what_cannot_be_answered_says_why(arguments, words):
    done = CliRunner().invoke(app, ["fit", *arguments])

    assert done.exit_code == 2
    assert words in done.output


def test_a_mixture_computes_with_some_of_its_experts_and_stores_all():
    mixtral = of_config(
        {
            "hidden_size": 4096,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "intermediate_size": 14336,
            "vocab_size": 32000,
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
        }
    )
    dense = replace(mixtral, experts=1, active_experts=1)

    assert weights(mixtral, "bf16") > 6 * weights(dense, "bf16")
    sparse_work, dense_work = (in_use(shape, Plan())["prompt at once"] for shape in (mixtral, dense))
    assert 1.5 * dense_work < sparse_work < 4 * dense_work


LLAMA_31_8B = Shape(32, 4096, 32, 8, 128, 14336, 128256)


@pytest.mark.parametrize(
    ("shape", "precision", "size"),
    [
        # https://huggingface.co/TheBloke/Llama-2-7B-GPTQ and -AWQ: 4 bits, groups of 128
        (LLAMA_2_7B, "gptq", 3.90e9),
        (LLAMA_2_7B, "awq", 3.89e9),
        # https://github.com/ggml-org/llama.cpp/blob/master/tools/quantize/README.md
        (LLAMA_31_8B, "q4_k_m", 4.58 * GIB),
        (LLAMA_31_8B, "q6_k", 6.14 * GIB),
        (LLAMA_31_8B, "q8_0", 7.95 * GIB),
        # arXiv:2508.10925, table 1
        (GPT_OSS | {"num_hidden_layers": 24, "num_local_experts": 32}, "mxfp4", 12.8 * GIB),
        (GPT_OSS | {"num_hidden_layers": 36, "num_local_experts": 128}, "mxfp4", 60.8 * GIB),
    ],
)
def test_quantized_weights_are_as_large_as_the_published_files(shape, precision, size):
    shape = of_config(shape) if isinstance(shape, dict) else shape
    assert weights(shape, precision) == pytest.approx(size, rel=0.005)


def test_moments_in_8_bits_take_a_quarter_of_those_in_32():
    def states(optimizer):
        return estimate(LLAMA_2_7B, Plan("training", "fp32", optimizer=optimizer)).parts["optimizer"]

    assert states("adamw8bit") / states("adamw") == pytest.approx(0.25, abs=0.01)


def test_what_was_never_held_against_a_card_is_said():
    def said(*arguments: str) -> list[str]:
        done = CliRunner().invoke(app, ["fit", "7B", "--usable", "80GB", "--json", *arguments])
        return json.loads(done.stdout)["unmeasured"]

    assert said() == said("-m", "training", "--context", "128") == []
    assert said("-p", "gptq") == ["quantized weights"]
    assert said("-m", "lora", "-p", "int4", "--optimizer", "adamw8bit") == ["quantized weights", "adamw8bit"]
    shown = CliRunner().invoke(app, ["fit", "7B", "--usable", "80GB", "-p", "q4_k_m"]).stdout
    assert "not measured on a real card: quantized weights" in shown


def test_nobody_trains_adapters_on_a_format_of_llama_cpp():
    done = CliRunner().invoke(app, ["fit", "7B", "-m", "lora", "-p", "q4_k_m"])

    assert done.exit_code == 2
    assert "take int4, gptq or awq" in done.output


class TestHistory:
    """The usable memory is that observed on this machine, not the vendor's figure."""

    CARD = GpuSample(0, "GPU-1", "a card", 16 * GIB, 2 * GIB, 14 * GIB)
    NOW = float(T0)

    def usable(self, tmp_path: Path, *readings: Reading) -> Usable | None:
        database = tmp_path / "wslgpud.db"
        yesterday = self.NOW - 86400
        report = SourceReport("made", "ok", Sample(readings), yesterday, 0.001)
        with Store(str(database), StoreSettings(), clock=FakeClock(yesterday)) as store:
            store.append(Snapshot(yesterday, yesterday, 1, (report,)))
            assert store.flush()
        return from_history(str(database), self.CARD, self.NOW)

    def test_an_allocation_that_failed_is_where_it_ends(self, tmp_path):
        found = self.usable(tmp_path, Reading(LEARNED, 15 * GIB, ("gpu0", "seen")))

        assert found is not None
        assert found.bytes == 13 * GIB
        assert "has failed here before" in str(found.how)

    def test_more_than_a_card_is_thought_to_have_was_there_when_it_was_used(self, tmp_path):
        used = next(spec for spec in GpuSource.metrics if spec.name == "gpu_memory_used_bytes")
        found = self.usable(tmp_path, Reading(used, 17 * GIB, ("0", "GPU-1")))

        assert found is not None
        assert found.bytes == 15 * GIB
        assert str(found.how) == "the highest use seen here, minus the current use"

    def test_a_history_without_this_card_says_nothing(self, tmp_path):
        assert self.usable(tmp_path, Reading(LEARNED, 15 * GIB, ("gpu7", "seen"))) is None
        assert from_history(str(tmp_path / "none.db"), self.CARD, self.NOW) is None
