"""The parameters of a decoder, as transformers and peft place them in memory. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from wslgpud.advise.fit.activations import Experts
from wslgpud.advise.fit.allocator import MIB, Allocator
from wslgpud.advise.fit.shape import Shape
from wslgpud.advise.fit.tape import Storage, Tape, Tensor
from wslgpud.words import template

#: cuBLAS's workspaces for two kinds of matrix products (4 x 8 MiB on Hopper); they stay.
WORKSPACES = (32 * MIB, 32 * MIB)
_WEIGHTS = template("weights")


@dataclass(frozen=True, slots=True)
class Setup:
    """How the model is stored and used; sizes are bytes per number.

    ``matrix`` and ``embedding`` are for stored weights, ``element`` for computation. ``rank`` is that of adapters,
    which then are the only trained weights, on ``every`` matrix or on queries and values.
    """

    batch: int
    context: int
    element: int
    matrix: float
    embedding: float
    mixed: bool
    checkpointing: bool
    #: whether matrices are quantized, and dequantized to 16 bits one at a time
    quantized: bool
    unpacking: bool
    rank: int
    every: bool
    #: the optimizer's bytes per parameter, and whether a step works on a copy of all of them
    moments: float
    copying: bool


class Matrix:
    """A matrix, its bias, and its adapter."""

    def __init__(self, model: Model, inputs: int, outputs: int, *, biased: bool = False, adapted: bool = False) -> None:
        self.weight = model.parameter(inputs * outputs)
        self.outputs = outputs
        self.bias = model.parameter(outputs) if biased else None
        self.adapter: tuple[Tensor, Tensor] | None = None
        if adapted:
            model.adapters.append((self, inputs))


class Weights:
    """The parameters of one layer."""

    def __init__(self, model: Model, *, dense: bool) -> None:
        shape, family, every = model.shape, model.shape.family, model.setup.every
        hidden, query, key = shape.hidden, shape.query_width, shape.kv_width
        of_attention, of_output, of_block = family.biased
        # Latents take fewer parameters than the heads made of them.
        usual = 2 * hidden * (query + key)
        model.ratio *= (share := (shape.attention_parameters or usual) / usual)
        joined = [(query + 2 * key, True)] if family.joined_qkv else [(query, True), (key, every), (key, True)]
        self.qkv = [Matrix(model, hidden, out, biased=of_attention, adapted=own) for out, own in joined]
        self.out = Matrix(model, query, hidden, biased=of_output, adapted=every)
        model.ratio /= share
        sizes = {"head": (shape.head_dim,) * 2, "row": (query, key), "": ()}[family.head_norms]
        self.head_norms = [model.parameter(size) for size in sizes]
        self.sparse = shape.experts > 1 and not dense
        self.wide = shape.shared if self.sparse else (shape.dense_width if dense else 0) or shape.intermediate
        if self.sparse:
            one = shape.experts * hidden * shape.intermediate
            sizes = (hidden * shape.experts, one * (shape.matrices - 1), one)
            self.experts = Experts(*(model.parameter(size) for size in sizes))
        if self.wide:
            ups = (2,) if family.joined_gate else (1,) * (shape.matrices - 1)
            self.up = [Matrix(model, hidden, n * self.wide, biased=of_block, adapted=every) for n in ups]
            self.down = Matrix(model, self.wide, hidden, biased=of_block, adapted=every)
        norms = {"before": 2 - family.one_norm, "after": 2, "both": 4}[family.placement]
        self.norms = [model.parameter(hidden) for _ in range(norms)]


class Model:
    """A decoder, all of it on the card."""

    def __init__(self, shape: Shape, setup: Setup, *, training: bool) -> None:
        self.shape = shape
        self.setup = setup
        self.stored = 4 if setup.mixed else setup.element
        self.allocator = Allocator()
        self._workspaces = [self.allocator.take(size) for size in WORKSPACES]
        self.tape = Tape(self.allocator)
        self.tape.recording = training
        self.learning: list[Tensor] = []
        #: keys and values of all layers, while an answer needs them
        self.cache: list[Tensor] = []
        self.adapters: list[tuple[Matrix, int]] = []
        self._frozen = not training or bool(setup.rank)
        # Parameters that the shape does not count, such as another tower's, are added to those it does.
        self.ratio = shape.size / shape.count()
        family = shape.family
        with self.allocator.taking(_WEIGHTS):
            self.embedding = self._words()
            self.positions = self.parameter(setup.context * shape.hidden) if family.positions else None
            self.layers = [Weights(self, dense=n < shape.dense_layers) for n in range(shape.layers)]
            self.norm = self.parameter(shape.hidden)
            self.head = self.embedding if shape.tied else self._words()
            for matrix, inputs in self.adapters if setup.rank else ():
                sizes = inputs * setup.rank, setup.rank * matrix.outputs
                down, up = (self._leaf(self.tape.take(size, 4), size, 4, learning=True) for size in sizes)
                matrix.adapter = down, up

    def parameter(self, numbers: int) -> Tensor:
        """Return another parameter."""
        numbers = round(numbers * self.ratio)
        storage = Storage(self.allocator, round(numbers * self.setup.matrix))
        return self._leaf(storage, numbers, self.stored, learning=not self._frozen)

    def _words(self) -> Tensor:
        numbers = round(self.shape.vocabulary * self.shape.hidden * self.ratio)
        storage = Storage(self.allocator, round(numbers * self.setup.embedding))
        return self._leaf(storage, numbers, self.stored, learning=not self._frozen)

    def _leaf(self, storage: Storage, numbers: int, element: int, *, learning: bool) -> Tensor:
        leaf = self.tape.leaf(storage, numbers, element, learning=learning)
        if learning:
            self.learning.append(leaf)
        return leaf
