"""Model files made to harm ``wslgpud fit`` are refused in one line, within bounds of time and memory."""

from __future__ import annotations

import os
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from wslgpud.advise.fit import config_json, gguf, model_files
from wslgpud.advise.fit.model_files import of
from wslgpud.advise.fit.quantization import ShapeError

MIB = 1 << 20
#: the limit of each kind of header here, instead of 64 and 100 MiB, and what reading to it may take
LIMIT_BYTES, MAX_BYTES = MIB, 16 * MIB
TERABYTE = 1 << 40


def sparse(file: Path, head: bytes) -> None:
    """Write a file with this start, followed by a terabyte of zeros that take no room on the disk."""
    file.write_bytes(head)
    os.truncate(file, TERABYTE)


def a_list_of_words(count: int) -> bytes:
    key = b"tokenizer.ggml.tokens"
    return b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", len(key)) + key + struct.pack("<IIQ", 9, 8, count)


BOMBS: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "GGUF: a list of empty words without end": (
        "a.gguf",
        lambda file: sparse(file, a_list_of_words(1 << 62)),
        "its header is longer than 1 MiB",
    ),
    "GGUF: values without end": (
        "a.gguf",
        lambda file: sparse(file, b"GGUF" + struct.pack("<IQQ", 3, 0, 1 << 62)),
        "its header is longer than 1 MiB",
    ),
    "GGUF: tensors without end": (
        "a.gguf",
        lambda file: sparse(file, b"GGUF" + struct.pack("<IQQ", 3, 1 << 62, 0)),
        "its header is longer than 1 MiB",
    ),
    "GGUF: a word of exabytes": (
        "a.gguf",
        lambda file: sparse(file, b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1 << 60)),
        "a text is 1048576 TiB long",
    ),
    "GGUF: a word as long as no header": (
        "a.gguf",
        lambda file: sparse(file, b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, (16 << 20) + 1)),
        "a text is 16 MiB long",
    ),
    "GGUF: a pipe": ("a.gguf", os.mkfifo, "FIFO"),
    "safetensors: a header of exabytes": (
        "a.safetensors",
        lambda file: sparse(file, struct.pack("<Q", 1 << 60)),
        "is no safetensors file",
    ),
    "safetensors: a header that nests without end": (
        "a.safetensors",
        lambda file: file.write_bytes(struct.pack("<Q", MIB // 2) + b"[" * MIB),
        "nested too deeply",
    ),
    "safetensors: a pipe": ("a.safetensors", os.mkfifo, "FIFO"),
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
    "index: a terabyte": ("model.safetensors.index.json", lambda file: sparse(file, b"{"), "larger than"),
}


@pytest.mark.parametrize(("name", "plant", "says"), BOMBS.values(), ids=BOMBS)
def test_a_model_made_to_harm_is_refused_in_one_line(
    tmp_path: Path, name: str, plant: Callable[[Path], object], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gguf, "MAX_HEADER_BYTES", LIMIT_BYTES)
    monkeypatch.setattr(model_files, "MAX_HEADER_BYTES", LIMIT_BYTES)
    monkeypatch.setattr(config_json, "MAX_HEADER_BYTES", LIMIT_BYTES)
    plant(tmp_path / name)
    tracemalloc.start()
    try:
        with pytest.raises(ShapeError, match=says) as refused:
            of(str(tmp_path if name.endswith("index.json") else tmp_path / name))
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert len(str(refused.value).splitlines()) == 1
    assert most < MAX_BYTES
