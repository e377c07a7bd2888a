"""The doctor: checks whether this machine is set up for training, and names remedies."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from importlib import import_module

from wslgpud.advise.doctor.checking import CHECKS, Check, CheckResult, Evidence, Outcome, TorchFacts, skipped, unknown
from wslgpud.config import SYSTEM_STATE, Config
from wslgpud.config import state_folder as usual_state_folder
from wslgpud.host import Host, NoData, SourceError
from wslgpud.words import Message

__all__ = ["CheckResult", "run"]

#: Importing them registers the checks; they are shown in this order.
for _part in ("wsl", "gpu", "machine", "windows"):
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

    ``torch`` holds the answers of the user's Pythons (``checking.ask``), None where they were not queried;
    ``state_folder`` is the daemon's data folder.
    """
    usual = str(usual_state_folder(os.environ) if host.live else SYSTEM_STATE)
    evidence = Evidence(host, config or Config(), torch, state_folder or usual)
    return [_result(check, evidence) for check in CHECKS if check.id.startswith("windows.") is windows]


def _result(check: Check, evidence: Evidence) -> CheckResult:
    try:
        state, found, remedy = next(lacking(check, evidence), None) or check.look(evidence)
    except (NoData, SourceError) as error:
        state, found, remedy = Outcome("could not tell", error.message)
    return CheckResult(check.id, Message(check.title), state, found, Message(check.why), remedy)


def lacking(check: Check, evidence: Evidence) -> Iterator[Outcome]:
    """Yield why a check does not apply to this machine."""
    needs, host = check.needs, evidence.host
    if "wsl" in needs and evidence.wsl != 2:
        yield skipped("this is not WSL2")
    if "live" in needs and not host.live:
        yield skipped("this is a recording")
    if ("powershell" in needs or ("probe" in needs and not host.recorded)) and "error" in evidence.powershell:
        yield skipped("PowerShell cannot be used")
    if "gpu" in needs and not evidence.gpus.samples:
        yield skipped("no GPU answers")
    if "torch" in needs and evidence.torch is None:
        yield unknown("torch was not checked")
    if "torch" in needs and not evidence.torches:
        yield skipped("no Python with torch was found")
