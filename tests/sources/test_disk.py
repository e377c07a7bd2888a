"""Disks: devices, the file systems that matter, and the drive of Windows that holds the virtual disk."""

from __future__ import annotations

import os

import pytest

from wslgpud.config import Config, StoreSettings
from wslgpud.host import Host, NoData, SourceError
from wslgpud.sources.disk import (
    DiskSource,
    FilesystemSource,
    WindowsDriveSource,
    holder,
    mounts,
    open_there,
    windows_points,
)

DISKSTATS = """\
   7       0 loop0 5 0 10 0 0 0 0 0 0 0 0 0 0 0 0 0 0
 254       0 vda 55993 11645 3430026 17570 74754 29828 4790816 11149 0 9100 29765 7328 42 775864 460 17208 584
 254       1 vda1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1
   8       0 sda 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0
"""
# As WSL 2 shows them: https://github.com/lamyj/wsl-path-converter/pull/4, microsoft/WSL/issues/7152
MOUNTS = """\
/dev/sdc / ext4 rw,relatime,discard,errors=remount-ro,data=ordered 0 0
proc /proc proc rw,nosuid 0 0
C:\\134 /mnt/c 9p rw,noatime,dirsync,aname=drvfs;path=C:\\;uid=1000;gid=1000;symlinkroot=/mnt/,trans=fd 0 0
drivers /usr/lib/wsl/drivers 9p ro,nosuid,nodev,noatime,aname=drivers;fmask=222;dmask=222,trans=fd 0 0
tmpfs /mnt/my\\040data tmpfs rw 0 0
/dev/sdd /var/lib xfs ro,relatime 0 0
"""


def test_only_whole_disks_that_ever_worked_are_counted(machine, values):
    found = values(DiskSource(machine({"/proc/diskstats": DISKSTATS}), Config()).read())
    assert found == {
        "disk_reads_completed_total{vda}": 55993,
        "disk_read_bytes_total{vda}": 3430026 * 512,
        "disk_read_time_seconds_total{vda}": 17.57,
        "disk_writes_completed_total{vda}": 74754,
        "disk_written_bytes_total{vda}": 4790816 * 512,
        "disk_write_time_seconds_total{vda}": 11.149,
        "disk_io_time_seconds_total{vda}": 9.1,
    }


def test_a_server_with_many_disks_does_not_flood_the_database(machine):
    line = "8 0 sd{} 1 1 1 1 1 1 1 1 1 1 1 1 1\n"
    many = "".join(line.format(chr(97 + i)) for i in range(26))
    sample = DiskSource(machine({"/proc/diskstats": many}), Config()).read()
    assert len({r.labels for r in sample.readings}) == 8


def test_a_disk_that_is_listed_twice_counts_once(machine, values):
    host = machine({"/proc/diskstats": DISKSTATS + DISKSTATS})
    assert values(DiskSource(host, Config()).read())["disk_reads_completed_total{vda}"] == 55993


def test_root_and_the_file_system_of_our_data_are_watched(machine, values):
    host = machine({"/proc/self/mounts": MOUNTS}, disks={"/": [1000, 600, 500, 50, 40], "/var/lib": [90, 80, 70, 0, 0]})
    config = Config(store=StoreSettings(path="/var/lib/wslgpud/wslgpud.db"))
    assert values(FilesystemSource(host, config).read()) == {
        "filesystem_readonly{/,ext4}": 0,
        "filesystem_size_bytes{/,ext4}": 1000,
        "filesystem_avail_bytes{/,ext4}": 500,
        "filesystem_files{/,ext4}": 50,
        "filesystem_files_free{/,ext4}": 40,
        "filesystem_readonly{/var/lib,xfs}": 1,
        "filesystem_size_bytes{/var/lib,xfs}": 90,
        "filesystem_avail_bytes{/var/lib,xfs}": 70,
    }


def test_the_windows_drive_is_watched_but_not_wsls_own_mounts(machine, values):
    host = machine({"/proc/self/mounts": MOUNTS}, disks={"/mnt/c": [5000, 60, 60, 0, 0]})
    found = values(WindowsDriveSource(host, Config()).read())
    assert found["filesystem_avail_bytes{/mnt/c,9p}"] == 60
    assert len(found) == 3


def test_of_many_drives_of_windows_the_first_four_are_watched(machine):
    drives = "".join(f"{letter}: /mnt/{letter.lower()} drvfs rw 0 0\n" for letter in "GFEDC")
    host = machine({"/proc/self/mounts": drives}, disks={f"/mnt/{letter}": [9, 8, 7, 0, 0] for letter in "cdefg"})
    sample = WindowsDriveSource(host, Config()).read()
    assert {r.labels[0] for r in sample.readings} == {"/mnt/c", "/mnt/d", "/mnt/e", "/mnt/f"}


def test_what_programs_read_from_a_drive_of_windows_is_found(machine):
    links = {
        "/proc/7/cwd": "/mnt/c/data",
        "/proc/7/fd/3": "/mnt/c/data/train.bin",
        "/proc/7/fd/4": "/mnt/cache/x",
        "/proc/8/cwd": "/home/me",
        "/proc/8/fd/5": "/mnt/c/log",
    }
    host = machine({"/proc/self/mounts": MOUNTS}, links=links)
    points = windows_points(host)
    assert points == ["/mnt/c"]
    assert list(open_there(host, [7, 8, 9], points)) == [
        (7, "/mnt/c/data/"),
        (7, "/mnt/c/data/train.bin"),
        (8, "/mnt/c/log"),
    ]


@pytest.mark.parametrize(
    ("line", "windows"),
    [
        ("C: /mnt/c drvfs rw,noatime,uid=1000,gid=1000,case=off 0 0", True),  # WSL 1
        ("D:\\134 /win/d 9p rw,aname=drvfs;path=D:\\;uid=1000 0 0", True),
        ("a1b2c3 /mnt/c virtiofs rw,noatime 0 0", True),  # virtiofs=true in .wslconfig
        ("shared /srv/shared virtiofs rw 0 0", False),
        ("out /mnt/out 9p rw,trans=virtio 0 0", False),
        ("drivers /usr/lib/wsl/drivers 9p ro,aname=drivers;fmask=222 0 0", False),
    ],
)
def test_a_drive_of_windows_is_known_by_how_it_is_mounted(line, windows):
    assert mounts(line)[0].windows == windows


def test_a_machine_without_windows_has_no_drive_of_windows(machine):
    with pytest.raises(NoData, match="Windows"):
        WindowsDriveSource(machine({"/proc/self/mounts": "/dev/vda / ext4 rw 0 0\n"}), Config()).read()


def test_a_drive_that_does_not_answer_is_a_fault_that_names_it(machine):
    host = machine({"/proc/self/mounts": MOUNTS})

    def refuse(path: str):
        raise SourceError(f"cannot ask the file system of {path}: Input/output error")

    host.disk_space = refuse
    with pytest.raises(SourceError, match="/mnt/c: Input/output error"):
        WindowsDriveSource(host, Config()).read()


def test_windows_drives_and_our_own_disks_hang_apart():
    lanes = {DiskSource.lane, FilesystemSource.lane, WindowsDriveSource.lane}
    assert len(lanes) == 3
    assert WindowsDriveSource.period_seconds >= 60


def test_the_innermost_mount_holds_a_file():
    found = mounts(MOUNTS)
    assert holder(found, "/var/lib/wslgpud").type == "xfs"
    assert holder(found, "/var/library").point == "/"
    assert holder(found, "/mnt/my data/x").type == "tmpfs"


def test_this_machines_root_is_as_big_as_statvfs_says(values):
    found = values(FilesystemSource(Host(), Config()).read())
    sizes = [v for k, v in found.items() if k.startswith("filesystem_size_bytes{/,")]
    asked = os.statvfs("/")
    assert sizes == [asked.f_blocks * asked.f_frsize]
