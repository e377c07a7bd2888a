"""Allocations of single operations of transformers' models, forward and backward, in order. Pure.

Each was derived from recordings of torch 2.11's allocator on an NVIDIA H200 (``_record_memory_history`` beside a
``TorchDispatchMode``). Sizes below ``allocator.GRAIN_BYTES`` per token (means, scales) are omitted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from wslgpud.advise.fit.tape import Node, Storage, Tape, Tensor
from wslgpud.words import template

#: purposes of storage; the rest is activations
GRADIENTS = template("gradients")
#: An H200's and an H100's; with fewer multiprocessors, sums over tokens take less scratch.
_PROCESSORS, _THREADS = 132, 2048
#: Beyond this many tokens, the gradient of embeddings is summed by segments, a tenth of them split.
SEGMENTED_TOKENS, SEGMENT_RATIO = 3072, 1.1


class Operations:
    """Operations on tensors of so many tokens; ``element`` is the bytes of a number in matrix products."""

    def __init__(self, tape: Tape, tokens: int, *, element: int, mixed: bool, unpacking: bool = False) -> None:
        self.tape = tape
        self.tokens = tokens
        self.element = element
        self.mixed = mixed
        #: whether a matrix is dequantized to 16 bits for products
        self.unpacking = unpacking
        self._halves: dict[int, Tensor] = {}

    def new(self, width: int, element: int) -> Storage:
        """Return storage for so many numbers for each token."""
        return self.tape.take(self.tokens * width, element)

    def width(self, tensor: Tensor) -> int:
        """Return how many numbers a token has."""
        return tensor.numbers // self.tokens

    def made(
        self, storage: Storage, width: int, element: int, back: Callable[[Node], None], *before: Node | None
    ) -> Tensor:
        """Return a tensor with so many numbers for each token."""
        return self.tape.made(storage, self.tokens * width, element, back, *before)

    def mapped(
        self, x: Tensor, out: Storage, element: int, kept: list[Storage] | None = None, numbers: int = 0
    ) -> Tensor:
        """Return ``out`` as a function of ``x``; back, a new gradient of its size comes before what is kept is freed.

        It has as many numbers as ``x``, unless said otherwise.
        """
        tape, node, before, own = self.tape, x.node, x.element, x.numbers

        def back(this: Node) -> None:
            gradient = this.take()
            found = tape.take(own, before)
            if kept:
                kept.clear()
            del gradient
            tape.add(node, found)

        return tape.made(out, numbers or own, element, back, node)

    def viewed(self, x: Tensor, out: Storage, numbers: int, element: int) -> Tensor:
        """Return ``out`` as a function of ``x`` whose gradient is passed on as it is."""
        tape, node = self.tape, x.node
        return tape.made(out, numbers, element, lambda this: tape.add(node, this.take()), node)

    def forget(self) -> None:
        """Drop the 16-bit copies of weights, which autocast keeps until its end."""
        self._halves.clear()

    def cast(self, x: Tensor, element: int) -> Tensor:
        """Return a cast to another width."""
        return x if x.element == element else self.mapped(x, self.tape.take(x.numbers, element), element)

    def through(self, x: Tensor) -> Tensor:
        """Return a new tensor of the same size whose gradient is also new: a factor, a copy."""
        return self.mapped(x, self.tape.take(x.numbers, x.element), x.element)

    def heads(self, x: Tensor, *, copied: bool) -> Tensor:
        """Return a view by heads; its gradient is copied where it is laid out by heads."""
        return self.mapped(x, x.storage, x.element) if copied else self.viewed(x, x.storage, x.numbers, x.element)

    def quantized(self, x: Tensor, weight: Tensor, out: int, *, bias: Tensor | None = None) -> Tensor:
        """Return the product with a quantized matrix, which is computed in 16 bits (``Linear4bit.forward``)."""
        y = self._multiplied(
            self.cast(x, self.element), weight, out, bias=bias, how="unpacked" if self.unpacking else ""
        )
        return self.cast(y, x.element)

    def linear(self, x: Tensor, weight: Tensor, out: int, *, bias: Tensor | None = None, last: bool = False) -> Tensor:
        """Return a matrix product; the output of a ``last`` one is not needed on recomputation."""
        if self.mixed:
            half = self._halves.get(id(weight))
            if half is None:
                half = self._halves[id(weight)] = self.cast(weight, self.element)
            weight, x = half, self.cast(x, self.element)
        return self._multiplied(x, weight, out, bias=bias, how="last" if last else "")

    def _multiplied(
        self, x: Tensor, weight: Tensor, out: int, *, bias: Tensor | None, how: Literal["", "last", "unpacked"]
    ) -> Tensor:
        tape, source, node, into, element = self.tape, weight.node, x.node, self.width(x), self.element
        kept = tape.kept(x.storage, weight.storage) if source else []
        size = weight.numbers

        def of_weight() -> None:
            if source is None:
                return
            found = self.gradient_of(weight, element)
            found.viewed = True
            tape.add(source, found)

        def back(this: Node) -> None:
            gradient = this.take()
            if bias is None:
                of_weight()
            if how == "unpacked":
                tape.take(size, element)
            found = self.new(into, element) if node is not None else None
            if bias is not None:
                of_weight()
                self.summed(bias, out)
            kept.clear()
            del gradient
            if found is not None:
                found.viewed = True
                tape.add(node, found)

        if how == "unpacked":
            tape.take(size, element)
        return self.made(x.storage if how == "last" else self.new(out, element), out, element, back, node, source)

    def adapted(self, x: Tensor, base: Tensor, adapter: tuple[Tensor, Tensor]) -> Tensor:
        """Return a matrix product plus a LoRA adapter's, which peft computes in 32 bits."""
        down, up = adapter
        width, rank = self.width(base), down.numbers // self.width(x)
        wide = self.cast(x, 4)
        low = self._small(wide, down, rank)
        y = self._small(low, up, width)
        del low, wide
        y = self.through(y)
        return self.cast(self.added(base, y), base.element)

    def _small(self, x: Tensor, weight: Tensor, out: int) -> Tensor:
        """Return the product with an adapter's matrix, in 32 bits."""
        tape, source, node, into = self.tape, weight.node, x.node, self.width(x)
        kept = tape.kept(x.storage)

        def back(this: Node) -> None:
            gradient = this.take()
            tape.add(source, self.gradient_of(weight, 4))
            found = self.new(into, 4) if node is not None else None
            kept.clear()
            del gradient
            if found is not None:
                tape.add(node, found)

        return self.made(self.new(out, 4), out, 4, back, node, source)

    def gradient_of(self, weight: Tensor, element: int) -> Storage:
        """Return storage for a weight's gradient."""
        with self.tape.allocator.taking(GRADIENTS):
            return self.tape.take(weight.numbers, element)

    def summed(self, weight: Tensor, outputs: int) -> None:
        """Give a weight the sum over all tokens; large sums use scratch memory."""
        if weight.node is None:
            return
        found = self.gradient_of(weight, weight.element)
        if size := scratch_bytes(outputs, self.tokens):
            Storage(self.tape.allocator, size)
        self.tape.add(weight.node, found)

    def added(self, a: Tensor, b: Tensor) -> Tensor:
        """Return a sum; the gradient of each is that of the sum."""
        one, other, tape = a.node, b.node, self.tape
        element = max(a.element, b.element)

        def back(this: Node) -> None:
            gradient = this.take()
            for node, own in ((one, a_element), (other, b_element)):
                tape.add(node, gradient if own == element else tape.take(numbers, own))

        numbers, a_element, b_element = a.numbers, a.element, b.element
        return tape.made(tape.take(numbers, element), numbers, element, back, one, other)

    def dropped(self, x: Tensor) -> Tensor:
        """Return dropout's output, with its mask of a byte each."""
        tape, numbers, element = self.tape, x.numbers, x.element
        mask = tape.kept(tape.take(numbers, 1))
        return self.mapped(x, tape.take(numbers, element), element, mask)


def scratch_bytes(outputs: int, inputs: int) -> int:
    """Return what torch takes to sum ``inputs`` rows of so many columns: ``setReduceConfig`` in ATen's Reduce.cuh."""
    if outputs < 1:
        return 0
    vector = next(v for v in (4, 2, 1) if outputs % v == 0)
    most = 512 // vector
    across, down = (min(most, 1 << (n.bit_length() - 1)) for n in (outputs // vector, inputs))
    width = min(across, 32)
    height = min(down, most // width)
    width = min(across, most // height)
    each = -(-inputs // height)
    if each < 256:
        return 0
    grid = -(-outputs // (vector * width))
    target = _PROCESSORS * (_THREADS // (width * height))
    if grid > target:
        return 0
    blocks = max(min(-(-target // grid), -(-each // 16)), -(-each // 256))
    return 4 * outputs * blocks * width * vector if blocks > 1 else 0
