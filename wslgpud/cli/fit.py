"""``wslgpud fit``: will this model fit on this card, and if not, what brings it in."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, NamedTuple, cast

import typer
from rich.text import Text

from wslgpud.advise.fit import estimate as estimates
from wslgpud.advise.fit import measured
from wslgpud.advise.fit.estimate import Estimate, Mode, Optimizer, Plan, Precision, unmeasured
from wslgpud.advise.fit.shape import Shape, of
from wslgpud.advise.guard import past_runs
from wslgpud.cli import common
from wslgpud.cli.common import Fault, argument, database_of, flag, loaded, option, state_folder
from wslgpud.cli.console import Console, table_of
from wslgpud.cli.rows import bar
from wslgpud.config import Config
from wslgpud.host import Host, NoData, SourceError
from wslgpud.model import GpuSample
from wslgpud.risk.headroom import gpu_room
from wslgpud.risk.risk_metrics import LEARNED
from wslgpud.sources.gpu import GpuSource
from wslgpud.sources.wsl import generation
from wslgpud.store import Reader, StoreError
from wslgpud.words import Message, MessageLike, current, say, t, template
from wslgpud.words.units import size

_MODES = {"inference": template("inference"), "lora": "LoRA", "training": template("training")}
_USED = "gpu_memory_used_bytes"
_DAY_SECONDS, _HISTORY_SECONDS = 86400.0, 90 * 86400.0


class Usable(NamedTuple):
    """How much VRAM there is for a program, and how that is known."""

    bytes: int
    how: Message


def fit(
    model: Annotated[str, argument("MODEL", "7B, or a config.json, .safetensors or .gguf file, or a folder of them")],
    mode: Annotated[str, option("--mode -m", "inference|lora|training", "use of the model")] = "inference",
    precision: Annotated[
        str,
        option(
            "--precision -p",
            "FORMAT",
            "bf16, fp16, fp32, mixed (autocast); int8, int4 (bitsandbytes), gptq, gptq8, awq, fp8;"
            " GGUF's q4_k_m, q5_k_m, q6_k, q8_0. As config.json says, else bf16",
        ),
    ] = "",
    batch: Annotated[int, option("--batch -b", "N", "sequences at once", min=1)] = 1,
    context: Annotated[int, option("--context", "N", "tokens of each sequence", min=1)] = 4096,
    optimizer: Annotated[
        str, option("--optimizer", "NAME", "adamw, adamw-fused, adamw8bit, adafactor, momentum or sgd")
    ] = "adamw",
    checkpointing: Annotated[bool, flag("--checkpointing", "gradient checkpointing")] = False,
    rank: Annotated[int, option("--rank", "N", "rank of LoRA's matrices", min=1)] = 16,
    all_linear: Annotated[bool, flag("--all-linear", "LoRA on every matrix, not on q and v")] = False,
    usable: Annotated[str, option("--usable", "SIZE", "VRAM to fit into, like 14.5GB; asked here otherwise")] = "",
    gpu: common.Gpu = 0,
    as_json: common.Json = False,
    config: common.Config = None,
    state: common.State = None,
) -> None:
    """Say whether a model fits on this card, part by part. Exit status 1 when it does not.

    Examples:
        wslgpud fit 7B --mode lora --batch 2 --context 2048
        wslgpud fit ./model --precision int4 --usable 14.5GB
    """
    shape = of(model)
    precision = precision or shape.stored or "bf16"
    known = {"mode": estimates.MODES, "precision": estimates.PRECISIONS, "optimizer": estimates.OPTIMIZERS}
    for name, value in {"mode": mode, "precision": precision, "optimizer": optimizer}.items():
        if value not in known[name]:
            raise Fault("--{option} {value}: there are {known}", option=name, value=value, known=tuple(known[name]))
    if mode == "training" and precision in estimates.QUANTIZED:
        raise Fault("{precision} weights cannot be trained in full: use --mode lora", precision=precision)
    if mode == "lora" and precision in estimates.GGUF:
        raise Fault(
            "no adapters can be trained on {precision}, a format of llama.cpp: take int4, gptq or awq",
            precision=precision,
        )
    use, form, how = cast("Mode", mode), cast("Precision", precision), cast("Optimizer", optimizer)
    plan = Plan(use, form, batch, context, how, checkpointing, rank, "all" if all_linear else "attention")
    found = estimates.estimate(shape, plan)
    if own := measured.ratio(shape, plan, measured.read(past_runs.load(state_folder(state)).trainings)):
        found = found.scaled(own[0])
    room = _given(usable) if usable else _usable(loaded(config).config, database_of(config, state), gpu)
    over = room is not None and found.total_bytes > room.bytes
    knobs = estimates.knobs(shape, plan, room.bytes, own[0] if own else 1.0) if room and over else []
    if as_json:
        document = _document(shape, plan, found, room, knobs)
        common.print_json(document | {"measured_ratio": round(own[0], 3) if own else None}, ensure_ascii=False)
    else:
        _print(shape, plan, found, room, knobs)
        if own:
            ratio, at = own
            facts = {"by_ratio": ratio, "batch": at.batch, "context": at.context}
            said = t("Corrected to {by_ratio} by a training measured here (batch {batch}, context {context}).", **facts)
            Console().print(said, style="dim")
    raise typer.Exit(int(over))


def _given(text: str) -> Usable:
    number = text.upper().removesuffix("IB").removesuffix("B")
    scale = {"G": 1 << 30, "M": 1 << 20, "T": 1 << 40}.get(number[-1:], 0)
    try:
        return Usable(int(float(number[:-1]) * scale) if scale else int(number), say("as given"))
    except (ValueError, OverflowError) as error:
        raise Fault("--usable {text}: write it like 14.5GiB", text=text) from error


def _usable(settings: Config, database: str, index: int) -> Usable | None:
    """Return what is really usable: by the last stress run, by history, else what is free now."""
    source = GpuSource(Host(), settings)
    try:
        gpus = source.read().gpus or ()
    except (NoData, SourceError):
        return None
    finally:
        source.close()
    card = next((g for g in gpus if g.index == index), None)
    if card is None:
        raise Fault("there is no GPU {gpu}", gpu=index)
    known = _from_history(database, card, time.time())
    if known is not None or card.free_bytes is None:
        return known
    room = gpu_room(card, wsl=generation(Host()) == 2)
    left = room.headroom if room else card.free_bytes
    return Usable(left, say("free on {card} now; wslgpud stress would know it better", card=card.name))


def _from_history(database: str, card: GpuSample, now: float) -> Usable | None:
    """Return what stress runs verified, else what the daemon has seen to be usable, less what is used now."""
    if "://" not in database and not Path(database).exists():
        return None
    with contextlib.suppress(StoreError), Reader(database) as reader:
        for _, run in reversed(reader.stress_runs()):
            if run.uuid == card.uuid and run.complete and "usable_bytes" in run.values:
                return Usable(int(run.values["usable_bytes"]), say("verified by the last stress run"))
        return _from_daily_use(reader, card, now)
    return None


def _from_daily_use(reader: Reader, card: GpuSample, now: float) -> Usable | None:
    if card.used_bytes is None:
        return None
    days: list[float] = []
    limits: list[float] = []
    for ref in reader.series():
        labels = dict(ref.labels)
        if ref.metric == _USED and labels.get("uuid") == card.uuid:
            days += [b.high for b in reader.summaries(ref, now - _HISTORY_SECONDS, now, _DAY_SECONDS)]
        elif ref.metric == LEARNED.name and labels.get("resource") == f"gpu{card.index}":
            limits += [b.last for b in reader.summaries(ref, now - _HISTORY_SECONDS, now, _DAY_SECONDS)]
    room, most = gpu_room(card, wsl=generation(Host()) == 2), max(days, default=0)
    if limits:
        most, how = limits[-1], say("an allocation above this has failed here before; less the current use")
    elif room is not None and most > room.capacity:
        how = say("the highest use seen here, less the current use")
    else:
        return None
    return Usable(max(0, round(most) - card.used_bytes), how)


def _document(
    shape: Shape, plan: Plan, found: Estimate, room: Usable | None, knobs: list[tuple[Message, int]]
) -> dict[str, object]:
    text = current().text
    return {
        "model": {**dataclasses.asdict(shape), "parameters": shape.size},
        "plan": dataclasses.asdict(plan),
        "parts_bytes": found.parts,
        "total_bytes": found.total_bytes,
        "usable_bytes": room.bytes if room else None,
        "usable_by": text(room.how) if room else None,
        "fits": found.total_bytes <= room.bytes if room else None,
        "unmeasured": [text(only) for only in unmeasured(plan)],
        "knobs": [{"turn": text(turn), "total_bytes": total} for turn, total in knobs],
    }


def _print(shape: Shape, plan: Plan, found: Estimate, room: Usable | None, knobs: list[tuple[Message, int]]) -> None:
    console = Console()
    console.print(Text.assemble((shape.name, "bold"), "  " * bool(shape.name), current().listed(_how(shape, plan))))
    whole = max(found.total_bytes, room.bytes if room else 0)
    table = table_of("<", "<", "<", first=1)
    for part, taken in found.parts.items():
        table.add_row(current().template(part), size(taken), bar(taken / whole, 24, "cyan"))
    over = room is not None and found.total_bytes > room.bytes
    peak = bar(found.total_bytes / whole, 24, "red" if over else "green")
    table.add_row(Text(t("at its peak"), "bold"), Text(size(found.total_bytes), "bold"), peak)
    if room:
        table.add_row(t("usable"), size(room.bytes), bar(room.bytes / whole, 24, "bright_black"))
    console.print(table)
    if room is None:
        console.print(t("No GPU answers here: say how much is usable with --usable 14.5GiB."))
        return
    left = room.bytes - found.total_bytes
    if over:
        bad = t("It does not fit: {excess_bytes} too much ({how}).", excess_bytes=-left, how=room.how)
        console.print(Text(bad, "bold red"))
        for turn, total in knobs:
            console.print("  → " + t("{title}: {text}", title=turn, text=size(total)))
        if not knobs:
            console.print("  " + t("No setting brings it in: take a smaller model or a bigger card."))
    else:
        good = t("It fits, with {spare_bytes} to spare ({how}).", spare_bytes=left, how=room.how)
        console.print(Text(good, "bold green"))
    if only := unmeasured(plan):
        said = t("Only computed, never compared with a real card: {parts}.", parts=tuple(only))
        console.print(said, style="dim")


def _how(shape: Shape, plan: Plan) -> Iterator[MessageLike]:
    yield say("{billions} B parameters", billions=f"{shape.size / 1e9:.2f}")
    yield Message(_MODES[plan.mode])
    yield plan.precision
    yield say("batch {count}", count=plan.batch)
    yield say("context {count}", count=plan.context)
    if plan.mode != "inference":
        yield plan.optimizer
    if plan.checkpointing:
        yield say("gradient checkpointing")
