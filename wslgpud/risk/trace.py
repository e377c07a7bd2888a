"""Recorded traces: JSON Lines, gzip-compressed or plain; the format that ``wslgpud record`` writes.

Each line is an object for one observation.
"""

from __future__ import annotations

import gzip
import json
import math
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, fields
from io import BufferedIOBase
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

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
from wslgpud.words import Message, MessageLike, cause, say, template

Row = Mapping[str, Any]
T = TypeVar("T")

VERSION = 1
GZIP_MAGIC = b"\x1f\x8b"
#: size limit of a line; a sample with a hundred processes and eight cards takes a twentieth
MAX_LINE_BYTES = 1 << 20
#: size limit of an inflated trace; a sample per second for a month takes half
MAX_BYTES = 8 << 30
#: fields of records with another name in a row, besides bytes, which lose their unit
_KEYS = {
    "utilization_ratio": "util",  # ratios are percentages in a row
    "memory_utilization_ratio": "mem_util",
    "windows_ratio": "windows",
    "power_watts": "power_w",
    "temperature_celsius": "temp_c",
    "start_ticks": "start",
    "cpu_seconds": "cpu",
    "faults_total": "faults",
    "major_faults_total": "major_faults",
}
#: omitted from a row where empty
_RARE = frozenset({"uuid", "start", "command", "cgroup"})


def _object(row: Row, key: str) -> Row | None:
    value = row.get(key)
    if value is not None and not isinstance(value, dict):
        raise ValueError(say("{key} must be an object, not {kind}", key=repr(key), kind=type(value).__name__))
    return value


def _list(row: Row, key: str, kind: type[T]) -> list[T]:
    value = row.get(key)
    if value is not None and not (isinstance(value, list) and all(isinstance(item, kind) for item in value)):
        objects, names = template("{key} must be a list of objects"), template("{key} must be a list of names")
        raise ValueError(Message(names if kind is str else objects, {"key": repr(key)}))
    return value or []


def _value(row: Row, key: str, convert: Callable[[Any], Any]) -> Any:
    """Return a value; NaN and infinity, which other recorders write for unknown values, become None."""
    value = row.get(key)
    if convert is str:
        return "" if value is None else str(value)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(say("{key} must be a number, not {value}", key=repr(key), value=repr(value)))
    return convert(value) if -1e300 < value < 1e300 else None


def _ratio(percent: float) -> float:
    return float(percent) / 100.0


class _Column(NamedTuple):
    """A field of a record in rows; without a ``needed`` one there is no record."""

    name: str
    key: str
    convert: Callable[[Any], Any]
    needed: bool


def _columns(record: type) -> list[_Column]:
    kinds = {"int": int, "float": float, "str": str}  # everything else has its own place in a row
    found = []
    for field in fields(record):
        kind, *optional = str(field.type).split(" | ")
        if kind in kinds and field.name != "uid":
            convert = _ratio if field.name.endswith("_ratio") else kinds[kind]
            needed = field.default is MISSING and not optional
            found.append(_Column(field.name, _KEYS.get(field.name, field.name.removesuffix("_bytes")), convert, needed))
    return found


_COLUMNS: Mapping[type, list[_Column]] = {
    record: _columns(record)
    for record in (RamState, SwapState, VmState, PsiState, CgroupState, GpuSample, GpuProcess, ProcessSample, Expected)
}


def _record(record: type[T], row: Row | None, **more: Any) -> T | None:
    """Return the record in a row, by default with ``more``; None where a needed value is unknown."""
    if row is None:
        return None
    for name, key, convert, needed in _COLUMNS[record]:
        value = _value(row, key, convert)
        if value is not None or name not in more:
            more[name] = value
        if needed and more[name] is None:
            return None
    return record(**more)


def _records(record: type[T], rows: Iterable[Row], **more: Any) -> tuple[T, ...]:
    return tuple(one for row in rows if (one := _record(record, row, **more)) is not None)


def observation_from_row(row: Row, *, wsl: bool = False) -> Observation:
    """Turn one sample of a trace into an observation.

    Raises:
        ValueError: a value has the wrong type, or ``t`` is missing.
    """
    t = _value(row, "t", float)
    if t is None:
        raise ValueError(say("'t' is missing or is not a finite number"))
    psi = [(name, _record(PsiState, one)) for name, one in (_object(row, "psi") or {}).items() if isinstance(one, dict)]
    gpus = (
        _record(GpuSample, gpu, index=position, **_users(gpu)) for position, gpu in enumerate(_list(row, "gpus", dict))
    )
    expected = (_record(Expected, one, pids=_pids(one.get("pids"))) for one in _list(row, "expected", dict))
    return Observation(
        t=t,
        ram=_record(RamState, _object(row, "ram")),
        swap=_record(SwapState, _object(row, "swap")),
        vm=_record(VmState, _object(row, "vm")),
        windows=_record(RamState, _object(row, "windows")),
        containers=_sizes(_object(row, "containers")),
        psi={name: state for name, state in psi if state is not None},
        gpus=tuple(filter(None, gpus)),
        processes=tuple(_processes(_list(row, "procs", dict))),
        cgroups=_records(CgroupState, _list(row, "cgroups", dict)),
        wsl=wsl,
        gap_expected=bool(row.get("gap_expected", False)),
        exhausted=tuple(_list(row, "exhausted", str)),
        late=tuple(_list(row, "late", str)),
        expected=tuple(filter(None, expected)),
    )


#: lists of programs in a card's record -> in its row
_USERS = {"processes": "procs", "told": "told", "in_windows": "windows_procs"}


def _users(gpu: Row) -> dict[str, tuple[GpuProcess, ...]]:
    return {name: _records(GpuProcess, _list(gpu, key, dict)) for name, key in _USERS.items()}


def _sizes(row: Row | None) -> dict[str, int] | None:
    return None if row is None else {name: size for name in row if (size := _value(row, name, int)) is not None}


def _processes(rows: Iterable[Row]) -> Iterator[ProcessSample]:
    for row in rows:
        roles = frozenset(_list(row, "roles", str))
        if (process := _record(ProcessSample, row, start_ticks=0, swap_bytes=0, roles=roles)) is not None:
            yield process


def _pids(value: Any) -> tuple[int, ...]:
    return tuple(pid for pid in value if isinstance(pid, int)) if isinstance(value, list) else ()


def _row(record: Any) -> dict[str, Any]:
    found = {}
    for name, key, convert, _ in _COLUMNS[type(record)]:
        value = getattr(record, name)
        if value is not None and (value or key not in _RARE):
            found[key] = round(100.0 * value, 1) if convert is _ratio else value
    return found


def _user_rows(gpu: GpuSample) -> dict[str, Any]:
    more = {key: [_row(p) for p in listed] for name, key in _USERS.items() if (listed := getattr(gpu, name))}
    return more | {"procs": [_row(p) | {"used": p.used_bytes} for p in gpu.processes]}


def row_from_observation(observation: Observation) -> dict[str, Any]:
    """Turn an observation into one sample of a trace; unknown values are omitted."""
    o = observation
    single = (("ram", o.ram), ("swap", o.swap), ("vm", o.vm), ("windows", o.windows))
    always: dict[str, Any] = {key: _row(one) for key, one in single if one is not None}
    always |= {} if o.containers is None else {"containers": dict(o.containers)}
    parts: dict[str, Any] = {
        "psi": {name: _row(state) for name, state in o.psi.items()},
        "gpus": [_row(gpu) | _user_rows(gpu) for gpu in o.gpus],
        "procs": [_row(p) | ({"roles": sorted(p.roles)} if p.roles else {}) for p in o.processes],
        "cgroups": [_row(group) for group in o.cgroups],
        "gap_expected": o.gap_expected,
        "exhausted": list(o.exhausted),
        "late": list(o.late),
        "expected": [_row(one) | {"pids": one.pids} for one in o.expected],
    }
    return {"t": round(o.t, 3)} | always | {key: part for key, part in parts.items() if part}


class TraceError(ValueError):
    """A trace cannot be read; the message names the line and the reason."""

    def __init__(self, path: Path | str, line: int, problem: MessageLike) -> None:
        super().__init__(say("{path}, line {line}: {problem}", path=str(path), line=line, problem=problem))
        self.path, self.line, self.problem = str(path), line, problem


class NotJsonError(ValueError):
    """A line of a trace is not JSON: damaged, or the end of a truncated recording."""


def _lines(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        packed = file.read(2) == GZIP_MAGIC
        file.seek(0)
        source: BufferedIOBase = gzip.GzipFile(fileobj=file) if packed else file
        left = MAX_BYTES
        while line := source.readline(MAX_LINE_BYTES + 1):
            left -= len(line)
            yield line if left >= 0 else b""


def _parsed(line: bytes) -> dict[str, Any]:
    if not line:
        raise ValueError(say("a trace has at most {number} bytes once it is inflated", number=f"{MAX_BYTES:,}"))
    if len(line) > MAX_LINE_BYTES:
        raise ValueError(say("a line has at most {number} bytes, and this one is longer", number=f"{MAX_LINE_BYTES:,}"))
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise NotJsonError(say("not JSON ({error})", error=str(error))) from error
    if not isinstance(row, dict):
        raise NotJsonError(say("not a JSON object"))
    return row


def _says_wsl(row: Row) -> bool:
    """Check a header; return whether the trace was recorded under WSL2."""
    if row.get("trace") != VERSION:
        example = f'{{"trace": {VERSION}, "interval_s": 1.0, "host": {{}}}}'
        said = say(
            "not a trace of version {version}: the first line must be a header like {header}",
            version=VERSION,
            header=example,
        )
        raise ValueError(said)
    return bool((_object(row, "host") or {}).get("wsl", False))


def _next(row: Row, last: float, *, wsl: bool) -> Observation:
    observation = observation_from_row(row, wsl=wsl)
    if observation.t < last:
        raise ValueError(say("time goes back from {last} to {now} s", last=str(last), now=str(observation.t)))
    return observation


def read_trace(path: Path, on_cut: Callable[[TraceError], None] | None = None) -> Iterator[Observation]:
    """Yield the observations of a recorded trace.

    ``on_cut`` is called instead of raising where the file ends in mid-line, as a recording does after a crash:
    everything before is intact.

    Raises:
        TraceError: the file is no trace, a line is damaged, or it is truncated; with the line number.
        OSError: the file cannot be opened.
    """
    number, last, wsl = 0, -math.inf, False
    try:
        for number, line in enumerate(_lines(path), start=1):
            if number > 1 and 0 < len(line) <= MAX_LINE_BYTES and not line.strip():
                continue
            try:
                row = _parsed(line)
                if number == 1:
                    wsl = _says_wsl(row)
                    continue
                observation = _next(row, last, wsl=wsl)
            except ValueError as error:
                if isinstance(error, NotJsonError) and on_cut and number > 1 and not line.endswith(b"\n"):
                    on_cut(TraceError(path, number, say("truncated in the middle of a sample")))
                    return
                raise TraceError(path, number, cause(error)) from error
            last = observation.t
            yield observation
    except EOFError as error:
        cut = TraceError(path, number + 1, say("the compressed data is truncated here"))
        if on_cut is None or number == 0:
            raise cut from error
        on_cut(cut)
    except (zlib.error, gzip.BadGzipFile) as error:
        damaged = say("the compressed data is damaged ({error})", error=cause(error))
        raise TraceError(path, number + 1, damaged) from error
    if number == 0:
        raise TraceError(path, 1, say("the file is empty"))


def header(interval_seconds: float, host: Mapping[str, Any]) -> dict[str, Any]:
    """Return the first line of a trace; ``host`` may hold anything, replay reads only ``wsl``."""
    return {"trace": VERSION, "interval_s": interval_seconds, "host": dict(host)}
