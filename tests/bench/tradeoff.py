"""The trade-off between earlier warnings and false alarms, by varying the headroom at which warnings come.

    python -m tests.bench.tradeoff FOLDER...

Each folder holds traces with their truths; the synthetic families are included. Prints the table of
wslgpud/risk/README.md. The engine runs once over each trace; only its last step, the levels, which is all that the
thresholds affect, is repeated for every column.
"""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

from tests.bench.scoring import Score, Truth, truth_beside
from wslgpud.model import Level
from wslgpud.risk.engine import RiskEngine
from wslgpud.risk.level_tracker import LevelTracker
from wslgpud.risk.levels import Hysteresis
from wslgpud.risk.settings import RiskSettings
from wslgpud.risk.trace import read_trace

SHIFTS = (-0.10, -0.06, -0.03, 0.0, 0.03, 0.06, 0.10, 0.20)
SEEDS = range(200, 212)


def shifted(by):
    s = RiskSettings()
    points = tuple((eta, max(0.02, share + by)) for eta, share in s.warn_points)
    return replace(s, warn_points=points, slow_headroom=max(0.02, s.slow_headroom + by))


def families():
    path = Path(__file__).parent.parent / "traces" / "generate.py"
    spec = importlib.util.spec_from_file_location("generate", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return [family for family in module.HELD_OUT if family.__name__ != "suspended"]


def evidence(observations):
    """Run the engine; return the inputs of its levels, by resource and sample."""
    engine, seen = RiskEngine(), {}
    judge = LevelTracker._judge

    def noting(tracker, t, share, dangers, **more):
        period = tracker.peaks.period_seconds
        seen.setdefault(tracker, []).append((t, share, list(dangers), tracker._interval, more, period))
        return judge(tracker, t, share, dangers, **more)

    with mock.patch.object(LevelTracker, "_judge", noting):
        for observation in observations:
            engine.observe(observation)
    names = {last.key: name for name, last in engine._last.items()}
    return {names.get(key, key): seen[tracker] for key, tracker in engine._trackers.items() if tracker in seen}


def levels(rows, settings):
    """Repeat the last step of the engine; return the changes of level."""
    tracker, changes = LevelTracker(settings, 1), []
    tracker.hysteresis = Hysteresis(settings)
    for t, share, dangers, interval, more, period in rows:
        tracker._interval, before = interval, tracker.hysteresis.level
        tracker.peaks = SimpleNamespace(period_seconds=period)
        now = tracker._judge(t, share, dangers, **more).level
        if now != before:
            changes.append((t, now))
    return changes


def case_of(family, seed):
    case = family(seed)
    told = case.truth()
    events = {event["resource"]: event["t"] for event in told["events"]}
    return Truth(told["name"], events, told["onset"], told["tolerated"]), evidence(case.observations())


def row(name, cases, settings):
    w, c = Score(), Score()
    for truth, seen in cases:
        changes = {resource: levels(rows, settings.of(resource)) for resource, rows in seen.items()}
        w.add(truth, changes, Level.WARNING)
        c.add(truth, changes, Level.CRITICAL)
    n = max(1, len(w.leads))
    return (
        f"{name} | {100 * w.in_time / n:.0f} % of {len(w.leads)} | {w.median_lead or 0:.0f} s"
        f" | {w.quiet_with_alarm} of {w.quiet_traces} | {w.tolerated_with_alarm} of {w.tolerated_traces}"
        f" | {w.alarms_before_events / n:.2f}"
        f" | {100 * sum(lead > 0 for lead in c.leads) / n:.0f} % | {len(c.noisy)} |"
    )


def main():
    recordings = [path for folder in sys.argv[1:] for path in sorted(Path(folder).glob("*.jsonl.gz"))]
    loaded = [(truth, evidence(read_trace(p))) for p in recordings if (truth := truth_beside(p)) is not None]
    drawn = [case_of(family, seed) for family in families() for seed in SEEDS]
    head = "in time | median lead | silent with alarm | tolerated with warning | alarms per event"
    for title, cases in (("recordings", loaded), ("held-out families", drawn)):
        if not cases:
            continue
        print(f"\n| {title}: headroom shifted by | {head} | critical before | false criticals |")
        print("|---" * 8 + "|")
        for by in SHIFTS:
            print("| " + row(f"{100 * by:+.0f} %", cases, shifted(by)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
