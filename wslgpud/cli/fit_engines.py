"""The answers of ``wslgpud fit``: of the model itself, of llama.cpp, of published arithmetic, and of vLLM's."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from wslgpud.advise.fit import llama, vllm
from wslgpud.advise.fit.asking import Asking, NoTrace
from wslgpud.advise.fit.estimate import between
from wslgpud.advise.fit.knobs import fitting, turns
from wslgpud.advise.fit.plan import CONTEXT_BYTES, QUANTIZED, Estimate, Plan
from wslgpud.advise.fit.shape import Shape
from wslgpud.advise.fit.source import NamedModel
from wslgpud.cli.common import Fault
from wslgpud.cli.fit_answer import Answer
from wslgpud.cli.fit_room import Usable
from wslgpud.words import Message, MessageLike, current, say, t, template

_MODES = {"inference": template("inference"), "lora": "LoRA", "training": template("training")}


def answered(source: NamedModel, plan: Plan, room: Usable | None, asking: Asking | None, why: MessageLike) -> Answer:
    """Return the answer of the model itself, else of arithmetic; ``why`` says why nothing can be asked.

    Raises:
        NoTrace: it could not be traced, and is no language model.
        Fault: likewise, and no rule describes its configuration; or nothing can be traced here.
    """
    if source.kind == "gguf":
        return _of_llama(source, plan, room)
    if asking is not None:
        try:
            return _traced(source, plan, room, asking)
        except NoTrace as error:
            if source.kind != "language":
                raise
            why = error.message
    if (shape := source.shape) is None:
        raise _refused(source, why)

    def computed(changed: Plan) -> Estimate:
        return between(shape, changed)

    note = t("By published arithmetic, with a margin; a trace would be exact: {why}", why=why)
    return _answer(source, plan, room, computed, computed(plan), shape.size, notes=[note])


def _of_llama(source: NamedModel, plan: Plan, room: Usable | None) -> Answer:
    """Return llama.cpp's answer, else what the file takes at least."""

    def asked(changed: Plan) -> Estimate:
        return llama.asked(Path(source.asked), changed)

    try:
        return _answer(source, plan, room, asked, asked(plan), 0, notes=[t("By llama.cpp itself.")])
    except llama.NoAnswer as error:
        estimate = Estimate({template("weights"): source.weights_bytes, template("CUDA itself"): CONTEXT_BYTES}, None)
        note = t("Without keys and values, which only llama.cpp tells: {why}", why=error.message)
        return _answer(source, plan, room, lambda _: estimate, estimate, 0, notes=[note])


def _refused(source: NamedModel, why: MessageLike) -> Fault:
    """Return why nothing can be said of a model, and what can be said for sure."""
    if source.kind != "language":
        return Fault("{name} can only be traced, in a Python with torch: {why}", name=source.name, why=why)
    if source.weights_bytes:
        return Fault(
            "{unknown}. Its weight files have {size_bytes}, which it takes at least; a trace would tell: {why}",
            unknown=source.unknown,
            size_bytes=source.weights_bytes,
            why=why,
        )
    return Fault("{unknown}. A trace of the model would tell: {why}", unknown=source.unknown, why=why)


def _traced(source: NamedModel, plan: Plan, room: Usable | None, asking: Asking) -> Answer:
    traced = asking.ask(source, plan)

    def again(changed: Plan) -> Estimate:
        """Return the answer for another plan; one that cannot be traced fits nowhere."""
        try:
            return asking.ask(source, changed).found
        except NoTrace:
            return Estimate({"": sys.maxsize})

    return _answer(source, plan, room, again, traced.found, traced.parameters, torch=traced.torch)


def _answer(
    source: NamedModel,
    plan: Plan,
    room: Usable | None,
    again: Callable[[Plan], Estimate],
    estimate: Estimate,
    parameters: int,
    *,
    torch: str = "",
    notes: Sequence[str] = (),
) -> Answer:
    def most(changed: Plan) -> int:
        bytes_at_most = again(changed).max_bytes
        return sys.maxsize if bytes_at_most is None else bytes_at_most

    knobs = []
    if room and estimate.total_bytes > room.bytes:
        known = turns(plan, language=source.kind in ("language", "gguf"), pipeline=source.kind == "pipeline")
        if source.kind == "gguf":  # whose weights are as they are
            known = [turn for turn in known if "context" in turn[1]]
        knobs = fitting(known, plan, room.bytes, most)
    facts: dict[str, Any] = {"model": {"name": source.name, "parameters": parameters}, "plan": dataclasses.asdict(plan)}
    how = [*_how(parameters, source, plan)]
    if torch:
        facts["torch"] = torch
        how.append(f"torch {torch}")
    return Answer(source.name, how, facts, estimate, room, knobs, _unmeasured(plan, estimate) if torch else (), notes)


def _unmeasured(plan: Plan, estimate: Estimate) -> list[MessageLike]:
    """Return the parts of an answer that were not measured on a real card."""
    only: list[MessageLike] = []
    if plan.precision in QUANTIZED:
        only.append(say("quantized weights"))
    if plan.mode != "inference" and plan.optimizer == "adamw8bit":
        only.append(plan.optimizer)
    if estimate.spread_bytes is None:
        only.append(say("convolutions without cuDNN's workspaces, which are measured while the card is idle"))
    return only


def _how(parameters: int, source: NamedModel, plan: Plan) -> Iterator[MessageLike]:
    if parameters:
        yield say("{billions} B parameters", billions=f"{parameters / 1e9:.2f}")
    yield Message(_MODES[plan.mode])
    yield plan.precision if source.kind != "gguf" else "GGUF"
    yield say("batch {count}", count=plan.batch)
    if source.kind in ("language", "gguf"):
        yield say("context {count}", count=plan.context)
    if source.kind == "pipeline":
        yield f"{plan.width}x{plan.height}"
    if plan.mode != "inference":
        yield plan.optimizer
    if plan.checkpointing:
        yield say("gradient checkpointing")
    for name, chosen in (("offload", plan.offload), ("VAE tiling", plan.tiling), ("VAE slicing", plan.slicing)):
        if chosen:
            yield name


def served(shape: Shape, plan: vllm.ServingPlan, card: vllm.Card) -> Answer:
    """Return the answer for a language model that vLLM serves."""
    result, text = vllm.serve(shape, plan, card), current().text
    fits = say(
        "It fits: the cache holds {count} tokens, {ratio} sequences of {context}.",
        count=result.tokens,
        ratio=f"{result.concurrency:.2f}",
        context=plan.context,
    )
    how: list[MessageLike] = [say("{billions} B parameters", billions=f"{shape.size / 1e9:.2f}"), "vLLM"]
    how += [plan.precision, say("context {count}", count=plan.context), f"{plan.utilization:.2f}"]
    facts: dict[str, Any] = {"model": {"name": shape.name, "parameters": shape.size}, "plan": dataclasses.asdict(plan)}
    facts |= {"tokens": result.tokens, "concurrency": round(result.concurrency, 2)}
    over = result.refusal is not None
    return Answer(
        shape.name,
        how,
        facts,
        result.found,
        Usable(card.free_bytes, say("free on the card")),
        vllm.turns(shape, plan, card) if over else [],
        [say("vLLM's profiling run and CUDA graphs")],
        counted="tokens",
        refused=over,
        own_verdict=text(result.refusal or fits),
    )
