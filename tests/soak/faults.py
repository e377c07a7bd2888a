"""The faults of the soak, and the daemon's expected messages at their start and end."""

from __future__ import annotations

import random
import resource
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol
from urllib.parse import urlsplit

from tests.soak.machine import SoakClock, SoakHost
from tests.support.receivers import Webhook

_GIB = 1 << 30


@dataclass
class Stage:
    """What faults play on."""

    host: SoakHost
    clock: SoakClock
    webhook: Webhook
    url: str
    dice: random.Random
    #: has the engine forget which peaks of the cards did no harm
    forget: Callable[[], None]


class Fault(Protocol):
    """Something that begins, lasts and ends. Of one ``group`` only one at a time."""

    name: str
    group: str
    #: the rule and the resource that must open and, when it is over, close; empty: none
    rule: tuple[str, str]
    #: longest time that it lasts
    seconds: float

    def begin(self, stage: Stage) -> None: ...

    def go_on(self, stage: Stage, share: float) -> None:
        """Play ``share`` of the whole."""

    def end(self, stage: Stage) -> None: ...


@dataclass
class _Quiet:
    """A fault that needs nothing between begin and end."""

    name: str
    group: str
    rule: tuple[str, str]
    seconds: float

    def go_on(self, stage: Stage, share: float) -> None:
        pass


@dataclass
class Unreadable(_Quiet):
    """A file of /proc gives an error."""

    path: str

    def begin(self, stage: Stage) -> None:
        stage.host.failing.add(self.path)

    def end(self, stage: Stage) -> None:
        stage.host.failing.discard(self.path)


@dataclass
class Hanging(_Quiet):
    """A read does not come back."""

    path: str

    def begin(self, stage: Stage) -> None:
        stage.host.hanging[self.path] = threading.Event()

    def end(self, stage: Stage) -> None:
        stage.host.hanging.pop(self.path).set()


@dataclass
class Card(_Quiet):
    """The card or its driver: the fake NVML's answers meanwhile."""

    settings: dict[str, str]

    def begin(self, stage: Stage) -> None:
        stage.host.gpu(**self.settings)

    def end(self, stage: Stage) -> None:
        stage.host.gpu(**dict.fromkeys(self.settings))


@dataclass
class RefusedWrites(_Quiet):
    """Writes to files fail, as on a full disk; real ones, by a limit of the kernel's."""

    def begin(self, stage: Stage) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2_000, resource.RLIM_INFINITY))

    def end(self, stage: Stage) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


@dataclass
class LittleSpace(_Quiet):
    """The file system of the data has little room left."""

    def begin(self, stage: Stage) -> None:
        stage.host.disk_free_bytes = _GIB

    def end(self, stage: Stage) -> None:
        stage.host.disk_free_bytes = 70 * _GIB


@dataclass
class DeadChannel(_Quiet):
    """The receiver of alerts refuses all of them, or is not there at all."""

    gone: bool = False

    def begin(self, stage: Stage) -> None:
        self.gone = stage.dice.random() < 0.5
        if self.gone:
            stage.webhook.stop()
        stage.webhook.mood = "refuse"

    def end(self, stage: Stage) -> None:
        stage.webhook.mood = "take"
        if self.gone:
            stage.webhook.start()


@dataclass
class ClockJump(_Quiet):
    """The wall clock is set, or the machine has slept."""

    drift: float = 0.0

    def begin(self, stage: Stage) -> None:
        far = stage.dice.uniform(300, 12 * 3600) * (-1 if self.drift > 0 else 1)
        self.drift += far
        stage.clock.offset += far

    def end(self, stage: Stage) -> None:
        pass


@dataclass
class Flood(_Quiet):
    """Scrapers by the hundred: good ones, slow ones, ones that send nonsense."""

    sockets: list[socket.socket] = field(default_factory=list)

    def begin(self, stage: Stage) -> None:
        place = urlsplit(stage.url)
        said = (
            b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n",
            b"GET /api/v1/live HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
            b"GET /metrics HTTP/1.1\r\nHost: loc",
            b"\x16\x03\x01 nonsense\r\n\r\n",
            b"",
        )
        for number in range(100):
            one = socket.create_connection((place.hostname, place.port), timeout=60)
            one.sendall(said[number % len(said)])
            self.sockets.append(one)

    def end(self, stage: Stage) -> None:
        for one in self.sockets:
            one.close()
        self.sockets.clear()


@dataclass
class Leak:
    """A program takes all of a memory, and then dies."""

    name: str
    group: str
    rule: tuple[str, str]
    seconds: float

    def begin(self, stage: Stage) -> None:
        pass

    def go_on(self, stage: Stage, share: float) -> None:
        if self.rule[1] == "ram":
            stage.host.ram_used_share = 0.4 + 0.59 * min(1.0, share)
        else:
            stage.host.gpu(**{"used@0": str(int((2 + 13.4 * min(1.0, share)) * _GIB))})

    def end(self, stage: Stage) -> None:
        # Else the engine learns that such peaks do no harm, and rightly warns no more. That a program ended
        # of a full card is told by nobody, and cannot be seen with 40 s from sample to sample.
        if self.rule[1] == "ram":
            stage.host.oom_kills += 1
        else:
            stage.forget()
        self.go_on(stage, 0.0)


def silent(source: str) -> tuple[str, str]:
    return "source_stale", f"source:{source}"


def all_faults() -> list[tuple[Fault, float]]:
    """Return every fault with how often it comes, relative to the others."""
    minute = 60.0
    stale = [("disk", "/proc/diskstats"), ("network", "/proc/net/dev"), ("cpu", "/proc/stat")]
    hangs = [("filesystem", "/"), ("processes", "/proc")]
    crash = {"crash": "DeviceGetUtilizationRates"}
    return [
        *((Unreadable(f"{n} unreadable", n, silent(n), 20 * minute, path), 1.0) for n, path in stale),
        *((Hanging(f"{n} hangs", n, silent(n), 20 * minute, path), 1.0) for n, path in hangs),
        (Card("a GPU lost", "gpu", ("gpu_lost", "gpu1"), 20 * minute, {"lost@1": "1"}), 1.0),
        (Card("all GPUs lost", "gpu", ("gpu_lost", "gpu0"), 20 * minute, {"lost": "1"}), 1.0),
        (Card("driver crashes", "gpu", ("gpu_driver_gone", "gpu"), 20 * minute, crash), 1.0),
        (
            Card("driver hangs", "gpu", ("gpu_driver_gone", "gpu"), 20 * minute, {"hang": "DeviceGetUtilizationRates"}),
            0.2,
        ),
        (RefusedWrites("writes refused", "disk full", ("store_failing", "store"), 30 * minute), 1.0),
        (LittleSpace("little space", "filesystem", ("state_disk_full", "disk:/"), 20 * minute), 1.0),
        (DeadChannel("channel dead", "channel", ("", ""), 60 * minute), 1.0),
        (ClockJump("clock jumps", "clock", ("clock_jump", "clock"), minute), 1.0),
        (Flood("scrapers flood", "http", ("", ""), 5 * minute), 1.0),
        (Leak("RAM leaks", "ram", ("memory_exhaustion", "ram"), 15 * minute), 0.5),
        (Leak("VRAM leaks", "gpu", ("memory_exhaustion", "gpu0"), 15 * minute), 0.5),
    ]
