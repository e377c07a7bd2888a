"""The shape of a text-to-image pipeline: by name, or from a diffusers folder (model_index.json)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from wslgpud.advise.fit import flux, text_encoder, unet, vae
from wslgpud.advise.fit.allocator import Allocator
from wslgpud.advise.fit.config_json import document, reading, whole_of
from wslgpud.advise.fit.diffusion_configs import CONFIGS
from wslgpud.advise.fit.flux import Flux
from wslgpud.advise.fit.forward import Forward, Weight
from wslgpud.advise.fit.quantization import ShapeError
from wslgpud.advise.fit.text_encoder import TextEncoder
from wslgpud.advise.fit.unet import Unet
from wslgpud.advise.fit.vae import Vae

_INDEX = "model_index.json"
#: Larger values are no model but a file crafted to keep the simulation busy.
_MOST_BLOCKS, _MOST_WIDTH = 64, 1 << 20
#: pixels, images and words, on which the parameters do not depend
_SMALLEST = (1, 1, 1)


class DiffusionPipeline(NamedTuple):
    """A pipeline's models."""

    name: str
    texts: tuple[TextEncoder, ...]
    denoiser: Unet | Flux
    decoder: Vae

    @property
    def size(self) -> int:
        """Number of parameters of all models."""
        models = (*map(of_text, self.texts), of_denoiser(self.denoiser), of_decoder(self.decoder))
        return sum(parameter.numbers for model in models for parameter in model)


def _counted(walk: Callable[[Forward], object]) -> list[Weight]:
    on = Forward(Allocator(), 2)
    walk(on)
    return on.parameters


def of_text(net: TextEncoder) -> list[Weight]:
    """Return the parameters of a text encoder."""
    return _counted(lambda on: text_encoder.hold(on, net))


def of_denoiser(net: Unet | Flux) -> list[Weight]:
    """Return the parameters of a denoiser."""
    if isinstance(net, Flux):
        return _counted(lambda on: flux.denoise(on, net, *_SMALLEST))
    return _counted(lambda on: unet.denoise(on, net, *_SMALLEST))


def of_decoder(net: Vae) -> list[Weight]:
    """Return the parameters of an autoencoder: both halves are loaded, though text-to-image runs the decoder only."""
    return _counted(lambda on: vae.encode(on, net)) + _counted(lambda on: vae.decode(on, net, 1, 1))


def of(text: str) -> DiffusionPipeline | None:
    """Return the pipeline that the user names: sdxl, flux-dev, or a folder with a model_index.json; None if it is none.

    Raises:
        ShapeError: it is incomplete, or its models are of an unknown kind.
    """
    name = text.strip().lower()
    if models := CONFIGS.get(name):
        return of_configs(models, name)
    with reading(text):
        path = Path(text).expanduser()
        folder = path.parent if path.name == _INDEX else path
        return of_folder(folder) if (folder / _INDEX).exists() else None


def of_folder(folder: Path) -> DiffusionPipeline:
    """Return the pipeline in a folder that has a model_index.json.

    Raises:
        OSError: a file cannot be read.
        ValueError: a file does not have this format.
        ShapeError: a size is missing, or its models are of an unknown kind.
    """
    index = document(folder / _INDEX)
    models = {}
    for name, entry in index.items():
        known = isinstance(entry, list) and len(entry) == 2 and (kind := str(entry[1])) in _READERS
        if known and name.isidentifier():  # "../elsewhere" would lead out of the folder
            models[name] = {**document(folder / name / "config.json"), "_class_name": kind}
    return of_configs(models, folder.name, str(index.get("_class_name", "?")))


def of_configs(models: Mapping[str, Mapping[str, Any]], name: str, kind: str = "?") -> DiffusionPipeline:
    """Return the pipeline described by its models' configurations; each names its class as ``_class_name``.

    Raises:
        ShapeError: a size is missing, or its models are of an unknown kind.
    """
    found = [_READERS[str(config["_class_name"])](config) for config in models.values()]
    if not all(map(_bounded, found)):
        raise ShapeError("{kind}: the sizes in its config.json are implausible", kind=kind)
    texts = tuple(model for model in found if isinstance(model, TextEncoder))
    denoisers = [model for model in found if isinstance(model, (Unet, Flux))]
    decoders = [model for model in found if isinstance(model, Vae)]
    if len(denoisers) != 1 or len(decoders) != 1:
        raise ShapeError(
            "{kind}: fit supports diffusers' pipelines with one of {known} and an AutoencoderKL",
            kind=kind,
            known=("UNet2DConditionModel", "FluxTransformer2DModel"),
        )
    return DiffusionPipeline(name, texts, denoisers[0], decoders[0])


def _bounded(model: TextEncoder | Unet | Flux | Vae) -> bool:
    """Return whether the sizes are plausible, so that a simulation ends."""
    blocks = {"layers", "double", "single", "middle", "depths"}
    for name, value in model._asdict().items():
        most = _MOST_BLOCKS if name in blocks else _MOST_WIDTH
        if any(each > most for each in (value if isinstance(value, tuple) else (value,))):
            return False
    return True


def _widths(config: Mapping[str, Any]) -> tuple[int, ...]:
    found = config.get("block_out_channels")
    if not isinstance(found, (list, tuple)) or not found or not all(isinstance(w, int) and w > 0 for w in found):
        raise ShapeError("config.json has no {name}", name="block_out_channels")
    return tuple(found[:8])


def _unet(config: Mapping[str, Any]) -> Unet:
    widths = _widths(config)
    kinds = config.get("down_block_types")
    depths = config.get("transformer_layers_per_block", 1)
    depths = tuple(depths) if isinstance(depths, (list, tuple)) else (depths,) * len(widths)
    if not isinstance(kinds, (list, tuple)) or len(kinds) != len(widths):
        raise ShapeError("config.json has no {name}", name="down_block_types")
    if len(depths) != len(widths) or not all(type(n) is int and n > 0 for n in depths):
        raise ShapeError("config.json has no {name}", name="transformer_layers_per_block")
    crossing = tuple(n if str(kind).startswith("CrossAttn") else 0 for n, kind in zip(depths, kinds, strict=True))
    return Unet(
        whole_of(config, "in_channels"),
        widths,
        crossing,
        depths[-1],
        whole_of(config, "layers_per_block", default=2),
        whole_of(config, "cross_attention_dim"),
        config.get("use_linear_projection") is True,
        whole_of(config, "projection_class_embeddings_input_dim", default=0),
    )


def _flux(config: Mapping[str, Any]) -> Flux:
    return Flux(
        whole_of(config, "in_channels", default=64),
        whole_of(config, "num_layers", default=19),
        whole_of(config, "num_single_layers", default=38),
        whole_of(config, "num_attention_heads", default=24),
        whole_of(config, "attention_head_dim", default=128),
        whole_of(config, "joint_attention_dim", default=4096),
        whole_of(config, "pooled_projection_dim", default=768),
        config.get("guidance_embeds") is True,
    )


def _vae(config: Mapping[str, Any]) -> Vae:
    return Vae(
        whole_of(config, "latent_channels"),
        _widths(config),
        whole_of(config, "layers_per_block", default=1),
        whole_of(config, "sample_size", default=32),
        config.get("use_quant_conv") is not False,
        config.get("force_upcast") is not False,
    )


def _clip(config: Mapping[str, Any]) -> TextEncoder:
    hidden = whole_of(config, "hidden_size")
    return TextEncoder(
        t5=False,
        hidden=hidden,
        layers=whole_of(config, "num_hidden_layers"),
        inner=whole_of(config, "intermediate_size"),
        heads_width=hidden,
        vocabulary=whole_of(config, "vocab_size"),
        positions=whole_of(config, "max_position_embeddings", default=77),
        projected=whole_of(config, "projection_dim") if config["_class_name"] == _PROJECTED else 0,
        gated=False,
        buckets=0,
    )


def _t5(config: Mapping[str, Any]) -> TextEncoder:
    return TextEncoder(
        t5=True,
        hidden=whole_of(config, "d_model"),
        layers=whole_of(config, "num_layers"),
        inner=whole_of(config, "d_ff"),
        heads_width=whole_of(config, "num_heads") * whole_of(config, "d_kv"),
        vocabulary=whole_of(config, "vocab_size"),
        positions=0,
        projected=0,
        gated=str(config.get("feed_forward_proj")).startswith("gated"),
        buckets=whole_of(config, "relative_attention_num_buckets", default=32) * whole_of(config, "num_heads"),
    )


_PROJECTED = "CLIPTextModelWithProjection"
_READERS: Mapping[str, Callable[[Mapping[str, Any]], TextEncoder | Unet | Flux | Vae]] = {
    "UNet2DConditionModel": _unet,
    "FluxTransformer2DModel": _flux,
    "AutoencoderKL": _vae,
    "CLIPTextModel": _clip,
    _PROJECTED: _clip,
    "T5EncoderModel": _t5,
}
