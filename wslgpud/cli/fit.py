"""``wslgpud fit``: will this model fit on this card, and if not, what brings it in."""

from __future__ import annotations

import math
import os
import re
import time
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import click

from wslgpud.advise.fit import vllm
from wslgpud.advise.fit.asking import IdleCard, ask, ask_llama_cpp
from wslgpud.advise.fit.plan import GGUF, PLAIN, PRECISIONS, QUANTIZED, Estimate, Mode, NoEstimate, Optimizer, Plan
from wslgpud.advise.fit.source import Kind, NamedModel, source_of
from wslgpud.cli import common
from wslgpud.cli.common import Fault, argument, data_folder, database_of, flag, loaded, option, state_folder
from wslgpud.cli.console import Console
from wslgpud.cli.fit_answer import Engine, Usable, answered, card_of, described, given, show, usable
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
_USABLE = option("--usable", "SIZE", "VRAM to fit into, like 14.5GB; by default that of this machine")
_ENGINE = option("--engine", "transformers|vllm", "program that runs a language model")
_INPUT = option("--input", "SIZES", "one input of a model that reads no text, like 3x512x512 for a picture")
_TRACED = "--mode --precision --optimizer --input --python"
#: the options that only some have: by what runs a language model, else by the model's kind
_OPTIONS = {
    "transformers": f"{_TRACED} --engine --context --checkpointing --rank --all-linear",
    "vllm": "--engine --context --precision --gpu-memory-utilization",
    "gguf": "--context",
    "pipeline": f"{_TRACED} --checkpointing --rank --offload --vae-tiling",
    "named": _TRACED,
    "own": _TRACED,
}
_SPECIAL = {*" ".join(_OPTIONS.values()).split()}
_TYPED = click.core.ParameterSource.COMMANDLINE
_SIZES = re.compile(r"\d{1,7}(?:x\d{1,7}){0,4}", re.IGNORECASE)
#: where none is given
_INPUTS = {"named": (3, 224, 224), "pipeline": (3, 1024, 1024)}
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
    input_sizes: Annotated[str, _INPUT] = "",
    offload: Annotated[bool, flag("--offload", "keep a pipeline's models in RAM until needed")] = False,
    vae_tiling: Annotated[bool, flag("--vae-tiling", "decode images in tiles")] = False,
    engine: Annotated[Literal["transformers", "vllm"], _ENGINE] = "transformers",
    utilization: Annotated[float, _SHARE] = vllm.UTILIZATION,
    python: Annotated[str, common.PYTHON] = "",
    usable_size: Annotated[str, _USABLE] = "",
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
    _reject_meaningless(context, source, engine)
    precision, targets = precision or source.stored or "bf16", "all" if all_linear else "attention"
    sizes = _sizes(input_sizes, source.kind) if input_sizes else _INPUTS.get(source.kind)
    plan = Plan(mode, precision, batch, tokens, optimizer, checkpointing, rank, targets, sizes, offload, vae_tiling)
    _reject_impossible(source, plan)
    card = card_of(settings, gpu)
    room = given(usable_size) if usable_size else None
    if engine == "vllm":
        room, ask_engine = _share_of(room, card, utilization)
    else:
        room = room or usable(card, database_of(config, state), time.time())
        ask_engine = ask_llama_cpp if source.kind == "gguf" else _tracer(settings, python, card, state)
    with Console(stderr=True).status("") as status:

        def ask_and_show(source: NamedModel, plan: Plan) -> Estimate:
            status.update(t("tracing the model: {part} …", part=current().listed(described(source, plan))))
            return ask_engine(source, plan)

        answer = answered(source, plan, room, ask_and_show)
    if as_json:
        common.print_json(answer, ensure_ascii=False)
    else:
        show(answer)
    raise SystemExit({True: 0, False: 1, None: 0 if room is None else 3}[answer["fits"]])


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


def _share_of(whole: Usable | None, card: GpuSample | None, ratio: float) -> tuple[Usable, Engine]:
    """Return vLLM's share of the whole card, which must be free, and what says how vLLM divides it."""
    total, free = (whole.bytes,) * 2 if whole else (card.total_bytes, card.free_bytes) if card else (None, None)
    if total is None or free is None:
        raise Fault("No GPU answers here: give the usable VRAM with --usable 14.5GiB.")
    if (share := round(ratio * total)) > free:
        raise Fault(
            "vLLM will not start: it needs {share_bytes}, but only {free_bytes} are free (`Free memory on device …"
            " is less than desired GPU memory utilization`). At most: --gpu-memory-utilization {ratio}",
            share_bytes=share,
            free_bytes=free,
            ratio=f"{math.floor(100 * free / total) / 100:.2f}",
        )
    return Usable(share, say("vLLM's share of the card")), partial(vllm.serve, share, vllm.step_of(total))


def _reject_meaningless(context: click.Context, source: NamedModel, engine: str) -> None:
    """Reject given options that have no meaning here, rather than ignore them."""
    typed = [p for p in context.command.params if context.get_parameter_source(p.name or "") == _TYPED]
    names = {name for parameter in typed for name in parameter.opts}
    runner = engine if source.kind == "language" else source.kind
    if odd := names & (_SPECIAL - {*_OPTIONS[runner].split()}):
        what = f"--engine {engine}" if source.kind == "language" else source.name
        raise Fault("{option} has no meaning for {what}", option=min(odd), what=what)


def _reject_impossible(source: NamedModel, plan: Plan) -> None:
    """Reject what no program runs, or the tracer would leave out."""
    known = PLAIN if source.kind in ("named", "own") else PRECISIONS
    if plan.precision not in known:
        raise Fault("--precision {value}: there are {known}", value=plan.precision, known=tuple(known))
    if plan.mode == "training" and plan.precision in QUANTIZED:
        raise Fault("{precision} weights cannot be trained in full: use --mode lora", precision=plan.precision)
    if plan.mode == "lora" and source.kind in ("named", "own"):
        raise Fault("{name} is traced as it is, without adapters", name=source.name)
    if plan.mode != "inference" and plan.precision in GGUF:
        raise Fault("no adapters can be trained on llama.cpp's formats: take int4, gptq or awq")
    if source.kind == "pipeline" and plan.precision == "int8" and plan.offload:
        raise Fault("int8 weights stay on the card: --offload needs another --precision")


def _sizes(text: str, kind: Kind) -> tuple[int, ...]:
    """Return the sizes given by ``--input``; a picture of a pipeline has colours, height and width."""
    usual = _INPUTS.get(kind, (3, 224, 224))
    if not _SIZES.fullmatch(text) or (kind == "pipeline" and text.lower().count("x") != 2):
        raise Fault("--input {text}: write it like {usual}", text=text, usual="x".join(map(str, usual)))
    return tuple(map(int, text.lower().split("x")))
