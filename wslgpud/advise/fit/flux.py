"""The transformer of Flux: diffusers' ``FluxTransformer2DModel``. Pure."""

from __future__ import annotations

from typing import NamedTuple

from wslgpud.advise.fit.forward import Forward, Value


class Flux(NamedTuple):
    """Its sizes: ``double`` blocks have weights for image and text each, ``single`` blocks take a joined sequence."""

    channels: int
    double: int
    single: int
    heads: int
    head_dim: int
    context: int
    pooled: int
    guided: bool


def denoise(on: Forward, net: Flux, pixels: int, images: int, words: int) -> None:
    """Run the transformer once; ``pixels`` is the size of one latent image, four of which form a token."""
    hidden, head = net.heads * net.head_dim, net.head_dim
    for width in (256, *((256,) if net.guided else ()), net.pooled):
        on.matrix(width, hidden)
        on.matrix(hidden, hidden)
    given = on.new(images * words, net.context)
    x = on.linear(on.new(images * pixels // 4, net.channels), hidden)
    text = on.linear(given, hidden)
    angles = [on.new(words + pixels // 4, head, 4) for _ in range(2)]
    for _ in range(net.double):
        text, x = _double(on, x, text, net)
    for _ in range(net.single):
        text, x = _single(on, x, text, net)
    on.matrix(hidden, 2 * hidden, kind="modulation")
    x = _modulated(on, x)
    on.linear(x, net.channels)
    del angles


def _double(on: Forward, x: Value, text: Value, net: Flux) -> tuple[Value, Value]:
    for _ in range(2):
        on.matrix(x.width, 6 * x.width, kind="modulation")
    normed, normed_text = _modulated(on, x), _modulated(on, text)
    y, y_text = _attention(on, normed, normed_text, net)
    x, normed, y = _added_and_widened(on, x, y, normed)
    text, normed_text, y_text = _added_and_widened(on, text, y_text, normed_text)
    return text, x


def _added_and_widened(on: Forward, x: Value, y: Value, normed: Value) -> tuple[Value, Value, Value]:
    """Add the outputs of attention and of the feed-forward block; the caller holds the last ``normed`` and ``y``."""
    y = on.like(y)
    x = on.like(x)
    normed = on.like(x)
    normed = _scaled(on, normed)
    wide = on.linear(normed, 4 * x.width)
    wide = on.like(wide)
    out = on.linear(wide, x.width)
    del wide
    out = on.like(out)
    return on.like(x), normed, y


def _modulated(on: Forward, x: Value) -> Value:
    """Return a norm without weights, scaled and shifted."""
    return _scaled(on, on.like(x))


def _scaled(on: Forward, x: Value) -> Value:
    x = on.like(x)
    return on.like(x)


def _attention(on: Forward, x: Value, text: Value | None, net: Flux) -> tuple[Value, Value]:
    """Run ``FluxAttnProcessor`` on image and text, or on the joined sequence."""
    own = [on.linear(x, x.width) for _ in range(3)]
    others = [on.linear(text, x.width) for _ in range(3)] if text else []
    own[:2] = [_normed_heads(on, y, net) for y in own[:2]]
    others[:2] = [_normed_heads(on, y, net) for y in others[:2]]
    if text:
        for number in range(3):
            own[number] = on.new(x.rows + text.rows, x.width)
    for number in range(2):
        own[number] = _turned(on, own[number])
    y = on.like(own[0])
    if not text:
        return y, y
    image = on.new(x.rows, x.width)
    image = on.linear(image, x.width)
    words = on.new(text.rows, text.width)
    return image, on.linear(words, text.width)


def _normed_heads(on: Forward, x: Value, net: Flux) -> Value:
    on.holds(net.head_dim)
    return on.like(x)


def _turned(on: Forward, x: Value) -> Value:
    """Return queries or keys rotated by position, in 32 bits (``apply_rotary_emb``)."""
    half = on.new(x.rows, x.width // 2)
    crossed = on.like(x)
    del half
    wide = on.like(x, 4)
    first = on.like(x, 4)
    del wide
    wide = on.like(x, 4)
    second = on.like(x, 4)
    del wide
    both = on.like(x, 4)
    del first, second
    out = on.like(x)
    del both, crossed
    return out


def _single(on: Forward, x: Value, text: Value, net: Flux) -> tuple[Value, Value]:
    given = on.new(x.rows + text.rows, x.width)
    on.matrix(x.width, 3 * x.width, kind="modulation")
    normed = _modulated(on, given)
    wide = on.linear(normed, 4 * x.width)
    wide = on.like(wide)
    y, _ = _attention(on, normed, None, net)
    joined = on.new(given.rows, 5 * x.width)
    joined = on.linear(joined, x.width)
    joined = on.like(joined)
    out = on.like(joined)
    del y, wide
    # Both are views of it.
    return Value(out.storage, text.rows, x.width), Value(out.storage, x.rows, x.width)
