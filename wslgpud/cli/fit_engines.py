"""The answers of ``wslgpud fit``: of the model itself, of llama.cpp, of published arithmetic, and of vLLM's."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

from wslgpud.advise.fit import vllm
from wslgpud.advise.fit.estimate import between
from wslgpud.advise.fit.knobs import fitting, turns
from wslgpud.advise.fit.plan import CONTEXT_BYTES, QUANTIZED, Estimate, NoEstimate, Plan
from wslgpud.advise.fit.shape import Shape
from wslgpud.advise.fit.source import NamedModel
from wslgpud.cli.common import Fault
from wslgpud.cli.fit_answer import Answer, verdict_on
from wslgpud.cli.fit_room import Usable
from wslgpud.words import Message, MessageLike, say, template

_MODES = {"inference": template("inference"), "lora": "LoRA", "training": template("training")}

#: says what a model takes; NoEstimate: it cannot
Engine = Callable[[NamedModel, Plan], Estimate]


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

    knobs = []
    if room and estimate.total_bytes > room.bytes:
        knobs = fitting(turns(plan, source.kind), plan, room.bytes, most_bytes)
    how, verdict, unmeasured, more = [*described(source, plan)], verdict_on(estimate, room), [], {}
    if estimate.torch:
        how, more = [*how, f"torch {estimate.torch}"], {"torch": estimate.torch}
        unmeasured = [*_unmeasured(plan, estimate)]
    return Answer(source.name, plan, how, estimate, room, verdict, knobs, unmeasured, note, more=more)


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
    if not source.weights_bytes:
        raise Fault("{unknown}. A trace of the model would tell: {why}", unknown=source.unknown, why=why)
    raise Fault(
        "{unknown}. Its weight files have {size_bytes}, which it takes at least; a trace would tell: {why}",
        unknown=source.unknown,
        size_bytes=source.weights_bytes,
        why=why,
    )


def _unmeasured(plan: Plan, estimate: Estimate) -> Iterator[MessageLike]:
    """Yield the parts of an answer that were not measured on a real card."""
    if plan.precision in QUANTIZED:
        yield say("quantized weights")
    if plan.mode != "inference" and plan.optimizer == "adamw8bit":
        yield plan.optimizer
    if estimate.spread_bytes is None:
        yield say("convolutions without cuDNN's workspaces, which are measured while the card is idle")


def described(source: NamedModel, plan: Plan) -> Iterator[MessageLike]:
    """Yield what is asked of a model."""
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
    result, room = vllm.serve(shape, plan, card), Usable(card.free_bytes, say("free on the card"))
    fits = say(
        "It fits: the cache holds {count} tokens, {ratio} sequences of {context}.",
        count=result.tokens,
        ratio=f"{result.concurrency:.2f}",
        context=plan.context,
    )
    how = "vLLM", plan.precision, say("context {count}", count=plan.context), f"{plan.utilization:.2f}"
    verdict, knobs = (result.refusal is None, result.refusal or fits), list[tuple[Message, int]]()
    if result.refusal is not None:
        knobs = vllm.turns(shape, plan, card)
    computed = [say("vLLM's profiling run and CUDA graphs")]
    more = {"tokens": result.tokens, "concurrency": round(result.concurrency, 2)}
    return Answer(shape.name, plan, how, result.found, room, verdict, knobs, computed, "", "tokens", more)
