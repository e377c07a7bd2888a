"""The machines of ``bench_oom``: each size is booted and prepared once, and then started from a snapshot."""

from __future__ import annotations

import hashlib
import shutil
import sys
from pathlib import Path

from tests.vm.image import Image, cache_folder
from tests.vm.snapshots import SnapshotMachine, make_drives

REPOSITORY = Path(__file__).parents[2]
#: Debian packages in addition to the base image
PACKAGES = ("earlyoom", "systemd-oomd", "procps")
SITE = "/opt/wslgpud/lib/python3.11/site-packages"
BOOTED, BOOT_SECONDS = "booted", 3600.0
#: user of the jobs, with a systemd user instance as after a login
ALICE = "alice"
#: Time-outs for an emulated machine, in which Python takes a minute to start.
PATIENT = "[Service]\nTimeoutStartSec=900\nWatchdogSec=0\n"
CONFIGURATION = f"""
[brake]
on = true
users = ["{ALICE}"]
[windows]
probe = "off"
"""
#: The same as ``deploy/install`` and ``wslgpud service install --allow brake``, which would take minutes here.
PREPARE = f"""
systemctl disable --now earlyoom systemd-oomd.service systemd-oomd.socket
useradd --create-home --shell /bin/bash {ALICE}
loginctl enable-linger {ALICE}
useradd --system --no-create-home wslgpud
units=/etc/systemd/system
cp /usr/src/wslgpud/deploy/system/wslgpud.service $units
mkdir -p $units/wslgpud.service.d
cp /usr/src/wslgpud/deploy/drop-ins/brake.conf $units/wslgpud.service.d
until [ -S /run/user/$(id -u {ALICE})/systemd/private ]; do sleep 1; done
systemctl daemon-reload
sync
"""


def machine(image: Image, memory_mib: int, *, psi: bool) -> SnapshotMachine:
    """Return a running machine, restored from the snapshot after boot, with a drive as large as its memory for swap."""
    name = hashlib.sha256(f"{image.disk}{image.disk.stat().st_mtime_ns}{PREPARE}{psi}".encode()).hexdigest()[:12]
    folder = cache_folder() / f"machine-{memory_mib}-{name}"
    line = "" if psi else "psi=0"
    if not (folder / "ready").exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        drives = make_drives(folder, [memory_mib])
        with SnapshotMachine(image, folder, memory_mib=memory_mib, kernel_line=line, drives=drives) as fresh:
            fresh.boot(BOOT_SECONDS)
            fresh.write("/etc/systemd/system/wslgpud.service.d/patient.conf", PATIENT)
            fresh.write("/etc/wslgpud/wslgpud.toml", CONFIGURATION)
            said = fresh.run("sh", "-x", "-c", PREPARE, timeout_seconds=BOOT_SECONDS)
            sys.stderr.write(said.stdout + said.stderr)
            fresh.save(BOOTED)
        (folder / "ready").touch()
    drives = make_drives(folder, [memory_mib])
    kept = SnapshotMachine(image, folder, memory_mib=memory_mib, kernel_line=line, drives=drives, start_from=BOOTED)
    kept.resume()
    return kept
