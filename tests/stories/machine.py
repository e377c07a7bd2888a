"""A machine whose every second is told by a test, under a real daemon: only sensors and time are played."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.daemons import eventually
from wslgpud import config as configuration
from wslgpud.app.daemon import Daemon
from wslgpud.host import RecordedHost
from wslgpud.model import Event, GpuProcess, GpuSample, ProcessSample, Reading, Sample, Snapshot, SourceReport
from wslgpud.sources import cgroups, gpu, memory, windows
from wslgpud.sources.kernel_lines import LineParser as KernelStory
from wslgpud.words import MessageLike, say

HOSTS = Path(__file__).parents[1] / "hosts"
GIB = 1 << 30
MIB = 1 << 20
CARD = "NVIDIA GeForce RTX 5070 Ti"
UUID = "GPU-00000000-0000-0000-0000-000000000001"
START_WALL = 1_700_000_000.0
#: what the channel has got, a line each
SENT = "sent.jsonl"


class PlayedClock:
    """Time that moves only when a second of the story is over."""

    def __init__(self) -> None:
        self.mono_now = 5000.0

    def wall(self) -> float:
        return START_WALL + self.mono_now - 5000.0

    def mono(self) -> float:
        return self.mono_now


@dataclass(frozen=True)
class Group:
    """A cgroup with a limit, in bytes; ``kills`` since it was made."""

    limit: int
    used: int
    kills: int = 0


@dataclass(frozen=True)
class Second:
    """All that the sensors tell in one second, in bytes."""

    ram_total: int = 50 * GIB
    ram_available: int = 40 * GIB
    groups: dict[str, Group] = field(default_factory=dict)
    programs: tuple[ProcessSample, ...] = ()
    card_used: int | None = None
    card_total: int = 16 * GIB
    on_card: tuple[GpuProcess, ...] = ()
    #: GPU memory that lies in Windows' RAM; None where Windows is not asked
    shared: int | None = None
    card_lost: bool = False
    kernel: tuple[str, ...] = ()
    kernel_log: bool = True
    #: name of a source to why it is silent
    silent: dict[str, MessageLike] = field(default_factory=dict)


def program(pid: int, command: str, rss: int, group: str = "") -> ProcessSample:
    """Return a program as the sources see one."""
    name = command.split(maxsplit=1)[0]
    return ProcessSample(pid, pid, name, rss, 0, 1000, frozenset({"training"}), command, group)


Script = Callable[[int], Second]


class Sensors:
    """Stands where the sampler stands."""

    def __init__(self, script: Script, clock: PlayedClock) -> None:
        self.script, self.clock = script, clock
        self.second = 0
        self._story = KernelStory()

    def tick(self, *, fast: bool, planned_seconds: float) -> Snapshot:
        """Return the second that it is now."""
        now = self.script(self.second)
        mono, wall = self.clock.mono(), self.clock.wall()

        def report(name: str, sample: Sample) -> SourceReport:
            if name in now.silent:
                return SourceReport(name, "failed", Sample(), mono, 0.001, now.silent[name])
            return SourceReport(name, "ok", sample, mono, 0.001, last_success_wall=wall)

        reports = [report(name, sample) for name, sample in self._samples(now, wall)]
        if not now.kernel_log:
            why = say(
                "no permission to read {path}, so OOM kills go unseen: run as root, give the service "
                "AmbientCapabilities=CAP_SYSLOG, or run 'sudo sysctl kernel.dmesg_restrict=0'",
                path="/dev/kmsg",
            )
            reports.append(SourceReport("kernel_log", "absent", Sample(), mono, 0.001, why))
        return Snapshot(wall, mono, self.second, tuple(reports), 0.0, 1.0)

    def close(self) -> None:
        """Hold nothing."""

    def _samples(self, now: Second, wall: float) -> Iterator[tuple[str, Sample]]:
        kills = sum(group.kills for group in now.groups.values())
        ram = (
            Reading(memory.MEMINFO["MemTotal"], now.ram_total),
            Reading(memory.MEMINFO["MemAvailable"], now.ram_available),
            Reading(memory.MEMINFO["SwapTotal"], 0),
            Reading(memory.MEMINFO["SwapFree"], 0),
            Reading(memory.OOM_KILLS, kills),
        )
        yield "memory", Sample(ram)
        if now.groups:
            readings = [
                Reading(spec, value, (path,))
                for path, group in now.groups.items()
                for spec, value in (
                    (cgroups.LIMIT, group.limit),
                    (cgroups.CURRENT, group.used),
                    (cgroups.OOM_KILLS, group.kills),
                )
            ]
            yield "cgroups", Sample(tuple(readings))
        yield "processes", Sample(processes=now.programs)
        if now.card_used is not None:
            yield "gpu", self._card(now)
        if now.shared is not None:
            own = Reading(windows.GPU_SHARED, now.shared, (CARD,))
            dedicated = Reading(windows.GPU_DEDICATED, now.card_used or 0, (CARD,))
            yield "windows", Sample((own, dedicated))
        if now.kernel_log:
            yield "kernel_log", Sample(events=tuple(self._heard(now, wall)))

    def _card(self, now: Second) -> Sample:
        labels = ("0", UUID)
        if now.card_lost:
            return Sample((Reading(gpu.UP, 0, labels),), gpus=())
        used = now.card_used or 0
        free = now.card_total - used
        card = GpuSample(0, UUID, CARD, now.card_total, used, free, 0, 0.97, 0.4, processes=now.on_card)
        return Sample((Reading(gpu.UP, 1, labels),), gpus=(card,))

    def _heard(self, now: Second, wall: float) -> Iterator[Event]:
        for line in now.kernel:
            found = self._story.add(line)
            if found is not None and found.kind == "oom_kill":
                yield Event("oom_kill", wall, found.text, found.fields)


class Played:
    """A daemon on that machine, and its output, second by second."""

    def __init__(self, daemon: Daemon, sensors: Sensors, manager: socket.socket, language: str) -> None:
        self.daemon, self.sensors, self.language = daemon, sensors, language
        self.state = daemon._folder
        self.folder = self.state.parent
        #: by second of the story, the status document in the daemon's language
        self.documents: list[dict[str, Any]] = []
        #: by second, what the daemon saw
        self.states: list[Snapshot] = []
        #: what the service manager was told last
        self.notified = ""
        self._manager = manager

    def until(self, second: int) -> None:
        """Advance the story to a given second."""
        while self.sensors.second <= second:
            self.sensors.clock.mono_now += 1.0
            self.daemon.tick.run()
            self.sensors.second += 1
            assert self.daemon.tick.latest is not None
            self.states.append(self.daemon.tick.latest.snapshot)
            self.documents.append(self.daemon.tick.now(self.language))
            with suppress(BlockingIOError):
                while True:
                    self.notified = self._manager.recv(1 << 16).decode()

    def messages(self) -> list[dict[str, Any]]:
        """Return the channel's messages once all have arrived."""
        dispatcher = self.daemon.tick.alerts.dispatcher
        eventually(lambda: not any(dispatcher.waiting().values()), "that the channel has got all")
        return [json.loads(line) for line in (self.folder / SENT).read_text().splitlines()]


@contextmanager
def played(script: Script, folder: Path, *, language: str = "en") -> Iterator[Played]:
    """Start a daemon on a machine that follows a script."""
    clock = PlayedClock()
    sent = folder / SENT
    sent.touch()
    take = ("sh", "-c", f"cat >> '{sent}'; echo >> '{sent}'")
    config = configuration.Config(
        server=configuration.Server(port=0),
        alerts=configuration.Alerts(language=language, command=take, command_timeout_seconds=600),
    )
    host = RecordedHost(HOSTS / "bare-linux", clock)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.setblocking(False)
        manager.bind("")  # the kernel picks an abstract name
        environ = {"HOME": str(folder), "NOTIFY_SOCKET": f"@{manager.getsockname()[1:].decode()}"}
        with Daemon(config, host, folder / "state", environ) as daemon:
            sensors = Sensors(script, clock)
            daemon.tick.assessor._sampler.close()
            daemon.tick.assessor._sampler = sensors  # type: ignore[assignment]
            yield Played(daemon, sensors, manager, language)


def oom_lines(pid: int, name: str, held: int, group: str = "") -> tuple[str, ...]:
    """Return the kernel's log lines of an OOM kill."""
    constraint = "CONSTRAINT_MEMCG" if group else "CONSTRAINT_NONE"
    where = f"oom_memcg={group},task_memcg={group}" if group else "global_oom,task_memcg=/"
    what = "Memory cgroup out of memory" if group else "Out of memory"
    why = f"constraint={constraint},nodemask=(null),cpuset=/,mems_allowed=0,{where}"
    size = f"total-vm:{held // 512}kB, anon-rss:{held // 1024}kB, file-rss:0kB, shmem-rss:0kB"
    return (
        f"oom-kill:{why},task={name},pid={pid},uid=1000",
        f"{what}: Killed process {pid} ({name}) {size}, UID:1000 pgtables:0kB oom_score_adj:0",
    )
