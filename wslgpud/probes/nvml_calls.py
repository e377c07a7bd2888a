"""The calls made to NVML, answered by NVIDIA's library through pynvml, or by a recording.

CALLS is one table, with the period and the meaning of the answers of each.

The probe makes these calls, the GPU source turns the outputs into metrics, the recorder saves the answers. Outputs are
named after the metric they feed, with the value of an additional label after a colon. Costs were measured on an H200
(README.md beside this file); expensive calls are made rarely, PCIe throughput (21 ms a call) never.

Both backends have ``api`` (functions by pynvml's names), ``Error`` (with the code in ``value``) and ``library`` (where
it was loaded from).

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
import re
import signal
import time
from functools import partial
from types import SimpleNamespace

TYPE_CHECKING = False  # typing alone would cost the resident child 1.5 MiB
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    Form = str | tuple[Any, ...]

#: The call will not work before NVML is re-initialised: do not repeat it.
UNSUPPORTED = frozenset(
    {
        "INVALID_ARGUMENT",
        "NOT_SUPPORTED",
        "NO_PERMISSION",
        "FUNCTION_NOT_FOUND",
        "VGPU_ECC_NOT_SUPPORTED",
        "ARGUMENT_VERSION_MISMATCH",
        "DEPRECATED",
    }
)
#: This GPU is lost until NVML is re-initialised; the others may be fine.
LOST = frozenset({"IRQ_ISSUE", "GPU_IS_LOST", "RESET_REQUIRED", "GPU_NOT_FOUND"})
#: Nothing works until NVML is re-initialised, if then.
BROKEN = frozenset(
    {"UNINITIALIZED", "DRIVER_NOT_LOADED", "LIBRARY_NOT_FOUND", "OPERATING_SYSTEM", "LIB_RM_VERSION_MISMATCH"}
)

#: NVML_VALUE_NOT_AVAILABLE in 64 and in 32 bits: nvtop printed it as 17179869184 GiB (Syllo/nvtop#432).
SENTINELS = frozenset({2**64 - 1, 2**32 - 1})

MEMORY_V2 = 0x02000028  # nvmlMemory_v2: sizeof the struct, version 2 in the top byte


class Output:
    """One number of an answer: metric, position in the answer, factor to the metric's unit.

    ``pick`` is an attribute, an index, or None for the answer itself. ``nothing`` is the driver's answer for an unknown
    value, besides the sentinels.
    """

    def __init__(
        self, metric: str, pick: str | int | None = None, factor: float = 1, nothing: int | None = None
    ) -> None:
        self.metric, self.pick, self.factor, self.nothing = metric, pick, factor, nothing

    def of(self, answer: Any) -> int | float | None:
        """Return the number in the metric's unit, or None where the driver says "not available"."""
        value = answer
        if self.pick is not None:
            value = answer[self.pick] if isinstance(self.pick, int) else getattr(answer, self.pick, None)
        if value is None or value in SENTINELS or value == self.nothing:
            return None
        return value if self.factor == 1 else round(value * self.factor, 6)  # type: ignore[no-any-return]


class Call:
    """One NVML call for a GPU, in the forms that older and newer drivers understand.

    ``forms`` are functions with additional arguments; the first that works is kept. ``every_seconds`` 0 means at every
    sample; an ``eager`` call is made at every sample where it is cheap. A call for a list of processes has no outputs:
    the probe handles it separately.
    """

    def __init__(
        self, name: str, every_seconds: float, *forms: Form, outputs: Sequence[Output] = (), eager: bool = False
    ) -> None:
        written = (form if isinstance(form, tuple) else (form,) for form in forms)
        self.forms = tuple((f"nvmlDeviceGet{function}", tuple(arguments)) for function, *arguments in written)
        self.name, self.every_seconds, self.outputs, self.eager = name, every_seconds, outputs, eager


EACH, OFTEN, RARELY, SELDOM = 0, 5, 60, 600
PERCENT, MILLI, MEGA = 0.01, 0.001, 1_000_000


def _one(
    name: str, every_seconds: float, form: Form, metric: str, *how: Any, eager: bool = False, **nothing: Any
) -> Call:
    return Call(name, every_seconds, form, outputs=(Output(metric, *how, **nothing),), eager=eager)


CALLS = (
    # v2 shows the driver's reserve, and fails with UNKNOWN under some WSL drivers (XuehaiPan/nvitop#30).
    Call(
        "memory",
        EACH,
        ("MemoryInfo", MEMORY_V2),
        "MemoryInfo",
        outputs=[Output(f"gpu_memory_{kind}_bytes", kind) for kind in ("total", "used", "free", "reserved")],
    ),
    Call(
        "utilization",
        EACH,
        "UtilizationRates",
        outputs=(
            Output("gpu_utilization_ratio", "gpu", PERCENT),
            Output("gpu_memory_utilization_ratio", "memory", PERCENT),
        ),
    ),
    Call("temperature", EACH, ("TemperatureV", 0), ("Temperature", 0), outputs=(Output("gpu_temperature_celsius"),)),
    _one("power", EACH, "PowerUsage", "gpu_power_watts", None, MILLI),
    # Half of all calls of a sample, and nothing is forecast from their answers.
    *(
        _one(f"clock_{clock}", OFTEN, ("ClockInfo", number), f"gpu_clock_hertz:{clock}", None, MEGA, eager=True)
        for number, clock in enumerate(("graphics", "sm", "memory", "video"))
    ),
    _one("performance_state", OFTEN, "PerformanceState", "gpu_performance_state", nothing=32, eager=True),
    Call(
        "throttle_reasons",
        EACH,
        "CurrentClocksEventReasons",
        "CurrentClocksThrottleReasons",
        outputs=(Output("throttle_reasons"),),
    ),
    # Who grows within seconds is known only from lists of the same seconds.
    Call("compute_processes", OFTEN, "ComputeRunningProcesses_v3", "ComputeRunningProcesses_v2", eager=True),
    Call("graphics_processes", OFTEN, "GraphicsRunningProcesses_v3", "GraphicsRunningProcesses_v2", eager=True),
    _one("fan", OFTEN, "FanSpeed", "gpu_fan_speed_ratio", None, PERCENT),
    _one("encoder", OFTEN, "EncoderUtilization", "gpu_encoder_utilization_ratio", 0, PERCENT),
    _one("decoder", OFTEN, "DecoderUtilization", "gpu_decoder_utilization_ratio", 0, PERCENT),
    _one("pcie_generation", OFTEN, "CurrPcieLinkGeneration", "gpu_pcie_link_generation", nothing=0),
    _one("pcie_width", OFTEN, "CurrPcieLinkWidth", "gpu_pcie_link_width", nothing=0),
    _one("power_limit", RARELY, "EnforcedPowerLimit", "gpu_power_limit_watts", None, MILLI),
    _one("energy", RARELY, "TotalEnergyConsumption", "gpu_energy_joules", None, MILLI),
    *(  # 0: since the driver was loaded
        _one(f"ecc_{kind}", RARELY, ("TotalEccErrors", number, 0), f"gpu_ecc_errors:{kind}")
        for number, kind in enumerate(("corrected", "uncorrected"))
    ),
    Call(
        "remapped_rows",
        RARELY,
        "RemappedRows",
        outputs=(
            Output("gpu_remapped_rows:correctable", 0),
            Output("gpu_remapped_rows:uncorrectable", 1),
            Output("gpu_row_remap_pending", 2),
            Output("gpu_row_remap_failed", 3),
        ),
    ),
    _one("display", RARELY, "DisplayActive", "gpu_display_active"),
    _one("pcie_generation_max", SELDOM, "MaxPcieLinkGeneration", "gpu_pcie_link_generation_max", nothing=0),
    _one("pcie_width_max", SELDOM, "MaxPcieLinkWidth", "gpu_pcie_link_width_max", nothing=0),
    *(
        _one(f"temperature_{limit}", SELDOM, ("TemperatureThreshold", number), f"gpu_temperature_limit_celsius:{limit}")
        for number, limit in enumerate(("shutdown", "slowdown"))
    ),
    _one("mig", SELDOM, "MigMode", "gpu_mig_enabled", 0),
)


def _text(answer: Any) -> str:
    return answer.decode("utf-8", "replace") if isinstance(answer, bytes) else str(answer)


def _cuda_version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"


#: Label of ``gpu_info`` -> function and the format of its answer; queried once.
GPU_IDENTITY: tuple[tuple[str, str, Callable[[Any], str]], ...] = (
    ("uuid", "nvmlDeviceGetUUID", _text),
    ("name", "nvmlDeviceGetName", _text),
    ("pci_bus_id", "nvmlDeviceGetPciInfo", lambda info: _text(info.busId)),
    ("vbios_version", "nvmlDeviceGetVbiosVersion", _text),
    ("compute_capability", "nvmlDeviceGetCudaComputeCapability", lambda pair: f"{pair[0]}.{pair[1]}"),
    ("driver_model", "nvmlDeviceGetDriverModel", lambda pair: {0: "WDDM", 1: "TCC", 2: "MCDM"}.get(pair[0], "")),
)
SYSTEM_IDENTITY: tuple[tuple[str, str, Callable[[Any], str]], ...] = (
    ("driver_version", "nvmlSystemGetDriverVersion", _text),
    ("cuda_version", "nvmlSystemGetCudaDriverVersion_v2", _cuda_version),
    ("nvml_version", "nvmlSystemGetNVMLVersion", _text),
)

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


def plain(answer: Any) -> Any:
    """Return an answer as JSON for a recording, with UUIDs replaced and paths cut to their last part."""
    if isinstance(answer, (bytes, str)):
        return _masked(_text(answer))
    if isinstance(answer, (list, tuple)):
        return [plain(item) for item in answer]
    if isinstance(answer, ctypes.Structure):
        return {name: plain(getattr(answer, name)) for name, *_ in type(answer)._fields_}
    if hasattr(answer, "__dict__"):
        return {name: plain(value) for name, value in vars(answer).items()}
    return answer


def _masked(text: str) -> str:
    """Replace a UUID by one that distinguishes cards without identifying them; drop folders, which name users."""
    if re.fullmatch(r"(GPU|MIG)-[0-9a-f-]{36}", text):
        import hashlib  # OpenSSL would stay resident

        number = hashlib.sha256(b"wslgpud" + text.encode()).hexdigest()
        return f"{text[:4]}00000000-0000-0000-0000-{number[:12]}"
    return text.rpartition("/")[2]


def _answer(recorded: Any) -> Any:
    """Return a recorded answer as pynvml would: structs have attributes, errors are raised."""
    if isinstance(recorded, dict):
        if "error" in recorded:
            raise RecordedError(recorded["error"])
        return SimpleNamespace(**recorded)
    if isinstance(recorded, list):
        return [_answer(item) for item in recorded]
    return recorded
