"""NVIDIA GPUs, through NVML in a child process (``wslgpud.probes.nvml_probe``).

GPUs are identified by UUID: indexes shift when a GPU is lost. Values that the driver does not report are absent, as are
all values of a lost GPU; ``gpu_up`` shows which GPUs do not answer.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from wslgpud.host import Host, NoData, RecordedHost, SourceError
from wslgpud.metrics import MetricSpec, counter, gauge, info
from wslgpud.model import GpuProcess, GpuSample, Reading, Sample
from wslgpud.probes import nvml_calls
from wslgpud.probes.supervisor import ProbeDown, Supervisor, python_command
from wslgpud.sources import Source, gpu_programs
from wslgpud.sources import readings as known
from wslgpud.sources.gpu_programs import PROCESS_LISTS, DriverNames, GpuPrograms, MeasuredVram, NvmlCard
from wslgpud.words import TEMPLATES, Message, MessageLike, say

LIBRARY_FOLDERS = (
    "/usr/lib/wsl/lib",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/lib64",
    "/usr/local/nvidia/lib64",
    "/run/opengl-driver/lib",
)
NATIVE_DEVICES = ("/dev/nvidiactl", "/dev/nvidia0", "/proc/driver/nvidia")
_PCI = "/sys/bus/pci/devices"

GPU = ("gpu", "uuid")
ID = ("name", "pci_bus_id", "vbios_version", "compute_capability", "driver_model")
SYSTEM = ("driver_version", "cuda_version", "nvml_version")


def _gpu(name: str, text: str, *labels: str) -> MetricSpec:
    """Declare a metric of a GPU, with the driver's precision."""
    decimals = 2 if name.endswith("_ratio") else 1 if name.endswith("_watts") else 0
    return gauge(name, text, *GPU, *labels, decimals=decimals)


#: One line for each metric that an output of ``nvml_calls.CALLS`` feeds.
FED = (
    _gpu("gpu_memory_total_bytes", "Memory of the GPU that its driver manages."),
    _gpu("gpu_memory_used_bytes", "Memory in use by all programs; under WSL2 also by Windows and its desktop."),
    _gpu("gpu_memory_free_bytes", "Memory that the driver calls free."),
    _gpu("gpu_memory_reserved_bytes", "Memory kept by the driver; where absent (old drivers) part of used."),
    _gpu("gpu_utilization_ratio", "Share of time in which a kernel ran."),
    _gpu("gpu_memory_utilization_ratio", "Share of time in which memory was read or written."),
    _gpu("gpu_temperature_celsius", "Temperature of the GPU's core."),
    _gpu("gpu_power_watts", "Power drawn by the board."),
    _gpu("gpu_clock_hertz", "Clock now.", "clock"),
    _gpu("gpu_performance_state", "Performance state: 0 fastest, 15 slowest."),
    _gpu("gpu_fan_speed_ratio", "Intended fan speed as share of its maximum."),
    _gpu("gpu_encoder_utilization_ratio", "Share of time in which the video encoder was busy."),
    _gpu("gpu_decoder_utilization_ratio", "Share of time in which the video decoder was busy."),
    _gpu("gpu_pcie_link_generation", "PCIe generation of the link now; falls when idle, to save power."),
    _gpu("gpu_pcie_link_width", "PCIe lanes of the link now."),
    _gpu("gpu_pcie_link_generation_max", "Highest PCIe generation of this GPU in this slot."),
    _gpu("gpu_pcie_link_width_max", "Most PCIe lanes of this GPU in this slot."),
    _gpu("gpu_power_limit_watts", "Power limit in force."),
    counter("gpu_energy_joules", "Energy used since the driver was loaded.", *GPU),
    counter("gpu_ecc_errors", "Memory errors since the driver was loaded.", *GPU, "type"),
    _gpu("gpu_remapped_rows", "Memory rows replaced by spare ones, for good.", "cause"),
    _gpu("gpu_row_remap_pending", "1 when a row will be replaced at the next reset of the GPU."),
    _gpu("gpu_row_remap_failed", "1 when a row could not be replaced: the GPU should be."),
    _gpu("gpu_display_active", "1 when a display is driven by this GPU."),
    _gpu("gpu_temperature_limit_celsius", "Temperature at which the GPU slows down or shuts off.", "limit"),
    _gpu("gpu_mig_enabled", "1 when the GPU is divided into instances (MIG)."),
)

INFO = info("gpu", "Identity of a GPU and its driver.", *GPU, *ID, *SYSTEM)
UP = _gpu("gpu_up", "1 when the GPU answers, 0 when it is lost; without uuid if it has not answered since the start.")
THROTTLED = _gpu("gpu_throttle_reason", "1 when this keeps the clocks from rising further.", "reason")
PROCESSES, MEASURED, DEMOTED, CEILING = OF_PROGRAMS = (
    _gpu("gpu_processes", "Programs that use the GPU, as far as the driver shows them to us."),
    _gpu("gpu_process_memory_measured", "1 when it is known who holds how much, 0 when that is only suspected."),
    _gpu("gpu_memory_demoted_bytes", "VRAM of programs of this distribution that Windows has moved into RAM."),
    _gpu("gpu_memory_ceiling_bytes", "Use at which Windows' budget for programs is spent, where below the total."),
)
SUPPORTED = gauge(
    "gpu_field_supported",
    "1 when the driver answers this call, 0 when it does not; absent while not known.",
    *GPU,
    "field",
    stored=False,
)
LOST = gauge("gpu_lost", "GPUs that the driver lists but that do not answer.")
LIBRARY = info("gpu_library", "NVIDIA's management library in use.", "path", "version")
ERRORS = counter("gpu_nvml_errors", "Calls that failed, by NVML's error.", "error", stored=False)
#: The probe's starts, hangs and crashes.
PROBE = (
    counter("gpu_probe_starts", "Starts of the child process that queries NVML.", stored=False),
    counter("gpu_probe_hangs", "Times NVML hung and its process was killed.", stored=False),
    counter("gpu_probe_crashes", "Times the process that queries NVML crashed.", stored=False),
)

#: Names of the bits of nvmlClocksEventReasons in nvml.h from the lowest, as in nvidia-smi.
THROTTLE_REASONS = (
    "gpu_idle",
    "applications_clocks_setting",
    "sw_power_cap",
    "hw_slowdown",
    "sync_boost",
    "sw_thermal_slowdown",
    "hw_thermal_slowdown",
    "hw_power_brake_slowdown",
    "display_clock_setting",
)

_SPECS = {spec.name: spec for spec in FED}
MIG = _SPECS["gpu_mig_enabled"]
#: Output of the probe -> metric and its additional labels.
OUTPUTS = {
    output.metric: (_SPECS[name], (label,) if label else ())
    for call in nvml_calls.CALLS
    for output in call.outputs
    if output.metric != "throttle_reasons"
    for name, _, label in [output.metric.partition(":")]
}

#: Field of GpuSample -> output of the probe, without "gpu_".
_SAMPLED = {
    **{f"{kind}_bytes": f"memory_{kind}_bytes" for kind in ("total", "used", "free", "reserved")},
    **{name: name for name in ("utilization_ratio", "memory_utilization_ratio", "power_watts", "temperature_celsius")},
}
#: How often to check whether a GPU has appeared on a machine without one.
GPU_SEARCH_SECONDS = 60.0
#: How often NVML is re-initialised to find a lost GPU again.
RENEW_SECONDS = 120.0


class _Gpu:
    """The known state of one GPU, across probes."""

    def __init__(self, uuid: str) -> None:
        self.uuid = uuid
        self.index = ""
        self.identity: Mapping[str, str] = {}
        self.up = False
        self.values: dict[str, Any] = {}
        self.support: Mapping[str, bool] = {}
        self.processes: tuple[GpuProcess, ...] = ()
        self.measured: MeasuredVram | None = None

    def identify(self, identity: Mapping[str, Any]) -> None:
        """Take over a new probe's description of this GPU; values of an older probe are dropped."""
        self.index, self.identity = str(identity["index"]), identity
        self.forget()

    def forget(self) -> None:
        """Drop values: the GPU does not answer."""
        self.up, self.values, self.support, self.processes, self.measured = False, {}, {}, (), None

    def card(self) -> NvmlCard | None:
        """Return NVML's figures, to compare Windows' with; None where it has none."""
        total, used = (self.values.get(f"gpu_memory_{kind}_bytes") for kind in ("total", "used"))
        if not self.up or not total or used is None:
            return None
        return NvmlCard(total, used, self.identity.get("pci_bus_id", ""))

    def readings(self, system: Mapping[str, str]) -> Iterator[Reading]:
        here = (self.index, self.uuid)
        yield Reading(UP, int(self.up), here)
        if not self.up:
            return
        texts = (*(self.identity.get(k, "") for k in ID), *(system.get(k, "") for k in SYSTEM))
        yield Reading(INFO, 1, here + texts)
        for name, value in self.values.items():
            if value is not None and name in OUTPUTS:
                spec, extra = OUTPUTS[name]
                yield Reading(spec, value, (*here, *extra))
        if (reasons := self.values.get("throttle_reasons")) is not None:
            for bit, name in enumerate(THROTTLE_REASONS):
                yield Reading(THROTTLED, reasons >> bit & 1, (*here, name))
        if self.measured is not None or any(self.values.get(kind) is not None for kind in PROCESS_LISTS):
            yield Reading(PROCESSES, len(self.processes), here)
        if self.processes:
            yield Reading(MEASURED, int(any(one.used_bytes is not None for one in self.processes)), here)
        if self.measured is not None:
            yield from known([(DEMOTED, self.measured.demoted_bytes), (CEILING, self.measured.ceiling_bytes)], *here)
        for name, supported in self.support.items():
            yield Reading(SUPPORTED, int(supported), (*here, name))


class GpuSource(Source):
    """All GPUs that NVML shows."""

    name = "gpu"
    lane = "gpu"
    fast = True  # the probe itself limits expensive calls
    metrics = (INFO, UP, LOST, *FED, THROTTLED, *OF_PROGRAMS, SUPPORTED, LIBRARY, ERRORS, *PROBE)

    def _prepare(self) -> None:
        settings = self.config.sampling
        arguments = ["--library", settings.nvml_library] if settings.nvml_library else []
        if isinstance(self.host, RecordedHost):
            arguments = ["--recording", str(self.host.recording("nvml.json"))]
        self._probe = self._supervisor(arguments)
        self._names = DriverNames(partial(self._supervisor, arguments), patient=self.host.recorded)
        self._programs = GpuPrograms(self.host, self._names)
        self._gpus: dict[str, _Gpu] = {}
        self._session: Mapping[str, Any] = {}
        self._errors: Counter[str] = Counter()
        #: index -> NVML's error, of each card that the driver counts and that does not answer
        self.lost: Mapping[str, str] = {}
        self._refusal: MessageLike = ""
        self._renew_at = float("inf")
        self._request: dict[str, bool] = {}

    def _supervisor(self, arguments: Sequence[str]) -> Supervisor:
        limit = self.config.sampling.gpu_timeout_seconds
        return Supervisor(
            say("NVML probe"),
            python_command("wslgpud.probes.nvml_probe", *arguments, "--limit", f"{limit:g}"),
            timeout_seconds=limit,
            start_timeout_seconds=max(4 * limit, 10),  # loading the library and waking a sleeping card takes seconds
            mono=self.host.clock.mono,
        )

    def ask_everything(self) -> None:
        """Have the next reading make all calls, including the infrequent ones."""
        self._request = {"everything": True}

    def read(self) -> Sample:
        """Return NVML's current values; a driver's hang, crash or error raises a SourceError with the remedy."""
        self.period_seconds = 0.0
        try:
            return self._read()
        except NoData:
            self.period_seconds = GPU_SEARCH_SECONDS
            raise

    def _read(self) -> Sample:
        if not self.config.sampling.gpu:
            raise NoData(say("switched off by sampling.gpu"))
        library = self.config.sampling.nvml_library
        if self._probe.pid is None and not visible(self.host, library):
            if library and self.host.live:  # it may be misspelt
                raise NoData("sampling.nvml_library: there is no {path}", path=library)
            raise NoData(say("no NVIDIA GPU here"))
        now = self.host.clock.mono()
        if now >= self._renew_at:
            self._renew_at = float("inf")
            self._probe.renew()
        request, self._request = self._request or {"brief": self.brief}, {}
        try:
            reply = self._probe.ask(request)
        except ProbeDown as down:
            self._forget()
            said = down.message
            if said != self._refusal:  # this already includes the remedy
                said = explain_silence(said, wsl=self._wsl, crashed=self._probe.crashed)
            raise SourceError(said) from down
        if "error" in reply:
            self._fail(reply)
        self._take(reply, now)
        if not self._gpus and self.lost:
            index, error = next(iter(self.lost.items()))
            self._fail({"error": error, "call": f"GPU {index}", "text": ""})
        if not self._gpus:
            self._probe.renew()
            words = TEMPLATES["no_card"]
            facts = {"meaning": Message(words["meaning"]), "remedy": Message(words["wsl" if self._wsl else "native"])}
            raise NoData("{meaning}; {remedy}", **facts)
        return self._sample()

    def own(self) -> tuple[Reading, ...]:
        """Return the probe's own state; safe from any thread, and valid also while it hangs."""
        probe, session = self._probe, self._session
        counts = (probe.starts_total, probe.hangs_total, probe.crashes_total)
        library = (session.get("library", ""), session.get("nvml_version", ""))
        return (
            *(Reading(spec, count) for spec, count in zip(PROBE, counts, strict=True)),
            *(Reading(ERRORS, count, (error,)) for error, count in self._errors.copy().items()),
            *([Reading(LIBRARY, 1, library)] if session else []),
        )

    @property
    def _wsl(self) -> bool:
        return self.host.exists("/dev/dxg")

    @property
    def probe_pid(self) -> int | None:
        """The child's pid while it runs, so that watchers of our children ignore it."""
        return self._probe.pid

    def close(self) -> None:
        self._probe.close()
        self._names.close()

    def _fail(self, reply: Mapping[str, str]) -> None:
        """Raise why NVML cannot be used; NoData for a driver library on a machine without a GPU."""
        self._forget()
        error = reply["error"]
        self._errors[error] += 1
        text = self._refusal = explain(error, reply["call"], reply["text"], wsl=self._wsl)
        self._probe.fail(text)
        if error in ("DRIVER_NOT_LOADED", "LIBRARY_NOT_FOUND") and not self._wsl and not on_the_bus(self.host):
            raise NoData(say("no NVIDIA GPU here"))
        raise SourceError(text)

    def _forget(self) -> None:
        for gpu in self._gpus.values():
            gpu.forget()

    def _take(self, reply: Mapping[str, Any], now: float) -> None:
        """Merge an answer of the probe into the known state."""
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
            gpu = self._gpus.get(answer["uuid"])  # None: lost before it was identified
            if gpu and "lost" in answer:
                gpu.forget()
            elif gpu:
                gpu.up = True
                gpu.values.update(answer["values"])
        self._recognise(reply)
        self.lost = {str(answer["index"]): answer["lost"] for answer in reply["gpus"] if "lost" in answer}
        if reply.get("changed") and not self.lost:
            self._renew_at = now
        else:
            self._renew_at = min(self._renew_at, now + RENEW_SECONDS) if self.lost else float("inf")

    def _recognise(self, reply: Mapping[str, Any]) -> None:
        """Take over who is on the cards, where that was read this time."""
        listed = {one["uuid"] for one in reply["gpus"] if any(kind in one.get("values", ()) for kind in PROCESS_LISTS)}
        if "dxg" in reply:
            cards = {uuid: card for uuid, gpu in self._gpus.items() if (card := gpu.card()) is not None}
            found = gpu_programs.measured(reply["dxg"].get("adapters", ()), cards, self._programs.process_of)
            for gpu in self._gpus.values():
                gpu.measured = found.get(gpu.uuid)
            listed |= cards.keys()
        for gpu in self._gpus.values():
            if gpu.up and gpu.uuid in listed:
                gpu.processes = self._programs.on_card(gpu.uuid, gpu.values, gpu.measured)

    def _sample(self) -> Sample:
        known = {gpu.index for gpu in self._gpus.values() if not gpu.up}
        readings = [Reading(LOST, len(self.lost)), *(Reading(UP, 0, (i, "")) for i in self.lost if i not in known)]
        samples = []
        for gpu in self._gpus.values():
            readings += gpu.readings(self._session)
            if gpu.up:
                values: dict[str, Any] = {field: gpu.values.get(f"gpu_{name}") for field, name in _SAMPLED.items()}
                name = gpu.identity.get("name", "")
                if gpu.measured is not None:
                    values |= {"demoted_bytes": gpu.measured.demoted_bytes, "ceiling_bytes": gpu.measured.ceiling_bytes}
                samples.append(GpuSample(int(gpu.index), gpu.uuid, name, processes=gpu.processes, **values))
        return Sample(tuple(readings), gpus=tuple(sorted(samples, key=lambda sample: sample.index)))


def visible(host: Host, library: str) -> bool:
    """Return whether to load NVML: ``library`` is its path, empty for the usual places."""
    if isinstance(host, RecordedHost):
        return host.recording("nvml.json") is not None
    if not host.live:
        return False  # a recording: our own GPU is not part of it
    if library:
        return host.exists(library)
    folders = (*LIBRARY_FOLDERS, *filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(":")))
    # Not /dev/dxg: WSL has it for any vendor's GPU, and its NVML is always in WSL's own folder.
    return any(map(host.exists, (*(f"{folder}/libnvidia-ml.so.1" for folder in folders), *NATIVE_DEVICES)))


def on_the_bus(host: Host) -> bool:
    """Return whether the PCI bus shows an NVIDIA device; True where it cannot be read."""
    try:
        devices = host.names(_PCI)
    except (NoData, SourceError):
        return True
    return any(host.read_optional(f"{_PCI}/{device}/vendor").strip() == "0x10de" for device in devices)


#: error -> its meaning, and the remedy on plain Linux ("native") and, where different, under "wsl"
REMEDIES: Mapping[str, Mapping[str, str]] = TEMPLATES["nvml"]


def _remedy(error: str, *, wsl: bool) -> Message:
    return Message({**TEMPLATES["driver"], **REMEDIES.get(error, {})}["wsl" if wsl else "native"])


def explain_silence(meaning: MessageLike, *, wsl: bool, crashed: bool = False) -> Message:
    """Return the failure of a driver that hung or crashed, with the remedy."""
    remedy = Message(TEMPLATES["driver"]["crash"]) if wsl and crashed else _remedy("", wsl=wsl)
    return say("{meaning}; {remedy}", meaning=meaning, remedy=remedy)


def explain_lost(error: str, *, wsl: bool) -> Message:
    """Return the remedy for one card that does not answer while others do."""
    return _remedy(error if error == "RESET_REQUIRED" else "GPU_IS_LOST", wsl=wsl)


def explain_unread(*, mig: bool, denied: bool) -> Message | None:
    """Return why a card that answers does not tell its memory; None where the driver gives no reason."""
    reason = "mig" if mig else "denied" if denied else ""
    return Message(TEMPLATES["unread_memory"][reason]) if reason else None


def explain(error: str, call: str, text: str, *, wsl: bool) -> Message:
    """Return the meaning of an NVML error, its remedy, and the call that returned it."""
    known = error in REMEDIES
    meaning = Message(REMEDIES[error]["meaning"]) if known else say("NVML returned {error}", error=error)
    answer = say("{call}: {answer}", call=call, answer=text or error)
    remedy = say("{remedy} ({answer})", remedy=_remedy(error, wsl=wsl), answer=answer)
    return say("{meaning}; {remedy}", meaning=meaning, remedy=remedy)
