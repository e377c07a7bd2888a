"""The doctor: checks whether this machine is set up for training, and names remedies."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib import import_module

from wslgpud.advise.doctor.checking import CHECKS, OF_WINDOWS, Check, CheckResult, Evidence, Outcome, skipped, unknown
from wslgpud.advise.doctor.torches import TorchFacts
from wslgpud.config import SYSTEM_STATE, Config
from wslgpud.config import state_folder as usual_state_folder
from wslgpud.host import Host, NoData, SourceError
from wslgpud.words import Message, say

__all__ = ["CheckResult", "run"]

#: Importing them registers the checks; they are shown in this order.
for _part in ("wsl", "log", "gpu", "machine", "brake", "windows", "dxg"):
    import_module(f"{__name__}.checks_{_part}")


def run(
    host: Host,
    config: Config | None = None,
    torch: Sequence[TorchFacts] | None = None,
    state_folder: str | None = None,
    *,
    windows: bool = False,
) -> list[CheckResult]:
    """Run the checks of Linux, or those of Windows; a failing one never hides the others.

    ``torch`` holds the answers of the user's Pythons (``torches.ask``), None where they were not queried;
    ``state_folder`` is the daemon's data folder.
    """
    usual = str(usual_state_folder(os.environ) if host.live else SYSTEM_STATE)
    evidence = Evidence(host, config or Config(), torch, state_folder or usual)
    return [_result(check, evidence) for check in CHECKS if (check.needs in OF_WINDOWS) is windows]


def _result(check: Check, evidence: Evidence) -> CheckResult:
    try:
        state, found, remedy = _lacking(check, evidence) or check.look(evidence)
    except (NoData, SourceError) as error:
        state, found, remedy = unknown(error.message)
    return CheckResult(check.id, Message(check.title), state, found, Message(check.why), remedy)


def _lacking(check: Check, evidence: Evidence) -> Outcome | None:
    """Return why a check does not apply to this machine."""
    if check.needs in ("wsl", *OF_WINDOWS) and evidence.wsl != 2:
        return skipped(say("this is not WSL2"))
    asks = check.needs == "windows" or (check.needs == "probe" and not evidence.host.recorded)
    if asks and check.id != "windows.powershell" and "error" in evidence.powershell:
        return skipped(say("PowerShell cannot be used"))
    if check.needs in ("gpu", "torch") and not evidence.gpus.samples:
        return skipped(say("no GPU answers"))
    if check.needs == "torch" and evidence.torch is None:
        return unknown(say("torch was not checked"))
    if check.needs == "torch" and not any(facts.python for facts in evidence.torch or ()):
        return skipped(say("no Python with torch was found"))
    return None
