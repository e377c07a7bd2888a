"""The model that a user names, as the tracer takes it and as far as published arithmetic describes it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from wslgpud.advise.fit.config_json import document, reading
from wslgpud.advise.fit.model_files import of
from wslgpud.advise.fit.quantization import ShapeError
from wslgpud.advise.fit.shape import Shape, UnknownModelError
from wslgpud.words import say

_NAMED = re.compile(r"(torchvision|timm):[\w.\-]+")
_OWN = re.compile(r"(.+\.py):([A-Za-z_]\w*)")
_INDEX = "model_index.json"
#: Pipelines known by name, from the config.json files of stable-diffusion-v1-5/stable-diffusion-v1-5,
#: stabilityai/stable-diffusion-xl-base-1.0, black-forest-labs/FLUX.1-dev and FLUX.1-schnell on Hugging Face.
_PIPELINES = Path(__file__).with_name("pipelines.json")

Kind = Literal["language", "gguf", "pipeline", "named", "own"]


class NamedModel(NamedTuple):
    """A model: ``asked`` is its name as ``tracer/build.py`` takes it, a GGUF's file, or empty: it cannot be built.

    ``shape`` is None where no rule describes it; ``unknown`` says why for a language model.
    """

    name: str
    kind: Kind
    asked: str
    shape: Shape | None = None
    unknown: UnknownModelError | None = None


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
    return _of_files(text)


def _of_files(text: str) -> NamedModel:
    with reading(text):
        path = Path(text).expanduser()
        folder = path.parent if path.name == _INDEX else path
        if (folder / _INDEX).exists():
            return NamedModel(folder.name, "pipeline", f"pipeline:{json.dumps(_pipeline(folder))}")
        config = path / "config.json" if path.is_dir() else path
        asked = config.suffix == ".json" and config.is_file()
        found = document(config) if asked else {}
    name = config.parent.name if config.name == "config.json" else config.name
    model = f"config:{json.dumps(found)}" if asked else ""
    try:
        shape = of(text)
    except UnknownModelError as unknown:
        return NamedModel(name, "language", model, unknown=unknown)
    if path.suffix == ".gguf" or shape.stored_bytes:
        file = path if path.suffix == ".gguf" else next(path.glob("*.gguf"))
        return NamedModel(shape.name, "gguf", str(file), shape)
    if not path.exists():
        model = f"config:{json.dumps(_llama(shape))}"
    return NamedModel(shape.name, "language", model, shape)


def _llama(shape: Shape) -> dict[str, Any]:
    """Return the config.json of a typical model."""
    return {
        "model_type": "llama",
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "vocab_size": shape.vocabulary,
        "max_position_embeddings": 1 << 20,
    }


def _pipeline(folder: Path) -> Mapping[str, Mapping[str, Any]]:
    """Return the configuration of each model of a pipeline in a diffusers folder, with its class."""
    models = {}
    for part, entry in document(folder / _INDEX).items():
        # "../elsewhere" would lead out of the folder
        if isinstance(entry, list) and len(entry) == 2 and part.isidentifier() and (folder / part).is_dir():
            config = folder / part / "config.json"
            if config.exists():
                models[part] = {**document(config), "_class_name": str(entry[1])}
    if "vae" not in models or not {"unet", "transformer"} & set(models):
        raise ShapeError(say("{file} names no pipeline with a denoiser and an autoencoder", file=_INDEX))
    return models
