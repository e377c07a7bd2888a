"""The brake compared with earlyoom, systemd-oomd, thrash-protect and the kernel alone, in identical virtual machines.

    python -m tests.bench.bench_oom FILE [--only CONFIGURATION...] [--tool NAME...]

Boots virtual machines (``tests/vm``), starts one tool and runs a scenario of ``oom_guest.py``; a snapshot is restored
before each run, so all start from the same state. Results are added to FILE, a JSON list; runs already in it are
skipped. thrash-protect is downloaded from PyPI. On emulated machines a run takes a minute or two.
"""

from __future__ import annotations

import argparse
import compileall
import json
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.vm.image import Image, image, wheel_of
from tests.vm.machine import MachineError
from tests.vm.snapshots import SnapshotMachine

from .oom_machine import PACKAGES, REPOSITORY, SITE, machine

GUEST = Path(__file__).with_name("oom_guest.py")
THRASH_PROTECT = "thrash-protect==1.1.2"
RUN_SECONDS, START_SECONDS = 1800.0, 1800.0
TOOLS = ("none", "wslgpud", "earlyoom", "systemd-oomd", "thrash-protect")
SWAP = {
    "none": "true",
    "swap": "mkswap -q /dev/vdb && swapon /dev/vdb",
    "zram": "modprobe zram && echo {half}M >/sys/block/zram0/disksize && mkswap -q /dev/zram0 && swapon /dev/zram0",
}
#: Starts each tool, and waits until it is active.
START = {
    "none": "true",
    "earlyoom": "systemctl start earlyoom && sleep 2",
    "systemd-oomd": "systemctl start systemd-oomd.socket systemd-oomd && sleep 5",
    "thrash-protect": "systemd-run --unit=thrash-protect python3 /opt/thrash_protect.py && sleep 5",
    "wslgpud": "systemctl start wslgpud && sleep 15 && systemctl is-active wslgpud",
}


@dataclass(frozen=True)
class Configuration:
    """A kind of machine and the scenarios run on it."""

    memory_mib: int
    swap: str
    psi: bool
    scenarios: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{self.memory_mib / 1024:.0f} GiB, {SAID[self.swap]}{'' if self.psi else ', no PSI'}"


SAID = {"none": "no swap", "swap": "swap", "zram": "zram"}
#: A balanced fraction of all combinations of scenario, memory size, kind of swap and PSI; PSI in
#: half of the runs. Only the small machine has zram, as an emulated CPU takes minutes to compress a gigabyte.
CONFIGURATIONS = (
    Configuration(1024, "none", True, ("leak", "innocent", "workers")),
    Configuration(1024, "swap", False, ("thrash", "build")),
    Configuration(1024, "zram", True, ("leak", "workers")),
    Configuration(2048, "none", False, ("burst", "tmpfs")),
    Configuration(2048, "swap", True, ("thrash", "innocent")),
    Configuration(4096, "none", False, ("leak", "build", "workers")),
)


def bring(one: SnapshotMachine) -> None:
    """Copy the current program and its unit into the machine."""
    compileall.compile_dir(REPOSITORY / "wslgpud", quiet=1)
    one.run("rm", "-rf", f"{SITE}/wslgpud")
    one.copy_in(REPOSITORY / "wslgpud", f"{SITE}/wslgpud")
    units = "/etc/systemd/system"
    one.copy_in(REPOSITORY / "deploy/system/wslgpud.service", f"{units}/wslgpud.service")
    one.copy_in(REPOSITORY / "deploy/drop-ins/brake.conf", f"{units}/wslgpud.service.d/brake.conf")
    one.run("systemctl", "daemon-reload")


def prepare(one: SnapshotMachine, thrash_protect: Path, half_mib: int, swap: str) -> None:
    """Copy the scenarios and the current program into the machine, and set up swap."""
    bring(one)
    one.copy_in(GUEST, "/opt/oom_guest.py")
    one.copy_in(thrash_protect, "/opt/thrash_protect.py")
    one.run("sh", "-ec", SWAP[swap].format(half=half_mib))
    one.run("python3", "-m", "compileall", "-q", "/opt/oom_guest.py", check=False)
    one.run("sync")


def fetched(folder: Path) -> Path:
    """Download thrash-protect, a single script, from PyPI."""
    subprocess.run(
        [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", f"--dest={folder}", THRASH_PROTECT],
        check=True,
    )
    with zipfile.ZipFile(next(folder.glob("thrash_protect-*.whl"))) as wheel:
        wheel.extract("thrash_protect.py", folder)
    return folder / "thrash_protect.py"


def runs(one: SnapshotMachine, tool: str, scenarios: list[str]) -> Iterator[dict[str, object]]:
    """Start a tool and yield the result of each scenario, all from the same state; an error if it does not start."""
    one.restore("prepared")
    started = one.run("sh", "-c", START[tool], check=False, timeout_seconds=START_SECONDS)
    active = tool == "none" or one.run("systemctl", "is-active", tool, check=False).returncode == 0
    if not active:
        said = one.run("systemctl", "status", "--no-pager", tool, check=False).stdout
        sys.stderr.write(started.stderr + said)
        yield from ({"scenario": name, "error": "does not run here"} for name in scenarios)
        return
    one.save("started")
    for number, name in enumerate(scenarios):
        if number:
            one.restore("started")
        began = time.monotonic()
        try:
            answer = one.run("python3", "-I", "/opt/oom_guest.py", name, timeout_seconds=RUN_SECONDS)
            result: dict[str, object] = json.loads(answer.stdout.splitlines()[-1])
        except (MachineError, IndexError, ValueError) as error:
            result = {"error": str(error)[-300:]}
        if tool == "wslgpud":
            log = one.run("journalctl", "--no-pager", "-o", "cat", "-u", "wslgpud", "-n", "40", check=False)
            result["log"] = [line for line in log.stdout.splitlines() if "paus" in line or "job" in line]
        print(tool, name, result, f"{time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
        yield {"scenario": name, **result}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument(
        "--only", nargs="*", type=int, default=range(len(CONFIGURATIONS)), help="numbers of configurations, from 0"
    )
    parser.add_argument("--tool", nargs="*", default=TOOLS)
    options = parser.parse_args()
    results: list[dict[str, object]] = json.loads(options.file.read_text()) if options.file.exists() else []
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        disk: Image = image(wheel_of(REPOSITORY, folder), PACKAGES)
        script = fetched(folder)
        for number in options.only:
            chosen = CONFIGURATIONS[number]
            known = {(row["tool"], row["scenario"]) for row in results if row["machine"] == chosen.name}
            with machine(disk, chosen.memory_mib, psi=chosen.psi) as one:
                prepare(one, script, chosen.memory_mib // 2, chosen.swap)
                one.save("prepared")
                for tool in options.tool:
                    missing = [name for name in chosen.scenarios if (tool, name) not in known]
                    for row in runs(one, tool, missing) if missing else []:
                        results.append({"machine": chosen.name, "tool": tool, **row})
                        options.file.write_text(json.dumps(results, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
