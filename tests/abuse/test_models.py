"""Model files made to harm ``wslgpud fit`` are refused in one line, within bounds of time and memory."""

from __future__ import annotations

import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from wslgpud.advise.fit import source
from wslgpud.advise.fit.source import ShapeError

MIB = 1 << 20
#: the limit of a configuration here, instead of 64 MiB, and what reading to it may take
LIMIT_BYTES, MAX_BYTES = MIB, 16 * MIB
TERABYTE = 1 << 40


def sparse(file: Path, head: bytes) -> None:
    """Write a file with this start, followed by a terabyte of zeros that take no room on the disk."""
    file.write_bytes(head)
    os.truncate(file, TERABYTE)


BOMBS: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "config.json: a terabyte": ("config.json", lambda file: sparse(file, b'{"a": '), "larger than"),
    "config.json: nested without end": (
        "config.json",
        lambda file: file.write_text('{"a":' * 100_000),
        "nested too deeply",
    ),
    "config.json: a pipe": ("config.json", os.mkfifo, "FIFO"),
    "config.json: a number of a million digits": (
        "config.json",
        lambda file: file.write_text('{"hidden_size": ' + "9" * (MIB // 2) + "}"),
        "cannot read",
    ),
    "index: a terabyte": ("model_index.json", lambda file: sparse(file, b"{"), "larger than"),
}


@pytest.mark.parametrize(("name", "plant", "says"), BOMBS.values(), ids=BOMBS)
def test_a_model_made_to_harm_is_refused_in_one_line(
    tmp_path: Path, name: str, plant: Callable[[Path], object], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "MAX_CONFIG_BYTES", LIMIT_BYTES)
    plant(tmp_path / name)
    tracemalloc.start()
    try:
        with pytest.raises(ShapeError, match=says) as refused:
            source.source_of(str(tmp_path / name))
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert len(str(refused.value).splitlines()) == 1
    assert most < MAX_BYTES


def test_of_a_gguf_file_nothing_is_read(tmp_path: Path) -> None:
    """llama.cpp reads it."""
    sparse(tmp_path / "a.gguf", b"GGUF")
    os.mkfifo(tmp_path / "b.gguf")

    assert source.source_of(str(tmp_path / "a.gguf")).weights_bytes == TERABYTE
    assert source.source_of(str(tmp_path / "b.gguf")).weights_bytes == 0
