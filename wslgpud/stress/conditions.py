"""Gates: may a run begin, and must a running one leave? The rules, which are pure, then the facts, then the lock."""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import stat
from collections import Counter
from collections.abc import Container, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from wslgpud.config import Stress
from wslgpud.host import Host, NoData, SourceError
from wslgpud.model import GpuSample
from wslgpud.security import safe_files
from wslgpud.sources import parse_uint
from wslgpud.sources.processes import FRAMEWORK, MAX_FILES, short_command
from wslgpud.sources.procfs import Hangs, OwnedFiles, identity, process_stat
from wslgpud.words import Message, MessageError, MessageLike, cause, say

log = logging.getLogger(__name__)

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
#: utilization that counts as idle over the settle time: usually below the first, hardly ever above the second
IDLE_MEDIAN, IDLE_P95 = 0.05, 0.20
#: allowed variation of used memory meanwhile: a desktop's varies by some tens of MiB
STEADY_BYTES = 128 << 20
#: with less free than this share, a run would reveal little about the card
MIN_FREE_RATIO = 0.60
#: Before a guest died of a full card, NVML was silent for 33 s (microsoft/WSL#40732).
SILENT_SECONDS = 10.0
#: Folders for locks: the first writable one. Another user may use the first where we use the second.
LOCK_PLACES = ("/run/lock", "/tmp")  # noqa: S108 - shared on purpose
#: read limit of /proc/locks, some 20,000 locks; any user can create more, and an unseen lock proves nothing
_MAX_LOCKS_BYTES = 1 << 20


def obstacles(
    settings: Stress,
    samples: Sequence[GpuSample],
    *,
    holders: Sequence[str] = (),
    on_battery: bool | None = None,
    hung_since_boot: bool = False,
) -> Iterator[Message]:
    """Yield the reasons against starting a run now; ``samples`` of the settling time, oldest first."""
    if hung_since_boot:
        yield say("an earlier run's worker still hangs in the driver: restart WSL or the machine")
    if holders:
        yield say("programs are using the GPU: {programs}", programs=tuple(sorted(set(holders))[:5]))
    if on_battery:
        yield say("the machine is running on battery")
    yield from _of_card(samples, settings) if samples else [say("the GPU does not answer")]


def _of_card(samples: Sequence[GpuSample], settings: Stress) -> Iterator[Message]:
    last = samples[-1]
    if busy := sorted(s.utilization_ratio for s in samples if s.utilization_ratio is not None):
        middle, high = busy[len(busy) // 2], busy[int(0.95 * len(busy))]
        if middle >= IDLE_MEDIAN or high >= IDLE_P95:
            facts = {"busy_ratio": high, "past_seconds": settings.settle_seconds}
            yield say("the GPU is busy: {busy_ratio} in the last {past_seconds}", **facts)
    used = [s.used_bytes for s in samples if s.used_bytes is not None]
    if not used:
        yield say("the driver does not report how much memory is in use")
    elif (varied := max(used) - min(used)) > STEADY_BYTES:
        yield say("memory in use varies by {varied_bytes}", varied_bytes=varied)
    if last.free_bytes is not None and last.total_bytes:
        free = last.free_bytes / last.total_bytes
        if free < MIN_FREE_RATIO:
            yield say("only {free_ratio} of the memory is free", free_ratio=free)
        if settings.reserve_bytes >= last.free_bytes:
            yield say("stress.reserve_bytes leaves nothing of {free_bytes} to test", free_bytes=last.free_bytes)
    celsius = last.temperature_celsius
    if celsius is not None and celsius > settings.max_celsius:
        yield say("the GPU is hot: {celsius} °C", celsius=round(celsius))


def reason_to_leave(
    holders: Sequence[str] = (), *, waiting: bool = False, gpu_errors: bool = False, silent_seconds: float = 0.0
) -> MessageLike:
    """Return why a run must end; empty when it may continue.

    ``holders`` use the GPU (none did at the start), ``waiting``: a program waits for the lock file, ``gpu_errors``: the
    kernel log has new errors of the driver.
    """
    if waiting:
        return say("a program is waiting for the GPU's lock file")
    if holders:
        return say("{program} wants the GPU", program=holders[0])
    if gpu_errors:
        return say("the kernel reports errors of the GPU driver")
    if silent_seconds > SILENT_SECONDS:
        return say("the driver has not answered for {silent_seconds}", silent_seconds=silent_seconds)
    return ""


def users(files: OwnedFiles, own_pid: int, known: Container[str] | None = None) -> list[str]:
    """Return the programs that compute on a GPU, except our own children, as "name (pid 42)".

    With ``known``, the processes at an earlier moment, also those that have started since and loaded CUDA or a
    framework for it. Loading torch takes at least a second before it allocates on the GPU: enough time for us to leave,
    whereas its first allocation would otherwise fail.

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
            computes = any(host.link(f"/proc/{pid}/fd/{number}") == device for number in descriptors)
            if not computes and (known is None or pid in known):
                continue
            row = process_stat(host, int(pid))
            if row is None or row.parent == own_pid or row.name in BYSTANDERS:
                continue
            shown = f"{short_command(files, row.pid) or row.name} (pid {pid})"
            if OUR_PROBE not in shown and (computes or _loads_cuda(files, row.pid)):
                programs.append(shown)
    return sorted(programs)


def _loads_cuda(files: OwnedFiles, pid: int) -> bool:
    """Return whether a process has loaded CUDA; one that does not let us see what it has loaded counts as well."""
    try:
        maps = files.text(pid, "maps")
    except Hangs:
        return True
    return bool(FRAMEWORK.search(maps)) or (CUDA_LIBRARY in maps and MANAGEMENT_LIBRARY not in maps)


def _open_files(host: Host, pid: int, looked: Counter[frozenset[int]]) -> list[str]:
    """Return the open files of a process to inspect, none if hidden; ``looked`` is the cost so far, by user.

    Counted by real user, which setuid programs cannot change: opening too many hides only the user's own. Listing a
    folder of /proc costs as much as a thousand reads, so once the budget is spent the first numbers are assumed.
    """
    folder, first = f"/proc/{pid}/fd", [str(number) for number in range(MANY_FILES)]
    who = identity(host, pid) if looked else None
    if who is not None and looked[who.uids] >= MAX_FILES_A_USER:
        return first
    try:
        descriptors = host.names(folder, MAX_FILES)
    except (NoData, SourceError):  # another user's, whose maps we may see all the same (CAP_SYS_PTRACE)
        return []
    if len(descriptors) <= MANY_FILES or (who := who or identity(host, pid)) is None:
        return descriptors[:MANY_FILES]
    looked[who.uids] += len(descriptors)
    return descriptors


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


class LockError(MessageError):
    """A card's lock file cannot be used; the message names the file and the remedy."""


class LockEntry(NamedTuple):
    """A process's part in a lock: held or waited for."""

    pid: int
    waits: bool


def lock_entries(text: str, device: int, inode: int) -> list[LockEntry]:
    """Return the holders of and waiters for a file lock (flock(2)), from the text of /proc/locks.

    Format: https://man7.org/linux/man-pages/man5/proc_locks.5.html. Pids are those of the reader's namespace.
    """
    place = f"{os.major(device):02x}:{os.minor(device):02x}:{inode}"
    entries = []
    for line in text.splitlines():
        words = line.split()
        waits = "->" in words
        # The last line may be cut off at our limit: within its inode it would name another file.
        if len(words) >= 7 + waits and words[5 + waits] == place and words[1 + waits] == "FLOCK":
            entries.append(LockEntry(parse_uint(words[4 + waits]) or 0, waits))
    return entries


class GpuLock:
    """One card's lock.

    ``flock -s /run/lock/wslgpud-gpu0.lock python train.py`` is all that a training needs: it prevents runs, and if it
    starts during one, the run sees it waiting and ends.
    """

    def __init__(self, index: int, folder: str | Path | None = None) -> None:
        place = folder or next((p for p in LOCK_PLACES if os.access(p, os.W_OK)), LOCK_PLACES[-1])
        self.path = Path(place) / f"wslgpud-gpu{index}.lock"

    @contextlib.contextmanager
    def held(self) -> Iterator[bool]:
        """Hold the lock inside; False if another process holds it.

        Raises LockError: not a regular file, or no access.
        """
        try:
            descriptor = self._open()
        except OSError as error:
            remedy = f"sudo {'chmod a+r' if isinstance(error, PermissionError) else 'rm -r'} {self.path}"
            facts = {"path": str(self.path), "why": cause(error), "remedy": remedy}
            raise LockError("the lock file {path} cannot be used, {why}: {remedy}", **facts) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            yield False
            return
        try:
            yield True
        finally:
            os.close(descriptor)

    def _open(self) -> int:
        # No O_CREAT on an existing file: in a sticky folder the kernel rejects that for others' files, even for root
        # (fs.protected_regular). Read-only, as the file may belong to another user's flock(1).
        with contextlib.suppress(FileNotFoundError):
            return safe_files.open_plain(self.path)
        try:
            descriptor = safe_files.open_plain(self.path, os.O_CREAT | os.O_EXCL)
        except FileExistsError:  # another run has just created it
            return safe_files.open_plain(self.path)
        os.fchmod(descriptor, 0o666)  # whatever the umask: every user's training must be able to take it
        return descriptor

    def wanted(self, host: Host) -> bool:
        return any(entry.waits for entry in self._entries(host))

    def holders(self, host: Host) -> list[MessageLike]:
        """Return the holders, as "name (pid 42)"."""
        pids = [entry.pid for entry in self._entries(host) if not entry.waits]
        return [
            f"{who.name} (pid {pid})"
            if (who := identity(host, pid))
            else say("a process that has ended (pid {pid})", pid=pid)
            for pid in pids
        ]

    def _entries(self, host: Host) -> list[LockEntry]:
        with contextlib.suppress(OSError, NoData, SourceError):
            if stat.S_ISREG((status := self.path.lstat()).st_mode):
                return lock_entries(host.head("/proc/locks", _MAX_LOCKS_BYTES), status.st_dev, status.st_ino)
        return []
