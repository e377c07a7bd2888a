"""The fewest changes of a plan that make it fit. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import combinations
from typing import TYPE_CHECKING, Any, TypeVar

from wslgpud.words import Message, say

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    P = TypeVar("P", bound=DataclassInstance)
else:
    P = TypeVar("P")

#: the message of a change, and the fields of the plan that it sets
Turn = tuple[Message, dict[str, Any]]
_MOST_KNOBS = 4


def fitting(
    turns: Iterable[Turn], plan: P, usable_bytes: int, total_bytes: Callable[[P], int]
) -> list[tuple[Message, int]]:
    """Return the changes that make a plan fit, and its bytes then.

    Each single change that is enough, else each pair, else each triple. Of two ways to store the weights the later one
    counts, which alone would have been enough.
    """
    known = list(turns)
    for number in range(1, 4):
        found = []
        for some in combinations(known, number):
            changed = plan
            for _, changes in some:
                changed = replace(changed, **changes)
            if (total := total_bytes(changed)) <= usable_bytes:
                *others, said = (said for said, _ in some)
                for other in reversed(others):
                    said = say("{first} and {second}", first=other, second=said)
                found.append((said, total))
        if found:
            return found[:_MOST_KNOBS]
    return []
