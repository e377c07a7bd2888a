"""CPU cost of reading the GPU once per second, daemon and probe together.

Goal: well below 1 ms of CPU per tick. Uses the machine's NVML if there is one, else a fake library, which excludes the
driver's own share. The comparison is the usual method: running nvidia-smi for each sample.

    pytest -m bench -s tests/bench/bench_nvml.py
"""

from __future__ import annotations

import resource
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from wslgpud.config import Config, Sampling
from wslgpud.host import Host, NoData
from wslgpud.sources.gpu import GpuSource

pytestmark = pytest.mark.bench

TICKS = 20
FAKE = Path(__file__).parents[1] / "fake_nvml" / "fake_nvml.c"
QUERY = "memory.used,memory.free,utilization.gpu,temperature.gpu,power.draw,clocks.sm,pstate"


@pytest.fixture
def source(tmp_path):
    found = GpuSource(Host(), Config())
    try:
        found.read()
    except NoData:
        found.close()
        if not shutil.which("cc"):
            pytest.skip("neither a GPU nor a C compiler for a fake one")
        library = tmp_path / "libnvidia-ml.so.1"
        options = ["-std=c11", "-D_GNU_SOURCE", "-O1", "-shared", "-fPIC"]
        subprocess.run(["cc", *options, "-o", library, FAKE, "-ldl"], check=True)
        found = GpuSource(Host(), Config(sampling=Sampling(nvml_library=str(library))))
        found.read()
    yield found
    found.close()


def cpu_seconds(pid):
    """Return the CPU time of a process, in nanosecond resolution if the kernel provides it."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9
    except FileNotFoundError:
        user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / 100


def memory_kib(pid, key):
    rows = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(row.split()[1]) for row in rows if row.startswith(key))


def test_cost_of_a_tick(source):
    pid = source._probe.pid
    child_before, spent, walls = cpu_seconds(pid), 0.0, []
    for _ in range(TICKS):
        time.sleep(1)
        wall, cpu = time.perf_counter(), time.thread_time()
        source.read()
        spent += time.thread_time() - cpu
        walls.append(time.perf_counter() - wall)
    child = (cpu_seconds(pid) - child_before) / TICKS
    daemon = spent / TICKS
    print(f"\n{next(iter(source._gpus.values())).identity['name']}, {TICKS} ticks, one a second")
    print(f"  CPU a tick: daemon {daemon * 1e3:.3f} ms + probe {child * 1e3:.3f} ms")
    print(f"  wall a tick: median {sorted(walls)[TICKS // 2] * 1e3:.3f} ms, longest {max(walls) * 1e3:.3f} ms")
    print(f"  probe's memory: RSS {memory_kib(pid, 'Rss')} KiB, PSS {memory_kib(pid, 'Pss:')} KiB")
    if shutil.which("nvidia-smi"):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        wall = time.perf_counter()
        for _ in range(5):
            subprocess.run(["nvidia-smi", f"--query-gpu={QUERY}", "--format=csv"], check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        wall = time.perf_counter() - wall
        print(f"  nvidia-smi a sample: CPU {cpu / 5 * 1e3:.1f} ms, wall {wall / 5 * 1e3:.1f} ms")
    assert daemon + child < 0.005, "five times the goal: something is broken, not merely slow"
