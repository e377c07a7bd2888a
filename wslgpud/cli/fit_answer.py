"""The answer of ``wslgpud fit``: of the model itself, llama.cpp, published arithmetic, or vLLM's."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.table import Table
from rich.text import Text

from wslgpud.advise.fit import vllm
from wslgpud.advise.fit.estimate import between
from wslgpud.advise.fit.knobs import fitting, turns
from wslgpud.advise.fit.plan import CONTEXT_BYTES, QUANTIZED, Estimate, NoEstimate, Plan
from wslgpud.advise.fit.shape import Shape
from wslgpud.advise.fit.source import NamedModel
from wslgpud.cli.chart import bar
from wslgpud.cli.common import Fault
from wslgpud.cli.console import Console, table_of
from wslgpud.cli.fit_room import Usable
from wslgpud.model import NOTHING_SAID
from wslgpud.words import Fact, Message, MessageLike, current, say, t, template
from wslgpud.words.units import size

# Sizes of cards that people have, and what WSL2 and a desktop leave of them (6 to 9 % are theirs).
_COMMON_GIB, _USABLE = (8, 12, 16, 24, 32, 48, 80, 96), 0.92
_MODES = {"inference": template("inference"), "lora": "LoRA", "training": template("training")}

#: says what a model takes; NoEstimate: it cannot
Engine = Callable[[NamedModel, Plan], Estimate]


@dataclass(frozen=True)
class Answer:
    """A question and its estimate; ``room`` is None if no card answers."""

    name: str
    plan: Plan | vllm.ServingPlan
    #: the plan in words
    how: Sequence[MessageLike]
    estimate: Estimate
    room: Usable | None
    #: whether it fits, None: that is not known; and what is said of it
    verdict: tuple[bool | None, Message]
    #: the settings of each other plan that fits, and its result: total bytes, or tokens in the cache
    knobs: Sequence[tuple[Sequence[MessageLike], int]] = ()
    unmeasured: Sequence[MessageLike] = ()
    note: MessageLike = ""
    counted: str = "total_bytes"
    #: further fields for ``--json``
    more: Mapping[str, Any] = field(default_factory=dict)

    @property
    def status(self) -> int:
        """The exit status."""
        return 0 if self.room is None else {True: 0, False: 1, None: 3}[self.verdict[0]]

    def document(self) -> dict[str, object]:
        """Return it for ``--json``."""
        text, listed = current().text, current().listed
        return {
            "model": {"name": self.name, "parameters": self.estimate.parameters},
            "plan": asdict(self.plan),
            **self.more,
            "parts_bytes": self.estimate.parts,
            "total_bytes": self.estimate.total_bytes,
            "max_bytes": self.estimate.max_bytes,
            "usable_bytes": self.room.bytes if self.room else None,
            "usable_by": text(self.room.how) if self.room else None,
            "fits": self.verdict[0],
            "unmeasured": [text(only) for only in self.unmeasured],
            "knobs": [{"turn": listed(turned), self.counted: count} for turned, count in self.knobs],
        }

    def show(self) -> None:
        """Print it."""
        console, estimate, (fits, verdict) = Console(), self.estimate, self.verdict
        colour = {True: "green", False: "red", None: "yellow" if self.room else "green"}[fits]
        rows = [(current().template(part), taken, "", "cyan") for part, taken in estimate.parts.items()]
        peak = t("at its peak") if estimate.spread_bytes == 0 else t("at least")
        rows.append((peak, estimate.total_bytes, "bold", colour))
        if estimate.max_bytes and estimate.spread_bytes:
            rows.append((t("at most"), estimate.max_bytes, "", "bright_black"))
        if self.room:
            rows.append((t("usable"), self.room.bytes, "", "bright_black"))
        table, scale_bytes = table_of("<", "<", "<", first=1), max(taken for _, taken, *_ in rows)
        for name, taken, style, filled in rows:
            table.add_row(Text(name, style), Text(size(taken), style), bar(taken / scale_bytes, 24, filled))
        # Chinese counts in hundreds of millions.
        unit, digits = (1e8, ".4g") if current().code == "zh" else (1e9, ".2f")
        many = say("{number} B parameters", number=f"{estimate.parameters / unit:{digits}}")
        how = current().listed([many, *self.how] if estimate.parameters else self.how)
        console.print(Text.assemble((self.name, "bold"), "  " * bool(self.name), how))
        console.print(table)
        console.print(Text(current().text(verdict), f"bold {colour}" if self.room else ""))
        if self.room is None:
            console.print(on_common_cards(estimate))
        for turned, count in self.knobs:
            text = size(count) if self.counted == "total_bytes" else t("room for {count} tokens", count=count)
            console.print("  → " + t("{title}: {text}", title=current().listed(turned), text=text))
        if fits is False and not self.knobs:
            console.print("  " + t("No setting makes it fit: use a smaller model or a bigger card."))
        computed = say("Computed only, not measured on a real card: {parts}.", parts=tuple(self.unmeasured))
        for remark in [computed] * bool(self.unmeasured) + [self.note] * bool(self.note):
            console.print(current().text(remark), style="dim")


def on_common_cards(estimate: Estimate) -> Table:
    """Return on which common cards it fits, for who has none here."""
    table = table_of(">" + t("card"), ">" + t("usable"), "<" + t("fits"), gap=3)
    for total_bytes in (gib << 30 for gib in _COMMON_GIB):
        usable = Usable(round(_USABLE * total_bytes), NOTHING_SAID)
        fits, _ = verdict_on(estimate, usable)
        word, colour = {True: (t("yes"), "green"), None: (t("perhaps"), "yellow"), False: (t("no"), "red")}[fits]
        table.add_row(size(total_bytes), size(usable.bytes), Text(word, colour))
    return table


def verdict_on(estimate: Estimate, room: Usable | None) -> tuple[bool | None, Message]:
    """Return whether an estimate fits; None: there is no card, or the room lies between the least and the most."""
    if room is None:
        return None, say("No GPU answers here. On common cards (--usable 14.5GiB takes another size):")
    least, most, how = estimate.total_bytes, estimate.max_bytes, room.how
    if least > room.bytes:
        return False, say("It does not fit: {excess_bytes} too much ({how}).", excess_bytes=least - room.bytes, how=how)
    if most is None:
        return None, say("It may not fit: it takes {min_bytes} or more ({how}).", min_bytes=least, how=how)
    if most > room.bytes:
        between = {"min_bytes": least, "max_bytes": most}
        return None, say("It may not fit: it takes between {min_bytes} and {max_bytes} ({how}).", **between, how=how)
    return True, say("It fits, with {spare_bytes} to spare ({how}).", spare_bytes=room.bytes - most, how=how)


def answered(source: NamedModel, plan: Plan, room: Usable | None, engine: Engine) -> Answer:
    """Return the answer of an engine, else of arithmetic.

    Raises:
        NoEstimate: the engine has none, and it is no language model.
        Fault: likewise, and no rule describes its configuration.
    """
    note: MessageLike = say("By llama.cpp itself.") if source.kind == "gguf" else ""
    try:
        estimate = engine(source, plan)
    except NoEstimate as error:
        engine, note = _computed, _instead(source, error)
        estimate = engine(source, plan)

    def most_bytes(changed: Plan) -> int:
        """Return what another plan takes; one that cannot be traced, or without an upper end, fits nowhere."""
        try:
            most = engine(source, changed).max_bytes
        except NoEstimate:
            most = None
        return sys.maxsize if most is None else most

    how, verdict, knobs = described(source, plan), verdict_on(estimate, room), []
    if room and estimate.total_bytes > room.bytes:
        others = fitting(plan, turns(plan, source.kind), room.bytes, most_bytes)
        knobs = [([part for part in described(source, other) if part not in how], taken) for other, taken in others]
    if not estimate.torch:
        return Answer(source.name, plan, how, estimate, room, verdict, knobs, note=note)
    how, more = [*how, f"torch {estimate.torch}"], {"torch": estimate.torch}
    return Answer(source.name, plan, how, estimate, room, verdict, knobs, _unmeasured(plan, estimate), note, more=more)


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
    facts: dict[str, Fact] = {"unknown": source.unknown, "size_bytes": source.weights_bytes, "why": why}
    if not source.weights_bytes:
        raise Fault("{unknown}. A trace of the model would tell: {why}", **facts)
    raise Fault(
        "{unknown}. Its weight files have {size_bytes}, which it takes at least; a trace would tell: {why}", **facts
    )


def _unmeasured(plan: Plan, estimate: Estimate) -> list[MessageLike]:
    """Return the parts of an answer that were not measured on a real card."""
    open_end = say("convolutions without cuDNN's workspaces, which are measured while the card is idle")
    every: list[tuple[bool, MessageLike]] = [
        (plan.precision in QUANTIZED, say("quantized weights")),
        (plan.mode != "inference" and plan.optimizer == "adamw8bit", plan.optimizer),
        (estimate.spread_bytes is None, open_end),
    ]
    return [part for shown, part in every if shown]


def described(source: NamedModel, plan: Plan) -> list[MessageLike]:
    """Return what is asked of a model."""
    every: list[tuple[bool, MessageLike]] = [
        (True, Message(_MODES[plan.mode])),
        (True, plan.precision if source.kind != "gguf" else "GGUF"),
        (True, say("batch {count}", count=plan.batch)),
        (source.kind in ("language", "gguf"), say("context {count}", count=plan.context)),
        (source.kind == "pipeline", f"{plan.width}x{plan.height}"),
        (plan.mode != "inference", plan.optimizer),
        (plan.checkpointing, say("gradient checkpointing")),
        (plan.offload, "offload"),
        (plan.tiling, "VAE tiling"),
    ]
    return [part for shown, part in every if shown]


def served(name: str, shape: Shape, plan: vllm.ServingPlan, card: vllm.Card) -> Answer:
    """Return the answer for a language model that vLLM serves."""
    result, room = vllm.serve(shape, plan, card), Usable(card.free_bytes, say("free on the card"))
    facts: dict[str, Fact] = {"count": result.tokens, "ratio": f"{result.concurrency:.2f}", "context": plan.context}
    fits = say("It fits: the cache holds {count} tokens, {ratio} sequences of {context}.", **facts)
    how = "vLLM", plan.precision, say("context {count}", count=plan.context), f"{plan.utilization:.2f}"
    verdict = result.refusal is None, result.refusal or fits
    knobs = vllm.turns(shape, plan, card) if result.refusal else []
    computed = [say("vLLM's profiling run and CUDA graphs")]
    more = {"tokens": result.tokens, "concurrency": round(result.concurrency, 2)}
    return Answer(name, plan, how, result.found, room, verdict, knobs, computed, "", "tokens", more)
