"""The answer of ``wslgpud fit``: the VRAM available here, and what a model takes by itself, llama.cpp or arithmetic."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Callable
from dataclasses import asdict
from functools import cache
from typing import Any, NamedTuple

from rich.table import Table
from rich.text import Text

from wslgpud.advise.fit.estimate import between
from wslgpud.advise.fit.knobs import fitting, turns
from wslgpud.advise.fit.plan import CONTEXT_BYTES, Estimate, NoEstimate, Plan
from wslgpud.advise.fit.source import NamedModel
from wslgpud.cli.chart import bar
from wslgpud.cli.common import Fault
from wslgpud.cli.console import Console, table_of
from wslgpud.config import Config
from wslgpud.host import Host, NoData, SourceError
from wslgpud.model import NOTHING_SAID, GpuSample
from wslgpud.risk.headroom import gpu_room
from wslgpud.risk.risk_metrics import LEARNED
from wslgpud.sources.gpu import GpuSource
from wslgpud.sources.wsl import generation
from wslgpud.store import Reader, StoreError
from wslgpud.words import Message, MessageLike, current, say, t, template
from wslgpud.words.units import size

# Sizes of cards that people have, and what WSL2 and a desktop leave of them (6 to 9 % are theirs).
_COMMON_GIB, _USABLE = (8, 12, 16, 24, 32, 48, 80, 96), 0.92
_MODES = {"inference": template("inference"), "lora": "LoRA", "training": template("training")}

_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,9})?)([MGT]?)(?:i?B)?", re.IGNORECASE)
_MIN_BYTES = 1 << 20
_DAY_SECONDS, _HISTORY_SECONDS = 86400.0, 90 * 86400.0


class Usable(NamedTuple):
    """The VRAM available to a program, and how it is known."""

    bytes: int
    how: Message


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
        limits = [
            ref
            for ref in reader.series()
            if ref.metric == LEARNED.name and dict(ref.labels)["resource"] == f"gpu{card.index}"
        ]
        days = [day for ref in limits for day in reader.summaries(ref, now - _HISTORY_SECONDS, now, _DAY_SECONDS)]
        if days and card.used_bytes is not None:
            how = say("an allocation above this has failed here before; minus the current use")
            return Usable(max(0, round(days[-1].last) - card.used_bytes), how)
    if card.free_bytes is None:
        return None
    room = gpu_room(card, wsl=generation(Host()) == 2)
    left = room.headroom if room else card.free_bytes
    return Usable(left, say("free on {card} now; 'wslgpud stress' measures it", card=card.name))


#: says what a model takes; NoEstimate: it cannot
Engine = Callable[[NamedModel, Plan], Estimate]


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
        estimate = engine(source, plan)
    except NoEstimate as error:
        engine, note = _computed, _instead(source, error)
        estimate = engine(source, plan)

    @cache
    def most_bytes(changed: Plan) -> int:
        """Return what another plan takes; one that cannot be traced, or without an upper end, fits nowhere."""
        try:
            most = engine(source, changed).max_bytes
        except NoEstimate:
            most = None
        return sys.maxsize if most is None else most

    fits, verdict = verdict_on(estimate.total_bytes, estimate.max_bytes, room)
    how, knobs, (text, listed) = described(source, plan), [], (current().text, current().listed)
    if room and fits is False:
        for other in fitting(plan, turns(plan, source.kind), room.bytes, most_bytes):
            turned = [part for part in described(source, other) if part not in how]
            knobs.append({"turn": listed(turned), "total_bytes": most_bytes(other)})
    return {
        "model": {"name": source.name, "parameters": estimate.parameters},
        "plan": asdict(plan),
        "asked": listed([*how, estimate.by]),
        "parts_bytes": estimate.parts,
        "total_bytes": estimate.total_bytes,
        "max_bytes": estimate.max_bytes,
        "usable_bytes": room.bytes if room else None,
        "usable_by": text(room.how) if room else None,
        "fits": fits,
        "verdict": text(verdict),
        "unmeasured": [text(part) for part in estimate.unmeasured],
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
    table, scale_bytes = table_of("<", "<", "<", first=1), max(taken for _, taken, *_ in rows)
    for name, taken, style, filled_with in rows:
        table.add_row(Text(name, style), Text(size(taken), style), bar(taken / scale_bytes, 24, filled_with))
    # Chinese counts in hundreds of millions.
    unit, digits = (1e8, ".4g") if current().code == "zh" else (1e9, ".2f")
    parameters = say("{number} B parameters", number=f"{many / unit:{digits}}") if many else ""
    console.print(
        Text.assemble((answer["model"]["name"], "bold"), "  ", current().listed([parameters, answer["asked"]]))
    )
    console.print(table)
    console.print(Text(answer["verdict"], "" if usable is None else f"bold {colour}"))
    if usable is None:
        console.print(on_common_cards(least, most))
    for knob in answer["knobs"]:
        console.print("  → " + t("{title}: {text}", title=knob["turn"], text=size(knob["total_bytes"])))
    if fits is False and not answer["knobs"]:
        console.print("  " + t("No setting makes it fit: use a smaller model or a bigger card."))
    if answer["unmeasured"]:
        computed = t("Computed only, not measured on a real card: {parts}.", parts=tuple(answer["unmeasured"]))
        console.print(computed, style="dim")
    if answer["note"]:
        console.print(answer["note"], style="dim")


def on_common_cards(least: int, most: int | None) -> Table:
    """Return on which common cards it fits, for who has none here."""
    table = table_of(">" + t("card"), ">" + t("usable"), "<" + t("fits"), gap=3)
    for total_bytes in (gib << 30 for gib in _COMMON_GIB):
        usable = Usable(round(_USABLE * total_bytes), NOTHING_SAID)
        fits, _ = verdict_on(least, most, usable)
        word, colour = {True: (t("yes"), "green"), None: (t("perhaps"), "yellow"), False: (t("no"), "red")}[fits]
        table.add_row(size(total_bytes), size(usable.bytes), Text(word, colour))
    return table


def verdict_on(least: int, most: int | None, room: Usable | None) -> tuple[bool | None, Message]:
    """Return whether what takes so many bytes at least and at most fits, and what is said of it.

    None: there is no card, nothing is known about the most, or the room lies between the two.
    """
    if room is None:
        return None, say("No GPU answers here. On common cards (--usable 14.5GiB takes another size):")
    how = room.how
    if least > room.bytes:
        return False, say("It does not fit: {excess_bytes} too much ({how}).", excess_bytes=least - room.bytes, how=how)
    if most is None:
        return None, say("It may not fit: it takes {min_bytes} or more ({how}).", min_bytes=least, how=how)
    if most > room.bytes:
        ends = {"min_bytes": least, "max_bytes": most}
        return None, say("It may not fit: it takes between {min_bytes} and {max_bytes} ({how}).", **ends, how=how)
    return True, say("It fits, with {spare_bytes} to spare ({how}).", spare_bytes=room.bytes - most, how=how)


def _computed(source: NamedModel, plan: Plan) -> Estimate:
    """Return what is known without asking: of a file its size, else published arithmetic."""
    if source.shape is not None:
        return between(source.shape, plan)
    return Estimate({template("weights"): source.weights_bytes, template("CUDA itself"): CONTEXT_BYTES}, None)


def _instead(source: NamedModel, error: NoEstimate) -> Message:
    """Return what is said of arithmetic instead of an answer, or raise what else can be said for sure."""
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
    """Return what is asked of a model."""
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
