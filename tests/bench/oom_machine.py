"""The machines of ``bench_oom``: booted and prepared once for each size, then started from a snapshot."""

from __future__ import annotations

import hashlib
import shutil
import sys
from pathlib import Path

from tests.vm.image import Image, cache_folder
from tests.vm.snapshots import SnapshotMachine, make_drives

REPOSITORY = Path(__file__).parents[2]
#: of Debian, beside what every machine has
PACKAGES = ("earlyoom", "systemd-oomd", "procps")
SITE = "/opt/wslgpud/lib/python3.11/site-packages"
BOOTED, BOOT_SECONDS = "booted", 3600.0
#: user of the jobs, with a systemd of their own as after a login
ALICE = "alice"
#: Timeouts are those of an emulated machine, in which Python takes a minute to start.
PATIENT = "[Service]\nTimeoutStartSec=900\nWatchdogSec=0\n"
CONFIGURATION = f"""
[brake]
on = true
users = ["{ALICE}"]
[windows]
probe = "off"
"""
#: As ``deploy/install`` and ``wslgpud service install --allow brake`` do it, without the minutes that those take here.
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
    """Return a running machine with a drive of its size for swap, as it was once after its boot."""
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
