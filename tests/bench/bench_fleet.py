"""Load of two hundred machines, one sample per second each, on one PostgreSQL and one Prometheus.

    python -m tests.bench.bench_fleet --json tests/bench/fleet.json     # both; as root, with Debian's packages
    python -m tests.bench.bench_fleet --only prometheus --machines 50

``fleet`` simulates the machines. For PostgreSQL each has its own store, a file that is copied to the server. First a
tenth of them is disconnected for an hour and catches up; then all write in real time; then queries run, and expired
samples are deleted. Prometheus scrapes all once per second, then at its usual interval; then it answers the queries of
the fleet dashboard over six hours, and deletes expired data.

CPU time is per process, so other load on the machine hardly changes it.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from tests.bench import fleet
from tests.bench.fleet_postgresql import central_database
from tests.bench.fleet_prometheus import USUAL_SECONDS, central_prometheus
from wslgpud.store.schema import PERIOD_SECONDS

PARTS = {"postgresql": central_database, "prometheus": central_prometheus}


def table(facts: dict[str, Any]) -> str:
    """Return the figures as the documents show them."""
    ours, theirs = facts["postgresql"], facts["prometheus"]
    live, sealed, caught, gone = (ours[name] for name in ("live", "sealed", "caught_up", "retention"))
    scraped, board = (theirs["every_second"], theirs["usual"]), theirs["dashboard"]
    sizes = [sealed[f"{name}_bytes"] / sealed["samples"] for name in ("samples", "summaries")]
    (_, whole), (slowest, longest) = board["query_seconds"].items()
    scrapes = [
        f"{one['missed_scrapes']} scrapes missed, the slowest took {one['scrape_max_seconds'] * 1e3:.0f} ms"
        for one in scraped
    ]
    rate = caught["samples"] / caught["seconds"]
    rows = [
        ("", f"PostgreSQL {ours['version']}", *(f"Prometheus {theirs['version']}, {how}" for how in _HOW)),
        ("series of each machine", ours["series"], *[theirs["series"]] * 2),
        ("samples a second", *(f"{one['samples_a_second']:,.0f}" for one in (live, *scraped))),
        (
            "processor time of the server, of one core",
            f"{_share(ours, 'server'):.0%}",
            *(f"{one['server_cpu_seconds'] / one['seconds']:.0%}" for one in scraped),
        ),
        (
            "machines that would fill the core",
            f"{ours['machines'] / _share(ours, 'server'):,.0f}",
            *(f"{theirs['machines'] * one['seconds'] / one['server_cpu_seconds']:,.0f}" for one in scraped),
        ),
        (
            "of each machine, for its file and the copy",
            f"{_share(ours, 'machines') / ours['machines']:.2%}",
            "[the daemon's](#what-it-costs-and-how-it-compares)",
            "less",
        ),
        ("memory of the server (PSS)", *(f"{one['server_pss_bytes'] / 2**20:,.0f} MiB" for one in (live, *scraped))),
        (
            "age of the newest samples there",
            f"{live['lag_p50_seconds']:.0f} s in the median, at most {live['lag_max_seconds']:.0f} s",
            *scrapes,
        ),
        (
            "bytes per sample on the disk",
            f"{sizes[0]:.2f}, and {sizes[1]:.2f} of summaries",
            "",
            f"{board['bytes_a_sample']:.2f} of the dashboard's series",
        ),
        ("bytes per sample in its log", *(f"{one['log_bytes_a_sample']:.2f}" for one in (live, scraped[0])), ""),
        (
            "questions",
            _told(ours["query_seconds"]),
            "",
            _told({"the fleet dashboard over six hours": whole, f"of it the slowest query ({slowest})": longest}),
        ),
        (
            "deleted for their age",
            f"{gone['samples'] / 1e6:.1f} million samples in {gone['seconds']:.1f} s",
            "",
            f"blocks of four hours of the dashboard's series in {board['retention']['seconds']:.1f} s",
        ),
        (
            f"after {caught['away_seconds'] / 60:.0f} minutes without the server",
            f"{caught['machines']} machines have caught up in {caught['seconds']:.0f} s, {rate:,.0f} samples a second",
            *["what was not scraped is missing"] * 2,
        ),
    ]
    lines = ["| " + " | ".join(map(str, row)) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]]) + "\n"


def _share(facts: dict[str, Any], whose: str) -> float:
    """Return the share of a core for commits, and for sealing, which happens every quarter of an hour."""
    live, sealed, key = facts["live"], facts["sealed"], f"{whose}_cpu_seconds"
    sealing: float = sealed[key] / sealed["quarters"] * facts["machines"] / PERIOD_SECONDS
    committing: float = live[key] / live["seconds"]
    return committing + sealing


def _told(seconds: dict[str, float]) -> str:
    return "; ".join(f"{what}: {took * 1e3:,.0f} ms" for what, took in seconds.items())


#: in the order of the figures
_HOW = ("each second", f"every {USUAL_SECONDS} s")


def main() -> None:
    """Measure and print."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("--machines", type=int, default=200)
    options.add_argument("--seconds", type=int, default=90, help="duration of each real-time part")
    options.add_argument("--only", choices=PARTS)
    options.add_argument("--json", type=Path, help="file for the figures; those of skipped parts are kept")
    chosen = options.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the servers are stopped too
    # the garbage collector would traverse the objects of two hundred machines again and again
    gc.set_threshold(100_000, 50, 100)
    known = fleet.exposed()
    facts = json.loads(chosen.json.read_text()) if chosen.json and chosen.json.exists() else {}
    for name in [chosen.only] if chosen.only else PARTS:
        found = PARTS[name](known, chosen.machines, chosen.seconds)
        facts[name] = {"date": time.strftime("%Y-%m-%d"), "cores": len(os.sched_getaffinity(0)), **found}
        print(json.dumps(facts[name], indent=1))
        if chosen.json:
            chosen.json.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
