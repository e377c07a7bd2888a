"""The parameters of the text encoders of diffusers' pipelines. Pure.

They finish before the denoiser begins and need less than it, so their activations are never the peak.
"""

from __future__ import annotations

from typing import NamedTuple

from wslgpud.advise.fit.forward import Forward


class TextEncoder(NamedTuple):
    """Sizes of CLIP's encoder or of T5's; ``projected`` is the width of a projected prompt, or 0."""

    t5: bool
    hidden: int
    layers: int
    inner: int
    heads_width: int
    vocabulary: int
    positions: int
    projected: int
    gated: bool
    #: relative position biases, for each head
    buckets: int


def hold(on: Forward, net: TextEncoder) -> None:
    """Count its parameters."""
    hidden, across = net.hidden, net.heads_width
    on.holds((net.vocabulary + net.positions) * hidden)
    for _ in range(net.layers):
        for _ in range(3):
            on.matrix(hidden, across, bias=not net.t5)
        on.matrix(across, hidden, bias=not net.t5)
        for _ in range(2 if net.gated else 1):
            on.matrix(hidden, net.inner, bias=not net.t5)
        on.matrix(net.inner, hidden, bias=not net.t5, kind="wide" if net.t5 else "matrix")
        for _ in range(2 if net.t5 else 4):
            on.holds(hidden)
    on.holds(hidden + net.buckets if net.t5 else 2 * hidden)
    if net.projected:
        on.matrix(hidden, net.projected, bias=False)
