"""Whether Windows tells the VRAM of each program, tried call by call: nobody has published the answers for NVIDIA."""

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
    tried = _tried(machine)
    if not tried:
        return unknown(say("no answer"))
    failed = next((one for one in tried if "error" in one), None)
    if failed is not None:
        facts = {"call": failed["call"], "error": failed["error"]}
        found = say("{call} fails with {error}: who fills the card stays a guess", **facts)
        return note(found, in_windows("wsl --update"))
    listed = {pid for one in tried if one["call"] == dxg.NAMES[dxg.ENUM_PROCESSES] for pid in one["answer"]}
    measured = any(gpu.demoted_bytes is not None for gpu in machine.gpus.samples)
    calls = {"calls": len(tried), "count": len(listed)}
    if measured:
        return good(say("measured: {calls} calls answered, {count} programs listed", **calls))
    # With nobody on a card there is nothing to compare.
    return good(say("{calls} calls answered, {count} programs listed; none with a figure that fits NVML's", **calls))


def _tried(machine: Evidence) -> list[dict[str, Any]]:
    """Return what each call has answered, by a child that may hang."""
    if isinstance(machine.host, RecordedHost):
        recording = machine.host.recording("nvml.json")
        return json.loads(recording.read_text(encoding="utf-8")).get("dxg_tried", []) if recording else []
    with suppress(ValueError):
        text = output(python_command("wslgpud.probes.dxg"), _SECONDS, clean_environment())
        found: list[dict[str, Any]] = json.loads(text)
        return found
    return []
