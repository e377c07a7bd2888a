"""Memory measured for trainings on this machine, compared with estimates, to correct the next one. Pure.

``guard --inside`` keeps the plan and the peak of each training of Hugging Face's Trainer in the user's own file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, get_args

from wslgpud.advise.fit.estimate import CONTEXT_BYTES, Mode, Optimizer, Plan, Precision, estimate
from wslgpud.advise.fit.shape import Shape

#: tolerance for the number of parameters of one model, which varies with its adapter's
SAME_RATIO, ADAPTERS_RATIO = 0.001, 0.05
#: A training further off was different: packed sequences, a frozen tower, another attention.
LEAST_RATIO, MOST_RATIO = 0.75, 1.35


class Measured(NamedTuple):
    """A training that ran here: its model's parameters, adapters included, and the allocator's peak."""

    parameters: int
    plan: Plan
    bytes: int


def read(rows: Iterable[Mapping[str, Any]]) -> list[Measured]:
    """Return the valid rows of the file."""
    found = []
    for row in rows:
        plan = row.get("plan")
        if not isinstance(plan, dict):
            continue
        choices = {"mode": Mode, "precision": Precision, "optimizer": Optimizer}
        counts = (row.get("bytes"), *(plan.get(name) for name in _COUNTS))
        known = all(type(count) is int and count > 0 for count in counts)
        if known and all(plan.get(name) in get_args(kind) for name, kind in choices.items()):
            known_of = {name: plan[name] for name in (*choices, "batch", "context")}
            own = Plan(**known_of, checkpointing=plan.get("checkpointing") is True)
            found.append(Measured(plan["parameters"], own, int(row["bytes"])))
    return found


_COUNTS = ("parameters", "batch", "context")


def ratio(shape: Shape, plan: Plan, known: Iterable[Measured]) -> tuple[float, Plan] | None:
    """Return the ratio of measured to computed memory of a similar training, and its plan; None without one.

    Among several, the one with the most similar number of tokens per batch counts.
    """
    most = ADAPTERS_RATIO if plan.mode == "lora" else SAME_RATIO
    near = [
        one for one in known if one.plan.mode == plan.mode and -SAME_RATIO <= one.parameters / shape.size - 1 <= most
    ]
    if not near:
        return None
    one = min(near, key=lambda one: abs(one.plan.batch * one.plan.context - plan.batch * plan.context))
    found = one.bytes / (estimate(shape, one.plan).total_bytes - CONTEXT_BYTES)
    return (found, one.plan) if LEAST_RATIO <= found <= MOST_RATIO else None
