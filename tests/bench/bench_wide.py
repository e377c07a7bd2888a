"""How well the risk engine does on a broad family of made-up machines, by scenario.

    python tests/bench/bench_wide.py [FIRST_SEED [SEEDS [FASTEST SLOWEST]]]

FASTEST and SLOWEST bound the seconds from half full to the end. Prints the table of wslgpud/risk/README.md.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

from wslgpud.risk.replay import replay, score_engine
from wslgpud.risk.score import Truth


def wide():
    path = Path(__file__).parent.parent / "traces" / "wide.py"
    spec = importlib.util.spec_from_file_location("wide", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def judged(module, scenario, seeds, paces):
    def pairs():
        for seed in seeds:
            drawn = module.draw(scenario, seed, paces=paces)
            told = drawn.truth()
            events = {event["resource"]: event["t"] for event in told["events"]}
            truth = Truth(told["name"], events, told["onset"], told["tolerated"])
            yield truth, replay(told["name"], drawn.observations())

    return score_engine(scenario.__name__, pairs())


def main():
    first, count, fastest, slowest = (*map(float, sys.argv[1:]), *(1000, 20, 15, 36000)[len(sys.argv) - 1 :])
    seeds, module = range(int(first), int(first + count)), wide()
    print("| scenario | in time | median lead | silent with alarm | tolerated with warning | alarms an event"
          " | critical before | false criticals |")  # fmt: skip
    print("|---" * 8 + "|")
    total = [0] * 9
    for scenario in (*module.FATAL, *module.HARMLESS):
        line = judged(module, scenario, seeds, (fastest, slowest))
        w, c = line.warning, line.critical
        n = len(w.leads)
        before = sum(lead > 0 for lead in c.leads)
        print(
            f"| {line.name} | {w.in_time} of {n} | {w.median_lead or 0:.0f} s | {w.quiet_with_alarm} of"
            f" {w.quiet_traces} | {w.tolerated_with_alarm} of {w.tolerated_traces} |"
            f" {w.alarms_before_events / max(1, n):.2f} | {before} of {n} | {len(c.noisy)} |",
            flush=True,
        )
        if os.environ.get("VERBOSE"):
            print("    late:", ", ".join(w.late), "| false:", ", ".join(w.noisy), "| critical:", c.noisy)
        figures = (
            w.in_time, n, w.quiet_with_alarm, w.quiet_traces, w.tolerated_with_alarm,
            w.tolerated_traces, w.alarms_before_events, before, len(c.noisy),
        )  # fmt: skip
        total = [a + b for a, b in zip(total, figures, strict=True)]
    print(f"| all | {total[0]} of {total[1]} | | {total[2]} of {total[3]} | {total[4]} of {total[5]} |"
          f" {total[6] / max(1, total[1]):.2f} | {total[7]} of {total[1]} | {total[8]} |")  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
