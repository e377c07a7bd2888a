"""vLLM's memory split matches its log, and configurations it would refuse are known beforehand."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from tests.advise.fit.shapes import shape as sized
from wslgpud.advise.fit.shape import Shape, of_config
from wslgpud.advise.fit.vllm import GIB, Card, ServingPlan, sequence_bytes, serve, turns
from wslgpud.cli import app

LLAMA_8B = sized(32, 4096, 32, 8, 128, 14336, 128256)
QWEN_15_7B = sized(32, 4096, 32, 32, 128, 11008, 151936)
QWEN_25_7B = sized(28, 3584, 28, 4, 128, 18944, 152064)


def card(total_gib: float, free_gib: float | None = None) -> Card:
    return Card(round(total_gib * GIB), round((free_gib or total_gib) * GIB))


#: vLLM before its version 1 took the longest sequence as one step, and 90 % of the card.
def older(context: int, utilization: float = 0.9, **more: str) -> ServingPlan:
    return ServingPlan(
        context=context,
        utilization=utilization,
        max_num_batched_tokens=context,
        max_num_seqs=256,
        **more,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    ("shape", "plan", "of_card", "cache_gib"),
    [
        # https://github.com/vllm-project/vllm/issues/10517, an RTX 3090: "kv_cache_size=3.81GiB", "2.89GiB"
        (LLAMA_8B, older(20000), card(23.58), 3.81),
        (LLAMA_8B, older(29000), card(23.58), 2.89),
        # https://github.com/vllm-project/vllm/pull/10511, an H100: "available_kv_cache_memory 53.29GiB"
        (LLAMA_8B, older(8192), card(79.22), 53.29),
        # https://github.com/vllm-project/vllm/issues/13882, 8 GB: "memory reserved for KV Cache is -1.05GiB"
        (QWEN_25_7B, older(4096, 0.7, precision="awq"), card(8.0), -1.05),
        # https://github.com/QwenLM/Qwen3/issues/16, an RTX 3090: 24320 tokens of 512 KiB
        (QWEN_15_7B, older(32768, precision="gptq"), card(23.69), 24320 * 512 / (1 << 20)),
    ],
)
def test_the_cache_gets_what_the_log_says(shape, plan, of_card, cache_gib):
    served = serve(shape, plan, of_card)

    share_gib = plan.utilization * of_card.total_bytes / GIB
    assert abs(served.cache_bytes / GIB - cache_gib) <= 0.03 * share_gib


@pytest.mark.parametrize(
    ("shape", "context", "cache_gib", "tokens", "concurrency"),
    [
        # https://github.com/vllm-project/vllm/issues/10517: 1952 and 1478 blocks of 16 tokens
        (LLAMA_8B, 20000, 3.81, 1952 * 16, 1.56),
        (LLAMA_8B, 29000, 2.89, 1478 * 16, 0.82),
        # https://github.com/vllm-project/vllm/issues/12330: 5691 blocks
        (LLAMA_8B, 8192, 11.12, 5691 * 16, 11.12),
    ],
)
def test_a_cache_holds_as_many_tokens_as_vllm_counted(shape, context, cache_gib, tokens, concurrency):
    plan = older(context)
    each = sequence_bytes(shape, plan, card(24), context)

    assert cache_gib * GIB / each == pytest.approx(concurrency, abs=0.01)
    assert cache_gib * GIB / each * context == pytest.approx(tokens, rel=0.003)


@pytest.mark.parametrize(
    ("plan", "of_card", "words"),
    [
        # https://github.com/Alex8791-cyber/cognithor/pull/318, WSL2: 30.12 of 31.84 GiB are free, 0.95 asks for 30.25
        (
            ServingPlan(context=4096, utilization=0.95),
            card(31.84, 30.12),
            "is less than desired GPU memory utilization",
        ),
        # https://github.com/vllm-project/vllm/issues/2248
        (ServingPlan(context=4096), card(16), "No available memory for the cache blocks"),
        # https://github.com/vllm-project/vllm/issues/10517
        (older(29000), card(23.58), "larger than the maximum number of tokens that can be stored in KV cache"),
    ],
)
def test_a_refusal_is_foreseen_with_the_setting_that_mends_it(plan, of_card, words):
    refused = serve(LLAMA_8B, plan, of_card).refusal

    assert refused is not None
    assert words in str(refused)
    assert turns(LLAMA_8B, plan, of_card)


SMALL_CARD, LARGE_CARD = Card(70 * GIB - 1, 70 * GIB - 1), Card(70 * GIB, 70 * GIB)
FEW_WORDS = replace(LLAMA_8B, vocabulary=1000)


def mixture(dense_width: int) -> Shape:
    experts = {"num_experts": 8, "moe_intermediate_size": 2048, "num_experts_per_tok": 2, "first_k_dense_replace": 1}
    experts["shared_expert_intermediate_size"] = 1024
    return sized(32, 4096, 32, 8, 128, dense_width, 1000, **experts)


@pytest.mark.parametrize(
    ("shape", "plan", "of_card", "profiling_bytes"),
    [
        # vLLM's defaults of tokens in a step and of sequences, by the size of the card; 11 bytes for each logit
        (LLAMA_8B, ServingPlan(), SMALL_CARD, 2048 * 4096 * 2 + 256 * 128256 * 11),
        (LLAMA_8B, ServingPlan(), LARGE_CARD, 8192 * 4096 * 2 + 1024 * 128256 * 11),
        (LLAMA_8B, ServingPlan("fp32", max_num_seqs=1024), SMALL_CARD, 2048 * 4096 * 4 + 1024 * 128256 * 11),
        # as many as are given, and not more sequences than tokens
        (LLAMA_8B, ServingPlan(max_num_seqs=200), SMALL_CARD, 2048 * 4096 * 2 + 200 * 128256 * 11),
        (LLAMA_8B, ServingPlan(max_num_batched_tokens=64), SMALL_CARD, 64 * 4096 * 2 + 64 * 128256 * 11),
        # a block that needs more than the sampler
        (FEW_WORDS, ServingPlan(), SMALL_CARD, 2048 * (2 * 4096 + 3 * 14336) * 2),
        (FEW_WORDS, ServingPlan("fp32"), SMALL_CARD, 2048 * (2 * 4096 + 3 * 14336) * 4),
        (mixture(5121), ServingPlan(), SMALL_CARD, 2048 * (2 * 4096 + 3 * 5121) * 2),
        (mixture(5119), ServingPlan(), SMALL_CARD, 2048 * (2 * 4096 + 3 * 5120) * 2),
    ],
)
def test_the_profiling_run_takes_the_largest_step(shape, plan, of_card, profiling_bytes):
    served = serve(shape, plan, of_card)

    assert served.found.parts["profiling run"] == profiling_bytes
    assert served.found.parts["CUDA graphs"] == 32 * 86 * 230_000
    assert served.found.parts["CUDA itself"] == GIB // 2
    assert served.found.total_bytes == round(0.92 * of_card.total_bytes)


def test_vllm_starts_if_one_sequence_fits_and_its_share_is_free():
    plan = ServingPlan(utilization=1.0)
    fixed = 40 * GIB - serve(LLAMA_8B, plan, card(40)).cache_bytes
    each = 4096 * 2 * 8 * 128 * 2 * 32

    def outcome(total_bytes: int, lacking_bytes: int = 0) -> tuple[str, int]:
        served = serve(LLAMA_8B, plan, Card(total_bytes, total_bytes - lacking_bytes))
        assert served.found.parts.get("keys and values", 0) == max(0, total_bytes - fixed)
        return str(served.refusal or "")[:40], served.tokens

    assert outcome(fixed + each) == ("", 4096)
    assert outcome(fixed + each, lacking_bytes=1) == ("vLLM will not start: it needs 17 GiB, bu", 4096)
    assert outcome(fixed + each - 1) == ("vLLM will not start: a sequence of 4096 ", 4080)
    assert outcome(fixed + 1) == ("vLLM will not start: a sequence of 4096 ", 0)
    assert outcome(fixed) == outcome(fixed - 1) == ("vLLM will not start: nothing is left to ", 0)


LOWERED = "--gpu-memory-utilization 0.94"


@pytest.mark.parametrize(
    ("plan", "of_card", "said"),
    [
        (
            ServingPlan(utilization=0.95),
            card(31.84, 30.12),
            {
                LOWERED: 110_832,
                f"{LOWERED}, --kv-cache-dtype fp8": 221_680,
                f"{LOWERED}, --max-num-seqs 16": 112_112,
                f"--quantization fp8, {LOWERED}": 164_080,
                f"--quantization awq, {LOWERED}": 189_664,
            },
        ),
        (
            ServingPlan(context=30_000, utilization=0.8, max_num_seqs=17),
            card(24),
            {
                "--gpu-memory-utilization 0.83": 30_112,
                "--max-model-len 24224": 24_224,
                "--kv-cache-dtype fp8": 48_448,
                "--quantization fp8": 77_472,
                "--quantization awq": 103_056,
            },
        ),
        (
            ServingPlan("fp32", 20_000, max_num_seqs=16),
            card(36),
            {
                "--max-model-len 7056": 7056,
                "--kv-cache-dtype fp8": 28_256,
                "--quantization fp8": 191_504,
                "--quantization awq": 217_088,
            },
        ),
        (
            ServingPlan("fp8", 20_000, max_num_seqs=16, kv_cache="fp8"),
            card(10.7),
            {"--max-model-len 1664": 1664, "--quantization awq": 52_832},
        ),
        (ServingPlan(), card(16), {"--quantization fp8": 39_488, "--quantization awq": 65_072}),
    ],
)
def test_settings_that_let_vllm_start_are_named_with_capacity(plan, of_card, said):
    assert {", ".join(turned): tokens for turned, tokens in turns(LLAMA_8B, plan, of_card)} == said


def test_the_longest_sequence_that_fits_is_named():
    plan, of_card = older(29000), card(23.58)
    said = {", ".join(turned): tokens for turned, tokens in turns(LLAMA_8B, plan, of_card)}

    longest = next(text for text in said if text.startswith("--max-model-len"))
    assert said[longest] == int(longest.split()[1])
    assert serve(LLAMA_8B, older(29000), of_card).cache_bytes < 29000 * 131072
    assert said["--kv-cache-dtype fp8"] == pytest.approx(2 * said[longest], rel=0.01)


def test_layers_with_a_window_take_less_of_the_cache():
    base = {
        "model_type": "llama",
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "intermediate_size": 14336,
        "vocab_size": 128256,
    }
    kinds = ["sliding_attention"] * 24 + ["full_attention"] * 8
    windowed = of_config(base | {"layer_types": kinds, "sliding_window": 1024})
    hybrid = of_config(base | {"full_attention_interval": 4})

    def each(shape: Shape, context: int) -> float:
        return sequence_bytes(shape, ServingPlan(context=context), card(24), context) / (2 * 8 * 128 * 2 * context)

    assert each(of_config(base), 65536) == 32
    assert each(windowed, 65536) == 8 + 24 * (-(-(1023 + 2048) // 16) + 1) * 16 / 65536
    assert each(windowed, 1024) == 8 + 24 * (1024 + 16) / 1024
    assert each(of_config(base), 65536 - 15) == 32 * 65536 / (65536 - 15)
    assert each(hybrid, 65536) == 8
    linear = of_config(base | {"layer_types": ["linear_attention"] * 32})
    assert sequence_bytes(linear, ServingPlan(), card(24), 4096) == 16 * 2 * 8 * 128 * 2  # one block
    assert serve(linear, ServingPlan(), card(24)).refusal is None


@given(
    st.builds(
        ServingPlan,
        st.sampled_from(["bf16", "fp8", "awq", "int4"]),
        st.integers(16, 200_000),
        st.floats(0.1, 1.0),
        st.integers(0, 1024),
        st.integers(0, 16384),
        st.sampled_from(["auto", "fp8"]),
    ),
    st.floats(1, 160),
    st.floats(0.1, 1.0),
)
def test_every_setting_that_is_named_lets_it_start(plan, total_gib, free_ratio):
    of_card = card(total_gib, total_gib * free_ratio)
    served = serve(LLAMA_8B, plan, of_card)

    assert (served.refusal is None) == (
        plan.utilization * of_card.total_bytes <= of_card.free_bytes + 1 and served.concurrency >= 1
    )
    for turned, tokens in turns(LLAMA_8B, plan, of_card):
        assert turned
        assert tokens > 0


def asked(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["fit", "8B", "--engine", "vllm", *arguments])
    return done.exit_code, " ".join(done.output.split())


def test_the_command_says_how_many_tokens_fit():
    fits, shown = asked("--usable", "24GiB", "--context", "8192")
    not_so, document = asked("--usable", "24GiB", "--context", "131072", "--json")

    assert (fits, not_so) == (0, 1)
    assert "It fits: the cache holds" in shown
    found = json.loads(document)
    assert found["fits"] is False
    assert found["concurrency"] < 1
    assert found["tokens"] < 131072
    assert sum(found["parts_bytes"].values()) == found["total_bytes"]
    assert all(knob["tokens"] > 0 for knob in found["knobs"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--mode", "training"], "--mode has no meaning for --engine vllm"),
        (["--batch", "4"], "--batch has no meaning for --engine vllm"),
        (["--kv-cache-dtype", "int2"], "must be one of auto, fp8"),
        (["--offload"], "--offload has no meaning for --engine vllm"),
        (["--usable", "0GB"], "write it like 14.5GiB"),
    ],
)
def test_what_has_no_meaning_is_refused_by_name(arguments, words):
    code, shown = asked("--usable", "24GiB", *arguments)

    assert code == 2
    assert words in shown


def test_its_options_are_for_it_alone():
    done = CliRunner().invoke(app, ["fit", "7B", "--usable", "24GiB", "--max-num-seqs", "4"])

    assert done.exit_code == 2
    assert "--max-num-seqs has no meaning for --engine transformers" in " ".join(done.output.split())
