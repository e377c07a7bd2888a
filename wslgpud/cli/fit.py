"""``wslgpud fit``: will this model fit on this card, and if not, what brings it in."""

from __future__ import annotations

import math
import os
import re
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import click

from wslgpud.advise.fit import vllm
from wslgpud.advise.fit.asking import IdleCard, ask, ask_llama_cpp
from wslgpud.advise.fit.plan import GGUF, PLAIN, PRECISIONS, QUANTIZED, Estimate, Mode, NoEstimate, Optimizer, Plan
from wslgpud.advise.fit.source import NamedModel, source_of
from wslgpud.cli import common
from wslgpud.cli.common import Fault, argument, data_folder, database_of, flag, loaded, option, state_folder
from wslgpud.cli.console import Console
from wslgpud.cli.fit_answer import Engine, answered, described, served
from wslgpud.cli.fit_room import card_of, given, usable
from wslgpud.config import Config
from wslgpud.model import GpuSample
from wslgpud.stress.find_python import NoTorch, find_python
from wslgpud.words import MessageLike, current, say, t

_MODELS = (
    "7B, or a config.json or .gguf file, or a folder of them; sdxl, sd15, flux-dev, flux-schnell,"
    " or a folder of diffusers; torchvision:resnet50, timm:NAME, or train.py:make_model"
)
_FORMATS = (
    "bf16, fp16, fp32, mixed (autocast); int8, int4 (bitsandbytes), gptq, gptq8, awq, fp8;"
    " GGUF's q4_k_m, q5_k_m, q6_k, q8_0. By default as in config.json, else bf16"
)
_OPTIMIZERS = "adamw, adamw-fused, adamw8bit, adafactor, momentum or sgd"
_SHARE = option("--gpu-memory-utilization", "RATIO", "vLLM's share of the card", min=0.01, max=1.0)
_BATCHED = option("--max-num-batched-tokens", "N", "vLLM's tokens of a step; 0: its own choice", min=0)
_USABLE = option("--usable", "SIZE", "VRAM to fit into, like 14.5GB; by default that of this machine")
_ENGINE = option("--engine", "transformers|vllm", "program that runs a language model")
_DRAWING = "--resolution --offload --vae-tiling"
_SERVING = "--gpu-memory-utilization --max-num-seqs --max-num-batched-tokens --kv-cache-dtype"
#: by what runs the model, or its kind
_MEANINGLESS = {
    "transformers": f"{_DRAWING} {_SERVING}",
    "vllm": f"{_DRAWING} --mode --batch --optimizer --checkpointing --rank --all-linear",
    "pipeline": f"{_SERVING} --context --engine",
    "gguf": f"{_DRAWING} {_SERVING} --precision --engine",
    **dict.fromkeys(("named", "own"), f"{_DRAWING} {_SERVING} --context --engine"),
}
_TYPED = click.core.ParameterSource.COMMANDLINE
_SIZES = re.compile(r"\d{1,7}(?:x\d{1,7}){0,4}", re.IGNORECASE)
_MIN_SIDE, _MAX_SIDE = 64, 16384
#: Operations are measured on the card while at least this share of it is free: no training runs there.
_IDLE_SHARE, _MEASURE_SHARE = 0.6, 0.8


def fit(
    context: click.Context,
    model: Annotated[str, argument("MODEL", _MODELS)],
    mode: Annotated[Mode, option("--mode -m", "inference|lora|training", "use of the model")] = "inference",
    precision: Annotated[str, option("--precision -p", "FORMAT", _FORMATS)] = "",
    batch: Annotated[int, option("--batch -b", "N", "sequences or images at once", min=1)] = 1,
    tokens: Annotated[int, option("--context", "N", "tokens of each sequence", min=1)] = 4096,
    optimizer: Annotated[Optimizer, option("--optimizer", "NAME", _OPTIMIZERS)] = "adamw",
    checkpointing: Annotated[bool, flag("--checkpointing", "gradient checkpointing")] = False,
    rank: Annotated[int, option("--rank", "N", "rank of LoRA's matrices", min=1)] = 16,
    all_linear: Annotated[bool, flag("--all-linear", "LoRA on every matrix, not only on q and v")] = False,
    resolution: Annotated[str, option("--resolution", "WxH", "pixels of a picture")] = "1024x1024",
    offload: Annotated[bool, flag("--offload", "keep a pipeline's models in RAM until needed")] = False,
    vae_tiling: Annotated[bool, flag("--vae-tiling", "decode images in tiles")] = False,
    engine: Annotated[Literal["transformers", "vllm"], _ENGINE] = "transformers",
    utilization: Annotated[float, _SHARE] = vllm.UTILIZATION,
    sequences: Annotated[int, option("--max-num-seqs", "N", "vLLM's sequences at once; 0: its own choice", min=0)] = 0,
    batched: Annotated[int, _BATCHED] = 0,
    kv_cache: Annotated[
        vllm.CacheType, option("--kv-cache-dtype", "auto|fp8", "vLLM's format of keys and values")
    ] = "auto",
    python: Annotated[str, common.PYTHON] = "",
    sides: Annotated[str, option("--input", "SIZES", "one input of a model of one's own, like 3x1280x1280")] = "",
    room: Annotated[str, _USABLE] = "",
    gpu: common.Gpu = 0,
    as_json: common.Json = False,
    config: common.Config = None,
    state: common.State = None,
) -> None:
    """Say whether a model fits on this card, part by part.

    The model itself is traced, without its weights, in the Python that trains here. Where there is none with torch,
    language models are computed, with a margin. Exit status 1 if it does not fit, 3 if that is not known.

    Examples:
        wslgpud fit 7B --mode lora --batch 2 --context 2048
        wslgpud fit ./model --precision int4 --usable 14.5GB
        wslgpud fit flux-dev --precision fp8 --offload
        wslgpud fit ./model --engine vllm --context 32768
        wslgpud fit torchvision:resnet50 --input 3x224x224 --batch 64 --mode training
        wslgpud fit train.py:make_model --input 3x1280x1280 --batch 8 --mode training
    """
    settings = loaded(config).config
    source = source_of(model)
    _reject_unfit(context, source, engine)
    form = precision or source.stored or "bf16"
    known = {"pipeline": (*PLAIN, "fp8", "int8", "int4"), "named": PLAIN, "own": PLAIN}.get(source.kind, PRECISIONS)
    if form not in known:
        raise Fault("--precision {value}: there are {known}", value=form, known=tuple(known))
    card = card_of(settings, gpu)
    if engine == "vllm":
        if source.shape is None:
            raise Fault(source.unknown or say("there is no language model in {path}", path=model))
        serving = vllm.ServingPlan(form, tokens, utilization, sequences, batched, kv_cache)
        answer = served(source.name, source.shape, serving, _whole_card(room, card))
    else:
        width, height = (_sizes("resolution", resolution) * 2)[:2]
        if not _MIN_SIDE <= min(width, height) <= max(width, height) <= _MAX_SIDE:
            raise Fault("--resolution {text}: write it like 1024x1024, up to {count}", text=resolution, count=_MAX_SIDE)
        targets, shape = "all" if all_linear else "attention", _sizes("input", sides) if sides else None
        drawing = width, height, offload, vae_tiling
        plan = Plan(mode, form, batch, tokens, optimizer, checkpointing, rank, targets, shape, *drawing)
        _reject_senseless(source, plan)
        usable_vram = given(room) if room else usable(card, database_of(config, state))
        engine_of = ask_llama_cpp if source.kind == "gguf" else _tracer(settings, python, card, state)
        with Console(stderr=True).status("") as status:

            def asked(source: NamedModel, plan: Plan) -> Estimate:
                status.update(t("tracing the model: {part} …", part=current().listed(described(source, plan))))
                return engine_of(source, plan)

            answer = answered(source, plan, usable_vram, asked)
    if as_json:
        common.print_json(answer.document(), ensure_ascii=False)
    else:
        answer.show()
    raise SystemExit(answer.status)


def _tracer(settings: Config, python: str, card: GpuSample | None, state: Path | None) -> Engine:
    """Return what asks models in the Python that trains here; if there is none, what says so."""
    try:
        interpreter = find_python(python or settings.stress.python, os.environ, data_folder(state))
    except NoTorch as error:
        if python:
            raise
        return partial(_unasked, error.message)
    idle = IdleCard()
    if card is not None and card.free_bytes and card.free_bytes >= _IDLE_SHARE * (card.total_bytes or math.inf):
        idle = IdleCard(card.uuid, round(_MEASURE_SHARE * card.free_bytes))
    # What a program of another account said is not kept for us.
    return partial(ask, interpreter, idle, None if interpreter.account else state_folder(state) / "fit.json")


def _unasked(why: MessageLike, _source: NamedModel, _plan: Plan) -> Estimate:
    raise NoEstimate(why)


def _reject_unfit(context: click.Context, source: NamedModel, engine: str) -> None:
    """Reject given options that have no meaning here, rather than ignore them."""
    typed = [p for p in context.command.params if context.get_parameter_source(p.name or "") == _TYPED]
    given = {name for parameter in typed for name in parameter.opts}
    runner = engine if source.kind == "language" else source.kind
    if odd := given.intersection(_MEANINGLESS[runner].split()):
        what = f"--engine {engine}" if source.kind == "language" else source.name
        raise Fault("{option} has no meaning for {what}", option=min(odd), what=what)


def _reject_senseless(source: NamedModel, plan: Plan) -> None:
    if plan.mode == "training" and plan.precision in QUANTIZED:
        raise Fault("{precision} weights cannot be trained in full: use --mode lora", precision=plan.precision)
    if plan.mode != "inference" and (plan.precision in GGUF or source.kind == "gguf"):
        raise Fault("no adapters can be trained on llama.cpp's formats: take int4, gptq or awq")
    if source.kind == "pipeline" and plan.precision == "int8" and plan.offload:
        raise Fault("int8 weights stay on the card: --offload needs another --precision")


def _sizes(option: str, text: str) -> tuple[int, ...]:
    if not _SIZES.fullmatch(text):
        raise Fault("--{option} {text}: write it like 3x224x224", option=option, text=text)
    return tuple(map(int, text.lower().split("x")))


def _whole_card(text: str, card: GpuSample | None) -> vllm.Card:
    if text:
        size = given(text).bytes
        return vllm.Card(size, size)
    if card is None or card.total_bytes is None or card.free_bytes is None:
        raise Fault("No GPU answers here: give the usable VRAM with --usable 14.5GiB.")
    return vllm.Card(card.total_bytes, card.free_bytes)
