"""``wslgpud fit``: will this model fit into the VRAM available here, and if not, what brings it in."""

from __future__ import annotations

import contextlib
import math
import os
import re
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import click
from rich.table import Table
from rich.text import Text

from wslgpud.advise.fit import estimate
from wslgpud.advise.fit import plan as plans
from wslgpud.advise.fit.asking import IdleCard, ask, ask_llama_cpp
from wslgpud.advise.fit.plan import Estimate, Mode, NoEstimate, Optimizer, Plan, fitting, turns
from wslgpud.advise.fit.source import Kind, NamedModel, source_of
from wslgpud.cli import common
from wslgpud.cli.chart import bar
from wslgpud.cli.common import Fault, argument, data_folder, database_of, flag, loaded, option, state_folder
from wslgpud.cli.console import Console, table_of
from wslgpud.config import Config
from wslgpud.host import Host, NoData, SourceError
from wslgpud.model import NOTHING_SAID, GpuSample
from wslgpud.risk.headroom import gpu_room
from wslgpud.risk.risk_metrics import LEARNED
from wslgpud.sources.gpu import GpuSource
from wslgpud.sources.wsl import generation
from wslgpud.store import Reader, StoreError
from wslgpud.stress.find_python import NoTorch, find_python
from wslgpud.words import Message, MessageLike, current, filled, say, t, template
from wslgpud.words.units import size

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
#: the options that only some models have: by the program that runs a language model, else by the model's kind
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

# Sizes of common cards, and the share that WSL2 and a desktop leave (they take 6 to 9 %).
_COMMON_GIB, _USABLE_SHARE = (8, 12, 16, 24, 32, 48, 80, 96), 0.92
_MODES = {"inference": template("inference"), "lora": "LoRA", "training": template("training")}

_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,9})?)([MGT]?)(?:i?B)?", re.IGNORECASE)
_MIN_BYTES = 1 << 20
_DAY_SECONDS, _HISTORY_SECONDS = 86400.0, 90 * 86400.0

#: returns the memory of a model; NoEstimate: it cannot
Engine = Callable[[NamedModel, Plan], Estimate]


class Usable(NamedTuple):
    """The VRAM available to a program, and how it is known."""

    bytes: int
    how: Message


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
    utilization: Annotated[float, _SHARE] = estimate.VLLM_UTILIZATION,
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
    """Return the engine that asks models in the Python that trains here; without one, an engine that says so."""
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
    """Return vLLM's share of the whole card, which must be free, and the engine that divides it as vLLM does."""
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
    return Usable(share, say("vLLM's share of the card")), partial(
        estimate.served_by_vllm, share, estimate.vllm_step(total)
    )


def _reject_meaningless(context: click.Context, source: NamedModel, engine: str) -> None:
    """Reject given options that have no meaning here, rather than ignore them."""
    typed = [p for p in context.command.params if context.get_parameter_source(p.name or "") == _TYPED]
    names = {name for parameter in typed for name in parameter.opts}
    runner = engine if source.kind == "language" else source.kind
    if odd := names & (_SPECIAL - {*_OPTIONS[runner].split()}):
        what = f"--engine {engine}" if source.kind == "language" else source.name
        raise Fault("{option} has no meaning for {what}", option=min(odd), what=what)


def _reject_impossible(source: NamedModel, plan: Plan) -> None:
    """Reject plans that no program runs, or that the tracer would run in part only."""
    known = plans.PLAIN if source.kind in ("named", "own") else plans.PRECISIONS
    if plan.precision not in known:
        raise Fault("--precision {value}: there are {known}", value=plan.precision, known=tuple(known))
    if plan.mode == "training" and plan.precision in plans.QUANTIZED:
        raise Fault("{precision} weights cannot be trained in full: use --mode lora", precision=plan.precision)
    if plan.mode == "lora" and source.kind in ("named", "own"):
        raise Fault("{name} is traced as it is, without adapters", name=source.name)
    if plan.mode != "inference" and plan.precision in plans.GGUF:
        raise Fault("no adapters can be trained on llama.cpp's formats: take int4, gptq or awq")
    if source.kind == "pipeline" and plan.precision == "int8" and plan.offload:
        raise Fault("int8 weights stay on the card: --offload needs another --precision")


def _sizes(text: str, kind: Kind) -> tuple[int, ...]:
    """Return the sizes given by ``--input``; a picture of a pipeline has colours, height and width."""
    usual = _INPUTS.get(kind, (3, 224, 224))
    if not _SIZES.fullmatch(text) or (kind == "pipeline" and text.lower().count("x") != 2):
        raise Fault("--input {text}: write it like {usual}", text=text, usual="x".join(map(str, usual)))
    return tuple(map(int, text.lower().split("x")))


def given(text: str) -> Usable:
    """Return the size given by ``--usable``."""
    match = _SIZE.fullmatch(text)
    size = int(float(match[1]) * {"": 1, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}[match[2].upper()]) if match else 0
    if size < _MIN_BYTES:
        raise Fault("--usable {text}: write it like 14.5GiB", text=text)
    return Usable(size, say("as given"))


def card_of(settings: Config, index: int) -> GpuSample | None:
    """Return the card of this number, None if no driver answers."""
    with contextlib.closing(GpuSource(Host(), settings)) as source, contextlib.suppress(NoData, SourceError):
        for card in source.read().gpus or ():
            if card.index == index:
                return card
        raise Fault("there is no GPU {gpu}", gpu=index)
    return None


def usable(card: GpuSample | None, database: str, now: float) -> Usable | None:
    """Return the VRAM verified by the last stress run, else that seen by the daemon or free now; None: no card."""
    if card is None:
        return None
    with contextlib.suppress(StoreError), Reader(database) as reader:
        for _, run in reversed(reader.stress_runs()):
            if run.uuid == card.uuid and run.complete and "usable_bytes" in run.values:
                return Usable(int(run.values["usable_bytes"]), say("verified by the last stress run"))
        limits = reader.kinds(f"{LEARNED.name}{{resource=gpu{card.index}}}")
        days = [day for ref in limits for day in reader.summaries(ref, now - _HISTORY_SECONDS, now, _DAY_SECONDS)]
        if days and card.used_bytes is not None:
            how = say("an allocation above this has failed here before; minus the current use")
            return Usable(max(0, round(days[-1].last) - card.used_bytes), how)
    if card.free_bytes is None:
        return None
    room = gpu_room(card, wsl=generation(Host()) == 2)
    left = room.headroom if room else card.free_bytes
    return Usable(left, say("free on {card} now; 'wslgpud stress' measures it", card=card.name))


def answered(source: NamedModel, plan: Plan, room: Usable | None, engine: Engine) -> dict[str, Any]:
    """Return the answer of an engine, else of arithmetic, as the document of ``--json``.

    ``room`` is None if no card answers. ``fits`` is None where that is not known, each of ``knobs`` another plan that
    fits, by what differs.

    Raises:
        NoEstimate: the engine has none, and it is no language model.
        Fault: likewise, and no rule describes its configuration.
    """
    note: MessageLike = ""
    try:
        known = engine(source, plan)
    except NoEstimate as error:
        engine, note = _computed, _instead(source, error)
        known = engine(source, plan)

    @cache
    def most_bytes(changed: Plan) -> int:
        """Return the most memory of another plan; one that cannot be traced, or without an upper end, fits nowhere."""
        try:
            most = engine(source, changed).max_bytes
        except NoEstimate:
            most = None
        return sys.maxsize if most is None else most

    fits, verdict = verdict_on(known.total_bytes, known.max_bytes, room)
    how, knobs, (text, listed) = described(source, plan), [], (current().text, current().listed)
    if room and fits is False:
        for other in fitting(plan, turns(plan, source.kind), room.bytes, most_bytes):
            turned = [part for part in described(source, other) if part not in how]
            knobs.append({"turn": listed(turned), "total_bytes": most_bytes(other)})
    return {
        "model": {"name": source.name, "parameters": known.parameters},
        "plan": asdict(plan),
        "asked": listed([*how, known.by]),
        "parts_bytes": known.parts,
        "total_bytes": known.total_bytes,
        "max_bytes": known.max_bytes,
        "usable_bytes": room.bytes if room else None,
        "usable_by": text(room.how) if room else None,
        "fits": fits,
        "verdict": text(verdict),
        "unmeasured": [text(part) for part in known.unmeasured],
        "note": text(note),
        "knobs": knobs,
    }


def show(answer: dict[str, Any]) -> None:
    """Print an answer."""
    console, fits, usable = Console(), answer["fits"], answer["usable_bytes"]
    least, most, many = answer["total_bytes"], answer["max_bytes"], answer["model"]["parameters"]
    colour = {True: "green", False: "red", None: "green" if usable is None else "yellow"}[fits]
    rows = [(current().template(part), taken, "", "cyan") for part, taken in answer["parts_bytes"].items()]
    rows.append((t("at its peak") if most == least else t("at least"), least, "bold", colour))
    if most not in (None, least):
        rows.append((t("at most"), most, "", "bright_black"))
    if usable is not None:
        rows.append((t("usable"), usable, "", "bright_black"))
    scale_bytes = max(taken for _, taken, *_ in rows)
    drawn = [
        (Text(name, style), Text(size(taken), style), bar(taken / scale_bytes, 24, filled_with))
        for name, taken, style, filled_with in rows
    ]
    # Chinese counts in hundreds of millions.
    unit, digits = (1e8, ".4g") if current().code == "zh" else (1e9, ".2f")
    parameters = say("{number} B parameters", number=f"{many / unit:{digits}}") if many else ""
    asked = current().listed([parameters, answer["asked"]])
    console.print(Text.assemble((answer["model"]["name"], "bold"), "  ", asked))
    console.print(table_of("<", "<", "<", rows=drawn, first=1))
    console.print(Text(answer["verdict"], "" if usable is None else f"bold {colour}"))
    if usable is None:
        console.print(on_common_cards(least, most))
    for knob in answer["knobs"]:
        console.print("  → " + t("{title}: {text}", title=knob["turn"], text=size(knob["total_bytes"])))
    if fits is False and not answer["knobs"]:
        console.print("  " + t("No setting surely fits: try a smaller model, a bigger card or 'wslgpud sweep'."))
    if answer["unmeasured"]:
        computed = t("Computed only, not measured on a real card: {parts}.", parts=tuple(answer["unmeasured"]))
        console.print(computed, style="dim")
    if answer["note"]:
        console.print(answer["note"], style="dim")


def on_common_cards(least: int, most: int | None) -> Table:
    """Return on which common cards it fits, for who has none here."""
    rows = []
    for total_bytes in (gib << 30 for gib in _COMMON_GIB):
        usable = Usable(round(_USABLE_SHARE * total_bytes), NOTHING_SAID)
        fits, _ = verdict_on(least, most, usable)
        word, colour = {True: (t("yes"), "green"), None: (t("perhaps"), "yellow"), False: (t("no"), "red")}[fits]
        rows.append((size(total_bytes), size(usable.bytes), Text(word, colour)))
    return table_of(">" + t("card"), ">" + t("usable"), "<" + t("fits"), rows=rows, gap=3)


def verdict_on(least: int, most: int | None, room: Usable | None) -> tuple[bool | None, Message]:
    """Return whether a model that takes so many bytes at least and at most fits, and the sentence that says so.

    None: there is no card, nothing is known about the most, or the room lies between the two.
    """
    if room is None:
        return None, say("No GPU answers here. On common cards (--usable 14.5GiB takes another size):")
    how = room.how
    if least > room.bytes:
        return False, say("It does not fit: {excess_bytes} too much ({how}).", excess_bytes=least - room.bytes, how=how)
    if most is None or most > room.bytes:
        said = template("It may not fit: it takes [between {min_bytes} and {max_bytes}|{min_bytes} or more] ({how}).")
        return None, filled(said, {"min_bytes": least, "max_bytes": most, "how": how})
    return True, say("It fits, with {spare_bytes} to spare ({how}).", spare_bytes=room.bytes - most, how=how)


def _computed(source: NamedModel, plan: Plan) -> Estimate:
    """Return an estimate without asking: a file's size, else published arithmetic."""
    if source.shape is not None:
        return estimate.between(source.shape, plan)
    return Estimate({template("weights"): source.weights_bytes, template("CUDA itself"): plans.CONTEXT_BYTES}, None)


def _instead(source: NamedModel, error: NoEstimate) -> Message:
    """Return the note beside arithmetic instead of an answer; raise an error where there is no arithmetic."""
    why = error.message
    if source.kind == "gguf":
        return say("Without keys and values, which only llama.cpp tells: {why}", why=why)
    if source.kind != "language":
        raise error
    if source.shape is not None:
        return say("By published arithmetic, with a margin; a trace would be exact: {why}", why=why)
    size_known = {"size_bytes": source.weights_bytes} if source.weights_bytes else {}
    raise Fault(
        "{unknown}.[ Its weight files have {size_bytes}, which it takes at least.] A trace would tell: {why}",
        unknown=source.unknown,
        why=why,
        **size_known,
    )


def described(source: NamedModel, plan: Plan) -> list[MessageLike]:
    """Return the parts of the question, which the answer repeats."""
    every: list[tuple[bool, MessageLike]] = [
        (True, Message(_MODES[plan.mode])),
        (True, plan.precision if source.kind != "gguf" else "GGUF"),
        (True, say("batch {count}", count=plan.batch)),
        (source.kind in ("language", "gguf"), say("context {count}", count=plan.context)),
        (plan.input is not None, "x".join(map(str, plan.input or ()))),
        (plan.mode != "inference", plan.optimizer),
        (plan.checkpointing, say("gradient checkpointing")),
        (plan.offload, "offload"),
        (plan.tiling, "VAE tiling"),
    ]
    return [part for shown, part in every if shown]
