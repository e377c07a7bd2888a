"""The U-Net of Stable Diffusion 1, 2 and XL: diffusers' ``UNet2DConditionModel``. Pure."""

from __future__ import annotations

from typing import NamedTuple

from wslgpud.advise.fit.forward import Forward, Value


class Unet(NamedTuple):
    """Its sizes; ``depths`` counts transformer blocks after each residual block of a level, ``middle`` in the middle.

    ``moment`` is the width of the added embedding (SDXL: original sizes and the pooled prompt), 0 without one.
    """

    channels: int
    widths: tuple[int, ...]
    depths: tuple[int, ...]
    middle: int
    layers: int
    context: int
    linear: bool
    moment: int


def denoise(on: Forward, net: Unet, pixels: int, images: int, words: int) -> None:
    """Run the U-Net once; ``pixels`` is the size of one latent image."""
    text = on.new(images * words, net.context)
    first, time = net.widths[0], 4 * net.widths[0]
    for width in (first, *((net.moment,) if net.moment else ())):
        on.matrix(width, time)
        on.matrix(time, time)
    x = on.convolution(on.new(images * pixels, net.channels), first)
    skips = [x]
    last = len(net.widths) - 1
    for level, (width, depth) in enumerate(zip(net.widths, net.depths, strict=True)):
        for _ in range(net.layers):
            x = on.residual(x, width, time)
            x = _transformers(on, x, text, depth, linear=net.linear)
            skips.append(x)
        if level < last:
            x = on.downsampled(x)
            skips.append(x)
    x = on.residual(x, net.widths[-1], time)
    x = _transformers(on, x, text, net.middle, linear=net.linear)
    x = on.residual(x, net.widths[-1], time)
    for level in range(last, -1, -1):
        held, taken = x, skips[-net.layers - 1 :]  # of the whole block
        del skips[-net.layers - 1 :]
        for number in range(net.layers + 1):
            x = on.new(x.rows, x.width + taken[-1 - number].width)
            x = on.residual(x, net.widths[level], time)
            x = _transformers(on, x, text, net.depths[level], linear=net.linear)
        if level:
            x = on.upsampled(x)
        del held, taken
    x = on.norm(x)
    x = on.like(x)
    x = on.convolution(x, net.channels)


def _transformers(on: Forward, x: Value, text: Value, depth: int, *, linear: bool) -> Value:
    """Run a ``Transformer2DModel``."""
    if not depth:
        return x
    y = on.norm(x)
    if linear:
        y = on.like(y)  # channels last
        y = on.linear(y, x.width)
    else:
        y = on.convolution(y, x.width, kernel=1)
        y = on.like(y)
    for _ in range(depth):
        y = _block(on, y, text)
    if linear:
        y = on.linear(y, x.width)
        y = on.like(y)
    else:
        y = on.like(y)
        y = on.convolution(y, x.width, kernel=1)
    return on.like(y)


def _block(on: Forward, given: Value, text: Value) -> Value:
    """Run a ``BasicTransformerBlock``; the caller holds ``given``."""
    normed = on.norm(given)
    y = on.attention(normed)
    x = on.like(given)
    normed = on.norm(x)
    y = on.attention(normed, text)
    x = on.like(x)
    normed = on.norm(x)
    y = _gated(on, normed)
    return on.like(y)


def _gated(on: Forward, x: Value) -> Value:
    inner = 4 * x.width
    both = on.linear(x, 2 * inner)
    gate = on.new(x.rows, inner)
    y = on.like(gate)
    del both, gate
    return on.linear(y, x.width)
