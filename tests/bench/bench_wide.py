"""Score of the risk engine on a broad family of synthetic machines, by scenario.

    python -m tests.bench.bench_wide [FIRST_SEED [SEEDS [FASTEST SLOWEST]]]

FASTEST and SLOWEST limit the seconds from half full to exhaustion. Prints the table of wslgpud/risk/README.md.
"""

from __future__ import annotations

import os
import sys

from tests.bench.scoring import Truth, score_engine
from tests.traces import wide
from wslgpud.risk.trace import replay


def judged(name, scenarios, seeds, paces):
    """Return the engine's score over these scenarios with these seeds."""

    def pairs():
        for scenario in scenarios:
            for seed in seeds:
                drawn = wide.draw(scenario, seed, paces=paces)
                told = drawn.truth()
                events = {event["resource"]: event["t"] for event in told["events"]}
                truth = Truth(told["name"], events, told["onset"], told["tolerated"])
                yield truth, replay(told["name"], drawn.observations())

    return score_engine(name, pairs())


def main():
    first, count, fastest, slowest = (*map(float, sys.argv[1:]), *(1000, 20, 15, 36000)[len(sys.argv) - 1 :])
    seeds = range(int(first), int(first + count))
    print(
        "| scenario | in time | median lead | silent with alarm | tolerated with warning | alarms per event"
        " | critical before | false criticals |"
    )
    print("|---" * 8 + "|")
    total = [0] * 9
    for scenario in (*wide.FATAL, *wide.HARMLESS):
        line = judged(scenario.__name__, [scenario], seeds, (fastest, slowest))
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
            w.in_time,
            n,
            w.quiet_with_alarm,
            w.quiet_traces,
            w.tolerated_with_alarm,
            w.tolerated_traces,
            w.alarms_before_events,
            before,
            len(c.noisy),
        )
        total = [a + b for a, b in zip(total, figures, strict=True)]
    print(
        f"| all | {total[0]} of {total[1]} | | {total[2]} of {total[3]} | {total[4]} of {total[5]} |"
        f" {total[6] / max(1, total[1]):.2f} | {total[7]} of {total[1]} | {total[8]} |"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
