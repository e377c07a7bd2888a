"""What a check is and what it finds; each is declared once, by ``@check``, with an id that never changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from wslgpud.advise.doctor.look import Look

State = Literal["good", "note", "problem", "not applicable", "could not tell"]
Needs = Literal["", "wsl", "gpu", "torch"]


class Outcome(NamedTuple):
    """What a check found here, and the command or setting that mends it (nothing when all is good)."""

    state: State
    found: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Check:
    """One check: what it is about and why that matters to somebody who trains models."""

    id: str
    title: str
    why: str
    needs: Needs
    look: Callable[[Look], Outcome]


@dataclass(frozen=True, slots=True)
class Finding:
    """A check and its outcome."""

    id: str
    title: str
    state: State
    found: str
    why: str
    remedy: str = ""


CHECKS: list[Check] = []


def check(
    name: str, title: str, why: str, needs: Needs = ""
) -> Callable[[Callable[[Look], Outcome]], Callable[[Look], Outcome]]:
    """Declare the function below as a check; ``needs`` is what the machine must have for it to apply."""

    def declare(function: Callable[[Look], Outcome]) -> Callable[[Look], Outcome]:
        CHECKS.append(Check(name, title, why, needs, function))
        return function

    return declare


def good(found: str) -> Outcome:
    """All is well."""
    return Outcome("good", found)


def note(found: str, remedy: str = "") -> Outcome:
    """It works, and could be better."""
    return Outcome("note", found, remedy)


def problem(found: str, remedy: str) -> Outcome:
    """It will hurt, or hurts already."""
    return Outcome("problem", found, remedy)


def not_applicable(found: str) -> Outcome:
    """This machine has no use for the check."""
    return Outcome("not applicable", found)


def could_not_tell(found: str) -> Outcome:
    """The answer is hidden from us."""
    return Outcome("could not tell", found)
