"""What is asked of NVML: one table of calls, with how often and what the answers mean.

The probe makes these calls, the GPU source turns the outputs into metrics, the recorder writes the answers
down. Outputs are named after the metric they feed, with the value of a further label after a colon.
Costs were measured on an H200 (README.md beside this file); what is dear is asked rarely, and PCIe
throughput (21 ms a call) never.
"""

from __future__ import annotations

TYPE_CHECKING = False  # typing alone would cost the resident child 1.5 MiB
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

#: Error codes of nvml.h (nvmlReturn_t), by which errors are counted and named.
ERRORS = {
    1: "UNINITIALIZED", 2: "INVALID_ARGUMENT", 3: "NOT_SUPPORTED", 4: "NO_PERMISSION",
    5: "ALREADY_INITIALIZED", 6: "NOT_FOUND", 7: "INSUFFICIENT_SIZE", 8: "INSUFFICIENT_POWER",
    9: "DRIVER_NOT_LOADED", 10: "TIMEOUT", 11: "IRQ_ISSUE", 12: "LIBRARY_NOT_FOUND",
    13: "FUNCTION_NOT_FOUND", 14: "CORRUPTED_INFOROM", 15: "GPU_IS_LOST", 16: "RESET_REQUIRED",
    17: "OPERATING_SYSTEM", 18: "LIB_RM_VERSION_MISMATCH", 19: "IN_USE", 20: "MEMORY", 21: "NO_DATA",
    22: "VGPU_ECC_NOT_SUPPORTED", 23: "INSUFFICIENT_RESOURCES", 24: "FREQ_NOT_SUPPORTED",
    25: "ARGUMENT_VERSION_MISMATCH", 26: "DEPRECATED", 27: "NOT_READY", 28: "GPU_NOT_FOUND",
    29: "INVALID_STATE", 30: "RESET_TYPE_NOT_SUPPORTED", 999: "UNKNOWN",
}  # fmt: skip
CODES = {name: code for code, name in ERRORS.items()}

#: The call will not work before NVML is initialised anew: do not make it again.
UNSUPPORTED = frozenset({"INVALID_ARGUMENT", "NOT_SUPPORTED", "NO_PERMISSION", "FUNCTION_NOT_FOUND",
                         "VGPU_ECC_NOT_SUPPORTED", "ARGUMENT_VERSION_MISMATCH", "DEPRECATED"})  # fmt: skip
#: This GPU is gone until NVML is initialised anew; the others may be well.
LOST = frozenset({"IRQ_ISSUE", "GPU_IS_LOST", "RESET_REQUIRED", "GPU_NOT_FOUND"})
#: Nothing works until NVML is initialised anew, if then.
BROKEN = frozenset({"UNINITIALIZED", "DRIVER_NOT_LOADED", "LIBRARY_NOT_FOUND", "OPERATING_SYSTEM",
                    "LIB_RM_VERSION_MISMATCH"})  # fmt: skip

#: NVML_VALUE_NOT_AVAILABLE in 64 and in 32 bits: nvtop printed it as 17179869184 GiB (Syllo/nvtop#432).
SENTINELS = frozenset({2**64 - 1, 2**32 - 1})

MEMORY_V2 = 0x02000028  # nvmlMemory_v2: sizeof the struct, version 2 in the top byte


class Output:
    """One number out of an answer: metric, where it stands in the answer, factor to the metric's unit."""

    __slots__ = ("factor", "metric", "nothing", "pick")

    def __init__(
        self, metric: str, pick: str | int | None = None, factor: float = 1, nothing: int | None = None
    ) -> None:
        """``pick`` is an attribute, an index, or None for the answer itself.

        ``nothing`` is what the driver answers when it does not know, beside the sentinels.
        """
        self.nothing = nothing
        self.metric = metric
        self.pick = pick
        self.factor = factor

    def of(self, answer: Any) -> int | float | None:
        """Return the number in the metric's unit, or None where the driver says "not available"."""
        if self.pick is None:
            value = answer
        elif isinstance(self.pick, int):
            value = answer[self.pick]
        else:
            value = getattr(answer, self.pick, None)
        if value is None or value in SENTINELS or value == self.nothing:
            return None
        return value if self.factor == 1 else round(value * self.factor, 6)  # type: ignore[no-any-return]


class Call:
    """One question to NVML about a GPU, in the forms that drivers of different ages understand.

    ``forms`` are function and further arguments; the first that answers is kept. ``outputs`` is empty for
    process lists, which the probe treats apart.
    """

    __slots__ = ("every_seconds", "forms", "name", "outputs")

    def __init__(
        self,
        name: str,
        forms: tuple[tuple[str, tuple[int, ...]], ...],
        every_seconds: float,
        outputs: tuple[Output, ...],
    ) -> None:
        """``every_seconds`` 0 means at every sample."""
        self.name = name
        self.forms = forms
        self.every_seconds = every_seconds
        self.outputs = outputs


def _call(function: str, *arguments: int) -> tuple[str, tuple[int, ...]]:
    return "nvmlDeviceGet" + function, arguments


def _simple(name: str, function: str, every_seconds: float, *outputs: Output) -> Call:
    return Call(name, (_call(function),), every_seconds, outputs)


EACH, OFTEN, RARELY, SELDOM = 0, 5, 60, 600
PERCENT, MILLI, MEGA = 0.01, 0.001, 1_000_000

CALLS = (
    # v2 tells what the driver reserves, and fails with UNKNOWN under some WSL drivers (XuehaiPan/nvitop#30).
    Call("memory", (_call("MemoryInfo", MEMORY_V2), _call("MemoryInfo")), EACH, (
        Output("gpu_memory_total_bytes", "total"), Output("gpu_memory_used_bytes", "used"),
        Output("gpu_memory_free_bytes", "free"), Output("gpu_memory_reserved_bytes", "reserved"))),
    _simple("utilization", "UtilizationRates", EACH, Output("gpu_utilization_ratio", "gpu", PERCENT),
            Output("gpu_memory_utilization_ratio", "memory", PERCENT)),
    Call("temperature", (_call("TemperatureV", 0), _call("Temperature", 0)), EACH,
         (Output("gpu_temperature_celsius"),)),
    _simple("power", "PowerUsage", EACH, Output("gpu_power_watts", None, MILLI)),
    *(Call(f"clock_{clock}", (_call("ClockInfo", number),), EACH,
           (Output(f"gpu_clock_hertz:{clock}", None, MEGA),))
      for number, clock in enumerate(("graphics", "sm", "memory", "video"))),
    _simple("performance_state", "PerformanceState", EACH, Output("gpu_performance_state", nothing=32)),
    Call("throttle_reasons", (_call("CurrentClocksEventReasons"), _call("CurrentClocksThrottleReasons")),
         EACH, (Output("throttle_reasons"),)),
    Call("compute_processes", (_call("ComputeRunningProcesses_v3"), _call("ComputeRunningProcesses_v2")),
         OFTEN, ()),
    Call("graphics_processes", (_call("GraphicsRunningProcesses_v3"), _call("GraphicsRunningProcesses_v2")),
         OFTEN, ()),
    _simple("fan", "FanSpeed", OFTEN, Output("gpu_fan_speed_ratio", None, PERCENT)),
    _simple("encoder", "EncoderUtilization", OFTEN, Output("gpu_encoder_utilization_ratio", 0, PERCENT)),
    _simple("decoder", "DecoderUtilization", OFTEN, Output("gpu_decoder_utilization_ratio", 0, PERCENT)),
    _simple("pcie_generation", "CurrPcieLinkGeneration", OFTEN,
            Output("gpu_pcie_link_generation", nothing=0)),
    _simple("pcie_width", "CurrPcieLinkWidth", OFTEN, Output("gpu_pcie_link_width", nothing=0)),
    _simple("power_limit", "EnforcedPowerLimit", RARELY, Output("gpu_power_limit_watts", None, MILLI)),
    _simple("energy", "TotalEnergyConsumption", RARELY, Output("gpu_energy_joules", None, MILLI)),
    *(Call(f"ecc_{kind}", (_call("TotalEccErrors", number, 0),), RARELY,  # 0: since the driver was loaded
           (Output(f"gpu_ecc_errors:{kind}"),))
      for number, kind in enumerate(("corrected", "uncorrected"))),
    _simple("remapped_rows", "RemappedRows", RARELY,
            Output("gpu_remapped_rows:correctable", 0), Output("gpu_remapped_rows:uncorrectable", 1),
            Output("gpu_row_remap_pending", 2), Output("gpu_row_remap_failed", 3)),
    _simple("display", "DisplayActive", RARELY, Output("gpu_display_active")),
    _simple("pcie_generation_max", "MaxPcieLinkGeneration", SELDOM,
            Output("gpu_pcie_link_generation_max", nothing=0)),
    _simple("pcie_width_max", "MaxPcieLinkWidth", SELDOM, Output("gpu_pcie_link_width_max", nothing=0)),
    *(Call(f"temperature_{limit}", (_call("TemperatureThreshold", number),), SELDOM,
           (Output(f"gpu_temperature_limit_celsius:{limit}"),))
      for number, limit in enumerate(("shutdown", "slowdown"))),
    _simple("mig", "MigMode", SELDOM, Output("gpu_mig_enabled", 0)),
)  # fmt: skip

#: Never made by the daemon, measured by ``--costs`` all the same, so that the reason stays checkable.
DEAR = (
    _simple("bar1", "BAR1MemoryInfo", 0),
    Call("pcie_throughput", (_call("PcieThroughput", 0),), 0, ()),
)


def _text(answer: Any) -> str:
    return answer.decode("utf-8", "replace") if isinstance(answer, bytes) else str(answer)


def _cuda_version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"


#: Label of ``gpu_info`` -> function and how its answer is written; asked once.
GPU_IDENTITY: tuple[tuple[str, str, Callable[[Any], str]], ...] = (
    ("uuid", "nvmlDeviceGetUUID", _text),
    ("name", "nvmlDeviceGetName", _text),
    ("pci_bus_id", "nvmlDeviceGetPciInfo", lambda info: _text(info.busId)),
    ("vbios_version", "nvmlDeviceGetVbiosVersion", _text),
    ("compute_capability", "nvmlDeviceGetCudaComputeCapability", lambda pair: f"{pair[0]}.{pair[1]}"),
    (
        "driver_model",
        "nvmlDeviceGetDriverModel",
        lambda pair: {0: "WDDM", 1: "TCC", 2: "MCDM"}.get(pair[0], ""),
    ),
)
SYSTEM_IDENTITY: tuple[tuple[str, str, Callable[[Any], str]], ...] = (
    ("driver_version", "nvmlSystemGetDriverVersion", _text),
    ("cuda_version", "nvmlSystemGetCudaDriverVersion_v2", _cuda_version),
    ("nvml_version", "nvmlSystemGetNVMLVersion", _text),
)
