"""Reads the shape of a language model from its files: a config.json, headers of safetensors and GGUF."""

from __future__ import annotations

import math
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from wslgpud.advise.fit import gguf
from wslgpud.advise.fit.config_json import MAX_HEADER_BYTES, document, reading
from wslgpud.advise.fit.quantization import ShapeError
from wslgpud.advise.fit.shape import Shape, UnknownModelError, of_config, of_tensors, typical
from wslgpud.security import safe_files
from wslgpud.security.shapes import record, rows, whole
from wslgpud.words import say

#: Required keys of a GGUF header, by config.json's names: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
_GGUF_NEEDS = {
    "hidden_size": "embedding_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "vocab_size": "vocab_size",
}
#: Names by general.file_type (LLAMA_FTYPE_... in llama.h of llama.cpp); other kinds get the name of the next bigger
#: one, by bits per weight.
_GGUF_TYPES = {0: "fp32", 1: "fp16", 7: "q8_0", 15: "q4_k_m", 17: "q5_k_m", 18: "q6_k", 32: "bf16"}
_GGUF_BITS = ((4.9, "q4_k_m"), (5.8, "q5_k_m"), (6.7, "q6_k"), (9.0, "q8_0"), (20.0, "bf16"))
_PIECE = re.compile(r"(.+-)\d{5}(-of-(\d{5})\.gguf)")
#: the index of a model in several .safetensors files
_INDEX = "model.safetensors.index.json"
_TENSOR = record({"shape": rows(whole)})
_NUMBER = re.compile(r"(\d{1,9}\.?\d*|\.\d+)\s*([KMBT])", re.IGNORECASE)


def of(text: str) -> Shape:
    """Return the shape named by the user: a number like 7B, or a file or folder.

    Raises:
        ShapeError: it is none of these, or incomplete.
    """
    with reading(text):
        path = Path(text).expanduser()
        if path.exists():
            return of_path(path)
    match = _NUMBER.fullmatch(text.strip())
    parameters = float(match[1]) * {"K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}[match[2].upper()] if match else 0
    if not 0 < parameters < math.inf:
        raise ShapeError("{text} is neither a size like 7B nor a config.json, .safetensors or .gguf file", text=text)
    return typical(round(parameters), text.strip().upper())


def of_path(path: Path) -> Shape:
    """Return the shape in a config.json, a .safetensors or .gguf file, or a folder with them.

    Raises:
        OSError: it cannot be read.
        ValueError: it has none of these formats.
        ShapeError: it is incomplete.
    """
    if path.suffix == ".gguf":
        return of_gguf(path)
    folder = path if path.is_dir() else path.parent
    config = path if path.suffix == ".json" else folder / "config.json"
    weights, complete = ([path], False) if path.suffix == ".safetensors" else _weights(folder)
    tensors = {name: entry for file in weights for name, entry in header(file).items()}
    if config.exists():
        try:
            shape = of_config(document(config), folder.name or str(folder))
        except UnknownModelError as unknown:
            raise UnknownModelError(unknown.said, sum(file.stat().st_size for file in weights)) from unknown
    elif tensors:
        shape = of_tensors(tensors, path.stem)
    else:
        if len(models := sorted(folder.glob("*.gguf"))) == 1:
            return of_gguf(models[0])
        raise ShapeError(
            say("{path} holds {count} .gguf files: name one", path=str(path), count=len(models))
            if models
            else say("{path} holds neither config.json nor .safetensors", path=str(path))
        )
    count = sum(math.prod(entry["shape"]) for entry in tensors.values())
    complete |= not (folder / _INDEX).exists()
    # Several quantized weights are packed into one number.
    return replace(shape, parameters=count) if tensors and complete and not shape.stored else shape


def _weights(folder: Path) -> tuple[list[Path], bool]:
    """Return the .safetensors files of the model in a folder, and whether they are complete.

    Next to them there may be a second copy of the weights in one file for other programs.
    """
    files = sorted(folder.glob("*.safetensors"))
    if not (folder / _INDEX).exists():
        return files, True
    names = document(folder / _INDEX).get("weight_map")
    if not isinstance(names, dict):
        raise ValueError(say("{file} names no files", file=_INDEX))
    pieces = {str(name) for name in names.values()}
    return [file for file in files if file.name in pieces], pieces <= {file.name for file in files}


def of_gguf(file: Path) -> Shape:
    """Return the shape in the header of a GGUF file; all parts of a split model are read.

    Raises:
        OSError: it cannot be read.
        ValueError: it is none of this format.
        ShapeError: it is incomplete.
    """
    names = [file.name]
    if piece := _PIECE.fullmatch(file.name):
        names = [f"{piece[1]}{n:05}{piece[2]}" for n in range(1, int(piece[3]) + 1)] or names
    headers = [gguf.header(file.with_name(name)) for name in names]
    values = headers[0].values
    tensors = {name: dims for found in headers for name, dims in found.tensors.items()}
    kind, kind_of_file = values.get("general.architecture"), values.get("general.file_type")
    words: dict[str, Any] = {"vocab_size": values.get("tokenizer.ggml.tokens.length")}
    for key, value in values.items():
        if key.startswith(f"{kind}."):
            words[key.removeprefix(f"{kind}.")] = max(value) if isinstance(value, tuple) and value else value
    count = sum(math.prod(dims) for dims in tensors.values())
    lacks = [name for name, key in _GGUF_NEEDS.items() if not words.get(key)] or ["tensors"] * (not count)
    if lacks:
        raise ShapeError("{path} lacks the {name} of a language model", path=str(file), name=lacks[0])
    stored_bytes = sum(found.data_bytes for found in headers)
    alike = next((name for most, name in _GGUF_BITS if 8 * stored_bytes / count <= most), "fp32")
    stored = _GGUF_TYPES.get(kind_of_file, alike) if isinstance(kind_of_file, int) else alike
    shape = of_config({**words, "tie_word_embeddings": "output.weight" not in tensors}, file.stem)
    gated = any("ffn_gate" in name for name in tensors)
    return replace(shape, gated=gated, parameters=count, stored=stored, stored_bytes=stored_bytes)


def header(file: Path) -> dict[str, Any]:
    """Return the header of a safetensors file: names, shapes and types; no tensor is read.

    Format: https://github.com/huggingface/safetensors#format.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is none of this format.
    """
    with os.fdopen(safe_files.open_plain(file, follow=True), "rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        document = safe_files.parsed(stream.read(length)) if 0 < length <= MAX_HEADER_BYTES else None
    tensors = {name: entry for name, entry in (document or {}).items() if name != "__metadata__"}
    if document is None or not all(map(_TENSOR, tensors.values())):
        raise ValueError(say("{file} is no safetensors file", file=file.name))
    return tensors
