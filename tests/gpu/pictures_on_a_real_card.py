"""Builds diffusion pipelines from their configurations and compares their memory with the answers of ``fit``.

    python -m tests.gpu.pictures_on_a_real_card OUT [--seconds 120] [--tiny]

Not a test: it needs an NVIDIA card with some 60 GB free, torch, transformers, diffusers and accelerate. Weights are
random, so nothing is fetched. Each case is two steps and the decoding; measured is the most that torch's allocator
held, plus what the process had beside it (CUDA's own), by NVML. OUT gets ``pictures.json``, and for some cases every
allocation (``allocations-N.json.gz``), with what made it. ``--tiny`` tries the same on a processor with models of toy
size.
"""

from __future__ import annotations

import argparse
import gzip
import json
import time
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from tests.gpu.fit_on_a_real_card import forget, used
from wslgpud.advise.fit.diffusion import of
from wslgpud.advise.fit.diffusion_configs import CONFIGS
from wslgpud.advise.fit.picture import PicturePlan, estimate

#: The most important first; every allocation of the first ones is recorded.
CASES: tuple[tuple[str, PicturePlan], ...] = (
    ("sdxl", PicturePlan("fp16")),
    ("flux-dev", PicturePlan("bf16")),
    ("sdxl", PicturePlan("bf16")),
    ("sd15", PicturePlan("fp16", width=512, height=512)),
    ("sdxl", PicturePlan("fp16", batch=4)),
    ("sdxl", PicturePlan("fp16", batch=4, slicing=True)),
    ("sdxl", PicturePlan("fp16", offload=True)),
    ("flux-dev", PicturePlan("fp8")),
    ("flux-schnell", PicturePlan("bf16", width=768, height=1344)),
    ("sd15", PicturePlan("fp16", batch=8, width=512, height=512)),
    ("sdxl", PicturePlan("fp16", width=1536, height=1536, tiling=True)),
    ("sdxl", PicturePlan("bf16", width=1536, height=1536)),
    ("sd15", PicturePlan("fp32", width=768, height=768)),
    ("sdxl", PicturePlan("fp32")),
    ("sdxl", PicturePlan("fp8")),
    ("flux-dev", PicturePlan("bf16", batch=2)),
    ("flux-dev", PicturePlan("bf16", width=512, height=512)),
    ("sd15", PicturePlan("bf16", width=1024, height=1024, tiling=True)),
    ("flux-dev", PicturePlan("fp8", offload=True)),
    ("flux-dev", PicturePlan("bf16", offload=True)),
)
_RECORDED = 5
TINY: dict[str, Any] = {
    "block_out_channels": [32, 32, 64, 64],
    "cross_attention_dim": 64,
    "attention_head_dim": 8,
    "num_layers": 1,
    "num_single_layers": 1,
    "num_attention_heads": 4,
    "joint_attention_dim": 64,
    "pooled_projection_dim": 64,
    "hidden_size": 64,
    "num_hidden_layers": 1,
    "intermediate_size": 64,
    "projection_dim": 64,
    "d_model": 64,
    "d_ff": 64,
    "d_kv": 16,
    "num_heads": 4,
    "transformer_layers_per_block": [1, 1, 1],
    "projection_class_embeddings_input_dim": 6 * 256 + 64,
}


def _config(config: Mapping[str, Any], *, tiny: bool) -> dict[str, Any]:
    found = dict(config)
    if tiny:
        found |= {name: value for name, value in TINY.items() if name in found}
        if len(config.get("block_out_channels", ())) == 3:
            found |= {"block_out_channels": [32, 32, 64], "attention_head_dim": [4, 4, 8], "cross_attention_dim": 128}
        if found["_class_name"] == "FluxTransformer2DModel":
            found |= {"attention_head_dim": 16, "axes_dims_rope": [4, 6, 6]}
    return found


def _model(config: Mapping[str, Any], *, tiny: bool) -> Any:
    import diffusers
    import transformers

    found = _config(config, tiny=tiny)
    kind = found.pop("_class_name")
    if hasattr(diffusers, kind):
        return getattr(diffusers, kind).from_config(found)
    made = transformers.T5Config if kind.startswith("T5") else transformers.CLIPTextConfig
    return getattr(transformers, kind)(made(**found))


def _pipeline(name: str, models: dict[str, Any]) -> Any:
    import diffusers

    if name.startswith("flux"):
        scheduler = diffusers.FlowMatchEulerDiscreteScheduler()
        return diffusers.FluxPipeline(scheduler=scheduler, tokenizer=None, tokenizer_2=None, **models)
    scheduler = diffusers.EulerDiscreteScheduler()
    if name == "sdxl":
        return diffusers.StableDiffusionXLPipeline(
            scheduler=scheduler, tokenizer=None, tokenizer_2=None, add_watermarker=False, **models
        )
    return diffusers.StableDiffusionPipeline(
        scheduler=scheduler,
        tokenizer=None,
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
        **models,
    )


def measured(name: str, plan: PicturePlan, *, tiny: bool, record: Path | None = None) -> dict[str, Any]:
    """Build the pipeline, draw with it, and return the memory that it took."""
    import torch  # only here is it needed

    device = "cpu" if tiny else "cuda"
    dtype = {"fp16": torch.float16, "fp32": torch.float32}.get(plan.precision, torch.bfloat16)
    if tiny:
        dtype = torch.float32
    usual = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            models = {part: _model(config, tiny=tiny).eval() for part, config in CONFIGS[name].items()}
    finally:
        torch.set_default_dtype(usual)
    count = sum(p.numel() for model in models.values() for p in model.parameters())
    if plan.precision == "fp8" and not tiny:
        models["transformer" if name.startswith("flux") else "unet"].enable_layerwise_casting(
            storage_dtype=torch.float8_e4m3fn, compute_dtype=torch.bfloat16
        )
    pipe = _pipeline(name, models)
    pipe.set_progress_bar_config(disable=True)
    if plan.tiling:
        pipe.vae.enable_tiling()
    if plan.slicing:
        pipe.vae.enable_slicing()
    if plan.offload and not tiny:
        pipe.enable_model_cpu_offload()
    forget()
    with torch.no_grad(), _recording(None if tiny else record):
        pipe(
            **_prompts(torch, name, pipe, plan, device, dtype),
            num_inference_steps=2,
            width=plan.width,
            height=plan.height,
            output_type="pt",
        )
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


def _prompts(torch: Any, name: str, pipe: Any, plan: PicturePlan, device: str, dtype: Any) -> dict[str, Any]:
    """Let the text encoders work, and return embeddings of the shapes that they would have made of words."""
    words = torch.randint(0, 1000, (plan.batch, 77), device=device)
    pipe.text_encoder(words)
    size = 512 if name.startswith("flux") else 77
    if name != "sd15":
        pipe.text_encoder_2(torch.randint(0, 1000, (plan.batch, size), device=device))
    denoiser = pipe.transformer if name.startswith("flux") else pipe.unet
    sizes = denoiser.config
    width = sizes.joint_attention_dim if name.startswith("flux") else sizes.cross_attention_dim
    found = {"prompt_embeds": torch.randn(plan.batch, size, width, device=device, dtype=dtype)}
    if name != "sd15":
        pooled = sizes.pooled_projection_dim if name.startswith("flux") else pipe.text_encoder_2.config.projection_dim
        found["pooled_prompt_embeds"] = torch.randn(plan.batch, pooled, device=device, dtype=dtype)
    if not name.startswith("flux"):
        found |= {f"negative_{part}": torch.zeros_like(value) for part, value in found.items()}
    return found


@contextmanager
def _recording(file: Path | None) -> Any:
    """Record each allocation with the innermost functions that asked for it."""
    if file is None:
        yield
        return
    import torch

    torch.cuda.memory._record_memory_history(max_entries=1_000_000, stacks="python")
    try:
        yield
    finally:
        trace = torch.cuda.memory._snapshot()["device_traces"][0]
        torch.cuda.memory._record_memory_history(enabled=None)
    rows = []
    for entry in trace:
        frames = [f"{frame['name']}:{frame['line']}" for frame in entry.get("frames", ())[:6]]
        rows.append((entry["action"], entry.get("addr"), entry["size"], " < ".join(frames)))
    with gzip.open(file, "wt") as stream:
        json.dump(rows, stream)


def row(name: str, plan: PicturePlan, facts: dict[str, Any]) -> dict[str, Any]:
    """Return one line of the table: the peak predicted and measured."""
    model = of(name)
    assert model is not None
    found = estimate(model, plan)
    peak = facts.get("reserved_bytes", 0) + facts.get("beside_bytes", 0)
    return {
        "model": name,
        "plan": asdict(plan),
        "counted_parameters": model.size,
        "parts_bytes": found.parts,
        "predicted_bytes": found.total_bytes,
        "measured_bytes": peak,
        "error_ratio": found.total_bytes / peak - 1 if peak else None,
        **facts,
    }


def main() -> None:
    """Run as many cases as there is time for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--tiny", action="store_true")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    began, rows = time.monotonic(), []
    before = 0 if arguments.tiny else used()
    for number, (name, plan) in enumerate(CASES):
        if time.monotonic() - began > arguments.seconds - 6:
            break
        record = arguments.out / f"allocations-{number}.json.gz" if number < _RECORDED else None
        asked = replace(plan, width=256, height=256) if arguments.tiny else plan
        try:
            facts = measured(name, asked, tiny=arguments.tiny, record=record)
        except Exception as error:
            facts = {"error": f"{type(error).__name__}: {error}"[:300]}
        if "beside_bytes" in facts:
            facts["beside_bytes"] -= before
        rows.append(row(name, plan, facts))
        forget()
        (arguments.out / "pictures.json").write_text(json.dumps(rows, indent=1))
        gib = {key: round(rows[-1][key] / 2**30, 2) for key in ("predicted_bytes", "measured_bytes")}
        done = facts.get("error", f"{gib}, {rows[-1]['error_ratio'] or 0:+.1%}")
        print(f"{time.monotonic() - began:5.1f} s  {name} {plan}: {done}", flush=True)


if __name__ == "__main__":
    main()
