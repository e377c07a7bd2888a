"""One sample of a trace: a JSON object on its line, and the observation that it stands for."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from wslgpud.model import (
    CgroupState,
    Expected,
    GpuProcess,
    GpuSample,
    Observation,
    ProcessSample,
    PsiState,
    RamState,
    SwapState,
    VmState,
)
from wslgpud.words import say


def section(row: Mapping[str, Any], key: str) -> Mapping[str, Any] | None:
    """Return the object at a key, or None.

    Raises:
        ValueError: it is something else.
    """
    value = row.get(key)
    if value is None:
        return None
    if not isinstance(value, dict):
        kind = type(value).__name__
        raise ValueError(say("{key} must be an object, not {kind}", key=repr(key), kind=kind))  # noqa: TRY004 - a file's content
    return value


def _items(row: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    value = row.get(key)
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise ValueError(say("{key} must be a list of objects", key=repr(key)))
    return value


def _names(row: Mapping[str, Any], key: str) -> tuple[str, ...]:
    value = row.get(key)
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise ValueError(say("{key} must be a list of names", key=repr(key)))
    return tuple(value)


def _number(row: Mapping[str, Any], key: str) -> float | None:
    """Return a number; NaN and infinity, which other recorders write for what they do not know, are None."""
    value = row.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        told = say("{key} must be a number, not {value}", key=repr(key), value=repr(value))
        raise ValueError(told)  # noqa: TRY004 - a file's content
    return value if math.isfinite(value) else None


def _int(row: Mapping[str, Any], key: str) -> int | None:
    value = _number(row, key)
    return None if value is None else int(value)


def _float(row: Mapping[str, Any], key: str) -> float | None:
    value = _number(row, key)
    return None if value is None else float(value)


def _text(row: Mapping[str, Any], key: str) -> str:
    value = row.get(key)
    return "" if value is None else str(value)


def _ratio(row: Mapping[str, Any], key: str) -> float | None:
    value = _float(row, key)
    return None if value is None else value / 100.0


def _ram(row: Mapping[str, Any]) -> RamState | None:
    ram = section(row, "ram")
    if ram is None:
        return None
    total, available = _int(ram, "total"), _int(ram, "available")
    if total is None or available is None:
        return None
    rest = ("free", "cached", "buffers", "dirty", "shmem", "anon", "slab_reclaimable", "slab_unreclaimable",
            "hugepages", "committed")  # fmt: skip
    return RamState(total, available, **{key: _int(ram, key) for key in rest})


def _swap(row: Mapping[str, Any]) -> SwapState | None:
    swap = section(row, "swap")
    if swap is None:
        return None
    total, free = _int(swap, "total"), _int(swap, "free")
    if total is None or free is None:
        return None
    return SwapState(total, free, _int(swap, "in_bytes_total"), _int(swap, "out_bytes_total"))


def _vm(row: Mapping[str, Any]) -> VmState | None:
    vm = section(row, "vm")
    if vm is None:
        return None
    keys = ("major_faults_total", "oom_kills_total", "alloc_stalls_total", "direct_scan_pages_total",
            "refault_pages_total", "steal_pages_total", "blocked_processes")  # fmt: skip
    return VmState(**{key: _int(vm, key) for key in keys})


def _psi(row: Mapping[str, Any]) -> dict[str, PsiState]:
    found = {}
    for name, state in (section(row, "psi") or {}).items():
        if isinstance(state, dict):
            found[name] = PsiState(
                _int(state, "some_total_us"),
                _int(state, "full_total_us"),
                _float(state, "some_avg10"),
                _float(state, "full_avg10"),
            )
    return found


def _gpu(position: int, row: Mapping[str, Any]) -> GpuSample:
    index = _int(row, "index")
    return GpuSample(
        index=position if index is None else index,
        uuid=_text(row, "uuid"),
        name=_text(row, "name"),
        total_bytes=_int(row, "total"),
        used_bytes=_int(row, "used"),
        free_bytes=_int(row, "free"),
        reserved_bytes=_int(row, "reserved"),
        utilization_ratio=_ratio(row, "util"),
        memory_utilization_ratio=_ratio(row, "mem_util"),
        power_watts=_float(row, "power_w"),
        temperature_celsius=_float(row, "temp_c"),
        processes=tuple(
            GpuProcess(pid, _text(process, "name"), _int(process, "used"))
            for process in _items(row, "procs")
            if (pid := _int(process, "pid")) is not None
        ),
        shared_bytes=_int(row, "shared"),
        windows_ratio=_ratio(row, "windows"),
    )


def _process(row: Mapping[str, Any]) -> ProcessSample | None:
    pid, rss = _int(row, "pid"), _int(row, "rss")
    if pid is None or rss is None:
        return None
    return ProcessSample(
        pid=pid,
        start_ticks=_int(row, "start") or 0,
        name=_text(row, "name"),
        rss_bytes=rss,
        swap_bytes=_int(row, "swap") or 0,
        command=_text(row, "command"),
        cgroup=_text(row, "cgroup"),
    )


def _cgroup(row: Mapping[str, Any]) -> CgroupState | None:
    limit, current = _int(row, "limit"), _int(row, "current")
    if limit is None or current is None:
        return None
    rest = (
        "inactive_file",
        "active_file",
        "slab_reclaimable",
        "swap_limit",
        "swap_current",
        "max_events_total",
        "oom_kills_total",
    )
    return CgroupState(_text(row, "path"), limit, current, **{key: _int(row, key) for key in rest})


def _expected(row: Mapping[str, Any]) -> Expected | None:
    peak, used = _int(row, "peak"), _int(row, "used")
    if peak is None or used is None:
        return None
    pids = tuple(pid for pid in row.get("pids") or () if isinstance(pid, int))
    return Expected(_text(row, "resource"), _text(row, "who"), peak, used, pids)


def observation_from_row(row: Mapping[str, Any], *, wsl: bool = False) -> Observation:
    """Turn one sample of a trace into what the engine observes.

    Raises:
        ValueError: a value has the wrong type, or ``t`` is missing.
    """
    t = _float(row, "t")
    if t is None:
        raise ValueError(say("'t' is missing, or no finite number"))
    return Observation(
        t=t,
        ram=_ram(row),
        swap=_swap(row),
        vm=_vm(row),
        psi=_psi(row),
        gpus=tuple(_gpu(i, gpu) for i, gpu in enumerate(_items(row, "gpus"))),
        processes=tuple(p for p in map(_process, _items(row, "procs")) if p is not None),
        cgroups=tuple(c for c in map(_cgroup, _items(row, "cgroups")) if c is not None),
        wsl=wsl,
        gap_expected=bool(row.get("gap_expected", False)),
        exhausted=_names(row, "exhausted"),
        late=_names(row, "late"),
        expected=tuple(e for e in map(_expected, _items(row, "expected")) if e is not None),
    )


def _known(**values: Any) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


def _percent(ratio: float | None) -> float | None:
    return None if ratio is None else round(100.0 * ratio, 1)


def _slots(record: Any) -> dict[str, Any]:
    return _known(**{name: getattr(record, name) for name in record.__slots__})


def row_from_observation(observation: Observation) -> dict[str, Any]:
    """Turn an observation into one sample of a trace; what is not known is left out."""
    row: dict[str, Any] = {"t": round(observation.t, 3)}
    for key, record in (("ram", observation.ram), ("swap", observation.swap), ("vm", observation.vm)):
        if record is not None:
            row[key] = _slots(record)
    if observation.psi:
        row["psi"] = {name: _slots(state) for name, state in observation.psi.items()}
    if observation.gpus:
        row["gpus"] = [
            _known(
                index=gpu.index,
                uuid=gpu.uuid or None,
                name=gpu.name,
                total=gpu.total_bytes,
                used=gpu.used_bytes,
                free=gpu.free_bytes,
                reserved=gpu.reserved_bytes,
                util=_percent(gpu.utilization_ratio),
                mem_util=_percent(gpu.memory_utilization_ratio),
                power_w=gpu.power_watts,
                temp_c=gpu.temperature_celsius,
                shared=gpu.shared_bytes,
                windows=_percent(gpu.windows_ratio),
            )
            | {"procs": [{"pid": p.pid, "name": p.name, "used": p.used_bytes} for p in gpu.processes]}
            for gpu in observation.gpus
        ]
    if observation.processes:
        row["procs"] = [
            _known(
                pid=process.pid,
                start=process.start_ticks or None,
                name=process.name,
                rss=process.rss_bytes,
                swap=process.swap_bytes,
                command=process.command or None,
                cgroup=process.cgroup or None,
            )
            for process in observation.processes
        ]
    if observation.cgroups:
        row["cgroups"] = [_slots(group) for group in observation.cgroups]
    if observation.gap_expected:
        row["gap_expected"] = True
    if observation.exhausted:
        row["exhausted"] = list(observation.exhausted)
    if observation.late:
        row["late"] = list(observation.late)
    return row | _row_of_expected(observation)


def _row_of_expected(observation: Observation) -> dict[str, Any]:
    rows = [
        {"resource": e.resource, "who": e.who, "peak": e.peak_bytes, "used": e.used_bytes, "pids": e.pids}
        for e in observation.expected
    ]
    return {"expected": rows} if rows else {}
