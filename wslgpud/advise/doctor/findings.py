"""What a check is and what it finds; each is declared once, by ``@check``, with an id that never changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Literal, NamedTuple

from wslgpud.words import Message, Said, say

if TYPE_CHECKING:
    from wslgpud.advise.doctor.look import Look

State = Literal["good", "note", "problem", "not applicable", "could not tell"]
Needs = Literal["", "wsl", "gpu", "torch"]


class Outcome(NamedTuple):
    """What a check found here, and the command or setting that fixes it (nothing when all is good)."""

    state: State
    found: Said
    remedy: Said = ""


@dataclass(frozen=True, slots=True)
class Check:
    """One check: what it is about and why that matters to somebody who trains models, as templates."""

    id: str
    title: str
    why: str
    needs: Needs
    look: Callable[[Look], Outcome]

    def finding(self, outcome: Outcome) -> Finding:
        """Return what came out of it."""
        return Finding(
            self.id, Message(self.title), outcome.state, outcome.found, Message(self.why), outcome.remedy
        )


@dataclass(frozen=True, slots=True)
class Finding:
    """A check and its outcome."""

    id: str
    title: Said
    state: State
    found: Said
    why: Said
    remedy: Said = ""

    def document(self) -> dict[str, Said]:
        """Return all of it by name; whoever shows it words it."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


CHECKS: list[Check] = []


def check(
    name: str, title: str, why: str, needs: Needs = ""
) -> Callable[[Callable[[Look], Outcome]], Callable[[Look], Outcome]]:
    """Declare the function below as a check; ``needs`` is what the machine must have for it to apply."""

    def declare(function: Callable[[Look], Outcome]) -> Callable[[Look], Outcome]:
        CHECKS.append(Check(name, title, why, needs, function))
        return function

    return declare


def good(found: Said) -> Outcome:
    """All is well."""
    return Outcome("good", found)


def note(found: Said, remedy: Said = "") -> Outcome:
    """It works, and could be better."""
    return Outcome("note", found, remedy)


def problem(found: Said, remedy: Said) -> Outcome:
    """It will hurt, or hurts already."""
    return Outcome("problem", found, remedy)


def not_applicable(found: Said) -> Outcome:
    """This machine has no use for the check."""
    return Outcome("not applicable", found)


def could_not_tell(found: Said) -> Outcome:
    """The answer is hidden from us."""
    return Outcome("could not tell", found)


def in_windows(command: str) -> Message:
    """Return a command that is to be run in Windows."""
    return say("{command}   # in Windows", command=command)


def in_wslconfig(setting: str) -> Message:
    """Return a line of .wslconfig."""
    return say("{setting}   # below [wsl2] in .wslconfig", setting=setting)


def shows_who(command: str) -> Message:
    """Return a command that names the culprit."""
    return say("{command}   # shows who", command=command)
