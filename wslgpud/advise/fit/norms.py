"""Allocations of norms, forward and backward. Pure."""

from __future__ import annotations

from wslgpud.advise.fit.operations import Operations
from wslgpud.advise.fit.tape import Node, Storage, Tensor


class Norms(Operations):
    """The operations of norms."""

    def layer_norm(self, x: Tensor) -> Tensor:
        """Return LayerNorm's output; it keeps its input."""
        return self.mapped(x, self.tape.take(x.numbers, x.element), x.element, self.tape.kept(x.storage))

    def rms_norm(self, x: Tensor, weight: Tensor) -> Tensor:
        """Return Llama's norm: in 32 bits, cast down, times the weight."""
        tape, node, numbers, element = self.tape, x.node, x.numbers, x.element
        wide = x.storage if element == 4 else tape.take(numbers, 4)
        tape.take(numbers, 4)  # its square, for the mean
        product = tape.take(numbers, 4)
        kept = tape.kept(wide)
        del wide
        narrow = product if element == 4 else tape.take(numbers, element)
        out = tape.take(numbers, element)
        kept += tape.kept(narrow) if weight.node else []
        del narrow, product
        columns = self.width(x)

        def back(this: Node) -> None:
            gradient = this.take()
            inner = tape.take(numbers, element)
            if weight.node is not None:
                outer = tape.take(numbers, element)
                self.summed(weight, columns)
                del outer
                kept.pop()
            del gradient
            if element != 4:
                inner = tape.take(numbers, 4)
            held = [inner]
            del inner
            self._normed_back(numbers, kept, held, node, element)

        return tape.made(out, numbers, element, back, node)

    def wide_norm(self, x: Tensor, weight: Tensor, *, plus_one: bool) -> Tensor:
        """Return a norm whose weight is applied in 32 bits: Gemma's (1 + weight) and OLMo 2's."""
        tape, node, numbers, element = self.tape, x.node, x.numbers, x.element
        wide = x.storage if element == 4 else tape.take(numbers, 4)
        tape.take(numbers, 4)
        product = tape.take(numbers, 4)
        kept = tape.kept(wide)
        del wide
        out = tape.take(numbers, 4)
        kept += tape.kept(product) if weight.node else []
        held = [product]
        del product
        if plus_one:
            held.clear()
        if element != 4:
            out = tape.take(numbers, element)
        held.clear()
        columns = self.width(x)

        def back(this: Node) -> None:
            gradient = this.take()
            if element != 4:
                gradient = tape.take(numbers, 4)
            if weight.node is None:
                held = [tape.take(numbers, 4)]
            else:
                held = [tape.take(numbers, 4), tape.take(numbers, 4)]
                self.summed(weight, columns)
                held.pop(0 if plus_one else 1)
                kept.pop()
            del gradient
            self._normed_back(numbers, kept, held, node, element)

        return tape.made(out, numbers, element, back, node)

    def _normed_back(
        self, numbers: int, kept: list[Storage], held: list[Storage], node: Node | None, element: int
    ) -> None:
        """Go back through x times its inverse root mean square, all in 32 bits; ``held`` is its gradient."""
        tape = self.tape
        of_root = tape.take(numbers, 4)
        through = tape.take(numbers, 4)
        del of_root
        held.clear()
        spread = tape.take(numbers, 4)
        power = tape.take(numbers, 4)
        double = tape.take(numbers, 4)
        squared = tape.take(numbers, 4)
        del double, power, spread
        kept.clear()
        del squared
        if element != 4:
            narrow = tape.take(numbers, element)
            del through
            through = narrow
        tape.add(node, through)

    def layer_norm_32(self, x: Tensor, weight: Tensor) -> Tensor:
        """Return Cohere's norm: LayerNorm in single steps in 32 bits."""
        tape, node, numbers, element = self.tape, x.node, x.numbers, x.element
        wide = tape.take(numbers, 4)
        step = tape.take(numbers, 4)  # minus its mean, for the variance
        kept = tape.kept(step)
        tape.take(numbers, 4)
        del step
        step = tape.take(numbers, 4)  # and once more
        product = tape.take(numbers, 4)
        kept += tape.kept(step, product)
        del wide, step
        out = tape.take(numbers, 4)
        del product
        out = tape.take(numbers, element)
        columns = self.width(x)

        def back(this: Node) -> None:
            gradient = tape.take(numbers, 4)
            this.take()
            inner, outer = tape.take(numbers, 4), tape.take(numbers, 4)
            self.summed(weight, columns)
            del outer, gradient
            kept.pop()
            of_root, through = tape.take(numbers, 4), tape.take(numbers, 4)
            del of_root, inner
            kept.pop()
            tape.take(numbers, 4)
            spread, power = tape.take(numbers, 4), tape.take(numbers, 4)
            double = tape.take(numbers, 4)
            squared = tape.take(numbers, 4)
            del double, power, spread
            kept.pop()
            tape.take(numbers, 4)
            del squared
            mean = tape.take(numbers, 4)
            del mean
            found = tape.take(numbers, element)
            del through
            tape.add(node, found)

        return tape.made(out, numbers, element, back, node)
