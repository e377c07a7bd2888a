"""Disks: what block devices do, and how full the file systems that matter are.

Three sources, because a file system of Windows (9p, virtiofs) may hang for minutes and must then take
neither the others nor each other along.
"""

from __future__ import annotations

import os
import re
from pathlib import PurePosixPath
from typing import ClassVar, NamedTuple

from wslgpud.config import state_folder
from wslgpud.host import Host, NoData, SourceError
from wslgpud.metrics import MetricSpec
from wslgpud.model import Reading, Sample
from wslgpud.sources import Source
from wslgpud.sources.text import whole
from wslgpud.words import say

_SECTOR_BYTES = 512  # of /proc/diskstats, whatever the device's own sectors
_MOST_DEVICES = 8
_MOST_VOLUMES = 4
#: Whole disks; partitions, loop and ram devices would count the same bytes again.
_DISK = re.compile(r"(sd[a-z]+|vd[a-z]+|xvd[a-z]+|hd[a-z]+|nvme\d+n\d+|mmcblk\d+|pmem\d+|zram\d+)")
_DRIVE = re.compile(r"[A-Za-z]:\\?")
WINDOWS_TYPES = frozenset({"9p", "virtiofs", "drvfs"})


def _device(name: str, unit: str, text: str, decimals: int = 0) -> MetricSpec:
    return MetricSpec(name, "counter", "bytes" if unit == "bytes" else "seconds", text, ("device",), decimals)


READ_BYTES = _device("disk_read_bytes", "bytes", "Bytes read from the device.")
WRITTEN_BYTES = _device("disk_written_bytes", "bytes", "Bytes written to the device.")
READ_SECONDS = _device("disk_read_time_seconds", "seconds", "Time that reads took, added up.", 3)
WRITE_SECONDS = _device("disk_write_time_seconds", "seconds", "Time that writes took, added up.", 3)
IO_SECONDS = _device(
    "disk_io_time_seconds",
    "seconds",
    "Time in which the device was busy; a rate near 1 is a full disk queue.",
    3,
)
READS = MetricSpec("disk_reads_completed", "counter", "", "Reads completed.", ("device",))
WRITES = MetricSpec("disk_writes_completed", "counter", "", "Writes completed.", ("device",))
#: Metric, column of /proc/diskstats after the name, and what one unit of it is worth.
_COLUMNS: tuple[tuple[MetricSpec, int, int | float], ...] = (
    (READS, 0, 1), (READ_BYTES, 2, _SECTOR_BYTES), (READ_SECONDS, 3, 0.001),
    (WRITES, 4, 1), (WRITTEN_BYTES, 6, _SECTOR_BYTES), (WRITE_SECONDS, 7, 0.001), (IO_SECONDS, 9, 0.001),
)  # fmt: skip

_PLACE = ("mountpoint", "fstype")
SIZE = MetricSpec("filesystem_size_bytes", "gauge", "bytes", "Size of the file system.", _PLACE)
AVAILABLE = MetricSpec(
    "filesystem_avail_bytes", "gauge", "bytes",
    "Space that programs may still write. Under WSL2 the root shows up to 1 TB whatever Windows has left: "
    "what counts is the Windows drive that holds ext4.vhdx.", _PLACE,
)  # fmt: skip
FILES = MetricSpec("filesystem_files", "gauge", "", "Inodes of the file system.", _PLACE)
FILES_FREE = MetricSpec(
    "filesystem_files_free", "gauge", "", "Inodes left; none left reads as a full disk.", _PLACE
)  # fmt: skip
READ_ONLY = MetricSpec(
    "filesystem_readonly", "gauge", "",
    "1 when nothing can be written; the root of a WSL2 distro turns so when its virtual disk fails.", _PLACE,
)  # fmt: skip


class Mount(NamedTuple):
    """One line of /proc/1/mounts."""

    device: str
    point: str
    type: str
    options: tuple[str, ...]

    @property
    def windows(self) -> bool:
        """Tell whether this is a drive of Windows seen from WSL."""
        return self.type in WINDOWS_TYPES and (
            bool(_DRIVE.fullmatch(self.device))
            or any("drvfs" in option for option in (self.device, *self.options))
            # virtiofs shows a tag in place of the drive's letter, and no options of its own
            or (self.type == "virtiofs" and len(PurePosixPath(self.point).name) == 1)
        )


class DiskSource(Source):
    """/proc/diskstats."""

    name: ClassVar[str] = "disk"
    metrics: ClassVar[tuple[MetricSpec, ...]] = tuple(spec for spec, _, _ in _COLUMNS)

    def read(self) -> Sample:
        """Return the counters of at most eight disks.

        Raises:
            NoData: the machine has no block devices to show.
            SourceError: they cannot be read.
        """
        return Sample(tuple(diskstats(self.host.read("/proc/diskstats"))))


class FilesystemSource(Source):
    """Space on the root and where our own data lies."""

    name: ClassVar[str] = "filesystem"
    lane: ClassVar[str] = "filesystem"
    period_seconds: float = 10.0
    deadline_seconds: ClassVar[float] = 2.0
    metrics: ClassVar[tuple[MetricSpec, ...]] = (SIZE, AVAILABLE, FILES, FILES_FREE, READ_ONLY)

    def read(self) -> Sample:
        """Return size and space of each.

        Raises:
            NoData: nothing is mounted that we may ask.
            SourceError: the mounts cannot be read.
        """
        found = mounts(_mount_table(self.host))
        places = {m.point: m for path in ("/", self._state()) if (m := holder(found, path)) and not m.windows}
        return Sample(tuple(space(self.host, list(places.values()))))

    def _state(self) -> str:
        if self.config.store.path and "://" not in self.config.store.path:
            return str(PurePosixPath(self.config.store.path).parent)
        return str(state_folder(os.environ))


class WindowsDriveSource(Source):
    """Space on the drives of Windows: a full C: stops a WSL2 distro that itself looks almost empty."""

    name: ClassVar[str] = "windows_drive"
    lane: ClassVar[str] = "windows_drive"
    # Touching a drive costs a round trip to Windows, and much of it leaks Windows' kernel memory:
    # https://github.com/microsoft/WSL/issues/40804
    period_seconds: float = 60.0
    deadline_seconds: ClassVar[float] = 5.0
    # Its metrics are declared once, by FilesystemSource: only the mount points differ.

    def read(self) -> Sample:
        """Return size and space of at most four drives.

        Raises:
            NoData: no drive of Windows is mounted.
            SourceError: the mounts cannot be read.
        """
        drives = [m for m in mounts(_mount_table(self.host)) if m.windows]
        if not drives:
            raise NoData(say("no Windows drive is mounted"))
        return Sample(tuple(space(self.host, sorted(drives, key=lambda m: m.point)[:_MOST_VOLUMES])))


def _mount_table(host: Host) -> str:
    """Return the mounts of the machine: in a service's sandbox (ProtectSystem=) our own are all read-only."""
    try:
        return host.read("/proc/1/mounts")
    except (NoData, SourceError):  # hidden from us (hidepid), or an older recording
        return host.read("/proc/self/mounts")


def diskstats(text: str) -> list[Reading]:
    """Return the readings in /proc/diskstats; disks that never did anything are left out."""
    readings: list[Reading] = []
    seen: set[str] = set()
    for line in text.splitlines():
        words = line.split()
        if len(words) < 13 or len(seen) == _MOST_DEVICES or words[2] in seen or not _DISK.fullmatch(words[2]):
            continue
        values = [whole(words[3 + column]) for _, column, _ in _COLUMNS]
        if not any(values):
            continue
        seen.add(words[2])
        readings += [
            Reading(spec, round(value * worth, 3), (words[2],))
            for (spec, _, worth), value in zip(_COLUMNS, values, strict=True)
            if value is not None
        ]
    return readings


def mounts(text: str) -> list[Mount]:
    """Return the lines of /proc/1/mounts."""
    found = []
    for line in text.splitlines():
        words = line.split(" ")
        if len(words) >= 4:
            device, point = _plain(words[0]), _plain(words[1])
            found.append(Mount(device, point, words[2], tuple(re.split("[,;]", words[3]))))
    return found


def holder(found: list[Mount], path: str) -> Mount | None:
    """Return the mount that holds ``path``: the longest that is its beginning, the last one mounted there."""
    best: Mount | None = None
    for mount in found:
        inside = path == mount.point or path.startswith(mount.point.rstrip("/") + "/")
        if inside and (best is None or len(mount.point) >= len(best.point)):
            best = mount
    return best


def space(host: Host, found: list[Mount]) -> list[Reading]:
    """Return size and space of each mount; one that does not answer leaves the others alone.

    Raises:
        SourceError: none of them answers.
    """
    readings: list[Reading] = []
    failed: SourceError | None = None
    for mount in found:
        labels = (mount.point, mount.type)
        readings.append(Reading(READ_ONLY, int("ro" in mount.options), labels))
        try:
            disk = host.disk_space(mount.point)
        except NoData:
            continue
        except SourceError as error:
            failed = error
            continue
        readings += [Reading(SIZE, disk.size, labels), Reading(AVAILABLE, disk.available, labels)]
        if disk.files:  # 9p and btrfs have no inodes to count
            readings += [Reading(FILES, disk.files, labels), Reading(FILES_FREE, disk.files_free, labels)]
    if failed is not None and len(readings) == len(found):
        raise failed
    return readings


def _plain(word: str) -> str:
    r"""Undo the kernel's octal escapes (``\040`` is a space)."""
    return re.sub(r"\\([0-3][0-7]{2})", lambda match: chr(int(match[1], 8)), word)
