"""Allocations of single operations of diffusers' models in a forward pass, in order. Pure.

No operation keeps anything for a backward pass. Each function frees its storage in the same order as its namesake in
diffusers (0.42). Images are ``rows`` (pixels of the whole batch) of ``width`` channels.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from wslgpud.advise.fit.allocator import Allocator
from wslgpud.advise.fit.tape import Storage

#: - modulation: the matrix of an adaptive norm, which layerwise casting skips
#: - wide: T5's ``wo``, kept in 32 bits in fp16 and quantized models (``_keep_in_fp32_modules`` of transformers)
#: - other: norms, biases, embeddings
Kind = Literal["matrix", "modulation", "convolution", "wide", "other"]


class Weight(NamedTuple):
    """One tensor of a model."""

    numbers: int
    kind: Kind


class Value(NamedTuple):
    """A tensor between two operations."""

    storage: Storage
    rows: int
    width: int


class Forward:
    """The operations; ``element`` is bytes per number, ``unpacking`` that matrices are dequantized before use."""

    def __init__(self, allocator: Allocator, element: int, *, unpacking: bool = False) -> None:
        self.parameters: list[Weight] = []
        self.element = element
        self._allocator = allocator
        self._unpacking = unpacking

    def new(self, rows: int, width: int, element: int = 0) -> Value:
        """Return an uninitialized value."""
        return Value(Storage(self._allocator, rows * width * (element or self.element)), rows, width)

    def like(self, x: Value, element: int = 0) -> Value:
        """Return a value of the same shape: a norm without weights, an activation, a sum, a copy."""
        return self.new(x.rows, x.width, element)

    def holds(self, numbers: int, kind: Kind = "other") -> None:
        """Count a parameter."""
        self.parameters.append(Weight(numbers, kind))

    def norm(self, x: Value) -> Value:
        """Return a group or layer norm with weight and bias."""
        self.holds(x.width)
        self.holds(x.width)
        return self.like(x)

    def linear(self, x: Value, out: int, *, bias: bool = True) -> Value:
        """Return a matrix product."""
        self.matrix(x.width, out, bias=bias)
        if self._unpacking:
            self.new(x.width, out)
        return self.new(x.rows, out)

    def matrix(self, width: int, out: int, *, bias: bool = True, kind: Kind = "matrix") -> None:
        """Count a matrix with a negligible product: one row per image (time, pooled prompt)."""
        self.holds(width * out, kind)
        if bias:
            self.holds(out)

    def convolution(self, x: Value, out: int, *, kernel: int = 3, rows: int = 0, copied: bool = True) -> Value:
        """Return a convolution's output; cuDNN copies its input and output, except for channels-last images."""
        self.holds(x.width * out * kernel**2, "convolution")
        self.holds(out)
        y = self.new(rows or x.rows, out)
        if kernel > 1 and copied:
            self.new(1, x.rows * x.width + y.rows * out)
        return y

    def residual(self, x: Value, out: int, moment: int = 0) -> Value:
        """Run a ``ResnetBlock2D``; ``moment`` is the width of the time embedding, 0 without one."""
        y = self.norm(x)
        y = self.like(y)
        y = self.convolution(y, out)
        if moment:
            self.matrix(moment, out)
            y = self.like(y)
        y = self.norm(y)
        y = self.like(y)
        y = self.convolution(y, out)
        if x.width != out:
            x = self.convolution(x, out, kernel=1)
        y = self.like(y)
        return self.like(y)  # divided by 1

    def attention(self, x: Value, context: Value | None = None, *, bias: bool = False) -> Value:
        """Run ``AttnProcessor2_0``; keys and values come from ``context``, else from ``x``."""
        source = context or x
        query = self.linear(x, x.width, bias=bias)
        key = self.linear(source, x.width, bias=bias)
        value = self.linear(source, x.width, bias=bias)
        y = self.like(query)
        y = self.linear(y, x.width)
        del query, key, value
        return self.like(y)  # divided by 1

    def upsampled(self, x: Value, *, copied: bool = True) -> Value:
        """Return an image twice as wide and high."""
        y = self.new(4 * x.rows, x.width)
        return self.convolution(y, x.width, copied=copied)

    def downsampled(self, x: Value) -> Value:
        """Return an image half as wide and high."""
        return self.convolution(x, x.width, rows=max(1, x.rows // 4))
