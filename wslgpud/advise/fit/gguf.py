"""Reads the header of a GGUF file (llama.cpp's format): the model's metadata and the shapes of its tensors.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md; versions 2 and 3 differ only in that 3 may be
big-endian.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from wslgpud.security import safe_files
from wslgpud.words import say

_MAGIC, _VERSIONS = b"GGUF", (2, 3)
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_MAX_TEXT, _MAX_LIST, _MAX_NUMBERS, _MAX_DIMENSIONS = 16 << 20, 1 << 32, 1 << 16, 8
#: The largest headers, with a vocabulary of 262,144 words and its merges, take about 15 MiB. Without a limit, a sparse
#: file of terabytes would be read to its end as a list of empty words.
MAX_HEADER_BYTES = 64 << 20

Value = int | float | bool | str | tuple[int | float | bool, ...]


class Header(NamedTuple):
    """``values`` by key, for a list of words only its length as ``KEY.length``; shapes of tensors by name."""

    values: dict[str, Value]
    tensors: dict[str, tuple[int, ...]]
    data_bytes: int


def header(file: Path) -> Header:
    """Return the header of a file; no tensor is read.

    Raises:
        OSError: the file cannot be read.
        ValueError: it does not have this format, or is truncated.
    """
    with os.fdopen(safe_files.open_plain(file, follow=True), "rb") as stream:
        version, tensor_count, value_count = 0, 0, 0
        if stream.read(4) == _MAGIC:
            version, tensor_count, value_count = _take(stream, "IQQ")
        if version not in _VERSIONS:
            raise ValueError(say("{file} is no GGUF file of version 2 or 3", file=file.name))
        values: dict[str, Value] = {}
        for _ in range(value_count):
            key = _text(stream)
            (kind,) = _take(stream, "I")
            if kind == _ARRAY:
                _array(stream, key, values)
            else:
                values[key] = _text(stream) if kind == _STRING else _take(stream, _form(kind))[0]
        tensors = {}
        for _ in range(tensor_count):
            name = _text(stream)
            (dimensions,) = _take(stream, "I")
            if dimensions > _MAX_DIMENSIONS:
                raise ValueError(say("a tensor has {count} dimensions", count=dimensions))
            tensors[name] = _take(stream, f"{dimensions}Q")
            _take(stream, "IQ")  # quantization type and offset
        return Header(values, tensors, file.stat().st_size - stream.tell())


def _array(stream: BinaryIO, key: str, values: dict[str, Value]) -> None:
    kind, length = _take(stream, "IQ")
    if kind == _STRING:
        for _ in range(length):
            _text(stream)
        values[f"{key}.length"] = length
    elif length <= _MAX_NUMBERS:
        values[key] = _take(stream, f"{length}{_form(kind)}")
    elif length <= _MAX_LIST:  # such as scores of words
        stream.seek(length * struct.calcsize(_form(kind)), 1)
    else:
        raise ValueError(say("a list has {count} values", count=length))


def _form(kind: int) -> str:
    if kind not in _SCALARS:
        raise ValueError(say("a value has the unknown type {kind}", kind=kind))
    return _SCALARS[kind]


def _text(stream: BinaryIO) -> str:
    (length,) = _take(stream, "Q")
    if length > _MAX_TEXT:
        raise ValueError(say("a text is {size_bytes} long", size_bytes=length))
    return bytes(_take(stream, f"{length}s")[0]).decode("utf-8", "replace")


def _take(stream: BinaryIO, form: str) -> tuple[Any, ...]:
    """Return the next values.

    Raises:
        ValueError: the file ends early, or the header exceeds its limit.
    """
    if stream.tell() > MAX_HEADER_BYTES:
        raise ValueError(say("its header is longer than {most_bytes}", most_bytes=MAX_HEADER_BYTES))
    data = stream.read(struct.calcsize(f"<{form}"))
    try:
        return struct.unpack(f"<{form}", data)
    except struct.error as error:
        raise ValueError(say("the file ends in its header")) from error
