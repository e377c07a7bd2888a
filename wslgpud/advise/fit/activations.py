"""Allocations of activations and experts, forward and backward. Pure."""

from __future__ import annotations

from typing import NamedTuple

from wslgpud.advise.fit.norms import Norms
from wslgpud.advise.fit.shape import Shape
from wslgpud.advise.fit.tape import Node, Storage, Tensor


class Experts(NamedTuple):
    """The parameters of a mixture of experts: its router, and all experts' matrices, first and last."""

    router: Tensor
    up: Tensor
    down: Tensor


class Activations(Norms):
    """The operations of feed-forward blocks."""

    def activated(self, x: Tensor) -> Tensor:
        """Return an activation computed by one kernel, which keeps its input."""
        return self.mapped(x, self.tape.take(x.numbers, x.element), x.element, self.tape.kept(x.storage))

    def relu(self, x: Tensor) -> Tensor:
        """Return ReLU's output, which is all that it keeps."""
        out = self.tape.take(x.numbers, x.element)
        return self.mapped(x, out, x.element, self.tape.kept(out))

    def squared(self, x: Tensor) -> Tensor:
        """Return the square, which keeps its input."""
        tape, node, numbers, element = self.tape, x.node, x.numbers, x.element
        kept = tape.kept(x.storage)

        def back(this: Node) -> None:
            gradient = this.take()
            power, double = tape.take(numbers, element), tape.take(numbers, element)
            found = tape.take(numbers, element)
            del power, double, gradient
            kept.clear()
            tape.add(node, found)

        return tape.made(tape.take(numbers, element), numbers, element, back, node)

    def stepwise_gelu(self, x: Tensor) -> Tensor:
        """Return GELU approximated step by step (``NewGELUActivation``): four tensors are kept."""
        tape, node, numbers, element = self.tape, x.node, x.numbers, x.element

        def new() -> Storage:
            return tape.take(numbers, element)

        half = new()
        step = new()
        for _ in range(3):  # cubed, scaled, added, scaled
            step = new()
        tanh = new()
        del step
        one = new()
        out = new()
        kept = tape.kept(x.storage, tanh, half, one)
        del tanh, half, one

        def back(this: Node) -> None:
            gradient = this.take()
            a, b = new(), new()
            del gradient
            kept.pop(), kept.pop()
            c = new()
            del a
            kept.pop()
            d = new()
            del c
            e, power, double = new(), new(), new()
            f = new()
            del double, power, e
            kept.clear()
            del f
            g = new()
            del b, g
            tape.add(node, d)

        return tape.made(out, numbers, element, back, node)

    def bloom_gelu(self, x: Tensor) -> Tensor:
        """Return BLOOM's own GELU, which keeps its input and recomputes the rest."""
        tape, node, numbers, element = self.tape, x.node, x.numbers, x.element
        half, step = tape.take(numbers, element), tape.take(numbers, element)
        inner = tape.take(numbers, element)
        for _ in range(5):
            inner = tape.take(numbers, element)
        del step, inner
        out = tape.take(numbers, element)
        del half
        kept = tape.kept(x.storage)

        def back(this: Node) -> None:
            gradient = this.take()
            tanh = tape.take(numbers, element)
            held = [tape.take(numbers, element) for _ in range(3)]
            found = tape.take(numbers, element)
            held.clear()
            kept.clear()
            del gradient, tanh
            tape.add(node, found)

        return tape.made(out, numbers, element, back, node)

    def gated(self, gate: Tensor, up: Tensor) -> Tensor:
        """Return the product of two tensors, which are both kept."""
        tape, one, other, numbers, element = self.tape, gate.node, up.node, gate.numbers, gate.element
        kept = tape.kept(gate.storage, up.storage)

        def back(this: Node) -> None:
            gradient = this.take()
            of_up, of_gate = tape.take(numbers, element), tape.take(numbers, element)
            kept.clear()
            del gradient
            tape.add(other, of_up)
            tape.add(one, of_gate)

        return tape.made(tape.take(numbers, element), numbers, element, back, one, other)

    def experts(self, x: Tensor, weights: Experts, shape: Shape) -> Tensor:
        """Return the active experts' output for copies of the tokens (``grouped_mm_experts_forward``).

        Outputs are weighted in 32 bits, except in Qwen's and OLMo's mixtures.
        """
        element, node, hidden = self.element, x.node, shape.hidden
        active, inner = shape.active_experts, (shape.matrices - 1) * shape.intermediate
        weighing = element if shape.family.narrow_experts else 4
        self.new(shape.experts, 4)
        copies = self.new(active * hidden, element)
        first = self._in_order(active * inner)
        gate = self.new(active * shape.intermediate, element)
        kept = self.tape.kept(copies, first, gate)
        product = self.new(active * shape.intermediate, element) if shape.gated else gate
        kept += self.tape.kept(product)
        del gate, first
        last = self._in_order(active * hidden)
        kept += self.tape.kept(last)
        del product
        weighted = self.new(active * hidden, weighing)
        ordered = self.new(active * hidden, weighing)
        del weighted
        out = self.new(hidden, weighing)
        if weighing != element:
            out = self.new(hidden, element)
        del ordered, last, copies

        def back(this: Node) -> None:
            self._experts_back(this, kept, weights, shape, weighing)
            if node is not None:
                self.tape.add(node, self.new(hidden, element))

        return self.made(out, hidden, element, back, node, weights.up.node)

    def _in_order(self, width: int) -> Storage:
        """Return a product of all experts, copied once more."""
        raw = self.new(width, self.element)
        ordered = self.new(width, self.element)
        del raw
        return ordered

    def _experts_back(self, this: Node, kept: list[Storage], weights: Experts, shape: Shape, weighing: int) -> None:
        element, width = self.element, shape.active_experts * shape.hidden
        inner = shape.active_experts * shape.intermediate
        gradient = this.take()
        if weighing != element:
            gradient = self.new(shape.hidden, weighing)
        held = [self.new(width, weighing)]
        del gradient
        for _ in range(3):  # sorted; of the weights; of the outputs
            held.append(self.new(width, weighing))
            del held[: len(held) - 2]
        kept.pop()
        held = [self.new(width, element)]
        held = [self.new(width, element)]
        self._learned(weights.down)
        of_product = self.new(inner, element)
        held = [self._in_order((shape.matrices - 1) * inner)]
        del of_product
        del kept[1:]
        self._learned(weights.up)
        copies = self._in_order(width)
        held.clear()
        kept.clear()
        self._learned(weights.router)
        del copies

    def _learned(self, weight: Tensor) -> None:
        if weight.node is not None:
            self.tape.add(weight.node, self.gradient_of(weight, self.element))
