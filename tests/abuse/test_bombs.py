"""Little that becomes much: compressed blocks, recordings and names in spreadsheets made to harm."""

from __future__ import annotations

import csv
import gzip
import io
import json
import logging
import sqlite3
import struct
import subprocess
import sys
import zlib
from contextlib import closing
from pathlib import Path

import pytest

from tests.store.made import BYTES, T0, snapshot
from wslgpud.risk.trace import MAX_LINE_BYTES, TraceError, read_trace
from wslgpud.series import export
from wslgpud.series.export import Piece
from wslgpud.store import Reader, SeriesRef, Store, errors
from wslgpud.store.codec import decode, encode, pack_sheet

#: tells the most memory that a process ever took; getrusage's figure begins with its parent's
PEAK = "print(next(line for line in open('/proc/self/status') if line.startswith('VmHWM')).split()[1])"
MIB = 1 << 20


def deflated(mebibytes: int) -> bytes:
    """Return a block that inflates to so many MiB of zeros, a thousandth of that long."""
    engine = zlib.compressobj(9, zlib.DEFLATED)
    return b"".join(engine.compress(bytes(MIB)) for _ in range(mebibytes)) + engine.flush()


def peak_mib(code: str) -> int:
    """Run code in a separate Python; return its peak memory."""
    done = subprocess.run([sys.executable, "-c", f"{code}\n{PEAK}"], capture_output=True, text=True, check=True)
    return int(done.stdout.splitlines()[-1]) // 1024


def test_a_block_inflates_to_what_a_chunk_needs_and_no_more() -> None:
    block = deflated(64)
    assert len(block) < MIB // 8

    with pytest.raises(ValueError, match="inflates to more than"):
        decode(block)


@pytest.mark.slow
def test_the_memory_that_a_bomb_takes_is_that_of_an_honest_block(tmp_path: Path) -> None:
    file = tmp_path / "block"
    begin = "from wslgpud.store.codec import decode, encode\nfrom pathlib import Path"
    honest = peak_mib(f"{begin}\ndecode(encode(range(0, 9000, 3)))")
    file.write_bytes(deflated(400))
    bomb = peak_mib(
        f"{begin}\ntry: decode(Path({str(file)!r}).read_bytes())\nexcept ValueError: pass\nelse: raise SystemExit(1)"
    )

    assert bomb < honest + 20


@pytest.fixture
def history(tmp_path: Path) -> Path:
    """Return a history with one sealed chunk."""
    file = tmp_path / "wslgpud.db"
    with Store(file, host_name="pc") as store:
        store.append(snapshot(T0, {BYTES: 1, (BYTES, "free"): 7}))
        store.append(snapshot(T0 + 1800, {(BYTES, "free"): 7}))
        assert store.flush()
    return file


def spoiled(file: Path, **columns: object) -> None:
    """Put a chunk into a history in which these columns are as somebody hostile would have them."""
    row: dict[str, object] = {
        "id": 1000,
        "low_ms": T0 * 1000,
        "high_ms": T0 * 1000 + 899_000,
        "samples": 1,
        "data": pack_sheet([(1, [T0 * 1000], [7])]),
        "processes": None,
    } | columns
    with closing(sqlite3.connect(file)) as database, database:
        database.execute("DELETE FROM batch")
        database.execute("INSERT INTO chunk VALUES (?, ?, ?, ?, ?, ?)", tuple(row.values()))


def sheet_of(times: bytes, values: bytes) -> bytes:
    """Return a sheet of series 1 with these blocks."""
    begin = 4 + 36
    entry = struct.pack("<IIIIIqq", 1, begin, len(times), begin + len(times), len(values), 0, 7)
    return struct.pack("<I", 1) + entry + times + values


@pytest.mark.parametrize(
    "columns",
    [
        {"data": struct.pack("<I", 1 << 31)},
        {"data": sheet_of(deflated(64), encode([7]))},
        {"data": sheet_of(encode([T0 * 1000]), deflated(64))},
        {"processes": zlib.compress(b" " * (64 * MIB), 9)},
        {"processes": zlib.compress(b"[" * 200_000, 9)},
        {"processes": zlib.compress(b"[" + b"[0,[]]," * MIB + b"[0,[]]]", 9)},
    ],
    ids=["series", "times", "values", "spaces", "depth", "empty rows"],
)
def test_a_chunk_made_to_harm_is_a_gap(
    history: Path, columns: dict[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    errors._log_once.cache_clear()
    spoiled(history, **columns)
    with Reader(str(history)) as reader, caplog.at_level(logging.WARNING):
        for ref in reader.series():
            assert len(reader.columns(ref, T0, T0 + 900)[0]) <= 900
        assert reader.processes(T0, T0 + 900) == []
        assert reader.latest() is not None

    assert caplog.records, "and it is told"


HEADER = b'{"trace": 1, "interval_s": 1.0, "host": {}}\n'


@pytest.mark.parametrize("body", [b"x" * (64 * MIB), HEADER + b" " * (64 * MIB)], ids=["first", "later"])
def test_a_recording_with_an_endless_line_is_refused_by_number(tmp_path: Path, body: bytes) -> None:
    file = tmp_path / "bomb.jsonl.gz"
    file.write_bytes(gzip.compress(body, 9))

    with pytest.raises(TraceError, match=rf"bomb\.jsonl\.gz, line [12]: .*{MAX_LINE_BYTES:,} bytes"):
        list(read_trace(file))


@pytest.mark.slow
def test_replay_of_such_a_recording_takes_no_memory(tmp_path: Path) -> None:
    file = tmp_path / "bomb.jsonl.gz"
    with gzip.open(file, "wb", 9) as packed:
        for _ in range(400):
            packed.write(b"x" * MIB)
    begin = "from wslgpud.risk.trace import TraceError, read_trace\nfrom pathlib import Path"

    taken = peak_mib(f"{begin}\ntry: list(read_trace(Path({str(file)!r})))\nexcept TraceError: pass")

    assert taken < peak_mib(begin) + 20


def test_a_name_that_is_a_formula_is_text_in_a_spreadsheet() -> None:
    """Of a database that others write into, the names of machines and metrics are anybody's."""
    ref = SeriesRef("=cmd()", (("program", "=1+1"),), "@pc")
    out = io.StringIO()

    export.wide_csv([[Piece(ref, [T0], [1]), Piece(SeriesRef("a", (), "-pc"), [T0], [2])]], out)

    for row in csv.reader(io.StringIO(out.getvalue())):
        assert not any(cell.startswith(("=", "+", "-", "@")) for cell in row)
    assert json.dumps(dict(ref.labels)).startswith("{"), "labels of the long form begin with a brace"
