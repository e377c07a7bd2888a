"""What the risk engine sees of a live tick: the same record that a trace holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from typing import Any

from wslgpud.metrics import MetricSpec
from wslgpud.model import CgroupState, GpuSample, Observation, PsiState, RamState, Snapshot, SwapState, VmState
from wslgpud.sources import cgroups, cpu, gpu, memory, pressure, windows, wsl

#: whose metrics it is made of, beside the samples of cards and processes
OBSERVED = (memory.MemorySource, pressure.PressureSource, cgroups.CgroupSource, cpu.CpuSource, wsl.WslSource)
_KINDS = {memory.MemorySource.name: "ram", gpu.GpuSource.name: "gpu", cgroups.CgroupSource.name: "cgroup"}


# Fields of the risk engine's states -> the metrics that fill them.
_MEMORY = {spec.name: spec for spec in memory.MemorySource.metrics}
_RAM = {field.name: _MEMORY[f"memory_{field.name}_bytes"] for field in fields(RamState)}
_SWAP = {
    "total": memory.MEMINFO["SwapTotal"],
    "free": memory.MEMINFO["SwapFree"],
    "in_bytes_total": memory.SWAP_IN,
    "out_bytes_total": memory.SWAP_OUT,
}
_VM = {
    "major_faults_total": memory.MAJOR_FAULTS,
    "oom_kills_total": memory.OOM_KILLS,
    "alloc_stalls_total": memory.ALLOC_STALLS,
    "direct_scan_pages_total": memory.DIRECT_SCANNED,
    "steal_pages_total": memory.RECLAIM_STOLEN,
    "blocked_processes": cpu.BLOCKED,
}
_CGROUP = dict(zip((field.name for field in fields(CgroupState)[1:]), cgroups.METRICS, strict=True))


def observe(snapshot: Snapshot) -> Observation:
    """Return the snapshot as the risk engine observes it; values that were not read are None."""
    ram, swap = _filled(snapshot, _RAM), _filled(snapshot, _SWAP)
    return Observation(
        t=snapshot.mono,
        # WSL1 reports only free memory, from which nothing follows.
        ram=None if ram["total"] is None or ram["available"] is None else RamState(**ram),
        swap=None if swap["total"] is None or swap["free"] is None else SwapState(**swap),
        vm=_vm(snapshot),
        psi={r: state for r in pressure.RESOURCES if (state := _psi(snapshot, r)) != PsiState()},
        gpus=_gpus(snapshot),
        processes=snapshot.processes,
        cgroups=tuple(_cgroups(snapshot)),
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
    """Return the cards with Windows' counters, which are matched by name."""
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


def _filled(seen: Snapshot, fields: Mapping[str, MetricSpec], *labels: str) -> dict[str, Any]:
    """Return the fields of a state, each with the value of its metric or None."""
    values = ((field, seen.value(spec, *labels)) for field, spec in fields.items())
    return {field: None if value is None else int(value) for field, value in values}


def _vm(seen: Snapshot) -> VmState | None:
    refaults = seen.family(memory.REFAULTS).values()
    state = VmState(**_filled(seen, _VM), refault_pages_total=int(sum(refaults)) if refaults else None)
    return None if state == VmState() else state


def _psi(seen: Snapshot, resource: str) -> PsiState:
    def scaled(spec: MetricSpec, factor: int, digits: int | None, *labels: str) -> Any:
        value = seen.value(spec, resource, *labels)
        return None if value is None else round(value * factor, digits)

    return PsiState(
        scaled(pressure.WAITING_SECONDS, 1_000_000, None),
        scaled(pressure.STALLED_SECONDS, 1_000_000, None),
        scaled(pressure.WAITING_RATIO, 100, 2, "10s"),
        scaled(pressure.STALLED_RATIO, 100, 2, "10s"),
    )


def _cgroups(seen: Snapshot) -> Iterator[CgroupState]:
    for (path,) in seen.family(cgroups.LIMIT):
        found = _filled(seen, _CGROUP, path)
        if found["current"] is not None:
            yield CgroupState(path, **found)
