"""The child process that calls NVML, so that a driver's hang or crash affects nothing else.

Reads one JSON request per line from standard input and answers each with one line on standard output; exits at the end
of its input. A request is ``{"brief": false}``: make the calls that are due; with true: those of ``BRIEF`` only;
``{"everything": true}``: make all; ``{"record": true}``, answered with a ``recording`` (see ``nvml_calls``); or
``{"name_of": pid}``, answered with ``{"name": text or null}``, which that process can make hang: it is sent to a child
of its own. An answer to the others holds

- ``gpus``: a list of ``{"index", "uuid", "values": {output: number or null}}`` with the values read this time (null:
known before, no longer), or ``{"index", "uuid", "lost": error}``;
- ``session``, in the first answer: library, versions and each GPU's identity;
- ``support``, when it changed: for each GPU, call -> true or false (absent: not known yet);
- ``errors``: number of calls that failed this time, by error;
- ``dxg``: under WSL2, Windows' figures of the VRAM of processes (``dxg.PatientDxgReader``), when they were read;
- ``changed``: true when the number of GPUs has changed since the start, which requires a new process;

or ``{"error", "call", "text"}`` when NVML cannot be used: then this process exits, since only a new one can load a new
library.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time

from wslgpud.probes import dxg
from wslgpud.probes.nvml_calls import (
    BROKEN,
    CALLS,
    GPU_IDENTITY,
    LOST,
    OFTEN,
    RARELY,
    SYSTEM_IDENTITY,
    UNSUPPORTED,
    Call,
    Failed,
    NvmlLibrary,
    Recorded,
    error_names,
    plain,
    written,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    #: bytes in use, and in all
    Vram = tuple[int, int]

#: A transient error delays the next try by 1, 2, 4, ... seconds, up to this many.
MAX_RETRY_SECONDS = 300
#: With no successful call for this long, the driver is considered broken (seen after a GPU reset under WSL).
SILENCE_SECONDS = 10
#: An eager call (or a list of processes) that takes no longer is made at every sample: 1 to 5 us on native Linux with
#: few processes; under WSL2 each call crosses to Windows.
CHEAP_SECONDS = 0.0002
#: Where they are not cheap, lists of processes are still read once the VRAM in use has changed by this share since the
#: last: who fills a card within seconds is known only from lists of the same seconds.
MOVED_RATIO = 0.005
#: VRAM by process is asked of Windows at every sample where that takes no longer, else every ``OFTEN`` seconds, and
#: when the VRAM in use has changed.
CHEAP_DXG_SECONDS = 0.001
#: VRAM in use, and who uses it: the calls that show the end of a training seconds ahead
BRIEF = frozenset({"memory", "compute_processes", "graphics_processes"})
#: No request takes longer than this; beyond it the kernel kills us, even if the daemon is gone. The usual
#: PR_SET_PDEATHSIG would be wrong: it fires when the *thread* that started us ends.
ALARM_SECONDS = 120


class CallFailed(Failed):
    """Only this call failed."""


class Lost(Failed):
    """This GPU is lost."""


class Question:
    """One call for one GPU, and whether and how it works."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.form: tuple[str, tuple[Any, ...]] | None = None
        self.supported: bool | None = None
        self.failures = 0
        self.due = 0.0


class Gpu:
    """One GPU of this session; the next sample makes all calls."""

    def __init__(self, index: int, handle: Any, identity: dict[str, str], now: float) -> None:
        self.index, self.handle, self.identity = index, handle, identity
        self.uuid = identity.get("uuid") or identity.get("pci_bus_id") or f"index-{index}"
        self.questions = [Question(call) for call in CALLS]
        self.answered = now
        self.lost = ""
        #: VRAM in use when the lists of processes were read
        self.listed: Vram | None = None


class Session:
    """NVML since its initialisation: the GPUs and their supported calls."""

    def __init__(self, backend: NvmlLibrary | Recorded, now: float) -> None:
        """Initialise NVML and find the GPUs; ``Failed`` where it cannot be used at all."""
        self.backend = backend
        self.error_names = error_names()
        self.errors: dict[str, int] = {}
        self.support_changed = True
        self.count_due = now + RARELY
        self.ask("nvmlInit")
        self.system = self._identity(SYSTEM_IDENTITY)
        self.gpus: list[Gpu] = []
        for index in range(self.ask("nvmlDeviceGetCount")):
            try:
                handle = self.ask("nvmlDeviceGetHandleByIndex", index)
                gpu = Gpu(index, handle, self._identity(GPU_IDENTITY, handle), now)
                # A card that does not even say which it is answers nothing else either: it is broken, not missing.
                gpu.lost = "" if gpu.identity else "UNKNOWN"
            except (CallFailed, Lost) as failed:
                gpu = Gpu(index, None, {}, now)
                gpu.lost = failed.error
            self.gpus.append(gpu)

    def ask(self, function: str, *arguments: Any) -> Any:
        """Make one call; errors are counted and raised, as ``CallFailed`` or ``Lost`` where other calls may work."""
        # This pynvml may be older or newer than the function.
        ask = getattr(self.backend.api, function, None)
        try:
            if ask is not None:
                return ask(*arguments)
            name = "FUNCTION_NOT_FOUND"
        except self.backend.Error as error:
            code = error.value  # type: ignore[attr-defined]  # both kinds of error have it
            name = self.error_names.get(code, str(code))
        except UnicodeDecodeError:  # process names may hold any bytes; pynvml expects UTF-8
            name = "NOT_FOUND"
        self.errors[name] = self.errors.get(name, 0) + 1
        raise (Failed if name in BROKEN else Lost if name in LOST else CallFailed)(name, function)

    def _identity(self, table: tuple[tuple[str, str, Callable[[Any], str]], ...], *handle: Any) -> dict[str, str]:
        identity = {}
        for label, function, text in table:
            with contextlib.suppress(CallFailed):
                identity[label] = text(self.ask(function, *handle))
        return identity

    def describe(self) -> dict[str, Any]:
        """Return the description of this session for the first answer."""
        gpus = [{"index": gpu.index, **gpu.identity, "uuid": gpu.uuid} for gpu in self.gpus if gpu.identity]
        return {"library": self.backend.library, **self.system, "gpus": gpus}

    def support(self) -> list[dict[str, Any]]:
        """Return the calls that each GPU is known to support or not to support."""
        return [
            {"uuid": gpu.uuid, "calls": {q.call.name: q.supported for q in gpu.questions if q.supported is not None}}
            for gpu in self.gpus
            if gpu.identity
        ]

    def sample(self, now: float, *, everything: bool = False, brief: bool = False) -> dict[str, Any]:
        """Make the calls that are due, or all, and return the answer; ``Failed`` where NVML cannot be used any more."""
        for question in (question for gpu in self.gpus for question in gpu.questions if everything):
            question.due = now
        reply: dict[str, Any] = {"gpus": [self._sample_gpu(gpu, now, brief=brief) for gpu in self.gpus]}
        present = [gpu for gpu in self.gpus if not gpu.lost]
        if present and all(now - gpu.answered > SILENCE_SECONDS for gpu in present):
            raise Failed("UNKNOWN", "every call")
        if now >= self.count_due:
            self.count_due = now + RARELY
            with contextlib.suppress(CallFailed, Lost):
                reply["changed"] = self.ask("nvmlDeviceGetCount") != len(self.gpus)
        if self.errors:
            reply["errors"], self.errors = self.errors, {}
        if self.support_changed:
            self.support_changed = False
            reply["support"] = self.support()
        return reply

    def _sample_gpu(self, gpu: Gpu, now: float, *, brief: bool) -> dict[str, Any]:
        values: dict[str, Any] = {}
        if not gpu.lost:
            try:
                for question in gpu.questions:
                    if brief and question.call.name not in BRIEF:
                        continue
                    moved = not question.call.outputs and not question.failures and _moved(gpu.listed, _vram(values))
                    if (now >= question.due or moved) and question.supported is not False:
                        self._put(gpu, question, now, values)
            except Lost as failed:
                gpu.lost = failed.error
        if gpu.lost:
            return {"index": gpu.index, "uuid": gpu.uuid if gpu.identity else "", "lost": gpu.lost}
        if any(values.get(call.name) is not None for call in CALLS if not call.outputs):
            gpu.listed = _vram(values)
        return {"index": gpu.index, "uuid": gpu.uuid, "values": values}

    def _put(self, gpu: Gpu, question: Question, now: float, values: dict[str, Any]) -> None:
        """Make the call and put its outputs into ``values``; None for unknown ones."""
        call, began = question.call, time.perf_counter()
        try:
            answer = self._answer(gpu.handle, question)
        except CallFailed as failed:
            if failed.error in UNSUPPORTED:
                question.supported = False
                self.support_changed = True
            question.failures += 1
            question.due = now + max(call.every_seconds, min(2 ** (question.failures - 1), MAX_RETRY_SECONDS))
            values.update(dict.fromkeys((output.metric for output in call.outputs) if call.outputs else [call.name]))
            return
        gpu.answered = now
        question.failures = 0
        if call.every_seconds:
            question.due = now + call.every_seconds
        if not question.supported:
            question.supported = self.support_changed = True
        for output in call.outputs:
            values[output.metric] = output.of(answer)
        if not call.outputs:
            values[call.name] = [[process.pid, process.usedGpuMemory] for process in answer]
        if call.eager and time.perf_counter() - began <= CHEAP_SECONDS:
            question.due = now

    def _answer(self, handle: Any, question: Question) -> Any:
        """Make the call in the form that works; the first time, find that form and keep it.

        Changing forms later would mix their meanings: memory v1 counts the reserve as used, v2 does not.
        """
        failures = []
        for function, arguments in [question.form] if question.form else question.call.forms:
            try:
                answer = self.ask(function, handle, *arguments)
            except CallFailed as failed:
                failures.append(failed)
            else:
                question.form = function, arguments
                return answer
        # A form that might work later is a reason to retry the call.
        raise next((f for f in failures if f.error not in UNSUPPORTED), failures[-1])

    def recording(self) -> dict[str, Any]:
        """Return the recording with which ``Recorded`` answers like this machine, without identifying data."""
        system = {function: self._recorded(function) for _, function, _ in SYSTEM_IDENTITY}
        forms = [(function, ()) for _, function, _ in GPU_IDENTITY] + [form for call in CALLS for form in call.forms]
        gpus = []
        for gpu in self.gpus:
            if gpu.lost:
                gpus.append({"*": {"error": gpu.lost}})
                continue
            answers = {written(f, *arguments): self._recorded(f, gpu.handle, *arguments) for f, arguments in forms}
            gpus.append(answers)
            listed = [process for answer in answers.values() if isinstance(answer, list) for process in answer]
            pids = [process["pid"] for process in listed if isinstance(process, dict) and "pid" in process]
            # Natively names come from /proc/PID/cmdline, whose readers that process can make wait forever.
            for pid in pids if os.access(dxg.DEVICE, os.F_OK) else ():
                system[f"nvmlSystemGetProcessName({pid})"] = self._recorded("nvmlSystemGetProcessName", pid)
        recording: dict[str, Any] = {"system": system, "gpus": gpus}
        if os.access(dxg.DEVICE, os.F_OK):  # no name is in it, and LUIDs are new at every start of Windows
            recording["dxg"] = dxg.PatientDxgReader(dxg.REPORT_SECONDS).ask(dxg.REPORT_SECONDS)
        return recording

    def _recorded(self, function: str, *arguments: Any) -> Any:
        try:
            return plain(self.ask(function, *arguments))
        except Failed as failed:
            return {"error": failed.error}

    def process_name(self, pid: int) -> str | None:
        """Return the driver's name of a process, None where it has none."""
        try:
            name = self.ask("nvmlSystemGetProcessName", pid)
        except (CallFailed, Lost):
            return None
        return name.decode("utf-8", "replace") if isinstance(name, bytes) else name


class WindowsVram:
    """Asks Windows for the VRAM of each process, as often as it is worth its price."""

    def __init__(self, limit_seconds: float) -> None:
        self._reader = dxg.PatientDxgReader(limit_seconds)
        self._due = float("-inf")
        #: each card's VRAM when Windows was asked: for its last answer, and for the one that may still come
        self._asked: dict[str, Vram | None] = {}
        self._asking: dict[str, Vram | None] = {}

    def sample(self, reply: dict[str, Any], backend: NvmlLibrary | Recorded, now: float) -> None:
        """Put the answer into ``reply``, if there is one and it is due."""
        if isinstance(backend, Recorded):
            if backend.dxg is not None:
                reply["dxg"] = backend.dxg
            return
        used = {gpu["uuid"]: _vram(gpu.get("values", {})) for gpu in reply["gpus"]}
        moved = any(_moved(self._asked.get(uuid), vram) for uuid, vram in used.items())
        if (now < self._due and not moved) or not os.access(dxg.DEVICE, os.F_OK):
            return
        first = self._due == float("-inf")
        self._asking = self._asking or used
        answer = self._reader.ask(dxg.FIRST_WAIT_SECONDS if first else dxg.WAIT_SECONDS)
        if not answer:  # it comes with a later sample
            self._due = now
            return
        reply["dxg"] = answer
        self._asked = self._asking if "adapters" in answer else {}
        self._asking = {}
        self._due = now if self._asked and self._reader.seconds <= CHEAP_DXG_SECONDS else now + OFTEN


def _vram(values: dict[str, Any]) -> Vram | None:
    used, total = values.get("gpu_memory_used_bytes"), values.get("gpu_memory_total_bytes")
    return None if used is None or not total else (used, total)


def _moved(before: Vram | None, now: Vram | None) -> bool:
    """Return whether the VRAM in use has changed enough to look at who uses it."""
    return before is not None and now is not None and abs(now[0] - before[0]) >= MOVED_RATIO * now[1]


def serve(library: str, recording: str, limit_seconds: float, requests: int, answers: int) -> None:
    """Answer requests until they end or NVML cannot be used; each within ``limit_seconds``, or we are killed."""
    session: Session | None = None
    backend: NvmlLibrary | Recorded | None = None
    windows_vram = WindowsVram(limit_seconds)
    while request := os.read(requests, 1 << 16):  # a request is one short line, and the next is sent after our answer
        signal.setitimer(signal.ITIMER_REAL, ALARM_SECONDS)
        reply: dict[str, Any]
        try:
            asked, now = json.loads(request), time.monotonic()
            backend = backend or (Recorded(recording) if recording else NvmlLibrary(library))
            if isinstance(backend, Recorded) and "name_of" not in asked:
                backend.begin_sample()
            first = session is None
            session = session or Session(backend, now)
            if "name_of" in asked:
                reply = {"name": session.process_name(asked["name_of"])}
            elif "record" in asked:
                reply = {"recording": session.recording()}
            else:
                reply = session.sample(now, everything="everything" in asked, brief=asked.get("brief", False))
                windows_vram.sample(reply, backend, now)
                if first:
                    reply["session"] = session.describe()
        except Failed as failed:
            reply = {"error": failed.error, "call": failed.call, "text": failed.text}
        signal.setitimer(signal.ITIMER_REAL, 0)
        os.write(answers, json.dumps(reply, separators=(",", ":")).encode() + b"\n")
        if "error" in reply:
            return
    if session is not None:
        signal.setitimer(signal.ITIMER_REAL, ALARM_SECONDS)
        with contextlib.suppress(Failed):  # errors at shutdown do not matter
            session.ask("nvmlShutdown")


def main(arguments: list[str]) -> int:
    options = {"--library": "", "--recording": "", "--limit": "1"}
    rest = iter(arguments)
    for word in rest:  # argparse would cost the resident child more than a MiB
        if word in options:
            options[word] = next(rest, "")
        else:
            print(f"nvml_probe: unknown argument {word}; see the top of {__file__}", file=sys.stderr)
            return 2
    # NVIDIA's library may print; its output must not mix with our answers.
    answers = os.dup(1)
    os.dup2(2, 1)
    serve(options["--library"], options["--recording"], float(options["--limit"]), 0, answers)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
