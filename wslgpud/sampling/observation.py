"""The risk engine's input, from a live tick or from the history; traces hold the same record."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, TypeVar

from wslgpud import model
from wslgpud.metrics import MetricSpec
from wslgpud.risk.headroom import WINDOWS
from wslgpud.sources import cgroups, cpu, gpu, memory, windows, wsl
from wslgpud.store.reader import Reader
from wslgpud.store.records import SeriesRef

#: modules whose metrics it is made of, besides samples of GPUs and processes
_OBSERVED = (memory.MemorySource, memory.PressureSource, cgroups.CgroupSource, cpu.CpuSource, wsl.WslSource)
_KINDS = {
    memory.MemorySource.name: "ram",
    gpu.GpuSource.name: "gpu",
    cgroups.CgroupSource.name: "cgroup",
    windows.WindowsSource.name: WINDOWS,
}


#: returns the known values of a metric by their labels
Families = Callable[[MetricSpec], Mapping[tuple[str, ...], model.Number]]

# Fields of the risk engine's states -> the metrics that fill them.
_MEMORY = {spec.name: spec for spec in memory.MemorySource.metrics}
_RAM = {field.name: _MEMORY[f"memory_{field.name}_bytes"] for field in fields(model.RamState)}
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
#: Windows' counters of a card
_OF_WINDOWS = (windows.GPU_SHARED, windows.GPU_SIZE, windows.GPU_DEDICATED)


def observation_of(snapshot: model.Snapshot) -> model.Observation:
    """Return the snapshot as the engine's input; values that were not read are None."""
    windows_fresh = any(report.name == windows.WindowsSource.name and report.fresh for report in snapshot.reports)
    return replace(
        _measured(snapshot.mono, snapshot.family, snapshot.gpus, snapshot.processes),
        wsl=bool(snapshot.family(wsl.WSL)),
        gap_expected=any(event.kind == "clock_jump" for event in snapshot.events),
        exhausted=_exhausted(snapshot),
        late=tuple(
            _KINDS[report.name]
            for report in snapshot.reports
            if report.name in _KINDS and report.health in ("late", "failed")
        ),
        windows=windows.scarcer(snapshot.value) if windows_fresh else None,
        containers=_containers(snapshot),
    )


def _measured(
    t: float, seen: Families, gpus: Sequence[model.GpuSample], processes: Sequence[model.ProcessSample]
) -> model.Observation:
    """Return what is measured at every tick, live or stored."""
    ram, swap = _filled(seen, _RAM), _filled(seen, _SWAP)
    for field, spec in (("total", memory.ZRAM_TOTAL), ("free", memory.ZRAM_FREE)):  # zram is in the RAM
        if swap[field] is not None:
            swap[field] = max(0, swap[field] - (_value(seen, spec) or 0))
    refaults = seen(memory.REFAULTS).values()
    vm = model.VmState(**_filled(seen, _VM), refault_pages_total=int(sum(refaults)) if refaults else None)
    return model.Observation(
        t=t,
        # WSL1 reports only free memory, which predicts nothing.
        ram=None if ram["total"] is None or ram["available"] is None else model.RamState(**ram),
        swap=None if swap["total"] is None or swap["free"] is None else model.SwapState(**swap),
        vm=None if vm == model.VmState() else vm,
        psi={r: state for r in memory.PRESSED if (state := _psi(seen, r)) != model.PsiState()},
        gpus=tuple(_with_windows(seen, gpus)),
        processes=tuple(processes),
        cgroups=tuple(
            model.CgroupState(path, **known)
            for (path,) in seen(cgroups.LIMIT)
            if (known := _filled(seen, _CGROUP, path))["current"] is not None
        ),
    )


def _value(seen: Families, spec: MetricSpec, *labels: str) -> int | None:
    value = seen(spec).get(labels)
    return None if value is None else int(value)


def _filled(seen: Families, specs: Mapping[str, MetricSpec], *labels: str) -> dict[str, Any]:
    """Return the fields of a state, each with the value of its metric or None."""
    return {field: _value(seen, spec, *labels) for field, spec in specs.items()}


def _psi(seen: Families, resource: str) -> model.PsiState:
    totals = (seen(spec).get((resource,)) for spec in (memory.WAITING_SECONDS, memory.STALLED_SECONDS))
    ratios = (seen(spec).get((resource, "10s")) for spec in (memory.WAITING_RATIO, memory.STALLED_RATIO))
    some_us, full_us = (None if seconds is None else round(seconds * 1_000_000) for seconds in totals)
    some, full = (None if ratio is None else round(ratio * 100, 2) for ratio in ratios)
    return model.PsiState(some_total_us=some_us, full_total_us=full_us, some_avg10=some, full_avg10=full)


def _with_windows(seen: Families, gpus: Sequence[model.GpuSample]) -> Iterator[model.GpuSample]:
    """Yield the GPUs, each with Windows' counters of the first card of its name."""
    named = set[str]()
    for card in gpus:
        shared, size, used = (_value(seen, spec, card.name) for spec in _OF_WINDOWS)
        first = card.name not in named
        named.add(card.name)
        if shared is None or not first:
            yield card
            continue
        programs = seen(windows.GPU_PROGRAM).items()
        in_windows = tuple(model.GpuProcess(0, name, int(held)) for (on, name), held in programs if on == card.name)
        ratio = used / size if size and used is not None else None
        yield replace(card, shared_bytes=shared, windows_ratio=ratio, in_windows=in_windows)


def _containers(seen: model.Snapshot) -> dict[str, int] | None:
    """Return what each session of WSL's containers holds; None where Windows' processes are not known."""
    if seen.value(windows.VM) is None:
        return None
    return {session: int(held) for (session,), held in seen.family(windows.CONTAINERS).items()}


def _exhausted(snapshot: model.Snapshot) -> tuple[str, ...]:
    """Return the GPU on which Windows has just refused an allocation; dxgkrnl does not say which of several."""
    for event in snapshot.events:
        facts = event.fields
        refused = facts.get("function") == "dxgkio_make_resident" and facts.get("error") == "ENOMEM"
        if event.kind == "dxg_error" and refused and not facts.get("past"):
            return (f"gpu{snapshot.gpus[0].index}",) if len(snapshot.gpus) == 1 else ("gpu",)
    return ()


WINDOW_SECONDS = 3600.0
#: older values are dropped
OLDEST_SECONDS, PROCESSES_OLDEST_SECONDS = 15.0, 150.0
#: a gap this long in the database means that the daemon was not running, not a stall
AWAY_SECONDS = 60.0

_GPU_FIELDS = {f"gpu_memory_{name}_bytes": f"{name}_bytes" for name in ("total", "used", "free", "reserved")}
_STORED = {spec.name for source in _OBSERVED for spec in source.metrics} | _GPU_FIELDS.keys()
#: metrics that every tick has
_TELLING = {"gpu_memory_used_bytes", "memory_available_bytes"}

T = TypeVar("T")
Known = dict[SeriesRef, tuple[float, model.Number]]


def observations(reader: Reader, start_wall: float, end_wall: float) -> Iterator[model.Observation]:
    """Yield the observations recorded between two moments, in order; ``t`` is in seconds since the epoch.

    Reads an hour at a time, so that a month takes no more memory than an hour.
    """
    refs = [ref for ref in reader.series() if ref.metric in _STORED]
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
    young: dict[str, model.Values] = defaultdict(dict)
    for ref, (t, value) in known.items():
        if wall - t <= OLDEST_SECONDS:
            young[ref.metric][tuple(label for _, label in ref.labels)] = value
    cards: dict[tuple[str, str], dict[str, Any]] = defaultdict(dict)
    for metric, field in _GPU_FIELDS.items():
        for (index, uuid), value in young[metric].items():
            cards[index, uuid][field] = int(value)
    gpus = [
        model.GpuSample(int(index), uuid, "", processes=tuple(one for card, one in on_cards if card == uuid), **sizes)
        for (index, uuid), sizes in sorted(cards.items())
        if index.isdigit()
    ]
    return _measured(wall, lambda spec: young.get(spec.name, {}), gpus, running)
