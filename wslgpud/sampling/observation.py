"""The risk engine's input, from a live tick or from the history; traces hold the same record."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from wslgpud import model
from wslgpud.metrics import MetricSpec
from wslgpud.sources import cgroups, cpu, gpu, memory, windows, wsl
from wslgpud.store.reader import Reader
from wslgpud.store.records import SeriesRef

#: modules whose metrics it is made of, besides samples of GPUs and processes
_OBSERVED = (memory.MemorySource, memory.PressureSource, cgroups.CgroupSource, cpu.CpuSource, wsl.WslSource)
_KINDS = {memory.MemorySource.name: "ram", gpu.GpuSource.name: "gpu", cgroups.CgroupSource.name: "cgroup"}


# Fields of the risk engine's states -> the metrics that fill them.
_RAM = {
    "total": memory.MEMINFO["MemTotal"],
    "available": memory.MEMINFO["MemAvailable"],
    "free": memory.MEMINFO["MemFree"],
    "cached": memory.MEMINFO["Cached"],
    "buffers": memory.MEMINFO["Buffers"],
    "dirty": memory.MEMINFO["Dirty"],
    "shmem": memory.MEMINFO["Shmem"],
    "anon": memory.MEMINFO["AnonPages"],
    "slab_reclaimable": memory.MEMINFO["SReclaimable"],
    "slab_unreclaimable": memory.MEMINFO["SUnreclaim"],
    "hugepages": memory.MEMINFO["Hugetlb"],
    "committed": memory.MEMINFO["Committed_AS"],
    "compressible": memory.COMPRESSIBLE,
}
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
_CGROUP = {
    "limit": cgroups.LIMIT,
    "current": cgroups.CURRENT,
    "inactive_file": cgroups.INACTIVE_FILE,
    "active_file": cgroups.ACTIVE_FILE,
    "slab_reclaimable": cgroups.SLAB_RECLAIMABLE,
    "swap_limit": cgroups.SWAP_LIMIT,
    "swap_current": cgroups.SWAP_CURRENT,
    "max_events_total": cgroups.LIMIT_HITS,
    "oom_kills_total": cgroups.OOM_KILLS,
}


def observation_of(snapshot: model.Snapshot) -> model.Observation:
    """Return the snapshot as the engine's input; values that were not read are None."""
    ram = _filled(snapshot, _RAM)
    return model.Observation(
        t=snapshot.mono,
        # WSL1 reports only free memory, which predicts nothing.
        ram=None if ram["total"] is None or ram["available"] is None else model.RamState(**ram),
        swap=_swap(snapshot),
        vm=_vm(snapshot),
        psi={r: state for r in memory.PRESSED if (state := _psi(snapshot, r)) != model.PsiState()},
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
        windows=_windows(snapshot),
        containers=_containers(snapshot),
    )


def _swap(seen: model.Snapshot) -> model.SwapState | None:
    """Return the swap space beside RAM: zram is in it."""
    swap = _filled(seen, _SWAP)
    if swap["total"] is None or swap["free"] is None:
        return None
    zram = {"total": int(seen.value(memory.ZRAM_TOTAL) or 0), "free": int(seen.value(memory.ZRAM_FREE) or 0)}
    return model.SwapState(**swap | {field: max(0, swap[field] - size) for field, size in zram.items()})


def _windows(seen: model.Snapshot) -> model.RamState | None:
    """Return Windows' RAM, or its commit limit where that is scarcer; only from a fresh answer."""
    if not any(report.name == windows.WindowsSource.name and report.fresh for report in seen.reports):
        return None
    return windows.scarcer(seen.value)


def _containers(seen: model.Snapshot) -> dict[str, int] | None:
    """Return what each session of WSL's containers holds; None where Windows' processes are not known."""
    if seen.value(windows.VM) is None:
        return None
    return {session: int(held) for (session,), held in seen.family(windows.CONTAINERS).items()}


def _gpus(seen: model.Snapshot) -> tuple[model.GpuSample, ...]:
    """Return the GPUs with Windows' counters, matched by name."""
    cards = {card.name: card for card in reversed(seen.gpus)}
    programs: dict[str, list[model.GpuProcess]] = defaultdict(list)
    for (adapter, program), held in seen.family(windows.GPU_PROGRAM).items():
        programs[adapter].append(model.GpuProcess(0, program, int(held)))
    for (name,), shared in seen.family(windows.GPU_SHARED).items():
        if name in cards:
            size, used = seen.value(windows.GPU_SIZE, name), seen.value(windows.GPU_DEDICATED, name)
            ratio = used / size if size and used is not None else None
            in_windows = tuple(programs[name])
            cards[name] = replace(cards[name], shared_bytes=int(shared), windows_ratio=ratio, in_windows=in_windows)
    known = {card.index: card for card in cards.values()}
    return tuple(known.get(card.index, card) for card in seen.gpus)


def _exhausted(snapshot: model.Snapshot) -> tuple[str, ...]:
    """Return the GPU on which Windows has just refused an allocation; dxgkrnl does not say which of several."""
    for event in snapshot.events:
        fields = event.fields
        refused = fields.get("function") == "dxgkio_make_resident" and fields.get("error") == "ENOMEM"
        if event.kind == "dxg_error" and refused and not fields.get("past"):
            return (f"gpu{snapshot.gpus[0].index}",) if len(snapshot.gpus) == 1 else ("gpu",)
    return ()


def _filled(seen: model.Snapshot, fields: Mapping[str, MetricSpec], *labels: str) -> dict[str, Any]:
    """Return the fields of a state, each with the value of its metric or None."""
    values = ((field, seen.value(spec, *labels)) for field, spec in fields.items())
    return {field: None if value is None else int(value) for field, value in values}


def _vm(seen: model.Snapshot) -> model.VmState | None:
    refaults = seen.family(memory.REFAULTS).values()
    state = model.VmState(**_filled(seen, _VM), refault_pages_total=int(sum(refaults)) if refaults else None)
    return None if state == model.VmState() else state


def _psi(seen: model.Snapshot, resource: str) -> model.PsiState:
    totals = (seen.value(spec, resource) for spec in (memory.WAITING_SECONDS, memory.STALLED_SECONDS))
    ratios = (seen.value(spec, resource, "10s") for spec in (memory.WAITING_RATIO, memory.STALLED_RATIO))
    some_us, full_us = (None if seconds is None else round(seconds * 1_000_000) for seconds in totals)
    some, full = (None if ratio is None else round(ratio * 100, 2) for ratio in ratios)
    return model.PsiState(some_total_us=some_us, full_total_us=full_us, some_avg10=some, full_avg10=full)


def _cgroups(seen: model.Snapshot) -> Iterator[model.CgroupState]:
    for (path,) in seen.family(cgroups.LIMIT):
        fields = _filled(seen, _CGROUP, path)
        if fields["current"] is not None:
            yield model.CgroupState(path, **fields)


WINDOW_SECONDS = 3600.0
#: older values are dropped
OLDEST_SECONDS, PROCESSES_OLDEST_SECONDS = 15.0, 150.0
#: a gap this long in the database means that the daemon was not running, not a stall
AWAY_SECONDS = 60.0

_GPU_FIELDS = {f"gpu_memory_{name}_bytes": f"{name}_bytes" for name in ("total", "used", "free", "reserved")}
_SPECS: dict[str, MetricSpec] = {
    spec.name: spec
    for spec in (
        *(spec for source in _OBSERVED for spec in source.metrics),
        *(spec for spec in gpu.FED if spec.name in _GPU_FIELDS),
    )
}
#: metrics that every tick has
_TELLING = {"gpu_memory_used_bytes", "memory_available_bytes"}

T = TypeVar("T")
Known = dict[SeriesRef, tuple[float, model.Number]]


def observations(reader: Reader, start_wall: float, end_wall: float) -> Iterator[model.Observation]:
    """Yield the observations recorded between two moments, in order; ``t`` is in seconds since the epoch.

    Reads an hour at a time, so that a month takes no more memory than an hour.
    """
    refs = [ref for ref in reader.series() if ref.metric in _SPECS]
    under_wsl = any(ref.metric == wsl.WSL.name for ref in refs)  # read once per minute, but constant
    known: Known = {}
    last: float | None = None
    while start_wall < end_wall:
        until = min(end_wall, start_wall + WINDOW_SECONDS)
        ticks: dict[float, list[tuple[SeriesRef, model.Number]]] = defaultdict(list)
        for ref in refs:
            for wall, value in zip(*reader.columns(ref, start_wall, until), strict=True):
                ticks[wall].append((ref, value))
        since = start_wall - PROCESSES_OLDEST_SECONDS
        processes = _last_seen(
            (p.wall, model.ProcessSample(p.pid, p.start_ticks, p.name, p.rss_bytes, p.swap_bytes))
            for p in reader.processes(since, until)
        )
        on_cards = _last_seen(
            (p.wall, (p.uuid, model.GpuProcess(p.pid, p.name, p.used_bytes)))
            for p in reader.gpu_processes(since, until)
        )
        for wall in sorted(ticks):
            known.update((ref, (wall, value)) for ref, value in ticks[wall])
            if not any(ref.metric in _TELLING for ref, _ in ticks[wall]) or wall == last:
                continue
            seen = _observation(wall, known, processes(wall), on_cards(wall))
            away = last is not None and wall - last > AWAY_SECONDS
            yield replace(seen, wsl=under_wsl, gap_expected=away)
            last = wall
        start_wall = until


def _last_seen(seen: Iterable[tuple[float, T]]) -> Callable[[float], Sequence[T]]:
    """Return a function from a moment to the value last seen then, unless too old."""
    by_time: dict[float, list[T]] = defaultdict(list)
    for wall, one in seen:
        by_time[wall].append(one)
    times = sorted(by_time)

    def at(wall: float) -> Sequence[T]:
        place = bisect_right(times, wall) - 1
        known = place >= 0 and wall - times[place] <= PROCESSES_OLDEST_SECONDS
        return by_time[times[place]] if known else ()

    return at


def _observation(
    wall: float, known: Known, running: Sequence[model.ProcessSample], on_cards: Sequence[tuple[str, model.GpuProcess]]
) -> model.Observation:
    young = [
        model.Reading(_SPECS[ref.metric], value, tuple(label for _, label in ref.labels))
        for ref, (t, value) in known.items()
        if wall - t <= OLDEST_SECONDS
    ]
    gpus = tuple(
        replace(gpu, processes=tuple(process for uuid, process in on_cards if uuid == gpu.uuid))
        for gpu in _recorded_gpus(young)
    )
    sample = model.Sample(readings=tuple(young), processes=tuple(running), gpus=gpus)
    # A stored tick becomes a snapshot again, so that both are turned into observations in one place.
    return observation_of(model.Snapshot(wall, wall, 0, (model.SourceReport("history", "ok", sample, wall, 0.0),)))


def _recorded_gpus(readings: Iterable[model.Reading]) -> Iterator[model.GpuSample]:
    cards: dict[tuple[str, str], dict[str, Any]] = defaultdict(dict)
    for spec, value, labels in readings:
        if spec.name in _GPU_FIELDS:
            index, uuid = labels
            cards[index, uuid][_GPU_FIELDS[spec.name]] = int(value)
    for (index, uuid), known in sorted(cards.items()):
        if index.isdigit():
            yield model.GpuSample(int(index), uuid, "", **known)
