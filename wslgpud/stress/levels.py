"""How bad the runs of a GPU are together: what an alert is made of. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from wslgpud.model import Level, StressResult
from wslgpud.stress.history import VERDICTS
from wslgpud.words import Message, Said, clauses, say

#: Alert on the age of the last success, not on one failure: a GPU that was in use one night is no fault.
LATE_SECONDS = 3 * 86400.0


def level_of(runs: Sequence[StressResult]) -> tuple[Level, Said]:
    """Return the level after these runs of one GPU, oldest first, and why."""
    telling = [run for run in runs if run.complete or run.findings]
    if telling:
        last = telling[-1]
        trouble = [finding for finding in last.findings if finding.kind != "changed"]
        if trouble:
            severe = any(finding.kind in ("errors", "hung") for finding in trouble)
            return (Level.CRITICAL if severe else Level.WARNING), clauses(f.text for f in trouble)
    if runs:
        good = [run.wall for run in runs if run.verdict == "passed"]
        age = runs[-1].wall - (good[-1] if good else runs[0].wall)
        if age > LATE_SECONDS:
            why = runs[-1].reason or Message(VERDICTS[runs[-1].verdict])
            return Level.WARNING, say("no run has passed for {age_seconds} ({why})", age_seconds=age, why=why)
    return Level.OK, say("the last run passed")
