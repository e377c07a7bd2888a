"""Processors, load, and which boot of the machine this is."""

from __future__ import annotations

import os
from typing import ClassVar

from wslgpud.config import Config
from wslgpud.host import Host, NoData, SourceError
from wslgpud.metrics import MetricSpec
from wslgpud.model import Number, Reading, Sample
from wslgpud.sources import Source
from wslgpud.sources.text import decimal, whole
from wslgpud.words import say

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
#: A fall of more is real (/proc/stat of a container, made anew); node_exporter has the same figure.
_MOST_BACK_SECONDS = 3.0
#: Order of the columns of /proc/stat. Guest time is left out: the kernel counts it within user and nice.
_MODES = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")

CPU_SECONDS = MetricSpec(
    "cpu_seconds", "counter", "seconds",
    "Time of all processors together, by mode; iowait with swap-in is a machine that thrashes.",
    ("mode",), decimals=2,
)  # fmt: skip
CPUS = MetricSpec("cpus", "gauge", "", "Processors in use (under WSL2: processors= of .wslconfig).")
LOAD1 = MetricSpec("load1", "gauge", "", "Load average over 1 minute; above the processors: work queues up.",
                   decimals=2)  # fmt: skip
LOAD5 = MetricSpec("load5", "gauge", "", "Load average over 5 minutes.", decimals=2)
LOAD15 = MetricSpec("load15", "gauge", "", "Load average over 15 minutes.", decimals=2)
RUNNING = MetricSpec("processes_running", "gauge", "", "Processes that run or want to.")
BLOCKED = MetricSpec(
    "processes_blocked",
    "gauge",
    "",
    "Processes that wait for a disk; many of them while swapping: thrashing.",
)
BOOT_TIME = MetricSpec(
    "boot_time_seconds", "gauge", "seconds",
    "When the machine (under WSL2: its virtual machine) started, in seconds since 1970; "
    "a restart changes it, and so does setting the clock.",
)  # fmt: skip
UPTIME = MetricSpec(
    "uptime_seconds", "gauge", "seconds", "How long the machine runs.", decimals=2, stored=False
)
BOOT = MetricSpec(
    "boot", "info", "", "Which boot this is, and of which kernel.", ("boot_id", "kernel"), stored=False
)  # fmt: skip


class CpuSource(Source):
    """/proc/stat, /proc/loadavg, /proc/uptime and the boot's identity."""

    name: ClassVar[str] = "cpu"
    metrics: ClassVar[tuple[MetricSpec, ...]] = (
        CPU_SECONDS, CPUS, LOAD1, LOAD5, LOAD15, RUNNING, BLOCKED, BOOT_TIME, UPTIME, BOOT,
    )  # fmt: skip

    _boot: Reading | None = None

    def __init__(self, host: Host, config: Config) -> None:
        """Nothing is read yet."""
        super().__init__(host, config)
        self._spent: dict[tuple[str, ...], Number] = {}

    def read(self) -> Sample:
        """Return what is known now.

        Raises:
            NoData: there is no /proc.
            SourceError: /proc/stat is not what it should be.
        """
        readings = [self._never_less(reading) for reading in stat(self.host.read("/proc/stat"))]
        readings += self._optional("/proc/loadavg", (LOAD1, LOAD5, LOAD15))
        readings += self._optional("/proc/uptime", (UPTIME,))
        if self._boot is None:  # cannot change while we run
            self._boot = Reading(
                BOOT,
                1,
                (self._line("/proc/sys/kernel/random/boot_id"), self._line("/proc/sys/kernel/osrelease")),
            )
        return Sample((*readings, self._boot))

    def _never_less(self, reading: Reading) -> Reading:
        """Hold a time that went back a little, as iowait and idle do in the kernel: proc_stat(5) warns of it.

        Prometheus would take it for a counter that began anew, and all that it shows for what has just come.
        """
        if reading.spec is not CPU_SECONDS:
            return reading
        before = self._spent.get(reading.labels, reading.value)
        if before - _MOST_BACK_SECONDS < reading.value < before:
            return reading._replace(value=before)
        self._spent[reading.labels] = reading.value
        return reading

    def _optional(self, path: str, specs: tuple[MetricSpec, ...]) -> list[Reading]:
        words = self._line(path).split()
        return [
            Reading(spec, value)
            for spec, word in zip(specs, words, strict=False)
            if (value := decimal(word)) is not None
        ]

    def _line(self, path: str) -> str:
        try:
            return self.host.read(path).strip()
        except (NoData, SourceError):
            return ""  # containers hide some of these; the rest is worth having


def stat(text: str) -> list[Reading]:
    """Return the readings in /proc/stat.

    Raises:
        SourceError: it has no line about the processors.
    """
    readings: list[Reading] = []
    processors = 0
    single: dict[str, MetricSpec] = {"procs_running": RUNNING, "procs_blocked": BLOCKED, "btime": BOOT_TIME}
    for line in text.splitlines():
        if line.startswith("cpu"):
            if line.startswith("cpu "):
                readings += _modes(line.split()[1:])
            else:
                processors += 1
        elif not line.startswith("intr"):  # thousands of numbers on a big machine
            name, _, rest = line.partition(" ")
            if name in single and (value := whole(rest.strip())) is not None:
                readings.append(Reading(single[name], value))
    if not readings or readings[0].spec is not CPU_SECONDS:
        raise SourceError(say("/proc/stat does not begin with the processors' times"))
    if processors:
        readings.append(Reading(CPUS, processors))
    return readings


def _modes(words: list[str]) -> list[Reading]:
    readings = []
    for mode, word in zip(_MODES, words, strict=False):
        value: Number | None = whole(word)
        if value is not None:
            readings.append(Reading(CPU_SECONDS, value / _TICKS_PER_SECOND, (mode,)))
    return readings
