"""What single operations of diffusers' models allocate in a pass forward, in their order, and their parameters. Pure.

Nothing is kept for a way back. What a function here holds until it returns is what its namesake in diffusers (0.42)
holds; images lie as rows (of the whole batch) of so many channels.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from wslgpud.advise.fit.allocator import Allocator
from wslgpud.advise.fit.tape import Storage

#: - modulation: a matrix of a norm, which layerwise casting leaves as it is
#: - wide: T5's last matrix of a block, which transformers keeps in 32 bits beside IEEE's 16 and quantized ones
#: - other: norms, biases, embeddings
Kind = Literal["matrix", "modulation", "convolution", "wide", "other"]


class Parameter(NamedTuple):
    """One tensor of a model."""

    numbers: int
    kind: Kind


class Value(NamedTuple):
    """A tensor between two operations."""

    storage: Storage
    rows: int
    width: int


class Forward:
    """The operations; ``element`` is the bytes of a number, ``unpacking`` whether a matrix is widened to be used."""

    def __init__(self, allocator: Allocator, element: int, *, unpacking: bool = False) -> None:
        self.parameters: list[Parameter] = []
        self.element = element
        self._allocator = allocator
        self._unpacking = unpacking

    def new(self, rows: int, width: int, element: int = 0) -> Value:
        """Return an uninitialized value."""
        return Value(Storage(self._allocator, rows * width * (element or self.element)), rows, width)

    def like(self, x: Value, element: int = 0) -> Value:
        """Return a value as large: of a norm without weights, an activation, a sum, a copy."""
        return self.new(x.rows, x.width, element)

    def holds(self, numbers: int, kind: Kind = "other") -> None:
        """Count a parameter."""
        self.parameters.append(Parameter(numbers, kind))

    def norm(self, x: Value) -> Value:
        """Return a group's or layer's norm with weight and bias."""
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
        """Count a matrix whose product is too small to matter: of a moment in time, of a prompt as a whole."""
        self.holds(width * out, kind)
        if bias:
            self.holds(out)

    def convolution(self, x: Value, out: int, *, kernel: int = 3, rows: int = 0) -> Value:
        """Return a convolution's outcome; cuDNN works on copies of what goes in and what comes out."""
        self.holds(x.width * out * kernel**2, "convolution")
        self.holds(out)
        y = self.new(rows or x.rows, out)
        if kernel > 1:
            self.new(1, x.rows * x.width + y.rows * out)
        return y

    def residual(self, x: Value, out: int, moment: int = 0) -> Value:
        """Return what ``ResnetBlock2D`` makes; ``moment`` is the width of the embedding of time, if it has one."""
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
        """Return what ``AttnProcessor2_0`` makes of queries, and of the keys and values of the same or a context."""
        source = context or x
        query = self.linear(x, x.width, bias=bias)
        key = self.linear(source, x.width, bias=bias)
        value = self.linear(source, x.width, bias=bias)
        y = self.like(query)
        y = self.linear(y, x.width)
        del query, key, value
        return self.like(y)  # divided by 1

    def upsampled(self, x: Value) -> Value:
        """Return an image twice as wide and high."""
        y = self.new(4 * x.rows, x.width)
        return self.convolution(y, x.width)

    def downsampled(self, x: Value) -> Value:
        """Return an image half as wide and high."""
        return self.convolution(x, x.width, rows=max(1, x.rows // 4))
