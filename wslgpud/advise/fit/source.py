"""The model that a user names, as the tracer takes it and as far as published arithmetic describes it.

Of shapes only Llama's layout is described: attention with grouped keys, feed-forward blocks of three matrices, and
mixtures of these. Everything else is refused by the key that was not understood.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from wslgpud.security import safe_files
from wslgpud.words import MessageError, MessageLike, cause, say

_NAMED = re.compile(r"(torchvision|timm):[\w.\-]+")
_OWN = re.compile(r"(.+\.py):([A-Za-z_]\w*)")
_SIZE = re.compile(r"(\d{1,9}\.?\d*|\.\d+)\s*([KMBT])", re.IGNORECASE)
#: a GGUF in several files, of which llama.cpp wants the first
_PIECE = re.compile(r"(.+-)\d{5}-of-(?!0{5})(\d{5})\.gguf")
_INDEX, _CONFIG = "model_index.json", "config.json"
#: Pipelines known by name, from the config.json files of stable-diffusion-v1-5/stable-diffusion-v1-5,
#: stabilityai/stable-diffusion-xl-base-1.0, black-forest-labs/FLUX.1-dev and FLUX.1-schnell on Hugging Face.
_PIPELINES = Path(__file__).with_name("pipelines.json")
MAX_CONFIG_BYTES = 64 << 20
#: ``fit``'s names of quantized weights, by ``quantization_config``'s method and bits
_STORED = {"bitsandbytes 4": "int4", "bitsandbytes 8": "int8", "fp8 8": "fp8", "mxfp4 4": "mxfp4"}
_STORED |= {"gptq 4": "gptq", "gptq 8": "gptq8", "awq 4": "awq"}
_USUAL_BITS = {"fp8": 8, "mxfp4": 4, "awq": 4, "bitsandbytes": 8}

#: Llama's families keep hidden size / layers near this (LLaMA, arXiv:2302.13971, table 2; Llama 3 is wider).
_WIDTH_TO_DEPTH = 128
#: From this size on, models share keys and values among heads (Llama 2 70B, arXiv:2307.09288).
_GROUPED_PARAMETERS = 30_000_000_000
#: families with Llama's layout, whose keys are all read here
_FAMILIES = """
    aquila baichuan cohere cohere2 deepseek dots1 ernie4_5 ernie4_5_moe exaone4 gemma gemma2 gemma3 gemma3_text glm glm4
    glm4_moe gpt_oss granite granitemoe helium hunyuan_v1_dense internlm2 internlm3 internvl internvl_chat llama llava
    llava_next minicpm minimax_m2 ministral ministral3 mistral mistral3 mixtral olmo olmo2 olmo3 olmoe orion phi3 phimoe
    pixtral qwen2 qwen2_5_vl qwen2_moe qwen2_vl qwen3 qwen3_5 qwen3_5_moe qwen3_moe qwen3_next qwen3_vl qwen3_vl_moe
    seed_oss smollm3 stablelm xverse
"""
#: keys of other layers, which nothing here counts
_STRANGE = ("kv_lora_rank", "attn_config", "ffn_config", "interleave_moe_layer_step", "mamba_d_state", "state_size")
#: families whose configurations do not say that embeddings and head are tied
_TIED = ("gemma", "cohere", "smollm3", "ernie4_5")
#: one in how many layers sees all tokens, where the configuration relies on the family
_EVERY = {"gemma2": 2, "gemma3_text": 6, "gemma3": 6}
_WINDOWED, _LINEAR = ("sliding_attention", "chunked_attention"), ("linear_attention", "mamba", "conv")

Kind = Literal["language", "gguf", "pipeline", "named", "own"]


class ShapeError(MessageError):
    """The model cannot be read; the message says what is missing."""


class UnknownModelError(ShapeError):
    """A configuration that no rule here describes; the message says which key was not understood."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A decoder: what its memory depends on.

    ``experts`` are the parameters of all experts, ``embeddings`` those of embeddings and head. ``query_width`` and
    ``kv_width`` are the numbers in the queries and the keys of a token, ``wide`` is the widest feed-forward block that
    it passes. ``full_layers`` keep the keys and values of all tokens, ``windowed_layers`` of the last ``window``.
    """

    parameters: int
    experts: int
    embeddings: int
    layers: int
    hidden: int
    heads: int
    query_width: int
    kv_width: int
    wide: int
    vocabulary: int
    full_layers: int
    windowed_layers: int
    window: int
    #: attention materialises its scores: torch has no kernel for this family that does not
    eager: bool


class NamedModel(NamedTuple):
    """A model: ``asked`` is its name as ``tracer/build.py`` takes it, or a GGUF's file.

    ``shape`` is None where no rule describes it; ``unknown`` says why for a language model. ``weights_bytes`` is the
    size of its files, where that is all that is known.
    """

    name: str
    kind: Kind
    asked: str
    shape: Shape | None = None
    unknown: MessageLike = ""
    weights_bytes: int = 0
    quantization: object = None

    @property
    def stored(self) -> str:
        """Return the precision of the weights in the files, empty if config.json does not name one.

        Raises:
            ShapeError: it is one that ``fit`` does not know.
        """
        if not isinstance(self.quantization, Mapping):
            return ""
        method = str(self.quantization.get("quant_method", "")).lower()
        usual = 4 if self.quantization.get("load_in_4bit") else _USUAL_BITS.get(method)
        bits = self.quantization.get("bits") or usual
        if (name := _STORED.get(f"{method} {bits}")) is None:
            kind = say("{method}, {bits} bits", method=method, bits=str(bits)) if bits else method or "?"
            raise ShapeError("fit does not know the quantization in config.json ({kind}): give --precision", kind=kind)
        return name


def source_of(text: str) -> NamedModel:
    """Return the model that the user names.

    Raises:
        ShapeError: it cannot be read, or is none of the kinds known here.
    """
    if _NAMED.fullmatch(text):
        return NamedModel(text, "named", text)
    if own := _OWN.fullmatch(text):
        if not Path(own[1]).is_file():
            raise ShapeError("there is no file {path}", path=own[1])
        return NamedModel(text, "own", f"{Path(own[1]).resolve()}:{own[2]}")
    known = json.loads(_PIPELINES.read_text(encoding="utf-8"))
    if parts := known["pipelines"].get(text.strip().lower()):
        models = {part: known["models"][model] for part, model in parts.items()}
        return NamedModel(text.strip().lower(), "pipeline", f"pipeline:{json.dumps(models)}")
    try:
        path = Path(text).expanduser()
        if path.exists():
            return _of_files(path)
    except (OSError, ValueError, RuntimeError) as error:  # hidden, too long, in the home of an unknown user
        file = error.filename if isinstance(error, OSError) else None  # a file below the path
        raise ShapeError("cannot read {path}: {why}", path=str(file or text), why=cause(error)) from error
    size = _SIZE.fullmatch(text.strip())
    parameters = round(float(size[1]) * {"K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}[size[2].upper()]) if size else 0
    if not parameters:
        raise ShapeError("{text} is neither a size like 7B nor a config.json or a .gguf file", text=text)
    name, config = text.strip().upper(), typical(parameters)
    shape = replace(of_config(config), parameters=parameters)
    return NamedModel(name, "language", f"config:{json.dumps(config)}", shape)


def _document(file: Path) -> dict[str, Any]:
    return safe_files.parsed(safe_files.contents(file, MAX_CONFIG_BYTES, follow=True))


def _of_files(path: Path) -> NamedModel:
    folder = path if path.is_dir() else path.parent
    if (folder / _INDEX).exists() and (path == folder or path.name == _INDEX):
        return NamedModel(folder.name, "pipeline", f"pipeline:{json.dumps(_pipeline(folder))}")
    config = path if path.suffix == ".json" else folder / _CONFIG
    models = [path] if path.suffix == ".gguf" else [] if config.exists() else sorted(folder.glob("*.gguf"))
    if len(models) == 1:
        file, pieces = models[0], [models[0]]
        if split := _PIECE.fullmatch(file.name):
            pieces = [file.with_name(f"{split[1]}{n:05}-of-{split[2]}.gguf") for n in range(1, int(split[2]) + 1)]
        size = sum(piece.stat().st_size for piece in pieces)
        return NamedModel(file.stem, "gguf", str(pieces[0]), weights_bytes=size)
    if models:
        raise ShapeError("{path} holds {count} .gguf files: name one", path=str(path), count=len(models))
    if not config.exists():
        raise ShapeError("there is no config.json in {path}", path=str(folder))
    document = _document(config)
    name = folder.name if config.name == _CONFIG else config.name
    parts = [part for part in (document, document.get("text_config")) if isinstance(part, dict)]
    packed = next((part["quantization_config"] for part in parts if part.get("quantization_config")), None)
    named = NamedModel(name, "language", f"config:{json.dumps(document)}", quantization=packed)
    try:
        return named._replace(shape=of_config(document))
    except UnknownModelError as error:
        size = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
        return named._replace(unknown=error.message, weights_bytes=size)


def _pipeline(folder: Path) -> Mapping[str, Mapping[str, Any]]:
    """Return the configuration of each model of a pipeline in a diffusers folder, with its class."""
    models = {}
    for part, entry in _document(folder / _INDEX).items():
        # "../elsewhere" would lead out of the folder
        if isinstance(entry, list) and len(entry) == 2 and part.isidentifier() and (folder / part).is_dir():
            config = folder / part / _CONFIG
            if config.exists():
                models[part] = {**_document(config), "_class_name": str(entry[1])}
    if "vae" not in models or not {"unet", "transformer"} & set(models):
        raise ShapeError(say("{file} names no pipeline with a denoiser and an autoencoder", file=_INDEX))
    return models


def typical(parameters: int) -> dict[str, Any]:
    """Return the config.json of a typical Llama of this size.

    Each layer has about 12 x hidden^2 parameters (Kaplan et al., arXiv:2001.08361, table 1).
    """
    big = parameters >= _GROUPED_PARAMETERS
    layers = max(1, round((parameters / (12 * _WIDTH_TO_DEPTH**2)) ** (1 / 3)))
    step = 1024 if big else 128 if parameters > 10**8 else 64
    hidden = step * max(1, round(math.sqrt(parameters / (12 * layers)) / step))
    heads = max(1, hidden // 128)
    kv_heads, vocabulary = (8, 128_256) if big else (heads, 32_000)
    attention = hidden * hidden // heads * (2 * heads + 2 * kv_heads)
    rest = (parameters - 2 * vocabulary * hidden) / layers - attention
    sizes = {"hidden_size": hidden, "intermediate_size": 64 * max(2, round(rest / (3 * hidden) / 64))}
    sizes |= {"num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": hidden // heads}
    sizes |= {"num_hidden_layers": layers, "vocab_size": vocabulary, "max_position_embeddings": 1 << 20}
    return {"model_type": "llama", **sizes}


def of_config(document: Mapping[str, Any]) -> Shape:
    """Return the shape in a Hugging Face config.json.

    Raises:
        UnknownModelError: no rule here describes it; the message names the key.
        ShapeError: a size is missing; the message names it.
    """
    inner = document.get("text_config") or document.get("llm_config") or document
    if not isinstance(inner, Mapping):
        raise ShapeError(say("config.json is not a model's"))
    kind = str(inner.get("model_type", document.get("model_type", "")))
    strange = next((key for key in _STRANGE if inner.get(key)), "")
    if strange or kind not in _FAMILIES.split():
        raise UnknownModelError("config.json: no rule here understands its {key}", key=strange or f"model_type {kind}")

    def number(*names: str, default: int | None = None) -> int:
        value = next((inner[name] for name in names if type(inner.get(name)) is int and inner[name] > 0), default)
        if value is None:
            raise ShapeError("config.json has no {name}", name=names[0])
        return int(value)

    hidden, layers, heads = number("hidden_size"), number("num_hidden_layers"), number("num_attention_heads")
    head_width = number("head_dim", default=hidden // heads)
    query_width, kv_width = heads * head_width, number("num_key_value_heads", default=heads) * head_width
    wide = widest = number("intermediate_size", default=4 * hidden)
    dense_layers, experts, mixtures = layers, 0, 0
    if (expert_count := number("num_local_experts", "num_experts", "n_routed_experts", default=1)) > 1:
        dense_layers = min(layers, number("first_k_dense_replace", default=0))
        mixed_layers = layers - dense_layers
        expert_width = number("moe_intermediate_size", default=wide)
        shared_width = number("n_shared_experts", default=0) * expert_width
        shared_width = number("shared_expert_intermediate_size", default=shared_width)
        experts = mixed_layers * 3 * hidden * expert_width * expert_count
        mixtures = experts + mixed_layers * hidden * (3 * shared_width + expert_count)  # with a router
        widest = max(
            number("num_experts_per_tok", default=1) * expert_width + shared_width, wide if dense_layers else 0
        )
    vocabulary = number("vocab_size")
    tied = document.get("tie_word_embeddings", inner.get("tie_word_embeddings", kind.startswith(_TIED)))
    embeddings = vocabulary * hidden * (1 if tied else 2)
    attention, norms = layers * 2 * hidden * (query_width + kv_width), (2 * layers + 1) * hidden
    parameters = embeddings + attention + norms + dense_layers * 3 * hidden * wide + mixtures
    window = number("sliding_window", default=0) if inner.get("use_sliding_window", True) else 0
    types = inner.get("layer_types")
    if isinstance(types, list):
        linear, windowed = (min(layers, sum(one in those for one in types)) for those in (_LINEAR, _WINDOWED))
    else:
        every = number("sliding_window_pattern", default=_EVERY.get(kind, 0))
        linear = layers - layers // number("full_attention_interval", default=1)
        windowed = layers - layers // every if every else layers
    windowed = windowed if window else 0
    full = max(0, layers - linear - windowed)
    block = layers, hidden, heads, query_width, kv_width, widest, vocabulary
    return Shape(parameters, experts, embeddings, *block, full, windowed, window, kind == "gpt_oss")
