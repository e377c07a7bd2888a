"""Recorded traces: JSON Lines, gzip-compressed or plain, as ``wslgpud record`` writes them; and the engine over them.

Each line is an object for one observation.
"""

from __future__ import annotations

import gzip
import json
import math
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields
from io import BufferedIOBase
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from wslgpud import model
from wslgpud.risk.engine import RiskEngine
from wslgpud.risk.settings import RiskSettings
from wslgpud.words import Message, MessageLike, cause, say, template

Row = Mapping[str, Any]
T = TypeVar("T")
Points = list[tuple[float, float, float | None, model.Level]]

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
    for known in fields(record):
        kind, *optional = str(known.type).split(" | ")
        if kind in kinds and known.name != "uid":
            convert = _ratio if known.name.endswith("_ratio") else kinds[kind]
            needed = known.default is MISSING and not optional
            found.append(_Column(known.name, _KEYS.get(known.name, known.name.removesuffix("_bytes")), convert, needed))
    return found


_COLUMNS: Mapping[type, list[_Column]] = {
    record: _columns(record)
    for record in (
        *(model.RamState, model.SwapState, model.VmState, model.PsiState, model.CgroupState),
        *(model.GpuSample, model.GpuProcess, model.ProcessSample, model.Expected),
    )
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


def _known(records: Iterable[T | None]) -> tuple[T, ...]:
    return tuple(one for one in records if one is not None)


#: parts of an observation that are one record each
_SINGLE = {"ram": model.RamState, "swap": model.SwapState, "vm": model.VmState, "windows": model.RamState}
#: lists of programs in a card's record -> in its row
_USERS = {"processes": "procs", "self_reported": "told", "in_windows": "windows_procs"}


def _gpu(row: Row, position: int) -> model.GpuSample | None:
    users = {
        name: _known(_record(model.GpuProcess, one) for one in _list(row, key, dict)) for name, key in _USERS.items()
    }
    return _record(model.GpuSample, row, index=position, **users)


def _process(row: Row) -> model.ProcessSample | None:
    return _record(model.ProcessSample, row, start_ticks=0, swap_bytes=0, roles=frozenset(_list(row, "roles", str)))


def _expected(row: Row) -> model.Expected | None:
    pids = row.get("pids")
    own = tuple(pid for pid in pids if isinstance(pid, int)) if isinstance(pids, list) else ()
    return _record(model.Expected, row, pids=own)


def _sizes(row: Row | None) -> dict[str, int] | None:
    return None if row is None else {name: size for name in row if (size := _value(row, name, int)) is not None}


def observation_from_row(row: Row, *, wsl: bool = False) -> model.Observation:
    """Turn one sample of a trace into an observation.

    Raises:
        ValueError: a value has the wrong type, or ``t`` is missing.
    """
    if (t := _value(row, "t", float)) is None:
        raise ValueError(say("'t' is missing or is not a finite number"))
    stalls = _object(row, "psi") or {}
    psi = {name: _record(model.PsiState, one) for name, one in stalls.items() if isinstance(one, dict)}
    return model.Observation(
        t=t,
        **{name: _record(kind, _object(row, name)) for name, kind in _SINGLE.items()},
        containers=_sizes(_object(row, "containers")),
        psi={name: state for name, state in psi.items() if state is not None},
        gpus=_known(_gpu(one, position) for position, one in enumerate(_list(row, "gpus", dict))),
        processes=_known(map(_process, _list(row, "procs", dict))),
        cgroups=_known(_record(model.CgroupState, one) for one in _list(row, "cgroups", dict)),
        wsl=wsl,
        gap_expected=bool(row.get("gap_expected", False)),
        exhausted=tuple(_list(row, "exhausted", str)),
        late=tuple(_list(row, "late", str)),
        expected=_known(map(_expected, _list(row, "expected", dict))),
    )


def _row(record: Any) -> dict[str, Any]:
    found = {}
    for name, key, convert, _ in _COLUMNS[type(record)]:
        value = getattr(record, name)
        if value is not None and (value or key not in _RARE):
            found[key] = round(100.0 * value, 1) if convert is _ratio else value
    return found


def _gpu_row(gpu: model.GpuSample) -> dict[str, Any]:
    users = {key: [_row(p) for p in listed] for name, key in _USERS.items() if (listed := getattr(gpu, name))}
    return _row(gpu) | users | {"procs": [_row(p) | {"used": p.used_bytes} for p in gpu.processes]}


def row_from_observation(observation: model.Observation) -> dict[str, Any]:
    """Turn an observation into one sample of a trace; unknown values are omitted."""
    o = observation
    always = {name: _row(one) for name in _SINGLE if (one := getattr(o, name)) is not None}
    always |= {} if o.containers is None else {"containers": dict(o.containers)}
    parts: dict[str, Any] = {
        "psi": {name: _row(state) for name, state in o.psi.items()},
        "gpus": [_gpu_row(gpu) for gpu in o.gpus],
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
        self.line, self.problem = line, problem


class _CutError(ValueError):
    """A recording ends in the middle of a sample, as after a crash: everything before is intact."""


def _lines(path: Path) -> Iterator[bytes]:
    """Yield a file's lines. Raises ValueError where it is too long, or damaged."""
    with path.open("rb") as file:
        packed = file.read(2) == GZIP_MAGIC
        file.seek(0)
        source: BufferedIOBase = gzip.GzipFile(fileobj=file) if packed else file
        left = MAX_BYTES
        try:
            while line := source.readline(MAX_LINE_BYTES + 1):
                left -= len(line)
                if left < 0:
                    most = f"{MAX_BYTES:,}"
                    raise ValueError(say("a trace has at most {number} bytes once it is inflated", number=most))
                if len(line) > MAX_LINE_BYTES:
                    most = f"{MAX_LINE_BYTES:,}"
                    raise ValueError(say("a line has at most {number} bytes, and this one is longer", number=most))
                yield line
        except EOFError as error:
            raise _CutError(say("the compressed data is truncated here")) from error
        except (zlib.error, gzip.BadGzipFile) as error:
            raise ValueError(say("the compressed data is damaged ({error})", error=cause(error))) from error


def _parsed(line: bytes, *, header: bool) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        if not header and not line.endswith(b"\n"):
            raise _CutError(say("truncated in the middle of a sample")) from error
        raise ValueError(say("not JSON ({error})", error=str(error))) from error
    if not isinstance(row, dict):
        raise ValueError(say("not a JSON object"))
    if header and row.get("trace") != VERSION:
        said = say(
            "not a trace of version {version}: the first line must be a header like {header}",
            version=VERSION,
            header=f'{{"trace": {VERSION}, "interval_s": 1.0, "host": {{}}}}',
        )
        raise ValueError(said)
    return row


def read_trace(path: Path, on_cut: Callable[[TraceError], None] | None = None) -> Iterator[model.Observation]:
    """Yield the observations of a recorded trace.

    ``on_cut`` is called instead of raising where the file ends in mid-line, as a recording does after a crash:
    everything before is intact.

    Raises:
        TraceError: the file is no trace, a line is damaged, or it is truncated; with the line number.
        OSError: the file cannot be opened.
    """
    lines, number, last, wsl = _lines(path), 0, -math.inf, False
    while True:
        number += 1
        try:
            line = next(lines, None)
            if line is None:
                break
            if number == 1:
                wsl = bool((_object(_parsed(line, header=True), "host") or {}).get("wsl", False))
                continue
            if line.isspace():
                continue
            observation = observation_from_row(_parsed(line, header=False), wsl=wsl)
        except ValueError as error:
            found = TraceError(path, number, cause(error))
            if on_cut is None or number == 1 or not isinstance(error, _CutError):
                raise found from error
            on_cut(found)
            return
        if observation.t < last:
            back = say("time goes back from {last} to {now} s", last=str(last), now=str(observation.t))
            raise TraceError(path, number, back)
        last = observation.t
        yield observation
    if number == 1:
        raise TraceError(path, 1, say("the file is empty"))


def header(interval_seconds: float, host: Mapping[str, Any]) -> dict[str, Any]:
    """Return the first line of a trace; ``host`` may hold anything, replay reads only ``wsl``."""
    return {"trace": VERSION, "interval_s": interval_seconds, "host": dict(host)}


@dataclass(slots=True)
class Replay:
    """The engine's output for one trace: changes of level, and by resource the forecast of each sample.

    ``start_wall`` is the wall time of second 0, if known.
    """

    name: str
    changes: list[model.Transition] = field(default_factory=list)
    forecasts: dict[str, list[tuple[float, model.Forecast]]] = field(default_factory=dict)
    samples: int = 0
    seconds: float = 0.0
    start_wall: float | None = None

    def points(self) -> dict[str, Points]:
        """Return, by resource, (time, share of headroom, time to exhaustion or None, level) of every sample."""
        return {
            resource: [(t, f.headroom_bytes / f.capacity_bytes, f.eta_seconds, f.level) for t, f in seen]
            for resource, seen in self.forecasts.items()
        }


def trace_name(path: Path) -> str:
    """Return a trace's name: the file name up to its first dot."""
    return path.name.partition(".")[0]


def replay(name: str, observations: Iterable[model.Observation], settings: RiskSettings | None = None) -> Replay:
    """Run a fresh engine over the observations."""
    engine, result, first = RiskEngine(settings), Replay(name), None
    for observation in observations:
        assessment = engine.observe(observation)
        result.changes.extend(assessment.changes)
        for forecast in assessment.forecasts:
            result.forecasts.setdefault(forecast.resource, []).append((observation.t, forecast))
        first = observation.t if first is None else first
        result.samples += 1
        result.seconds = observation.t - first
    return result
