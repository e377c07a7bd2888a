"""Recorded traces: JSON Lines, gzip-compressed or plain; the format that ``wslgpud record`` writes.

Each line is an object that stands for one observation.
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
from typing import Any, TypeVar

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
from wslgpud.words import MessageLike, cause, say

Row = Mapping[str, Any]
T = TypeVar("T")

VERSION = 1
GZIP_MAGIC = b"\x1f\x8b"
#: bytes of a line; one sample with a hundred processes and eight cards takes a twentieth
MOST_LINE_BYTES = 1 << 20
#: bytes of a whole trace once it is inflated; a sample a second for a month takes half
MOST_BYTES = 8 << 30
#: keys of what is called otherwise in a row than in its record; nothing else of these records is in a row
_KEYS: Mapping[type, Mapping[str, str]] = {
    GpuSample: {
        "index": "index",
        "uuid": "uuid",
        "name": "name",
        "total_bytes": "total",
        "used_bytes": "used",
        "free_bytes": "free",
        "reserved_bytes": "reserved",
        "utilization_ratio": "util",  # ratios are per cent in a row
        "memory_utilization_ratio": "mem_util",
        "power_watts": "power_w",
        "temperature_celsius": "temp_c",
        "shared_bytes": "shared",
        "windows_ratio": "windows",
    },
    ProcessSample: {
        "pid": "pid",
        "start_ticks": "start",
        "name": "name",
        "rss_bytes": "rss",
        "swap_bytes": "swap",
        "command": "command",
        "cgroup": "cgroup",
    },
    GpuProcess: {"pid": "pid", "name": "name", "used_bytes": "used"},
}
#: left out of a row where they are empty
_RARE = frozenset({"uuid", "start", "command", "cgroup"})


def section(row: Row, key: str) -> Row | None:
    """Return the object at a key, or None.

    Raises:
        ValueError: it is something else.
    """
    value = row.get(key)
    if value is not None and not isinstance(value, dict):
        raise ValueError(say("{key} must be an object, not {kind}", key=repr(key), kind=type(value).__name__))
    return value


def _items(row: Row, key: str) -> list[Row]:
    value = row.get(key)
    if value is not None and not (isinstance(value, list) and all(isinstance(item, dict) for item in value)):
        raise ValueError(say("{key} must be a list of objects", key=repr(key)))
    return value or []


def _names(row: Row, key: str) -> tuple[str, ...]:
    value = row.get(key)
    if value is not None and not (isinstance(value, list) and all(isinstance(name, str) for name in value)):
        raise ValueError(say("{key} must be a list of names", key=repr(key)))
    return tuple(value or ())


def _number(row: Row, key: str) -> float | None:
    """Return a number; NaN and infinity, which other recorders write for what they do not know, are None."""
    value = row.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(say("{key} must be a number, not {value}", key=repr(key), value=repr(value)))  # noqa: TRY004 - a file's content
    return value if -1e300 < value < 1e300 else None


def _int(row: Row, key: str) -> int | None:
    value = _number(row, key)
    return None if value is None else int(value)


def _float(row: Row, key: str) -> float | None:
    value = _number(row, key)
    return None if value is None else float(value)


def _text(row: Row, key: str) -> str:
    value = row.get(key)
    return "" if value is None else str(value)


def _ratio(row: Row, key: str) -> float | None:
    value = _float(row, key)
    return None if value is None else value / 100.0


_READERS: Mapping[str, Callable[[Row, str], Any]] = {"int": _int, "float": _float, "str": _text}


def _table(record: type) -> list[tuple[str, str, Callable[[Row, str], Any], bool]]:
    """Return what rows hold of a record: its name there and here, how it is read, whether it must be known."""
    keys = _KEYS.get(record)
    return [
        (
            field.name,
            field.name if keys is None else keys[field.name],
            _ratio if field.name.endswith("_ratio") else _READERS[str(field.type).split()[0]],
            field.default is MISSING and not str(field.type).endswith("None"),
        )
        for field in fields(record)
        if keys is None or field.name in keys
    ]


_TABLES: Mapping[type, list[tuple[str, str, Callable[[Row, str], Any], bool]]] = {
    record: _table(record)
    for record in (RamState, SwapState, VmState, PsiState, CgroupState, GpuSample, GpuProcess, ProcessSample)
}


def _record(record: type[T], row: Row | None, **more: Any) -> T | None:
    """Return the record in a row, by default with ``more``; None where a needed value is unknown."""
    if row is None:
        return None
    for name, key, read, needed in _TABLES[record]:
        value = read(row, key)
        if value is not None or name not in more:
            more[name] = value
        if needed and more[name] is None:
            return None
    return record(**more)


def _records(record: type[T], rows: Iterable[Row], **more: Any) -> tuple[T, ...]:
    return tuple(one for row in rows if (one := _record(record, row, **more)) is not None)


def _expected(row: Row) -> Expected | None:
    peak, used = _int(row, "peak"), _int(row, "used")
    if peak is None or used is None:
        return None
    pids = tuple(pid for pid in row.get("pids") or () if isinstance(pid, int))
    return Expected(_text(row, "resource"), _text(row, "who"), peak, used, pids)


def observation_from_row(row: Row, *, wsl: bool = False) -> Observation:
    """Turn one sample of a trace into what the engine observes.

    Raises:
        ValueError: a value has the wrong type, or ``t`` is missing.
    """
    t = _float(row, "t")
    if t is None:
        raise ValueError(say("'t' is missing or is not a finite number"))
    psi = {name: _record(PsiState, state) for name, state in (section(row, "psi") or {}).items() if type(state) is dict}
    gpus = (
        _record(GpuSample, gpu, index=position, processes=_records(GpuProcess, _items(gpu, "procs")))
        for position, gpu in enumerate(_items(row, "gpus"))
    )
    return Observation(
        t=t,
        ram=_record(RamState, section(row, "ram")),
        swap=_record(SwapState, section(row, "swap")),
        vm=_record(VmState, section(row, "vm")),
        psi={name: state for name, state in psi.items() if state is not None},
        gpus=tuple(gpu for gpu in gpus if gpu is not None),
        processes=_records(ProcessSample, _items(row, "procs"), start_ticks=0, swap_bytes=0),
        cgroups=_records(CgroupState, _items(row, "cgroups")),
        wsl=wsl,
        gap_expected=bool(row.get("gap_expected", False)),
        exhausted=_names(row, "exhausted"),
        late=_names(row, "late"),
        expected=tuple(e for e in map(_expected, _items(row, "expected")) if e is not None),
    )


def _row(record: Any) -> dict[str, Any]:
    found = {}
    for name, key, read, _ in _TABLES[type(record)]:
        value = getattr(record, name)
        if value is not None and (value or key not in _RARE):
            found[key] = round(100.0 * value, 1) if read is _ratio else value
    return found


def row_from_observation(observation: Observation) -> dict[str, Any]:
    """Turn an observation into one sample of a trace; what is not known is left out."""
    o = observation
    parts: dict[str, Any] = {
        **{key: _row(one) for key, one in (("ram", o.ram), ("swap", o.swap), ("vm", o.vm)) if one is not None},
        "psi": {name: _row(state) for name, state in o.psi.items()},
        "gpus": [_row(gpu) | {"procs": [_row(p) | {"used": p.used_bytes} for p in gpu.processes]} for gpu in o.gpus],
        "procs": [_row(process) for process in o.processes],
        "cgroups": [_row(group) for group in o.cgroups],
        "gap_expected": o.gap_expected,
        "exhausted": list(o.exhausted),
        "late": list(o.late),
        "expected": [
            {"resource": e.resource, "who": e.who, "peak": e.peak_bytes, "used": e.used_bytes, "pids": e.pids}
            for e in o.expected
        ],
    }
    always = {"ram", "swap", "vm"}
    return {"t": round(o.t, 3)} | {key: part for key, part in parts.items() if part or key in always}


class TraceError(ValueError):
    """A trace that cannot be read; the text says which line and what is wrong with it."""

    def __init__(self, path: Path | str, line: int, problem: MessageLike) -> None:
        super().__init__(say("{path}, line {line}: {problem}", path=str(path), line=line, problem=problem))
        self.path, self.line, self.problem = str(path), line, problem


class NotJsonError(ValueError):
    """A line of a trace is no JSON: broken, or the end of a recording that was cut off."""


def _lines(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        packed = file.read(2) == GZIP_MAGIC
        file.seek(0)
        source: BufferedIOBase = gzip.GzipFile(fileobj=file) if packed else file
        left = MOST_BYTES
        while line := source.readline(MOST_LINE_BYTES + 1):
            left -= len(line)
            yield line if left >= 0 else b""


def _parsed(line: bytes) -> dict[str, Any]:
    if not line:
        raise ValueError(say("a trace has at most {number} bytes once it is inflated", number=f"{MOST_BYTES:,}"))
    if len(line) > MOST_LINE_BYTES:
        raise ValueError(say("a line has at most {number} bytes, and this one goes on", number=f"{MOST_LINE_BYTES:,}"))
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise NotJsonError(say("not JSON ({error})", error=str(error))) from error
    if not isinstance(row, dict):
        raise NotJsonError(say("not a JSON object"))
    return row


def _says_wsl(row: Row) -> bool:
    """Check a header; tell whether the trace was recorded under WSL2."""
    if row.get("trace") != VERSION:
        example = f'{{"trace": {VERSION}, "interval_s": 1.0, "host": {{}}}}'
        said = say(
            "not a trace of version {version}: the first line must be a header like {header}",
            version=VERSION,
            header=example,
        )
        raise ValueError(said)
    return bool((section(row, "host") or {}).get("wsl", False))


def _next(row: Row, last: float, *, wsl: bool) -> Observation:
    observation = observation_from_row(row, wsl=wsl)
    if observation.t < last:
        raise ValueError(say("time goes back from {last} to {now} s", last=str(last), now=str(observation.t)))
    return observation


def read_trace(path: Path, on_cut: Callable[[TraceError], None] | None = None) -> Iterator[Observation]:
    """Yield the observations of a recorded trace.

    ``on_cut`` is called instead of raising where the file just ends in the middle, as a recording does that
    was cut off by a crash: what came before is whole.

    Raises:
        TraceError: the file is no trace, a line is broken, or it is cut short; with the line's number.
        OSError: the file cannot be opened.
    """
    number, last, wsl = 0, -math.inf, False
    try:
        for number, line in enumerate(_lines(path), start=1):
            if number > 1 and 0 < len(line) <= MOST_LINE_BYTES and not line.strip():
                continue
            try:
                row = _parsed(line)
                if number == 1:
                    wsl = _says_wsl(row)
                    continue
                observation = _next(row, last, wsl=wsl)
            except ValueError as error:
                if isinstance(error, NotJsonError) and on_cut and number > 1 and not line.endswith(b"\n"):
                    on_cut(TraceError(path, number, say("cut short in the middle of a sample")))
                    return
                raise TraceError(path, number, cause(error)) from error
            last = observation.t
            yield observation
    except EOFError as error:
        cut = TraceError(path, number + 1, say("the compressed data is cut short here"))
        if on_cut is None or number == 0:
            raise cut from error
        on_cut(cut)
    except (zlib.error, gzip.BadGzipFile) as error:
        damaged = say("the compressed data is damaged ({error})", error=cause(error))
        raise TraceError(path, number + 1, damaged) from error
    if number == 0:
        raise TraceError(path, 1, say("the file is empty"))


def header(interval_seconds: float, host: Mapping[str, Any]) -> dict[str, Any]:
    """Return the first line of a trace; ``host`` may hold anything, ``wsl`` is what replay looks at."""
    return {"trace": VERSION, "interval_s": interval_seconds, "host": dict(host)}
