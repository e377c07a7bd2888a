"""What activations and experts allocate, forward and back. Pure."""

from __future__ import annotations

from wslgpud.advise.fit.norms import Norms
from wslgpud.advise.fit.shape import Shape
from wslgpud.advise.fit.tape import Node, Storage, Tensor


class Activations(Norms):
    """The operations of feed-forward blocks."""

    def activated(self, x: Tensor) -> Tensor:
        """Return an activation computed by one kernel, which keeps its input."""
        tape, node, numbers, element = self.tape, x.node, x.numbers, x.element
        kept = tape.kept(x.storage)

        def back(this: Node) -> None:
            gradient = this.take()
            found = tape.take(numbers, element)
            kept.clear()
            del gradient
            tape.add(node, found)

        return tape.made(tape.take(numbers, element), numbers, element, back, node)

    def relu(self, x: Tensor) -> Tensor:
        """Return ReLU's outcome, which is all that it keeps."""
        tape, node, numbers, element = self.tape, x.node, x.numbers, x.element
        out = tape.take(numbers, element)
        kept = tape.kept(out)

        def back(this: Node) -> None:
            gradient = this.take()
            found = tape.take(numbers, element)
            kept.clear()
            del gradient
            tape.add(node, found)

        return tape.made(out, numbers, element, back, node)

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
        """Return BLOOM's own GELU, which keeps its input and computes all again."""
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

    def experts(self, x: Tensor, router: Tensor, up: Tensor, down: Tensor, shape: Shape) -> Tensor:
        """Return what the active experts make of copies of the tokens (``grouped_mm_experts_forward``)."""
        tape, element, node = self.tape, self.element, x.node
        active, hidden, wide = shape.active_experts, shape.hidden, shape.intermediate
        inner = (shape.matrices - 1) * wide
        self.new(shape.experts, 4)

        def new(width: int) -> Storage:
            return self.new(active * width, element)

        copies = new(hidden)
        first = new(inner)
        gate = new(wide)
        product = new(wide) if shape.gated else gate
        kept = tape.kept(copies, first, gate, product)
        last = new(hidden)
        kept += tape.kept(last)
        del product, gate
        weighted = new(hidden)
        ordered = new(hidden)
        del weighted
        out = self.new(hidden, element)
        del ordered, last, first, copies

        def back(this: Node) -> None:
            gradient = this.take()
            spread = new(hidden)
            del gradient
            other = new(hidden)
            del spread
            kept.pop()
            if down.node is not None:
                tape.add(down.node, self.gradient_of(down, element))
            of_product = new(wide)
            del other
            of_inner = new(inner)
            del of_product
            del kept[1:]
            if up.node is not None:
                tape.add(up.node, self.gradient_of(up, element))
            of_copies = new(hidden)
            del of_inner
            kept.clear()
            of_input = self.new(hidden, element)
            del of_copies
            if router.node is not None:
                tape.add(router.node, self.gradient_of(router, element))
            if node is not None:
                tape.add(node, of_input)

        return self.made(out, hidden, element, back, node, up.node)
