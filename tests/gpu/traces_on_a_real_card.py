"""Runs models on a real card and compares the memory that they take with what their traces say.

    python -m tests.gpu.traces_on_a_real_card OUT [--lists FOURTH] [--seconds 500]
    python -m tests.gpu.traces_on_a_real_card --unmeasured

The second compares traces for the processor, as of a busy card, with what ``traced.json`` says that the card had
reserved; it needs no card.

Not a test: it needs an NVIDIA card with 80 GB, torch, transformers, peft, torchvision, timm and diffusers. Weights are
random, so nothing is fetched. All cases are traced and the answers printed before the first is run. OUT gets
``traced.json`` (each case, its answer and what the card had reserved) and ``traces.json.gz`` (sizes only).
"""

from __future__ import annotations

import argparse
import gc
import gzip
import json
import os
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import count
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from unittest.mock import Mock

from tests.gpu import trace_cases
from wslgpud.advise.fit.tracer.allocator import Allocator, Block

#: Tracers at once, each with its share of the card: with less, cuDNN would choose other algorithms.
_AT_ONCE, _MEASURE_BYTES = 6, 12 << 30
_SHOWN = ("traced_bytes", "reserved_bytes", "error_ratio", "unmeasured", "seconds", "error", "failed")


def recording(events: list[str | int]) -> None:
    """Have every allocator of this process append what it is asked for, as ``tests/advise/fit/replay.py`` reads it."""
    take, give, empty = Allocator.take, Allocator.give, Allocator.empty_cache
    number, numbers = count(), dict[int, int]()

    def taken(self: Allocator, size: int) -> Block:
        block = take(self, size)
        numbers[block.address] = next(number)
        events.extend((self.purpose, size))
        return block

    def given(self: Allocator, block: Block) -> None:
        events.append(-numbers.pop(block.address))
        give(self, block)

    def emptied(self: Allocator) -> None:
        events.append("emptied")
        empty(self)

    Allocator.take, Allocator.give, Allocator.empty_cache = taken, given, emptied  # type: ignore[method-assign]


def trace(case: dict[str, Any]) -> dict[str, Any]:
    """Return a case with its trace; its process traces no other."""
    os.environ["PYTORCH_JIT"] = "0"  # as the tracer does
    from wslgpud.advise.fit.tracer.watch import traced

    began, events = time.monotonic(), list[str | int]()
    recording(events)
    try:
        found = traced({**case, "measure_bytes": _MEASURE_BYTES}, "cuda")
    except Exception as error:
        return {"case": case, "error": f"{type(error).__name__}: {str(error)[:300]}"}
    facts = {"case": case, "traced_bytes": found["reserved_bytes"], "used": found["used"], "events": events}
    return {**facts, "unmeasured": found["unmeasured"], "seconds": round(time.monotonic() - began, 1)}


def trace_apart(case: dict[str, Any]) -> dict[str, Any]:
    """Return a case with its trace, or that the tracer died."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        try:
            return pool.submit(trace, case).result()
        except BrokenProcessPool as error:
            return {"case": case, "error": str(error)}


def measure(case: dict[str, Any]) -> dict[str, Any]:
    """Run a case on the card, as its trace was run; a pipeline by diffusers' own class."""
    import torch

    from wslgpud.advise.fit.tracer.build import built
    from wslgpud.advise.fit.tracer.steps import Stage, run

    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    if "name" in case and case["mode"] == "inference":
        torch.cuda.reset_peak_memory_stats()
        draw(torch, case)
    else:
        made = built(case, "cuda")
        made.model.to("cuda")  # torch.Tensor(...) in a model's code takes no device from its surroundings
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        run(made, Stage(case, "cuda", Mock()))
    torch.cuda.synchronize()
    return {"reserved_bytes": torch.cuda.max_memory_reserved(), "allocated_bytes": torch.cuda.max_memory_allocated()}


def draw(torch: Any, case: dict[str, Any]) -> None:
    """Draw pictures with a pipeline of diffusers, with random weights."""
    import diffusers
    import transformers

    dtype = {"fp16": torch.float16, "fp32": torch.float32}.get(case["precision"], torch.bfloat16)
    usual, models = torch.get_default_dtype(), {}
    torch.set_default_dtype(dtype)
    with torch.device("cuda"):
        for part, config in json.loads(case["model"].removeprefix("pipeline:")).items():
            kind = config.pop("_class_name")
            if hasattr(diffusers, kind):
                models[part] = getattr(diffusers, kind).from_config(config).eval()
            else:
                made = transformers.T5Config if kind.startswith("T5") else transformers.CLIPTextConfig
                models[part] = getattr(transformers, kind)(made(**config)).eval()
    torch.set_default_dtype(usual)
    flux = case["name"].startswith("flux")
    if case["precision"] == "fp8":
        casting = {"storage_dtype": torch.float8_e4m3fn, "compute_dtype": torch.bfloat16}
        models["transformer" if flux else "unet"].enable_layerwise_casting(**casting)
    kind, more = _class_of(case["name"])
    pipe = getattr(diffusers, kind)(**models, **more)
    pipe.set_progress_bar_config(disable=True)
    if case["tiling"]:
        pipe.vae.enable_tiling()
    if case["offload"]:
        pipe.enable_model_cpu_offload()
    with torch.no_grad():
        prompts = _prompts(torch, case, pipe, dtype)
        _, height, width = case["input"]
        pipe(**prompts, height=height, width=width, num_inference_steps=2, output_type="pt")


def _class_of(name: str) -> tuple[str, dict[str, Any]]:
    import diffusers

    euler, flow = diffusers.EulerDiscreteScheduler(), diffusers.FlowMatchEulerDiscreteScheduler()
    if name.startswith("flux"):
        return "FluxPipeline", {"scheduler": flow, "tokenizer": None, "tokenizer_2": None}
    if name == "sdxl":
        two = {"tokenizer": None, "tokenizer_2": None, "add_watermarker": False}
        return "StableDiffusionXLPipeline", {"scheduler": euler, **two}
    without = {"safety_checker": None, "feature_extractor": None, "requires_safety_checker": False}
    return "StableDiffusionPipeline", {"scheduler": euler, "tokenizer": None, **without}


def _prompts(torch: Any, case: dict[str, Any], pipe: Any, dtype: Any) -> dict[str, Any]:
    """Let the text encoders work, and return embeddings of the shapes that they would have made of words."""
    name, batch = case["name"], case["batch"]
    size = 512 if name.startswith("flux") else 77
    pipe.text_encoder(torch.randint(0, 1000, (batch, 77), device="cuda"))
    if name != "sd15":
        pipe.text_encoder_2(torch.randint(0, 1000, (batch, size), device="cuda"))
    sizes = (pipe.transformer if name.startswith("flux") else pipe.unet).config
    width = sizes.joint_attention_dim if name.startswith("flux") else sizes.cross_attention_dim
    found = {"prompt_embeds": torch.randn(batch, size, width, device="cuda", dtype=dtype)}
    if name != "sd15":
        pooled = sizes.pooled_projection_dim if name.startswith("flux") else pipe.text_encoder_2.config.projection_dim
        found["pooled_prompt_embeds"] = torch.randn(batch, pooled, device="cuda", dtype=dtype)
    if not name.startswith("flux"):
        found |= {f"negative_{part}": torch.zeros_like(value) for part, value in found.items()}
    return found


def trace_on_the_processor(case: dict[str, Any]) -> tuple[int, int, bool]:
    """Return the bytes in use and reserved of a trace without measurements, and whether convolutions are missing."""
    from wslgpud.advise.fit.tracer.watch import traced

    found = traced(case, "cpu")
    return sum(found["used"].values()), found["reserved_bytes"], bool(found["unmeasured"])


def compare_unmeasured() -> None:
    """Print what a card had reserved, relative to what such a trace has in use and reserves, without convolutions."""
    measured = json.loads(Path(__file__).with_name("traced.json").read_text())["cases"]
    cases = [case for name in ("SECOND", "THIRD", "FOURTH") for case in getattr(trace_cases, name)]
    rows = [
        (case, row)
        for case, row in zip(cases, measured, strict=True)
        if case["model"].startswith("config:") and "reserved_bytes" in row
    ]
    most = 0.0
    with ProcessPoolExecutor(2, mp_context=get_context("spawn"), max_tasks_per_child=1) as pool:
        answers = pool.map(trace_on_the_processor, [case for case, _ in rows])
        for (_, row), (used, reserved, unknown) in zip(rows, answers, strict=True):
            if not unknown:
                least, more = (row["reserved_bytes"] / size - 1 for size in (used, reserved))
                most = max(most, more)
                print(f"{row['model']:24} {row['task'][:40]:40} {least:+.1%} {more:+.1%}", flush=True)
    print(f"at most {most:+.1%}")


def _name(case: dict[str, Any]) -> str:
    if "name" in case:
        return str(case["name"])
    source, _, name = case["model"].partition(":")
    return str(json.loads(name)["model_type"]) if source == "config" else f"{Path(source).name}:{name}"


def main() -> None:
    """Trace all cases, then run them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, nargs="?")
    parser.add_argument("--unmeasured", action="store_true")
    parser.add_argument("--lists", nargs="+", default=["FIRST"], choices=["FIRST", "SECOND", "THIRD", "FOURTH"])
    parser.add_argument("--seconds", type=float, default=500.0)
    arguments = parser.parse_args()
    if arguments.unmeasured:
        compare_unmeasured()
        return
    arguments.out.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    cases = [{**case, "list": name} for name in arguments.lists for case in getattr(trace_cases, name)]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        rows = list(pool.map(trace_apart, cases))
    with gzip.open(arguments.out / "traces.json.gz", "wt") as file:
        json.dump([{**row["case"], "events": row.pop("events", None)} for row in rows], file)
    for row in rows:
        print(f"{_name(row['case']):40} {row['case']['mode']}: {row.get('traced_bytes', row.get('error'))}")
    print(f"{time.monotonic() - began:.0f} s", flush=True)
    import torch

    print(torch.__version__, torch.cuda.get_device_name(), flush=True)
    for row in rows:
        if time.monotonic() - began > arguments.seconds:
            break
        try:
            row.update(measure(row["case"]))
        except Exception as error:
            row["failed"] = f"{type(error).__name__}: {str(error)[:300]}"
        if "reserved_bytes" in row and "traced_bytes" in row:
            row["error_ratio"] = round(row["traced_bytes"] / row["reserved_bytes"] - 1, 4)
        print(row["case"]["list"], _name(row["case"]), row["case"]["mode"], {k: row.get(k) for k in _SHOWN}, flush=True)
        (arguments.out / "traced.json").write_text(json.dumps(rows))


if __name__ == "__main__":
    main()
