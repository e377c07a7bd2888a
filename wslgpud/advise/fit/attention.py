"""Allocations of attention, forward and backward: rotary embedding, the cache, the kernels. Pure."""

from __future__ import annotations

from typing import NamedTuple

from wslgpud.advise.fit.activations import Activations
from wslgpud.advise.fit.tape import Node, Storage, Tensor


class Heads(NamedTuple):
    """Numbers of query heads and of key-value heads, their size, and the tokens of a sequence."""

    query: int
    key: int
    size: int
    context: int


class Attention(Activations):
    """The operations of attention."""

    def turned(self, pair: list[Tensor], share: float, table: int) -> list[Tensor]:
        """Return queries and keys rotated by position; ``table`` is the bytes of a sine.

        With partial rotation, the rest of each head is concatenated to the rotated part.
        """
        if share >= 1:
            return [self._turned(x, table) for x in pair]
        cuts = [self._cut(x, share) for x in pair]
        turned = [self._turned(part, table) for part, _ in cuts]
        return [self._joined(x, part, rest) for x, part, (_, rest) in zip(pair, turned, cuts, strict=True)]

    def _turned(self, x: Tensor, table: int) -> Tensor:
        tape, node, numbers, element = self.tape, x.node, x.numbers, x.element

        def narrowed(product: list[Storage]) -> None:
            if table != element:
                product.append(tape.take(numbers, element))
                del product[0]

        first = tape.take(numbers, table)
        half = tape.take(numbers // 2, element)
        crossed = tape.take(numbers, element)
        del half
        second = tape.take(numbers, table)
        del crossed
        out = tape.take(numbers, table)
        del first, second

        def back(this: Node) -> None:
            gradient = this.take()
            product = [tape.take(numbers, table)]
            narrowed(product)
            half = tape.take(numbers // 2, element)
            found = tape.take(numbers, element)
            del half
            other = tape.take(numbers, element)
            product.clear()
            del other
            product.append(tape.take(numbers, table))
            del gradient
            narrowed(product)
            product.clear()
            tape.add(node, found)

        return tape.made(out, numbers, table, back, node)

    def _cut(self, x: Tensor, share: float) -> tuple[Tensor, Node]:
        """Return a view of a part of each head, and the rest's gradient; each is padded to a whole one with zeros."""
        tape, node, numbers, element = self.tape, x.node, x.numbers, x.element
        part, rest = Node(None), Node(None)

        def back(_: Node) -> None:
            if rest.gradient is None or node is None:
                return
            whole = tape.take(numbers, element)
            rest.gradient = None
            turned = tape.take(numbers, element)
            part.gradient = None
            del turned
            tape.add(node, whole)

        tape.gather(back)
        return Tensor(x.storage, round(numbers * share), element, part if node else None), rest

    def _joined(self, x: Tensor, part: Tensor, rest: Node) -> Tensor:
        tape, through, numbers = self.tape, part.node, x.numbers

        def back(this: Node) -> None:
            gradient = this.take()
            tape.add(through, gradient)
            tape.add(rest, gradient)

        return tape.made(tape.take(numbers, part.element), numbers, part.element, back, through)

    def cached(self, x: Tensor, element: int, before: int) -> Tensor:
        """Return the cached copy of keys or values, after so many numbers.

        transformers makes it in training, too.
        """
        numbers = before + x.numbers
        out = self.tape.take(numbers, element)
        same = element == x.element
        return self.viewed(x, out, numbers, element) if same else self.mapped(x, out, element, numbers=numbers)

    def repeated(self, x: Tensor, numbers: int) -> Tensor:
        """Return keys or values repeated for each query head."""
        return self.mapped(x, self.tape.take(numbers, x.element), x.element, numbers=numbers)

    def fused(self, query: Tensor, key: Tensor, value: Tensor, heads: Heads, mask: Storage | None = None) -> Tensor:
        """Return fused attention, which keeps its inputs, its output and a number for each head.

        Backward it sums queries' gradients in 32 bits, and makes those of shared keys and values for each head first.
        """
        tape, element = self.tape, query.element
        out = tape.take(query.numbers, element)
        kept = tape.kept(query.storage, key.storage, value.storage, out)
        if tape.recording:
            kept.append(self.new(heads.query, 4))
            kept += [mask] if mask is not None else []
        sizes = query.numbers, key.numbers, value.numbers
        nodes = query.node, key.node, value.node
        width = heads.query * heads.size

        def back(this: Node) -> None:
            gradient = this.take()
            found = [tape.take(size, element) for size in sizes]
            shared = 2 * width * element if heads.key < heads.query else 0
            self.new(heads.query * 4 + width * 4 + shared, 1)
            del gradient
            kept.clear()
            for node in nodes:
                tape.add(node, found.pop(0))

        return tape.made(out, query.numbers, element, back, *nodes)

    def copied(self, x: Tensor) -> Tensor:
        """Return a copy token by token; its gradient is a view."""
        return self.viewed(x, self.tape.take(x.numbers, x.element), x.numbers, x.element)

    def written_out(
        self, query: Tensor, key: Tensor, value: Tensor, heads: Heads, *, wide: bool
    ) -> tuple[Tensor, Storage]:
        """Return eager attention, and its scores; in 32 bits throughout (GPT-J, GPT-Neo) or only in its softmax."""
        tape, element, numbers = self.tape, query.element, query.numbers
        nodes = query.node, key.node, value.node
        scores = heads.query * heads.context
        own = 4 if wide else element
        asked = tape.take(numbers, own)
        answered = tape.take(numbers, own) if wide and element != 4 else key.storage
        raw = self.new(scores, own)
        masked = self.new(scores, own)
        full = masked if own == 4 else self.new(scores, 4)
        soft = self.new(scores, 4)
        del full
        narrow = soft if element == 4 else self.new(scores, element)
        product = tape.take(numbers, element)
        out = tape.take(numbers, element)
        del product, raw, masked
        kept = tape.kept(asked, answered, soft, value.storage, narrow)
        del asked, answered, soft

        def back(this: Node) -> None:
            gradient = tape.take(numbers, element)
            this.take()
            of_value = tape.take(numbers, element)
            inner = self.new(scores, element)
            del gradient
            del kept[3:]
            if element != 4:
                inner = self.new(scores, 4)
            outer = self.new(scores, 4)
            temporary = self.new(scores, 4)
            del temporary, inner
            kept.pop()
            if own != 4 or wide:
                outer = self.new(scores, own)
            one = tape.take(numbers, own)
            of_query = tape.take(numbers, element)
            del one
            one = tape.take(numbers, own)
            of_key = tape.take(numbers, element)
            del one, outer
            kept.clear()
            for node, found in zip(nodes, (of_query, of_key, of_value), strict=True):
                tape.add(node, found)

        return tape.made(out, numbers, element, back, *nodes), narrow

    def dropping(self, query: Tensor, key: Tensor, value: Tensor, heads: Heads, *, dropping: bool) -> Tensor:
        """Return eager attention in the model's precision, with dropout of scores (XGLM)."""
        tape, element, numbers = self.tape, query.element, query.numbers
        nodes = query.node, key.node, value.node
        scores = heads.query * heads.context
        asked = tape.take(numbers, element)
        raw = self.new(scores, element)
        masked = self.new(scores, element)
        del raw
        kept = tape.kept(asked, key.storage, masked)
        least = self.new(scores, element)
        del masked
        soft = self.new(scores, element)
        del least
        kept += tape.kept(soft)
        if dropping and tape.recording:
            kept += [self.new(scores, 1), self.new(scores, element)]
        product = tape.take(numbers, element)
        out = tape.take(numbers, element)
        del product, asked, soft
        kept += tape.kept(value.storage)

        def back(this: Node) -> None:
            gradient = tape.take(numbers, element)
            this.take()
            of_value = tape.take(numbers, element)
            inner = self.new(scores, element)
            del gradient
            for _ in range(3):
                inner = self.new(scores, element)
            kept.clear()
            of_query, of_key = tape.take(numbers, element), tape.take(numbers, element)
            del inner
            for node, found in zip(nodes, (of_query, of_key, of_value), strict=True):
                tape.add(node, found)

        return tape.made(out, numbers, element, back, *nodes)

    def plain(self, query: Tensor, key: Tensor, value: Tensor, heads: Heads) -> Tensor:
        """Return attention by matrix products, as torch computes it in 32 bits without a fused kernel.

        Used where keys and values are shared, in 32 bits or without torch knowing of the sharing; they are copied for
        each head unless all heads share one.
        """
        tape, numbers, element = self.tape, query.numbers, query.element
        nodes, fewer = (query.node, key.node, value.node), key.numbers
        scores = heads.query * heads.context
        each = fewer if heads.key == 1 and tape.recording else numbers
        scaled = tape.take(numbers, 4)
        mask = tape.take(heads.context**2, 4)
        unscaled = tape.take(each, 4)
        kept = [tape.take(each, 4), tape.take(each, 4), tape.take(numbers, 4)]
        raw = self.new(scores, 4)  # the mask is added to it
        if not tape.recording:
            del kept[1:]
        kept.append(self.new(scores, 4))
        self.new(scores, 1)
        del raw
        if element != 4:
            raw = self.new(scores, element)
        product = tape.take(numbers, 4)
        if element == 4:
            del unscaled, scaled, mask
            out = tape.take(numbers, 4)
        else:
            out = tape.take(numbers, element)
            del raw, unscaled, scaled, mask
        del product
        if not tape.recording:
            kept.clear()
        if element != 4:
            out = tape.take(numbers, element)  # token by token

        def back(this: Node) -> None:
            gradient = tape.take(numbers, 4)
            this.take()
            of_value = tape.take(numbers, 4)
            inner = self.new(scores, 4)
            del gradient
            outer, temporary = self.new(scores, 4), self.new(scores, 4)
            del temporary, inner
            kept.clear()
            of_query, of_key = tape.take(numbers, 4), tape.take(numbers, 4)
            del outer
            of_key = tape.take(numbers, 4)
            found = [tape.take(fewer, element)]
            del of_value
            found.append(tape.take(fewer, element))
            del of_key
            found.append(tape.take(numbers, element))
            del of_query
            for node in reversed(nodes):
                tape.add(node, found.pop(0))

        return tape.made(out, numbers, element, back, *nodes)
