"""Who answers the probe's calls: NVIDIA's library through pynvml, or a recording of one.

Both have ``api`` (functions by pynvml's names), ``Error`` (with the code in ``value``), ``library`` (where it
was loaded from) and ``begin_sample``.

A recording (``nvml.json``) holds ``system`` and ``gpus`` (a list), each a mapping from a call, written
``nvmlDeviceGetClockInfo(2)``, to its answer or to ``{"error": "NOT_SUPPORTED"}``; what is not there is not
supported. ``init`` may hold such an error; ``kind`` and ``origin`` say where the recording comes from.
``steps``, where present, is what changes over time: one mapping a sample, the last one staying, with
``system`` and ``gpus`` (by index) laid over what was there before, where the call ``*`` stands for all; or
with ``do``: ``hang`` or ``crash``.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import time
from types import SimpleNamespace

from wslgpud.probes.nvml_calls import CODES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

WSL_LIBRARY = "/usr/lib/wsl/lib/libnvidia-ml.so.1"


class LibraryMissing(Exception):  # noqa: N818 - a state of the machine
    """The library cannot be loaded; the message is the loader's."""


class Live:
    """NVIDIA's library on this machine."""

    def __init__(self, library: str) -> None:
        """Load ``library``; empty means WSL's where there is one, else the loader's choice.

        WSL's comes first: a distribution's libnvidia-ml in front of it answers DRIVER_NOT_LOADED
        (Syllo/nvtop#441, ollama/ollama#1888).

        Raises:
            LibraryMissing: there is none, or it cannot be loaded.
        """
        import pynvml  # noqa: PLC0415 - 4 MiB that a replayed recording does not need

        name = library or (WSL_LIBRARY if os.access(WSL_LIBRARY, os.R_OK) else "libnvidia-ml.so.1")
        try:
            pynvml.nvmlLib = ctypes.CDLL(name)
        except OSError as error:
            raise LibraryMissing(str(error)) from error
        self.api: Any = pynvml
        self.Error: type[Exception] = pynvml.NVMLError
        self.library = name if "/" in name else _where_mapped(name)

    def begin_sample(self) -> None:
        """Do nothing: the machine moves on by itself."""


def _where_mapped(name: str) -> str:
    """Return the path that the loader chose; the bare name when the kernel does not tell."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:  # noqa: PTH123 - as below
        for line in maps:
            path = line.split(maxsplit=5)[-1].strip()
            if path.startswith("/") and name.removesuffix(".1") in path:
                return path
    return name


class RecordedError(Exception):
    """An error that NVML had returned."""

    def __init__(self, value: int) -> None:
        """``value`` is the code, as in pynvml's NVMLError."""
        super().__init__(value)
        self.value = value


class Recorded:
    """A recording in place of the library."""

    def __init__(self, path: str) -> None:
        """Read the recording at ``path``."""
        with open(path, encoding="utf-8") as stream:  # noqa: PTH123 - pathlib would stay resident
            recording = json.load(stream)
        self.api: Any = self
        self.Error: type[Exception] = RecordedError
        self.library = path
        self._system: dict[str, Any] = {"nvmlInit": recording.get("init"), "nvmlShutdown": None}
        self._system.update(recording.get("system", {}))
        self._gpus: list[dict[str, Any]] = recording.get("gpus", [])
        self._steps: list[dict[str, Any]] = recording.get("steps", [])

    def begin_sample(self) -> None:
        """Go on to what the recording does next."""
        if not self._steps:
            return
        step = self._steps.pop(0)
        self._system.update(step.get("system", {}))
        for index, answers in step.get("gpus", {}).items():
            self._gpus[int(index)].update(answers)
        if step.get("do") == "hang":
            time.sleep(3600)
        elif step.get("do") == "crash":
            os.kill(os.getpid(), signal.SIGSEGV)

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802 - NVML's name
        """Return how many GPUs were recorded."""
        return len(self._gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802 - NVML's name
        """Return the index as handle, unless the whole GPU was recorded as failing."""
        if "*" in self._gpus[index]:
            _answer(self._gpus[index]["*"])
        return index

    def nvmlSystemGetProcessName(self, pid: int) -> Any:  # noqa: N802 - NVML's name
        """Return the recorded name of a process."""
        return _answer(self._system.get(f"nvmlSystemGetProcessName({pid})", {"error": "NOT_FOUND"}))

    def __getattr__(self, function: str) -> Callable[..., Any]:
        """Return any other function: what it answered is looked up when it is called."""
        if not function.startswith("nvml"):
            raise AttributeError(function)

        def call(*arguments: int) -> Any:
            if function.startswith("nvmlDevice"):
                answers = self._gpus[arguments[0]]
                answer = answers.get("*") or answers.get(written(function, *arguments[1:]), _ABSENT)
            else:
                answer = self._system.get(written(function, *arguments), _ABSENT)
            return _answer(answer)

        return call


_ABSENT = {"error": "NOT_SUPPORTED"}


def written(function: str, *arguments: int) -> str:
    """Return how a call is written in a recording."""
    return f"{function}({', '.join(map(str, arguments))})" if arguments else function


def _answer(recorded: Any) -> Any:
    """Return a recorded answer as pynvml would: structs have attributes, errors are raised."""
    if isinstance(recorded, dict):
        if "error" in recorded:
            raise RecordedError(CODES[recorded["error"]])
        return SimpleNamespace(**recorded)
    if isinstance(recorded, list):
        return [_answer(item) for item in recorded]
    return recorded
