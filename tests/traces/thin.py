"""Make a long recording small enough to keep: every so many seconds a sample, no command lines, no groups.

python -m tests.traces.thin IN.jsonl.gz OUT.jsonl.gz SECONDS

Where OUT has no truth yet, it gets one in which nothing went wrong: what went wrong only its recorder knows.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from tests.traces.labels import label
from tests.traces.writing import write_trace
from wslgpud.model import Observation
from wslgpud.risk.trace import read_trace

PROCESSES = 6


def thin(observations: Iterable[Observation], seconds: float) -> Iterator[Observation]:
    due = 0.0
    for seen in observations:
        if seen.t >= due:
            due = seen.t + 0.9 * seconds
            few = tuple(replace(process, command="", cgroup="") for process in seen.processes[:PROCESSES])
            yield replace(seen, processes=few, cgroups=(), expected=())


def main() -> None:
    source, target, seconds = Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3])
    kept = thin(read_trace(source, on_cut=lambda cut: print(cut, file=sys.stderr)), seconds)
    write_trace(target, kept, interval_seconds=seconds, host={"thinned": True})
    name = target.name.split(".")[0]
    truth = target.with_name(f"{name}.truth.json")
    if not truth.exists():
        truth.write_text(json.dumps(label(name, list(read_trace(target)), [])) + "\n")


if __name__ == "__main__":
    main()
