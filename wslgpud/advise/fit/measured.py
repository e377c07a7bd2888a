"""Memory measured for trainings on this machine, compared with estimates, to correct the next one. Pure.

``guard --inside`` keeps the plan and the peak of each training of Hugging Face's Trainer in the user's own file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from wslgpud.advise.fit.plan import CONTEXT_BYTES, MODES, OPTIMIZERS, PRECISIONS, Plan

#: tolerance for the number of parameters of one model, which varies with its adapter's
SAME_RATIO, ADAPTERS_RATIO = 0.001, 0.05
#: A training further off was different: packed sequences, a frozen tower, another attention.
MIN_RATIO, MAX_RATIO = 0.75, 1.35


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
        choices = {"mode": MODES, "precision": PRECISIONS, "optimizer": OPTIMIZERS}
        counts = (row.get("bytes"), *(plan.get(name) for name in _COUNTS))
        known = all(type(count) is int and count > 0 for count in counts)
        if known and all(plan.get(name) in kinds for name, kinds in choices.items()):
            known_of = {name: plan[name] for name in (*choices, "batch", "context")}
            own = Plan(**known_of, checkpointing=plan.get("checkpointing") is True)
            found.append(Measured(plan["parameters"], own, int(row["bytes"])))
    return found


_COUNTS = ("parameters", "batch", "context")


def ratio(
    parameters: int, plan: Plan, known: Iterable[Measured], total_bytes: Callable[[Plan], int]
) -> tuple[float, Plan] | None:
    """Return the ratio of measured to computed memory of a similar training, and its plan; None without one.

    Among several, the one with the most similar number of tokens per batch counts. ``parameters`` are the model's own
    or, for adapters, those and the adapters'.
    """
    most = ADAPTERS_RATIO if plan.mode == "lora" else SAME_RATIO
    near = [one for one in known if one.plan.mode == plan.mode and -most <= one.parameters / parameters - 1 <= most]
    if not near:
        return None
    one = min(near, key=lambda one: abs(one.plan.batch * one.plan.context - plan.batch * plan.context))
    found = one.bytes / (total_bytes(one.plan) - CONTEXT_BYTES)
    return (found, one.plan) if MIN_RATIO <= found <= MAX_RATIO else None
