"""Builds real models from their configurations and compares the memory they take with what ``fit`` says.

    python -m tests.gpu.fit_on_a_real_card OUT [--seconds 80] [--tiny]

Not a test: it needs an NVIDIA card with some 80 GB free, torch, transformers and (for LoRA) peft. Weights are
random, so nothing is fetched. Each case is two steps with an optimizer or one generation; measured is the
most that torch's allocator held, plus what the process had beside it (CUDA's own), by NVML.
OUT gets ``fit.json`` and ``fit.md``; cases that find no time any more are left out. ``--tiny`` tries
the same on a processor with models of toy size, to see that it runs.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from wslgpud.advise.fit.estimate import Plan, estimate
from wslgpud.advise.fit.shape import of_config


def _decoder(kind: str, *sizes: int, **more: Any) -> dict[str, Any]:
    """Return the config.json of a decoder whose keys have the usual names."""
    heads = ("num_attention_heads", "num_key_value_heads")
    names = ("hidden_size", "num_hidden_layers", *heads, "intermediate_size", "vocab_size")
    return {"model_type": kind, **dict(zip(names, sizes, strict=True)), "tie_word_embeddings": False, **more}


LLAMA_1B = {
    "model_type": "llama",
    "hidden_size": 2048,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "intermediate_size": 8192,
    "vocab_size": 128256,
    "tie_word_embeddings": True,
}
LLAMA_7B = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "intermediate_size": 11008,
    "vocab_size": 32000,
    "tie_word_embeddings": False,
}
QWEN_3B = {
    "model_type": "qwen2",
    "hidden_size": 2048,
    "num_hidden_layers": 36,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "intermediate_size": 11008,
    "vocab_size": 151936,
    "tie_word_embeddings": True,
}
GPT2_LARGE = {
    "model_type": "gpt2",
    "n_embd": 1280,
    "n_layer": 36,
    "n_head": 20,
    "vocab_size": 50257,
    "activation_function": "gelu_new",
    "tie_word_embeddings": True,
    "n_positions": 1024,
    "resid_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "attn_pdrop": 0.0,
}
#: families that build their blocks otherwise, each in a size that takes seconds
OTHERS: dict[str, dict[str, Any]] = {
    "Qwen2.5 7B": _decoder("qwen2", 3584, 28, 28, 4, 18944, 152064),
    "Llama 3.2 3B": _decoder("llama", 3072, 28, 24, 8, 8192, 128256, head_dim=128, tie_word_embeddings=True),
    "Mistral 7B": _decoder("mistral", 4096, 32, 32, 8, 14336, 32768, sliding_window=None),
    "Qwen3 4B": _decoder("qwen3", 2560, 36, 32, 8, 9728, 151936, head_dim=128, tie_word_embeddings=True),
    "Gemma 2 2B": _decoder(
        "gemma2", 2304, 26, 8, 4, 9216, 256000, head_dim=256, final_logit_softcapping=30.0, tie_word_embeddings=True
    ),
    "Gemma 3 1B": _decoder(
        "gemma3_text", 1152, 26, 4, 1, 6912, 262144, head_dim=256, sliding_window=512, tie_word_embeddings=True
    ),
    "OPT 1.3B": {
        "model_type": "opt",
        "hidden_size": 2048,
        "word_embed_proj_dim": 2048,
        "num_hidden_layers": 24,
        "num_attention_heads": 32,
        "ffn_dim": 8192,
        "vocab_size": 50272,
        "activation_function": "relu",
        "tie_word_embeddings": True,
    },
    "BLOOM 1.7B": {
        "model_type": "bloom",
        "hidden_size": 2048,
        "n_layer": 24,
        "n_head": 16,
        "vocab_size": 250880,
        "tie_word_embeddings": True,
    },
    "Pythia 1.4B": _decoder("gpt_neox", 2048, 24, 16, 16, 8192, 50304),
    "StarCoder2 3B": _decoder(
        "starcoder2", 3072, 30, 24, 2, 12288, 49152, sliding_window=4096, tie_word_embeddings=True
    ),
    "Phi-3 mini": _decoder("phi3", 3072, 32, 32, 32, 8192, 32064, pad_token_id=0, sliding_window=2047),
    "OLMo 2 1B": _decoder("olmo2", 2048, 16, 16, 16, 8192, 100352),
    "StableLM 2 1.6B": _decoder("stablelm", 2048, 24, 32, 32, 5632, 100352),
    "Granite 2B": _decoder("granite", 2048, 40, 32, 8, 8192, 49155, tie_word_embeddings=True),
    "Phi-2 2.7B": _decoder("phi", 2560, 32, 32, 32, 10240, 51200),
    "Gemma 2B": _decoder("gemma", 2048, 18, 8, 1, 16384, 256000, head_dim=256, tie_word_embeddings=True),
    "GLM-4 9B": _decoder("glm4", 4096, 40, 32, 2, 13696, 151552, head_dim=128),
    "Cohere 8L": _decoder("cohere", 4096, 8, 32, 32, 22528, 256000, tie_word_embeddings=True),
    "Qwen3 MoE 12L": _decoder(
        "qwen3_moe",
        *(2048, 12, 32, 4, 6144, 151936),
        head_dim=128,
        num_experts=128,
        num_experts_per_tok=8,
        moe_intermediate_size=768,
    ),
    "DeepSeek V2 Lite 12L": _decoder(
        "deepseek_v2",
        *(2048, 12, 16, 16, 10944, 102400),
        kv_lora_rank=512,
        q_lora_rank=None,
        qk_nope_head_dim=128,
        qk_rope_head_dim=64,
        v_head_dim=128,
        n_routed_experts=64,
        n_shared_experts=2,
        num_experts_per_tok=6,
        moe_intermediate_size=1408,
        first_k_dense_replace=1,
        n_group=1,
        topk_group=1,
    ),
}
#: families of which no allocation was looked at before their figures were predicted (some cut to fewer layers)
HELD_OUT: dict[str, dict[str, Any]] = {
    "Falcon 7B 8L": {
        "model_type": "falcon",
        "hidden_size": 4544,
        "num_hidden_layers": 8,
        "num_attention_heads": 71,
        "vocab_size": 65024,
        "multi_query": True,
        "parallel_attn": True,
        "new_decoder_architecture": False,
        "bias": False,
        "tie_word_embeddings": True,
    },
    "GPT-J 6B 8L": {
        "model_type": "gptj",
        "n_embd": 4096,
        "n_layer": 8,
        "n_head": 16,
        "rotary_dim": 64,
        "vocab_size": 50400,
        "activation_function": "gelu_new",
        "resid_pdrop": 0.0,
        "tie_word_embeddings": False,
    },
    "CodeGen 2B 12L": {
        "model_type": "codegen",
        "n_embd": 2560,
        "n_layer": 12,
        "n_head": 32,
        "rotary_dim": 64,
        "vocab_size": 51200,
        "activation_function": "gelu_new",
        "resid_pdrop": 0.0,
        "tie_word_embeddings": False,
    },
    "GPT-Neo 1.3B": {
        "model_type": "gpt_neo",
        "hidden_size": 2048,
        "num_layers": 24,
        "num_heads": 16,
        "vocab_size": 50257,
        "attention_types": [[["global", "local"], 12]],
        "activation_function": "gelu_new",
        "resid_dropout": 0.0,
        "tie_word_embeddings": True,
    },
    "MPT 7B 8L": {"model_type": "mpt", "d_model": 4096, "n_layers": 8, "n_heads": 32, "vocab_size": 50432},
    "XGLM 1.7B": {
        "model_type": "xglm",
        "d_model": 2048,
        "num_layers": 24,
        "attention_heads": 16,
        "ffn_dim": 8192,
        "vocab_size": 256008,
        "activation_function": "gelu",
        "dropout": 0.1,
        "tie_word_embeddings": True,
    },
    "StarCoder 1B": {
        "model_type": "gpt_bigcode",
        "n_embd": 2048,
        "n_layer": 24,
        "n_head": 16,
        "n_inner": 8192,
        "vocab_size": 49152,
        "activation_function": "gelu_pytorch_tanh",
        "multi_query": True,
        "resid_pdrop": 0.1,
        "tie_word_embeddings": True,
    },
    "Nemotron 4B 12L": _decoder(
        "nemotron", 3072, 12, 24, 8, 9216, 256000, head_dim=128, hidden_act="relu2", partial_rotary_factor=0.5
    ),
    "SmolLM3 3B": _decoder("smollm3", 2048, 36, 16, 4, 11008, 128256, tie_word_embeddings=True, pad_token_id=0),
    "OLMo 1B": _decoder("olmo", 2048, 16, 16, 16, 8192, 50304, tie_word_embeddings=True),
    "Arcee 4.5B 12L": _decoder("arcee", 2560, 12, 20, 4, 18432, 128004, head_dim=128, hidden_act="relu2"),
    "Helium 2B": _decoder("helium", 2560, 24, 20, 20, 7040, 48000, head_dim=128),
    "Mixtral 2L": _decoder(
        "mixtral", 4096, 2, 32, 8, 14336, 32000, num_local_experts=8, num_experts_per_tok=2, sliding_window=None
    ),
    "Qwen1.5 MoE 8L": _decoder(
        "qwen2_moe",
        *(2048, 8, 16, 16, 5632, 151936),
        num_experts=60,
        num_experts_per_tok=4,
        moe_intermediate_size=1408,
        shared_expert_intermediate_size=5632,
    ),
}
#: as above, after what the first ones taught; some of them nobody has read the source of
HELD_OUT |= {
    "GLM 9B 8L": _decoder("glm", 4096, 8, 32, 2, 13696, 151552, head_dim=128, pad_token_id=0),
    "Cohere2 7B 6L": _decoder("cohere2", 4096, 6, 32, 8, 14336, 256000, head_dim=128, tie_word_embeddings=True),
    "OLMoE 4L": _decoder("olmoe", 2048, 4, 16, 16, 1024, 50304, num_experts=64, num_experts_per_tok=8),
    "Seed-OSS 4L": _decoder("seed_oss", 5120, 4, 80, 8, 27648, 155136, head_dim=128, residual_dropout=0.0),
    "ERNIE 4.5 0.3B": _decoder("ernie4_5", 1024, 18, 16, 2, 3072, 103424, head_dim=128, tie_word_embeddings=True),
    "HunYuan 1.8B": _decoder(
        "hunyuan_v1_dense", 2048, 32, 16, 4, 6144, 120818, head_dim=128, tie_word_embeddings=True, pad_token_id=0
    ),
    "EXAONE 4 1.2B": _decoder(
        "exaone4", 2048, 30, 32, 8, 4096, 102400, head_dim=64, tie_word_embeddings=True, sliding_window=4096
    ),
}
#: the ones that write their attention's scores out in transformers
_EAGER = frozenset({"bloom", "codegen", "gpt_neo", "gptj", "mpt", "xglm"})
#: how the others' configurations call the longest context
_CONTEXTS = {"gpt2": "n_positions", "gpt_bigcode": "n_positions", "gptj": "n_positions", "codegen": "n_positions"}
GIB = float(1 << 30)
MODELS = {
    "Llama 1B": LLAMA_1B,
    "Llama 7B": LLAMA_7B,
    "Qwen 3B": QWEN_3B,
    "GPT-2 large": GPT2_LARGE,
    **OTHERS,
    **HELD_OUT,
}
TINY = {
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "intermediate_size": 352,
    "vocab_size": 512,
    "n_embd": 128,
    "n_layer": 2,
    "n_head": 4,
    "d_model": 128,
    "n_layers": 2,
    "n_heads": 4,
    "num_layers": 2,
    "num_heads": 4,
    "attention_heads": 4,
    "attention_types": [[["global", "local"], 1]],
    "rotary_dim": 16,
}

#: In the order of what is most worth knowing.
CASES: tuple[tuple[str, Plan], ...] = (
    ("Llama 1B", Plan("training", "bf16", 4, 2048)),
    ("Llama 7B", Plan("inference", "bf16", 4, 4096)),
    ("Llama 7B", Plan("lora", "bf16", 2, 2048, checkpointing=True)),
    ("Llama 1B", Plan("training", "mixed", 2, 2048)),
    ("Llama 7B", Plan("training", "bf16", 1, 2048, checkpointing=True)),
    ("Llama 1B", Plan("training", "fp32", 2, 1024)),
    ("Llama 1B", Plan("lora", "bf16", 4, 2048)),
    ("Qwen 3B", Plan("training", "bf16", 2, 2048)),
    ("Qwen 3B", Plan("inference", "bf16", 8, 4096)),
    ("Llama 1B", Plan("training", "bf16", 16, 1024, checkpointing=True)),
    ("GPT-2 large", Plan("training", "bf16", 8, 1024)),
    ("Llama 7B", Plan("lora", "bf16", 1, 1024, targets="all")),
    ("Llama 1B", Plan("inference", "fp32", 1, 8192)),
    ("Llama 1B", Plan("training", "bf16", 1, 512, optimizer="adamw-fused")),
    *((name, Plan("inference", "bf16", 1, context)) for name in ("Qwen2.5 7B",) for context in (2048, 8192, 32768)),
    ("Llama 3.2 3B", Plan("inference", "fp16", 2, 8192)),
    ("Mistral 7B", Plan("inference", "bf16", 2, 8192)),
    ("Gemma 3 1B", Plan("inference", "bf16", 4, 16384)),
    ("StarCoder2 3B", Plan("inference", "bf16", 2, 16384)),
    ("BLOOM 1.7B", Plan("inference", "bf16", 2, 4096)),
    ("BLOOM 1.7B", Plan("training", "bf16", 2, 1024)),
    ("Gemma 2 2B", Plan("training", "bf16", 1, 2048)),
    ("Gemma 2 2B", Plan("inference", "bf16", 2, 4096)),
    ("OPT 1.3B", Plan("training", "mixed", 4, 1024)),
    ("Qwen3 4B", Plan("lora", "bf16", 2, 2048)),
    ("Pythia 1.4B", Plan("training", "bf16", 4, 1024)),
    ("Phi-3 mini", Plan("lora", "bf16", 1, 2048, targets="all")),
    ("OLMo 2 1B", Plan("training", "bf16", 4, 2048)),
    ("Mistral 7B", Plan("lora", "bf16", 1, 4096, checkpointing=True)),
    ("StableLM 2 1.6B", Plan("training", "bf16", 2, 2048)),
    ("StableLM 2 1.6B", Plan("inference", "bf16", 4, 4096)),
    ("Granite 2B", Plan("training", "bf16", 2, 2048)),
    ("Granite 2B", Plan("lora", "bf16", 2, 2048)),
    ("Phi-2 2.7B", Plan("training", "bf16", 1, 2048)),
    ("Phi-2 2.7B", Plan("inference", "fp16", 2, 2048)),
    ("Gemma 2B", Plan("training", "bf16", 1, 2048)),
    ("Gemma 2B", Plan("inference", "bf16", 2, 8192)),
    ("GLM-4 9B", Plan("inference", "bf16", 1, 16384)),
    ("GLM-4 9B", Plan("lora", "bf16", 1, 2048, checkpointing=True)),
    ("Cohere 8L", Plan("training", "bf16", 1, 1024)),
    ("Cohere 8L", Plan("inference", "bf16", 2, 4096)),
    ("Qwen3 MoE 12L", Plan("inference", "bf16", 2, 4096)),
    ("Qwen3 MoE 12L", Plan("training", "bf16", 1, 1024)),
    ("DeepSeek V2 Lite 12L", Plan("inference", "bf16", 2, 4096)),
    ("DeepSeek V2 Lite 12L", Plan("training", "bf16", 1, 1024)),
)
#: as above, of the families held out, and of modes that no case above has
HELD_OUT_CASES: tuple[tuple[str, Plan], ...] = (
    ("Falcon 7B 8L", Plan("training", "bf16", 1, 2048)),
    ("Falcon 7B 8L", Plan("inference", "bf16", 2, 4096)),
    ("GPT-J 6B 8L", Plan("training", "bf16", 2, 1024)),
    ("CodeGen 2B 12L", Plan("training", "bf16", 2, 1024)),
    ("GPT-Neo 1.3B", Plan("training", "bf16", 2, 1024)),
    ("MPT 7B 8L", Plan("training", "bf16", 2, 1024)),
    ("XGLM 1.7B", Plan("training", "bf16", 1, 1024)),
    ("XGLM 1.7B", Plan("inference", "bf16", 2, 2048)),
    ("StarCoder 1B", Plan("training", "bf16", 2, 2048)),
    ("StarCoder 1B", Plan("inference", "bf16", 4, 4096)),
    ("Nemotron 4B 12L", Plan("training", "bf16", 1, 2048)),
    ("Nemotron 4B 12L", Plan("inference", "bf16", 2, 8192)),
    ("Nemotron 4B 12L", Plan("lora", "bf16", 2, 2048)),
    ("SmolLM3 3B", Plan("training", "bf16", 2, 2048)),
    ("SmolLM3 3B", Plan("training", "bf16", 4, 4096, checkpointing=True)),
    ("SmolLM3 3B", Plan("lora", "bf16", 1, 4096, targets="all")),
    ("SmolLM3 3B", Plan("inference", "bf16", 4, 8192)),
    ("OLMo 1B", Plan("training", "mixed", 4, 1024)),
    ("Arcee 4.5B 12L", Plan("training", "bf16", 1, 2048)),
    ("Helium 2B", Plan("training", "bf16", 2, 2048)),
    ("Helium 2B", Plan("inference", "bf16", 2, 8192)),
    ("Mixtral 2L", Plan("training", "bf16", 1, 2048)),
    ("Mixtral 2L", Plan("inference", "bf16", 2, 4096)),
    ("Qwen1.5 MoE 8L", Plan("training", "bf16", 1, 2048)),
    ("Qwen1.5 MoE 8L", Plan("inference", "bf16", 4, 4096)),
    ("StarCoder2 3B", Plan("training", "bf16", 1, 2048)),
    ("Phi-3 mini", Plan("training", "bf16", 1, 2048)),
    ("Gemma 3 1B", Plan("training", "bf16", 2, 2048)),
    ("Qwen2.5 7B", Plan("lora", "bf16", 1, 2048, checkpointing=True)),
    ("Mistral 7B", Plan("inference", "bf16", 1, 16384)),
    ("GLM 9B 8L", Plan("training", "bf16", 1, 2048)),
    ("GLM 9B 8L", Plan("inference", "bf16", 2, 4096)),
    ("Cohere2 7B 6L", Plan("training", "bf16", 1, 2048)),
    ("Cohere2 7B 6L", Plan("inference", "bf16", 2, 8192)),
    ("OLMoE 4L", Plan("training", "bf16", 2, 2048)),
    ("OLMoE 4L", Plan("inference", "bf16", 4, 4096)),
    ("Seed-OSS 4L", Plan("training", "bf16", 1, 2048)),
    ("Seed-OSS 4L", Plan("inference", "bf16", 2, 8192)),
    ("ERNIE 4.5 0.3B", Plan("training", "bf16", 4, 2048)),
    ("HunYuan 1.8B", Plan("training", "bf16", 2, 2048)),
    ("HunYuan 1.8B", Plan("inference", "bf16", 4, 8192)),
    ("EXAONE 4 1.2B", Plan("training", "bf16", 2, 2048)),
    ("EXAONE 4 1.2B", Plan("lora", "bf16", 2, 2048)),
)


def measured(name: str, plan: Plan, *, tiny: bool) -> dict[str, Any]:
    """Build the model, run the plan with it, and return what that took."""
    import torch  # only here is it needed
    from transformers import AutoConfig, AutoModelForCausalLM

    document = {**MODELS[name], **({k: v for k, v in TINY.items() if k in MODELS[name]} if tiny else {})}
    kind = document.pop("model_type")
    document[_CONTEXTS.get(kind, "max_position_embeddings")] = plan.context
    config = AutoConfig.for_model(kind, **document)
    device = "cpu" if tiny else "cuda"
    usual = torch.get_default_dtype()
    torch.set_default_dtype({"bf16": torch.bfloat16, "fp16": torch.float16}.get(plan.precision, torch.float32))
    try:
        with torch.device(device):
            attention = "eager" if kind in _EAGER else "sdpa"
            model = AutoModelForCausalLM.from_config(config, attn_implementation=attention)
    finally:
        torch.set_default_dtype(usual)
    if not tiny:  # a head made for nothing, where it is the embeddings, leaves no gap in a model that was loaded
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    count = sum(p.numel() for p in model.parameters())
    if plan.mode == "lora":
        from peft import LoraConfig, get_peft_model

        targets = ["q_proj", "v_proj"] if plan.targets == "attention" else "all-linear"
        model = get_peft_model(model, LoraConfig(r=plan.rank, target_modules=targets))
    # Without the padding's 0, for which transformers would write out a mask.
    ids = torch.randint(1, config.vocab_size, (plan.batch, plan.context), device=device)
    if plan.mode == "inference":
        with torch.inference_mode():
            model.eval().generate(ids[:, :-8], max_new_tokens=8, min_new_tokens=8, do_sample=False, pad_token_id=0)
    else:
        _train(torch, model.train(), ids, plan, device)
    if tiny:
        return {"parameters": count}
    torch.cuda.synchronize()
    return {
        "parameters": count,
        "allocated_bytes": torch.cuda.max_memory_allocated(),
        "reserved_bytes": torch.cuda.max_memory_reserved(),
        "beside_bytes": used() - torch.cuda.memory_reserved(),
        "card": torch.cuda.get_device_name(),
        "torch": torch.__version__,
    }


def _train(torch: Any, model: Any, ids: Any, plan: Plan, device: str) -> None:
    if plan.checkpointing:
        model.config.use_cache = False
        model.gradient_checkpointing_enable()
        if plan.mode == "lora":
            model.enable_input_require_grads()
    learning = [p for p in model.parameters() if p.requires_grad]
    fused = {"fused": True} if plan.optimizer == "adamw-fused" else {}
    optimizer = torch.optim.AdamW(learning, lr=1e-5, **fused)
    for _ in range(2):  # the optimizer's states are there from the second step on
        with torch.autocast(device, torch.bfloat16, enabled=plan.precision == "mixed"):
            loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def used() -> int:
    """Return what NVML calls used on the first card, as ``wslgpud fit`` sees it too."""
    import pynvml

    pynvml.nvmlInit()
    return int(pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0)).used)


def row(name: str, plan: Plan, facts: dict[str, Any]) -> dict[str, Any]:
    """Return one line of the table: parts predicted, the peak predicted and measured."""
    shape = of_config(MODELS[name], name)
    found = estimate(shape, plan)
    peak = facts.get("reserved_bytes", 0) + facts.get("beside_bytes", 0)
    return {
        "model": name,
        "plan": {k: getattr(plan, k) for k in plan.__dataclass_fields__},
        "counted_parameters": shape.count(),
        "parts_bytes": found.parts,
        "predicted_bytes": found.total_bytes,
        "measured_bytes": peak,
        "error_ratio": found.total_bytes / peak - 1 if peak else None,
        **facts,
    }


def table(rows: list[dict[str, Any]]) -> str:
    """Write the rows as a table in Markdown."""
    lines = [
        "| model | what | predicted | measured | of it in use / CUDA's own | off by |",
        "|---|---|---|---|---|---|",
    ]
    for r in rows:
        plan = r["plan"]
        what = f"{plan['mode']} {plan['precision']}, batch {plan['batch']}, context {plan['context']}"
        what += f", {plan['optimizer']}" * (plan["mode"] == "training")
        what += ", checkpointing" * plan["checkpointing"] + ", all matrices" * (plan["targets"] == "all")
        figures = [r["predicted_bytes"], r["measured_bytes"], r.get("allocated_bytes", 0), r.get("beside_bytes", 0)]
        predicted, peak, in_use, beside = (f"{figure / GIB:.2f} GiB" for figure in figures)
        off = r.get("error") or ("" if r["error_ratio"] is None else f"{r['error_ratio']:+.1%}")
        lines.append(f"| {r['model']} | {what} | {predicted} | {peak} | {in_use} / {beside} | {off} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run as many cases as there is time for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=80.0)
    parser.add_argument("--tiny", action="store_true")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    began, rows = time.monotonic(), []
    before = 0 if arguments.tiny else used()
    for name, plan in (*CASES, *HELD_OUT_CASES):
        if time.monotonic() - began > arguments.seconds - 6:
            break
        try:
            facts = measured(name, replace(plan, batch=2, context=64) if arguments.tiny else plan, tiny=arguments.tiny)
        except Exception as error:
            facts = {"error": str(error).splitlines()[0][:200]}
        if "beside_bytes" in facts:
            facts["beside_bytes"] -= before
        rows.append(row(name, plan, facts))
        forget()
        (arguments.out / "fit.json").write_text(json.dumps(rows, indent=1))
        (arguments.out / "fit.md").write_text(table(rows))
        print(f"{time.monotonic() - began:5.1f} s  {name} {plan.mode}: {facts.get('error', 'done')}", flush=True)
    print(table(rows))


def forget() -> None:
    """Give everything back, so that the next case begins as the first did."""
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


if __name__ == "__main__":
    main()
