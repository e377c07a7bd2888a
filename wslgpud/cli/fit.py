"""``wslgpud fit``: will this model fit on this card, and if not, what brings it in."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from typing import Annotated, Any, cast

import typer

from wslgpud.advise.fit import diffusion, measured, picture, vllm
from wslgpud.advise.fit import estimate as estimates
from wslgpud.advise.fit.diffusion import DiffusionPipeline
from wslgpud.advise.fit.estimate import Mode, Optimizer, Plan, Precision, unmeasured
from wslgpud.advise.fit.shape import Shape, of
from wslgpud.advise.guard import past_runs
from wslgpud.cli import common
from wslgpud.cli.common import Fault, argument, database_of, flag, loaded, option, state_folder
from wslgpud.cli.fit_answer import Answer, verdict
from wslgpud.cli.fit_room import Usable, card_of, given, usable
from wslgpud.config import Config
from wslgpud.words import Message, MessageLike, current, say, t, template

_MODES = {"inference": template("inference"), "lora": "LoRA", "training": template("training")}
#: Options without a meaning for the other kinds of model are rejected there, rather than ignored.
_TRAINING, _WORDS = ("mode", "optimizer", "checkpointing", "rank", "all-linear"), ("context",)
_PICTURES = ("resolution", "offload", "vae-tiling", "vae-slicing")
_VLLM = ("gpu-memory-utilization", "max-num-seqs", "max-num-batched-tokens", "kv-cache-dtype", "enforce-eager")
_SIDES = re.compile(r"(\d{2,5})x(\d{2,5})", re.IGNORECASE)
_MOST_SIDE = 16384


def fit(
    context: typer.Context,
    model: Annotated[
        str,
        argument(
            "MODEL",
            "7B, or a config.json, .safetensors or .gguf file, or a folder of them; sdxl, sd15, flux-dev, flux-schnell,"
            " or a folder of diffusers",
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
    room: Annotated[
        str, option("--usable", "SIZE", "VRAM to fit into, like 14.5GB; by default that of this machine")
    ] = "",
    gpu: common.Gpu = 0,
    as_json: common.Json = False,
    config: common.Config = None,
    state: common.State = None,
) -> None:
    """Estimate whether a model fits on this card, part by part. Exit status 1 if it does not.

    Language models in transformers (inference and training) or vLLM; image generation in diffusers.

    Examples:
        wslgpud fit 7B --mode lora --batch 2 --context 2048
        wslgpud fit ./model --precision int4 --usable 14.5GB
        wslgpud fit flux-dev --precision fp8 --offload
        wslgpud fit ./model --engine vllm --context 32768
    """
    settings, database = loaded(config).config, database_of(config, state)

    def usable_room() -> Usable | None:
        return given(room) if room else usable(settings, database, gpu)

    _of_those("engine", engine or "transformers", ("transformers", "vllm"))
    if drawing := diffusion.of(model):
        _only_for(context, say("diffusion pipelines"), (*_TRAINING, *_WORDS, *_VLLM, "engine"), unfit=True)
        width, height = _sides(resolution)
        if _of_those("precision", precision or "bf16", picture.PRECISIONS) == "int8" and offload:
            raise Fault("int8 weights stay on the card: --offload needs another --precision")
        plan = picture.PicturePlan(
            cast("picture.Precision", precision or "bf16"), batch, width, height, offload, vae_tiling, vae_slicing
        )
        answer = _drawn(drawing, plan, usable_room())
    else:
        _only_for(context, say("diffusion pipelines"), _PICTURES)
        shape = of(model)
        form = cast("Precision", _of_those("precision", precision or shape.stored or "bf16", estimates.PRECISIONS))
        if engine == "vllm":
            _only_for(context, say("--engine {name}", name="vllm"), (*_TRAINING, "batch"), unfit=True)
            _of_those("kv-cache-dtype", kv_cache, vllm.KV_CACHES)
            card = _whole(room) if room else _whole_card(settings, gpu)
            serving = vllm.ServingPlan(
                form, tokens, utilization, sequences, batched, cast("vllm.KvCache", kv_cache), eager
            )
            answer = _served(shape, serving, card)
        else:
            _only_for(context, say("--engine {name}", name="vllm"), _VLLM)
            use = cast("Mode", _of_those("mode", mode, estimates.MODES))
            how = cast("Optimizer", _of_those("optimizer", optimizer, estimates.OPTIMIZERS))
            _trainable(use, form)
            asked = Plan(use, form, batch, tokens, how, checkpointing, rank, "all" if all_linear else "attention")
            known = measured.read(past_runs.load(state_folder(state)).trainings)
            answer = _answered(shape, asked, measured.ratio(shape, asked, known), usable_room())
    if as_json:
        common.print_json(answer.document(), ensure_ascii=False)
    else:
        answer.show()
    raise typer.Exit(int(answer.over))


def _of_those(name: str, value: str, known: tuple[str, ...]) -> str:
    if value not in known:
        raise Fault("--{option} {value}: there are {known}", option=name, value=value, known=known)
    return value


def _only_for(context: typer.Context, purpose: Message, names: tuple[str, ...], *, unfit: bool = False) -> None:
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
    if not 64 <= min(width, height) <= max(width, height) <= _MOST_SIDE:
        raise Fault("--resolution {text}: write it like 1024x1024, up to {count}", text=text, count=_MOST_SIDE)
    return width, height


def _trainable(mode: Mode, precision: Precision) -> None:
    if mode == "training" and precision in estimates.QUANTIZED:
        raise Fault("{precision} weights cannot be trained in full: use --mode lora", precision=precision)
    if mode == "lora" and precision in estimates.GGUF:
        raise Fault(
            "no adapters can be trained on {precision}, a format of llama.cpp: take int4, gptq or awq",
            precision=precision,
        )


def _answered(shape: Shape, plan: Plan, own: tuple[float, Plan] | None, room: Usable | None) -> Answer:
    """Return the answer for a language model that transformers runs or trains."""
    ratio = own[0] if own else 1.0
    found = estimates.estimate(shape, plan).scaled(ratio)
    over = room is not None and found.total_bytes > room.bytes
    notes = []
    if own:
        told = template("Corrected to {by_ratio} by a training measured here (batch {batch}, context {context}).")
        notes.append(t(told, by_ratio=ratio, batch=own[1].batch, context=own[1].context))
    knobs = estimates.knobs(shape, plan, room.bytes, ratio) if room and over else []
    facts = {**_facts(shape, plan), "measured_ratio": round(ratio, 3) if own else None}
    return Answer(
        shape.name, [*_how(shape, plan)], facts, found, room, over, verdict(found, room), knobs, unmeasured(plan), notes
    )


def _drawn(model: DiffusionPipeline, plan: picture.PicturePlan, room: Usable | None) -> Answer:
    """Return the answer for images that diffusers generates."""
    found = picture.estimate(model, plan)
    over = room is not None and found.total_bytes > room.bytes
    how: list[MessageLike] = [_size(model), plan.precision]
    how += [say("batch {count}", count=plan.batch), f"{plan.width}x{plan.height}"]
    how += ["offload"] * plan.offload + ["VAE tiling"] * plan.tiling + ["VAE slicing"] * plan.slicing
    knobs = picture.knobs(model, plan, room.bytes) if room and over else []
    facts = {"model": {"name": model.name, "parameters": model.size}, "plan": dataclasses.asdict(plan)}
    only = picture.unmeasured(plan)
    return Answer(model.name, how, facts, found, room, over, verdict(found, room), knobs, only)


def _served(shape: Shape, plan: vllm.ServingPlan, card: vllm.Card | None) -> Answer:
    """Return the answer for a language model that vLLM serves."""
    if card is None:
        raise Fault("No GPU answers here: give the usable VRAM with --usable 14.5GiB.")
    served = vllm.serve(shape, plan, card)
    over = served.refusal is not None
    fits = t(
        "It fits: the cache holds {count} tokens, {ratio} sequences of {context}.",
        count=served.tokens,
        ratio=f"{served.concurrency:.2f}",
        context=plan.context,
    )
    how: list[MessageLike] = [_size(shape), "vLLM"]
    how += [plan.precision, say("context {count}", count=plan.context), f"{plan.utilization:.2f}"]
    document = {**_facts(shape, plan), "tokens": served.tokens, "concurrency": round(served.concurrency, 2)}
    room = Usable(card.free_bytes, say("free on the card"))
    said = current().text(served.refusal) if served.refusal else fits
    knobs = vllm.turns(shape, plan, card) if over else []
    only = [say("vLLM's profiling run and CUDA graphs")]
    return Answer(shape.name, how, document, served.found, room, over, said, knobs, only, counted="tokens")


def _size(model: Shape | DiffusionPipeline) -> Message:
    return say("{billions} B parameters", billions=f"{model.size / 1e9:.2f}")


def _facts(shape: Shape, plan: Plan | vllm.ServingPlan) -> dict[str, Any]:
    return {"model": {**dataclasses.asdict(shape), "parameters": shape.size}, "plan": dataclasses.asdict(plan)}


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


def _how(shape: Shape, plan: Plan) -> Iterator[MessageLike]:
    yield _size(shape)
    yield Message(_MODES[plan.mode])
    yield plan.precision
    yield say("batch {count}", count=plan.batch)
    yield say("context {count}", count=plan.context)
    if plan.mode != "inference":
        yield plan.optimizer
    if plan.checkpointing:
        yield say("gradient checkpointing")
