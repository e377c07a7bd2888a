"""Record traces of memory workloads in virtual machines: what the risk engine is tuned and judged with.

    python -m tests.vm.record_traces FOLDER [NAME ...]

writes ``NAME.jsonl.gz`` and ``NAME.truth.json`` for each scenario named (all by default), several machines
at a time. Run by hand; a recording takes as long as its program does.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from .image import image
from .machine import Machine

HERE = Path(__file__).parent
SET_UP_ZRAM = """
modprobe zram
echo {mib}M > /sys/block/zram0/disksize
mkswap -q /dev/zram0
swapon -p 100 /dev/zram0
"""


@dataclass(frozen=True)
class Scenario:
    """A workload of ``traces/workloads.py`` on one kind of machine."""

    workload: str
    seconds: float
    ram_mib: int
    swap_mib: int = 0
    zram_mib: int = 0
    compressible: bool = False

    @property
    def name(self) -> str:
        """Name of the recording."""
        swap = f"-swap{self.swap_mib}" * bool(self.swap_mib) + f"-zram{self.zram_mib}" * bool(self.zram_mib)
        swap += "packs" * self.compressible
        return f"vm-{self.workload}-{self.seconds:.0f}s-{self.ram_mib}{swap or '-noswap'}"


SCENARIOS = [
    Scenario("leak_linear", 1300, 4096),
    Scenario("leak_linear", 240, 2048),
    Scenario("leak_hot", 200, 1024, swap_mib=512),
    Scenario("leak_late", 300, 3072, swap_mib=512),
    Scenario("leak_accelerating", 240, 2048),
    Scenario("leak_sawtooth", 300, 2048),
    Scenario("leak_sawtooth", 280, 1024, swap_mib=1024),
    Scenario("leak_steps", 300, 2048, swap_mib=1024),
    Scenario("leak_that_stops", 240, 2048),
    Scenario("warm_up", 200, 4096),
    Scenario("fatal_spikes", 270, 2048),
    Scenario("safe_spikes", 240, 2048),
    Scenario("sawtooth_safe", 240, 3072),
    Scenario("prealloc", 180, 4096),
    Scenario("build_safe", 180, 2048),
    Scenario("build_oom", 150, 2048),
    Scenario("build_oom", 240, 2048, swap_mib=512),
    Scenario("tmpfs_oom", 150, 2048),
    Scenario("page_cache", 150, 1024),
    Scenario("cold_swap", 160, 1024, swap_mib=1024),
    Scenario("leak_linear", 150, 2048, zram_mib=1024),
    Scenario("leak_linear", 200, 1024, zram_mib=512),
    Scenario("leak_linear", 220, 1024, zram_mib=512, compressible=True),
    Scenario("leak_sawtooth", 240, 1024, zram_mib=1024, compressible=True),
    Scenario("sawtooth_safe", 200, 1024, zram_mib=512, compressible=True),
    Scenario("fork_workers", 150, 2048),
    Scenario("leak_linear", 30, 2048),
    Scenario("pushed_aside", 120, 768, swap_mib=768),
    Scenario("twice_too_large", 120, 768, swap_mib=512),
    Scenario("archive_in_shm", 90, 768, swap_mib=768),
    Scenario("stages_kept", 110, 768, swap_mib=768),
    Scenario("forgotten_results", 120, 768, swap_mib=768),
    Scenario("swapped_then_hot", 110, 768, swap_mib=512),
    Scenario("files_in_shm", 260, 512),
    Scenario("names_sought", 140, 512),
    Scenario("names_sought_then_leak", 140, 512),
]


def record(scenario: Scenario, folder: Path) -> str:
    """Record one scenario in a machine of its own; returns a line that says what happened."""
    scratch = tempfile.TemporaryDirectory(prefix=scenario.name)
    with (
        scratch as disks,
        Machine(image(), Path(disks), memory_mib=scenario.ram_mib, cpus=2, swap_mib=scenario.swap_mib) as machine,
    ):
        machine.boot(timeout_seconds=400)
        if scenario.zram_mib:
            machine.run("sh", "-ec", SET_UP_ZRAM.format(mib=scenario.zram_mib))
        machine.copy_in(HERE / "traces", "/root/traces")
        limit = scenario.seconds * 2 + 60
        said = machine.run(
            "env",
            f"COMPRESSIBLE={'1' * scenario.compressible}",
            "python3",
            "/root/traces/recorder.py",
            str(limit),
            "python3",
            "/root/traces/workloads.py",
            scenario.workload,
            str(scenario.seconds),
            timeout_seconds=limit + 240,
        )
    *trace, outcome = said.stdout.splitlines(keepends=True)
    truth = {"name": scenario.name, "scenario": scenario.workload, **json.loads(outcome)}
    if truth["verdict"] == "unfinished":
        return f"{scenario.name}: not kept, the fatal growth did not end within {limit:.0f} s"
    with gzip.GzipFile(folder / f"{scenario.name}.jsonl.gz", "wb", mtime=0) as file:
        file.write("".join(trace).encode())
    (folder / f"{scenario.name}.truth.json").write_text(json.dumps(truth) + "\n", encoding="utf-8")
    return f"{scenario.name}: {truth['verdict']}, tolerated {truth['tolerated']}, {len(trace) - 1} samples"


def main() -> None:
    """Record what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--machines", type=int, default=3, help="how many at a time")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    chosen = [s for s in SCENARIOS if not arguments.names or s.name in arguments.names]
    with ThreadPoolExecutor(arguments.machines) as pool:
        recordings = {pool.submit(record, scenario, arguments.folder): scenario for scenario in chosen}
        for recording in as_completed(recordings):
            try:
                print(recording.result(), flush=True)
            except RuntimeError as error:
                print(f"{recordings[recording].name}: {error}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
