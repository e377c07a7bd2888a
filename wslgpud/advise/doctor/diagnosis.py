"""Runs all checks; one that fails or cannot tell never hides the others."""

from __future__ import annotations

import os
from collections.abc import Sequence

from wslgpud.advise.doctor import checks_gpu, checks_machine, checks_memory, checks_wsl
from wslgpud.advise.doctor.findings import CHECKS, Check, Finding, Outcome, could_not_tell, not_applicable
from wslgpud.advise.doctor.look import Look
from wslgpud.advise.doctor.torches import TorchFacts
from wslgpud.config import SYSTEM_STATE, Config
from wslgpud.config import state_folder as usual_state_folder
from wslgpud.host import Host, NoData, SourceError
from wslgpud.words import say

#: Importing them declares the checks; they are shown in this order.
PARTS = tuple(part.__name__ for part in (checks_wsl, checks_gpu, checks_memory, checks_machine))


def run(
    host: Host,
    config: Config | None = None,
    torch: Sequence[TorchFacts] | None = None,
    state_folder: str | None = None,
) -> list[Finding]:
    """Look at a machine with every check, in the order of their declaration.

    Args:
        host: the machine.
        config: ours, for the places it names.
        torch: what the user's Pythons say (``torches.ask``); None where they were not asked.
        state_folder: where the daemon keeps its data; the usual place by default.
    """
    usual = str(usual_state_folder(os.environ) if host.live else SYSTEM_STATE)
    look = Look(host, config or Config(), torch, state_folder or usual)
    return [_one(check, look) for check in sorted(CHECKS, key=lambda c: PARTS.index(c.look.__module__))]


def _one(check: Check, look: Look) -> Finding:
    try:
        outcome = _lacking(check, look) or check.look(look)
    except (NoData, SourceError) as error:
        outcome = could_not_tell(error.said)
    return check.finding(outcome)


def _lacking(check: Check, look: Look) -> Outcome | None:
    """Say what the machine lacks for the check to apply."""
    if check.needs == "wsl" and look.wsl != 2:
        return not_applicable(say("this is not WSL2"))
    if check.needs in ("gpu", "torch") and not look.gpus.samples:
        return not_applicable(say("no GPU answers"))
    if check.needs == "torch" and look.torch is None:
        return could_not_tell(say("torch was not asked"))
    if check.needs == "torch" and not look.torch:
        return not_applicable(say("no Python with torch was found"))
    return None
