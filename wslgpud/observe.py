"""What the risk engine sees of a live tick: the same record that a trace holds."""

from __future__ import annotations

from collections import defaultdict

from wslgpud.metrics import MetricSpec
from wslgpud.model import CgroupState, Number, Observation, PsiState, RamState, Snapshot, SwapState, VmState
from wslgpud.sources import cgroups, cpu, gpu, memory, pressure, wsl

_Values = dict[tuple[str, ...], Number]
SOURCES = (
    memory.MemorySource, pressure.PressureSource, cgroups.CgroupSource, cpu.CpuSource, wsl.WslSource
)  # fmt: skip
_KINDS = {memory.MemorySource.name: "ram", gpu.GpuSource.name: "gpu", cgroups.CgroupSource.name: "cgroup"}
_WANTED = {spec.name for source in SOURCES for spec in source.metrics}


def observe(snapshot: Snapshot) -> Observation:
    """Return the snapshot as the risk engine observes it; what was not read is None."""
    found: dict[str, _Values] = defaultdict(dict)
    for report in snapshot.reports:
        for spec, value, labels in report.sample.readings:
            if spec.name in _WANTED:
                found[spec.name][labels] = value
    return Observation(
        t=snapshot.mono,
        ram=_ram(found),
        swap=_swap(found),
        vm=_vm(found),
        psi={r: state for r in pressure.RESOURCES if (state := _psi(found, r)) != PsiState()},
        gpus=snapshot.gpus,
        processes=snapshot.processes,
        cgroups=_cgroups(found),
        wsl=wsl.WSL.name in found,
        gap_expected=any(event.kind == "clock_jump" for event in snapshot.events),
        exhausted=_exhausted(snapshot),
        expected=snapshot.expected,
        late=tuple(
            _KINDS[report.name]
            for report in snapshot.reports
            if report.name in _KINDS and report.health in ("late", "failed")
        ),
    )


def _exhausted(snapshot: Snapshot) -> tuple[str, ...]:
    """Name the GPU for which Windows has just refused memory; dxgkrnl does not say which of several."""
    for event in snapshot.events:
        fields = event.fields
        refused = fields.get("function") == "dxgkio_make_resident" and fields.get("error") == "ENOMEM"
        if event.kind == "dxg_error" and refused and not fields.get("past"):
            return (f"gpu{snapshot.gpus[0].index}",) if len(snapshot.gpus) == 1 else ("gpu",)
    return ()


def _whole(found: dict[str, _Values], spec: MetricSpec, *labels: str) -> int | None:
    value = found[spec.name].get(labels)
    return None if value is None else int(value)


def _level(found: dict[str, _Values], line: str) -> int | None:
    return _whole(found, memory.MEMINFO[line])


def _ram(found: dict[str, _Values]) -> RamState | None:
    total, available = _level(found, "MemTotal"), _level(found, "MemAvailable")
    if total is None or available is None:  # WSL1 tells no more than what is free, which says nothing
        return None
    return RamState(
        total=total,
        available=available,
        free=_level(found, "MemFree"),
        cached=_level(found, "Cached"),
        buffers=_level(found, "Buffers"),
        dirty=_level(found, "Dirty"),
        shmem=_level(found, "Shmem"),
        anon=_level(found, "AnonPages"),
        slab_reclaimable=_level(found, "SReclaimable"),
        slab_unreclaimable=_level(found, "SUnreclaim"),
        hugepages=_level(found, "Hugetlb"),
        committed=_level(found, "Committed_AS"),
    )


def _swap(found: dict[str, _Values]) -> SwapState | None:
    total, free = _level(found, "SwapTotal"), _level(found, "SwapFree")
    if total is None or free is None:
        return None
    return SwapState(total, free, _whole(found, memory.SWAP_IN), _whole(found, memory.SWAP_OUT))


def _vm(found: dict[str, _Values]) -> VmState | None:
    refaults = [v for kind in ("anon", "file") if (v := _whole(found, memory.REFAULTS, kind)) is not None]
    state = VmState(
        major_faults_total=_whole(found, memory.MAJOR_FAULTS),
        oom_kills_total=_whole(found, memory.OOM_KILLS),
        alloc_stalls_total=_whole(found, memory.ALLOC_STALLS),
        direct_scan_pages_total=_whole(found, memory.DIRECT_SCANNED),
        refault_pages_total=sum(refaults) if refaults else None,
        steal_pages_total=_whole(found, memory.RECLAIM_STOLEN),
        blocked_processes=_whole(found, cpu.BLOCKED),
    )
    return None if state == VmState() else state


def _psi(found: dict[str, _Values], resource: str) -> PsiState:
    def microseconds(spec: MetricSpec) -> int | None:
        seconds = found[spec.name].get((resource,))
        return None if seconds is None else round(seconds * 1_000_000)

    def percent(spec: MetricSpec) -> float | None:
        ratio = found[spec.name].get((resource, "10s"))
        return None if ratio is None else round(ratio * 100, 2)

    return PsiState(
        some_total_us=microseconds(pressure.WAITING_SECONDS),
        full_total_us=microseconds(pressure.STALLED_SECONDS),
        some_avg10=percent(pressure.WAITING_RATIO),
        full_avg10=percent(pressure.STALLED_RATIO),
    )


def _cgroups(found: dict[str, _Values]) -> tuple[CgroupState, ...]:
    states = []
    for (path,), limit in found[cgroups.LIMIT.name].items():
        current = _whole(found, cgroups.CURRENT, path)
        if current is not None:
            states.append(
                CgroupState(
                    path=path,
                    limit=int(limit),
                    current=current,
                    inactive_file=_whole(found, cgroups.INACTIVE_FILE, path),
                    active_file=_whole(found, cgroups.ACTIVE_FILE, path),
                    slab_reclaimable=_whole(found, cgroups.SLAB_RECLAIMABLE, path),
                    swap_limit=_whole(found, cgroups.SWAP_LIMIT, path),
                    swap_current=_whole(found, cgroups.SWAP_CURRENT, path),
                    max_events_total=_whole(found, cgroups.LIMIT_HITS, path),
                    oom_kills_total=_whole(found, cgroups.OOM_KILLS, path),
                )
            )
    return tuple(states)
