"""The memory that a diffusion pipeline takes on the card to make pictures, part by part. Pure; bytes throughout."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, get_args

from wslgpud.advise.fit import flux, pipeline, unet, vae
from wslgpud.advise.fit.allocator import Allocator
from wslgpud.advise.fit.estimate import CONTEXT_BYTES, WEIGHT_BYTES, Estimate
from wslgpud.advise.fit.flux import Flux
from wslgpud.advise.fit.forward import Forward, Kind, Parameter
from wslgpud.advise.fit.parameters import WORKSPACES
from wslgpud.advise.fit.pipeline import Pipeline
from wslgpud.advise.fit.tape import Storage
from wslgpud.words import Message, say, template

Precision = Literal["bf16", "fp16", "fp32", "fp8", "int8", "int4"]
Offload = Literal["none", "model"]
PRECISIONS, OFFLOADS = get_args(Precision), get_args(Offload)
_TEXTS, _DENOISER, _VAE = template("text encoders"), template("denoiser"), template("autoencoder")
_DENOISING, _DECODING = template("denoising"), template("decoding")
#: tokens of a prompt: CLIP's, and as many of T5's as Flux's pipeline asks for
_CLIP_WORDS, _T5_WORDS = 77, 512

#: Bytes of a number by its kind.
#: - fp8: layerwise casting, of the denoiser only (https://huggingface.co/docs/diffusers/optimization/memory)
#: - int8, int4: bitsandbytes, of the denoiser and of T5. NF4 without nested quantization, as diffusers' guide has it:
#:   4 bits, and 32 for each 64 weights.
_STORED: Mapping[str, Mapping[Kind, float]] = {
    "fp8": {"matrix": 1, "convolution": 1},
    "int8": {"matrix": WEIGHT_BYTES["int8"], "modulation": WEIGHT_BYTES["int8"]},
    "int4": {"matrix": 4.5 / 8, "modulation": 4.5 / 8},
}


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be drawn; ``tiling`` and ``slicing`` are those of the autoencoder."""

    precision: Precision = "bf16"
    batch: int = 1
    width: int = 1024
    height: int = 1024
    offload: Offload = "none"
    tiling: bool = False
    slicing: bool = False


class _Card:
    """What lies on the card."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.element = 4 if plan.precision == "fp32" else 2
        self.allocator = Allocator()
        self._workspaces = [self.allocator.take(size) for size in WORKSPACES]
        self._weights: list[Storage] = []
        self._decoder: list[Storage] = []

    def hold_texts(self, model: Pipeline) -> None:
        """Load the text encoders."""
        with self.allocator.taking(_TEXTS):
            for net in model.texts:
                self._weights += self._laid(pipeline.of_text(net), quantized=net.t5 and self.plan.precision != "fp8")

    def hold_denoiser(self, model: Pipeline) -> None:
        """Load what denoises."""
        with self.allocator.taking(_DENOISER):
            self._weights += self._laid(pipeline.of_denoiser(model.denoiser), quantized=True)

    def hold_decoder(self, model: Pipeline) -> None:
        """Load the autoencoder."""
        with self.allocator.taking(_VAE):
            self._decoder = self._laid(pipeline.of_decoder(model.decoder), quantized=False)

    def _laid(self, parameters: list[Parameter], *, quantized: bool, element: int = 0) -> list[Storage]:
        stored = _STORED.get(self.plan.precision, {}) if quantized else {}
        usual = element or self.element
        kept = 4 if self.plan.precision in ("fp16", "int8", "int4") else usual
        sizes = (p.numbers * (kept if p.kind == "wide" else stored.get(p.kind, usual)) for p in parameters)
        return [Storage(self.allocator, round(size)) for size in sizes]

    def denoise(self, model: Pipeline) -> None:
        """Go two steps; prompts that say what not to draw go along, but in Flux."""
        plan, net = self.plan, model.denoiser
        on = Forward(self.allocator, self.element, unpacking=plan.precision == "int4")
        with self.allocator.taking(_DENOISING):
            for _ in range(2):
                if isinstance(net, Flux):
                    flux.denoise(on, net, self._pixels(model), plan.batch, _T5_WORDS)
                else:
                    unet.denoise(on, net, self._pixels(model), 2 * plan.batch, _CLIP_WORDS)

    def decode(self, model: Pipeline) -> None:
        """Make pixels of the latent images: of all, of each, or of its tiles."""
        plan, net, element = self.plan, model.decoder, self.element
        if net.upcast and plan.precision == "fp16":
            element = 4
            with self.allocator.taking(_VAE):
                self._decoder = self._laid(pipeline.of_decoder(net), quantized=False, element=element)
        latent, side = self._pixels(model), net.tile // net.scale
        tiled = plan.tiling and max(plan.width, plan.height) // net.scale > side
        on = Forward(self.allocator, element)
        with self.allocator.taking(_DECODING):
            made = []
            for _ in range(plan.batch if plan.slicing else 1):
                for _ in range(-(-latent // side**2) if tiled else 1):
                    images = 1 if plan.slicing else plan.batch
                    made.append(vae.decode(on, net, side**2 if tiled else latent, images))

    def _pixels(self, model: Pipeline) -> int:
        return (self.plan.width // model.decoder.scale) * (self.plan.height // model.decoder.scale)


def estimate(model: Pipeline, plan: Plan) -> Estimate:
    """Return the memory that a pipeline takes; of models that take turns, that of the one which needs most."""
    texts: list[Callable[[_Card, Pipeline], None]] = [_Card.hold_texts]
    denoiser, decoder = [_Card.hold_denoiser, _Card.denoise], [_Card.hold_decoder, _Card.decode]
    turns = (
        (texts, denoiser, decoder)
        if plan.offload == "model"
        else ([*texts, _Card.hold_denoiser, _Card.hold_decoder, _Card.denoise, _Card.decode],)
    )
    cards = []
    for turn in turns:
        card = _Card(plan)
        for step in turn:
            step(card, model)
        cards.append(card.allocator)
    most = max(cards, key=lambda allocator: allocator.reserved_bytes)
    parts = {purpose: taken for purpose, taken in most.peak.items() if purpose and taken}
    parts[template("PyTorch's cache, unused")] = most.reserved_bytes - sum(parts.values())
    return Estimate({**parts, template("CUDA itself"): CONTEXT_BYTES})
