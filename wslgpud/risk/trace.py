"""Recorded traces: JSON Lines, gzip-compressed or plain; the format that ``wslgpud record`` writes."""

from __future__ import annotations

import gzip
import json
import math
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from io import BufferedIOBase
from pathlib import Path
from types import MappingProxyType
from typing import Any

from wslgpud.model import Observation
from wslgpud.risk.rows import observation_from_row, row_from_observation, section
from wslgpud.words import Said, cause, say

VERSION = 1
GZIP_MAGIC = b"\x1f\x8b"
#: bytes of a line; one sample with a hundred processes and eight cards takes a twentieth
MOST_LINE_BYTES = 1 << 20
#: bytes of a whole trace once it is inflated; a sample a second for a month takes half
MOST_BYTES = 8 << 30


class TraceError(ValueError):
    """A trace that cannot be read; the text says which line and what is wrong with it."""

    def __init__(self, path: Path | str, line: int, problem: Said) -> None:
        """Name the file, the line (from 1) and the problem."""
        super().__init__(say("{path}, line {line}: {problem}", path=str(path), line=line, problem=problem))
        self.path, self.line, self.problem = str(path), line, problem


def _lines(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        packed = file.read(2) == GZIP_MAGIC
        file.seek(0)
        source: BufferedIOBase = gzip.GzipFile(fileobj=file) if packed else file
        left = MOST_BYTES
        while line := source.readline(MOST_LINE_BYTES + 1):
            left -= len(line)
            yield line if left >= 0 else b""


def _check_size(line: bytes) -> None:
    if not line:
        raise ValueError(
            say("a trace has at most {number} bytes once it is inflated", number=f"{MOST_BYTES:,}")
        )
    if len(line) > MOST_LINE_BYTES:
        raise ValueError(
            say("a line has at most {number} bytes, and this one goes on", number=f"{MOST_LINE_BYTES:,}")
        )


def _row(line: bytes) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(say("not JSON ({error})", error=str(error))) from error
    if not isinstance(row, dict):
        raise ValueError(say("not a JSON object"))  # noqa: TRY004 - the content of a file, not a caller's type
    return row


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True


def _says_wsl(row: Mapping[str, Any]) -> bool:
    """Check a header; tell whether the trace was recorded under WSL2."""
    if row.get("trace") != VERSION:
        raise ValueError(
            say(
                "not a trace of version {version}: the first line must be a header like {header}",
                version=VERSION,
                header=f'{{"trace": {VERSION}, "interval_s": 1.0, "host": {{}}}}',
            )
        )
    return bool((section(row, "host") or {}).get("wsl", False))


def _next(row: Mapping[str, Any], last: float, *, wsl: bool) -> Observation:
    observation = observation_from_row(row, wsl=wsl)
    if observation.t < last:
        raise ValueError(say("time goes back from {last} to {now} s", last=str(last), now=str(observation.t)))
    return observation


def read_trace(path: Path, on_cut: Callable[[TraceError], None] | None = None) -> Iterator[Observation]:
    """Yield the observations of a recorded trace.

    Args:
        path: the file, gzip-compressed or not.
        on_cut: called instead of raising where the file just ends in the middle, as a recording does that
            was cut off by a crash: what came before is whole.

    Raises:
        TraceError: the file is no trace, a line is broken, or it is cut short; with the line's number.
        OSError: the file cannot be opened.
    """
    number, last, wsl = 0, -math.inf, False
    try:
        for number, line in enumerate(_lines(path), start=1):
            try:
                _check_size(line)
                if number > 1 and not line.strip():
                    continue
                if on_cut is not None and number > 1 and not line.endswith(b"\n") and not _is_json(line):
                    on_cut(TraceError(path, number, say("cut short in the middle of a sample")))
                    return
                row = _row(line)
                if number == 1:
                    wsl = _says_wsl(row)
                    continue
                observation = _next(row, last, wsl=wsl)
            except ValueError as error:
                raise TraceError(path, number, cause(error)) from error
            last = observation.t
            yield observation
    except EOFError as error:
        cut = TraceError(path, number + 1, say("the compressed data is cut short here"))
        if on_cut is None or number == 0:
            raise cut from error
        on_cut(cut)
    except (zlib.error, gzip.BadGzipFile) as error:
        raise TraceError(
            path, number + 1, say("the compressed data is damaged ({error})", error=cause(error))
        ) from error
    if number == 0:
        raise TraceError(path, 1, say("the file is empty"))


def header(interval_seconds: float, host: Mapping[str, Any]) -> dict[str, Any]:
    """Return the first line of a trace; ``host`` may hold anything, ``wsl`` is what replay looks at."""
    return {"trace": VERSION, "interval_s": interval_seconds, "host": dict(host)}


def write_trace(
    path: Path,
    observations: Iterable[Observation],
    *,
    interval_seconds: float,
    host: Mapping[str, Any] = MappingProxyType({}),
) -> int:
    """Write a trace, compressed when its name ends in ``.gz``; return the number of samples.

    Each line is complete in itself, so a recording that is cut off loses at most its last sample.
    """
    count = 0
    with (
        gzip.open(path, "wt", encoding="utf-8")
        if path.suffix == ".gz"
        else path.open("w", encoding="utf-8") as file
    ):
        print(json.dumps(header(interval_seconds, host)), file=file)
        for observation in observations:
            print(json.dumps(row_from_observation(observation), separators=(",", ":")), file=file)
            count += 1
    return count
