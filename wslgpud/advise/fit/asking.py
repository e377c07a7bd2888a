"""Asks the model itself: runs the tracer in the Python that trains here, and replays what it prints."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from wslgpud.advise.fit.allocator import EMPTIED, Reserved, held
from wslgpud.advise.fit.plan import CONTEXT_BYTES, QUANTIZED, UNPACKED, WEIGHT_BYTES, Estimate, Plan
from wslgpud.advise.fit.source import NamedModel
from wslgpud.security import safe_files
from wslgpud.security.run_as import Command, environment, start
from wslgpud.stress.find_python import Python
from wslgpud.words import MessageError, cause, say, template

TRACER = Path(__file__).with_name("tracer")
#: limits on a trace: seconds, bytes of its output, and bytes of a line
MAX_SECONDS, MAX_OUTPUT_BYTES, MAX_LINE_BYTES = 600.0, 256 << 20, 1 << 16
#: of this machine's memory, the part that a trace may take; it takes 1 to 3 GB, mostly of libraries
MEMORY_SHARE = 0.5
#: Where nothing of the card was measured, models without convolutions may take this share more, for operations' own
#: memory (attention backward, norms) and kernels that the processor lacks: ``python -m tests.gpu.traces_on_a_real_card
#: --unmeasured`` prints how much it was. With convolutions it may be anything.
UNMEASURED_SHARE = 0.2
_CUDA, _UNUSED = template("CUDA itself"), template("PyTorch's cache, unused")
_PURPOSES = (template("weights"), template("gradients"), template("activations"), template("optimizer"), _CUDA, EMPTIED)
_BY_DATA = ("DataDependentOutputException", "DynamicOutputShapeException", "GuardOnDataDependentSymNode")
_PICTURE = (3, 224, 224)
_MAX_WHY = 300
#: answers that are kept, in the user's own folder
MAX_KEPT = 200


class NoTrace(MessageError):
    """The model could not be traced; the message says why."""


class Died(NoTrace):
    """The tracer ended without a last line."""


class Traced(NamedTuple):
    """A traced model: its parts in bytes, its parameters, and the version of torch that ran it."""

    found: Estimate
    parameters: int
    torch: str


class IdleCard(NamedTuple):
    """The card on which operations may be measured, and how much of it they may take; none: it is not touched."""

    uuid: str = ""
    measure_bytes: int = 0


def job_of(source: NamedModel, plan: Plan, card: IdleCard) -> dict[str, Any]:
    """Return what the tracer is asked, see ``tracer/build.py``."""
    job = {**asdict(plan), "model": source.asked, "measure_bytes": card.measure_bytes}
    if source.kind == "named" and plan.input is None:
        job["input"] = _PICTURE
    if plan.precision in QUANTIZED - ({"fp8"} if source.kind == "pipeline" else set()):
        job["weight_bytes"], job["unpacking"] = WEIGHT_BYTES[plan.precision], plan.precision in UNPACKED
        job["experts_only"] = plan.precision == "mxfp4"
    return job


class Asking:
    """Answers of models in one Python; those that were given before are kept in ``folder``, None: nowhere."""

    def __init__(
        self, python: Python, card: IdleCard, folder: Path | None, tell: Callable[[str], object] = lambda _: None
    ) -> None:
        """``tell`` hears which part of a trace is under way."""
        self.python, self.card, self._folder, self._tell = python, card, folder, tell

    def ask(self, source: NamedModel, plan: Plan) -> Traced:
        """Trace a model as this plan runs it. Raises NoTrace: it could not be traced."""
        job = job_of(source, plan, self.card)
        # The modules that a file of one's own imports are not known.
        kept = self._folder / f"{self._key(job)}.json" if self._folder and source.kind != "own" else None
        if kept is not None and (known := _read(kept)) is not None:
            return known
        try:
            traced = self._traced(job)
        except Died:  # in a library, on the card: the same question without measuring it
            if not job["measure_bytes"]:
                raise
            traced = self._traced({**job, "measure_bytes": 0})
        # Without an upper end there was no room on the card just now, which may be there the next time.
        if kept is not None and not (traced.found.spread_bytes is None and self.card.measure_bytes):
            _write(kept, traced)
        return traced

    def _key(self, job: Mapping[str, Any]) -> str:
        """Return what an answer depends on: the job, the card, the installed packages, and this tracer."""
        library = sorted(self.python.path.parent.parent.glob("lib/python3*/*-packages"))
        stamps = [(str(folder), folder.stat().st_mtime_ns) for folder in library]
        code = [file.read_text(encoding="utf-8") for file in sorted(TRACER.glob("*.py"))]
        job = {**job, "measure_bytes": bool(self.card.measure_bytes)}
        whole = json.dumps([job, self.card.uuid, str(self.python.path), stamps, code], sort_keys=True)
        return hashlib.sha256(whole.encode()).hexdigest()[:32]

    def _traced(self, job: Mapping[str, Any]) -> Traced:
        last: dict[str, Any] = {}
        try:
            taken = held(self._events(job, last))
        except OSError as error:
            path = str(self.python.path)
            raise NoTrace("cannot start {program}: {why}", program=path, why=cause(error)) from error
        except ValueError as error:
            raise NoTrace(say("the tracer wrote a line outside its protocol")) from error
        if "error" in last:
            raise _refusal(str(last["error"]), str(last.get("why", "")))
        count, version, unmeasured = last.get("parameters"), last.get("torch"), last.get("unmeasured")
        if not isinstance(count, int) or not isinstance(version, str) or not isinstance(unmeasured, int):
            raise Died(say("the tracer ended without an answer: it ran out of memory, or was ended"))
        found = _parts(taken)
        if unmeasured or not job["measure_bytes"]:
            found = _bounded(found, known=not unmeasured)
        return Traced(found, count, version[:40])

    def _events(self, job: Mapping[str, Any], last: dict[str, Any]) -> Iterator[str | int]:
        """Yield the events of a trace; ``last`` gets its last line. Raises ValueError: it is none."""
        for line in _lines(job, self.python, self.card.uuid):
            if line[:1] == b"{":
                last.update(safe_files.parsed(line))
            elif (purpose := line.strip(b'"').decode("ascii", "replace")) in _PURPOSES:
                self._tell(purpose)
                yield purpose
            elif len(line) <= len("-1125899906842624"):
                yield int(line)
            else:
                raise ValueError("no event")


def _parts(taken: Reserved) -> Estimate:
    used = {part: size for part, size in taken.used.items() if size and part != _CUDA}
    own = taken.used.get(_CUDA, 0)
    unused = taken.reserved_bytes - sum(used.values()) - own
    return Estimate({**used, _UNUSED: unused, _CUDA: CONTEXT_BYTES + own})


def _bounded(found: Estimate, *, known: bool) -> Estimate:
    """Return what is taken at least: what is in use, as gaps depend on every size; and at most, if that is known."""
    parts = {part: size for part, size in found.parts.items() if part != _UNUSED}
    most = round((1 + UNMEASURED_SHARE) * found.total_bytes)
    return Estimate(parts, most - sum(parts.values()) if known else None)


def _refusal(kind: str, why: str) -> NoTrace:
    why = "".join(c for c in why if c.isprintable())[:_MAX_WHY]
    if kind in _BY_DATA:
        return NoTrace(say("sizes in this model depend on its data: measure it with 'wslgpud sweep'"))
    return NoTrace("the model could not be traced: {why}", why=why if kind == "Refused" else f"{kind}: {why}")


def _read(file: Path) -> Traced | None:
    with suppress(OSError, ValueError, TypeError, KeyError):
        parts, spread, parameters, version = safe_files.parsed(safe_files.contents(file, MAX_LINE_BYTES))["traced"]
        return Traced(Estimate(parts, spread), parameters, version)
    return None


def _write(file: Path, traced: Traced) -> None:
    with suppress(OSError):  # the next time is as slow
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        older = sorted(file.parent.glob("*.json"), key=lambda kept: kept.stat().st_mtime)
        for old in older[: max(0, len(older) - MAX_KEPT + 1)]:
            old.unlink()
        safe_files.put(file, json.dumps({"traced": [*traced.found, traced.parameters, traced.torch]}))


def _lines(job: Mapping[str, Any], python: Python, uuid: str) -> Iterator[bytes]:
    surroundings = {**environment(python.account, os.environ), "HF_HUB_OFFLINE": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    surroundings |= {"CUDA_VISIBLE_DEVICES": uuid, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    memory = round(MEMORY_SHARE * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    command = Command([str(python.path)], surroundings, python.account)
    with ExitStack() as stack:
        text = stack.enter_context(os.fdopen(os.memfd_create("job"), "w+b", buffering=0))
        text.write(json.dumps({**job, "memory_bytes": memory}).encode() + b"\n")
        text.seek(0)
        null, pipe = subprocess.DEVNULL, subprocess.PIPE
        process = start(command, stdin=text.fileno(), stdout=pipe, stderr=null, script=TRACER)
        assert process.stdout  # noqa: S101 - for mypy; asked for above
        stack.enter_context(process.stdout)
        stack.callback(_end, process)
        timer = threading.Timer(MAX_SECONDS, _end, [process])
        stack.callback(timer.cancel)
        timer.start()
        size = 0
        while line := process.stdout.readline(MAX_LINE_BYTES):
            size += len(line)
            if size > MAX_OUTPUT_BYTES or len(line) == MAX_LINE_BYTES:
                raise NoTrace(say("the tracer wrote far too much"))
            yield line.rstrip(b"\n")
        if not timer.is_alive():
            raise NoTrace("the model was not traced within {limit_seconds}", limit_seconds=MAX_SECONDS)


def _end(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        process.wait(3.0)
