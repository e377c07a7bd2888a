"""Disks: I/O of block devices, and free space of the relevant file systems.

Three sources, because a Windows file system (9p, virtiofs) may hang for minutes and must not block the others.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import PurePosixPath
from typing import NamedTuple

from wslgpud.config import state_folder
from wslgpud.host import Host, NoData, SourceError
from wslgpud.metrics import counter, gauge
from wslgpud.model import Reading, Sample
from wslgpud.sources import Source, parse_uint, readings
from wslgpud.words import say

_MAX_DEVICES = 8
_MAX_VOLUMES = 4
#: Whole disks; partitions, loop and RAM devices would count the same bytes again.
_DISK = re.compile(r"(sd[a-z]+|vd[a-z]+|xvd[a-z]+|hd[a-z]+|nvme\d+n\d+|mmcblk\d+|pmem\d+|zram\d+)")
_DRIVE = re.compile(r"[A-Za-z]:\\?")
WINDOWS_TYPES = frozenset({"9p", "virtiofs", "drvfs"})
#: Roles of processes that read data sets; Windows drives are many times slower, and the GPU waits.
READERS = frozenset({"training", "gpu"})
_MAX_FILES = 2000


#: Column of /proc/diskstats after the name -> metric; the factor follows from the unit.
_COLUMNS = {
    column: counter(name, text, "device", decimals=3 if name.endswith("seconds") else 0)
    for column, name, text in (
        (0, "disk_reads_completed", "Reads completed."),
        (2, "disk_read_bytes", "Bytes read from the device."),
        (3, "disk_read_time_seconds", "Total time of reads."),
        (4, "disk_writes_completed", "Writes completed."),
        (6, "disk_written_bytes", "Bytes written to the device."),
        (7, "disk_write_time_seconds", "Total time of writes."),
        (9, "disk_io_time_seconds", "Time in which the device was busy; a rate near 1 is a full disk queue."),
    )
}
_WORTH = {"": 1, "bytes": 512, "seconds": 0.001}  # a sector is 512 bytes here, whatever the device's sector size

_PLACE = ("mountpoint", "fstype")
SIZE = gauge("filesystem_size_bytes", "Size of the file system.", *_PLACE)
AVAILABLE = gauge(
    "filesystem_avail_bytes",
    "Space that programs may still write. Under WSL2 the root shows up to 1 TB whatever Windows has left: the Windows "
    "drive that holds ext4.vhdx is the real limit.",
    *_PLACE,
)
FILES = gauge("filesystem_files", "Inodes of the file system.", *_PLACE)
FILES_FREE = gauge("filesystem_files_free", "Inodes left; none left reads as a full disk.", *_PLACE)
READ_ONLY = gauge(
    "filesystem_readonly",
    "1 when nothing can be written; the root of a WSL2 distro turns so when its virtual disk fails.",
    *_PLACE,
)


class Mount(NamedTuple):
    """One line of /proc/1/mounts."""

    device: str
    point: str
    type: str
    options: tuple[str, ...]

    @property
    def windows(self) -> bool:
        """Return whether this is a Windows drive seen from WSL."""
        return self.type in WINDOWS_TYPES and (
            bool(_DRIVE.fullmatch(self.device))
            or any("drvfs" in option for option in (self.device, *self.options))
            # virtiofs shows a tag instead of the drive letter, and no specific options
            or (self.type == "virtiofs" and len(PurePosixPath(self.point).name) == 1)
        )


class DiskSource(Source):
    """/proc/diskstats."""

    name = "disk"
    metrics = tuple(_COLUMNS.values())

    def read(self) -> Sample:
        """Return the counters of at most eight disks."""
        return Sample(tuple(diskstats(self.host.read("/proc/diskstats"))))


class FilesystemSource(Source):
    """Space on the root file system and on that of our own data."""

    name = "filesystem"
    lane = "filesystem"
    period_seconds = 10.0
    deadline_seconds = 2.0
    metrics = (SIZE, AVAILABLE, FILES, FILES_FREE, READ_ONLY)

    def read(self) -> Sample:
        found = _mounts(self.host)
        places = {m.point: m for path in ("/", self._state()) if (m := holder(found, path)) and not m.windows}
        return Sample(tuple(space(self.host, list(places.values()))))

    def _state(self) -> str:
        if self.config.store.path and "://" not in self.config.store.path:
            return str(PurePosixPath(self.config.store.path).parent)
        return str(state_folder(os.environ))


class WindowsDriveSource(Source):
    """Space on Windows drives: a full C: stops a WSL2 distribution that itself looks almost empty."""

    name = "windows_drive"
    lane = "windows_drive"
    # Each access costs a round trip to Windows, and frequent ones leak Windows' kernel memory:
    # https://github.com/microsoft/WSL/issues/40804
    period_seconds = 60.0
    deadline_seconds = 5.0
    # Its metrics are declared once, by FilesystemSource: only the mount points differ.

    def read(self) -> Sample:
        """Return size and space of at most four drives; NoData where none is mounted."""
        drives = [m for m in _mounts(self.host) if m.windows]
        if not drives:
            raise NoData(say("no Windows drive is mounted"))
        return Sample(tuple(space(self.host, sorted(drives, key=lambda m: m.point)[:_MAX_VOLUMES])))


def _mounts(host: Host) -> list[Mount]:
    """Return the mounts of the machine: in a service's sandbox (ProtectSystem=) our own are all read-only."""
    # The former may be hidden from us (hidepid), or missing from an older recording.
    return mounts(host.read_optional("/proc/1/mounts") or host.read("/proc/self/mounts"))


def diskstats(text: str) -> list[Reading]:
    """Return the readings in /proc/diskstats; disks without any I/O are omitted."""
    found: list[Reading] = []
    seen: set[str] = set()
    for line in text.splitlines():
        words = line.split()
        if len(words) < 13 or len(seen) == _MAX_DEVICES or words[2] in seen or not _DISK.fullmatch(words[2]):
            continue
        values = [(spec, parse_uint(words[3 + column])) for column, spec in _COLUMNS.items()]
        if not any(value for _, value in values):
            continue
        seen.add(words[2])
        worth = ((spec, None if value is None else round(value * _WORTH[spec.unit], 3)) for spec, value in values)
        found += readings(worth, words[2])
    return found


def mounts(text: str) -> list[Mount]:
    """Return the lines of /proc/1/mounts."""
    lines = (words for line in text.splitlines() if len(words := line.split(" ")) >= 4)
    return [Mount(_plain(device), _plain(at), kind, tuple(re.split("[,;]", o))) for device, at, kind, o, *_ in lines]


def holder(found: list[Mount], path: str) -> Mount | None:
    """Return the mount that holds ``path``: the longest prefix, the last one mounted there."""
    holding = [m for m in found if path == m.point or path.startswith(m.point.rstrip("/") + "/")]
    return max(reversed(holding), key=lambda mount: len(mount.point), default=None)


def space(host: Host, found: list[Mount]) -> list[Reading]:
    """Return size and space of each mount that answers; SourceError where none does."""
    known: list[Reading] = []
    failed: SourceError | None = None
    for mount in found:
        labels = (mount.point, mount.type)
        known.append(Reading(READ_ONLY, int("ro" in mount.options), labels))
        try:
            disk = host.disk_space(mount.point)
        except NoData:
            continue
        except SourceError as error:
            failed = error
            continue
        # 9p and btrfs do not count inodes.
        files = (disk.files, disk.files_free) if disk.files else (None, None)
        values = (disk.size, disk.available, *files)
        known += readings(zip((SIZE, AVAILABLE, FILES, FILES_FREE), values, strict=True), *labels)
    if failed is not None and len(known) == len(found):
        raise failed
    return known


def _plain(word: str) -> str:
    r"""Undo the kernel's octal escapes (``\040`` is a space)."""
    return re.sub(r"\\([0-3][0-7]{2})", lambda match: chr(int(match[1], 8)), word)


def windows_points(host: Host) -> list[str]:
    """Return the mount points of Windows drives; empty outside WSL."""
    return [mount.point for mount in mounts(host.read_optional("/proc/self/mounts")) if mount.windows]


def open_there(host: Host, pids: Iterable[int], points: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Yield (pid, path) of files that these processes have open below ``points``, as far as visible to us.

    Only links below /proc are read: a hung drive does not block this.
    """
    inside = tuple(f"{point.rstrip('/')}/" for point in points)
    for pid in pids:
        # A working directory on a drive counts for the files read below it.
        paths = [f"{host.link(f'/proc/{pid}/cwd') or ''}/"]
        with contextlib.suppress(NoData, SourceError):
            paths += (host.link(f"/proc/{pid}/fd/{name}") or "" for name in host.names(f"/proc/{pid}/fd", _MAX_FILES))
        yield from ((pid, path) for path in paths if path.startswith(inside))
