"""What lies on the other side of WSL2: Windows' memory, its virtual machine, its view of the GPUs."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

from wslgpud.host import NoData, RecordedHost, SourceError
from wslgpud.metrics import gauge
from wslgpud.model import Reading, Sample
from wslgpud.probes import interop, windows_probe
from wslgpud.probes.supervisor import ProbeDown, Supervisor
from wslgpud.security import http_client
from wslgpud.security.redaction import address, parts, without
from wslgpud.sources import Source
from wslgpud.sources.text import readings as known
from wslgpud.sources.text import table, whole
from wslgpud.sources.windows_facts import Facts, from_exporter, from_probe, labelled, unreturned_bytes
from wslgpud.words import Message, MessageLike, cause, say

#: a busy Windows answers in a second; the first answer takes the start of PowerShell and of WMI as well
TIMEOUT_SECONDS, START_TIMEOUT_SECONDS = 15.0, 45.0
#: nobody has watched a PowerShell for weeks: a new one from time to time bounds whatever it may leak
RENEW_SECONDS = 6 * 3600.0
#: how often to look whether interop has come back
LOOK_AGAIN_SECONDS = 60.0
EXPORTER_SECONDS = 4.0
#: a page with all collectors on a busy server has about 2 MB
MOST_BYTES = 8 << 20


TOTAL = gauge("windows_memory_total_bytes", "RAM of Windows, which is the host.")
AVAILABLE = gauge(
    "windows_memory_available_bytes", "RAM that Windows can still hand out, to programs and to this virtual machine."
)
COMMITTED = gauge(
    "windows_memory_committed_bytes",
    "Memory that Windows has promised; at the limit its programs fail, with free RAM or without.",
)
COMMIT_LIMIT = gauge(
    "windows_memory_commit_limit_bytes", "What Windows can promise: RAM and page files as they are now."
)
POOL = gauge(
    "windows_memory_pool_nonpaged_bytes",
    "RAM that Windows' kernel and drivers hold for good; steady growth is a leak of a driver.",
)
VM = gauge("windows_vm_resident_bytes", "What the process of WSL's virtual machine (VmmemWSL) holds of Windows' RAM.")
VM_UNRETURNED = gauge(
    "windows_vm_unreturned_bytes",
    "Of that, what Linux does not use: freed here, not yet back in Windows (see autoMemoryReclaim).",
)
GPU_SIZE = gauge("windows_gpu_dedicated_size_bytes", "Memory on the card, as Windows counts it.", "adapter")
GPU_DEDICATED = gauge("windows_gpu_dedicated_bytes", "Memory on the card in use, by everybody.", "adapter")
GPU_SHARED = gauge(
    "windows_gpu_shared_bytes",
    "RAM of Windows in use for the card; growing while the card is full, it is VRAM that has been moved out, "
    "and programs get many times slower.",
    "adapter",
)
GPU_COMMITTED = gauge(
    "windows_gpu_committed_bytes", "Memory that programs were promised for the card, on it or not.", "adapter"
)

#: Metric -> field of ``Facts``.
_OF_WINDOWS = {
    TOTAL: "total",
    AVAILABLE: "available",
    COMMITTED: "committed",
    COMMIT_LIMIT: "commit_limit",
    POOL: "pool_nonpaged",
    VM: "vm",
}
#: Metric -> field of ``Adapter``.
_OF_ADAPTERS = {GPU_SIZE: "size", GPU_DEDICATED: "dedicated", GPU_SHARED: "shared", GPU_COMMITTED: "committed"}


class WindowsSource(Source):
    """Asks a resident process in Windows, or windows_exporter, every few seconds."""

    name = "windows"
    lane = "windows"
    deadline_seconds = 5.0
    metrics = (*_OF_WINDOWS, VM_UNRETURNED, *_OF_ADAPTERS)

    def _prepare(self) -> None:
        self.period_seconds = self.config.windows.every_seconds
        self._probe: Supervisor | None = None
        self._renew_at = 0.0
        self._look_at = float("-inf")
        self._absence: MessageLike = ""

    def read(self) -> Sample:
        """Return what Windows tells now; NoData outside WSL 2 and where this or interop is switched off."""
        facts = self._by_exporter() if self.config.windows.exporter_url else self._by_probe()
        return Sample(tuple(readings(facts, self._linux_used())))

    def close(self) -> None:
        """End the process in Windows, by ending what it reads."""
        if self._probe is not None:
            self._probe.close()

    def ask(self) -> dict[str, Any]:
        """Return the probe's answer as it came; NoData where there is no Windows to be asked, or it is not wanted."""
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
            raise SourceError(down.said) from down

    def _by_probe(self) -> Facts:
        answer = self.ask()
        facts = from_probe(answer)
        if facts == Facts():
            missing = answer.get("missing")
            reasons = sorted({str(r) for r in missing.values()}) if isinstance(missing, dict) else []
            why = "; ".join(reasons)[:300] or say("no reason given")
            raise SourceError("Windows reports nothing about itself: {why}", why=why)
        return facts

    def _expect_windows(self, now: float) -> None:
        """Look whether a Windows program can be started; not again for a minute when it cannot."""
        if now >= self._look_at:
            self._absence = self._why_not()
            self._look_at = now + LOOK_AGAIN_SECONDS if self._absence else now
        if self._absence:
            raise NoData(self._absence)

    def _why_not(self) -> MessageLike:
        if self.config.windows.probe == "off":
            return say("switched off by windows.probe")
        # Somebody else's machine in a folder: a program that lies there is not to be run.
        if self.host.recorded:
            return say("nothing of Windows was recorded")
        if not interop.works(self.host):
            on_wsl = self.host.exists("/dev/dxg") or self.host.exists("/run/WSL")
            return Message(interop.OFF) if on_wsl else say("this is not WSL2")
        path = interop.powershell(self.host)
        return "" if self.host.exists(path) else say("there is no {path}", path=path)

    def _by_exporter(self) -> Facts:
        url = self.config.windows.exporter_url
        try:
            exporter = http_client.parsed(url)
        except ValueError:  # half an IPv6 address
            exporter = None
        if exporter is None or exporter.authorization:
            raise SourceError(
                say("windows.exporter_url must be like http://MYPC.local:9182/metrics, without a password")
            )
        shown = address(url)
        try:
            page = http_client.exchange(exporter, deadline_seconds=EXPORTER_SECONDS, most_bytes=MOST_BYTES)
        except (http_client.Unreachable, http_client.Refused) as error:
            # A server may say the address back, with a secret in it.
            told = without(str(error), parts(url))
            why = cause(error) if told == str(error) else told
            raise SourceError("windows_exporter at {url} cannot be read: {why}", url=shown, why=why) from error
        facts = from_exporter(page.decode("utf-8", "replace"))
        if facts == Facts():
            raise SourceError(
                "{url} has no memory, gpu or process metrics; is it windows_exporter 0.31 or newer?", url=shown
            )
        return facts

    def _linux_used(self) -> int | None:
        """Return the RAM that this virtual machine has touched and not freed, page cache included."""
        levels = table(self.host.read_optional("/proc/meminfo"))
        total, free = whole(levels.get("MemTotal")), whole(levels.get("MemFree"))
        return None if total is None or free is None else (total - free) * 1024


def readings(facts: Facts, linux_used: int | None) -> Iterator[Reading]:
    """Turn what is known into readings."""
    whole_machine = [(spec, getattr(facts, field)) for spec, field in _OF_WINDOWS.items()]
    yield from known([*whole_machine, (VM_UNRETURNED, unreturned_bytes(facts.vm, linux_used))])
    for name, adapter in labelled(facts.adapters):
        yield from known([(spec, getattr(adapter, field)) for spec, field in _OF_ADAPTERS.items()], name)
