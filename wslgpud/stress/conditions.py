"""The facts for the gates: recent samples, users of the GPU, power, a hung worker."""

from __future__ import annotations

import contextlib
import json
import logging
import threading
from collections import Counter, deque
from collections.abc import Collection, Container, Iterable, Iterator
from pathlib import Path

from wslgpud.host import Host, NoData, SourceError
from wslgpud.model import Event, GpuSample, Number, Reading
from wslgpud.security import safe_files
from wslgpud.sources import gpu as gpu_source
from wslgpud.sources.identity import identity
from wslgpud.sources.owned_files import Hangs, OwnedFiles
from wslgpud.sources.processes import FRAMEWORK, MAX_FILES, short_command
from wslgpud.stress.telemetry import Course, followed

log = logging.getLogger(__name__)

#: samples kept: more than the longest settle time is useless
MAX_SAMPLES = 4000
#: Programs that have the device open without computing on it.
BYSTANDERS = {
    *("nvidia-smi", "nvtop", "nvitop", "gpustat", "nvidia-persiste", "nvidia-settings", "dcgm-exporter"),
    *("nv-hostengine", "Xwayland", "Xorg", "weston", "gnome-shell", "kwin_wayland", "kwin_x11", "plasmashell"),
}
#: Open files inspected per process, and in total for all processes of a user that have more.
MANY_FILES, MAX_FILES_A_USER = 64, 1 << 14
#: CUDA programs open the first; NVML and desktops do not. WSL has only the second, for all of them.
CUDA_DEVICE, WSL_DEVICE = "/dev/nvidia-uvm", "/dev/dxg"
#: file in the state folder that records a hung worker and its boot
_HUNG, _MAX_NOTE_BYTES, _BOOT_ID = "stress-hung.json", 4096, "/proc/sys/kernel/random/boot_id"
#: under WSL2 a daemon's probe has the device open as well
OUR_PROBE = "wslgpud.probes"
#: Monitors such as nvidia-smi, under any name, load the first only for its version.
CUDA_LIBRARY, MANAGEMENT_LIBRARY = "/libcuda.so", "/libnvidia-ml.so"


class Recent:
    """The last minutes of each GPU. Written by one thread, read by another."""

    def __init__(self) -> None:
        self._samples: dict[str, deque[tuple[float, GpuSample]]] = {}
        #: the last sample's readings, parsed only when a run asks: that would take a tenth of each tick
        self._unread: Iterable[Reading] = ()
        self._facts: dict[str, dict[str, Number]] = {}
        self._drivers: dict[str, str] = {}
        self._courses: dict[str, Course] = {}
        self._lock = threading.Lock()
        self.last_jump_mono: float | None = None
        self.last_error_mono: float | None = None

    def add(
        self, mono: float, gpus: Collection[GpuSample], readings: Iterable[Reading] = (), events: Iterable[Event] = ()
    ) -> None:
        with self._lock:
            for sample in gpus:
                self._samples.setdefault(sample.uuid, deque(maxlen=MAX_SAMPLES)).append((mono, sample))
            if gpus:
                self._unread = readings
            if self._courses:
                self._read()
        for event in events:
            if event.kind == "clock_jump":
                self.last_jump_mono = mono
            elif event.kind in ("dxg_error", "nvidia_xid"):
                self.last_error_mono = mono

    def _read(self) -> None:
        readings, self._unread = tuple(self._unread), ()
        for uuid, facts in followed(readings).items():
            self._facts[uuid] = facts
            if uuid in self._courses:
                self._courses[uuid].add(facts)
        for spec, _, labels in readings:
            if spec is gpu_source.INFO:
                card = dict(zip(spec.labels, labels, strict=True))
                self._drivers[card["uuid"]] = card["driver_version"]

    def driver(self, uuid: str) -> str:
        """Return the version of a card's driver, empty where it is not known."""
        with self._lock:
            self._read()
            return self._drivers.get(uuid, "")

    def since(self, uuid: str, mono: float) -> list[GpuSample]:
        with self._lock:
            return [sample for at, sample in self._samples.get(uuid, ()) if at >= mono]

    def watched_since(self, uuid: str) -> float:
        """Return the monotonic time of a card's oldest sample."""
        with self._lock:
            return self._samples[uuid][0][0]

    def last(self, uuid: str) -> tuple[float, GpuSample] | None:
        with self._lock:
            known = self._samples.get(uuid)
            return known[-1] if known else None

    @contextlib.contextmanager
    def following(self, uuid: str) -> Iterator[Course]:
        with self._lock:
            self._read()
            course = self._courses[uuid] = Course(first=dict(self._facts.get(uuid, {})))
        try:
            yield course
        finally:
            with self._lock:
                del self._courses[uuid]

    def gpus(self) -> list[GpuSample]:
        with self._lock:
            return sorted((known[-1][1] for known in self._samples.values()), key=lambda s: s.index)


def users(files: OwnedFiles, own_pid: int) -> list[str]:
    """Return the programs that compute on a GPU, except our own children, as "name (pid 42)".

    An unprivileged daemon cannot see other users' open files; their memory and load still show.
    """
    host = files.host
    device = WSL_DEVICE if host.exists(WSL_DEVICE) else CUDA_DEVICE
    programs, looked = [], Counter[frozenset[int]]()
    for pid in filter(str.isdecimal, host.names("/proc")):
        with contextlib.suppress(NoData, SourceError):
            if int(pid) == own_pid:
                continue
            descriptors = _open_files(host, int(pid), looked)
            if any(host.link(f"/proc/{pid}/fd/{number}") == device for number in descriptors):
                name, parent, shown = _described(files, pid)
                if parent != own_pid and OUR_PROBE not in shown and name not in BYSTANDERS:
                    programs.append(shown)
    return sorted(programs)


def _described(files: OwnedFiles, pid: str) -> tuple[str, int, str]:
    """Return a process's kernel name, its parent, and its display name."""
    head, _, rest = files.host.read(f"/proc/{pid}/stat").rpartition(")")
    name = head.partition("(")[2]
    return name, int(rest.split()[1]), f"{short_command(files, int(pid)) or name} (pid {pid})"


def _open_files(host: Host, pid: int, looked: Counter[frozenset[int]]) -> list[str]:
    """Return the open files of a process to inspect; ``looked`` is the cost so far, by user.

    Counted by real user, which setuid programs cannot change: opening too many hides only the user's own. Listing a
    folder of /proc costs as much as a thousand reads, so once the budget is spent the first numbers are assumed.
    """
    folder, first = f"/proc/{pid}/fd", [str(number) for number in range(MANY_FILES)]
    who = identity(host, pid) if looked else None
    if who is not None and looked[who.uids] >= MAX_FILES_A_USER:
        return first
    descriptors = host.names(folder, MAX_FILES)
    if len(descriptors) <= MANY_FILES or (who := who or identity(host, pid)) is None:
        return descriptors[:MANY_FILES]
    looked[who.uids] += len(descriptors)
    return descriptors


def newcomers(files: OwnedFiles, known: Container[str], own_pid: int) -> list[str]:
    """Return the programs started since ``known`` was listed that have loaded CUDA or a framework for it.

    Loading torch takes at least a second before it allocates on the GPU: enough time for us to leave, whereas its first
    allocation would otherwise fail. One that does not let us see what it has loaded counts as well.
    """
    programs = []
    for pid in filter(str.isdecimal, files.host.names("/proc")):
        with contextlib.suppress(NoData, SourceError):
            if pid in known:
                continue
            name, parent, shown = _described(files, pid)
            if parent == own_pid or name in BYSTANDERS:
                continue
            try:
                maps = files.text(int(pid), "maps")
            except Hangs:
                maps = CUDA_LIBRARY
            if FRAMEWORK.search(maps) or (CUDA_LIBRARY in maps and MANAGEMENT_LIBRARY not in maps):
                programs.append(shown)
    return sorted(programs)


def on_battery(host: Host) -> bool | None:
    folder, names, facts = "/sys/class/power_supply", [], ("type", "online", "status", "scope")
    with contextlib.suppress(NoData, SourceError):
        names = host.names(folder)
    supplies = [{fact: host.read_optional(f"{folder}/{name}/{fact}").strip() for fact in facts} for name in names]
    mains = [supply["online"] == "1" for supply in supplies if supply["type"] == "Mains" and supply["online"]]
    # The battery of a mouse is always discharging; the machine's own have no scope.
    own = [supply["status"] for supply in supplies if supply["type"] == "Battery" and supply["scope"] != "Device"]
    return not any(mains) if mains else "Discharging" in own or None


def note_hung(state_folder: Path, host: Host, pid: int) -> None:
    """Record for later daemons that a worker could not be killed; if that fails, its run still counts."""
    try:
        note = {"boot": host.read(_BOOT_ID).strip(), "pid": pid}
        safe_files.put(state_folder / _HUNG, json.dumps(note), mode=0o644)
    except (OSError, NoData, SourceError) as error:
        log.warning("after a restart the hung worker %d will be unknown: %s", pid, error)


def still_hung(state_folder: Path, host: Host) -> bool:
    """Return whether a recorded worker still hangs; a record of an earlier boot or an ended process is dropped."""
    file = state_folder / _HUNG
    with contextlib.suppress(OSError, ValueError, KeyError):
        note = safe_files.parsed(safe_files.contents(file, _MAX_NOTE_BYTES))
        if note["boot"] == host.read(_BOOT_ID).strip() and host.exists(f"/proc/{note['pid']}"):
            return True
        file.unlink()
    return False
