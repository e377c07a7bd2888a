"""The model that a user names, as the tracer takes it and as far as published arithmetic describes it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from wslgpud.advise.fit.shape import Shape, ShapeError, UnknownModelError, of_config, typical
from wslgpud.security import safe_files
from wslgpud.words import MessageLike, cause, say

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

Kind = Literal["language", "gguf", "pipeline", "named", "own"]


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
