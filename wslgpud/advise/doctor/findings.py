"""Checks and their results; each check is declared once, by ``@check``, with an id that never changes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal, NamedTuple

from wslgpud.advise.doctor.evidence import Evidence
from wslgpud.words import Message, Said, say

State = Literal["good", "note", "problem", "not applicable", "could not tell"]
Needs = Literal["", "wsl", "gpu", "torch"]


class Outcome(NamedTuple):
    """The finding of a check, and the command or setting that fixes it (nothing when all is good)."""

    state: State
    found: Said
    remedy: Said = ""


Look = Callable[[Evidence], Outcome]

good = partial(Outcome, "good")
#: it works, and could be better
note = partial(Outcome, "note")
#: it hurts, or will
problem = partial(Outcome, "problem")
#: this machine has no use for the check
skipped = partial(Outcome, "not applicable")
unknown = partial(Outcome, "could not tell")


class CheckResult(NamedTuple):
    """A check and its outcome."""

    id: str
    title: Said
    state: State
    found: Said
    why: Said
    remedy: Said = ""

    def document(self) -> dict[str, Said]:
        """Return all of it by name; whoever shows it words it."""
        return self._asdict()


class Check(NamedTuple):
    """One check: what it is about and why that matters, as templates."""

    id: str
    title: str
    why: str
    needs: Needs
    look: Look


#: in the order in which they are shown
CHECKS: list[Check] = []


def check(name: str, title: str, needs: Needs = "") -> Callable[[Look], Look]:
    """Declare the function below as a check; ``needs`` is what the machine must have for it to apply.

    Its docstring says why it matters to somebody who trains models, and is shown with what it finds.
    """

    def declare(function: Look) -> Look:
        CHECKS.append(Check(name, title, " ".join((function.__doc__ or "").split()), needs, function))
        return function

    return declare


def in_windows(command: str) -> Message:
    """Return a command that is to be run in Windows."""
    return say("{command}   # in Windows", command=command)


def in_wslconfig(setting: str) -> Message:
    """Return a line of .wslconfig."""
    return say("{setting}   # below [wsl2] in .wslconfig", setting=setting)


def shows_who(command: str) -> Message:
    """Return a command that names the culprit."""
    return say("{command}   # shows who", command=command)
