"""The shape of a language model: from "7B", a Hugging Face config.json, a safetensors or GGUF header."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from wslgpud import documents
from wslgpud.advise.fit import gguf
from wslgpud.words import Told, cause, say

#: Llama's families keep hidden size / layers near this (LLaMA, arXiv:2302.13971, table 2; Llama 3 is wider).
_WIDTH_TO_DEPTH = 128
#: From here on models share keys and values among heads (Llama 2 70B, arXiv:2307.09288).
_GROUPED_PARAMETERS = 30_000_000_000
MOST_HEADER_BYTES = 100 << 20  # of safetensors, the format's own limit
#: These have two matrices in each feed-forward block, all newer ones three (a gate).
_UNGATED = frozenset({
    "gpt2", "gpt_neox", "gpt_neo", "gptj", "gpt_bigcode", "opt", "bloom", "falcon", "phi", "mpt", "bert",
    "roberta", "t5", "starcoder2", "codegen",
})  # fmt: skip
#: What a GGUF header calls what config.json calls so: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
_GGUF_KEYS = {
    "embedding_length": "hidden_size", "block_count": "num_hidden_layers",
    "attention.head_count": "num_attention_heads", "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim", "feed_forward_length": "intermediate_size",
    "vocab_size": "vocab_size", "expert_count": "num_experts", "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size", "expert_shared_count": "n_shared_experts",
    "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
    "leading_dense_block_count": "first_k_dense_replace",
}  # fmt: skip
#: Names by general.file_type (LLAMA_FTYPE_... in llama.h of llama.cpp); of the many other kinds the name of
#: the next bigger one, by the bits that a weight takes at most.
_GGUF_TYPES = {0: "fp32", 1: "fp16", 7: "q8_0", 15: "q4_k_m", 17: "q5_k_m", 18: "q6_k", 32: "bf16"}
_GGUF_BITS = ((4.9, "q4_k_m"), (5.8, "q5_k_m"), (6.7, "q6_k"), (9.0, "q8_0"), (20.0, "bf16"))
_PIECE = re.compile(r"(.+-)\d{5}(-of-(\d{5})\.gguf)")
#: where a model in several .safetensors files says which
_INDEX = "model.safetensors.index.json"
_NUMBER = re.compile(r"(\d{1,9}\.?\d*|\.\d+)\s*([KMBT])", re.IGNORECASE)


class ShapeError(Told):
    """The shape cannot be told; it says what is missing."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A decoder; ``parameters`` is what it really has, where a file tells, else it is counted from the rest.

    ``intermediate`` is the width of one expert, ``shared`` of those that every token passes; the first
    ``dense_layers`` have no experts but a block of ``dense_width``. ``stepwise_gelu`` is an activation
    computed in several steps, of which each leaves a tensor (GPT-2's). ``stored`` names how the files hold
    the weights where they are quantized, ``stored_bytes`` what they take in it, where that is known.
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    gated: bool = True
    tied: bool = False
    experts: int = 1
    active_experts: int = 1
    stepwise_gelu: bool = False
    name: str = ""
    parameters: int = 0
    shared: int = 0
    dense_layers: int = 0
    dense_width: int = 0
    stored: str = ""
    stored_bytes: int = 0

    def count(self) -> int:
        """Return the number of parameters: attention, feed-forward, norms, embeddings."""
        attention = self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        across = (3 if self.gated else 2) * self.hidden
        router = self.hidden * self.experts if self.experts > 1 else 0
        blocks = (self.layers - self.dense_layers) * (
            across * (self.intermediate * self.experts + self.shared) + router
        ) + self.dense_layers * across * self.dense_width
        embeddings = self.vocabulary * self.hidden * (1 if self.tied else 2)
        return self.layers * (attention + 2 * self.hidden) + blocks + embeddings + self.hidden

    @property
    def active_width(self) -> int:
        """Width of all feed-forward blocks that one token passes in a layer."""
        return self.intermediate * self.active_experts + self.shared

    @property
    def size(self) -> int:
        """Number of parameters, the known one before the counted one."""
        return self.parameters or self.count()


def of(text: str) -> Shape:
    """Return the shape of what the user names: a number like 7B, or a file or folder.

    Raises:
        ShapeError: it is none of these, or does not tell enough.
    """
    try:
        path = Path(text).expanduser()
        there = path.exists()
    except (OSError, ValueError, RuntimeError) as error:  # hidden, too long, of a user who is not there
        raise _unreadable(text, error) from error
    if there:
        return of_path(path)
    match = _NUMBER.fullmatch(text.strip())
    if not match or not float(match[1]):
        raise ShapeError(
            say("{text} is no size like 7B, no config.json, no .safetensors and no .gguf file", text=text)
        )
    scale = {"K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}[match[2].upper()]
    return typical(round(float(match[1]) * scale), text.strip().upper())


def _unreadable(path: str | Path, error: Exception) -> ShapeError:
    """Return the error that names the very file of those below a path."""
    file = error.filename if isinstance(error, OSError) else None
    return ShapeError(say("cannot read {path}: {why}", path=str(file or path), why=cause(error)))


def typical(parameters: int, name: str = "") -> Shape:
    """Return the shape that Llama-like models of this size have.

    Each layer has about 12 x hidden^2 parameters (Kaplan et al., arXiv:2001.08361, table 1).
    """
    big = parameters >= _GROUPED_PARAMETERS
    layers = max(1, round((parameters / (12 * _WIDTH_TO_DEPTH**2)) ** (1 / 3)))
    step = 1024 if big else 128 if parameters > 10**8 else 64
    hidden = step * max(1, round(math.sqrt(parameters / (12 * layers)) / step))
    heads = max(1, hidden // 128)
    kv_heads = 8 if big else heads
    vocabulary = 128_256 if big else 32_000
    attention = hidden * hidden // heads * (2 * heads + 2 * kv_heads)
    rest = (parameters - 2 * vocabulary * hidden) / layers - attention
    intermediate = 64 * max(2, round(rest / (3 * hidden) / 64))
    return Shape(
        layers, hidden, heads, kv_heads, hidden // heads, intermediate, vocabulary, name=name,
        parameters=parameters,
    )  # fmt: skip


def of_path(path: Path) -> Shape:
    """Return the shape that a config.json, a .safetensors or .gguf file, or a folder with them tells.

    Raises:
        ShapeError: it cannot be read, or does not tell enough.
    """
    if path.suffix == ".gguf":
        return of_gguf(path)
    folder = path if path.is_dir() else path.parent
    config = path if path.suffix == ".json" else folder / "config.json"
    try:
        weights, complete = ([path], False) if path.suffix == ".safetensors" else _weights(folder)
        headers = [header(file) for file in weights]
        document = _document(config) if config.exists() else None
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from error
    tensors = {name: entry for found in headers for name, entry in found.items() if name != "__metadata__"}
    if document is not None:
        shape = of_config(document, folder.name or str(folder))
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
    # Of quantized weights several lie in one number.
    return _with(shape, parameters=count) if tensors and complete and not shape.stored else shape


def _weights(folder: Path) -> tuple[list[Path], bool]:
    """Return the .safetensors files of the model in a folder, and whether none of them is missing.

    Beside them there may be the same weights once more, in one file for other programs.

    Raises:
        OSError: the index cannot be read.
        ValueError: it is none.
    """
    files = sorted(folder.glob("*.safetensors"))
    if not (folder / _INDEX).exists():
        return files, True
    names = _document(folder / _INDEX).get("weight_map")
    if not isinstance(names, dict):
        raise ValueError(say("{file} names no files", file=_INDEX))  # noqa: TRY004 - as all that is wrong with a text
    pieces = {str(name) for name in names.values()}
    return [file for file in files if file.name in pieces], pieces <= {file.name for file in files}


def _document(file: Path) -> dict[str, Any]:
    """Return a JSON file of a model.

    Raises:
        OSError: it cannot be read, or is larger than any.
        ValueError: it is no JSON object.
    """
    return documents.parsed(documents.contents(file, MOST_HEADER_BYTES, follow=True))


def of_gguf(file: Path) -> Shape:
    """Return the shape that the header of a GGUF file tells; of a model in pieces all are read.

    Raises:
        ShapeError: it cannot be read, or does not tell enough.
    """
    piece = _PIECE.fullmatch(file.name)
    numbers = range(1, int(piece[3]) + 1) if piece else ()
    files = [file.with_name(f"{piece[1]}{n:05}{piece[2]}") for n in numbers if piece] or [file]
    try:
        headers = [gguf.header(one) for one in files]
    except (OSError, ValueError) as error:
        raise _unreadable(file, error) from error
    values = headers[0].values
    tensors = {name: dims for found in headers for name, dims in found.tensors.items()}
    kind, kind_of_file = values.get("general.architecture"), values.get("general.file_type")
    words: dict[str, Any] = {"vocab_size": values.get("tokenizer.ggml.tokens.length")}
    for key, word in _GGUF_KEYS.items():
        if (value := values.get(f"{kind}.{key}")) is not None:
            words[word] = max(value) if isinstance(value, tuple) and value else value  # one for each layer
    missing = [
        w
        for w in ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
        if not words.get(w)
    ]
    count = sum(math.prod(dims) for dims in tensors.values())
    if missing or not count:
        lacks = (missing or ["tensors"])[0]
        raise ShapeError(say("{path} lacks the {name} of a language model", path=str(file), name=lacks))
    stored_bytes = sum(found.data_bytes for found in headers)
    bits = 8 * stored_bytes / count
    alike = next((name for most, name in _GGUF_BITS if bits <= most), "fp32")
    shape = of_config({**words, "tie_word_embeddings": "output.weight" not in tensors}, file.stem)
    return replace(
        shape,
        gated=any("ffn_gate" in name for name in tensors),
        parameters=count,
        stored=_GGUF_TYPES.get(kind_of_file, alike) if isinstance(kind_of_file, int) else alike,
        stored_bytes=stored_bytes,
    )


def of_config(document: Mapping[str, Any], name: str = "") -> Shape:
    """Return the shape in a Hugging Face config.json.

    Raises:
        ShapeError: a size is missing; the message names it.
    """
    inner = document.get("text_config") or document.get("llm_config") or document
    if not isinstance(inner, Mapping):
        raise ShapeError(say("config.json is not a model's"))
    hidden = _whole(inner, "hidden_size", "n_embd", "d_model", "dim")
    layers = _whole(inner, "num_hidden_layers", "n_layer", "num_layers", "n_layers")
    heads = _whole(inner, "num_attention_heads", "n_head", "num_heads", "n_heads")
    kind = str(document.get("model_type", inner.get("model_type", "")))
    gated = kind not in _UNGATED
    wide = _whole(inner, "intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size", default=4 * hidden)
    experts = _whole(inner, "num_local_experts", "num_experts", "n_routed_experts", default=1)
    dense_width, shared, dense_layers = wide, 0, 0
    if experts > 1:
        wide = _whole(inner, "moe_intermediate_size", default=wide)
        shared = _whole(inner, "n_shared_experts", default=0) * wide
        shared = _whole(inner, "shared_expert_intermediate_size", default=shared)
        dense_layers = min(layers, _whole(inner, "first_k_dense_replace", default=0))
    return Shape(
        layers,
        hidden,
        heads,
        _whole(inner, "num_key_value_heads", "num_kv_heads", "n_head_kv", default=heads),
        _whole(inner, "head_dim", default=hidden // max(heads, 1)),
        wide,
        _whole(inner, "vocab_size"),
        gated,
        bool(document.get("tie_word_embeddings", inner.get("tie_word_embeddings", kind == "gpt2"))),
        experts,
        _whole(inner, "num_experts_per_tok", "num_experts_per_token", default=1),
        str(inner.get("activation_function", inner.get("hidden_act", ""))) in ("gelu_new", "gelu_fast"),
        str(document.get("_name_or_path") or name or kind),
        shared=shared,
        dense_layers=dense_layers,
        dense_width=dense_width if dense_layers else 0,
        stored=_stored(document.get("quantization_config") or inner.get("quantization_config")),
    )


def _stored(quantization: object) -> str:
    """Return the precision, by its name here, that a config.json says its weights are quantized to.

    Raises:
        ShapeError: it is none that we know; the message names it.
    """
    if not isinstance(quantization, Mapping):
        return ""
    method = str(quantization.get("quant_method", "")).lower()
    bits = quantization.get("bits")
    if method == "gptq" and bits in (4, 8):
        return "gptq" if bits == 4 else "gptq8"
    if method == "awq" and bits in (4, None):
        return "awq"
    if method == "bitsandbytes":
        return "int4" if quantization.get("load_in_4bit") else "int8"
    if method == "fp8":
        return "fp8"
    kind = say("{method}, {bits} bits", method=method, bits=str(bits)) if bits else method
    raise ShapeError(
        say(
            "config.json names a quantization that fit does not know ({kind}): take the model it was made of",
            kind=kind or "?",
        )
    )


def header(file: Path) -> dict[str, Any]:
    """Return the header of a safetensors file: names, shapes and types; no tensor is read.

    Format: https://github.com/huggingface/safetensors#format.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is none of this format.
    """
    with os.fdopen(documents.open_plain(file, follow=True), "rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        document = documents.parsed(stream.read(length)) if 0 < length <= MOST_HEADER_BYTES else None
    if document is None or not all(
        isinstance(entry, dict)
        and isinstance(entry.get("shape"), list)
        and all(isinstance(size, int) and size >= 0 for size in entry["shape"])
        for name, entry in document.items()
        if name != "__metadata__"
    ):
        raise ValueError(say("{file} is no safetensors file", file=file.name))
    return document


def of_tensors(tensors: Mapping[str, Any], name: str = "") -> Shape:
    """Return the shape that names and shapes of tensors tell; head sizes are taken to be 128.

    Raises:
        ShapeError: these are not the tensors of a language model.
    """
    numbers = [int(m[1]) for n in tensors if (m := re.search(r"(?:layers|h|blocks)\.(\d{1,6})\.", n))]
    if not numbers:
        raise ShapeError(say("it has no tensor of a layer: name the model's config.json"))

    def dims(*endings: str) -> list[int]:
        found = next((e["shape"] for n, e in tensors.items() if n.endswith(endings)), None)
        if not found or len(found) != 2:
            raise ShapeError(say("it has no tensor …{name}: name the model's config.json", name=endings[0]))
        return [int(d) for d in found]

    vocabulary, hidden = dims("embed_tokens.weight", "wte.weight", "embed_in.weight", "tok_embeddings.weight")
    query, key = dims("q_proj.weight", "wq.weight")[0], dims("k_proj.weight", "wk.weight")[0]
    wide = dims("up_proj.weight", "fc1.weight", "w3.weight")[0]
    head = math.gcd(128, key)
    tied = not any(n.endswith(("lm_head.weight", "output.weight", "embed_out.weight")) for n in tensors)
    gated = any(n.endswith(("gate_proj.weight", "w1.weight")) for n in tensors)
    return Shape(
        max(numbers) + 1, hidden, query // head, key // head, head, wide, vocabulary, gated, tied, name=name
    )


def _whole(document: Mapping[str, Any], *names: str, default: int | None = None) -> int:
    for name in names:
        value = document.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    if default is None:
        raise ShapeError(say("config.json has no {name}", name=names[0]))
    return default


def _with(shape: Shape, *, parameters: int) -> Shape:
    return replace(shape, parameters=parameters)
