"""NVIDIA GPUs, through NVML in a child process (``wslgpud.probes.nvml_probe``).

GPUs are known by their UUID: indexes move when a GPU is lost. A value that the driver does not give is
absent, and so is every value of a GPU that is lost; ``gpu_up`` says which GPUs do not answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from wslgpud.config import Config
from wslgpud.host import Host, NoData, RecordedHost, SourceError
from wslgpud.masking import named
from wslgpud.metrics import MetricSpec, Unit
from wslgpud.model import GpuProcess, GpuSample, Reading, Sample
from wslgpud.probes import nvml_calls
from wslgpud.probes.nvml_remedies import explain, explain_silence
from wslgpud.probes.supervisor import ProbeDown, Supervisor, python_command
from wslgpud.sources import Source
from wslgpud.sources.gpu_presence import on_the_bus, visible
from wslgpud.words import Said, say

GPU = ("gpu", "uuid")
ID = ("name", "pci_bus_id", "vbios_version", "compute_capability", "driver_model")
SYSTEM = ("driver_version", "cuda_version", "nvml_version")


#: Ending of a metric's name -> its unit and to how many decimals the driver knows it.
_UNITS: tuple[tuple[str, Unit, int], ...] = (
    ("_bytes", "bytes", 0), ("_ratio", "ratio", 2), ("_celsius", "celsius", 0), ("_watts", "watts", 1),
    ("_hertz", "hertz", 0), ("", "", 0),
)  # fmt: skip


def _gauge(name: str, text: str, *labels: str) -> MetricSpec:
    """Declare a metric of a GPU; its unit follows from its name."""
    unit, decimals = next((u, d) for ending, u, d in _UNITS if name.endswith(ending))
    return MetricSpec(name, "gauge", unit, text, (*GPU, *labels), decimals)


#: One line for each metric that an output of ``nvml_calls.CALLS`` feeds.
FED = (
    _gauge("gpu_memory_total_bytes", "Memory of the GPU that its driver manages."),
    _gauge(
        "gpu_memory_used_bytes", "Memory in use by all programs; under WSL2 also by Windows and its desktop."
    ),
    _gauge("gpu_memory_free_bytes", "Memory that the driver calls free."),
    _gauge(
        "gpu_memory_reserved_bytes", "Memory kept by the driver; where absent (old drivers) part of used."
    ),
    _gauge("gpu_utilization_ratio", "Share of time in which a kernel ran."),
    _gauge("gpu_memory_utilization_ratio", "Share of time in which memory was read or written."),
    _gauge("gpu_temperature_celsius", "Temperature of the GPU's core."),
    _gauge("gpu_power_watts", "Power drawn by the board."),
    _gauge("gpu_clock_hertz", "Clock now.", "clock"),
    _gauge("gpu_performance_state", "Performance state: 0 fastest, 15 slowest."),
    _gauge("gpu_fan_speed_ratio", "Intended fan speed as share of its maximum."),
    _gauge("gpu_encoder_utilization_ratio", "Share of time in which the video encoder was busy."),
    _gauge("gpu_decoder_utilization_ratio", "Share of time in which the video decoder was busy."),
    _gauge("gpu_pcie_link_generation", "PCIe generation of the link now; falls when idle, to save power."),
    _gauge("gpu_pcie_link_width", "PCIe lanes of the link now."),
    _gauge("gpu_pcie_link_generation_max", "Highest PCIe generation of this GPU in this slot."),
    _gauge("gpu_pcie_link_width_max", "Most PCIe lanes of this GPU in this slot."),
    _gauge("gpu_power_limit_watts", "Power limit in force."),
    MetricSpec("gpu_energy_joules", "counter", "joules", "Energy used since the driver was loaded.", GPU),
    MetricSpec("gpu_ecc_errors", "counter", "", "Memory errors since the driver was loaded.", (*GPU, "type")),
    _gauge("gpu_remapped_rows", "Memory rows replaced by spare ones, for good.", "cause"),
    _gauge("gpu_row_remap_pending", "1 when a row will be replaced at the next reset of the GPU."),
    _gauge("gpu_row_remap_failed", "1 when a row could not be replaced: the GPU should be."),
    _gauge("gpu_display_active", "1 when a display is driven by this GPU."),
    _gauge("gpu_temperature_limit_celsius", "Temperature at which the GPU slows down or shuts off.", "limit"),
    _gauge("gpu_mig_enabled", "1 when the GPU is divided into instances (MIG)."),
)

INFO = MetricSpec("gpu", "info", "", "Identity of a GPU and its driver.", (*GPU, *ID, *SYSTEM), stored=False)
UP = _gauge("gpu_up", "1 when the GPU answers, 0 when it was seen before and is lost.")
THROTTLED = _gauge("gpu_throttle_reason", "1 when this keeps the clocks from rising further.", "reason")
PROCESSES = _gauge("gpu_processes", "Programs that use the GPU, as far as the driver shows them to us.")
SUPPORTED = MetricSpec("gpu_field_supported", "gauge", "",
                       "1 when the driver answers this call, 0 when it does not; absent while not known.",
                       (*GPU, "field"), stored=False)  # fmt: skip
LOST = MetricSpec("gpu_lost", "gauge", "", "GPUs that the driver lists and that do not answer.")
LIBRARY = MetricSpec("gpu_library", "info", "", "NVIDIA's management library in use.", ("path", "version"),
                     stored=False)  # fmt: skip
ERRORS = MetricSpec("gpu_nvml_errors", "counter", "", "Calls that failed, by NVML's error.", ("error",),
                    stored=False)  # fmt: skip
PROBE_STARTS = MetricSpec("gpu_probe_starts", "counter", "", "Starts of the child process that asks NVML.",
                          stored=False)  # fmt: skip
PROBE_HANGS = MetricSpec("gpu_probe_hangs", "counter", "", "Times NVML hung and its process was ended.",
                         stored=False)  # fmt: skip
PROBE_CRASHES = MetricSpec("gpu_probe_crashes", "counter", "", "Times the process that asks NVML broke down.",
                           stored=False)  # fmt: skip

#: Bits of nvmlClocksEventReasons in nvml.h, named as nvidia-smi names them.
THROTTLE_BITS = {
    "gpu_idle": 1, "applications_clocks_setting": 2, "sw_power_cap": 4, "hw_slowdown": 8, "sync_boost": 16,
    "sw_thermal_slowdown": 32, "hw_thermal_slowdown": 64, "hw_power_brake_slowdown": 128,
    "display_clock_setting": 256,
}  # fmt: skip

_SPECS = {spec.name: spec for spec in FED}
#: Output of the probe -> metric and its further labels.
OUTPUTS = {
    output.metric: (_SPECS[name], (label,) if label else ())
    for call in nvml_calls.CALLS
    for output in call.outputs
    if output.metric != "throttle_reasons"
    for name, _, label in [output.metric.partition(":")]
}

#: How often to look whether a GPU has appeared on a machine without one.
LOOK_AGAIN_SECONDS = 60.0
#: A lost GPU needs NVML to be initialised anew to be found again; doubled each time, up to ten minutes.
RENEW_SECONDS, RENEW_SECONDS_MAX = 30.0, 600.0


class _Gpu:
    """What is known of one GPU, across probes."""

    def __init__(self, uuid: str) -> None:
        self.uuid = uuid
        self.index = ""
        self.identity: Mapping[str, str] = {}
        self.up = False
        self.values: dict[str, Any] = {}
        self.support: Mapping[str, bool] = {}
        self.processes: tuple[GpuProcess, ...] = ()
        self._labels: dict[str, tuple[str, ...]] = {}

    def identify(self, identity: Mapping[str, Any]) -> None:
        """Take over what a new probe says of this GPU; what an older one had read is forgotten."""
        self.index, self.identity = str(identity["index"]), identity
        self.forget()
        self._labels = {name: (self.index, self.uuid, *extra) for name, (_, extra) in OUTPUTS.items()}

    def forget(self) -> None:
        """Drop values: the GPU does not answer."""
        self.up, self.values, self.support, self.processes = False, {}, {}, ()

    def readings(self, system: Mapping[str, str]) -> Iterator[Reading]:
        """Return all that is known now."""
        here = (self.index, self.uuid)
        yield Reading(UP, int(self.up), here)
        if not self.up:
            return
        texts = (*(self.identity.get(k, "") for k in ID), *(system.get(k, "") for k in SYSTEM))
        yield Reading(INFO, 1, here + texts)
        for name, value in self.values.items():
            if value is not None and name in OUTPUTS:
                yield Reading(OUTPUTS[name][0], value, self._labels[name])
        reasons = self.values.get("throttle_reasons")
        if reasons is not None:
            for name, bit in THROTTLE_BITS.items():
                yield Reading(THROTTLED, int(bool(reasons & bit)), (*here, name))
        if any(self.values.get(kind) is not None for kind in PROCESS_LISTS):
            yield Reading(PROCESSES, len(self.processes), here)
        for name, supported in self.support.items():
            yield Reading(SUPPORTED, int(supported), (*here, name))


PROCESS_LISTS = ("compute_processes", "graphics_processes")


class GpuSource(Source):
    """All NVIDIA GPUs that NVML shows."""

    name: ClassVar[str] = "gpu"
    lane: ClassVar[str] = "gpu"
    fast: ClassVar[bool] = True  # the probe itself asks the dear things rarely
    metrics: ClassVar[tuple[MetricSpec, ...]] = (
        INFO, UP, LOST, *FED, THROTTLED, PROCESSES, SUPPORTED, LIBRARY, ERRORS,
        PROBE_STARTS, PROBE_HANGS, PROBE_CRASHES,
    )  # fmt: skip

    def __init__(self, host: Host, config: Config) -> None:
        """Start nothing yet: a child runs only once there is something to ask."""
        super().__init__(host, config)
        settings = config.sampling
        arguments = ["--library", settings.nvml_library] if settings.nvml_library else []
        if isinstance(host, RecordedHost):
            arguments = ["--recording", str(host.nvml_recording)]
        self._probe = Supervisor(
            say("NVML probe"),
            python_command("wslgpud.probes.nvml_probe", *arguments),
            timeout_seconds=settings.gpu_timeout_seconds,
            # Loading the library and waking the driver takes seconds on a card that sleeps.
            start_timeout_seconds=max(4 * settings.gpu_timeout_seconds, 10),
            mono=host.clock.mono,
        )
        self._gpus: dict[str, _Gpu] = {}
        self._session: Mapping[str, Any] = {}
        self._errors: Counter[str] = Counter()
        self._lost = 0
        self._refusal: Said = ""
        self._look_at: float | None = None
        self._renew_at: float | None = None
        self._renew_after = RENEW_SECONDS

    def read(self) -> Sample:
        """Return what NVML tells now.

        Raises:
            NoData: no NVIDIA GPU here, or it is switched off.
            SourceError: the driver hangs, crashes or refuses; the message says what to do.
        """
        if not self.config.sampling.gpu:
            raise NoData(say("switched off by sampling.gpu"))
        self._expect_gpu()
        now = self.host.clock.mono()
        if self._renew_at is not None and now >= self._renew_at:
            self._renew_at = None
            self._probe.renew()
        try:
            reply = self._probe.ask({})
        except ProbeDown as down:
            self._forget()
            said = down.said
            if said != self._refusal:  # that says what to do already
                said = explain_silence(said, wsl=self.host.exists("/dev/dxg"))
            raise SourceError(said) from down
        if "error" in reply:
            self._fail(reply)
        self._take(reply, now)
        if not self._gpus:
            self._probe.renew()
            self._look_at = now + LOOK_AGAIN_SECONDS
            raise NoData(say("the NVIDIA driver shows no GPU"))
        return self._sample()

    def own(self) -> tuple[Reading, ...]:
        """Return what the probe says of itself; safe from any thread, and true also while it hangs."""
        found = [
            Reading(PROBE_STARTS, self._probe.starts_total),
            Reading(PROBE_HANGS, self._probe.hangs_total),
            Reading(PROBE_CRASHES, self._probe.crashes_total),
            *(Reading(ERRORS, count, (error,)) for error, count in self._errors.copy().items()),
        ]
        session = self._session
        if session:
            found.append(Reading(LIBRARY, 1, (session.get("library", ""), session.get("nvml_version", ""))))
        return tuple(found)

    @property
    def probe_pid(self) -> int | None:
        """The child's pid while it runs: those who watch their own children leave it alone."""
        return self._probe.pid

    def close(self) -> None:
        """End the child."""
        self._probe.close()

    def _expect_gpu(self) -> None:
        """Look whether it makes sense to start a probe; cheap, and not again for a minute when it does not.

        Raises:
            NoData: neither device nor library is there.
        """
        now = self.host.clock.mono()
        if self._probe.pid is not None:
            return
        if self._look_at is not None:
            if now < self._look_at:
                raise NoData(say("no NVIDIA GPU here"))
            self._look_at = None
        if not visible(self.host, self.config.sampling.nvml_library):
            self._look_at = now + LOOK_AGAIN_SECONDS
            raise NoData(say("no NVIDIA GPU here"))

    def _fail(self, reply: Mapping[str, str]) -> None:
        """Take note that NVML cannot be used.

        Raises:
            NoData: the driver's library is installed, on a machine without its GPU.
            SourceError: always otherwise.
        """
        self._forget()
        error = reply["error"]
        self._errors[error] += 1
        wsl = self.host.exists("/dev/dxg")
        text = self._refusal = explain(error, reply["call"], reply["text"], wsl=wsl)
        self._probe.fail(text)
        if error in ("DRIVER_NOT_LOADED", "LIBRARY_NOT_FOUND") and not wsl and not on_the_bus(self.host):
            self._look_at = self.host.clock.mono() + LOOK_AGAIN_SECONDS
            raise NoData(say("no NVIDIA GPU here"))
        raise SourceError(text)

    def _forget(self) -> None:
        for gpu in self._gpus.values():
            gpu.forget()

    def _take(self, reply: Mapping[str, Any], now: float) -> None:
        """Lay an answer over what is known."""
        self._errors.update(reply.get("errors", {}))
        if "session" in reply:
            self._session = reply["session"]
            self._forget()
            for identity in self._session["gpus"]:
                uuid = identity["uuid"]
                self._gpus.setdefault(uuid, _Gpu(uuid)).identify(identity)
        for support in reply.get("support", ()):
            self._gpus[support["uuid"]].support = support["calls"]
        for answer in reply["gpus"]:
            gpu = self._gpus.get(answer["uuid"])
            if gpu is None:  # lost before it could say who it is
                continue
            if "lost" in answer:
                gpu.forget()
            else:
                gpu.up = True
                gpu.values.update(answer["values"])
                if any(kind in answer["values"] for kind in PROCESS_LISTS):
                    gpu.processes = self._processes(gpu.values)
        self._lost = sum("lost" in answer for answer in reply["gpus"])
        if self._lost:
            if self._renew_at is None:
                self._renew_at = now + self._renew_after
                self._renew_after = min(2 * self._renew_after, RENEW_SECONDS_MAX)
        else:
            self._renew_after = RENEW_SECONDS
            self._renew_at = now if reply.get("changed") else None

    def _sample(self) -> Sample:
        readings = [Reading(LOST, self._lost)]
        samples = []
        for gpu in self._gpus.values():
            readings += gpu.readings(self._session)
            if gpu.up:
                samples.append(_gpu_sample(gpu))
        return Sample(tuple(readings), gpus=tuple(sorted(samples, key=lambda sample: sample.index)))

    def _processes(self, values: Mapping[str, Any]) -> tuple[GpuProcess, ...]:
        """Return the processes on a GPU, biggest first, each once.

        A process of another namespace (``/Xwayland`` of WSLg, a container) has a pid that is somebody
        else's here, or nobody's (XuehaiPan/nvitop#49). Such a process gets pid 0, so that no innocent one
        is blamed.
        """
        most = values.get("gpu_memory_total_bytes") or 2**63
        merged: dict[int, GpuProcess] = {}
        for kind in PROCESS_LISTS:
            for pid, used, path in values.get(kind) or ():
                # WDDM tells no memory of single processes; the sentinel says so, and sometimes nonsense.
                used_bytes = used if used is not None and used <= most else None
                known = merged.get(pid)
                if known is None or (known.used_bytes or 0) < (used_bytes or 0):
                    ours, name = self._who(pid, (path or "").rpartition("/")[2])
                    merged[pid] = GpuProcess(pid if ours else 0, named(name), used_bytes)
        return tuple(sorted(merged.values(), key=lambda process: -(process.used_bytes or 0)))

    def _who(self, pid: int, name: str) -> tuple[bool, str]:
        """Tell whether ``pid`` is in our namespace what NVML calls ``name``, and its best name."""
        try:
            comm = self.host.read(f"/proc/{pid}/comm").strip()
            invoked = self.host.read(f"/proc/{pid}/cmdline").partition("\0")[0]
        except (NoData, SourceError):
            return False, name
        if not name or comm == name[:15]:
            return True, name or comm
        # PyTorch calls its main thread pt_main_thread, a script's comm is the script's: look further.
        program = self.host.link(f"/proc/{pid}/exe") or ""
        return name in (program.rpartition("/")[2], invoked.rpartition("/")[2]), name


def _gpu_sample(gpu: _Gpu) -> GpuSample:
    def get(name: str) -> Any:
        return gpu.values.get(name)

    total, used = get("gpu_memory_total_bytes"), get("gpu_memory_used_bytes")
    return GpuSample(
        index=int(gpu.index),
        uuid=gpu.uuid,
        name=gpu.identity.get("name", ""),
        total_bytes=total,
        used_bytes=used,
        free_bytes=get("gpu_memory_free_bytes"),
        reserved_bytes=get("gpu_memory_reserved_bytes"),
        utilization_ratio=get("gpu_utilization_ratio"),
        memory_utilization_ratio=get("gpu_memory_utilization_ratio"),
        power_watts=get("gpu_power_watts"),
        temperature_celsius=get("gpu_temperature_celsius"),
        processes=gpu.processes,
    )
