"""Processors, load, the identity of this boot, and jumps of its clock."""

from __future__ import annotations

import os

from wslgpud.host import SourceError
from wslgpud.metrics import counter, gauge, info
from wslgpud.model import Event, Number, Reading, Sample
from wslgpud.sources import Source, decimal, parse_uint, readings
from wslgpud.words import say, template

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
#: A larger decrease is real (/proc/stat of a recreated container); node_exporter uses the same figure.
_MAX_BACK_SECONDS = 3.0
#: Order of the columns of /proc/stat. Guest time is omitted: the kernel includes it in user and nice.
_MODES = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")

CPU_SECONDS = counter(
    "cpu_seconds", "Time of all processors together, by mode; iowait with swap-in means thrashing.", "mode", decimals=2
)
CPUS = gauge("cpus", "Processors in use (under WSL2: processors= of .wslconfig).")
LOAD1 = gauge("load1", "Load average over 1 minute; above the processors: work queues up.", decimals=2)
LOAD5 = gauge("load5", "Load average over 5 minutes.", decimals=2)
LOAD15 = gauge("load15", "Load average over 15 minutes.", decimals=2)
RUNNING = gauge("processes_running", "Processes that are running or runnable.")
BLOCKED = gauge("processes_blocked", "Processes that wait for a disk; many of them while swapping: thrashing.")
BOOT_TIME = gauge(
    "boot_time_seconds",
    "When the machine (under WSL2: its virtual machine) started, in seconds since 1970; "
    "a restart changes it, and so does setting the clock.",
)
UPTIME = gauge("uptime_seconds", "Time since the machine started.", stored=False)
BOOT = info("boot", "Identity of this boot, and its kernel.", "boot_id", "kernel")
#: Line of /proc/stat with a single number -> metric.
_SINGLE = {"procs_running": RUNNING, "procs_blocked": BLOCKED, "btime": BOOT_TIME}


class CpuSource(Source):
    """/proc/stat, /proc/loadavg, /proc/uptime and the boot's identity."""

    name = "cpu"
    metrics = (CPU_SECONDS, CPUS, LOAD1, LOAD5, LOAD15, RUNNING, BLOCKED, BOOT_TIME, UPTIME, BOOT)

    _boot: Reading | None = None

    def _prepare(self) -> None:
        self._spent: dict[tuple[str, ...], Number] = {}

    def read(self) -> Sample:
        """Return the processors' times, the load and the boot; SourceError for another form of /proc/stat."""
        found = [self._never_less(reading) for reading in stat(self.host.read("/proc/stat"))]
        # Containers hide some of the other files; the rest is still useful.
        for path, specs in (("/proc/loadavg", (LOAD1, LOAD5, LOAD15)), ("/proc/uptime", (UPTIME,))):
            words = self.host.read_optional(path).split()
            found += readings(zip(specs, map(decimal, words), strict=False))
        if self._boot is None:  # cannot change while we run
            names = ("random/boot_id", "osrelease")
            labels = tuple(self.host.read_optional(f"/proc/sys/kernel/{name}").strip() for name in names)
            self._boot = Reading(BOOT, 1, labels)
        return Sample((*found, self._boot))

    def _never_less(self, reading: Reading) -> Reading:
        """Keep the previous value if a time decreases slightly, as iowait and idle may (see proc_stat(5)).

        Prometheus would take the decrease for a counter reset, and the whole value for new.
        """
        if reading.spec is not CPU_SECONDS:
            return reading
        before = self._spent.get(reading.labels, reading.value)
        if before - _MAX_BACK_SECONDS < reading.value < before:
            return reading._replace(value=before)
        self._spent[reading.labels] = reading.value
        return reading


def stat(text: str) -> list[Reading]:
    """Return the readings in /proc/stat; SourceError where it has no line about the processors."""
    found: list[Reading] = []
    processors = 0
    for line in text.splitlines():
        if line.startswith("intr"):  # thousands of numbers on a big machine
            continue
        name, _, rest = line.partition(" ")
        if name == "cpu":
            times = zip(_MODES, map(parse_uint, rest.split()), strict=False)
            found += [
                Reading(CPU_SECONDS, ticks / _TICKS_PER_SECOND, (mode,)) for mode, ticks in times if ticks is not None
            ]
        elif name.startswith("cpu"):
            processors += 1
        elif name in _SINGLE and (value := parse_uint(rest.strip())) is not None:
            found.append(Reading(_SINGLE[name], value))
    if not found or found[0].spec is not CPU_SECONDS:
        raise SourceError(say("/proc/stat does not begin with the processors' times"))
    return [*found, Reading(CPUS, processors)] if processors else found


#: Smaller jumps are harmless corrections by a time server.
_MIN_JUMP_SECONDS = 1.0
_FORWARD = template("the clock jumped forward by {seconds}")
_BACK = template("the clock jumped back by {seconds}")

JUMPS = counter(
    "clock_jumps",
    "Times the wall clock jumped against the monotonic one: the machine slept, or the time was set. Gaps in the "
    "history around a jump are no outage.",
)
LAST_JUMP = gauge(
    "clock_last_jump_seconds", "Size of the last jump of the wall clock; absent before the first.", stored=False
)


class ClockSource(Source):
    """Compares the two clocks at every tick: they part in sleep, hibernation and a paused virtual machine.

    A WSL2 virtual machine is paused by the hypervisor, not suspended, so CLOCK_BOOTTIME does not show it; after it
    resumes, the wall clock is set forward (hv_utils.timesync_implicit, WSL 2.1.1 and later).
    """

    name = "clock"
    fast = True  # a sleep must be known with the first sample after it
    metrics = (JUMPS, LAST_JUMP)

    _offset: float | None = None
    _jumps: int = 0
    _last: float | None = None

    def read(self) -> Sample:
        """Return the number of clock jumps, and an event if one just happened."""
        wall, mono = self.host.clock.wall(), self.host.clock.mono()
        before, self._offset = self._offset, wall - mono
        jump = 0.0 if before is None else self._offset - before
        events: tuple[Event, ...] = ()
        if abs(jump) > max(2 * self.config.sampling.interval_seconds, _MIN_JUMP_SECONDS):
            self._jumps += 1
            self._last = round(jump, 3)
            events = (Event("clock_jump", wall, _FORWARD if jump > 0 else _BACK, {"seconds": self._last}),)
        return Sample(tuple(readings([(JUMPS, self._jumps), (LAST_JUMP, self._last)])), events=events)
