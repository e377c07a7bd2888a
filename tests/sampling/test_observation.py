"""The risk engine sees a live tick as it sees a recorded trace: complete, or None where nothing is known."""

from __future__ import annotations

from dataclasses import fields, replace

from wslgpud.config import Config
from wslgpud.host import Host
from wslgpud.model import (
    CgroupState,
    Event,
    GpuSample,
    Observation,
    PsiState,
    RamState,
    Reading,
    Sample,
    Snapshot,
    SourceReport,
)
from wslgpud.sampling import observation
from wslgpud.sampling.observation import observation_of
from wslgpud.sampling.sampler import SOURCES, Sampler
from wslgpud.sources import cgroups, cpu, memory, windows, wsl
from wslgpud.sources.memory import MEMINFO


def snapshot(*samples: Sample, fresh: bool = True) -> Snapshot:
    reports = [SourceReport(f"s{i}", "ok", s, 5.0, 0.01, fresh=fresh) for i, s in enumerate(samples)]
    return Snapshot(1_790_000_000.0, 5.0, 1, tuple(reports))


def readings(*triples) -> Sample:
    return Sample(tuple(Reading(*t) for t in triples))


def test_nothing_known_is_none_not_zero():
    assert observation_of(snapshot()) == Observation(t=5.0)


def test_every_field_of_ram_and_cgroups_has_its_metric():
    assert observation._RAM.keys() == {field.name for field in fields(RamState)}
    assert {"path", *observation._CGROUP} == {field.name for field in fields(CgroupState)}


def test_memory_swap_and_reclaim_arrive_in_their_places():
    seen = observation_of(
        snapshot(
            readings(
                (MEMINFO["MemTotal"], 1000),
                (MEMINFO["MemAvailable"], 400),
                (MEMINFO["Shmem"], 7),
                (MEMINFO["SwapTotal"], 50),
                (MEMINFO["SwapFree"], 20),
                (memory.SWAP_IN, 8192),
                (memory.REFAULTS, 3, ("anon",)),
                (memory.REFAULTS, 4, ("file",)),
                (memory.OOM_KILLS, 1),
                (cpu.BLOCKED, 6),
            )
        )
    )
    assert (seen.ram.total, seen.ram.available, seen.ram.shmem, seen.ram.cached) == (1000, 400, 7, None)
    assert (seen.swap.total, seen.swap.free, seen.swap.in_bytes_total, seen.swap.out_bytes_total) == (
        50,
        20,
        8192,
        None,
    )
    assert (seen.vm.refault_pages_total, seen.vm.oom_kills_total, seen.vm.blocked_processes) == (7, 1, 6)
    assert seen.vm.alloc_stalls_total is None


def test_swap_on_zram_is_no_swap_beside_ram():
    figures = ((MEMINFO["SwapTotal"], 50), (MEMINFO["SwapFree"], 40), (memory.ZRAM_TOTAL, 30), (memory.ZRAM_FREE, 25))
    ram = ((MEMINFO["MemTotal"], 1000), (MEMINFO["MemAvailable"], 400), (memory.COMPRESSIBLE, 9))
    seen = observation_of(snapshot(readings(*figures, *ram)))
    assert (seen.swap.total, seen.swap.free, seen.ram.compressible) == (20, 15, 9)


def test_pressure_is_in_the_kernels_microseconds_and_percent():
    seen = observation_of(
        snapshot(
            readings(
                (memory.WAITING_SECONDS, 123.456789, ("memory",)),
                (memory.WAITING_RATIO, 0.12345678, ("memory", "10s")),
                (memory.STALLED_SECONDS, 0.25, ("io",)),
                (memory.STALLED_RATIO, 0.98765432, ("io", "10s")),
            )
        )
    )
    assert seen.psi == {
        "memory": PsiState(some_total_us=123456789, some_avg10=12.35),
        "io": PsiState(full_total_us=250000, full_avg10=98.77),
    }


def test_each_limited_cgroup_is_one_state():
    seen = observation_of(
        snapshot(
            readings(
                (cgroups.LIMIT, 100, ("/a",)),
                (cgroups.CURRENT, 60, ("/a",)),
                (cgroups.INACTIVE_FILE, 5, ("/a",)),
                (cgroups.LIMIT, 200, ("/ended",)),
            )
        )
    )
    (state,) = seen.cgroups
    assert (state.path, state.limit, state.current, state.inactive_file, state.swap_current) == ("/a", 100, 60, 5, None)


def test_a_clock_jump_marks_the_gap_as_no_stall_only_once():
    jump = Sample(events=(Event("clock_jump", 1.0, "the clock jumped"),))
    assert observation_of(snapshot(jump)).gap_expected
    assert not observation_of(snapshot(jump, fresh=False)).gap_expected


def test_gpus_and_wsl_are_passed_on():
    gpu = GpuSample(0, "GPU-1", "RTX 5070 Ti", total_bytes=16 << 30)
    seen = observation_of(snapshot(Sample(gpus=(gpu,)), readings((wsl.WSL, 1, ("2", "", "", "")))))
    assert seen.gpus == (gpu,)
    assert seen.wsl


def test_this_machine_is_observed_through_the_real_sampler():
    host = Host()
    sampler = Sampler([source(host, Config()) for source in SOURCES], host.clock, 1.0)
    try:
        # On a busy machine a lane may miss its deadline; what it read comes with a later tick.
        ticks = (observation_of(sampler.tick()) for _ in range(100))
        seen = next(o for o in ticks if o.ram and o.vm and o.processes)
    finally:
        sampler.close()
    assert 0 < seen.ram.available < seen.ram.total
    assert seen.vm.major_faults_total > 0
    assert seen.processes[0].rss_bytes >= seen.processes[-1].rss_bytes > 0


def test_only_a_new_refusal_by_windows_marks_cards_as_exhausted():
    def refusal(past: int, error: str = "ENOMEM") -> Event:
        fields = {"function": "dxgkio_make_resident", "error": error, "past": past}
        return Event("dxg_error", 0.0, "dxgkio_make_resident: Ioctl failed: -12", fields)

    card = GpuSample(index=1, uuid="GPU-1", name="RTX")
    assert observation_of(snapshot(Sample(gpus=(card,)), Sample(events=(refusal(0),)))).exhausted == ("gpu1",)
    assert observation_of(snapshot(Sample(gpus=(card,)), Sample(events=(refusal(1),)))).exhausted == ()
    assert observation_of(snapshot(Sample(gpus=(card,)), Sample(events=(refusal(0, "EINVAL"),)))).exhausted == ()


def test_an_unresponsive_source_is_named_by_its_resource():
    late = [
        SourceReport("memory", "late", Sample(), 5.0, 0.6),
        SourceReport("gpu", "failed", Sample(), 5.0, 0.6),
        SourceReport("cgroups", "absent", Sample(), 5.0, 0.6),
        SourceReport("disk", "late", Sample(), 5.0, 0.6),
        SourceReport("windows", "failed", Sample(), 5.0, 15.0),
    ]
    assert observation_of(Snapshot(1_790_000_000.0, 5.0, 1, tuple(late))).late == ("ram", "gpu", "windows")


def test_windows_values_are_matched_to_a_card_by_its_name():
    cards = (GpuSample(0, "GPU-0", "RTX 5070 Ti"), GpuSample(1, "GPU-1", "T400"))
    told = readings(
        (windows.GPU_SIZE, 1000, ("RTX 5070 Ti",)),
        (windows.GPU_DEDICATED, 990, ("RTX 5070 Ti",)),
        (windows.GPU_SHARED, 300, ("RTX 5070 Ti",)),
        (windows.GPU_SHARED, 70, ("Intel(R) UHD Graphics",)),
    )
    first, second = observation_of(snapshot(Sample(gpus=cards), told)).gpus
    assert (first.index, first.shared_bytes, first.windows_ratio) == (0, 300, 0.99)
    assert second == cards[1]


def test_windows_memory_is_the_scarcer_of_ram_and_commit():
    told = readings((windows.TOTAL, 64), (windows.AVAILABLE, 32), (windows.COMMIT_LIMIT, 100), (windows.COMMITTED, 95))
    asked = SourceReport("windows", "ok", told, 1.0, 0.0)
    assert observation_of(Snapshot(1.0, 1.0, 0, (asked,))).windows == RamState(100, 5)
    assert observation_of(Snapshot(1.0, 1.0, 0, (replace(asked, fresh=False),))).windows is None
    over = readings((windows.COMMIT_LIMIT, 100), (windows.COMMITTED, 101))
    assert observation_of(Snapshot(1.0, 1.0, 0, (replace(asked, sample=over),))).windows == RamState(100, 0)
    ram = replace(asked, sample=readings((windows.TOTAL, 64), (windows.AVAILABLE, 32)))
    assert observation_of(Snapshot(1.0, 1.0, 0, (ram,))).windows == RamState(64, 32)
    assert observation_of(Snapshot(1.0, 1.0, 0, (replace(asked, sample=Sample()),))).windows is None
