"""``wslgpud fit``: will this model fit on this card, and if not, what brings it in."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import click

from wslgpud.advise.fit import vllm
from wslgpud.advise.fit.asking import Asking, IdleCard, NoTrace
from wslgpud.advise.fit.plan import GGUF, MODES, OPTIMIZERS, PRECISIONS, QUANTIZED, Plan
from wslgpud.advise.fit.source import NamedModel, source_of
from wslgpud.cli import common, fit_engines
from wslgpud.cli.common import Fault, argument, data_folder, database_of, flag, loaded, option, state_folder
from wslgpud.cli.console import Console
from wslgpud.cli.fit_room import card_of, given, usable
from wslgpud.config import Config
from wslgpud.stress.find_python import NoTorch, find_python
from wslgpud.words import Message, MessageLike, current, say, t

#: Options without a meaning for the other kinds of model are rejected there, rather than ignored.
_TRAINING, _WORDS = ("mode", "optimizer", "checkpointing", "rank", "all-linear"), ("context",)
_PICTURES = ("resolution", "offload", "vae-tiling", "vae-slicing")
_VLLM = ("gpu-memory-utilization", "max-num-seqs", "max-num-batched-tokens", "kv-cache-dtype", "enforce-eager")
_UNPACKED = ("bf16", "fp16", "fp32", "mixed")
_PIPELINES = (*_UNPACKED, "fp8", "int8", "int4")
_SIDES = re.compile(r"(\d{2,5})x(\d{2,5})", re.IGNORECASE)
_SIZES = re.compile(r"\d{1,7}(?:x\d{1,7}){0,4}")
_MAX_SIDE = 16384
#: Operations are measured on the card while at least this share of it is free: no training runs there.
_IDLE_SHARE, _MEASURE_SHARE = 0.6, 0.8


def fit(
    context: click.Context,
    model: Annotated[
        str,
        argument(
            "MODEL",
            "7B, or a config.json, .safetensors or .gguf file, or a folder of them; sdxl, sd15, flux-dev, flux-schnell,"
            " or a folder of diffusers; torchvision:resnet50, timm:NAME, or train.py:make_model",
        ),
    ],
    mode: Annotated[str, option("--mode -m", "inference|lora|training", "use of the model")] = "inference",
    precision: Annotated[
        str,
        option(
            "--precision -p",
            "FORMAT",
            "bf16, fp16, fp32, mixed (autocast); int8, int4 (bitsandbytes), gptq, gptq8, awq, fp8;"
            " GGUF's q4_k_m, q5_k_m, q6_k, q8_0. By default as in config.json, else bf16",
        ),
    ] = "",
    batch: Annotated[int, option("--batch -b", "N", "sequences or images at once", min=1)] = 1,
    tokens: Annotated[int, option("--context", "N", "tokens of each sequence", min=1)] = 4096,
    optimizer: Annotated[
        str, option("--optimizer", "NAME", "adamw, adamw-fused, adamw8bit, adafactor, momentum or sgd")
    ] = "adamw",
    checkpointing: Annotated[bool, flag("--checkpointing", "gradient checkpointing")] = False,
    rank: Annotated[int, option("--rank", "N", "rank of LoRA's matrices", min=1)] = 16,
    all_linear: Annotated[bool, flag("--all-linear", "LoRA on every matrix, not only on q and v")] = False,
    resolution: Annotated[str, option("--resolution", "WxH", "pixels of a picture")] = "1024x1024",
    offload: Annotated[bool, flag("--offload", "keep a pipeline's models in RAM until needed")] = False,
    vae_tiling: Annotated[bool, flag("--vae-tiling", "decode images in tiles")] = False,
    vae_slicing: Annotated[bool, flag("--vae-slicing", "decode one image after the other")] = False,
    engine: Annotated[str, option("--engine", "transformers|vllm", "program that runs a language model")] = "",
    utilization: Annotated[
        float, option("--gpu-memory-utilization", "RATIO", "vLLM's share of the card", min=0.01, max=1.0)
    ] = vllm.UTILIZATION,
    sequences: Annotated[int, option("--max-num-seqs", "N", "vLLM's sequences at once; 0: its own choice", min=0)] = 0,
    batched: Annotated[
        int, option("--max-num-batched-tokens", "N", "vLLM's tokens of a step; 0: its own choice", min=0)
    ] = 0,
    kv_cache: Annotated[str, option("--kv-cache-dtype", "auto|fp8", "vLLM's format of keys and values")] = "auto",
    eager: Annotated[bool, flag("--enforce-eager", "vLLM without CUDA graphs")] = False,
    python: Annotated[str, common.PYTHON] = "",
    sides: Annotated[str, option("--input", "SIZES", "one input of a model of one's own, like 3x1280x1280")] = "",
    room: Annotated[
        str, option("--usable", "SIZE", "VRAM to fit into, like 14.5GB; by default that of this machine")
    ] = "",
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
    _of_those("engine", engine or "transformers", ("transformers", "vllm"))
    if source.kind != "pipeline":
        _only_for(context, say("diffusion pipelines"), _PICTURES)
    if source.kind not in ("language", "gguf"):
        _only_for(context, say("language models"), (*_WORDS, *_VLLM, "engine"))
    if engine != "vllm":
        _only_for(context, say("--engine {name}", name="vllm"), _VLLM)
    stored = source.shape.stored if source.shape else ""
    known = {"pipeline": _PIPELINES, "named": _UNPACKED, "own": _UNPACKED}.get(source.kind, PRECISIONS)
    form = _of_those("precision", precision or stored or "bf16", known)
    if engine == "vllm":
        _only_for(context, say("--engine {name}", name="vllm"), (*_TRAINING, "batch"), unfit=True)
        _of_those("kv-cache-dtype", kv_cache, vllm.KV_CACHES)
        if source.shape is None:
            raise source.unknown or Fault("there is no language model in {path}", path=model)
        serving = vllm.ServingPlan(form, tokens, utilization, sequences, batched, kv_cache, eager)
        answer = fit_engines.served(source.shape, serving, _whole(room) if room else _whole_card(settings, gpu))
    else:
        width, height = _sides(resolution)
        plan = Plan(
            _of_those("mode", mode, MODES),
            form,
            batch,
            tokens,
            _of_those("optimizer", optimizer, OPTIMIZERS),
            checkpointing,
            rank,
            "all" if all_linear else "attention",
            _shape_of_input(sides),
            width,
            height,
            offload,
            vae_tiling,
            vae_slicing,
        )
        _sensible(source, plan)
        found = given(room) if room else usable(settings, database_of(config, state), gpu)
        with Console(stderr=True).status(t("tracing the model …")) as status:

            def tell(part: str) -> None:
                status.update(t("tracing the model: {part} …", part=current().template(part)))

            asking, why = _asking(settings, python, gpu, state, tell)
            try:
                answer = fit_engines.answered(source, plan, found, asking, why)
            except NoTrace as error:
                raise Fault(error.said) from error
    if as_json:
        common.print_json(answer.document(), ensure_ascii=False)
    else:
        answer.show()
    raise SystemExit(answer.status)


def _asking(
    settings: Config, python: str, gpu: int, state: Path | None, tell: Callable[[str], object]
) -> tuple[Asking | None, MessageLike]:
    """Return what asks models in the Python that trains here; None and why if there is none."""
    try:
        found = find_python(python or settings.stress.python, os.environ, data_folder(state))
    except NoTorch as error:
        if python:
            raise Fault(error.said) from error
        return None, error.said
    card = card_of(settings, gpu)
    measured = IdleCard()
    if card is not None and card.free_bytes and card.free_bytes >= _IDLE_SHARE * (card.total_bytes or math.inf):
        measured = IdleCard(card.uuid, round(_MEASURE_SHARE * card.free_bytes))
    # What a program of another account said is not kept for us.
    return Asking(found, measured, None if found.account else state_folder(state) / "fit", tell), ""


def _sensible(source: NamedModel, plan: Plan) -> None:
    if plan.mode == "training" and plan.precision in QUANTIZED:
        raise Fault("{precision} weights cannot be trained in full: use --mode lora", precision=plan.precision)
    if plan.mode != "inference" and (plan.precision in GGUF or source.kind == "gguf"):
        raise Fault(
            "no adapters can be trained on {precision}, a format of llama.cpp: take int4, gptq or awq",
            precision=plan.precision,
        )
    if source.kind == "pipeline" and plan.precision == "int8" and plan.offload:
        raise Fault("int8 weights stay on the card: --offload needs another --precision")


def _of_those(name: str, value: str, known: tuple[str, ...]) -> str:
    if value not in known:
        raise Fault("--{option} {value}: there are {known}", option=name, value=value, known=known)
    return value


def _only_for(context: click.Context, purpose: Message, names: tuple[str, ...], *, unfit: bool = False) -> None:
    """Reject given options that have no meaning here."""
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        for name in names:
            if f"--{name}" in parameter.opts and source is not None and source.name == "COMMANDLINE":
                if unfit:
                    raise Fault("--{option} is not for {purpose}", option=name, purpose=purpose)
                raise Fault("--{option} is for {purpose}", option=name, purpose=purpose)


def _sides(text: str) -> tuple[int, int]:
    match = _SIDES.fullmatch(text)
    width, height = (int(side) for side in match.groups()) if match else (0, 0)
    if not 64 <= min(width, height) <= max(width, height) <= _MAX_SIDE:
        raise Fault("--resolution {text}: write it like 1024x1024, up to {count}", text=text, count=_MAX_SIDE)
    return width, height


def _shape_of_input(text: str) -> tuple[int, ...] | None:
    if text and not _SIZES.fullmatch(text):
        raise Fault("--input {text}: write it like 3x224x224", text=text)
    return tuple(map(int, text.split("x"))) if text else None


def _whole(text: str) -> vllm.Card:
    size = given(text).bytes
    if size < 1:
        raise Fault("--usable {text}: write it like 14.5GiB", text=text)
    return vllm.Card(size, size)


def _whole_card(settings: Config, index: int) -> vllm.Card | None:
    card = card_of(settings, index)
    if card is None or card.total_bytes is None or card.free_bytes is None:
        return None
    return vllm.Card(card.total_bytes, card.free_bytes)
