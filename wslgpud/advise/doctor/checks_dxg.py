"""Whether Windows tells the VRAM of each program: nobody has published its answers for NVIDIA."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

from wslgpud.advise.doctor.checking import Evidence, Outcome, check, good, in_windows, note, skipped, unknown
from wslgpud.host import RecordedHost, output
from wslgpud.probes import dxg
from wslgpud.probes.supervisor import clean_environment, python_command
from wslgpud.words import say

_SECONDS = 20


@check("windows.vram_by_process", "VRAM of each program", "dxg")
def vram_by_process(machine: Evidence) -> Outcome:
    """With it the program that fills a card is measured, and not guessed; the brake needs no guess to act."""
    if not machine.host.exists(dxg.DEVICE):
        return skipped(say("{path} is missing", path=dxg.DEVICE))
    answer = _answer(machine)
    if "failed" in answer:
        call, error = answer["failed"]
        found = say("{call} fails with {error}: who fills the card stays a guess", call=call, error=error)
        return note(found, in_windows("wsl --update"))
    if "adapters" not in answer:
        return unknown(say("no answer"))
    count = len({pid for adapter in answer["adapters"] for pid, *_ in adapter["processes"]})
    if any(gpu.demoted_bytes is not None for gpu in machine.gpus.samples):
        return good(say("measured: {count} programs listed", count=count))
    # With nobody on a card there is nothing to compare.
    return good(say("{count} programs listed; none with a figure that fits NVML's", count=count))


def _answer(machine: Evidence) -> dict[str, Any]:
    """Return the answer of ``PatientDxgReader`` in a child that may hang."""
    if isinstance(machine.host, RecordedHost):
        recording = machine.host.recording("nvml.json")
        return json.loads(recording.read_text(encoding="utf-8")).get("dxg", {}) if recording else {}
    with suppress(ValueError):
        text = output(python_command("wslgpud.probes.dxg"), _SECONDS, clean_environment())
        found: dict[str, Any] = json.loads(text)
        return found
    return {}
