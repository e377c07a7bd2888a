"""The answers of ``wslgpud fit``: of the model itself, of llama.cpp, of published arithmetic, and of vLLM's."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from wslgpud.advise.fit import llama, vllm
from wslgpud.advise.fit.asking import Asking, NoTrace
from wslgpud.advise.fit.estimate import between
from wslgpud.advise.fit.knobs import fitting, turns
from wslgpud.advise.fit.plan import QUANTIZED, Estimate, Plan
from wslgpud.advise.fit.shape import Shape
from wslgpud.advise.fit.source import NamedModel
from wslgpud.cli.common import Fault
from wslgpud.cli.fit_answer import Answer
from wslgpud.cli.fit_room import Usable
from wslgpud.words import Message, MessageLike, current, say, t, template

_MODES = {"inference": template("inference"), "lora": "LoRA", "training": template("training")}


def answered(source: NamedModel, plan: Plan, room: Usable | None, asking: Asking | None, why: MessageLike) -> Answer:
    """Return the answer of the model itself, else of arithmetic; ``why`` nothing can be asked.

    Raises:
        NoTrace: it could not be traced, and is no language model.
        Fault: likewise, and no rule describes its configuration; or nothing can be traced here.
    """
    if source.kind == "gguf" and source.shape:
        return _of_llama(source, source.shape, plan, room)
    if asking is not None and source.asked:
        try:
            return _asked(source, plan, room, asking)
        except NoTrace as error:
            if source.shape is None and source.unknown is None:
                raise
            why = error.said
    if source.shape is None:
        raise _refused(source, why)
    note = t("By published arithmetic, with a margin. A trace of the model itself would be exact: {why}", why=why)
    if source.kind == "language" and not source.asked:
        note = t("By published arithmetic, with a margin. With its config.json, the model could be traced.")
    return _computed(source.shape, plan, room, between(source.shape, plan), [note])


def _refused(source: NamedModel, why: MessageLike) -> Fault:
    """Return why nothing can be said of a model, and what can be said for sure."""
    if source.unknown is None:
        return Fault("{name} can only be traced, in a Python with torch: {why}", name=source.name, why=why)
    if source.unknown.weights_bytes:
        return Fault(
            "{unknown}. Its weight files have {size_bytes}, which it takes at least; a trace would tell: {why}",
            unknown=source.unknown.said,
            size_bytes=source.unknown.weights_bytes,
            why=why,
        )
    return Fault("{unknown}. A trace of the model would tell: {why}", unknown=source.unknown.said, why=why)


def _asked(source: NamedModel, plan: Plan, room: Usable | None, asking: Asking) -> Answer:
    traced = asking.ask(source, plan)

    def asked(changed: Plan) -> Estimate:
        """Return the answer for another plan; one that cannot be traced fits nowhere."""
        try:
            return asking.ask(source, changed).found
        except NoTrace:
            return Estimate({"": sys.maxsize})

    def most(changed: Plan) -> int:
        found = asked(changed).max_bytes
        return sys.maxsize if found is None else found

    found = traced.found
    knobs = []
    if room and found.total_bytes > room.bytes:
        kinds = turns(plan, language=source.kind == "language", pipeline=source.kind == "pipeline")
        knobs = fitting(kinds, plan, room.bytes, most)
    facts = {
        "model": {"name": source.name, "parameters": traced.parameters},
        "plan": dataclasses.asdict(plan),
        "torch": traced.torch,
    }
    how = [*_how(traced.parameters, source, plan), f"torch {traced.torch}"]
    return Answer(source.name, how, facts, found, room, knobs, _unmeasured(plan, found))


def _of_llama(source: NamedModel, shape: Shape, plan: Plan, room: Usable | None) -> Answer:
    try:
        found, note = llama.asked(Path(source.asked), plan), t("By llama.cpp itself.")
    except llama.NoAnswer as error:
        found = between(shape, plan)
        note = t("By published arithmetic, with a margin. llama.cpp itself would be exact: {why}", why=error.said)
    return _computed(shape, plan, room, found, [note])


def _computed(shape: Shape, plan: Plan, room: Usable | None, found: Estimate, notes: Sequence[str]) -> Answer:
    source = NamedModel(shape.name, "language", "", shape)
    knobs = []
    if room and found.total_bytes > room.bytes:

        def total(changed: Plan) -> int:
            found = between(shape, changed).max_bytes
            return sys.maxsize if found is None else found

        knobs = fitting(turns(plan, language=True), plan, room.bytes, total)
    return Answer(shape.name, [*_how(shape.size, source, plan)], _facts(shape, plan), found, room, knobs, notes=notes)


def _unmeasured(plan: Plan, found: Estimate) -> list[MessageLike]:
    """Return the parts of an answer that were not measured on a real card."""
    only: list[MessageLike] = []
    if plan.precision in QUANTIZED:
        only.append(say("quantized weights"))
    if plan.mode != "inference" and plan.optimizer == "adamw8bit":
        only.append(plan.optimizer)
    if found.spread_bytes is None:
        only.append(say("convolutions without cuDNN's workspaces, which are measured while the card is idle"))
    return only


def _how(parameters: int, source: NamedModel, plan: Plan) -> Iterator[MessageLike]:
    yield say("{billions} B parameters", billions=f"{parameters / 1e9:.2f}")
    yield Message(_MODES[plan.mode])
    yield plan.precision
    yield say("batch {count}", count=plan.batch)
    if source.kind == "language":
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


def served(shape: Shape, plan: vllm.ServingPlan, card: vllm.Card | None) -> Answer:
    """Return the answer for a language model that vLLM serves."""
    if card is None:
        raise Fault("No GPU answers here: give the usable VRAM with --usable 14.5GiB.")
    found = vllm.serve(shape, plan, card)
    fits = t(
        "It fits: the cache holds {count} tokens, {ratio} sequences of {context}.",
        count=found.tokens,
        ratio=f"{found.concurrency:.2f}",
        context=plan.context,
    )
    how: list[MessageLike] = [say("{billions} B parameters", billions=f"{shape.size / 1e9:.2f}"), "vLLM"]
    how += [plan.precision, say("context {count}", count=plan.context), f"{plan.utilization:.2f}"]
    document = {**_facts(shape, plan), "tokens": found.tokens, "concurrency": round(found.concurrency, 2)}
    room = Usable(card.free_bytes, say("free on the card"))
    over = found.refusal is not None
    said = current().text(found.refusal) if found.refusal else fits
    knobs = vllm.turns(shape, plan, card) if over else []
    only = [say("vLLM's profiling run and CUDA graphs")]
    return Answer(shape.name, how, document, found.found, room, knobs, only, counted="tokens", refused=over, said=said)


def _facts(shape: Shape, plan: Plan | vllm.ServingPlan) -> dict[str, Any]:
    return {"model": {**dataclasses.asdict(shape), "parameters": shape.size}, "plan": dataclasses.asdict(plan)}
