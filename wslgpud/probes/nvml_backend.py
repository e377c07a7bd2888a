"""Backends for the probe's calls: NVIDIA's library through pynvml, or a recording.

Both have ``api`` (functions by pynvml's names), ``Error`` (with the code in ``value``) and ``library`` (where it was
loaded from).

A recording (``nvml.json``) holds ``system`` and ``gpus`` (a list), each a mapping from a call, written
``nvmlDeviceGetClockInfo(2)``, to its answer or to ``{"error": "NOT_SUPPORTED"}``; missing calls are not supported.
``init`` may hold such an error; ``dxg`` an answer of ``dxg.PatientDxgReader``; ``kind`` and ``origin`` say where the
recording comes from. ``steps``, if present,
holds changes over time: one mapping per sample, of which the last persists, with ``system`` and ``gpus`` (by index) to
be merged into the previous answers (the call ``*`` means all), or with ``do``: ``hang`` or ``crash``.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import time
from functools import partial
from types import SimpleNamespace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

WSL_LIBRARY = "/usr/lib/wsl/lib/libnvidia-ml.so.1"


class Failed(Exception):  # carries NVML's own error
    """NVML has become unusable: its name of the error without NVML_ERROR_, the call, the loader's text."""

    def __init__(self, error: str, call: str, text: str = "") -> None:
        super().__init__(error, call)
        self.error, self.call, self.text = error, call, text


def error_names() -> dict[int, str]:
    """Return NVML's error names by code, without NVML_ERROR_."""
    import pynvml  # 4 MiB: only once there is a GPU to query

    prefix = "NVML_ERROR_"
    return {code: name[len(prefix) :] for name, code in vars(pynvml).items() if name.startswith(prefix)}


class NvmlLibrary:
    """NVIDIA's library on this machine."""

    def __init__(self, library: str) -> None:
        """Load ``library``; empty means WSL's where there is one, else the loader's choice.

        WSL's comes first: a distribution's libnvidia-ml, if found first, answers DRIVER_NOT_LOADED (Syllo/nvtop#441,
        ollama/ollama#1888).
        """
        import pynvml

        name = library or (WSL_LIBRARY if os.access(WSL_LIBRARY, os.R_OK) else "libnvidia-ml.so.1")
        try:
            pynvml.nvmlLib = ctypes.CDLL(name)
        except OSError as error:
            raise Failed("LIBRARY_NOT_FOUND", "dlopen", str(error)) from error
        self.api: Any = pynvml
        self.Error: type[Exception] = pynvml.NVMLError
        self.library = name if "/" in name else _where_mapped(name)


def _where_mapped(name: str) -> str:
    """Return the path that the loader chose; the bare name where the kernel does not show it."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        for line in maps:
            path = line.split(maxsplit=5)[-1].strip()
            if path.startswith("/") and name.removesuffix(".1") in path:
                return path
    return name


class RecordedError(Exception):
    """An error in the recording, with its code as in pynvml's NVMLError."""

    def __init__(self, error: str) -> None:
        super().__init__(error)
        self.value = next(code for code, name in error_names().items() if name == error)


class Recorded:
    """A recording used instead of the library."""

    def __init__(self, path: str) -> None:
        with open(path, encoding="utf-8") as stream:
            recording = json.load(stream)
        self.api: Any = self
        self.Error: type[Exception] = RecordedError
        self.library = path
        self._system: dict[str, Any] = {"nvmlInit": recording.get("init"), "nvmlShutdown": None}
        self._system.update(recording.get("system", {}))
        self._gpus: list[dict[str, Any]] = recording.get("gpus", [])
        self._steps: list[dict[str, Any]] = recording.get("steps", [])
        self.dxg: dict[str, Any] | None = recording.get("dxg")

    def begin_sample(self) -> None:
        """Advance the recording by one sample."""
        if not self._steps:
            return
        step = self._steps.pop(0)
        self._system.update(step.get("system", {}))
        self.dxg = step.get("dxg", self.dxg)
        for index, answers in step.get("gpus", {}).items():
            self._gpus[int(index)].update(answers)
        if step.get("do") == "hang":
            time.sleep(3600)
        elif step.get("do") == "crash":
            os.kill(os.getpid(), signal.SIGSEGV)

    def __getattr__(self, function: str) -> Callable[..., Any]:
        if not function.startswith("nvml"):
            raise AttributeError(function)
        return partial(self._call, function)

    def _call(self, function: str, *arguments: int) -> Any:
        if function == "nvmlDeviceGetCount":
            return len(self._gpus)
        if not function.startswith("nvmlDevice"):
            nothing = {"error": "NOT_FOUND"} if function == "nvmlSystemGetProcessName" else _ABSENT
            return _answer(self._system.get(written(function, *arguments), nothing))
        answers = self._gpus[arguments[0]]
        if function == "nvmlDeviceGetHandleByIndex":  # the index is the handle, unless the whole GPU was failing
            answers = {function: arguments[0], **answers}
        return _answer(answers.get("*") or answers.get(written(function, *arguments[1:]), _ABSENT))


_ABSENT = {"error": "NOT_SUPPORTED"}


def written(function: str, *arguments: int) -> str:
    """Return the notation of a call in a recording."""
    return f"{function}({', '.join(map(str, arguments))})" if arguments else function


def _answer(recorded: Any) -> Any:
    """Return a recorded answer as pynvml would: structs have attributes, errors are raised."""
    if isinstance(recorded, dict):
        if "error" in recorded:
            raise RecordedError(recorded["error"])
        return SimpleNamespace(**recorded)
    if isinstance(recorded, list):
        return [_answer(item) for item in recorded]
    return recorded
