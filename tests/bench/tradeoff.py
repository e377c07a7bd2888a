"""The trade-off curve: earlier warnings against false alarms, by moving the headroom at which they come.

    python tests/bench/tradeoff.py FOLDER...

Each folder holds traces with truths beside them; the synthetic families are judged as well. Prints the table
of wslgpud/risk/README.md.
"""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path

from wslgpud.risk.replay import replay, score_engine, truth_beside
from wslgpud.risk.score import Truth
from wslgpud.risk.settings import RiskSettings
from wslgpud.risk.trace import read_trace

SHIFTS = (-0.10, -0.06, -0.03, 0.0, 0.03, 0.06, 0.10, 0.20)
SEEDS = range(200, 220)


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


def case_of(family, seed):
    case = family(seed)
    told = case.truth()
    events = {event["resource"]: event["t"] for event in told["events"]}
    return Truth(told["name"], events, told["onset"], told["tolerated"]), list(case.observations())


def row(name, pairs):
    line = score_engine(name, pairs)
    w, c = line.warning, line.critical
    n = max(1, len(w.leads))
    return (
        f"{name} | {100 * w.in_time / n:.0f} % of {len(w.leads)} | {w.median_lead or 0:.0f} s"
        f" | {w.quiet_with_alarm} of {w.quiet_traces} | {w.tolerated_with_alarm} of {w.tolerated_traces}"
        f" | {w.alarms_before_events / n:.2f}"
        f" | {100 * sum(lead > 0 for lead in c.leads) / n:.0f} % | {len(c.noisy)} |"
    )


def main():
    recordings = [path for folder in sys.argv[1:] for path in sorted(Path(folder).glob("*.jsonl.gz"))]
    loaded = [(truth, list(read_trace(p))) for p in recordings if (truth := truth_beside(p)) is not None]
    drawn = [case_of(family, seed) for family in families() for seed in SEEDS]
    head = "in time | median lead | silent with alarm | tolerated with warning | alarms an event"
    for title, cases in (("recordings", loaded), ("held-out families", drawn)):
        if not cases:
            continue
        print(f"\n| {title}: headroom shifted by | {head} | critical before | false criticals |")
        print("|---" * 8 + "|")
        for by in SHIFTS:
            settings = shifted(by)
            pairs = ((truth, replay(truth.name, seen, settings)) for truth, seen in cases)
            print("| " + row(f"{100 * by:+.0f} %", pairs), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
