"""The memory that a diffusion pipeline takes on the card, part by part. Pure; bytes throughout."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, get_args

from wslgpud.advise.fit import diffusion, flux, unet, vae
from wslgpud.advise.fit.allocator import Allocator
from wslgpud.advise.fit.diffusion import DiffusionPipeline
from wslgpud.advise.fit.estimate import CONTEXT_BYTES, WEIGHT_BYTES, Estimate
from wslgpud.advise.fit.flux import Flux
from wslgpud.advise.fit.forward import Forward, Kind, Weight
from wslgpud.advise.fit.knobs import Turn, fitting
from wslgpud.advise.fit.parameters import WORKSPACES
from wslgpud.advise.fit.tape import Storage
from wslgpud.advise.fit.unet import Unet
from wslgpud.words import Message, MessageLike, say, template

Precision = Literal["bf16", "fp16", "fp32", "fp8", "int8", "int4"]
PRECISIONS = get_args(Precision)
_TEXTS, _DENOISER, _VAE = template("text encoders"), template("denoiser"), template("autoencoder")
_DENOISING, _DECODING = template("denoising"), template("decoding")
#: tokens of a prompt: CLIP's, and T5's in Flux's pipeline
_CLIP_WORDS, _T5_WORDS = 77, 512
#: images or tiles decoded in sequence; more of them make no difference
_MOST_TURNS = 16
#: smallest side of a suggested smaller image
_LEAST_SIDE = 768

#: Bytes per number by kind, for each precision. - fp8: layerwise casting, denoiser only
#: (https://huggingface.co/docs/diffusers/optimization/memory) - int8, int4: bitsandbytes, denoiser and T5. NF4 without
#: nested quantization, as in diffusers' guide: 4 bits, and 32 for each 64 weights.
_NF4, _INT8 = (1 / 2, 4 / 64), (WEIGHT_BYTES["int8"],)
_STORED: Mapping[str, Mapping[Kind, tuple[float, ...]]] = {
    "fp8": {"matrix": (1,), "convolution": (1,)},
    "int8": {"matrix": _INT8, "modulation": _INT8},
    "int4": {"matrix": _NF4, "modulation": _NF4},
}


@dataclass(frozen=True, slots=True)
class PicturePlan:
    """The images to generate; ``offload`` is model offload, ``tiling`` and ``slicing`` are the autoencoder's."""

    precision: Precision = "bf16"
    batch: int = 1
    width: int = 1024
    height: int = 1024
    offload: bool = False
    tiling: bool = False
    slicing: bool = False


class _Loaded:
    """The models on the card, and its allocator."""

    def __init__(self, plan: PicturePlan) -> None:
        self.plan = plan
        self.element = 4 if plan.precision == "fp32" else 2
        self.allocator = Allocator()
        self._workspaces = [self.allocator.take(size) for size in WORKSPACES]
        self._weights: list[Storage] = []
        self._decoder: list[Storage] = []

    def hold_texts(self, model: DiffusionPipeline) -> None:
        """Load the text encoders."""
        with self.allocator.taking(_TEXTS):
            for net in model.texts:
                self._weights += self._laid(diffusion.of_text(net), quantized=net.t5 and self.plan.precision != "fp8")

    def hold_denoiser(self, model: DiffusionPipeline) -> None:
        """Load the denoiser."""
        with self.allocator.taking(_DENOISER):
            self._weights += self._laid(diffusion.of_denoiser(model.denoiser), quantized=True)

    def hold_decoder(self, model: DiffusionPipeline) -> None:
        """Load the autoencoder."""
        with self.allocator.taking(_VAE):
            self._decoder = self._laid(diffusion.of_decoder(model.decoder), quantized=False)

    def _laid(self, parameters: list[Weight], *, quantized: bool, element: int = 0) -> list[Storage]:
        stored = _STORED.get(self.plan.precision, {}) if quantized else {}
        usual = element or self.element
        kept = 4 if self.plan.precision in ("fp16", "int8", "int4") else usual
        found = []
        for p in parameters:
            each = (kept,) if p.kind == "wide" else stored.get(p.kind, (usual,))
            found += [Storage(self.allocator, round(p.numbers * size)) for size in each]
        return found

    def denoise(self, model: DiffusionPipeline) -> None:
        """Run two steps; classifier-free guidance doubles the batch, except in Flux."""
        plan, net = self.plan, model.denoiser
        on = Forward(self.allocator, self.element, unpacking=plan.precision == "int4")
        with self.allocator.taking(_DENOISING):
            for _ in range(2):
                if isinstance(net, Flux):
                    flux.denoise(on, net, self._pixels(model), plan.batch, _T5_WORDS)
                else:
                    unet.denoise(on, net, self._pixels(model), 2 * plan.batch, _CLIP_WORDS)

    def decode(self, model: DiffusionPipeline) -> None:
        """Decode the latent images: all at once, each, or its tiles; SDXL's in 32 bits, else they overflow."""
        plan, net, element = self.plan, model.decoder, self.element
        if net.upcast and plan.precision == "fp16" and isinstance(model.denoiser, Unet) and model.denoiser.moment:
            element = 4
            with self.allocator.taking(_VAE):
                self._decoder = self._laid(diffusion.of_decoder(net), quantized=False, element=element)
        latent, side = self._pixels(model), max(1, net.tile // net.scale)
        tiled = plan.tiling and max(plan.width, plan.height) // net.scale > side
        turns = (plan.batch if plan.slicing else 1) * (-(-latent // side**2) if tiled else 1)
        on = Forward(self.allocator, element)
        with self.allocator.taking(_DECODING):
            made = []
            for _ in range(min(turns, _MOST_TURNS)):  # each like the one before
                pixels, images = side**2 if tiled else latent, 1 if plan.slicing else plan.batch
                made.append(vae.decode(on, net, pixels, images))

    def _pixels(self, model: DiffusionPipeline) -> int:
        return (self.plan.width // model.decoder.scale) * (self.plan.height // model.decoder.scale)


_Step = Callable[[_Loaded, DiffusionPipeline], None]


@lru_cache(maxsize=64)
def estimate(model: DiffusionPipeline, plan: PicturePlan) -> Estimate:
    """Return the memory that a pipeline takes; with model offload, that of the largest step."""
    loading: list[_Step] = [_Loaded.hold_texts, _Loaded.hold_denoiser]
    denoiser: list[_Step] = [_Loaded.hold_denoiser, _Loaded.denoise]
    decoder: list[_Step] = [_Loaded.hold_decoder, _Loaded.decode]
    if not plan.offload:
        turns = [[*loading, _Loaded.hold_decoder, _Loaded.denoise, _Loaded.decode]]
    else:  # bitsandbytes quantizes on the card, before any model is offloaded to RAM
        turns = [loading if plan.precision == "int4" else loading[:1], denoiser, decoder]
    cards = []
    for turn in turns:
        card = _Loaded(plan)
        for step in turn:
            step(card, model)
        cards.append(card.allocator)
    most = max(cards, key=lambda allocator: allocator.reserved_bytes)
    parts = {purpose: taken for purpose, taken in most.peak.items() if purpose and taken}
    parts[template("PyTorch's cache, unused")] = most.reserved_bytes - sum(parts.values())
    return Estimate({**parts, template("CUDA itself"): CONTEXT_BYTES})


def knobs(model: DiffusionPipeline, plan: PicturePlan, usable_bytes: int) -> list[tuple[Message, int]]:
    """Return the changes that make a plan fit, and its bytes then."""
    return fitting(_turns(plan), plan, usable_bytes, lambda changed: estimate(model, changed).total_bytes)


def _turns(plan: PicturePlan) -> Iterator[Turn]:
    """Yield the changes that save memory, the least harmful first: to speed, to images at once, to precision."""
    if plan.batch > 1 and not plan.slicing:
        yield say("--vae-slicing (decodes one image after the other)"), {"slicing": True}
    if not plan.tiling:
        yield say("--vae-tiling (decodes images in tiles)"), {"tiling": True}
    if not plan.offload:
        yield say("--offload (models stay in RAM until needed)"), {"offload": True}
    if plan.batch > 1:
        yield say("a batch of 1"), {"batch": 1}
    for precision in ("bf16", "fp8", "int4"):
        usual = WEIGHT_BYTES[plan.precision] + (plan.precision == "fp16")  # in which SDXL decodes in 32 bits
        if WEIGHT_BYTES[precision] < usual:
            yield say("{precision} weights", precision=precision), {"precision": precision}
    if min(plan.width, plan.height) > _LEAST_SIDE:
        half = {"width": plan.width // 2, "height": plan.height // 2}
        yield say("{width}x{height} pixels", **half), half


def unmeasured(plan: PicturePlan) -> list[MessageLike]:
    """Return the parts of a plan that are only computed, not measured on a real card, see README.md."""
    return [say("quantized weights")] if plan.precision in ("int8", "int4") else []
