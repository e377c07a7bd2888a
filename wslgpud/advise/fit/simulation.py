"""Memory held by PyTorch's allocator after two training steps, or after a prompt and some answers. Pure.

The second step counts: by then the optimizer's states fill gaps left by the first one's tensors. In generation, each
token reallocates the cache, one token longer.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from wslgpud.advise.fit.parameters import Model, Setup
from wslgpud.advise.fit.shape import Shape
from wslgpud.advise.fit.step import Step
from wslgpud.advise.fit.tape import Storage
from wslgpud.words import template

_OPTIMIZER, _UPDATE = template("optimizer"), template("optimizer's step")
_ACTIVATIONS, _PROMPT = template("activations"), template("prompt at once")
#: answers after which the cache's gaps have stopped growing
_ANSWERS = 8
#: Deeper models are extrapolated from two with fewer layers.
_MOST_LAYERS, _LESS_LAYERS = 128, 96


class Held(NamedTuple):
    """Memory reserved by the allocator, and the peak in use, by purpose."""

    reserved_bytes: int
    used: dict[str, int]


@lru_cache(maxsize=256)
def held(shape: Shape, setup: Setup, *, training: bool) -> Held:
    """Return the memory held by the allocator."""
    if shape.layers > _MOST_LAYERS:
        return _deeper(shape, setup, training=training)
    model = Model(shape, setup, training=training)
    if training:
        _train(model)
    else:
        _answer(model)
    return Held(model.allocator.reserved_bytes, dict(model.allocator.peak))


def _deeper(shape: Shape, setup: Setup, *, training: bool) -> Held:
    less, more = (
        held(
            replace(
                shape,
                layers=layers,
                parameters=0,
                windowed_layers=round(shape.windowed_layers * layers / shape.layers),
                linear_layers=round(shape.linear_layers * layers / shape.layers),
            ),
            setup,
            training=training,
        )
        for layers in (_LESS_LAYERS, _MOST_LAYERS)
    )
    times = (shape.layers - _MOST_LAYERS) / (_MOST_LAYERS - _LESS_LAYERS)

    def further(low: int, high: int) -> int:
        return high + round((high - low) * times)

    used = {purpose: further(less.used.get(purpose, 0), most) for purpose, most in more.used.items()}
    return Held(further(less.reserved_bytes, more.reserved_bytes), used)


def _train(model: Model) -> None:
    setup, allocator = model.setup, model.allocator
    states: list[Storage] = []
    for number in range(2):
        with allocator.taking(_ACTIVATIONS):
            Step(model, setup.context, caching=not setup.checkpointing).train()
        if setup.moments and not number:
            with allocator.taking(_OPTIMIZER):
                for parameter in model.learning:
                    size = round(parameter.numbers * setup.moments / 2)
                    states += [Storage(allocator, size), Storage(allocator, size)]
        with allocator.taking(_UPDATE):
            roots = [model.tape.take(p.numbers, p.element) for p in model.learning] if setup.copying else []
        while roots:
            roots.pop()
        for parameter in model.learning:
            if parameter.node is not None:
                parameter.node.gradient = None


def _answer(model: Model) -> None:
    context = model.setup.context
    answers = min(_ANSWERS, context)
    with model.allocator.taking(_PROMPT):
        for number in range(answers):
            Step(model, 1 if number else max(1, context - answers), caching=True).answer()
