"""Scores of the engine's warnings against the events that followed, compared with simple rules used elsewhere.

    python -m tests.bench.bench_score [FILE or FOLDER]...

Takes recordings, and all ``.jsonl.gz`` below folders; default: those directly in ``tests/traces``. Each needs its
``NAME.truth.json`` beside it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from tests.bench.scoring import Score, interval, score_all, truth_beside

TRACES = Path(__file__).parents[1] / "traces"
RELIABILITY_SECONDS = (60, 300)


def percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.0f} %"


def row(name: str, score: Score) -> str:
    events, lead = len(score.leads), score.median_lead
    shares = "".join(f" {percent(score.share_at(seconds)):>6}" for seconds in (5, 15, 30))
    return (
        f"{name:<42} {percent(score.in_time / events if events else None):>7}{shares}"
        f" {'-' if lead is None else f'{lead:.0f} s':>6}"
        f" {score.quiet_with_alarm:>4}/{score.quiet_traces:<3}"
        f" {score.tolerated_with_alarm:>4}/{score.tolerated_traces:<3}"
        f" {score.alarms_before_events / events if events else 0.0:>8.2f}"
    )


def main(arguments: Sequence[str]) -> int:
    named = [Path(argument) for argument in arguments] or sorted(TRACES.glob("*.jsonl.gz"))
    paths = [path for one in named for path in (sorted(one.rglob("*.jsonl.gz")) if one.is_dir() else [one])]
    truths = [(path, truth_beside(path)) for path in paths]
    if missing := [str(path) for path, truth in truths if truth is None]:
        sys.exit(f"no .truth.json beside {', '.join(missing)}")
    lines = score_all([(path, truth) for path, truth in truths if truth is not None])
    print(
        f"{len(paths)} recordings, {len(lines[0].warning.leads)} events. "
        "Alarm: warning or above; critical: critical or above.\n"
    )
    heads = (("in time", 7), (">= 5 s", 6), (">= 15", 6), (">= 30", 6), ("median", 6))
    print(" ".join([" " * 42, *(f"{h:>{w}}" for h, w in (*heads, ("silent", 8), ("tolerated", 8), ("alarms", 8)))]))
    for line in lines:
        print(row(line.name, line.warning))
        if line.critical.leads or line.critical.quiet_traces:
            print(row("   critical", line.critical))
    engine = lines[0]
    print("  not in time:", ", ".join(engine.warning.late) or "none")
    print("  criticals not in time:", ", ".join(engine.critical.late) or "none")
    print("  false alarms:", ", ".join(engine.warning.noisy) or "none")
    print("  false criticals:", ", ".join(engine.critical.noisy) or "none")
    if days := engine.quiet_seconds / 86400:
        least, most = (bound / days for bound in interval(engine.quiet_alarms))
        told = f"{engine.quiet_alarms / days:.2f} a day ({least:.2f} to {most:.2f} with 95 % confidence)"
        print(f"  warnings in {24 * days:.1f} h that call for silence: {engine.quiet_alarms}, {told}")
    print("\nBrier score of the probabilities (0 is best, a coin's is 0.25):")
    for line in lines[:2]:
        errors = ", ".join(f"{horizon} s: {error:.3f}" for horizon, error in line.calibration.items())
        print(f"  {line.name:<20} {errors}")
    print("\nForecast probability of exhaustion within this time -> how often it came true (samples):")
    for horizon in RELIABILITY_SECONDS:
        parts = [f"{percent(said)} -> {percent(came)} ({n})" for said, came, n in engine.reliability.get(horizon, ())]
        print(f"  {horizon:>4} s  {', '.join(parts) or 'never'}")
    print(
        "\nsilent: recordings with a false alarm, of those that call for silence"
        "\ntolerated: the same, of those where a warning is fair"
        "\nalarms: for each event, before it"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
