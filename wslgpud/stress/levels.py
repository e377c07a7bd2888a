"""How bad the runs of a GPU are together: what an alert is made of. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from wslgpud.model import Level, StressResult

#: Alert on the age of the last success, not on one failure: a GPU that was in use one night is no fault.
LATE_SECONDS = 3 * 86400.0


def level_of(runs: Sequence[StressResult]) -> tuple[Level, str]:
    """Return the level after these runs of one GPU, oldest first, and why in one line."""
    telling = [run for run in runs if run.complete or run.findings]
    if telling:
        last = telling[-1]
        trouble = [finding for finding in last.findings if finding.kind != "changed"]
        if trouble:
            severe = any(finding.kind in ("errors", "hung") for finding in trouble)
            text = "; ".join(finding.text for finding in trouble)
            return (Level.CRITICAL if severe else Level.WARNING), text
    if runs:
        good = [run.wall for run in runs if run.verdict == "passed"]
        age = runs[-1].wall - (good[-1] if good else runs[0].wall)
        if age > LATE_SECONDS:
            why = runs[-1].reason or runs[-1].verdict
            return (
                Level.WARNING,
                f"no run has passed for {age / 86400:.0f} days ({why})",
            )
    return Level.OK, "the last run passed"
