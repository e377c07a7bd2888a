"""vLLM's memory split matches its log, and configurations it would refuse are known beforehand."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from click.testing import CliRunner

from tests.advise.fit.shapes import shape as sized
from wslgpud.advise.fit.estimate import GIB, VllmStep, served_by_vllm, vllm_step
from wslgpud.advise.fit.plan import Estimate, NoEstimate, Plan
from wslgpud.advise.fit.source import NamedModel, Shape, of_config
from wslgpud.cli import app

LLAMA_8B = sized(32, 4096, 32, 8, 128, 14336, 128256)
QWEN_15_7B = sized(32, 4096, 32, 32, 128, 11008, 151936)
QWEN_25_7B = sized(28, 3584, 28, 4, 128, 18944, 152064)


def served(shape: Shape | None, plan: Plan, share_bytes: float, step: VllmStep) -> Estimate:
    return served_by_vllm(round(share_bytes), step, NamedModel("some", "language", "", shape), plan)


def cache_bytes(found: Estimate, share_bytes: float) -> float:
    """Return what a share leaves to the cache."""
    return share_bytes - found.total_bytes + found.parts["keys and values"]


def older(tokens: int) -> VllmStep:
    """Return the step of vLLM before its version 1, which took the longest sequence as one."""
    return VllmStep(tokens, 256)


@pytest.mark.parametrize(
    ("shape", "precision", "tokens", "share_gib", "cache_gib"),
    [
        # https://github.com/vllm-project/vllm/issues/10517, an RTX 3090: "kv_cache_size=3.81GiB", "2.89GiB"
        (LLAMA_8B, "bf16", 20000, 0.9 * 23.58, 3.81),
        (LLAMA_8B, "bf16", 29000, 0.9 * 23.58, 2.89),
        # https://github.com/vllm-project/vllm/pull/10511, an H100: "available_kv_cache_memory 53.29GiB"
        (LLAMA_8B, "bf16", 8192, 0.9 * 79.22, 53.29),
        # https://github.com/vllm-project/vllm/issues/13882, 8 GB: "memory reserved for KV Cache is -1.05GiB"
        (QWEN_25_7B, "awq", 4096, 0.7 * 8.0, -1.05),
        # https://github.com/QwenLM/Qwen3/issues/16, an RTX 3090: 24320 tokens of 512 KiB
        (QWEN_15_7B, "gptq", 32768, 0.9 * 23.69, 24320 * 512 / (1 << 20)),
    ],
)
def test_the_cache_gets_what_the_log_says(
    shape: Shape, precision: str, tokens: int, share_gib: float, cache_gib: float
) -> None:
    found = served(shape, Plan(precision=precision, context=tokens), share_gib * GIB, older(tokens))

    assert abs(cache_bytes(found, share_gib * GIB) / GIB - cache_gib) <= 0.03 * share_gib


@pytest.mark.parametrize(
    ("tokens", "cache_gib", "counted"),
    [
        # https://github.com/vllm-project/vllm/issues/10517: 1952 and 1478 blocks of 16 tokens
        (20000, 3.81, 1952 * 16),
        (29000, 2.89, 1478 * 16),
        # https://github.com/vllm-project/vllm/issues/12330: 5691 blocks
        (8192, 11.12, 5691 * 16),
    ],
)
def test_a_cache_holds_as_many_tokens_as_vllm_counted(tokens: int, cache_gib: float, counted: int) -> None:
    plan = Plan(context=tokens)
    fixed = -cache_bytes(served(LLAMA_8B, plan, 0, older(tokens)), 0)
    found = served(LLAMA_8B, plan, fixed + cache_gib * GIB, older(tokens))

    held = int(str(found.by).removeprefix("vLLM, with room for ").removesuffix(" tokens"))
    assert held == pytest.approx(counted, rel=0.003)


FEW_WORDS = replace(LLAMA_8B, vocabulary=1000)
SMALL, LARGE = vllm_step(70 * GIB - 1), vllm_step(70 * GIB)


def mixture(dense_width: int) -> Shape:
    experts = {"num_experts": 8, "moe_intermediate_size": 2048, "num_experts_per_tok": 2, "first_k_dense_replace": 1}
    experts["shared_expert_intermediate_size"] = 1024
    return sized(32, 4096, 32, 8, 128, dense_width, 1000, **experts)


@pytest.mark.parametrize(
    ("shape", "precision", "step", "profiling_bytes"),
    [
        # vLLM's defaults of tokens in a step and of sequences, by the size of the card; 11 bytes for each logit
        (LLAMA_8B, "bf16", SMALL, 2048 * 4096 * 2 + 256 * 128256 * 11),
        (LLAMA_8B, "bf16", LARGE, 8192 * 4096 * 2 + 1024 * 128256 * 11),
        (LLAMA_8B, "fp32", VllmStep(2048, 1024), 2048 * 4096 * 4 + 1024 * 128256 * 11),
        # not more sequences than tokens
        (LLAMA_8B, "bf16", VllmStep(64, 256), 64 * 4096 * 2 + 64 * 128256 * 11),
        # a block that needs more than the sampler
        (FEW_WORDS, "bf16", SMALL, 2048 * (2 * 4096 + 3 * 14336) * 2),
        (FEW_WORDS, "fp32", SMALL, 2048 * (2 * 4096 + 3 * 14336) * 4),
        (mixture(5121), "bf16", SMALL, 2048 * (2 * 4096 + 3 * 5121) * 2),
        (mixture(5119), "bf16", SMALL, 2048 * (2 * 4096 + 3 * 5120) * 2),
    ],
)
def test_the_profiling_run_takes_the_largest_step(
    shape: Shape, precision: str, step: VllmStep, profiling_bytes: int
) -> None:
    parts = served(shape, Plan(precision=precision), 80 * GIB, step).parts

    assert parts["profiling run"] == profiling_bytes
    assert parts["CUDA graphs"] == 32 * 86 * 230_000
    assert parts["CUDA itself"] == GIB // 2


def test_the_cache_must_hold_all_sequences_of_the_plan() -> None:
    each = 4096 * 2 * 8 * 128 * 2 * 32

    assert served(LLAMA_8B, Plan(), 80 * GIB, SMALL).parts["keys and values"] == each
    four = served(LLAMA_8B, Plan(batch=4), 80 * GIB, SMALL)
    assert four.parts["keys and values"] == 4 * each
    assert served(LLAMA_8B, Plan(batch=4), four.total_bytes, SMALL).by == replace(four.by, facts={"count": 4 * 4096})
    assert str(served(LLAMA_8B, Plan(), GIB, SMALL).by) == "vLLM, with room for 0 tokens"


def test_layers_with_a_window_take_less_of_the_cache() -> None:
    kinds = ["sliding_attention"] * 24 + ["full_attention"] * 8
    base = {
        "model_type": "llama",
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "intermediate_size": 14336,
        "vocab_size": 128256,
    }

    def tokens(more: dict[str, object], context: int) -> float:
        """Return how many tokens all layers keep of a sequence."""
        found = served(of_config(base | more), Plan(context=context), 80 * GIB, SMALL)
        return found.parts["keys and values"] / (2 * 8 * 128 * 2)

    windowed = {"layer_types": kinds, "sliding_window": 1024}
    assert tokens({}, 65536) == 32 * 65536
    # a window, and the tokens of one step
    assert tokens(windowed, 65536) == 8 * 65536 + 24 * (1024 + 2048)
    assert tokens(windowed, 1024) == 32 * 1024
    assert tokens({"full_attention_interval": 4}, 65536) == 8 * 65536
    assert tokens({"layer_types": ["linear_attention"] * 32}, 65536) == 0


def test_a_model_that_no_rule_describes_is_not_computed() -> None:
    with pytest.raises(NoEstimate, match="computed, not traced"):
        served(None, Plan(), 80 * GIB, SMALL)


def asked(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["fit", "8B", "--engine", "vllm", *arguments], env={"COLUMNS": "200"})
    return done.exit_code, " ".join(done.output.split())


def test_the_command_says_how_many_tokens_fit() -> None:
    fits, shown = asked("--usable", "24GiB", "--context", "8192")
    not_so, document = asked("--usable", "24GiB", "--context", "131072", "--json")

    assert (fits, not_so) == (0, 1)
    assert "context 8192, vLLM, with room for " in shown
    assert "to spare (vLLM's share of the card)" in shown
    found = json.loads(document)
    assert found["fits"] is False
    assert found["usable_bytes"] == round(0.92 * 24 * GIB)
    assert sum(found["parts_bytes"].values()) == found["total_bytes"]
    assert [knob["turn"] for knob in found["knobs"]] == ["context 10240"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--mode", "training"], "--mode has no meaning for --engine vllm"),
        (["--offload"], "--offload has no meaning for --engine vllm"),
        (["--usable", "0GB"], "write it like 14.5GiB"),
    ],
)
def test_what_has_no_meaning_is_refused_by_name(arguments: list[str], words: str) -> None:
    code, shown = asked("--usable", "24GiB", *arguments)

    assert code == 2
    assert words in shown


def test_its_options_are_for_it_alone() -> None:
    done = CliRunner().invoke(app, ["fit", "7B", "--usable", "24GiB", "--gpu-memory-utilization", "0.4"])

    assert done.exit_code == 2
    assert "--gpu-memory-utilization has no meaning for --engine transformers" in " ".join(done.output.split())
