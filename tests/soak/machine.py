"""A machine for the soak: recorded files, a clock that is moved on, and a switch for each fault."""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path

from wslgpud.host import DiskSpace, Host, SourceError

RECORDED = Path(__file__).parents[1] / "hosts" / "bare-linux"
_GIB = 1 << 30


class SoakClock:
    """Time advances by the daemon's waits."""

    def __init__(self) -> None:
        self.mono_now, self.offset = 1000.0, 1.8e9

    def wall(self) -> float:
        return self.offset + self.mono_now

    def mono(self) -> float:
        return self.mono_now


class SoakHost(Host):
    """The recorded machine with memory and counters that move, and two GPUs behind the real probe."""

    live = True  # so that the real NVML probe is started, on the library that the test built

    def __init__(self, library: Path, clock: SoakClock) -> None:
        super().__init__(RECORDED / "root", clock)
        self.tick = 0
        self.ram_used_share = 0.4
        self.oom_kills = 0
        self.disk_free_bytes = 70 * _GIB
        self.failing: set[str] = set()
        self.hanging: dict[str, threading.Event] = {}
        self._library = library
        self._gpu: dict[str, str] = {}
        self.gpu(gpus="2", used=str(2 * _GIB), pid="420")
        self._meminfo = super().read("/proc/meminfo")
        self._vmstat = super().read("/proc/vmstat")
        facts = json.loads((RECORDED / "host.json").read_text())
        self._disk = DiskSpace(*facts["disks"]["/"])
        self._total_kib = int(self._meminfo.split()[1])

    def gpu(self, **settings: str | None) -> None:
        """Change the fake NVML's answers; None removes a setting."""
        for key, value in settings.items():
            self._gpu.pop(key, None)
            if value is not None:
                self._gpu[key] = value
        file = Path(f"{self._library}.settings")
        new = file.with_suffix(".new")
        new.write_text("".join(f"{key} {value}\n" for key, value in self._gpu.items()))
        new.rename(file)

    def exists(self, path: str) -> bool:
        return path == str(self._library) or super().exists(path)

    def read(self, path: str) -> str:
        if path in self.failing:
            raise SourceError(f"cannot read {path}: Input/output error")
        if path == "/proc/meminfo":
            available = int(self._total_kib * (1 - self.ram_used_share))
            return re.sub(r"(MemAvailable|MemFree): +\d+", rf"\1: {available}", self._meminfo)
        if path == "/proc/vmstat":
            # Each tick has a number of its own, by which it is found again in the history.
            text = re.sub(r"pgmajfault \d+", f"pgmajfault {self.tick}", self._vmstat)
            return re.sub(r"oom_kill \d+", f"oom_kill {self.oom_kills}", text)
        return super().read(path)

    def names(self, path: str, most: int | None = None) -> list[str]:
        self._wait(path)
        return super().names(path, most)

    def disk_space(self, path: str) -> DiskSpace:
        self._wait(path)
        return self._disk._replace(available=self.disk_free_bytes)

    def run(self, command: object, timeout_seconds: float) -> str:
        raise AssertionError(f"{command} must not be started for a recorded machine")

    def _wait(self, path: str) -> None:
        if gate := self.hanging.get(path):
            gate.wait()
