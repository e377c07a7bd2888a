"""Without a model to ask, a language model's memory lies within what published arithmetic says."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from tests.advise.fit.shapes import shape as sized
from wslgpud.advise.fit.estimate import adapters, between, cached_bytes, weights
from wslgpud.advise.fit.plan import CONTEXT_BYTES, PRECISIONS, QUANTIZED, Mode, Optimizer, Plan
from wslgpud.advise.fit.source import Shape, UnknownModelError, of_config, source_of
from wslgpud.cli import app

GIB = 1 << 30
SMALL = sized(2, 256, 4, 2, 64, 688, 1000)
LLAMA_2_7B = sized(32, 4096, 32, 32, 128, 11008, 32000)
RECORDED = json.loads(Path(__file__).with_name("h200.json").read_text())
CONFIGS = RECORDED["configs"]
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
PLANS = st.builds(
    Plan,
    st.sampled_from(get_args(Mode)),
    st.sampled_from(PRECISIONS),
    st.integers(1, 64),
    st.integers(1, 32768),
    st.sampled_from(get_args(Optimizer)),
    st.booleans(),
    st.integers(1, 256),
    st.sampled_from(["attention", "all"]),
).filter(lambda p: not (p.mode == "training" and p.precision in QUANTIZED))


def described(case: dict[str, object]) -> bool:
    try:
        of_config(CONFIGS[case["model"]])
    except UnknownModelError:
        return False
    return True


CASES = [case for case in RECORDED["cases"] if described(case)]


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c['model']} {c['plan']}")
def test_a_real_cards_use_lies_between_the_least_and_the_most(case):
    """An NVIDIA H200 on 2026-11-24: the peak of torch's allocator and CUDA itself."""
    found = between(of_config(CONFIGS[case["model"]]), Plan(**case["plan"]))

    assert found.total_bytes <= case["measured_bytes"] <= found.max_bytes


def test_the_margin_is_below_twice_the_least_for_most_of_them():
    bounds = [between(of_config(CONFIGS[case["model"]]), Plan(**case["plan"])) for case in CASES]

    assert len(bounds) >= 60
    assert sum(found.max_bytes / found.total_bytes for found in bounds) / len(bounds) < 2


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
    found = between(QWEN_25[name], Plan("inference", precision, context=tokens + 2048))
    published = PUBLISHED[name, precision][(1, 6144, 14336, 30720).index(tokens)]

    # They asked for 2048 words after the prompt, which are not cached when it goes through.
    assert (found.total_bytes - CONTEXT_BYTES) / GIB <= 1.06 * published
    assert published <= (found.max_bytes - CONTEXT_BYTES) / GIB


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
    ("shape", "precision", "batch", "mebibytes"),
    [
        (MISTRAL_7B, "fp16", 4, 29731),
        (MISTRAL_7B, "fp16", 8, 43195),
        (MISTRAL_7B, "int4", 4, 27023),
        (MISTRAL_7B, "int4", 8, 47145),
        (MISTRAL_7B, "gptq", 4, 20453),
        (MISTRAL_7B, "gptq", 8, 34247),
        (LLAMA_2_70B, "gptq", 4, 71565),
    ],
)
def test_adapters_on_packed_weights_take_what_was_published(shape, precision, batch, mebibytes):
    """LoRA of rank 16 with checkpointing, sequences of 4096, by NVML on an NVIDIA A100 (nvidia_mem_reserved).

    https://github.com/foundation-model-stack/fms-acceleration/blob/main/scripts/benchmarks/refs/a100_80gb.csv
    """
    found = between(shape, Plan("lora", precision, batch, 4096, checkpointing=True))

    assert found.total_bytes <= mebibytes << 20 <= found.max_bytes


def test_full_training_starts_at_16_bytes_a_parameter():
    """ZeRO, arXiv:1910.02054, section 3.1."""
    parts = between(source_of("1B").shape, Plan("training", "fp32", 1, 1)).parts

    assert parts["weights"] + parts["optimizer"] == pytest.approx(12e9, rel=0.001)
    assert parts["gradients"] == pytest.approx(4e9, rel=0.001)


def test_adapters_add_two_thin_matrices_to_each_adapted_one():
    attention, every = Plan("lora", rank=8), Plan("lora", rank=8, targets="all")

    assert adapters(SMALL, attention) == 2 * 8 * ((256 + 256) + (256 + 128))
    assert adapters(SMALL, every) == 2 * 8 * (2 * ((256 + 256) + (256 + 128)) + 3 * (256 + 688))


def test_layers_with_a_window_keep_no_more_than_that():
    windowed = of_config(CONFIGS["Gemma 3 1B"])

    assert (windowed.window, windowed.windowed_layers) == (512, 22)
    kept = 2 * windowed.kv_width * 2
    assert cached_bytes(windowed, 512, 2) == kept * 26 * 512
    assert cached_bytes(windowed, 8192, 2) == kept * (4 * 8192 + 22 * 512)


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
def test_the_configuration_says_which_layers_keep_all_tokens(document, layers):
    shape = of_config(CONFIGS["Llama 7B"] | document)

    assert (shape.windowed_layers, shape.layers - shape.full_layers - shape.windowed_layers) == layers


@given(PLANS)
def test_more_never_takes_less(plan):
    found = between(SMALL, plan)

    for more in (replace(plan, batch=plan.batch + 1), replace(plan, context=plan.context + 64)):
        assert between(SMALL, more).total_bytes >= found.total_bytes
        assert between(SMALL, more).max_bytes >= found.max_bytes
    assert found.max_bytes >= found.total_bytes


LLAMA_31_8B = sized(32, 4096, 32, 8, 128, 14336, 128256)


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


def test_the_answer_is_printed_and_its_status_says_it():
    def asked(*words: str) -> tuple[int, str]:
        done = CliRunner().invoke(app, ["fit", "7B", *words])
        return done.exit_code, done.output

    fits, over, unknown = (asked("--usable", size) for size in ("40GB", "8GB", "17GB"))

    assert (fits[0], over[0], unknown[0]) == (0, 1, 3)
    assert "It fits, with" in fits[1]
    assert "It does not fit" in over[1]
    assert "It may not fit: it takes between" in unknown[1]
    assert all("By published arithmetic, with a margin" in text for _, text in (fits, over, unknown))
    assert json.loads(asked("--usable", "17GB", "--json")[1])["fits"] is None


def test_nobody_trains_adapters_on_a_format_of_llama_cpp():
    done = CliRunner().invoke(app, ["fit", "7B", "-m", "lora", "-p", "q4_k_m"])

    assert done.exit_code == 2
    assert "take int4, gptq or awq" in done.output
