"""A decoder's layers, one after the other, as transformers computes them. Pure.

Until it returns, each function holds the same tensors as its counterpart in transformers.
"""

from __future__ import annotations

from collections.abc import Callable

from wslgpud.advise.fit.attention import Attention, Heads
from wslgpud.advise.fit.operations import SEGMENT_RATIO, SEGMENTED_TOKENS
from wslgpud.advise.fit.parameters import Matrix, Model, Weights
from wslgpud.advise.fit.tape import Node, Storage, Tensor
from wslgpud.words import template

LOSS, CACHE = template("loss"), template("keys and values")


class Step(Attention):
    """A number of tokens of each sequence at once, after those in the cache."""

    def __init__(self, model: Model, context: int, *, caching: bool) -> None:
        setup, shape = model.setup, model.shape
        tokens = setup.batch * context
        super().__init__(model.tape, tokens, element=setup.element, mixed=setup.mixed, unpacking=setup.unpacking)
        self.model = model
        self.shape = shape
        self.family = shape.family
        self.caching = caching
        self.sizes = Heads(shape.heads, shape.kv_heads, shape.head_dim, context)
        self.table = 4 if self.family.rotary in ("wide", "pairs") or setup.mixed else setup.element
        self._number: int
        self._place = 0
        #: attention scores of the last layer, which older models' loops hold until the next layer is done
        self._held: list[Storage] = []

    def train(self) -> None:
        """Run a forward and a backward pass."""
        x = self._through_all_layers(self._checkpointed if self.model.setup.checkpointing else self._layer)
        with self.tape.allocator.taking(LOSS):
            self._loss(x)
        del x
        self.tape.backward()

    def answer(self) -> None:
        """Run a forward pass, up to the logits of the next token."""
        x = self._through_all_layers(self._layer)
        words = self.model.setup.batch * self.shape.vocabulary
        scores = [self.tape.take(words, self.element)]
        scores += [self.tape.take(words, 4) for _ in range(2)]  # cast to 32 bits, and filtered by a sampling rule
        del x, scores

    def _through_all_layers(self, layer: Callable[[Tensor, Weights], Tensor]) -> Tensor:
        held: list[Storage] = []
        x = self._embedded(held)
        held += self._for_all_layers()
        for number, weights in enumerate(self.model.layers):
            self._number = number
            x = layer(x, weights)
        return self._norm(x, self.model.norm)

    def _for_all_layers(self) -> list[Storage]:
        """Return the tensors shared by all layers: sines, and a mask where some layers see only a window."""
        return [*self._mask(), *(self._sines() if self.family.rotary != "none" else ())]

    def _mask(self) -> list[Storage]:
        tape, context = self.tape, self.sizes.context
        kept = []
        if self._windowed(self.shape.linear_layers) or self._eager:
            square = context**2
            first = tape.take(square, 1)
            second = tape.take(square, 1)
            del first
            kept.append(tape.take(self.model.setup.batch * square, 1))
            del second
            if self._eager:
                kept.append(tape.take(self.model.setup.batch * square, self.element))
        return kept

    def _sines(self) -> list[Storage]:
        tape = self.tape
        angles = self.sizes.context * round(self.shape.head_dim * self.family.rotary_share)
        angles *= 1 if tape.recording else self.model.setup.batch
        steps = [tape.take(angles // 2, 4), tape.take(angles, 4)]
        for _ in range(2):  # of cosine and sine
            step = tape.take(angles, 4)
            steps.append(tape.take(angles, 4))
            del step
        return [tape.take(angles, self.table) for _ in range(2)] if self.table < 4 else steps[2:]

    @property
    def _eager(self) -> bool:
        return self.family.eager != "" and self.sizes.context > 1

    def _windowed(self, number: int) -> bool:
        """Return whether a layer sees only a window of these tokens; layers without a cache come first."""
        return self._of_window(number) and self.sizes.context > self.shape.window

    def _of_window(self, number: int) -> bool:
        return 0 <= number - self.shape.linear_layers < self.shape.windowed_layers

    def _embedded(self, held: list[Storage]) -> Tensor:
        """Return the first layer's input; tensors that the model holds until the last layer are added to ``held``."""
        model = self.model
        x = self._looked_up(model.embedding)
        if self.family.scaled[0]:
            x = self.through(x)
        held.append(x.storage)
        if model.positions is not None:
            places = self._looked_up(model.positions)
            held.append(places.storage)
            x = self.added(x, places)
        if self.family.embedding_norm:
            x = self.layer_norm(x)
        if model.setup.checkpointing and x.node is None:
            x.node = Node(None)  # peft makes the input require a gradient, or there would be no backward pass
        return x

    def _looked_up(self, weight: Tensor) -> Tensor:
        hidden, element = self.shape.hidden, weight.element

        def back(this: Node) -> None:
            gradient = this.take()
            found = self.gradient_of(weight, element)
            if self.tokens > SEGMENTED_TOKENS:
                self.new(round(SEGMENT_RATIO * hidden), 4)
            del gradient
            self.tape.add(weight.node, found)

        return self.made(self.new(hidden, element), hidden, element, back, weight.node)

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        kind = self.family.norm
        if kind == "layer":
            return self.layer_norm(x)
        if kind == "layer_wide":
            return self.cast(self.layer_norm(self.cast(x, 4)), x.element)
        if kind == "layer32":
            return self.layer_norm_32(x, weight)
        return self.rms_norm(x, weight) if kind == "rms" else self.wide_norm(x, weight, plus_one=kind == "plus_one")

    def _product(self, x: Tensor, matrix: Matrix, *, last: bool = False) -> Tensor:
        if self.model.setup.quantized:
            y = self.quantized(x, matrix.weight, matrix.outputs, bias=matrix.bias)
        else:
            last = last and matrix.adapter is None
            y = self.linear(x, matrix.weight, matrix.outputs, bias=matrix.bias, last=last)
        return y if matrix.adapter is None else self.adapted(x, y, matrix.adapter)

    def _checkpointed(self, x: Tensor, weights: Weights) -> Tensor:
        """Keep only the layer's input, and recompute the layer before its backward pass."""
        tape, node, width, element, number = self.tape, x.node, self.width(x), x.element, self._number
        tape.recording = False
        out = self._layer(x, weights)
        tape.recording = True
        kept = [x.storage]

        def back(this: Node) -> None:
            self._number = number
            mark = tape.mark()
            source = Tensor(kept[0], self.tokens * width, element, Node(None))
            again = self._layer(source, weights, again=True)
            tape.add(again.node, this.take())
            del again
            tape.backward(mark)
            kept.clear()
            if source.node is not None and source.node.gradient is not None:
                tape.add(node, source.node.take())

        return self.made(out.storage, width, out.element, back, node)

    def _layer(self, x: Tensor, weights: Weights, *, again: bool = False) -> Tensor:
        family, norms = self.family, iter(weights.norms)
        after = family.placement == "after"
        normed = x if after else self._norm(x, next(norms))
        y = self._attention(normed, weights)
        if family.parallel:
            if not family.one_norm:
                normed = self._norm(x, next(norms))
            other = self._block(normed, weights)
            return self.added(self.added(y, other), x)
        del normed
        if family.placement != "before":
            y = self._norm(y, next(norms))
        x = self._residual(x, y)
        del y
        y = x if after else self._norm(x, next(norms))
        y = self._block(y, weights, again=again and family.placement == "before")
        if family.placement != "before":
            y = self._norm(y, next(norms))
        return self._residual(x, y)

    def _residual(self, x: Tensor, y: Tensor) -> Tensor:
        if self.family.dropout and self.tape.recording:
            y = self.dropped(y)
        if self.family.scaled[1]:
            y = self.through(y)
        return self.added(x, y)

    def _attention(self, x: Tensor, weights: Weights) -> Tensor:
        family, shape = self.family, self.shape
        turning = family.rotary != "none"
        inputs = self._inputs(x, weights, turning=turning)
        query, key, value = inputs
        if family.head_norms == "head":
            query, key = (self._norm(y, w) for y, w in zip((query, key), weights.head_norms, strict=True))
        if turning:
            query, key = self._positioned([query, key])
        if family.rotary_share >= 1:
            while inputs:  # else a view holds a part of them
                del inputs[0]
        if self.caching and self._number >= shape.linear_layers:
            keys = self._cached(key, key.element)
            values = self._cached(value, key.element)  # of one width
            key = keys
            value = values
            del keys, values
        if self.mixed:
            key, value, query = (self.cast(y, self.element) for y in (key, value, query))
        if self._eager:
            if family.eager == "narrow":
                y = self.dropping(query, key, value, self.sizes, dropping=family.dropout)
            else:
                y, scores = self.written_out(query, key, value, self.sizes, wide=family.eager == "wide")
                self._held = [scores]
        elif (self.element == 4 or (family.apart and self.sizes.context > 1)) and shape.kv_heads < shape.heads:
            y = self.plain(query, key, value, self.sizes)
        else:
            y = self._fused(query, key, value)
        del key, value
        y = self._product(y, weights.out)
        del query, inputs
        return y

    def _positioned(self, pair: list[Tensor]) -> list[Tensor]:
        family = self.family
        wide = [self.cast(y, 4) for y in pair] if family.rotary == "pairs" else pair
        turned = self.turned(wide, family.rotary_share, self.table)
        if family.rotary in ("wide", "pairs"):
            turned = [self.cast(y, x.element) for y, x in zip(turned, pair, strict=True)]
        return turned

    def _fused(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        mask = None
        if self._windowed(self._number):
            if 1 < self.shape.kv_heads < self.shape.heads:
                key, value = (self.repeated(y, query.numbers) for y in (key, value))
            mask = self.tape.take(self.model.setup.batch * self.sizes.context**2, self.element)
        y = self.fused(query, key, value, self.sizes, mask)
        if self.family.rotary_share < 1 and self.family.rotary != "none":
            y = self.copied(y)  # since queries are laid out by heads
        return y

    def _cached(self, x: Tensor, element: int) -> Tensor:
        """Return keys or values, appended to the cache."""
        cache, place = self.model.cache, self._place
        self._place += 1
        before = cache[place].numbers if place < len(cache) else 0
        if before and self._of_window(self._number):
            before = min(before, (self.shape.window - 1) * self.model.setup.batch * self.shape.kv_width)
        allocator = self.tape.allocator
        with allocator.taking(allocator.purpose if self.tape.recording else CACHE):
            y = self.cached(x, element, before)
        cache[place : place + 1] = [y]
        return y

    def _inputs(self, x: Tensor, weights: Weights, *, turning: bool) -> list[Tensor]:
        shape, family, caching = self.shape, self.family, self.caching
        if family.joined_qkv:
            widths = (shape.query_width, shape.kv_width, shape.kv_width)
            return self._split(self._product(x, weights.qkv[0]), widths, copied=caching)
        found = []
        several = shape.kv_heads > 1
        copied = (turning or family.head_norms != "", (turning or caching) and several, caching and several)
        norms = list(weights.head_norms) if family.head_norms == "row" else []
        for matrix, own in zip(weights.qkv, copied, strict=True):
            y = self._product(x, matrix)
            if norms:
                y = self._norm(y, norms.pop(0))
            found.append(self.heads(y, copied=own))
        return found

    def _split(self, whole: Tensor, widths: tuple[int, ...], *, copied: bool) -> list[Tensor]:
        """Return views of a matrix product; their gradients are concatenated."""
        slots = [Node(None) for _ in widths]
        node, tape, element = whole.node, self.tape, whole.element

        def back(_: Node) -> None:
            if copied:
                for slot in slots[1:]:
                    if slot.gradient is not None:
                        slot.gradient = Storage(tape.allocator, slot.gradient.size)
            found = self.new(sum(widths), element)
            for slot in slots:
                slot.gradient = None
            tape.add(node, found)

        if node is not None:
            tape.gather(back)
        pairs = zip(widths, slots, strict=True)
        return [Tensor(whole.storage, self.tokens * width, element, node and slot) for width, slot in pairs]

    def _block(self, x: Tensor, weights: Weights, *, again: bool = False) -> Tensor:
        if not weights.sparse:
            return self._dense(x, weights, again=again)
        y = self.experts(x, weights.experts, self.shape)
        return self.added(y, self._dense(x, weights)) if weights.wide else y

    def _dense(self, x: Tensor, weights: Weights, *, again: bool = False) -> Tensor:
        wide, family = weights.wide, self.family
        if family.joined_gate:
            gate, up = self._split(self._product(x, weights.up[0]), (wide, wide), copied=False)
            y = self.gated(self._activated(gate), up)
            del gate, up
        elif len(weights.up) > 1:
            y = self._activated(self._product(x, weights.up[0]))
            y = self.gated(y, self._product(x, weights.up[1]))
        else:
            y = self._activated(self._product(x, weights.up[0]))
        return self._product(y, weights.down, last=again and not (family.dropout or family.scaled[1]))

    def _activated(self, x: Tensor) -> Tensor:
        kind = self.family.activation
        if kind == "squared":
            return self.squared(self.relu(x))
        steps = {"one": self.activated, "steps": self.stepwise_gelu, "own": self.bloom_gelu, "relu": self.relu}
        return steps[kind](x)

    def _loss(self, x: Tensor) -> None:
        """Compute the loss from the logits, which are cast to 32 bits."""
        tape, words, family = self.tape, self.shape.vocabulary, self.family
        scores = self.linear(x, self.model.head, words)
        del x
        if family.capped:
            scores = self.through(scores)
            scores = self.relu(scores)  # tanh, which keeps its output as well
            scores = self.through(scores)
        elif family.scaled[2]:
            scores = self.through(scores)
        node, element = scores.node, scores.element
        held = [scores.storage]
        del scores
        wide = held[0] if element == 4 else self.new(words, 4)
        kept = [self.new(words, 4)]
        del wide
        held.clear()
        self.model.cache.clear()
        self.forget()

        def back(_: Node) -> None:
            with tape.allocator.taking(LOSS):
                of_loss = self.new(words, 4)
                found = self.new(words, 4)
                del of_loss
                kept.clear()
                if element != 4:
                    narrow = self.new(words, element)
                    del found
                    found = narrow
            tape.add(node, found)

        tape.gather(back)
