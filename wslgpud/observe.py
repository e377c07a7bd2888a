"""What the risk engine sees of a live tick: the same record that a trace holds."""

from __future__ import annotations

from dataclasses import replace

from wslgpud.metrics import MetricSpec
from wslgpud.model import (
    CgroupState,
    GpuSample,
    Observation,
    PsiState,
    RamState,
    Snapshot,
    SwapState,
    VmState,
)
from wslgpud.sources import cgroups, cpu, gpu, memory, pressure, windows, wsl

#: whose metrics it is made of, beside the samples of cards and processes
OBSERVED = (
    memory.MemorySource, pressure.PressureSource, cgroups.CgroupSource, cpu.CpuSource, wsl.WslSource
)  # fmt: skip
_KINDS = {memory.MemorySource.name: "ram", gpu.GpuSource.name: "gpu", cgroups.CgroupSource.name: "cgroup"}


def observe(snapshot: Snapshot) -> Observation:
    """Return the snapshot as the risk engine observes it; what was not read is None."""
    return Observation(
        t=snapshot.mono,
        ram=_ram(snapshot),
        swap=_swap(snapshot),
        vm=_vm(snapshot),
        psi={r: state for r in pressure.RESOURCES if (state := _psi(snapshot, r)) != PsiState()},
        gpus=_gpus(snapshot),
        processes=snapshot.processes,
        cgroups=_cgroups(snapshot),
        wsl=bool(snapshot.family(wsl.WSL)),
        gap_expected=any(event.kind == "clock_jump" for event in snapshot.events),
        exhausted=_exhausted(snapshot),
        late=tuple(
            _KINDS[report.name]
            for report in snapshot.reports
            if report.name in _KINDS and report.health in ("late", "failed")
        ),
    )


def _gpus(seen: Snapshot) -> tuple[GpuSample, ...]:
    """Return the cards with what Windows tells of them: it knows them by their names alone."""
    cards = {card.name: card for card in reversed(seen.gpus)}
    for (name,), shared in seen.family(windows.GPU_SHARED).items():
        if name in cards:
            size, used = seen.value(windows.GPU_SIZE, name), seen.value(windows.GPU_DEDICATED, name)
            ratio = used / size if size and used is not None else None
            cards[name] = replace(cards[name], shared_bytes=int(shared), windows_ratio=ratio)
    known = {card.index: card for card in cards.values()}
    return tuple(known.get(card.index, card) for card in seen.gpus)


def _exhausted(snapshot: Snapshot) -> tuple[str, ...]:
    """Name the GPU for which Windows has just refused memory; dxgkrnl does not say which of several."""
    for event in snapshot.events:
        fields = event.fields
        refused = fields.get("function") == "dxgkio_make_resident" and fields.get("error") == "ENOMEM"
        if event.kind == "dxg_error" and refused and not fields.get("past"):
            return (f"gpu{snapshot.gpus[0].index}",) if len(snapshot.gpus) == 1 else ("gpu",)
    return ()


def _whole(seen: Snapshot, spec: MetricSpec, *labels: str) -> int | None:
    value = seen.value(spec, *labels)
    return None if value is None else int(value)


def _level(seen: Snapshot, line: str) -> int | None:
    return _whole(seen, memory.MEMINFO[line])


def _ram(seen: Snapshot) -> RamState | None:
    total, available = _level(seen, "MemTotal"), _level(seen, "MemAvailable")
    if total is None or available is None:  # WSL1 tells no more than what is free, which says nothing
        return None
    return RamState(
        total=total,
        available=available,
        free=_level(seen, "MemFree"),
        cached=_level(seen, "Cached"),
        buffers=_level(seen, "Buffers"),
        dirty=_level(seen, "Dirty"),
        shmem=_level(seen, "Shmem"),
        anon=_level(seen, "AnonPages"),
        slab_reclaimable=_level(seen, "SReclaimable"),
        slab_unreclaimable=_level(seen, "SUnreclaim"),
        hugepages=_level(seen, "Hugetlb"),
        committed=_level(seen, "Committed_AS"),
    )


def _swap(seen: Snapshot) -> SwapState | None:
    total, free = _level(seen, "SwapTotal"), _level(seen, "SwapFree")
    if total is None or free is None:
        return None
    return SwapState(total, free, _whole(seen, memory.SWAP_IN), _whole(seen, memory.SWAP_OUT))


def _vm(seen: Snapshot) -> VmState | None:
    refaults = [v for kind in ("anon", "file") if (v := _whole(seen, memory.REFAULTS, kind)) is not None]
    state = VmState(
        major_faults_total=_whole(seen, memory.MAJOR_FAULTS),
        oom_kills_total=_whole(seen, memory.OOM_KILLS),
        alloc_stalls_total=_whole(seen, memory.ALLOC_STALLS),
        direct_scan_pages_total=_whole(seen, memory.DIRECT_SCANNED),
        refault_pages_total=sum(refaults) if refaults else None,
        steal_pages_total=_whole(seen, memory.RECLAIM_STOLEN),
        blocked_processes=_whole(seen, cpu.BLOCKED),
    )
    return None if state == VmState() else state


def _psi(seen: Snapshot, resource: str) -> PsiState:
    def microseconds(spec: MetricSpec) -> int | None:
        seconds = seen.value(spec, resource)
        return None if seconds is None else round(seconds * 1_000_000)

    def percent(spec: MetricSpec) -> float | None:
        ratio = seen.value(spec, resource, "10s")
        return None if ratio is None else round(ratio * 100, 2)

    return PsiState(
        some_total_us=microseconds(pressure.WAITING_SECONDS),
        full_total_us=microseconds(pressure.STALLED_SECONDS),
        some_avg10=percent(pressure.WAITING_RATIO),
        full_avg10=percent(pressure.STALLED_RATIO),
    )


def _cgroups(seen: Snapshot) -> tuple[CgroupState, ...]:
    states = []
    for (path,), limit in seen.family(cgroups.LIMIT).items():
        current = _whole(seen, cgroups.CURRENT, path)
        if current is not None:
            states.append(
                CgroupState(
                    path=path,
                    limit=int(limit),
                    current=current,
                    inactive_file=_whole(seen, cgroups.INACTIVE_FILE, path),
                    active_file=_whole(seen, cgroups.ACTIVE_FILE, path),
                    slab_reclaimable=_whole(seen, cgroups.SLAB_RECLAIMABLE, path),
                    swap_limit=_whole(seen, cgroups.SWAP_LIMIT, path),
                    swap_current=_whole(seen, cgroups.SWAP_CURRENT, path),
                    max_events_total=_whole(seen, cgroups.LIMIT_HITS, path),
                    oom_kills_total=_whole(seen, cgroups.OOM_KILLS, path),
                )
            )
    return tuple(states)
