"""The cards' last minutes, and the course of a run: temperature, power, clocks, throttle reasons, ECC errors."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from wslgpud.config import Stress
from wslgpud.model import Event, GpuSample, Number, Reading, StressFinding
from wslgpud.sources import gpu, windows
from wslgpud.words import Message, say, says

#: followed metrics of the GPU source, by name and additional label ("gpu_clock_hertz:sm")
FOLLOWED = {
    *("gpu_temperature_celsius", "gpu_power_watts", "gpu_clock_hertz", "gpu_throttle_reason", "gpu_ecc_errors"),
    "gpu_remapped_rows",
}
#: These make a night's figures useless for comparison. A power cap does not: it slows the cores more than the memory,
#: and on many cards it is always active.
SLOWED = ("hw_slowdown", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown")
ECC = "gpu_ecc_errors:corrected"
#: labelled with the adapter, not with the UUID
SHARED = windows.GPU_SHARED.name
#: growth of it that may have other reasons
SHARED_BYTES = 256 << 20
#: drivers and desktops need a while to recover after the host slept, and after an error
AFTER_JUMP_SECONDS, AFTER_ERROR_SECONDS = 600.0, 60.0


def followed(readings: Iterable[Reading]) -> dict[str, dict[str, Number]]:
    """Return the followed values, by the GPU's UUID and their name."""
    by_gpu: dict[str, dict[str, Number]] = {}
    shared: dict[str, Number] = {}
    for spec, value, labels in readings:
        if spec.name in FOLLOWED:
            by_gpu.setdefault(labels[1], {})[":".join((spec.name, *labels[2:]))] = value
        elif spec.name == SHARED:
            shared[":".join((SHARED, *labels))] = value
    for facts in by_gpu.values():
        facts.update(shared)
    return by_gpu


@dataclass
class Course:
    """Extremes of the followed values, from the sample before a run to the last one."""

    first: Mapping[str, Number] = field(default_factory=dict)
    last: dict[str, Number] = field(default_factory=dict)
    high: dict[str, Number] = field(default_factory=dict)
    samples: int = 0
    slowed: int = 0
    over: bool = False

    def add(self, now: Mapping[str, Number]) -> None:
        """Take a sample; after the run, only its counters."""
        self.last.update(now)
        if self.over:
            return
        self.samples += 1
        self.slowed += any(now.get(f"gpu_throttle_reason:{reason}") for reason in SLOWED)
        for name, value in now.items():
            self.high[name] = max(value, self.high.get(name, value))

    def grown(self, name: str) -> Number | None:
        before, after = self.first.get(name), self.last.get(name)
        return None if before is None or after is None else max(0, after - before)

    def values(self) -> dict[str, Number]:
        # Increase, since before the run, of the card's memory that Windows has moved into RAM.
        adapters = [name for name in self.high if name.startswith(SHARED) and name in self.first]
        shared = [self.high[name] - self.first[name] for name in adapters]
        throttles = any(name.startswith("gpu_throttle_reason:") for name in self.last)
        known = {
            "temperature_max_celsius": self.high.get("gpu_temperature_celsius"),
            "power_max_watts": self.high.get("gpu_power_watts"),
            "memory_clock_hertz": self.high.get("gpu_clock_hertz:memory"),
            "sm_clock_hertz": self.high.get("gpu_clock_hertz:sm"),
            "slowed_ratio": self.slowed / self.samples if throttles and self.samples else None,
            "shared_grown_bytes": max(0, *shared) if shared else None,
            "ecc_corrected": self.grown(ECC),
            "ecc_uncorrected": self.grown("gpu_ecc_errors:uncorrected"),
            "remapped_rows": self.grown("gpu_remapped_rows:uncorrectable"),
        }
        return {name: value for name, value in known.items() if value is not None}

    def findings(self) -> Iterator[StressFinding]:
        values = self.values()
        if count := values.get("ecc_uncorrected"):
            text = says(
                "{count} memory error that ECC could not correct",
                "{count} memory errors that ECC could not correct",
                count=int(count),
            )
            yield StressFinding("errors", text)
        if count := values.get("remapped_rows"):
            text = says(
                "the card has retired {count} broken row of its memory",
                "the card has retired {count} broken rows of its memory",
                count=int(count),
            )
            yield StressFinding("errors", text)


class Recent:
    """What happened to each GPU in the time in which it must be idle. Written by one thread, read by another."""

    def __init__(self, settle_seconds: float = Stress.settle_seconds) -> None:
        self._settle_seconds = settle_seconds
        self._samples: dict[str, deque[tuple[float, GpuSample]]] = {}
        #: those of the last sample, looked through only for a run: that would take a tenth of each tick
        self._readings: Callable[[], Iterable[Reading]] = tuple
        self._courses: dict[str, Course] = {}
        self._lock = threading.Lock()
        self.last_jump_mono: float | None = None
        self.last_error_mono: float | None = None

    def add(
        self,
        mono: float,
        gpus: Collection[GpuSample],
        readings: Callable[[], Iterable[Reading]] = tuple,
        events: Iterable[Event] = (),
    ) -> None:
        with self._lock:
            for sample in gpus:
                samples = self._samples.setdefault(sample.uuid, deque())
                samples.append((mono, sample))
                while len(samples) > 1 and samples[1][0] <= mono - self._settle_seconds:
                    samples.popleft()
            if gpus:
                self._readings = readings
                known = followed(readings()) if self._courses else {}
                for uuid in known.keys() & self._courses.keys():
                    self._courses[uuid].add(known[uuid])
        for event in events:
            if event.kind == "clock_jump":
                self.last_jump_mono = mono
            elif event.kind in ("dxg_error", "nvidia_xid"):
                self.last_error_mono = mono

    def unrest(self, mono: float) -> Iterator[Message]:
        """Yield the events of late after which no run should begin."""
        if self.last_error_mono is not None and mono - self.last_error_mono < AFTER_ERROR_SECONDS:
            yield say("the kernel has just reported errors of the GPU driver")
        if self.last_jump_mono is not None and (awake := mono - self.last_jump_mono) < AFTER_JUMP_SECONDS:
            yield say("the machine woke up only {awake_seconds} ago", awake_seconds=awake)

    def driver(self, uuid: str) -> str:
        """Return the version of a card's driver, empty where it is not known."""
        with self._lock:
            cards = [dict(zip(spec.labels, one, strict=True)) for spec, _, one in self._readings() if spec is gpu.INFO]
        return next((card["driver_version"] for card in cards if card["uuid"] == uuid), "")

    def samples(self, uuid: str) -> list[GpuSample]:
        """Return a card's samples of the settling time, and the one before."""
        with self._lock:
            return [sample for _, sample in self._samples.get(uuid, ())]

    def silent_seconds(self, uuid: str, mono: float) -> float:
        """Return for how long a card's next sample has been due, judged by the time between the last two."""
        with self._lock:
            times = [at for at, _ in self._samples.get(uuid, ())][-2:]
        return mono - times[-1] - (times[-1] - times[0]) if times else 0.0

    def watched_since(self, uuid: str) -> float:
        """Return the monotonic time of a card's oldest sample, none older than needed."""
        with self._lock:
            return self._samples[uuid][0][0]

    def last(self, uuid: str) -> tuple[float, GpuSample] | None:
        with self._lock:
            known = self._samples.get(uuid)
            return known[-1] if known else None

    @contextlib.contextmanager
    def following(self, uuid: str) -> Iterator[Course]:
        with self._lock:
            course = self._courses[uuid] = Course(first=followed(self._readings()).get(uuid, {}))
        try:
            yield course
        finally:
            with self._lock:
                del self._courses[uuid]

    def gpus(self) -> list[GpuSample]:
        with self._lock:
            return sorted((known[-1][1] for known in self._samples.values()), key=lambda s: s.index)
