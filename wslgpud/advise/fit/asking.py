"""Asks the model itself: runs the tracer in the Python that trains here, and keeps what it answers.

Of a GGUF file llama.cpp is asked: ``llama-fit-params`` prints its own arithmetic. As
https://github.com/ggml-org/llama.cpp/pull/22171 has it, that is a line per device, of MiB of the model, the context and
the compute buffers; the last line is the host's, and the only one of a build without CUDA. Its build 11434 was asked of
a GGUF of 4 layers with 2 x 64 numbers in the keys of a token: 273 MiB of weights, and 64 MiB of a context of 32768, as
by hand.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from wslgpud.advise.fit.plan import CONTEXT_BYTES, QUANTIZED, UNPACKED, WEIGHT_BYTES, Estimate, NoEstimate, Plan
from wslgpud.advise.fit.source import NamedModel
from wslgpud.security import safe_files
from wslgpud.security.run_as import Command, environment, program, run
from wslgpud.security.shapes import flag, of, record, table, uint
from wslgpud.stress.find_python import Python
from wslgpud.words import MessageLike, cause, say, template

TRACER, LLAMA_CPP = Path(__file__).with_name("tracer"), "llama-fit-params"
#: time limits of a trace, and of llama.cpp
MAX_SECONDS, _LLAMA_CPP_SECONDS = 600.0, 60.0
#: the part of this machine's memory that a trace may take; it takes 1 to 3 GB, mostly for libraries
MEMORY_SHARE = 0.5
#: Where nothing of the card was measured, models without convolutions may take this share more, for operations' own
#: memory (attention backward, norms) and kernels that the processor lacks: ``python -m tests.gpu.traces_on_a_real_card
#: --unmeasured`` prints how much it was. With convolutions it may be anything.
UNMEASURED_SHARE = 0.2
_WEIGHTS, _ACTIVATIONS, _CUDA = template("weights"), template("activations"), template("CUDA itself")
_PURPOSES = (_WEIGHTS, template("gradients"), _ACTIVATIONS, template("optimizer"), _CUDA)
_BY_DATA = ("DataDependentOutputException", "DynamicOutputShapeException", "GuardOnDataDependentSymNode")
_MAX_WHY = 300
#: answers that are kept, in the user's own folder
MAX_KEPT, _MAX_KEPT_BYTES = 200, 1 << 20
_ANSWER = record(
    {
        "parameters": uint,
        "torch": of(str, lambda version: len(version) <= 40),
        #: whether operations ran on the card, and the kinds of those that should have but did not
        "measured": flag,
        "unmeasured": uint,
        "reserved_bytes": uint,
        "used": table(_PURPOSES.__contains__, uint),
    }
)
_LLAMA_CPP_ROW = re.compile(r"^(\S{1,40}) (\d{1,9}) (\d{1,9}) (\d{1,9}) *$", re.MULTILINE)


class IdleCard(NamedTuple):
    """The card on which operations may be measured, and how much of it they may take; none: it is not touched."""

    uuid: str = ""
    measure_bytes: int = 0


def job_of(source: NamedModel, plan: Plan, card: IdleCard) -> dict[str, Any]:
    """Return the tracer's job, see ``tracer/build.py``."""
    job = {**asdict(plan), "model": source.asked, "measure_bytes": card.measure_bytes}
    packed = plan.precision in QUANTIZED - ({"fp8"} if source.kind == "pipeline" else set())
    job["weight_bytes"] = WEIGHT_BYTES[plan.precision] if packed else 0
    return {**job, "unpacking": plan.precision in UNPACKED, "experts_only": plan.precision == "mxfp4"}


def ask(python: Python, card: IdleCard, kept_in: Path | None, source: NamedModel, plan: Plan) -> Estimate:
    """Return the memory of a model that runs as planned in a Python, asked now or before.

    Answers are kept in a file, None: nowhere.

    Raises NoEstimate: it could not be traced.
    """
    job = job_of(source, plan, card)
    # The modules that a file of one's own imports are not known.
    file = None if source.kind == "own" else kept_in
    key, kept = _key(python, card, job), dict[str, Any]()
    with suppress(OSError, ValueError):
        kept = safe_files.parsed(safe_files.contents(file, _MAX_KEPT_BYTES)) if file else {}
    if _ANSWER(known := kept.get(key, {})):
        return _estimate(known, plan)
    try:
        answer = _traced(python, card, job)
    except NoEstimate:  # a library died on the card, or has no rule for it: the same question without the card
        if not job["measure_bytes"]:
            raise
        answer = _traced(python, card, {**job, "measure_bytes": 0})
    # Without room on the card just now, there may be some the next time.
    if file and not (answer["unmeasured"] and job["measure_bytes"]):
        with suppress(OSError):  # the next time is as slow
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            safe_files.put(file, json.dumps(dict([*kept.items(), (key, answer)][-MAX_KEPT:])))
    return _estimate(answer, plan)


def _key(python: Python, card: IdleCard, job: Mapping[str, Any]) -> str:
    """Return what an answer depends on: the job, the card, the installed packages, and this tracer."""
    prefix = python.path.parent.parent
    libraries = (prefix / "lib", prefix / "local/lib", Path.home() / ".local/lib")
    packages = sorted(chain.from_iterable(library.glob("python3*/*-packages") for library in libraries))
    stamps = [(str(folder), folder.stat().st_mtime_ns) for folder in packages]
    code = [file.read_text(encoding="utf-8") for file in sorted(TRACER.glob("*.py"))]
    job = {**job, "measure_bytes": bool(card.measure_bytes)}
    whole = json.dumps([job, card.uuid, str(python.path), stamps, code], sort_keys=True)
    return hashlib.sha256(whole.encode()).hexdigest()[:32]


def _traced(python: Python, card: IdleCard, job: Mapping[str, Any]) -> Mapping[str, Any]:
    surroundings = {**environment(python.account, os.environ), "HF_HUB_OFFLINE": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    surroundings |= {"CUDA_VISIBLE_DEVICES": card.uuid, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    memory = round(MEMORY_SHARE * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    command = Command([str(python.path)], surroundings, python.account)
    text = json.dumps({**job, "memory_bytes": memory})
    try:
        answer = safe_files.parsed(_said(command, MAX_SECONDS, script=TRACER, text=text)[1])
    except ValueError:
        answer = {}
    if "error" in answer:
        raise _refusal(str(answer["error"]), str(answer.get("why", "")))
    if not _ANSWER(answer):
        raise NoEstimate(say("the tracer ended without an answer: it ran out of memory, or was ended"))
    return answer


def _said(command: Command, seconds: float, **more: Any) -> tuple[int, str, str]:
    try:
        return run(command, seconds, **more)
    except OSError as error:  # a TimeoutError, too
        raise NoEstimate("{program}: {why}", program=command.arguments[0], why=cause(error)) from error


def _estimate(answer: Mapping[str, Any], plan: Plan) -> Estimate:
    """Return an answer's parts; without a measurement only the memory in use, as gaps depend on every size."""
    used = {part: size for part, size in answer["used"].items() if size and part != _CUDA}
    cuda = CONTEXT_BYTES + answer["used"].get(_CUDA, 0)
    least = sum(used.values()) + cuda
    reserved = max(least, answer["reserved_bytes"] + CONTEXT_BYTES)
    open_end = say("convolutions without cuDNN's workspaces, which are measured while the card is idle")
    every: list[tuple[bool, MessageLike]] = [
        (plan.precision in QUANTIZED, say("quantized weights")),
        (plan.mode != "inference" and plan.optimizer == "adamw8bit", plan.optimizer),
        (bool(answer["unmeasured"]), open_end),
    ]
    facts = answer["parameters"], f"torch {answer['torch']}", tuple(part for computed, part in every if computed)
    if answer["measured"] and not answer["unmeasured"]:
        return Estimate({**used, template("PyTorch's cache, unused"): reserved - least, _CUDA: cuda}, 0, *facts)
    spread = None if answer["unmeasured"] else round((1 + UNMEASURED_SHARE) * reserved) - least
    return Estimate({**used, _CUDA: cuda}, spread, *facts)


def _refusal(kind: str, why: str) -> NoEstimate:
    why = "".join(c for c in why if c.isprintable())[:_MAX_WHY]
    if kind in _BY_DATA:
        return NoEstimate(say("sizes in this model depend on its data: measure it with 'wslgpud sweep'"))
    return NoEstimate("the model could not be traced: {why}", why=why if kind == "Refused" else f"{kind}: {why}")


def ask_llama_cpp(source: NamedModel, plan: Plan) -> Estimate:
    """Return llama.cpp's answer. Raises NoEstimate: it is not installed, or gave none."""
    if (path := program(LLAMA_CPP)) is None:
        raise NoEstimate("{program} is not installed", program=LLAMA_CPP)
    words = [path, "--model", source.asked, "--ctx-size", str(plan.batch * plan.context), "--fit-print", "on"]
    status, output, complaints = _said(Command(words, dict(os.environ), None), _LLAMA_CPP_SECONDS)
    every = _LLAMA_CPP_ROW.findall(output)
    rows = [row for row in every if row[0].lower() != "host"]
    if status or not every:
        why = next(reversed(complaints.strip().splitlines()), "") or say("exit status {status}", status=status)
        raise NoEstimate("{program}: {why}", program=LLAMA_CPP, why=why)
    if not rows:
        raise NoEstimate("{program} is built without CUDA", program=LLAMA_CPP)
    model, context, compute = (sum(int(row[column]) for row in rows) << 20 for column in (1, 2, 3))
    parts = {_WEIGHTS: model, template("keys and values"): context, _ACTIVATIONS: compute}
    return Estimate({**parts, _CUDA: CONTEXT_BYTES}, by="llama.cpp")
