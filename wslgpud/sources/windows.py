"""The Windows side of WSL2: Windows' memory, its virtual machine, its view of the GPUs.

Read either from the JSON of the probe or from windows_exporter.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from wslgpud.host import NoData, RecordedHost, SourceError
from wslgpud.metrics import MetricSpec, NameLimit, gauge
from wslgpud.model import GpuProcess, Reading, Sample
from wslgpud.probes import interop, windows_probe
from wslgpud.probes.supervisor import ProbeDown, Supervisor
from wslgpud.security import http_client
from wslgpud.security.redaction import address, parts, without
from wslgpud.sources import Source, parse_uint, table, windows_processes
from wslgpud.sources import readings as known
from wslgpud.words import MessageLike, cause, say
from wslgpud.words.units import one_line

#: a busy Windows answers within a second; the first answer includes the start of PowerShell and WMI
TIMEOUT_SECONDS, START_TIMEOUT_SECONDS = 15.0, 45.0
#: restart interval of PowerShell, to bound any leak: none has been observed over weeks
RENEW_SECONDS = 6 * 3600.0
#: how often to check whether interop has come back
LOOK_AGAIN_SECONDS = 60.0
EXPORTER_SECONDS = 4.0
#: where its memory shrinks, Windows is queried more often, to get this many answers before exhaustion
FASTEST_SECONDS, ANSWERS_BEFORE_END = 2.0, 8
#: a page with all collectors of a busy server has about 2 MB
MAX_BYTES = 8 << 20


TOTAL = gauge("windows_memory_total_bytes", "RAM of Windows, which is the host.")
AVAILABLE = gauge(
    "windows_memory_available_bytes", "RAM that Windows can still hand out, to programs and to this virtual machine."
)
COMMITTED = gauge(
    "windows_memory_committed_bytes",
    "Memory that Windows has committed; at the limit its programs fail, whether RAM is free or not.",
)
COMMIT_LIMIT = gauge(
    "windows_memory_commit_limit_bytes", "Windows' commit limit: RAM and page files at their present size."
)
POOL = gauge(
    "windows_memory_pool_nonpaged_bytes",
    "RAM held permanently by Windows' kernel and drivers; steady growth is a driver leak.",
)
VM = gauge("windows_vm_resident_bytes", "Windows' RAM held by the process of WSL's virtual machine (VmmemWSL).")
VM_UNRETURNED = gauge(
    "windows_vm_unreturned_bytes",
    "Of that, memory that Linux does not use: freed here, not yet returned to Windows (see autoMemoryReclaim).",
)
#: Their names hold that of the Windows user, or of the program that opened one.
_SESSION_NAMES = NameLimit("session of containers", "session", 8, summed=True)
CONTAINERS = gauge(
    "windows_containers_resident_bytes",
    "Windows' RAM held by a session of WSL's containers (wslc), a virtual machine of its own beside this one.",
    "session",
    names=(_SESSION_NAMES,),
)
GPU_SIZE = gauge("windows_gpu_dedicated_size_bytes", "Memory on the card, as Windows counts it.", "adapter")
GPU_DEDICATED = gauge("windows_gpu_dedicated_bytes", "Memory in use on the card, by all programs.", "adapter")
GPU_SHARED = gauge(
    "windows_gpu_shared_bytes",
    "Windows' RAM in use for the card; if it grows while the card is full, VRAM has been moved out, and programs "
    "become many times slower.",
    "adapter",
)
GPU_COMMITTED = gauge(
    "windows_gpu_committed_bytes", "Memory committed to programs for the card, on it or not.", "adapter"
)

#: Names of programs are chosen by whoever uses Windows.
_PROGRAM_NAMES = NameLimit("Windows program", "program", 24, summed=True)
GPU_PROGRAM = gauge(
    "windows_gpu_program_bytes",
    "Memory on the card in use by a Windows program, of the few that hold most; what programs share counts for each.",
    "adapter",
    "program",
    names=(_PROGRAM_NAMES,),
)

#: Metric -> its names in the probe and in windows_exporter. The probe's first is in kB.
_OF_WINDOWS = {
    TOTAL: ("TotalVisibleMemorySize", "windows_memory_physical_total_bytes"),
    AVAILABLE: ("AvailableBytes", "windows_memory_available_bytes"),
    COMMITTED: ("CommittedBytes", "windows_memory_committed_bytes"),
    COMMIT_LIMIT: ("CommitLimit", "windows_memory_commit_limit"),
    POOL: ("PoolNonpagedBytes", "windows_memory_pool_nonpaged_bytes"),
}
_OF_ADAPTERS = {
    GPU_SIZE: ("DedicatedVideoMemory", "windows_gpu_dedicated_video_memory_size_bytes"),
    GPU_DEDICATED: ("DedicatedUsage", "windows_gpu_adapter_memory_dedicated_bytes"),
    GPU_SHARED: ("SharedUsage", "windows_gpu_adapter_memory_shared_bytes"),
    GPU_COMMITTED: ("TotalCommitted", "windows_gpu_adapter_memory_committed_bytes"),
}
_INSTANCE = re.compile(r"(?:pid_(\d+)_)?luid_0x([0-9a-f]+)_0x([0-9a-f]+)_phys_\d+", re.IGNORECASE)
_LUID = re.compile(r"0x([0-9a-f]+)_0x([0-9a-f]+)", re.IGNORECASE)
_SAMPLE = re.compile(r"(?P<name>windows_\w+)(?:\{(?P<labels>.*)\})? (?P<value>\S+)(?: \d+)?")
# Anchored at the start of a name: otherwise a long word without "=" takes quadratic time, in which no other Python
# thread runs.
_LABEL = re.compile(r'(?<!\w)(\w{1,60})="((?:[^"\\]|\\.)*)"')
#: limit of a line; names in Windows have at most 255 characters
_MAX_LINE = 4000
#: limit of cards with a name or a use; each becomes five series that are kept for years
_MAX_ADAPTERS = 16
_NAME_CHARACTERS = 80

_Luid = tuple[int, int]
#: Known sizes, in bytes.
Sizes = Mapping[MetricSpec, int]


class Adapter(NamedTuple):
    """A GPU by Windows' counters."""

    luid: _Luid
    name: str
    sizes: Sizes
    #: Windows' largest programs on it, largest first
    programs: tuple[GpuProcess, ...] = ()


class Facts(NamedTuple):
    """``containers`` are the bytes that each session of WSL's containers holds."""

    sizes: Sizes
    adapters: tuple[Adapter, ...]
    containers: Mapping[str, int] = MappingProxyType({})


class WindowsSource(Source):
    """Queries a resident process in Windows, or windows_exporter, every few seconds."""

    name = "windows"
    lane = "windows"
    deadline_seconds = 5.0
    metrics = (*_OF_WINDOWS, VM, VM_UNRETURNED, CONTAINERS, *_OF_ADAPTERS, GPU_PROGRAM)

    def _prepare(self) -> None:
        self.period_seconds = self.config.windows.every_seconds
        self._probe: Supervisor | None = None
        self._renew_at = 0.0
        self._look_at = 0.0
        self._absence: MessageLike = ""
        self._before: tuple[float, float] | None = None

    def read(self) -> Sample:
        """Return Windows' current values; NoData outside WSL 2 and where this or interop is switched off."""
        facts = self._by_exporter() if self.config.windows.exporter_url else self._by_probe()
        now, left = self.host.clock.mono(), left_share(facts.sizes)
        every = self.config.windows.every_seconds
        self.period_seconds = every if left is None else next_period(every, self._before, (now, left))
        self._before = None if left is None else (now, left)
        return Sample(tuple(readings(facts, self._linux_used())))

    def close(self) -> None:
        """End the process in Windows by closing its input."""
        if self._probe is not None:
            self._probe.close()

    def ask(self) -> dict[str, Any]:
        """Return the probe's raw answer; NoData where Windows cannot be queried, or is not to be."""
        if isinstance(self.host, RecordedHost) and (recording := self.host.recording("windows.json")) is not None:
            recorded: dict[str, Any] = json.loads(recording.read_text(encoding="utf-8"))
            return recorded
        now = self.host.clock.mono()
        if self._probe is None or self._probe.pid is None:
            self._expect_windows(now)
            self._probe = self._probe or Supervisor(
                say("Windows probe"),
                interop.powershell_command(self.host, windows_probe.SCRIPT),
                timeout_seconds=TIMEOUT_SECONDS,
                start_timeout_seconds=START_TIMEOUT_SECONDS,
                environment=interop.environment(os.environ),
                cwd=self.host.path(interop.drive(self.host)),
                mono=self.host.clock.mono,
            )
            self._renew_at = now + RENEW_SECONDS
        elif now >= self._renew_at:
            self._renew_at = now + RENEW_SECONDS
            self._probe.renew()
        try:
            return self._probe.ask({})
        except ProbeDown as down:
            raise SourceError(down.message) from down

    def _by_probe(self) -> Facts:
        answer = self.ask()
        facts = from_probe(answer)
        if not any(facts):
            missing = answer.get("missing")
            reasons = sorted({str(r) for r in missing.values()}) if isinstance(missing, dict) else []
            why = "; ".join(reasons)[:300] or say("no reason given")
            raise SourceError("Windows reports nothing about itself: {why}", why=why)
        return facts

    def _expect_windows(self, now: float) -> None:
        """Check whether a Windows program can be started; not repeated for a minute if not."""
        if not self._absence or now >= self._look_at:
            off = self.config.windows.probe == "off"
            self._absence = say("switched off by windows.probe") if off else interop.absence(self.host)
            self._look_at = now + LOOK_AGAIN_SECONDS
        if self._absence:
            raise NoData(self._absence)

    def _by_exporter(self) -> Facts:
        url = self.config.windows.exporter_url
        try:
            exporter = http_client.parsed(url)
        except ValueError:  # an incomplete IPv6 address
            exporter = None
        if exporter is None or exporter.authorization:
            raise SourceError(
                say("windows.exporter_url must be like http://MYPC.local:9182/metrics, without a password")
            )
        shown = address(url)
        try:
            page = http_client.exchange(exporter, deadline_seconds=EXPORTER_SECONDS, max_bytes=MAX_BYTES)
        except (http_client.Unreachable, http_client.ErrorStatus) as error:
            # An error may repeat the URL, with a secret in it.
            hidden = without(str(error), parts(url))
            why = cause(error) if hidden == str(error) else hidden
            raise SourceError("windows_exporter at {url} cannot be read: {why}", url=shown, why=why) from error
        facts = from_exporter(page.decode("utf-8", "replace"))
        if not any(facts):
            raise SourceError(
                "{url} has no memory, gpu or process metrics; is it windows_exporter 0.31 or newer?", url=shown
            )
        return facts

    def _linux_used(self) -> int | None:
        """Return the RAM that this virtual machine has touched and not returned, page cache included."""
        levels = table(self.host.read_optional("/proc/meminfo"))
        total, free = parse_uint(levels.get("MemTotal")), parse_uint(levels.get("MemFree"))
        return None if total is None or free is None else (total - free) * 1024


def left_share(sizes: Sizes) -> float | None:
    """Return the share of RAM that Windows has left, or of its commit limit where that is less."""
    total, available = sizes.get(TOTAL), sizes.get(AVAILABLE)
    limit, committed = sizes.get(COMMIT_LIMIT), sizes.get(COMMITTED)
    ram = available / total if total and available is not None else None
    promises = max(0, limit - committed) / limit if limit and committed is not None else None
    return min((share for share in (ram, promises) if share is not None), default=None)


def next_period(every: float, before: tuple[float, float] | None, now: tuple[float, float]) -> float:
    """Return the seconds until the next query, from (time, share left) of the last answer and of this one.

    Shorter where memory will soon be scarce at this rate; never above half.
    """
    if before is None or now[0] <= before[0] or now[1] >= 0.5:
        return every
    rate = (before[1] - now[1]) / (now[0] - before[0])
    return every if rate <= 0 else max(min(every, FASTEST_SECONDS), min(every, now[1] / rate / ANSWERS_BEFORE_END))


def readings(facts: Facts, linux_used: int | None) -> Iterator[Reading]:
    yield from known([*facts.sizes.items(), (VM_UNRETURNED, unreturned_bytes(facts.sizes.get(VM), linux_used))])
    for session, size in facts.containers.items():
        yield Reading(CONTAINERS, size, (session,))
    for name, adapter in labelled(facts.adapters):
        yield from known(adapter.sizes.items(), name)
        for program in adapter.programs:
            yield from known([(GPU_PROGRAM, program.used_bytes)], name, program.name)


def from_probe(answer: Mapping[str, Any]) -> Facts:
    """Read an answer of the probe; anything malformed counts as unknown."""
    system, memory = (next(iter(_rows(answer, part)), {}) for part in ("system", "memory"))
    used: dict[_Luid, Mapping[str, Any]] = {}
    for row in _rows(answer, "gpu"):
        if match := _INSTANCE.fullmatch(str(row.get("Name"))):
            used[int(match[2], 16), int(match[3], 16)] = row
    named: dict[_Luid, Mapping[str, Any]] = {}
    for row in _rows(answer, "adapters"):
        if (number := _whole(row.get("Luid"))) is not None:
            named[number >> 32, number & 0xFFFFFFFF] = row
    programs = windows_processes.programs(
        ((int(match[2], 16), int(match[3], 16)), row.get("Program"), _whole(row.get("LocalUsage")))
        for row in _rows(answer, "programs")
        if (match := _INSTANCE.fullmatch(str(row.get("Name"))))
    )
    adapters = []
    for luid, row in used.items():
        about = named.get(luid, {})
        name, size = about.get("Name"), about.get("DedicatedVideoMemory")
        sizes = _sizes(_OF_ADAPTERS, 0, {**row, "DedicatedVideoMemory": size})
        adapters.append(Adapter(luid, name if isinstance(name, str) else "", sizes, programs.get(luid, ())))
    held = [
        (str(row.get("Name")), max(_whole(row.get(kind)) or 0 for kind in ("WorkingSet", "Private")))
        for row in _rows(answer, "vm")
    ]
    total = _whole(system.get("TotalVisibleMemorySize"))
    memory = {**memory, "TotalVisibleMemorySize": None if total is None else total * 1024}
    return Facts(_sizes(_OF_WINDOWS, 0, memory) | _vm(held), tuple(adapters), windows_processes.sessions(held))


def from_exporter(text: str) -> Facts:
    """Read a page of windows_exporter (0.31 or newer).

    https://github.com/prometheus-community/windows_exporter, docs/collector.gpu.md, .memory.md, .process.md
    """
    values: dict[str, int] = {}
    names: dict[_Luid, str] = {}
    cards: dict[_Luid, dict[str, int]] = {}
    held: dict[tuple[str, str], int] = {}
    on_cards: list[tuple[_Luid, str, int]] = []
    for line in text.splitlines():
        match = _SAMPLE.fullmatch(line) if len(line) <= _MAX_LINE else None
        try:
            value = _whole(float(match["value"])) if match else None
        except ValueError:
            continue
        if match is None or value is None:
            continue
        name, labels = match["name"], dict(_LABEL.findall(match["labels"] or ""))
        if luid := _LUID.fullmatch(labels.get("luid", "")):
            key = (int(luid[1], 16), int(luid[2], 16))
            if name == "windows_gpu_process_memory_local_bytes":
                on_cards.append((key, labels.get("process_id", ""), value))
                continue
            cards.setdefault(key, {})[name] = value
            if name == "windows_gpu_info":
                names[key] = labels.get("name", "")
        elif name in ("windows_process_working_set_bytes", "windows_process_private_bytes"):
            process = (labels.get("process", ""), labels.get("process_id", ""))
            held[process] = max(value, held.get(process, 0))
        elif not labels:
            values[name] = value
    sizes = [(process, size) for (process, _), size in held.items()]
    by_pid = {pid: process for process, pid in held}
    programs = windows_processes.programs((luid, by_pid.get(pid), size) for luid, pid, size in on_cards)
    adapters = (
        Adapter(luid, names.get(luid, ""), _sizes(_OF_ADAPTERS, 1, card), programs.get(luid, ()))
        for luid, card in cards.items()
    )
    return Facts(_sizes(_OF_WINDOWS, 1, values) | _vm(sizes), tuple(adapters), windows_processes.sessions(sizes))


def labelled(adapters: Iterable[Adapter]) -> list[tuple[str, Adapter]]:
    """Give each adapter a name that survives a restart of Windows, as its LUID does not; the second is ``NAME #2``.

    Adapters with neither name nor use are omitted: Windows' own software renderer.
    """
    seen = Counter[str]()
    found: list[tuple[str, Adapter]] = []
    real = (a for a in adapters if a.name or a.sizes.get(GPU_DEDICATED) or a.sizes.get(GPU_SHARED))
    for adapter in sorted(real, key=lambda a: a.luid)[:_MAX_ADAPTERS]:
        name = one_line(adapter.name, _NAME_CHARACTERS) or f"luid 0x{adapter.luid[0]:x}_0x{adapter.luid[1]:x}"
        seen[name] += 1
        found.append((name if seen[name] == 1 else f"{name} #{seen[name]}", adapter))
    return found


def unreturned_bytes(vm: int | None, linux_used: int | None) -> int | None:
    """Return what the virtual machine holds of Windows' RAM beyond what Linux uses (its page cache included).

    None where the process does not show its guest's memory, as in some versions of Windows
    (https://github.com/microsoft/WSL/issues/40705): then it shows less than half of what Linux uses.
    """
    if vm is None or linux_used is None or vm < linux_used / 2:
        return None
    return max(0, vm - linux_used)


def _sizes(names: Mapping[MetricSpec, tuple[str, str]], way: int, values: Mapping[str, Any]) -> dict[MetricSpec, int]:
    """Return the sizes among ``values``, in the names of the probe (0) or of windows_exporter (1)."""
    return {spec: size for spec, both in names.items() if (size := _whole(values.get(both[way]))) is not None}


def _vm(held: Iterable[tuple[str, int]]) -> dict[MetricSpec, int]:
    most = windows_processes.vm_bytes(held)
    return {VM: most} if most else {}


def _rows(answer: Mapping[str, Any], part: str) -> list[Mapping[str, Any]]:
    rows = answer.get(part)
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def _whole(value: object) -> int | None:
    """Return a number of bytes; Windows writes them as numbers, WMI's 64 bits sometimes as text.

    With a point or a comma the text depends on the language (9.663 may be nine thousand): unknown.
    """
    if isinstance(value, str):
        value = parse_uint(value)
    return int(value) if isinstance(value, (int, float)) and 0 <= value < 1 << 62 else None
