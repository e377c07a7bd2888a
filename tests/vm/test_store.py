"""The history on a real disk of a real machine: power cuts, and a device that fails.

A machine writes while its kernel logs every write to the disk; each moment of that log, with any part of
what was not flushed yet, is what a power cut could have left. A hundred of them:
``WSLGPUD_CUTS=100 ./tests/run tests/vm/test_store.py``.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
from pathlib import Path

import pytest

from wslgpud.config import StoreSettings
from wslgpud.store import Reader, Store
from wslgpud.store.maintenance import audit

from .conftest import BootMachine, slow
from .log_writes import cuts
from .machine import Machine

pytestmark = [pytest.mark.vm, pytest.mark.xdist_group("vm"), pytest.mark.timeout(3000)]

HERE = Path(__file__).parent
PYTHON = "/opt/wslgpud/bin/python"
CUTS = int(os.environ.get("WSLGPUD_CUTS", "6"))
DISK_BYTES = 24 << 20
SECTORS = DISK_BYTES // 512
TICKS = 1500


@pytest.fixture(scope="module")
def debian(module_machine: BootMachine) -> Machine:
    found = module_machine(program=True)
    for name in ("device_mapper.py", "store_writer.py", "quota.py"):
        found.copy_in(HERE / name, f"/srv/{name}")
    found.run("modprobe", "-a", "loop", "dm-mod", "dm-log-writes", "quota_v2")
    return found


def loop_device(machine: Machine, name: str, size: int) -> str:
    machine.run("truncate", "-s", str(size), f"/srv/{name}")
    return machine.run("losetup", "--find", "--show", f"/srv/{name}").stdout.strip()


def device(machine: Machine, *arguments: str) -> None:
    machine.run("python3", "/srv/device_mapper.py", *arguments)
    machine.run("udevadm", "settle")


def mount(machine: Machine, name: str, folder: str, *options: str) -> None:
    """Make a file system on a device, and mount it."""
    machine.run(
        "mkfs.ext4", "-q", "-E", "lazy_itable_init=0,lazy_journal_init=0,nodiscard", *options, f"/dev/mapper/{name}"
    )
    machine.run("mkdir", "-p", folder)
    machine.run("mount", f"/dev/mapper/{name}", folder)


def file_after(disk: bytes, folder: Path) -> Path:
    """Return the database on a disk that lost power, after what every mount does first."""
    folder.mkdir()
    image = folder / "disk.img"
    image.write_bytes(disk)
    replayed = subprocess.run(["e2fsck", "-fy", "-E", "journal_only", image], capture_output=True, check=False)
    assert replayed.returncode in (0, 1), replayed.stdout
    for name in ("wslgpud.db", "wslgpud.db-wal", "wslgpud.db.lock"):
        # what is not there was not yet, or not any more
        dump = f"dump /state/{name} {folder / name}"
        subprocess.run(["debugfs", "-R", dump, image], capture_output=True, check=True)
    image.unlink()
    return folder / "wslgpud.db"


def test_after_a_power_cut_all_that_was_confirmed_is_there(debian, tmp_path):
    data, log = (loop_device(debian, n, s) for n, s in (("data", DISK_BYTES), ("log", 400 << 20)))
    device(debian, "create", "watched", str(SECTORS), "log-writes", data, log)
    mount(debian, "watched", "/mnt/watched")
    debian.run("sync")
    device(debian, "mark", "watched", "begin")
    debian.run(PYTHON, "/srv/store_writer.py", "/mnt/watched/state/wslgpud.db", "0", str(TICKS), timeout_seconds=500)
    debian.run("umount", "/mnt/watched")
    device(debian, "remove", "watched")
    debian.run("tar", "-C", "/srv", "--sparse", "-I", "gzip -1", "-cf", "/srv/log.tar.gz", "log", timeout_seconds=500)
    debian.copy_out("/srv/log.tar.gz", tmp_path)
    subprocess.run(["tar", "-C", tmp_path, "-xf", tmp_path / "log.tar.gz"], check=True)

    chance, seen = random.Random(CUTS), []
    for number, cut in enumerate(cuts(tmp_path / "log", DISK_BYTES, CUTS, chance, after="begin")):
        file = file_after(cut.disk, tmp_path / str(number))
        confirmed = int(cut.mark.partition("-")[2] or -1)
        with Store(file, StoreSettings(raw_days=3650), host_name="pc") as store:
            kept = [[p.value for p in store.reader.read(ref, 0, 1e10)] for ref in store.reader.series("made_bytes")]
            assert store.stats().set_aside == "", "the file opens as it is"
        with Reader(str(file)) as reader:
            assert audit(reader, lambda *_: None) == [], "roll-ups are right"
        assert all(values == kept[0] for values in kept), "a tick is there whole or not at all"
        there = kept[0] if kept else []
        assert there == list(range(len(there))), "only what came last is gone"
        assert len(there) > confirmed, f"cut {number}: {confirmed} was confirmed"
        seen.append(len(there))
    assert len(set(seen)) > CUTS // 3, "the cuts fell at different moments"


class Writer:
    """A daemon's store in the machine, whose disk the test can break."""

    def __init__(self, machine: Machine, file: str, user: str = "root") -> None:
        self._machine, self._answers = machine, 1
        self._unit = f"writer-of-{user}-{Path(file).parts[2]}"
        machine.run("sh", "-c", "rm -f /run/orders /run/answers; mkfifo /run/orders; : > /run/answers")
        machine.run("chown", user, "/run/orders", "/run/answers")
        # a shell keeps the pipe open between two orders
        machine.run(
            "systemd-run",
            f"--unit={self._unit}",
            f"--uid={user}",
            "sh",
            "-c",
            "exec 3<>/run/orders; echo ready >>/run/answers;"
            f" exec {PYTHON} /srv/store_writer.py {file} 0 - <&3 >>/run/answers",
        )
        # what is written into a pipe that nobody has open yet is lost
        machine.run("sh", "-c", "until [ -s /run/answers ]; do sleep 0.1; done")

    def __call__(self, order: str) -> dict[str, object]:
        """Have it obey one order; return its answer."""
        self._answers += 1
        alive = f"systemctl is-active -q {self._unit} || {{ journalctl -u {self._unit} >&2; exit 1; }}"
        wait = f"until [ $(wc -l < /run/answers) -ge {self._answers} ]; do {alive}; sleep 0.5; done"
        # both ways: opened to write only, it would wait for a writer that has died
        self._machine.run("sh", "-c", f"echo {order} 1<>/run/orders; {wait}")
        answer: dict[str, object] = json.loads(self._machine.read("/run/answers").splitlines()[-1])
        return answer

    def end(self) -> None:
        self._machine.run("sh", "-c", "echo end 1<>/run/orders")
        self._machine.run("sh", "-c", f"while systemctl is-active -q {self._unit}; do sleep 0.2; done")


@slow
def test_a_disk_that_fails_costs_nothing_that_fits_into_memory(debian, tmp_path):
    """Every access ends with EIO, as on a cable that has come loose; no journal, which would stay aborted."""
    data = loop_device(debian, "fails", DISK_BYTES)
    device(debian, "create", "fails", str(SECTORS), "linear", data, "0")
    mount(debian, "fails", "/mnt/fails", "-O", "^has_journal")
    store = Writer(debian, "/mnt/fails/state/wslgpud.db")
    store("write 300")
    assert store("flush 120") == {"flushed": True, "error": "", "queue": 0, "errors": 0}

    device(debian, "load", "fails", str(SECTORS), "error")
    store("write 200")
    failing = store("fail")
    assert (failing["flushed"], failing["queue"]) == (False, 200)
    assert "the disk fails: see the kernel log" in str(failing["error"])
    device(debian, "load", "fails", str(SECTORS), "linear", data, "0")
    mended = store("flush 120")
    assert (mended["flushed"], mended["error"], mended["queue"]) == (True, "", 0)

    store.end()
    debian.run("umount", "/mnt/fails")
    debian.run("mount", "/dev/mapper/fails", "/mnt/fails")
    debian.copy_out("/mnt/fails/state", tmp_path)
    with Reader(str(tmp_path / "state" / "wslgpud.db")) as reader:
        (ref, *_) = reader.series("made_bytes")
        assert [p.value for p in reader.read(ref, 0, 1e10)] == list(range(500))
        assert audit(reader, lambda *_: None) == []


@slow
def test_a_disk_turned_read_only_keeps_what_was_confirmed(debian, tmp_path):
    """As ext4 does by itself after an error, until it is mounted anew; WSL's root turns so, too."""
    data = loop_device(debian, "turns", DISK_BYTES)
    device(debian, "create", "turns", str(SECTORS), "linear", data, "0")
    mount(debian, "turns", "/mnt/turns", "-e", "remount-ro")
    store = Writer(debian, "/mnt/turns/state/wslgpud.db")
    store("write 300")
    assert store("flush 120")["flushed"] is True

    kernel_name = debian.run("readlink", "-f", "/dev/mapper/turns").stdout.strip().rpartition("/")[2]
    debian.run("sh", "-c", f"echo test > /sys/fs/ext4/{kernel_name}/trigger_fs_error")
    # /proc/mounts goes on saying rw: since 6.1.120 and 6.12 ext4 marks the file system, not the mount
    assert "Remounting filesystem read-only" in debian.kernel_log()
    store("write 200")
    failing = store("fail")
    assert (failing["flushed"], failing["queue"]) == (False, 200)
    assert "ead-only file system" in str(failing["error"])
    store.end()
    debian.run("umount", "/mnt/turns")
    debian.run("e2fsck", "-fy", "/dev/mapper/turns", check=False)
    debian.run("mount", "/dev/mapper/turns", "/mnt/turns")
    debian.copy_out("/mnt/turns/state", tmp_path)

    with Store(tmp_path / "state" / "wslgpud.db", StoreSettings(raw_days=3650), host_name="pc") as again:
        assert [p.value for p in again.reader.read(again.reader.series("made_bytes")[0], 0, 1e10)] == list(range(300))
        assert again.reader.check() == []


@slow
def test_a_used_up_quota_costs_nothing_that_fits_into_memory(debian, tmp_path):
    """As an administrator sets it for a user; SQLite itself calls it a disk I/O error."""
    data = loop_device(debian, "shared", DISK_BYTES)
    device(debian, "create", "shared", str(SECTORS), "linear", data, "0")
    mount(debian, "shared", "/mnt/shared", "-O", "quota")
    debian.run("umount", "/mnt/shared")
    debian.run("mount", "-o", "usrquota", "/dev/mapper/shared", "/mnt/shared")  # too late for a remount
    debian.run("chown", "nobody", "/mnt/shared")
    store = Writer(debian, "/mnt/shared/state/wslgpud.db", user="nobody")
    store("write 300")
    assert store("flush 120")["flushed"] is True

    debian.run("python3", "/srv/quota.py", "/dev/mapper/shared", "nobody", "1")
    store("write 6000")
    failing = store("fail")
    assert failing["flushed"] is False
    assert int(str(failing["queue"])) > 0
    assert "Disk quota exceeded" in str(failing["error"])
    debian.run("python3", "/srv/quota.py", "/dev/mapper/shared", "nobody", "0")
    mended = store("flush 120")
    assert (mended["flushed"], mended["error"], mended["queue"]) == (True, "", 0)

    store.end()
    debian.copy_out("/mnt/shared/state", tmp_path)
    with Reader(str(tmp_path / "state" / "wslgpud.db")) as reader:
        (ref, *_) = reader.series("made_bytes")
        assert [p.value for p in reader.read(ref, 0, 1e10)] == list(range(6300))
        assert audit(reader, lambda *_: None) == []
