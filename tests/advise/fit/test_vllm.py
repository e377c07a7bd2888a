"""vLLM's memory split matches its log, and configurations it would refuse are known beforehand."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from wslgpud.advise.fit.shape import Shape, of_config
from wslgpud.advise.fit.vllm import GIB, KV_CACHES, Card, ServingPlan, sequence_bytes, serve, turns
from wslgpud.cli import app

LLAMA_8B = Shape(32, 4096, 32, 8, 128, 14336, 128256)
QWEN_15_7B = Shape(32, 4096, 32, 32, 128, 11008, 151936)
QWEN_25_7B = Shape(28, 3584, 28, 4, 128, 18944, 152064)


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


def test_less_of_the_card_is_asked_for_where_windows_has_some_of_it():
    said = [str(turn) for turn, _ in turns(LLAMA_8B, ServingPlan(context=4096, utilization=0.95), card(31.84, 30.12))]

    assert said[0] == "--gpu-memory-utilization 0.94"


def test_the_longest_sequence_that_fits_is_named():
    plan, of_card = older(29000), card(23.58)
    said = {str(turn): tokens for turn, tokens in turns(LLAMA_8B, plan, of_card)}

    longest = next(text for text in said if text.startswith("--max-model-len"))
    assert said[longest] == int(longest.split()[1])
    assert serve(LLAMA_8B, older(29000), of_card).cache_bytes < 29000 * 131072
    assert said["--kv-cache-dtype fp8"] == pytest.approx(2 * said[longest], rel=0.01)


def test_windows_and_latents_take_less_of_the_cache():
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
    assert each(windowed, 65536) == pytest.approx(8 + 24 * (1023 + 2048) / 65536, rel=0.01)
    assert each(hybrid, 65536) == 8
    linear = of_config(base | {"layer_types": ["linear_attention"] * 32})
    assert serve(linear, ServingPlan(), card(24)).refusal is None
    # DeepSeek V2 Lite keeps 512 + 64 numbers of a token: arXiv:2405.04434, 2.1.2
    latent = of_config(
        base
        | {"model_type": "deepseek_v2", "num_attention_heads": 16, "kv_lora_rank": 512, "qk_nope_head_dim": 128}
        | {"qk_rope_head_dim": 64, "v_head_dim": 128}
    )
    assert sequence_bytes(latent, ServingPlan(), card(24), 4096) == 4096 * 32 * 576 * 2


@given(
    st.builds(
        ServingPlan,
        st.sampled_from(["bf16", "fp8", "awq", "int4"]),
        st.integers(16, 200_000),
        st.floats(0.1, 1.0),
        st.integers(0, 1024),
        st.integers(0, 16384),
        st.sampled_from(KV_CACHES),
        st.booleans(),
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
    for turn, tokens in turns(LLAMA_8B, plan, of_card):
        assert str(turn)
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
        (["--mode", "training"], "--mode is not for --engine vllm"),
        (["--batch", "4"], "--batch is not for --engine vllm"),
        (["--kv-cache-dtype", "int2"], "there are auto, fp8"),
        (["--offload"], "--offload is for diffusion pipelines"),
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
    assert "--max-num-seqs is for --engine vllm" in " ".join(done.output.split())
