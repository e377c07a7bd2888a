"""The autoencoder between latent images and pixels: diffusers' ``AutoencoderKL``. Pure."""

from __future__ import annotations

from typing import NamedTuple

from wslgpud.advise.fit.forward import Forward, Value


class Vae(NamedTuple):
    """Its sizes; ``tile`` is the side of a tile in pixels, for tiled decoding.

    ``quantized``: an additional convolution on either side of the latent image (``use_quant_conv``). ``upcast``: SDXL
    decodes in 32 bits if the weights are fp16 (``force_upcast``).
    """

    latent: int
    widths: tuple[int, ...]
    layers: int
    tile: int
    quantized: bool
    upcast: bool

    @property
    def scale(self) -> int:
        """Pixels along one side of a latent pixel."""
        return 1 << (len(self.widths) - 1)


def decode(on: Forward, net: Vae, pixels: int, images: int) -> Value:
    """Return images; ``pixels`` is the size of one latent image."""
    x = on.new(images * pixels, net.latent)
    if net.quantized:
        x = on.convolution(x, net.latent, kernel=1)
    x = on.convolution(x, net.widths[-1])
    x = _middle(on, x)
    for level in range(len(net.widths) - 1, -1, -1):
        held = x  # held by the loop over the blocks until the block is done
        for _ in range(net.layers + 1):
            x = on.residual(x, net.widths[level])
        if level:  # after attention, several images are channels-last
            x = on.upsampled(x, copied=images == 1)
        del held
    x = on.norm(x)
    x = on.like(x)
    return on.convolution(x, 3)


def encode(on: Forward, net: Vae) -> None:
    """Run the encoder on one pixel, to count its parameters."""
    x = on.convolution(on.new(1, 3), net.widths[0])
    for level, width in enumerate(net.widths):
        for _ in range(net.layers):
            x = on.residual(x, width)
        if level < len(net.widths) - 1:
            x = on.downsampled(x)
    x = _middle(on, x)
    x = on.norm(x)
    x = on.convolution(x, 2 * net.latent)
    if net.quantized:
        on.convolution(x, 2 * net.latent, kernel=1)


def _middle(on: Forward, x: Value) -> Value:
    x = on.residual(x, x.width)
    y = on.norm(x)
    y = on.attention(y, bias=True)
    x = on.like(y)  # added to
    return on.residual(x, x.width)
